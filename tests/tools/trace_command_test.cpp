// Traces of plans and of runs with a drive show every op in Perfetto.
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "run_command.h"
#include "tests/plan/trace_rule.h"

namespace sluice {
namespace {

using test::Digits;

class TraceCommand : public RunCommandTest {
 protected:
  json trace() const { return json::parse(read(path("trace.json"))); }

  /// By process: the ops that slices name.
  static std::map<int, std::multiset<std::uint32_t>> ops_of(const json& trace) {
    std::map<int, std::multiset<std::uint32_t>> ops;
    for (const json& e : trace.at("traceEvents"))
      if (e.at("ph") == "X") ops[e.at("pid")].insert(e.at("args").at("op").get<std::uint32_t>());
    return ops;
  }

  void expect_shown(std::size_t timelines) const {
    const json whole = trace();
    for (const Digits digits : {Digits::taken, Digits::cut_off})
      EXPECT_EQ(test::dropped_slices(whole, digits), std::vector<std::string>());
    const auto by_process = ops_of(whole);
    ASSERT_EQ(by_process.size(), timelines);
    for (const auto& [process, ops] : by_process) {
      const std::set<std::uint32_t> distinct(ops.begin(), ops.end());
      EXPECT_EQ(distinct.size(), ops.size()) << "an op is there twice";
      EXPECT_EQ(*distinct.rbegin() + 1, distinct.size()) << "an op is missing";
      EXPECT_EQ(ops, by_process.begin()->second);
    }
  }

  /// A number that the trace processor answers with, -1 where it fails.
  static double query(const std::string& program, const std::string& file, const std::string& trace) {
    FILE* pipe = popen((program + " -q " + file + " " + trace + " 2>/dev/null").c_str(), "r");
    std::string text;
    for (int c = 0; pipe != nullptr && (c = fgetc(pipe)) != EOF;) text += static_cast<char>(c);
    if (pipe == nullptr || pclose(pipe) != 0) return -1;
    const std::size_t line = text.find('\n');  // a header, then the number
    return line == std::string::npos ? -1 : std::atof(text.c_str() + line + 1);
  }
};

TEST_F(TraceCommand, OfAPlanShowsEveryOp) {
  const Finished f = sluice("plan --model llama-tiny --seq 32 --batch 4 " + drive() + "--trace " + path("trace.json"));
  ASSERT_EQ(f.status, 0) << f.err;
  expect_shown(1);
}

TEST_F(TraceCommand, OfARunShowsEveryOpAsPredictedAndAsMeasured) {
  const Finished f = sluice(options() + drive() + run("out") + "--steps 3 --trace " + path("trace.json"));
  ASSERT_EQ(f.status, 0) << f.err;
  expect_shown(2);
}

TEST_F(TraceCommand, IsReadWholeByTraceProcessor) {
  std::string program;
  for (const std::string name : {"trace_processor", "trace_processor_shell"})
    if (std::system((name + " --version >/dev/null 2>&1").c_str()) == 0) program = name;
  if (program.empty()) GTEST_SKIP() << "no trace_processor on PATH that runs";
  const Finished f = sluice(options() + drive() + run("out") + "--steps 3 --trace " + path("trace.json"));
  ASSERT_EQ(f.status, 0) << f.err;
  write("slices.sql", "select count(*) from slice;");
  write("lost.sql", "select sum(value) from stats where severity in ('error', 'data_loss');");
  std::size_t slices = 0;
  for (const auto& [process, ops] : ops_of(trace())) slices += ops.size();
  EXPECT_EQ(query(program, path("slices.sql"), path("trace.json")), static_cast<double>(slices));
  EXPECT_EQ(query(program, path("lost.sql"), path("trace.json")), 0);
}

}  // namespace
}  // namespace sluice
