// What can be known of a request is known before anything is measured, searched or made.
#include <sys/mount.h>

#include "io/tokens/token_sink.h"
#include "run_command.h"

namespace sluice {
namespace {

class RefusedEarly : public RunCommandTest {
 protected:
  /// Models, weights and data that are wrong in one way each; no profile is there, so that what goes on would measure.
  void SetUp() override {
    RunCommandTest::SetUp();
    ASSERT_EQ(sluice(options() + "--steps 1 --run model").status, 0);
    for (const char* name : {"fewer", "other", "no-config"}) std::filesystem::create_directory(path(name));
    json config = json::parse(read(path("model/config.json")));
    write("no-config/model.safetensors", read(path("model/model.safetensors")));
    write("fewer/config.json", config.dump());
    std::string weights = read(path("model/model.safetensors"));
    write("fewer/model.safetensors", weights.replace(weights.find("layers.0"), 8, "layers.9"));
    config["vocab_size"] = 300;
    write("other/config.json", config.dump());
    write("no-config.json", "{}");
    write("short", "too short");
    write("no-text.jsonl", "{\"text\": \"a line that is fine\"}\n{\"body\": \"a line without a text\"}\n");
    write("broken.jsonl", "{\"text\": \"never closed");
    std::string uint16(10000, '\0');  // nanoGPT's
    uint16[9001] = 1;
    write("other-tokens.bin", uint16);
    write_tokens("wide.tokens", 50000);
    write_tokens("few.tokens", 256, 40);
    std::filesystem::remove_all(path("cache"));
  }
  void write_tokens(const std::string& name, std::uint64_t vocabulary, std::size_t count = 5000) const {
    auto writer = TokenWriter::create(path(name), vocabulary);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE(writer->append(std::vector<std::int32_t>(count, 7)).ok());
    ASSERT_TRUE(writer->finish().ok());
  }

  /// Files with their contents, directories, links: all that there is but the outputs of commands.
  std::map<std::string, std::string> tree() const {
    std::map<std::string, std::string> all;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_))
      if (entry.path().filename().string().front() != '.')
        all[entry.path()] = entry.is_regular_file() ? read(entry.path()) : "no file";
    return all;
  }

  /// One line, and not a byte that was not there.
  void expect_early(const std::string& arguments, const std::string& what) const {
    SCOPED_TRACE(arguments);
    const auto before = tree();
    expect_refused(arguments, what);
    EXPECT_TRUE(tree() == before) << "something was left behind";
    EXPECT_FALSE(std::filesystem::exists(path("profile.json"))) << "the machine was measured";
    EXPECT_FALSE(std::filesystem::exists(path("cache"))) << "something was kept";
  }
};

struct Bad {
  const char *options, *what;
};

// Each stands in for a valid option of the same name.
constexpr Bad bad_of_every_command[] = {
    {"--model nowhere/config.json", "no such file"},
    {"--model no-config", "no-config holds no config.json"},
    {"--model no-config.json", "no-config.json"},
    {"--init nowhere", "nowhere"},
    {"--init fewer", "layers.9"},
    {"--model other --init model", "shape"},
    {"--seq 100000", "--seq 100000 is longer than"},
    {"--profile text", "profile"},
    {"--profile text/profile.json", "Not a directory"},
};
constexpr Bad bad_of_training[] = {
    {"--batch 5 --micro-batch 2", "--batch 5 is not a multiple"},
    {"--steps 0", "--steps 0"},
    {"--update backward", "cannot clip"},
    {"--update speculative", "are not durable"},
    {"--update speculative --ranks 2 --reduce native", "the same bits twice"},
    {"--durable on", "needs a drive"},
    {"--trace nowhere/t.json", "nowhere"},
    {"--trace short", "short is there, and is no trace"},
    {"--states nvme", "--states nvme needs a drive: add --nvme DIR"},
    {"--activations nvme", "--activations nvme needs a drive"},
    {"--host-memory 0", "0 has room for nothing"},
    {"--batch 0", "--batch 0: give at least 1"},
    {"--pp 2 --tp 2 --cp 2 --ranks 4", "--pp 2 x --cp 2 x --tp 2 are 8 ranks, and there are 4"},
};
constexpr Bad bad_of_runs[] = {
    {"--run text/run", "--run"},
    {"--run nvme/../text", "text: Not a directory"},
    {"--metrics nowhere/m.jsonl", "nowhere"},
    {"--metrics nvme", "directory"},
    {"--metrics m --trace m", "that metrics go to"},
    {"--metrics new/run/result.json", "the run keeps its own result.json there"},
    {"--trace new/run/model.safetensors", "the run keeps its own model.safetensors there"},
    {"--document-mask on", "a text is one document"},
    {"--trace new/run/saved/t.json", "the run keeps its own saved there"},
    {"--save-every 1 --checkpoints new/run/saved", "the run keeps its own saved there"},
};
constexpr Bad bad_drives[] = {
    {"--nvme nowhere", "nowhere: No such file"},
    {"--nvme text", "text: it is not a directory"},
    {"--nvme nvme,nowhere/below", "nowhere/below: No such file"},
};
constexpr Bad bad_data[] = {
    {"--data nowhere", "nowhere"},
    {"--data nvme", "nvme"},
    {"--data short", "too few"},
    {"--data no-text.jsonl", "no-text.jsonl line 2"},
    {"--data broken.jsonl", "broken.jsonl line 1"},
    {"--data wide.tokens", "has a vocabulary of 50000, the model's is 256"},
    {"--data few.tokens", "few.tokens"},
    {"--data other-tokens.bin", "token 256 at position 4500 is not in the vocabulary of 256"},
    {"--eval-data e=other-tokens.bin", "--eval-data e: "},
};

