// What is suggested for words that nobody knows, as functions and as users meet it.
#include "sluice/suggest.h"

#include "command.h"

namespace sluice {
namespace {

TEST(Suggest, DistanceCountsWhatATypistDoes) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("train", "train"), 0u);
  EXPECT_EQ(edit_distance("train", "trian"), 1u);  // neighbours swapped
  EXPECT_EQ(edit_distance("train", "tain"), 1u);
  EXPECT_EQ(edit_distance("train", "traain"), 1u);
  EXPECT_EQ(edit_distance("train", "brain"), 1u);
  EXPECT_EQ(edit_distance("llama-7B", "llama-7b"), 0u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
}

TEST(Suggest, NearestIsNearOrNothing) {
  const std::vector<std::string> known{"auto", "none", "full"};
  EXPECT_EQ(did_you_mean("ful", known), "; did you mean full?");
  EXPECT_EQ(did_you_mean("everything", known), "");
  EXPECT_EQ(did_you_mean("", known), "");
  const std::vector<std::string> presets{"llama-1b", "llama-3b", "llama-7b", "llama-8b"};
  EXPECT_EQ(did_you_mean("llama-7B", presets), "; did you mean llama-7b?");
  EXPECT_EQ(did_you_mean("llama-2b", presets), "; did you mean llama-1b, llama-3b or llama-7b?");
  EXPECT_EQ(did_you_mean(std::string(1000, 'l'), presets), "");
}

TEST_F(CommandTest, MisspeltCommandsAreGuessed) {
  expect_refused("trian", "'trian' is not an option or command here; did you mean train?");
  expect_refused("evaluate", "'evaluate'");
  expect_refused("bench aio", "did you mean io?");
  expect_refused("bench matmull", "did you mean matmul?");
  expect_refused("data tokenise --input a --output b", "did you mean tokenize?");
  expect_refused("checkpoint exprot a b", "did you mean export?");
  expect_refused("checkpoint", "a subcommand is required: save, list, inspect, verify, reshape");
  expect_refused("generate --model llama-tiny once upon",
                 "'upon' is not an option or command here; put a value of several");
  EXPECT_EQ(sluice("bench something").err.find("did you mean"), std::string::npos);
}

TEST_F(CommandTest, MisspeltOptionsAreGuessed) {
  const std::string plan = "plan --model llama-tiny ";
  expect_refused(plan + "--devise-memory 1GiB", "did you mean --device-memory?");
  expect_refused(plan + "--device_memory 1GiB", "did you mean --device-memory?");
  expect_refused(plan + "--device-mem=1GiB", "did you mean --device-memory?");
  expect_refused(plan + "--recompte full", "did you mean --recompute?");
  expect_refused(plan + "-batch 8", "did you mean --batch?");
  expect_refused("bench io --dept 3", "did you mean --depth?");
  expect_refused("--versoin", "did you mean --version?");
  // As other programs call them.
  expect_refused(plan + "--batch_size 8", "did you mean --batch?");
  expect_refused(plan + "--micro-batch-size 8", "did you mean --micro-batch?");
  expect_refused(plan + "--learning_rate 1e-3", "did you mean --lr?");
  expect_refused(plan + "--max_iters 100", "did you mean --steps?");
  expect_refused("bench io --iodepth 3", "did you mean --depth?");
  expect_refused("bench io --rw=randread", "did you mean --mode?");
  EXPECT_EQ(sluice(plan + "--bogus").err.find("did you mean"), std::string::npos);
  // Only what the command has.
  EXPECT_EQ(sluice("generate --model llama-tiny --prompt x --learning_rate 1e-3").err.find("did you mean"),
            std::string::npos);
}

TEST_F(CommandTest, MisspeltValuesAreGuessed) {
  const std::string plan = "plan --model llama-tiny ";
  expect_refused(plan + "--dtype fb16", "--dtype: 'fb16' is none of bf16, fp32; did you mean bf16?");
  expect_refused(plan + "--recompute ful", "did you mean full?");
  expect_refused(plan + "--moments int-8", "did you mean int8?");
  expect_refused(plan + "--states NVME", "did you mean nvme?");
  expect_refused("plan --model llama-7B", "did you mean llama-7b?");
  expect_refused("plan --model nothing-like-it",
                 "there is no nothing-like-it, and no preset is called 'nothing-like-it'");
  expect_refused("plan --model lama-tiny", "did you mean llama-tiny?");
  expect_refused("plan --model gpt2-124M", "did you mean gpt2-124m?");
  expect_refused("data tokenize a --output b --chat x --loss asistant", "did you mean assistant?");
  expect_refused("bench adamw --formats bf16/f32/bf15", "did you mean bf16/f32/bf16?");
  expect_refused("bench io --backend iouring", "did you mean io_uring?");
  EXPECT_EQ(sluice(plan + "--dtype int4").err.find("did you mean"), std::string::npos);
  // The help still says what there is.
  EXPECT_NE(sluice("plan --help").out.find("{bf16,fp32}"), std::string::npos);
}

}  // namespace
}  // namespace sluice
