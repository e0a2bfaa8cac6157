// What every command refuses in its values, where outputs may go, and what becomes of what is printed.
#include <sys/stat.h>

#include "run_command.h"

namespace sluice {
namespace {

class Values : public RunCommandTest {
 protected:
  /// Status of a shell line in which "sluice" is the command; what it said on standard error is in `said`.
  int shell(const std::string& line) {
    const std::string script = "sluice() { XDG_CACHE_HOME=" + path("cache") + " " SLUICE_BINARY " \"$@\"; }; " + line;
    const int status = std::system(("bash -c '" + script + "' 2>" + path(".said")).c_str());
    said = read(path(".said"));
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  std::string said;
};

TEST_F(Values, ThatAreImpossibleAreRefused) {
  const std::string train = options() + "--steps 1 ";
  for (const char* wrong : {"--lr nan",
                            "--lr inf",
                            "--lr 1e400",
                            "--lr 1x",
                            "--lr ''",
                            "--clip nan",
                            "--eps nan",
                            "--beta1 nan",
                            "--beta2 1",
                            "--weight-decay -inf",
                            "--seed -1",
                            "--seed 99999999999999999999",
                            "--seed 1.5",
                            "--steps 1e3",
                            "--steps 99999999999999999999",
                            "--steps ''",
                            "--nvme ''",
                            "--nvme ,",
                            "--nvme /tmp,",
                            "--metrics ''",
                            "--run ''",
                            "--hash -1",
                            "--threads 0x2"})
    expect_refused(train + wrong, std::string(wrong).substr(0, std::string(wrong).find(' ')));
  expect_refused(train + "--hash -1", "-1 is not 0 or more");
  expect_refused(train + "--seed -1", "-1 is negative");
  const std::string tokenize = "data tokenize --output " + path("o.tokens") + " " + path("text") + " ";
  expect_refused(tokenize + "--eval-split nan", "not a finite number");
  expect_refused(tokenize + "--input-format xml", "'xml' is none of auto, jsonl, text");
  expect_refused("data tokenize --output " + path("o.tokens") + " ''", "empty");
  for (const char* wrong : {"--temperature nan", "--top-p nan", "--repetition-penalty nan", "--prompt-tokens ''",
                            "--prompt-tokens 1,,2", "--prompt-tokens 1,x", "--stop ''"})
    expect_refused(std::string("generate --model llama-tiny --prompt x ") + wrong,
                   std::string(wrong).substr(0, std::string(wrong).find(' ')));
  EXPECT_FALSE(std::filesystem::exists(path("o.tokens")));
}

TEST_F(Values, BatchesThatNoPlanHoldsAreRefusedAtOnce) {
  for (const char* batch : {"2147483647", "100000000", "1000000"})
    expect_refused(std::string("plan --model llama-tiny --seq 32 --batch ") + batch, "micro-batches");
  expect_refused("plan --model llama-tiny --seq 32 --batch 8 --ranks 64 --micro-batch 2147483647", "not a multiple");
  expect_refused("plan --model llama-tiny --seq 32 --batch 8 --ranks 64 --micro-batch 67108864", "not a multiple");
}

TEST_F(Values, OneStopTextAnOption) {
  const Finished f = sluice("generate --model llama-tiny --stop a --stop b the-prompt");
  EXPECT_EQ(f.status, 2);
  EXPECT_EQ(f.err.find("--prompt"), std::string::npos) << f.err;  // it is there; the weights are not
}

TEST_F(Values, OutputsReplaceNothingThatIsRead) {
  const std::string train = options() + "--steps 1 ";
  const auto text = read(path("text"));
  write("profile.json", read(path("cache/sluice/profile.json")));
  for (const std::string option : {"--metrics ", "--trace "}) {
    expect_refused(train + option + path("text"), "would replace what --data reads");
    expect_refused(train + option + path("."), "directory");
    expect_refused(train + option + path("no/such/file"), "No such file");
    expect_refused(train + option + path("profile.json") + " --profile " + path("profile.json"), "--profile");
  }
  expect_refused(train + "--metrics " + path("m") + " --trace " + path("m"), "that metrics go to");
  expect_refused(train + "--trace " + path("run/metrics.jsonl") + " " + run("run"), "metrics.jsonl");
  // Whatever the names are seen from.
  EXPECT_EQ(shell("cd " + path(".") + " && sluice " + train + "--metrics text"), 2);
  std::filesystem::create_directory(path("model"));
  write("model/config.json", "{}");
  EXPECT_EQ(shell("cd " + path("model") + " && sluice train --model . --data ../text --metrics config.json"), 2);
  EXPECT_NE(said.find("would replace what --model reads"), std::string::npos) << said;
  EXPECT_EQ(read(path("text")), text);
  expect_refused("plan --model llama-tiny --trace " + path("no/such/file"), "No such file");
  for (const char* device : {"/dev/null", "/dev/full"}) {
    expect_refused("data tokenize " + path("text") + " --output " + device, "not a regular file");
    struct stat st {};
    ASSERT_EQ(stat(device, &st), 0);
    EXPECT_TRUE(S_ISCHR(st.st_mode)) << device;
  }
  EXPECT_EQ(sluice("plan --model llama-tiny --seq 32 --trace /dev/full").status, 1);
  EXPECT_EQ(sluice("plan --model llama-tiny --seq 32 --trace /dev/null").status, 0);
}

TEST_F(Values, ADirectoryWithAModelIsNoRuns) {
  ASSERT_EQ(sluice(options() + "--steps 1 " + run("run")).status, 0);
  std::filesystem::create_directory(path("model"));
  for (const char* name : {"config.json", "model.safetensors"})
    std::filesystem::copy_file(path("run") + "/" + name, path("model") + "/" + name);
  expect_refused_untouched("train --seq 32 --batch 4 --steps 1 --data " + path("text") + " --model " + path("model") +
                               " --init " + path("model") + " " + run("model"),
                           "which is of no run");
  expect_refused_untouched(options() + "--steps 1 " + run("model"), "which is of no run");
}

TEST_F(Values, DrivesThatContradictThemselvesAreRefused) {
  expect_refused(options() + "--nvme-space 1GiB", "add --nvme DIR");
  expect_refused(options() + "--nvme " + path("nvme") + "," + path("nvme/.") + " --steps 1", "one directory");
}

// Whoever has mapped a file reads zeros or nothing where it is cut off.
TEST_F(Values, ATokenFileThatIsCutOffMeanwhileIsAnError) {
  ASSERT_EQ(sluice("data tokenize " + path("text") + " --output " + path("t.tokens")).status, 0);
  const std::string train =
      "sluice train --model llama-tiny --seq 32 --batch 4 --eval-batches 1 --steps 100000 --run none --data " +
      path("t.tokens") + " --metrics " + path("m");
  EXPECT_EQ(
      shell(train + " >/dev/null & pid=$!; until [ -s " + path("m") +
            " ]; do kill -0 $pid || exit 99; sleep 0.02; done; truncate -s 1000 " + path("t.tokens") + "; wait $pid"),
      1)
      << said;
  EXPECT_NE(said.find("cut off"), std::string::npos) << said;
}

TEST_F(Values, NamesThatAreNotTextAreRefused) {
  EXPECT_EQ(shell("sluice train --model llama-tiny --data $(printf \"x\\\\377\") --run " + path("run")), 2);
  EXPECT_NE(said.find("not UTF-8"), std::string::npos) << said;
  EXPECT_FALSE(std::filesystem::exists(path("run/run.json")));
}

TEST_F(Values, OutputThatCanNotBeWrittenIsAnError) {
  const std::string plan = "sluice plan --model llama-tiny --seq 32 ";
  ASSERT_EQ(sluice("data tokenize " + path("text") + " --output " + path("t.tokens")).status, 0);
  for (const std::string& command :
       {plan, plan + "--json ", std::string("sluice --version "), "sluice data inspect " + path("t.tokens") + " "}) {
    EXPECT_EQ(shell(command + "> /dev/full"), 1) << command << said;
    EXPECT_NE(said.find("can not write to standard output: No space left"), std::string::npos) << command << said;
    EXPECT_EQ(shell(command + ">&-"), 1) << command << said;
    EXPECT_NE(said.find("can not write to standard output"), std::string::npos) << command << said;
    EXPECT_EQ(shell(command + "| true"), 0) << command << said;
    EXPECT_EQ(said.find("standard output"), std::string::npos) << command << said;
  }
}

// A limit of file sizes is a full disk: an error, and nothing is left.
TEST_F(Values, FilesBeyondALimitAreAnError) {
  std::string text;
  while (text.size() < 400000) text += "the quick brown fox jumps over the lazy dog; ";
  write("long", text);
  EXPECT_EQ(shell("ulimit -f 64; sluice data tokenize " + path("long") + " --output " + path("o.tokens")), 1);
  EXPECT_NE(said.find("File too large"), std::string::npos) << said;
  for (const auto& entry : std::filesystem::directory_iterator(folder_))
    EXPECT_FALSE(entry.path().filename().string().starts_with("o.tokens")) << entry.path();
}

// Of many small documents the index is the larger file: where it can not be written the pair before it stays.
TEST_F(Values, AMegatronPairIsReplacedWholeOrNotAtAll) {
  const std::string to = " --format megatron --output " + path("pair");
  ASSERT_EQ(sluice("data tokenize " + path("text") + to).status, 0);
  const std::string tokens = read(path("pair.bin")), index = read(path("pair.idx"));
  std::string lines;
  for (int i = 0; i < 8000; ++i) lines += "{\"text\": \"a\"}\n";
  write("many.jsonl", lines);
  EXPECT_EQ(shell("ulimit -f 64; sluice data tokenize " + path("many.jsonl") + to), 1) << said;
  EXPECT_NE(said.find("pair.idx"), std::string::npos) << said;
  EXPECT_TRUE(read(path("pair.bin")) == tokens && read(path("pair.idx")) == index);
  EXPECT_EQ(sluice("data tokenize " + path("many.jsonl") + to).status, 0);
  EXPECT_GT(read(path("pair.idx")).size(), index.size());
}

}  // namespace
}  // namespace sluice
