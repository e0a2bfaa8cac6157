// sluice checkpoint reshape, diff, import, and export of checkpoints: what a run has saved, through all of them.
#include <fstream>
#include <nlohmann/json.hpp>

#include "io/checkpoint/checkpoint.h"
#include "run_command.h"

namespace sluice {
namespace {

using nlohmann::json;

class StatesCommand : public RunCommandTest {
 protected:
  /// A run that is not durable saves a checkpoint when it is stopped: in <name>/saved.
  void save_a_run(const std::string& name, const std::string& more = "") const {
    const std::string where = "--device-memory 64MiB --host-memory 64MiB --states host --steps 300 ";
    const Finished f = signalled(options() + where + more + run(name), name, "TERM");
    ASSERT_EQ(f.status, 1) << f.err;
    ASSERT_TRUE(std::filesystem::exists(path(name) + "/saved/LATEST")) << f.err;
  }
  json done(const std::string& arguments, int status = 0) const {
    const Finished f = sluice("checkpoint " + arguments + " --json");
    EXPECT_EQ(f.status, status) << arguments << "\n" << f.err;
    EXPECT_EQ(f.err, "") << "JSON and nothing else";
    return json::parse(f.out, nullptr, false);
  }
  static Manifest manifest(const std::string& directory) {
    const auto opened = Checkpoint::open(directory);
    EXPECT_TRUE(opened.ok()) << (opened.ok() ? "" : opened.error().message);
    return opened.ok() ? opened->manifest() : Manifest{};
  }
};

TEST_F(StatesCommand, ARunsStatesGoThroughEveryLayout) {
  save_a_run("run", "--ranks 4 --tp 2 --dtype bf16 ");
  const std::string saved = path("run") + "/saved";
  const std::uint64_t step = manifest(saved).step;
  json j = done("reshape run/saved three --dp 3 --tp 2 --dtype f32");
  EXPECT_EQ(j["ranks"], 6);
  EXPECT_EQ(j["step"], step);
  EXPECT_EQ(j["dtype"], "f32");
  EXPECT_EQ(j["moments"], "f32");
  EXPECT_EQ(j["exact"], true);
  EXPECT_EQ(j["files"], manifest(path("three")).files.size());
  EXPECT_EQ(done("diff run/saved three")["same"], true);
  done("reshape three one");
  EXPECT_EQ(manifest(path("one")).files.size(), 1u);
  done("reshape one stages --pp 2 --tp 2 --cp 2 --dtype bf16");
  EXPECT_EQ(done("diff stages run/saved")["same"], true);
  // As the run has it: the same units with the same pieces.
  done("reshape stages again --dp 2 --tp 2");
  const Manifest made = manifest(path("again")), began = manifest(saved);
  EXPECT_EQ(made.run, began.run);
  EXPECT_EQ(json::parse(made.model), json::parse(began.model));
  const auto units = [](const Manifest& m) {
    std::vector<StoredUnit> all;
    for (const StoredFile& file : m.files)
      for (const StoredUnit& unit : file.units) all.push_back({unit.name, unit.numel, unit.pieces, {}});
    return all;
  };
  const std::vector<StoredUnit> there = units(began), now = units(made);
  EXPECT_TRUE(std::is_permutation(there.begin(), there.end(), now.begin(), now.end()));

  const json exported = done("export one model --optimizer");
  EXPECT_EQ(exported["step"], step);
  EXPECT_EQ(exported["files"],
            (json{"model.safetensors", "optimizer.safetensors", "config.json", "generation_config.json"}));
  const json imported = done("import model back");
  EXPECT_EQ(imported["checkpoint"], "back/step-" + std::to_string(step));
  EXPECT_EQ(imported["moments"], true);
  EXPECT_EQ(done("diff back run/saved")["same"], true);
  // The run knows nothing of all this.
  EXPECT_EQ(sluice("train --resume " + run("run") + "--steps " + std::to_string(step + 1)).status, 0);
}

TEST_F(StatesCommand, PeopleAreToldWhatIsDone) {
  save_a_run("run");
  const Finished reshaped = sluice("checkpoint reshape run/saved two --dp 2 --moments int8");
  ASSERT_EQ(reshaped.status, 0) << reshaped.err;
  EXPECT_NE(reshaped.err.find("writing two"), std::string::npos) << reshaped.err;
  EXPECT_NE(reshaped.out.find("for 2 ranks"), std::string::npos) << reshaped.out;
  EXPECT_NE(reshaped.out.find("encoded anew"), std::string::npos) << reshaped.out;
  const Finished same = sluice("checkpoint diff run/saved run/saved");
  EXPECT_EQ(same.status, 0) << same.err;
  EXPECT_NE(same.out.find("same: all "), std::string::npos) << same.out;
  const Finished differs = sluice("checkpoint diff run/saved two");
  EXPECT_EQ(differs.status, 1);
  EXPECT_EQ(differs.err.find("sluice checkpoint diff:"), std::string::npos) << differs.err;
  EXPECT_NE(differs.out.find("exp_avg_sq"), std::string::npos) << differs.out;
  EXPECT_EQ(differs.out.find("parameter"), std::string::npos) << differs.out;
  const json j = done("diff run/saved two", 1);
  EXPECT_EQ(j["same"], false);
  for (const json& d : j["differences"]) {
    EXPECT_GT(d["largest_difference"].get<double>(), 0);
    EXPECT_LT(d["relative_norm"].get<double>(), 0.05);
  }
  const Finished exported = sluice("checkpoint export two model");
  EXPECT_EQ(exported.status, 0) << exported.err;
  const Finished imported = sluice("checkpoint import model back");
  EXPECT_EQ(imported.status, 0) << imported.err;
  EXPECT_NE(imported.out.find("step 0"), std::string::npos) << imported.out;
  EXPECT_EQ(sluice("checkpoint diff back two").status, 1) << "moments are missing";
  for (const char* command : {"reshape", "diff", "import", "export"})
    EXPECT_NE(sluice(std::string("checkpoint ") + command + " --help").out.find("Examples:"), std::string::npos);
}

/// What begins with an export of a checkpoint learns from there: its weights are those of the run.
TEST_F(StatesCommand, AnExportOfACheckpointIsTheExportOfItsRun) {
  save_a_run("run", "--ranks 2 ");
  ASSERT_EQ(sluice("checkpoint export run of-run").status, 0);
  done("reshape run/saved other --pp 2");
  ASSERT_EQ(sluice("checkpoint export other/" + checkpoint_name(manifest(path("other")).step) + " of-other").status, 0);
  for (const char* file : {"model.safetensors", "generation_config.json"})
    EXPECT_EQ(read(path("of-run/") + file), read(path("of-other/") + file)) << file;
  json config = json::parse(read(path("of-run/config.json")));
  config.erase("sluice_tokenizer");  // lies in the run's directory, which such checkpoints do not name
  EXPECT_EQ(config, json::parse(read(path("of-other/config.json"))));
  // Only of an earlier export is it that another takes the place.
  expect_refused_untouched("checkpoint export other of-run", "--force");
  EXPECT_EQ(done("export other of-run --force --optimizer")["files"].size(), 4u);
  EXPECT_EQ(done("export other of-run --force")["files"].size(), 3u);
  EXPECT_FALSE(std::filesystem::exists(path("of-run/optimizer.safetensors")));
}

TEST_F(StatesCommand, WhatCanNotBeIsRefusedInOneLine) {
  save_a_run("run");
  ASSERT_EQ(sluice(options() + run("complete") + "--steps 1").status, 0);
  const auto refused = [&](const std::string& arguments, const std::string& what) {
    expect_refused_untouched("checkpoint " + arguments, what);
  };
  refused("reshape nothing to", "/nothing; give a checkpoint");
  refused("reshape run to", "run has no checkpoints");
  refused("reshape run/saved to --tp 64", "--tp 64");
  refused("reshape run/saved to --pp 64", "--pp 64");
  refused("reshape run/saved to --dp 0", "--dp");
  refused("reshape run/saved to --dtype f16", "f16");
  refused("reshape run/saved to --host-memory 1MiB", "--host-memory 1 MiB is too little");
  refused("reshape run/saved run/saved", "is there already");
  refused("diff run/saved nothing", "nothing");
  refused("import nothing to", "nothing");
  refused("import run to", "run");
  refused("import complete to --dtype f16", "f16");
  refused("export nothing to", "nothing");
  refused("export complete to --optimizer", "--optimizer");
  ASSERT_EQ(sluice("checkpoint import complete other").status, 0);
  const std::string manifest_path = path("other/step-0/manifest.json");
  std::string text = read(manifest_path);
  write("other/step-0/manifest.json", text.replace(text.find("\"step\""), 6, "\"stop\""));
  refused("diff run/saved other", "manifest.json");
  const StoredState state = manifest(path("run") + "/saved").files[0].units[1].states[0];
  const std::string file = Checkpoint::open(path("run") + "/saved")->path() + "/rank-00000.h5";
  std::fstream damaged(file, std::ios::binary | std::ios::in | std::ios::out);
  damaged.seekp(static_cast<std::streamoff>(state.offset));
  damaged.write("damaged", 7);
  damaged.close();
  for (const std::string command : {"reshape run/saved", "export run/saved"}) {
    const Finished f = sluice("checkpoint " + command + " to");
    EXPECT_EQ(f.status, 2) << f.err;
    EXPECT_NE(f.err.find("rank-00000.h5: block 0 of /"), std::string::npos) << f.err;
    EXPECT_FALSE(std::filesystem::exists(path("to")) && !std::filesystem::is_empty(path("to")));
  }
}

}  // namespace
}  // namespace sluice
