// Texts are the model's tokens: what train and eval do with a tokenizer beside the weights, and without one.
#include <cmath>

#include "io/checksum.h"
#include "run_command.h"

namespace sluice {
namespace {

/// A directory "model" with a configuration and the tokenizer of Llama 3's kind, 700 tokens of it, and with an end of
/// text and a chat template.
class TokenizerCommand : public RunCommandTest {
 protected:
  void SetUp() override {
    RunCommandTest::SetUp();
    std::filesystem::create_directory(path("model"));
    write("model/config.json", json{{"model_type", "llama"},
                                    {"vocab_size", 704},
                                    {"hidden_size", 64},
                                    {"num_hidden_layers", 1},
                                    {"num_attention_heads", 2},
                                    {"num_key_value_heads", 1},
                                    {"intermediate_size", 96},
                                    {"max_position_embeddings", 256},
                                    {"rms_norm_eps", 1e-5},
                                    {"eos_token_id", 699}}
                                   .dump());
    add_tokenizer("model", "llama3");
    write("model/tokenizer_config.json",
          R"({"eos_token": "<|end_of_text|>", "tokenizer_class": "PreTrainedTokenizerFast"})");
    write("model/generation_config.json", R"({"eos_token_id": 699, "temperature": 0.6})");
    std::filesystem::rename(path("text"), path("en.txt"));
  }

