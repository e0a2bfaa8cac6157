// What refusals say: only options that the command has, and of files what they are and what would do.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <regex>
#include <set>

#include "run_command.h"

namespace sluice {
namespace {

class Messages : public RunCommandTest {
 protected:
  /// Every option of a command, as its help has them.
  const std::set<std::string>& options_of(const std::string& command) {
    auto [found, is_new] = options_.try_emplace(command);
    if (!is_new) return found->second;
    const Finished help = sluice(command + " --help");
    EXPECT_EQ(help.status, 0) << command;
    for_each_option(help.out, [&](const std::string& option, std::size_t) { found->second.insert(option); });
    return found->second;
  }

  template <class F>
  static void for_each_option(const std::string& text, const F& each) {
    static const std::regex option("--[a-z][a-z0-9-]*[a-z0-9]");
    for (auto at = std::sregex_iterator(text.begin(), text.end(), option); at != std::sregex_iterator(); ++at)
      each(at->str(), static_cast<std::size_t>(at->position()));
  }

  /// The command whose options are meant at a place of a message: the one that is told, or of "'sluice data tokenize
  /// --pack'" that one, as far as its quotation goes.
  static std::string command_at(const std::string& text, std::size_t place, const std::string& told) {
    static const std::regex named("sluice ((?:bench|data|checkpoint) [a-z]+|train|plan|report|eval|generate)\\b");
    std::string command = told;
    const std::string before = text.substr(0, place);
    for (auto at = std::sregex_iterator(before.begin(), before.end(), named); at != std::sregex_iterator(); ++at) {
      const auto end = static_cast<std::size_t>(at->position() + at->length());
      const bool over = before.find_first_of("');,", end) != std::string::npos;
      command = over || at->position() == 0 ? told : (*at)[1].str();
    }
    return command;
  }

  void expect_only_own_options(const std::string& command, const std::string& arguments) {
    SCOPED_TRACE(command + " " + arguments);
    const Finished f = sluice(command + " " + arguments);
    EXPECT_EQ(f.status, 2) << f.err;
    EXPECT_EQ(f.out, "");
    // Above the last line is what was done before it was known.
    const std::size_t last = f.err.rfind('\n', f.err.size() - 2);
    const std::string line = f.err.substr(last == std::string::npos ? 0 : last + 1);
    ASSERT_EQ(line.rfind("sluice " + command, 0), 0u) << f.err;
    const std::string text = line.substr(0, line.find(" (see sluice "));
    for_each_option(text, [&](const std::string& option, std::size_t place) {
      const std::string told = command_at(text, place, command);
      EXPECT_TRUE(options_of(told).contains(option)) << "'sluice " << told << "' has no " << option << ":\n" << f.err;
    });
  }

