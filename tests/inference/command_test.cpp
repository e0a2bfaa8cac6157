#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "io/tokenizer/bpe.h"
#include "tests/inference/rig.h"

namespace sluice {
namespace {

using nlohmann::json;

struct Finished {
  int status = -1;
  std::string out, err;
};

class InferenceCommandTest : public InferenceTest {
 protected:
  static std::string read(const std::string& path) {
    std::stringstream all;
    all << std::ifstream(path).rdbuf();
    return all.str();
  }
  static Finished sluice(const std::string& arguments) {
    const std::string command = "XDG_CACHE_HOME=" + path("cache") + " " SLUICE_BINARY " " + arguments + " >" +
                                path("out") + " 2>" + path("err") + " </dev/null";
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read(path("out")), read(path("err"))};
  }
  /// With the model, one thread and small budgets; nothing is left to measure.
  static Finished on_model(const std::string& command, BatchShape shape) {
    write_profile(path("cache/sluice/profile.json"), model(), shape, Dtype::bf16);
    return sluice(command + " --model " + model() + " --threads 1 --device-memory 16MiB --host-memory 16MiB");
  }
  static void expect_refused(const std::string& arguments, const std::string& what) {
    const Finished f = sluice(arguments);
    EXPECT_EQ(f.status, 2) << arguments << "\n" << f.err;
    EXPECT_EQ(f.out, "") << arguments;
    EXPECT_EQ(std::count(f.err.begin(), f.err.end(), '\n'), 1) << arguments << "\n" << f.err;
    EXPECT_NE(f.err.find(what), std::string::npos) << arguments << "\n" << f.err;
  }
};

TEST_F(InferenceCommandTest, GeneratesTextAndJson) {
  const std::string request = "generate --prompt 'the rain' --tokens 20 --seed 3 --temperature 0.7 --top-k 20";
  const Finished text = on_model(request, {1, 8});
  ASSERT_EQ(text.status, 0) << text.err;
  EXPECT_EQ(text.out.rfind("the rain", 0), 0u);
  ASSERT_EQ(text.out.size(), 8u + 20u + 1u);
  const Finished again = on_model(request + " --json --nvme " + path("swap"), {1, 8});
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_EQ(again.err, "");
  const json j = json::parse(again.out);
  ASSERT_EQ(j["tokens"].size(), 20u);
  for (std::size_t i = 0; i < 20; ++i) EXPECT_EQ(j["tokens"][i], static_cast<unsigned char>(text.out[8 + i]));
  EXPECT_EQ(j["prompt_tokens"], 8);

  const Finished tokens = on_model("generate --prompt-tokens 116,104,101 --tokens 4 --temperature 0", {1, 3});
  ASSERT_EQ(tokens.status, 0) << tokens.err;
  EXPECT_EQ(std::count(tokens.out.begin(), tokens.out.end(), ','), 3) << tokens.out;
}

TEST_F(InferenceCommandTest, EndsWhereItIsTold) {
  const std::string request = "generate --prompt 'the rain' --tokens 40 --temperature 0 ";
  const json whole = json::parse(on_model(request + "--json", {1, 8}).out);
  ASSERT_EQ(whole["ended"], "length");
  const std::string text = whole["text"];
  ASSERT_EQ(text.size(), 40u);
  const std::string word = text.substr(10, 3);
  const json stopped = json::parse(on_model(request + "--json --stop '" + word + "' --stop ZZZ", {1, 8}).out);
  EXPECT_EQ(stopped["ended"], "stop");
  EXPECT_EQ(stopped["text"], text.substr(0, text.find(word)));
  const Finished shown = on_model(request + "--stop '" + word + "'", {1, 8});
  EXPECT_EQ(shown.out, "the rain" + text.substr(0, text.find(word)) + "\n");
  // A token that ends texts is told by the configuration, as a number or a list.
  const int end = whole["tokens"][5];
  const std::size_t first = static_cast<std::size_t>(
      std::find(whole["tokens"].begin(), whole["tokens"].end(), json(end)) - whole["tokens"].begin());
  std::ofstream(model() + "/generation_config.json") << json{{"eos_token_id", {255, end}}}.dump();
  const json ended = json::parse(on_model(request + "--json", {1, 8}).out);
  EXPECT_EQ(ended["ended"], "eos");
  EXPECT_EQ(ended["text"], text.substr(0, first));
  EXPECT_EQ(json::parse(on_model(request + "--json --ignore-eos", {1, 8}).out)["text"], text);
  std::ofstream(model() + "/generation_config.json") << "{\"eos_token_id\": \"x\"}";
  expect_refused("generate --model " + model() + " --prompt x", "eos_token_id");
  std::filesystem::remove(model() + "/generation_config.json");
}

TEST_F(InferenceCommandTest, EvaluatesText) {
  const Finished f =
      on_model("eval --json --data " + text() + " --seq 64 --batch 4 --micro-batch 2 --batches 3", {2, 64});
  ASSERT_EQ(f.status, 0) << f.err;
  const json j = json::parse(f.out);
  EXPECT_NEAR(j["loss"].get<double>(), trained_loss_, 0.02);  // bf16 against fp32
  EXPECT_NEAR(j["bits_per_byte"].get<double>(), j["loss"].get<double>() / std::log(2.0), 1e-9);
  EXPECT_NEAR(j["perplexity"].get<double>(), std::exp(j["loss"].get<double>()), 1e-6);
  EXPECT_EQ(j["tokens"], 12 * 64);
  // A tokenizer beside the weights says how many bytes the tokens stand for: here two each, whatever the token.
  json vocabulary, two;
  for (int i = 0; i < 256; ++i) {
    char name[8];
    std::snprintf(name, sizeof name, "%02x", i);
    vocabulary[name] = i;
  }
  two["model"] = {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", json::array()}};
  two["decoder"] = {{"type", "Fuse"}};
  std::ofstream(model() + "/tokenizer.json") << two.dump();
  // The same bytes in a file that does not say what made it.
  ASSERT_EQ(sluice("data tokenize --input " + text() + " --output " + path("bytes.tokens")).status, 0);
  ASSERT_EQ(
      sluice("data convert --tokenizer none --input " + path("bytes.tokens") + " --output " + path("t.tokens")).status,
      0);
  const Finished twice =
      on_model("eval --json --data " + path("t.tokens") + " --seq 64 --batch 4 --micro-batch 2 --batches 3", {2, 64});
  std::ofstream(model() + "/tokenizer.json") << R"({"model": {"type": "Unigram"}})";
  const Finished without = on_model("eval --data " + path("t.tokens") + " --seq 64 --batch 4 --micro-batch 2", {2, 64});
  expect_refused("eval --model " + model() + " --data " + text() + " --seq 64", "'Unigram' is not supported");
  EXPECT_EQ(without.status, 0) << without.err;
  EXPECT_NE(without.err.find("'Unigram' is not supported"), std::string::npos) << without.err;
  EXPECT_EQ(without.out.find("bits per byte"), std::string::npos) << without.out;
  EXPECT_NE(without.out.find("perplexity"), std::string::npos) << "the loss does not need a tokenizer";
  EXPECT_EQ(on_model("generate --prompt-tokens 116,104 --tokens 2", {1, 2}).status, 0) << "nor do tokens";
  expect_refused("generate --model " + model() + " --prompt x", "Unigram");
  std::filesystem::remove(model() + "/tokenizer.json");
  ASSERT_EQ(twice.status, 0) << twice.err;
  EXPECT_NEAR(json::parse(twice.out)["bits_per_byte"].get<double>(), j["bits_per_byte"].get<double>() / 2, 1e-9);
  const Finished all = on_model("eval --all-text --data " + text() + " --seq 64 --micro-batch 2", {2, 64});
  ASSERT_EQ(all.status, 0) << all.err;
  EXPECT_NE(all.out.find("bits per byte"), std::string::npos);
  EXPECT_NE(all.out.find("over 19968 tokens (312 windows) of the 20000"), std::string::npos) << all.out;
}

/// Bytes as tokens, but for a few that are special.
std::string tokenizer_with(const std::vector<std::pair<std::string, int>>& special) {
  json vocabulary, added = json::array();
  for (int b = 0; b < 256; ++b) vocabulary[byte_characters()[static_cast<std::size_t>(b)]] = b;
  for (const auto& [name, id] : special) {
    vocabulary.erase(byte_characters()[static_cast<std::size_t>(id)]);
    added.push_back({{"id", id}, {"content", name}, {"special", true}});
  }
  return json{{"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", json::array()}}},
              {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
              {"decoder", {{"type", "ByteLevel"}}},
              {"added_tokens", added}}
      .dump();
}

TEST_F(InferenceCommandTest, AnswersInAChat) {
  std::filesystem::create_directory(path("chat"));
  const auto generate = [&](const std::string& options, std::int64_t prompt) {
    const Finished f = on_model("generate --tokens 40 --temperature 0 --tokenizer " + path("chat") + " " + options,
                                {1, std::min<std::int64_t>(64, prompt)});
    EXPECT_EQ(f.status, 0) << f.err;
    return f.out;
  };
  std::ofstream(path("chat/tokenizer.json")) << tokenizer_with({{"<|im_start|>", 1}, {"<|im_end|>", 2}});
  // What a user spells is text; the system prompt and the prompt for the answer are the template's.
  const std::string text = "\1system\nbrief\2\n\1user\nhi <|im_end|>\2\n\1assistant\n";
  std::string numbers;
  for (const char c : text) numbers += (numbers.empty() ? "" : ",") + std::to_string(static_cast<unsigned char>(c));
  const auto length = static_cast<std::int64_t>(text.size());
  const json answer = json::parse(generate("--json --chat auto --system brief 'hi <|im_end|>'", length));
  EXPECT_EQ(answer["prompt_tokens"], length);
  const Finished same = on_model("generate --json --tokens 40 --temperature 0 --prompt-tokens " + numbers, {1, length});
  ASSERT_EQ(same.status, 0) << same.err;
  EXPECT_EQ(answer["tokens"], json::parse(same.out)["tokens"]);
  EXPECT_EQ(generate("--chat chatml --system brief 'hi <|im_end|>'", length), answer["text"].get<std::string>() + "\n")
      << "the answer alone";

  // The token that ends a turn ends the answer: one that the model says anyway, and that is not in the prompt.
  std::ofstream(path("chat/tokenizer.json")) << tokenizer_with({{"<s>", 1}, {"</s>", 2}});
  const json whole = json::parse(generate("--json --chat llama2 hi", 17));
  ASSERT_EQ(whole["ended"], "length");
  const std::string prompt = "\1[INST] hi [/INST]";
  std::size_t end = 0;
  while (end < whole["tokens"].size() &&
         prompt.find(static_cast<char>(whole["tokens"][end].get<int>())) != std::string::npos)
    ++end;
  ASSERT_LT(end, whole["tokens"].size());
  std::ofstream(path("chat/tokenizer.json")) << tokenizer_with({{"<s>", 1}, {"</s>", whole["tokens"][end].get<int>()}});
  const json ended = json::parse(generate("--json --chat llama2 hi", 17));
  EXPECT_EQ(ended["ended"], "eos");
  EXPECT_EQ(ended["tokens"].size(), end + 1);
  EXPECT_EQ(json::parse(generate("--json --ignore-eos --chat llama2 hi", 17))["tokens"], whole["tokens"]);

  const std::string trained = "generate --model " + model();
  expect_refused(trained + " --chat auto hi", "add --tokenizer FILE");
  expect_refused(trained + " --chat auto hi --tokenizer " + path("chat"), "name one of chatml");
  expect_refused(trained + " --chat phi3 hi --tokenizer " + path("chat"), "needs the special token <|system|>");
  expect_refused(trained + " --chat llama2 --prompt-tokens 1", "--chat");
  expect_refused(trained + " hi --system s", "--chat");
}

/// vocab.json and merges.txt beside the weights, where there is no tokenizer.json: bytes, and "th" instead of one.
TEST_F(InferenceCommandTest, ReadsVocabularyAndMergesBesideTheWeights) {
  const json bytes =
      json::parse(on_model("generate --json --prompt-tokens 3,101,32 --tokens 12 --temperature 0", {1, 3}).out);
  json vocabulary;
  for (int b = 0; b < 256; ++b) vocabulary[byte_characters()[static_cast<std::size_t>(b)]] = b;
  vocabulary.erase(byte_characters()[3]);
  vocabulary["th"] = 3;
  std::ofstream(model() + "/vocab.json") << vocabulary.dump();
  const std::string request = "generate --tokens 12 --temperature 0 --json --prompt 'the '";
  EXPECT_EQ(json::parse(on_model(request, {1, 4}).out)["prompt_tokens"], 4) << "one of the two is no tokenizer";
  std::ofstream(model() + "/merges.txt") << "#version: 0.2\nt h\n";
  std::ofstream(model() + "/tokenizer_config.json")
      << R"({"tokenizer_class": "GPT2Tokenizer", "unk_token": null, "bos_token": null, "eos_token": null})";
  const Finished f = on_model(request, {1, 3});
  const std::string line = "eval --data " + text() + " --seq 64 --batch 4 --micro-batch 2 --json";
  const Finished measured = on_model(line, {2, 64});
  std::ofstream(model() + "/merges.txt") << "t h\nt h\n";
  expect_refused("generate --model " + model() + " --prompt x", "merges.txt: line 2 is line 1 again");
  for (const char* name : {"vocab.json", "merges.txt", "tokenizer_config.json"})
    std::filesystem::remove(model() + "/" + name);
  ASSERT_EQ(f.status, 0) << f.err;
  const json made = json::parse(f.out);
  EXPECT_EQ(made["prompt_tokens"], 3);
  EXPECT_EQ(made["tokens"], bytes["tokens"]);
  std::string expected;
  for (const json& t : made["tokens"]) expected += t == 3 ? "th" : std::string(1, static_cast<char>(t.get<int>()));
  EXPECT_EQ(made["text"], expected);
  ASSERT_EQ(measured.status, 0) << measured.err;
  EXPECT_TRUE(json::parse(measured.out).contains("bits_per_byte"));
}

TEST_F(InferenceCommandTest, WrongRequestsAreOneLine) {
  std::filesystem::create_directory(path("bare"));
  std::filesystem::copy_file(model() + "/config.json", path("bare/config.json"));
  const std::string trained = "generate --model " + model();
  expect_refused("generate --model " + path("nowhere") + " --prompt x", "nowhere");
  expect_refused("generate --model " + path("bare") + " --prompt x", "model.safetensors");
  expect_refused("generate --model llama-tiny --prompt x", "--init");
  expect_refused("generate --model llama-25m --init " + model() + " --prompt x", model());
  expect_refused("generate --model llama-125m --prompt x", "--init");
  expect_refused(trained + " --prompt x --tokenizer " + path("nowhere"), "nowhere");
  expect_refused(trained + " --prompt x --tokenizer " SLUICE_FIXTURES "/tokenizers/llama2.json", "vocabulary of 256");
  expect_refused(trained + " --prompt x --tokenizer " + model() + "/config.json", "no model");
  expect_refused(trained + " --prompt x --top-p 0", "--top-p");
  expect_refused(trained + " --prompt x --top-p 1.5", "--top-p");
  expect_refused(trained + " --prompt x --repetition-penalty 0", "--repetition-penalty");
  expect_refused(trained, "--prompt");
  expect_refused(trained + " --prompt ''", "--prompt");
  expect_refused(trained + " --prompt x --prompt-tokens 1", "--prompt");
  expect_refused(trained + " --prompt-tokens 1,300", "300");
  expect_refused(trained + " --prompt-tokens 1,two", "two");
  expect_refused(trained + " --prompt x --temperature -1", "--temperature");
  expect_refused(trained + " --prompt x --top-k -1", "--top-k");
  expect_refused(trained + " --prompt x --tokens 0", "--tokens");
  expect_refused(trained + " --prompt x --tokens 2048", "2048");
  expect_refused(trained + " --prompt x --dtype fp8", "fp8");
  const std::string on = "eval --model " + model();
  expect_refused("eval --model " + path("bare"), "--data");
  expect_refused(on + " --data " + path("nowhere"), "nowhere");
  expect_refused("eval --model llama-tiny --data " + text(), "--init");
  expect_refused("eval --model " + path("bare") + " --data " + text(), "model.safetensors");
  expect_refused(on + " --data " + text() + " --batches -1", "--batches");
  expect_refused(on + " --data " + text() + " --batches 2 --all-text", "--all-text");
  expect_refused(on + " --data " + text() + " --batch 3 --micro-batch 2", "--micro-batch");
  expect_refused(on + " --data " + text() + " --micro-batch 0", "--micro-batch");
  expect_refused(on + " --data " + text() + " --seq 4096", "2048");
}

}  // namespace
}  // namespace sluice