  void add_tokenizer(const std::string& directory, const std::string& kind) const {
    std::filesystem::create_directories(path(directory));
    std::filesystem::copy_file(SLUICE_FIXTURES "/tokenizers/" + kind + ".json", path(directory) + "/tokenizer.json",
                               std::filesystem::copy_options::overwrite_existing);
  }
  void remove_tokenizer() const {
    for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) std::filesystem::remove(path("model/") + name);
  }
  void tokenize(const std::string& text, const std::string& tokenizer, const std::string& to) const {
    const Finished f = sluice("data tokenize --input " + path(text) +
                              (tokenizer.empty() ? "" : " --tokenizer " + path(tokenizer)) + " --output " + path(to));
    ASSERT_EQ(f.status, 0) << f.err;
  }
  std::string train(const std::string& model, const std::string& data, int steps = 1) const {
    return "train --seq 16 --batch 2 --warmup 1 --eval-batches 1 --threads 1 --steps " + std::to_string(steps) +
           " --model " + model + " --data " + path(data) + " ";
  }
  std::string of_model(const std::string& data, int steps = 1) const { return train(path("model"), data, steps); }
  nlohmann::ordered_json description(const std::string& name) const {
    return nlohmann::ordered_json::parse(read(path(name) + "/run.json"));
  }
  void write_sealed(const std::string& name, nlohmann::ordered_json run_json) const {
    run_json.erase("seal");
    const std::string sealed = run_json.dump();
    char seal[32];
    std::snprintf(seal, sizeof seal, "%016llx",
                  static_cast<unsigned long long>(checksum(std::as_bytes(std::span(sealed)))));
    run_json["seal"] = seal;
    write(name + "/run.json", run_json.dump());
  }
  void expect_done(const std::string& arguments) const {
    const Finished f = sluice(arguments);
    EXPECT_EQ(f.status, 0) << arguments << "\n" << f.err;
  }
};

TEST_F(TokenizerCommand, TextsAreTokenizedWithTheModelsOwn) {
  tokenize("en.txt", "model", "en.tokens");
  const Finished f = sluice(of_model("en.txt") + run("text"));
  ASSERT_EQ(f.status, 0) << f.err;
  EXPECT_NE(f.err.find("tokenizing " + path("en.txt")), std::string::npos) << f.err;
  EXPECT_EQ(f.err.find("bytes are its tokens"), std::string::npos) << f.err;
  expect_done(of_model("en.tokens") + run("tokens"));
  EXPECT_EQ(description("text")["data"], description("tokens")["data"]);
  EXPECT_EQ(lines("text"), lines("tokens"));
  EXPECT_EQ(description("text")["config"]["tokenizer"], path("model"));

  const auto loss = [&](const std::string& options) {
    const Finished e = sluice("eval --json --threads 1 --seq 16 --batch 2 --model " + path("text") + " " + options);
    EXPECT_EQ(e.status, 0) << e.err;
    return e.status == 0 ? json::parse(e.out) : json();
  };
  const json of_text = loss("--data " + path("en.txt"));
  EXPECT_EQ(of_text, loss("--data " + path("en.tokens")));
  const json of_bytes = loss("--tokenizer bytes --data " + path("en.txt"));
  EXPECT_EQ(of_bytes["text_tokens"], 20025);
  EXPECT_GT(of_bytes["text_tokens"].get<int>(), of_text["text_tokens"].get<int>());
  EXPECT_NEAR(of_bytes["bits_per_byte"].get<double>(), of_bytes["loss"].get<double>() / std::log(2.0), 1e-9);
}

TEST_F(TokenizerCommand, ADirectoryWithoutOneTakesTokensOrBytesThatWereAskedFor) {
  tokenize("en.txt", "model", "en.tokens");
  remove_tokenizer();
  for (const std::string& model : {path("model"), path("model/config.json")}) {
    expect_refused(train(model, "en.txt"), "sluice data tokenize --input " + path("en.txt") + " --tokenizer FILE");
    expect_refused(train(model, "en.txt"), "--tokenizer bytes");
    expect_done(train(model, "en.tokens"));
    expect_done(train(model, "en.txt") + "--tokenizer bytes");
  }
  expect_refused_untouched(of_model("en.txt") + run("run"), "has no tokenizer");
  EXPECT_FALSE(std::filesystem::exists(path("run")));
  // That its tokens are bytes is known of the model from then on.
  expect_done(of_model("en.txt") + run("bytes") + "--tokenizer bytes");
  EXPECT_EQ(description("bytes")["config"]["tokenizer"], "bytes");
  expect_done("eval --threads 1 --seq 16 --batch 2 --model " + path("bytes") + " --data " + path("en.txt"));
  expect_done("generate --threads 1 --model " + path("bytes") + " --prompt x --tokens 2");
  expect_refused("eval --seq 16 --model " + path("bytes") + " --data " + path("en.tokens"), "another tokenizer");
  // Fewer tokens than there are bytes.
  json config = json::parse(read(path("model/config.json")));
  config["vocab_size"] = 100;
  write("model/config.json", config.dump());
  expect_refused(of_model("en.txt") + "--tokenizer bytes", "bytes need a vocabulary of 256");
  add_tokenizer("model", "llama3");
  expect_refused(of_model("en.txt"), "has tokens up to 699, and the vocabulary of " + path("model") + " is 100");
}

TEST_F(TokenizerCommand, APresetSaysThatBytesAreItsTokens) {
  const Finished f = sluice(train("llama-tiny", "en.txt") + run("run"));
  EXPECT_EQ(f.status, 0) << f.err;
  EXPECT_NE(f.err.find("llama-tiny is a preset without a tokenizer: bytes are its tokens"), std::string::npos) << f.err;
  const Finished silent = sluice(train("llama-tiny", "en.txt") + "--json");
  EXPECT_EQ(silent.out.find("preset"), std::string::npos) << silent.out;
  EXPECT_EQ(sluice(train("llama-tiny", "en.txt") + "--tokenizer " + path("model")).status, 2) << "of 700 tokens";
  expect_done("eval --seq 16 --threads 1 --model " + path("run") + " --data " + path("en.txt"));
}

TEST_F(TokenizerCommand, TokensOfAnotherTokenizerAreRefused) {
  add_tokenizer("other", "gpt2");
  tokenize("en.txt", "other", "other.tokens");
  tokenize("en.txt", "", "bytes.tokens");
  tokenize("en.txt", "model", "en.tokens");
  expect_done(of_model("en.tokens") + run("trained"));
  expect_refused(of_model("other.tokens"), "was made by another tokenizer");
  expect_refused("eval --seq 16 --model " + path("trained") + " --data " + path("other.tokens"),
                 "was made by another tokenizer");
  expect_refused(of_model("other.tokens"), "sluice data tokenize --input TEXT --tokenizer " + path("model"));
  expect_refused(of_model("bytes.tokens"), "has bytes as tokens");
  expect_refused_untouched(of_model("bytes.tokens") + run("run"), "--tokenizer bytes");
  EXPECT_FALSE(std::filesystem::exists(path("run")));
  expect_refused(of_model("en.tokens") + "--tokenizer " + path("other"), "was made by another tokenizer");
  // The way out: what the tokens are meant for is said.
  expect_done(of_model("other.tokens") + "--tokenizer " + path("other"));
  expect_done(of_model("bytes.tokens") + "--tokenizer bytes");
  // The same tokenizer, written otherwise and elsewhere.
  json written = json::parse(read(path("model/tokenizer.json")));
  written["decoder"] = nullptr;
  std::filesystem::create_directory(path("again"));
  write("again/my-own.json", written.dump(4));
  expect_done(of_model("en.tokens") + "--tokenizer " + path("again/my-own.json"));
  // Files that do not say it, and models that have none.
  const std::string convert = "data convert --input " + path("other.tokens") + " --output ";
  expect_done(convert + path("silent.tokens") + " --tokenizer none");
  expect_done(of_model("silent.tokens"));
  expect_done("data convert --input " + path("silent.tokens") + " --output " + path("named.tokens") + " --tokenizer " +
              path("other"));
  EXPECT_EQ(read(path("named.tokens")), read(path("other.tokens")));
  remove_tokenizer();
  expect_done(of_model("other.tokens"));
}

TEST_F(TokenizerCommand, TokenFilesTellWhatMadeThem) {
  tokenize("en.txt", "model", "en.tokens");
  tokenize("en.txt", "", "bytes.tokens");
  const auto told = [&](const std::string& file) {
    const Finished f = sluice("data inspect --json " + path(file));
    EXPECT_EQ(f.status, 0) << f.err;
    return json::parse(f.out)["tokenizer"];
  };
  EXPECT_EQ(told("bytes.tokens"), "bytes");
  EXPECT_EQ(told("en.tokens").get<std::string>().size(), 16u);
  expect_done("data convert --input " + path("en.tokens") + " --output " + path("m") + " --format megatron");
  EXPECT_TRUE(told("m.idx").is_null());
  EXPECT_NE(sluice("data inspect " + path("bytes.tokens")).out.find("none: bytes are tokens"), std::string::npos);
  expect_refused(
      "data convert --input " + path("en.tokens") + " --output " + path("m") + " --format megatron --tokenizer bytes",
      "Megatron's can not say it");
}

TEST_F(TokenizerCommand, WhatIsNoTextIsRefusedFirst) {
  std::filesystem::copy_file("/bin/ls", path("ls"));
  expect_done(of_model("en.txt") + run("trained"));
  for (const std::string& command : {of_model("ls"), train("llama-tiny", "ls"),
                                     "eval --seq 16 --model " + path("trained") + " --data " + path("ls") + " "}) {
    expect_refused(command, "it looks like a program (ELF)");
    expect_refused(command + "--tokenizer bytes", "it looks like a program (ELF)");
  }
  expect_refused("data tokenize --input " + path("ls") + " --output " + path("t"), "it looks like a program (ELF)");
  write("wide.txt", std::string("\xff\xfeh\0i\0", 6));
  expect_refused(of_model("wide.txt"), "iconv -f UTF-16 -t UTF-8");
  std::string latin1;
  while (latin1.size() < 5000) latin1 += "na\xefve caf\xe9 ";
  write("latin1.txt", latin1);
  expect_done(train("llama-tiny", "latin1.txt"));
}

TEST_F(TokenizerCommand, ARunGoesOnWithTheTokenizerThatItBeganWith) {
  const std::string line = of_model("en.txt", 200);
  expect_done(line + run("whole"));
  const Finished stopped = signalled(line + run("run"), "run", "TERM");
  ASSERT_EQ(stopped.status, 1) << stopped.err;
  // Neither the tokenizer nor the kept tokens need be there.
  add_tokenizer("model", "gpt2");
  std::filesystem::remove_all(path("run/tokens"));
  expect_refused("train --run " + path("run") + " --resume --tokenizer bytes", "--tokenizer bytes contradicts the run");
  expect_done("train --run " + path("run") + " --resume");
  EXPECT_EQ(result("run")["state_hash"], result("whole")["state_hash"]);
}

TEST_F(TokenizerCommand, RunsThatBeganBeforeGoOnWithBytes) {
  const std::string line = of_model("en.txt", 200) + "--tokenizer bytes ";
  expect_done(line + run("whole"));
  const Finished stopped = signalled(line + run("run"), "run", "TERM");
  ASSERT_EQ(stopped.status, 1) << stopped.err;
  nlohmann::ordered_json before = description("run");
  before["config"].erase("tokenizer");
  std::filesystem::remove_all(path("run/began_from"));
  write_sealed("run", before);
  expect_done("train --run " + path("run") + " --resume");
  EXPECT_EQ(result("run")["state_hash"], result("whole")["state_hash"]);
  EXPECT_FALSE(std::filesystem::exists(path("run/tokenizer.json"))) << "it is not that of bytes";
}

TEST_F(TokenizerCommand, ACompleteRunIsAWholeDirectory) {
  write("model/chat_template.jinja",
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
        "'<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}");
  json tokenizer = json::parse(read(path("model/tokenizer.json")));
  int id = 700;
  for (const char* token : {"<|im_start|>", "<|im_end|>"})
    tokenizer["added_tokens"].push_back({{"id", id++}, {"content", token}, {"special", true}, {"normalized", false}});
  write("model/tokenizer.json", tokenizer.dump());
  tokenize("en.txt", "model", "en.tokens");
  std::map<std::string, std::string> beside;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"})
    beside[name] = read(path("model/") + name);
  const auto expect_whole = [&](const std::string& name) {
    SCOPED_TRACE(name);
    for (const auto& [file, content] : beside) EXPECT_EQ(read(path(name) + "/" + file), content) << file;
    EXPECT_EQ(json::parse(read(path(name) + "/config.json"))["eos_token_id"], 699);
    EXPECT_TRUE(std::filesystem::exists(path(name) + "/model.safetensors"));
    expect_done("generate --threads 1 --tokens 2 --model " + path(name) + " --chat auto 'Why is the sky blue?'");
  };
  // What it began from may go while it runs.
  const Finished stopped = signalled(of_model("en.txt", 200) + run("run"), "run", "TERM");
  ASSERT_EQ(stopped.status, 1) << stopped.err;
  const std::string how = "sluice checkpoint export " + path("run") + " DIR";
  expect_refused("generate --model " + path("run") + " --prompt x", how);
  expect_refused("eval --model " + path("run") + " --data " + path("en.txt"), how);
  expect_refused(train(path("run"), "en.txt"), how);
  const std::string config = read(path("model/config.json"));
  std::filesystem::rename(path("model"), path("moved"));
  std::filesystem::create_directory(path("model"));
  write("model/config.json", config);
  expect_done("checkpoint export " + path("run") + " " + path("exported"));
  expect_whole("exported");
  expect_done("train --run " + path("run") + " --resume");
  expect_whole("run");
  expect_done("checkpoint export " + path("run") + " " + path("again"));
  expect_whole("again");
  // Of tokens, and by a tokenizer that is named, which is the same.
  std::filesystem::remove_all(path("model"));
  std::filesystem::rename(path("moved"), path("model"));
  expect_done(of_model("en.tokens") + run("tokens"));
  expect_whole("tokens");
  expect_done(of_model("en.txt") + run("named") + "--tokenizer " + path("model/tokenizer.json"));
  expect_whole("named");
}

TEST_F(TokenizerCommand, AnotherTokenizerBringsItsOwnSpecialTokens) {
  add_tokenizer("other", "gpt2");
  write("other/tokenizer_config.json", R"({"eos_token": "<|endoftext|>"})");
  expect_done(of_model("en.txt") + run("run") + "--tokenizer " + path("other"));
  EXPECT_EQ(read(path("run/tokenizer.json")), read(path("other/tokenizer.json")));
  EXPECT_EQ(read(path("run/tokenizer_config.json")), read(path("other/tokenizer_config.json")));
  const json tokenizer = json::parse(read(path("other/tokenizer.json")));
  const json eos = tokenizer["added_tokens"][0]["id"];
  EXPECT_EQ(json::parse(read(path("run/config.json")))["eos_token_id"], eos);
  EXPECT_EQ(json::parse(read(path("run/generation_config.json")))["eos_token_id"], eos);
}

}  // namespace
}  // namespace sluice
