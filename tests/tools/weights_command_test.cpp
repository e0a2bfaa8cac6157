// Which weights train begins with, and that it says so.
#include <nlohmann/json.hpp>

#include "run_command.h"

namespace sluice {
namespace {

class WeightsCommand : public RunCommandTest {
 protected:
  void SetUp() override {
    RunCommandTest::SetUp();
    const Finished f = sluice(options() + "--steps 8 --lr 3e-3 --run trained");
    ASSERT_EQ(f.status, 0) << f.err;
    std::filesystem::create_directory(path("model"));
    for (const char* name : {"config.json", "model.safetensors"})
      std::filesystem::copy_file(path("trained/") + name, path("model/") + name);
  }
  static constexpr const char* train_ = "train --seq 32 --batch 4 --eval-batches 1 --steps 1 --data text ";
  /// With rates of zero the model that comes out is the one that went in.
  static constexpr const char* frozen_ = "--lr 1e-30 --lr-end 0 --warmup 0 --weight-decay 0 ";

  bool is_of_model(const std::string& run) const {
    return read(path(run + "/model.safetensors")) == read(path("model/model.safetensors"));
  }
  static std::string told(const Finished& f) {
    const std::size_t at = f.err.find("\nweights: ");
    return at == std::string::npos ? "" : f.err.substr(at + 1, f.err.find('\n', at + 1) - at - 1);
  }
};

TEST_F(WeightsCommand, ThatLieInTheModelsDirectoryAreUsed) {
  const Finished f = sluice(std::string(train_) + frozen_ + "--model model --run run");
  ASSERT_EQ(f.status, 0) << f.err;
  EXPECT_EQ(told(f), "weights: from " + real("model") + " (safetensors, 1 file)");
  EXPECT_TRUE(is_of_model("run"));
  EXPECT_EQ(json::parse(read(path("run/run.json")))["config"]["init"], real("model"));
  EXPECT_LT(result("run")["eval_loss"], 4.5) << "random weights have 5.5";
  // A complete run's directory serves likewise, and so does one of shards.
  const Finished run = sluice(std::string(train_) + frozen_ + "--model trained --run none");
  EXPECT_EQ(told(run), "weights: from trained (safetensors, 1 file)") << run.err;
  ASSERT_EQ(sluice("checkpoint export trained sharded --max-shard-size 1MiB").status, 0);
  const Finished shards = sluice(std::string(train_) + frozen_ + "--model sharded --run shards");
  ASSERT_EQ(shards.status, 0) << shards.err;
  EXPECT_TRUE(told(shards).starts_with("weights: from " + real("sharded") + " (safetensors, ")) << shards.err;
  EXPECT_TRUE(told(shards).ends_with(" files)")) << shards.err;
  EXPECT_TRUE(is_of_model("shards"));
}

TEST_F(WeightsCommand, AreRandomWhereThatIsAskedForOrThereAreNone) {
  const Finished scratch = sluice(std::string(train_) + frozen_ + "--model model --from-scratch --seed 3 --run run");
  ASSERT_EQ(scratch.status, 0) << scratch.err;
  EXPECT_EQ(told(scratch), "weights: random, seed 3 (--from-scratch)");
  EXPECT_FALSE(is_of_model("run"));
  std::filesystem::create_directory(path("bare"));
  std::filesystem::copy_file(path("model/config.json"), path("bare/config.json"));
  const auto said = [&](const std::string& arguments) {
    return told(sluice(std::string(train_) + "--run none " + arguments));
  };
  EXPECT_EQ(said("--model bare"), "weights: random, seed 1 (bare holds no weights)");
  EXPECT_EQ(said("--model llama-tiny"), "weights: random, seed 1 (llama-tiny is a preset)");
  EXPECT_EQ(said("--model model/config.json"),
            "weights: random, seed 1 (model/config.json is a file without weights; those beside it are used with "
            "--model model)");
  EXPECT_EQ(said("--model bare --init model"), "weights: from model (safetensors, 1 file)");
}

TEST_F(WeightsCommand, PlanTellsThem) {
  const Finished people = sluice("plan --seq 32 --model model"), j = sluice("plan --seq 32 --model model --json");
  ASSERT_EQ(people.status, 0) << people.err;
  EXPECT_NE(people.out.find("\nweights: from " + real("model") + " (safetensors, 1 file)\n"), std::string::npos)
      << people.out;
  EXPECT_EQ(json::parse(j.out)["init"], real("model"));
  EXPECT_TRUE(json::parse(sluice("plan --seq 32 --model llama-tiny --json").out)["init"].is_null());
}

TEST_F(WeightsCommand, ThatCanNotBeReadAreNotReplacedByRandomOnes) {
  expect_refused(std::string(train_) + "--model model --init model --from-scratch", "leave one of them out");
  std::filesystem::rename(path("model/model.safetensors"), path("model/pytorch_model.bin"));
  const std::string plan = "plan --seq 32 --model model", eval = "eval --seq 32 --batch 4 --data text --model model";
  for (const std::string& command : {train_ + std::string("--model model"), plan, eval}) {
    expect_refused(command, "model has its weights in pytorch_model.bin: only safetensors are read");
    expect_refused(command, "save_pretrained(DIR)");
  }
  expect_refused(std::string(train_) + "--model llama-tiny --init model", "has its weights in pytorch_model.bin");
  EXPECT_EQ(sluice(plan + " --from-scratch").status, 0);
  std::filesystem::rename(path("model/pytorch_model.bin"), path("model/model-00001-of-00002.safetensors"));
  expect_refused(plan, "complete the directory");
}

TEST_F(WeightsCommand, OfARunThatIsNotCompleteAreExportedFirst) {
  stop_a_run();
  const std::string how = "sluice checkpoint export run DIR";
  expect_refused(std::string(train_) + "--model run --run other", "sluice checkpoint export " + real("run") + " DIR");
  expect_refused(std::string(train_) + "--model llama-tiny --init run --run none", how);
  expect_refused("plan --seq 32 --run none --model run", how);
  expect_refused("eval --seq 32 --batch 4 --data text --model run", how);
  expect_refused("generate --model run --prompt x", how);
}

TEST_F(WeightsCommand, OfARunThatGoesOnAreItsOwn) {
  const std::string command = "train --seq 32 --batch 4 --eval-batches 1 --warmup 3 --steps 40 --data " + path("text") +
                              " --model " + path("model") + " " + drive();
  ASSERT_EQ(sluice(command + run("whole")).status, 0);
  const Finished first = signalled(command + run("run"), "run", "TERM");
  ASSERT_EQ(first.status, 1) << first.err;
  expect_refused_untouched(command + run("run") + "--from-scratch", "which began from the weights in");
  std::filesystem::remove(path("model/model.safetensors"));
  const Finished second = sluice(command + run("run"));
  ASSERT_EQ(second.status, 0) << second.err;
  EXPECT_EQ(told(second), "");
  EXPECT_EQ(result("run"), result("whole"));
}

// As runs were begun before directories' weights were used.
TEST_F(WeightsCommand, OfARunThatBeganWithRandomOnesStayThose) {
  const std::string command = "train --seq 32 --batch 4 --eval-batches 1 --warmup 3 --steps 40 --data " + path("text") +
                              " --model " + path("model") + " " + drive();
  ASSERT_EQ(sluice(command + "--from-scratch " + run("whole")).status, 0);
  ASSERT_EQ(signalled(command + "--from-scratch " + run("run"), "run", "TERM").status, 1);
  const Finished second = sluice(command + run("run"));
  ASSERT_EQ(second.status, 0) << second.err;
  EXPECT_EQ(result("run"), result("whole"));
}

}  // namespace
}  // namespace sluice
