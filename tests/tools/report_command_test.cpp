// sluice report, as a person meets it: a page that holds the numbers of its source, and no word of it as HTML.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cmath>

#include "html_check.h"
#include "run_command.h"
#include "sluice/size.h"

namespace sluice {
namespace {

using json = nlohmann::json;

class ReportCommand : public RunCommandTest {
 protected:
  /// The page, checked.
  std::string report(const std::string& source) const {
    const Finished f = sluice("report '" + path(source) + "' -o " + path("r.html"));
    EXPECT_EQ(f.status, 0) << f.err;
    const std::string page = read(path("r.html"));
    EXPECT_EQ(test::unbalanced_tag(page), "");
    EXPECT_EQ(test::outside_of(page), "");
    EXPECT_EQ(count(page, "<script"), 6u) << "those of the page, and no other";
    return page;
  }
  /// What the page's charts draw.
  static json data(const std::string& page) {
    const std::string begin = "<script id=\"data\" type=\"application/json\">";
    const std::size_t at = page.find(begin) + begin.size();
    return json::parse(page.substr(at, page.find("</script>", at) - at));
  }
  static std::size_t count(const std::string& text, const std::string& word) {
    std::size_t found = 0;
    for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++found;
    return found;
  }
  static void expect_has(const std::string& page, const std::string& text) {
    EXPECT_NE(page.find(text), std::string::npos) << text;
  }
  std::vector<json> metrics(const std::string& name) const {
    std::vector<json> all;
    std::stringstream text(read(path(name) + "/metrics.jsonl"));
    for (std::string line; std::getline(text, line);) all.push_back(json::parse(line));
    return all;
  }
  void train(const std::string& name, const std::string& more = "") const {
    const Finished f = sluice(options() + drive() + run(name) + "--steps 6 " + more);
    ASSERT_EQ(f.status, 0) << f.err;
  }
  json plan() const {
    const Finished f = sluice("plan --model llama-tiny --seq 32 --batch 4 " + drive() + "--json");
    EXPECT_EQ(f.status, 0) << f.err;
    return json::parse(f.out);
  }
};

TEST_F(ReportCommand, OfARunHasItsNumbers) {
  train("run", "--eval-every 3 --save-every 2");
  const auto before = everything();
  const std::string page = report("run");
  auto after = everything();
  after.erase(path("r.html"));
  EXPECT_TRUE(before == after) << "the run was touched";
  const std::vector<json> lines = metrics("run");
  const json d = data(page);
  ASSERT_EQ(d["curves"]["loss"].size(), lines.size());
  std::size_t saved = 0;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(d["curves"]["loss"][i][1], lines[i]["loss"]);
    EXPECT_EQ(d["curves"]["step_seconds"][i][1], lines[i]["step_seconds"]);
    saved += lines[i].contains("saved_step") ? 1 : 0;
  }
  EXPECT_EQ(d["curves"]["saved"].size(), saved);
  ASSERT_EQ(d["curves"]["eval"][""].size(), 2u);
  EXPECT_EQ(d["curves"]["eval"][""][1], json({6, lines[5]["eval_loss"]}));
  char loss[32];
  std::snprintf(loss, sizeof loss, "%.4f nats/token", lines.back()["loss"].get<double>());
  for (const std::string& text :
       std::vector<std::string>{"6, complete", loss, "Measured is step 6.", ">bf16</td>", ">1f1b</td>", "step-4",
                                "whole", format_seconds(d["step"]["bound_seconds"])})
    expect_has(page, text);
  const std::size_t differences = page.find("id=\"differences\"");
  const std::size_t rows = count(page.substr(differences, page.find("<h2", differences) - differences), "<tr>");
  EXPECT_GT(rows, 5u);
  EXPECT_LE(rows, 1 + 10u);
}

// Measured lanes are those of the plan, and busy for as long as a step takes at most.
TEST_F(ReportCommand, HasPredictedAndMeasuredLanes) {
  train("run");
  const json step = data(report("run"))["step"];
  for (const char* kind : {"predicted", "measured"}) {
    const json& picture = step[kind];
    ASSERT_EQ(picture["lanes"].size(), step["predicted"]["lanes"].size());
    ASSERT_EQ(picture["pass_seconds"].size(), step["passes"].size());
    std::uint64_t ops = 0, drawn = 0;
    for (const json& work : picture["work"]) ops += work["ops"].get<std::uint64_t>();
    for (const json& lane : picture["lanes"]) {
      double end = 0;
      for (const json& slice : lane["slices"]) {
        EXPECT_GE(slice[0].get<double>(), end);
        end = slice[1];
        drawn += slice[3].get<std::uint64_t>();
      }
      EXPECT_LE(end, picture["seconds"].get<double>() * 1.001);
    }
    EXPECT_EQ(drawn, ops);
    for (const json& tier : picture["memory"]) {
      EXPECT_LE(tier["peak_bytes"], tier["arena_bytes"]);
      double most = 0;
      for (const json& point : tier["points"]) {
        double alive = 0;
        for (std::size_t i = 1; i < point.size(); ++i) alive += point[i].get<double>();
        most = std::max(most, alive);
      }
      EXPECT_EQ(most, tier["peak_bytes"].get<double>());
    }
  }
}

TEST_F(ReportCommand, OfAPlanHasItsNumbers) {
  const json p = plan();
  write("plan.json", p.dump());
  const std::string page = report("plan.json");
  EXPECT_EQ(data(page)["step"], p["step"]);
  expect_has(page, "Plan of llama-tiny");
  expect_has(page, format_seconds(p["predicted"]["step_seconds"]));
  expect_has(page, format_bytes(p["device"]["arena_bytes"]));
  expect_has(page, "nothing in it was measured");
  EXPECT_LT(page.size(), 1u << 20);
  const Finished f = sluice("plan --model llama-tiny --host-memory 64KiB --json");
  ASSERT_EQ(f.status, 2);
  write("plan.json", f.out);
  expect_has(report("plan.json"), "The plan does not fit its budgets. The smallest that would do: device ");
}

TEST_F(ReportCommand, TextIsNoHtml) {
  const std::string evil = "</script><script>alert(1)</script>&\"'<!--";
  json p = plan();
  p["model"] = evil;
  p["settings"]["data"] = evil;
  p["machine"]["machine"] = evil;
  p["advice"]["text"] = evil;
  p["step"]["predicted"]["names"][0] = evil;
  p["step"]["passes"][0]["unit"] = evil;
  p["step"]["predicted"]["memory"][0]["contents"][0] = evil;
  write("plan.json", p.dump());
  const std::string page = report("plan.json");
  EXPECT_EQ(page.find("<script>alert"), std::string::npos);
  expect_has(page, "&lt;script&gt;alert(1)");
  EXPECT_EQ(data(page)["step"], p["step"]);
  train("run");
  std::filesystem::rename(path("run"), path("<script>alert(2)<b>"));
  EXPECT_EQ(report("<script>alert(2)<b>").find("<script>alert"), std::string::npos);
}

// Of one that goes on its directory has the same files, and is locked.
TEST_F(ReportCommand, OfARunThatIsNotCompleteSaysWhatIsMissing) {
  ASSERT_NE(signalled(options() + drive() + run("run") + "--steps 40", "run", "KILL").status, 0);
  std::ofstream(path("run/metrics.jsonl"), std::ios::app) << "{\"step\":39,\"lo";
  const int locked = open(path("run").c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(flock(locked, LOCK_EX), 0);
  std::string page = report("run");
  close(locked);
  expect_has(page, "of 40, not complete");
  expect_has(page, "No step&#39;s timeline was measured");
  expect_has(page, "1 lines of");
  EXPECT_FALSE(data(page)["step"].contains("measured"));
  std::filesystem::remove(path("run/timeline.json"));
  std::filesystem::remove(path("run/metrics.jsonl"));
  page = report("run");
  expect_has(page, "The run has no timeline.json");
  expect_has(page, "losses and rates are not known");
  EXPECT_TRUE(data(page)["step"].is_null());
}

TEST_F(ReportCommand, OfARunThatWasStoppedHasWhatItMeasured) {
  stop_a_run();
  EXPECT_TRUE(data(report("run"))["step"].contains("measured"));
  ASSERT_EQ(sluice("train --resume --lr 1e-3 " + run("run")).status, 0);
  const std::string page = report("run");
  expect_has(page, "40, complete");
  expect_has(page, "What has changed while the run went on");
  expect_has(page, "&quot;lr&quot;:0.001");
}

TEST_F(ReportCommand, CurvesOfLongRunsStaySmall) {
  train("run");
  const std::string id = json::parse(read(path("run/run.json")))["id"];
  std::string text;
  for (int step = 1; step <= 20000; ++step)
    text +=
        json{{"step", step}, {"run", id}, {"loss", 5 - 1e-4 * step}, {"step_seconds", 0.5}, {"skipped", false}}.dump() +
        "\n";
  write("run/metrics.jsonl", text);
  const std::string page = report("run");
  const json loss = data(page)["curves"]["loss"];
  EXPECT_GE(loss.size(), 1000u);
  EXPECT_LE(loss.size(), 2000u);
  EXPECT_EQ(loss.back()[0], 20000);
  EXPECT_EQ(loss.front()[3], 5 - 1e-4);
  EXPECT_LT(page.size(), 2u << 20);
}

TEST_F(ReportCommand, RefusesWhatIsNeither) {
  train("run");
  std::filesystem::create_directory(path("empty"));
  write("torn.json", "{\"format\": \"sluice-plan\", ");
  write("other.json", "[1, 2]");
  write("early.json", R"({"fits": true, "smallest": {}})");
  json p = plan();
  p["version"] = 2;
  write("later.json", p.dump());
  p["version"] = 1;
  p["step"]["predicted"]["lanes"][0]["slices"][0][4] = 1000000;
  write("damaged.json", p.dump());
  const auto refused = [&](const std::string& source, const std::string& what) {
    expect_refused("report " + path(source), what);
  };
  refused("missing", "there is no");
  refused("empty", "holds no run; give the directory of a run");
  refused("text", "not JSON");
  refused("torn.json", "torn.json");
  refused("other.json", "is no plan; give the directory of a run");
  refused("early.json", "an early version of sluice has printed; print it again");
  refused("later.json", "is a plan of another version of sluice");
  refused("damaged.json", "\"slices\" of its step is missing or damaged");
  refused("run/run.json", "is a file of a run; give its directory");
  EXPECT_FALSE(std::filesystem::exists(path("report.html")));
  write("run/timeline.json", "{}");
  refused("run", "timeline.json is damaged; remove it");
  write("run/run.json", "{}");
  refused("run", "run.json");
}

TEST_F(ReportCommand, ReplacesReportsAlone) {
  write("plan.json", plan().dump());
  ASSERT_EQ(sluice("report " + path("plan.json")).status, 0);
  ASSERT_EQ(sluice("report " + path("plan.json")).status, 0) << "it is a report";
  EXPECT_TRUE(std::filesystem::exists(path("report.html"))) << "in the current directory";
  const std::string text = read(path("text")), source = read(path("plan.json"));
  expect_refused("report " + path("plan.json") + " -o " + path("text"), "is no report; give another file");
  const Finished piped = sluice("report " + path("plan.json") + " -o -");
  EXPECT_EQ(piped.out, read(path("report.html")));
  EXPECT_FALSE(std::filesystem::exists(path("-")));
  expect_refused("report " + path("plan.json") + " -o " + path("plan.json"), "is no report; give another file");
  expect_refused("report " + path("plan.json") + " -o " + path("no/such.html"), "no");
  EXPECT_EQ(read(path("text")), text);
  EXPECT_EQ(read(path("plan.json")), source);
}

}  // namespace
}  // namespace sluice