TEST_F(RefusedEarly, TrainPlanEvalAndGenerate) {
  // Of an option that is given twice the command would say only that: the wrong one takes the other's place.
  const auto with = [](std::string command, const Bad& bad) {
    for (const char* option : {"--model ", "--data ", "--run ", "--steps ", "--seq ", "--profile "}) {
      const std::size_t at = command.find(option);
      if (std::string(bad.options).find(option) == std::string::npos || at == std::string::npos) continue;
      command.erase(at, command.find(' ', at + std::string(option).size()) + 1 - at);
    }
    return command + bad.options;
  };
  const std::string common = "--model model --profile profile.json ";
  const std::string train = "train --seq 32 --steps 2 --data text --run new/run " + common;
  const std::string plan = "plan --seq 32 --steps 2 " + common;
  const std::string eval = "eval --seq 32 --data text " + common, generate = "generate --prompt-tokens 1,2 " + common;
  for (const Bad& bad : bad_of_every_command) {
    const bool is_of_sequences = std::string(bad.options).starts_with("--seq");
    for (const std::string& command : {train, plan, eval, generate})
      if (!is_of_sequences || command != generate) expect_early(with(command, bad), bad.what);
  }
  for (const Bad& bad : bad_of_training)
    for (const std::string& command : {train, plan}) expect_early(with(command, bad), bad.what);
  expect_early(plan + "--tokenizer nowhere", "nowhere");
  for (const Bad& bad : bad_of_runs) expect_early(with(train, bad), bad.what);
  for (const Bad& bad : bad_drives)
    for (const std::string& command : {train, eval, generate}) expect_early(with(command, bad), bad.what);
  for (const Bad& bad : bad_data)
    for (const std::string& command : {train, eval}) expect_early(with(command, bad), bad.what);
}

TEST_F(RefusedEarly, ListsWithEmptyParts) {
  expect_early("generate --model " + path("model") + " --prompt-tokens 1,,2",
               "--prompt-tokens: '1,,2' has an empty part");
  expect_early("generate --model " + path("model") + " --prompt-tokens=,2", "--prompt-tokens: ',2' has an empty part");
  expect_early("bench adamw --formats fp32,", "sluice bench adamw: --formats: 'fp32,' has an empty part");
}

TEST_F(RefusedEarly, TheDirectoryOfARunAndWhatOthersHave) {
  const std::string train = "train --seq 32 --steps 2 --data text --model model --profile profile.json ";
  expect_early(train + "--run other", "which is of no run");
  expect_early(train + "--run model", "contradicts the run");
  std::filesystem::create_symlink("nowhere", path("link"));
  expect_early(train + "--run link", "--run");
}

TEST_F(RefusedEarly, ADriveThatHasNoRoomForTheModel) {
  const std::string small = path("small");
  std::filesystem::create_directory(small);
  if (mount("tmpfs", small.c_str(), "tmpfs", 0, "size=1m") != 0) GTEST_SKIP() << "no file system can be mounted here";
  const std::string train =
      "train --seq 32 --steps 2 --data text --model model --profile profile.json --run small/run ";
  expect_early(train, "and the model, take at least");
  expect_early(train + "--nvme nvme", "the model at the end of the run takes at least");
  EXPECT_EQ(umount(small.c_str()), 0);
}

// Nobody knows of a line behind the first megabyte before it is read: nothing stays all the same.
TEST_F(RefusedEarly, WhatIsRefusedLateLeavesNothingEither) {
  const std::string train = "train --seq 32 --batch 4 --steps 2 --model llama-tiny ";
  write_profile(path(""));
  ASSERT_EQ(sluice(train + "--data text --run none").status, 0);  // the profile has the ops
  std::string lines;
  while (lines.size() < 1200000) lines += "{\"text\": \"the quick brown fox jumps over the lazy dog\"}\n";
  write("late.jsonl", lines + "{\"body\": \"a line without a text\"}\n");
  const auto before = tree();
  for (const char* run : {"--run new/run --metrics m", ""}) {
    const Finished f = sluice(train + "--data late.jsonl " + run);
    EXPECT_EQ(f.status, 2) << f.err;
    EXPECT_NE(f.err.find("late.jsonl line"), std::string::npos) << f.err;
    EXPECT_TRUE(tree() == before) << "something was left behind";
  }
}

}  // namespace
}  // namespace sluice