 private:
  std::map<std::string, std::set<std::string>> options_;
};

TEST_F(Messages, NameOnlyOptionsThatTheCommandHas) {
  ASSERT_EQ(sluice(options() + "--steps 1 " + run("run")).status, 0);
  ASSERT_EQ(sluice("data tokenize " + path("text") + " --pack 16 --output " + path("packed.tokens")).status, 0);
  std::filesystem::create_directory(path("empty"));
  std::filesystem::create_directory(path("half"));
  write("half/result.json", "{}");
  write("nothing", "");
  write("x.jsonl", "{\"body\": 1}\n");
  const std::string model = "--model " + path("run") + " ", drive = " --nvme " + path("nvme");
  const std::vector<std::string> machine{"--nvme-space 1GiB",
                                         "--device-memory 4KiB",
                                         "--host-memory 4KiB",
                                         "--device-memory 4KiB" + drive,
                                         "--host-memory 4KiB --nvme-space 4KiB" + drive,
                                         drive + "," + path("nvme/."),
                                         "--nvme ,",
                                         "--device tpu",
                                         "--device cuda:77",
                                         "--profile " + path("text"),
                                         "--profile " + path("empty"),
                                         "--threads 5000",
                                         "--dtype fp64",
                                         "--io aio",
                                         "--queue-depth 0"};
  // What reads these is shared: each command gets a third of them.
  for (std::size_t i = 0; i < machine.size(); ++i) {
    if (i % 3 == 0) expect_only_own_options("generate", model + "--prompt x " + machine[i]);
    if (i % 3 == 1) expect_only_own_options("eval", model + "--seq 32 --data " + path("text") + " " + machine[i]);
    if (i % 3 == 2)
      expect_only_own_options("train",
                              "--model llama-tiny --seq 32 --run none --data " + path("text") + " " + machine[i]);
  }
  for (const char* wrong :
       {"--model llama-tiny --prompt x", "--model nodir --prompt x", "--model EMPTY --prompt x",
        "--model RUN --prompt ''", "--model RUN --prompt x --tokens 1000000",
        "--model RUN --prompt x --tokenizer nodir", "--model RUN --prompt x --tokenizer EMPTY",
        "--model RUN --prompt x --chat auto", "--model RUN --prompt-tokens 999", "--model RUN --prompt x --init EMPTY",
        "--model RUN", "--model RUN --prompt x --system y", "--model RUN --prompt x --prefill 0"}) {
    const auto with = [&](std::string text) {
      text = std::regex_replace(text, std::regex("RUN"), path("run"));
      return std::regex_replace(text, std::regex("EMPTY"), path("empty"));
    };
    expect_only_own_options("generate", with(wrong));
  }
  for (const std::string& wrong : std::vector<std::string>{
           "--seq 0", "--seq 100000", "--micro-batch 0", "--batch 3 --micro-batch 2", "--batch 100000000", "--batch 0",
           "--data " + path("nothing"), "--data " + path("missing"), "--data " + path("x.jsonl"), "--seq 19999",
           "--data " + path("packed.tokens"), "--document-mask maybe", "--batches -1", "--all-text --batches 2"})
    expect_only_own_options("eval", model +
                                        (wrong.find("--data") == std::string::npos ? "--data " + path("text") + " "
                                                                                   : std::string("--seq 32 ")) +
                                        wrong);
  expect_only_own_options("eval", "--model llama-tiny --data " + path("text"));
  for (const std::string& wrong : std::vector<std::string>{
           "--steps 0", "--durable on", "--durable on --run " + path("new"), "--batch 3 --micro-batch 2", "--group 9",
           "--update backward", "--drive-tbw 600TB", "--ranks 65", "--seq 100000", "--trace " + path("no/such/file"),
           "--group 2 --schedule vertical", "--drive-tbw 600", "--batch 100000000", "--clip -1"})
    expect_only_own_options("plan", "--model llama-tiny " + wrong);
  for (const char* from : {"missing", "empty", "half", "text", "run/run.json", "run/timeline.json", "nothing"})
    expect_only_own_options("report", path(from));
  expect_only_own_options("report", path("run") + " -o " + path("text"));
  expect_only_own_options("report", path("run") + " -o " + path("no/such/place"));
  for (const char* command : {"checkpoint export", "checkpoint inspect"}) {
    const std::string to = command == std::string("checkpoint export") ? " " + path("to") : "";
    for (const char* from : {"missing", "empty", "half", "text"}) expect_only_own_options(command, path(from) + to);
    const int locked = open(path("run").c_str(), O_RDONLY | O_DIRECTORY);
    ASSERT_EQ(flock(locked, LOCK_EX), 0);
    expect_only_own_options(command, path("run") + to);
    close(locked);
  }
  for (const std::string& wrong :
       std::vector<std::string>{path("to") + " --dtype f32", path("to") + " --max-shard-size 1KiB", path("run"),
                                path("text"), path("no/such/place"), path("to") + " --dtype bf8"})
    expect_only_own_options("checkpoint export", path("run") + " " + wrong);
  for (const std::string& wrong : std::vector<std::string>{
           path("missing"), path("nothing"), path("x.jsonl"), path("text") + " --chat auto", path("text") + " --pack 1",
           path("text") + " --tokenizer " + path("empty"), path("text") + " --append-eos auto",
           path("text") + " --append-eos 999", path("text") + " --jsonl-field x", path("text") + " --no-special-tokens",
           path("text") + " --too-long drop", path("text") + " --seed 3", path("text") + " --eval-split 1"})
    expect_only_own_options("data tokenize", wrong + " --output " + path("o.tokens"));
  expect_only_own_options("data tokenize", path("text") + " --output " + path("text"));
  expect_only_own_options("data inspect", path("text"));
  expect_only_own_options("data convert", "--input " + path("text") + " --output " + path("o.tokens"));
  expect_only_own_options("data convert",
                          "--format megatron --input " + path("packed.tokens") + " --output " + path("m"));
  for (const char* wrong : {"--block 32MiB", "--block 1000", "--svg x", "--profile p", "--sweep --tune",
                            "--backend threads --sqpoll", "--size 4000TiB", "--tune --sqpoll --backend io_uring"})
    expect_only_own_options("bench io", "--size 16MiB --path " + path("nvme") + " " + wrong);
  expect_only_own_options("bench io", "--path " + path("missing"));
  expect_only_own_options("bench all", "--nvme " + path("missing"));
  expect_only_own_options("bench device", "--device cpu");
  expect_only_own_options("bench device", "--device tpu");
  expect_only_own_options("bench copy", "--node 99");
  expect_only_own_options("bench copy", "--size 1");
  expect_only_own_options("bench adamw", "--numel 1000000000000");
  for (const std::string& wrong : {path("text"), path("missing"), path("nothing"), path("text") + " --capacity 0",
                                   path("text") + " " + path("text") + " --output " + path("o.csv")})
    expect_only_own_options("bench pack", wrong);
  EXPECT_FALSE(std::filesystem::exists(path("o.tokens")));
  EXPECT_FALSE(std::filesystem::exists(path("to")));
}

TEST_F(Messages, SayWhatAMissingTokenizerIs) {
  const std::string tokenize = "data tokenize " + path("text") + " --output " + path("o.tokens") + " --tokenizer ";
  expect_refused(tokenize + path("nodir"), "there is no " + path("nodir") + "; give a tokenizer.json, a vocab.json");
  std::filesystem::create_directory(path("empty"));
  expect_refused(tokenize + path("empty"),
                 path("empty") + " holds no tokenizer.json, and no vocab.json with merges.txt");
  expect_refused(tokenize + "/dev/null", "/dev/null is neither a file nor a directory; give a tokenizer.json");
  expect_refused(tokenize + path("text"), "; a tokenizer is a tokenizer.json");
  write("empty/tokenizer.model", "x");
  expect_refused(tokenize + path("empty"), "tokenizer.model is SentencePiece's, which is not read");
}

TEST_F(Messages, KnowFilesOfWeights) {
  const std::string eight_mib(8u << 20, 'x');
  std::string header = R"({"w": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}})";
  std::string safetensors(8, '\0');
  safetensors[0] = static_cast<char>(header.size());
  safetensors += header + eight_mib;
  const std::string directory = "is a file of weights; give the directory that holds it with its config.json";
  const struct {
    std::string name, bytes, says;
  } files[] = {{"model.safetensors", safetensors, directory},
               {"x.safetensors", "short", directory},
               {"renamed", safetensors, directory},
               {"x.gguf", "GGUF" + eight_mib, "is a GGUF file, which is not read"},
               {"q4", "GGUF\3", "is a GGUF file, which is not read"},
               {"pytorch_model.bin", "PK\3\4" + eight_mib, "is a pickle of weights, as PyTorch saves them"},
               {"old.pt", "\x80\x02}", "is a pickle of weights"},
               {"tf_model.h5", "\x89HDF\r\n", "is an HDF5 file of weights"},
               {"model.zip", "PK\3\4abc", "is a zip archive, which is not read"},
               {"x.onnx", "abc", "is a file of weights, which is not read"},
               {"config.json", "{" + eight_mib, "has 8.00 MiB, which no model's config.json has"},
               {"text8", eight_mib, "has 8 MiB, which no model's config.json has"}};
  for (const auto& file : files) {
    write(file.name, file.bytes);
    for (const std::string& command : std::vector<std::string>{"plan ", "generate --prompt x ", "eval --data text "})
      expect_refused(command + "--model " + path(file.name), path(file.name) + " " + file.says);
  }
  std::filesystem::create_directory(path("empty"));
  expect_refused("plan --model " + path("empty"), path("empty") + " holds no config.json; name a preset");
  expect_refused("plan --model " + path("nowhere"), "no such file; name a preset");
}

}  // namespace
}  // namespace sluice
