#include "command.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "io/tokens/token_file.h"

namespace sluice {
namespace {

using nlohmann::json;

TEST_F(CommandTest, HelpAndVersion) {
  const Finished version = sluice("--version");
  EXPECT_EQ(version.status, 0);
  EXPECT_EQ(version.out.rfind("sluice ", 0), 0u);
  const Finished help = sluice("--help");
  EXPECT_EQ(help.status, 0);
  for (const char* command : {"train", "plan", "bench", "data", "generate", "eval"})
    EXPECT_NE(help.out.find(std::string("\n  ") + command), std::string::npos) << command;
  for (const char* command : {"train", "plan", "generate", "eval", "data tokenize", "data convert", "data inspect",
                              "bench all", "bench copy", "bench collective", "bench io"}) {
    const Finished one = sluice(std::string(command) + " --help");
    EXPECT_EQ(one.status, 0) << command;
    EXPECT_NE(one.out.find("Examples:"), std::string::npos) << command;
    EXPECT_EQ(one.err, "") << command;
  }
}

TEST_F(CommandTest, UnknownRequestsAreOneLineAndStatusTwo) {
  expect_refused("", "subcommand");
  expect_refused("trian", "trian");
  expect_refused("--bogus", "--bogus");
  expect_refused("bench", "subcommand");
  expect_refused("bench nothing", "nothing");
  expect_refused("bench io --bogus 3", "--bogus");
  expect_refused("bench copy --bogus 3", "--bogus");
  expect_refused("bench matmul --threads 0", "threads");
  expect_refused("bench matmul --threads many", "many");
  for (const std::string bench : {"matmul", "norm", "all"})
    expect_refused("bench " + bench + " --threads 1024", "--threads 1024: this process may run on ");
  expect_refused("data tokenize", "--input");
  expect_refused("train --model llama-tiny", "--data");
  expect_refused("train --bogus", "--bogus");
}

TEST_F(CommandTest, SizesAreChecked) {
  for (const char* size : {"12XB", "-5MiB", "1e9", "99999999999GiB"}) {
    expect_refused(std::string("bench io --block ") + size, size);
    expect_refused(std::string("plan --model llama-tiny --device-memory ") + size, size);
  }
  expect_refused("bench io --block 1000 --nvme " + path(""), "4096");
}

TEST_F(CommandTest, UnknownPresetNamesTheKnownOnes) {
  expect_refused("plan --model llama-26m", "llama-25m");
  write("text", std::string(10000, 'a'));
  expect_refused("train --model llama-26m --data " + path("text"), "llama-25m");
}

TEST_F(CommandTest, MissingDirectoryOfTheDriveIsRefused) {
  expect_refused("bench io --nvme " + path("nowhere"), "nowhere");
  expect_refused("bench all --nvme " + path("nowhere") + " --profile " + path("p.json"), "nowhere");
  EXPECT_FALSE(std::filesystem::exists(path("p.json")));
}

TEST_F(CommandTest, TokenizesText) {
  std::string text = "It was the best of times, it was the worst of times.\n";
  text += '\0';
  text += '\xff';
  write("text", text);
  const Finished f =
      sluice("data tokenize --json --input-format text --input " + path("text") + " --output " + path("tokens"));
  ASSERT_EQ(f.status, 0) << f.err;
  EXPECT_EQ(json::parse(f.out)["tokens"], text.size());
  const auto file = TokenFile::open(path("tokens"));
  ASSERT_TRUE(file.ok()) << file.error().message;
  std::vector<std::int32_t> tokens(text.size());
  ASSERT_TRUE(file->read(0, tokens).ok());
  for (std::size_t i = 0; i < text.size(); ++i) EXPECT_EQ(tokens[i], static_cast<unsigned char>(text[i]));
}

TEST_F(CommandTest, TokenizeRefusesWhatItCannotRead) {
  expect_refused("data tokenize --input " + path("missing") + " --output " + path("tokens"), "missing");
  EXPECT_FALSE(std::filesystem::exists(path("tokens")));
}

TEST_F(CommandTest, BenchesPrintOneJsonObject) {
  const Finished f = sluice("bench matmul --seconds 0.02 --json");
  ASSERT_EQ(f.status, 0) << f.err;
  const json result = json::parse(f.out);
  for (const json& row : result["results"]) {
    EXPECT_GT(row["achieved"], 0) << row.dump();
    EXPECT_GT(row["bound"], 0) << row.dump();
  }
  EXPECT_GE(result["results"].size(), 2u);
}

}  // namespace
}  // namespace sluice
