// sluice data tokenize --chat and --pack: what users type, and everything that is refused.
#include <nlohmann/json.hpp>

#include "command.h"
#include "io/tokenizer/tokenizer.h"
#include "io/tokens/token_file.h"
#include "tests/io/token_support.h"

namespace sluice {
namespace {

using nlohmann::json;

class ChatCommandTest : public CommandTest {
 protected:
  /// A directory as a model has it, and conversations for it.
  void SetUp() override {
    published_ = json::parse(read_text(SLUICE_FIXTURES "/chat/llama3.json"));
    json tokenizer = json::parse(read_text(SLUICE_FIXTURES "/tokenizers/llama3.json"));
    tokenizer["added_tokens"] = published_["added_tokens"];
    std::filesystem::create_directory(path("model"));
    write("model/tokenizer.json", tokenizer.dump());
    write("model/tokenizer_config.json", json{{"bos_token", "<|begin_of_text|>"}, {"eos_token", "<|eot_id|>"}}.dump());
    write("model/chat_template.jinja", published_["chat_template"].get<std::string>());
    std::string lines;
    for (const json& c : published_["cases"]) lines += json{{"messages", c["messages"]}}.dump() + "\n";
    write("chat.jsonl", lines);
  }
  std::string line(const std::string& options = "--chat auto") const {
    return "data tokenize " + path("chat.jsonl") + " --tokenizer " + path("model") + " --output " + path("t") + " " +
           options;
  }
  json run_json(const std::string& arguments) const {
    const Finished f = sluice(arguments + " --json");
    EXPECT_EQ(f.status, 0) << f.err;
    return f.status == 0 ? json::parse(f.out) : json::object();
  }
  json published_;
};

TEST_F(ChatCommandTest, RendersWithTheModelsTemplate) {
  const json made = run_json(line());
  EXPECT_EQ(made["template"], "llama3");
  EXPECT_EQ(made["documents"], 40);
  const auto file = TokenFile::open(path("t"));
  ASSERT_TRUE(file.ok());
  std::vector<std::int32_t> expected, tokens(file->count());
  std::string mask;
  for (const json& c : published_["cases"]) {
    for (const std::int32_t id : c["ids"]) expected.push_back(id);
    mask += c["mask"];
  }
  ASSERT_TRUE(file->read(0, tokens).ok());
  EXPECT_EQ(tokens, expected);
  EXPECT_EQ(made["loss_tokens"], std::count(mask.begin(), mask.end(), '1'));
  EXPECT_EQ(run_json("data inspect " + path("t"))["loss_tokens"], made["loss_tokens"]);
  const Finished shown = sluice(line());
  EXPECT_NE(shown.out.find("template llama3, by the chat_template in " + path("model/chat_template.jinja")),
            std::string::npos)
      << shown.out;
  EXPECT_NE(shown.out.find("tokens in 40 conversations"), std::string::npos) << shown.out;
  EXPECT_NE(shown.out.find("% of them in the loss"), std::string::npos) << shown.out;
}

TEST_F(ChatCommandTest, TakesShareGptAndOtherFields) {
  write("share.jsonl", R"({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]})");
  write("other.json", R"({"turns": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})");
  const std::string with = " --tokenizer " + path("model") + " --chat llama3 --output " + path("t");
  const json share = run_json("data tokenize " + path("share.jsonl") + with);
  const std::string bytes = read(path("t"));
  run_json("data tokenize " + path("other.json") + with + " --field turns");
  EXPECT_TRUE(read(path("t")) == bytes);
  EXPECT_GT(share["loss_tokens"], 1);
  const std::string through =
      "cat " + path("share.jsonl") + " | " SLUICE_BINARY " data tokenize -" + with + " --json >" + path("out");
  ASSERT_EQ(std::system(through.c_str()), 0);
  EXPECT_TRUE(read(path("t")) == bytes);
  EXPECT_GT(run_json("data tokenize " + path("share.jsonl") + with + " --loss all")["loss_tokens"],
            share["loss_tokens"]);
}

TEST_F(ChatCommandTest, TakesPromptsAndCompletions) {
  write("chat.jsonl", R"({"prompt": "2 + 2 =", "completion": " 4"})"
                      "\n"
                      R"({"prompt": "", "completion": "all"})"
                      "\n");
  const json made = run_json(line("--chat none"));
  EXPECT_EQ(made["documents"], 2);
  EXPECT_EQ(made["template"], "none");
  EXPECT_GT(made["loss_tokens"], 3);
  EXPECT_LT(made["loss_tokens"], made["tokens"]);
  expect_refused(line("--chat none --field x"), "--jsonl-field");
  write("chat.jsonl", R"({"prompt": "2 + 2 ="})");
  expect_refused(line("--chat none"), "line 1: the line has no \"completion\"");
  write("model/tokenizer_config.json", "{}");
  expect_refused(line("--chat none"), "has no eos_token");
}

TEST_F(ChatCommandTest, PacksConversations) {
  const json made = run_json(line("--chat auto --pack 512 --eval-split 0.2 --threads 3"));
  EXPECT_EQ(made["sequence"], 512);
  EXPECT_EQ(made["tokens"].get<std::uint64_t>() + made["padding_tokens"].get<std::uint64_t>(),
            512 * made["sequences"].get<std::uint64_t>());
  EXPECT_EQ(made["documents"].get<int>() + made["eval"]["documents"].get<int>() + made["unlearned"].get<int>(), 40);
  for (const char* name : {"t", "t.eval"}) {
    const json inspected = run_json("data inspect " + path(name));
    EXPECT_EQ(inspected["sequence"], 512);
    EXPECT_LE(inspected["longest_document_tokens"], 512);
    const json& told = std::string(name) == "t" ? made : made["eval"];
    for (const char* key : {"documents", "tokens", "padding_tokens", "loss_tokens", "sequences"})
      EXPECT_EQ(inspected[key], told[key]) << name << ": " << key;
  }
  const Finished shown = sluice(line("--chat auto --pack 100"));
  EXPECT_NE(shown.out.find("sequences of 100 tokens"), std::string::npos) << shown.out;
  EXPECT_NE(shown.out.find("of more than 100 tokens were cut"), std::string::npos) << shown.out;
  const json dropped = run_json(line("--chat auto --pack 100 --too-long drop"));
  EXPECT_EQ(dropped["documents"].get<int>() + dropped["too_long"].get<int>(), 40);
  expect_refused(line("--chat auto --pack 100 --too-long refuse"), "chat.jsonl line ");
  expect_refused(line("--chat auto --pack 100 --too-long refuse"), "more than 100 tokens");
}

TEST_F(ChatCommandTest, PacksTexts) {
  write("a.txt", std::string(5000, 'x'));
  write("b.txt", "short");
  const json made =
      run_json("data tokenize " + path("a.txt") + " " + path("b.txt") + " --pack 1000 --output " + path("t"));
  EXPECT_EQ(made["documents"], 6);
  EXPECT_EQ(made["too_long"], 1);
  EXPECT_EQ(made["lost_tokens"], 0);
  EXPECT_EQ(made["padding_tokens"], 995);
  EXPECT_EQ(made["loss_tokens"], 5005 - 6) << "the first token of each has nothing before it";
}

// Padding is neither a document nor tokens of one, and not the longest document: what was packed is what is counted.
TEST_F(ChatCommandTest, InspectCountsPackedDocumentsAndNotTheirPadding) {
  // Laid into sequences of 10 as 8 + 1 and 1 of padding, 7 + 3, 4 and 6 of padding. One document begins with token 0,
  // and one is token 0 alone.
  std::string lines;
  for (const char* text : {"aaaaaaaa", "\\u0000bbbbbb", "cccc", "\\u0000", "eee"})
    lines += std::string("{\"text\": \"") + text + "\"}\n";
  write("a.jsonl", lines);
  const json made = run_json("data tokenize " + path("a.jsonl") + " --pack 10 --output " + path("t"));
  EXPECT_EQ(made["documents"], 5);
  EXPECT_EQ(made["padding_tokens"], 7);
  const json inspected = run_json("data inspect " + path("t"));
  EXPECT_EQ(inspected["documents"], 5);
  EXPECT_EQ(inspected["tokens"], 8 + 7 + 4 + 1 + 3);
  EXPECT_EQ(inspected["padding_tokens"], 7);
  EXPECT_EQ(inspected["sequences"], 3);
  EXPECT_EQ(inspected["longest_document_tokens"], 8);
  EXPECT_EQ(inspected["loss_tokens"], 8 + 7 + 4 + 1 + 3 - 5);
  const std::string shown = sluice("data inspect " + path("t")).out;
  for (const char* text : {"23 of a byte", "18 of 23 tokens", "3 sequences of 10 tokens", "7 tokens, 23.33% of"})
    EXPECT_NE(shown.find(text), std::string::npos) << text << "\n" << shown;
  // As --seq-schedule has to know them; without padding.
  const json expected{{{"from", 1}, {"to", 1}, {"documents", 1}, {"tokens", 1}},
                      {{"from", 3}, {"to", 4}, {"documents", 2}, {"tokens", 7}},
                      {{"from", 5}, {"to", 8}, {"documents", 2}, {"tokens", 15}}};
  EXPECT_EQ(inspected["lengths"], expected);
  EXPECT_NE(shown.find("2 documents, 40.0%; 65.2% of the tokens"), std::string::npos) << shown;
  const json converted = run_json("data convert --input " + path("t") + " --output " + path("u.tokens"));
  EXPECT_EQ(converted["documents"], 5);
  EXPECT_EQ(converted["tokens"], 23);
  // One long document of padding would be the longest.
  write("f.txt", "ff");
  ASSERT_EQ(run_json("data tokenize " + path("f.txt") + " --pack 1000 --output " + path("t"))["padding_tokens"], 998);
  EXPECT_EQ(run_json("data inspect " + path("t"))["longest_document_tokens"], 2);
}

TEST_F(ChatCommandTest, WrongRequestsAreRefused) {
  expect_refused(line("--chat vicuna"), "--chat 'vicuna' is none of auto, chatml, qwen2");
  expect_refused(line("--chat chatml"), "template chatml needs the special token <|im_start|>");
  expect_refused(line("--chat auto --append-eos auto"), "--append-eos is for texts");
  expect_refused(line("--chat auto --no-special-tokens"), "--no-special-tokens is for texts");
  expect_refused(line("--chat auto --input-format text"), "--input-format is text");
  expect_refused(line("--chat auto --format megatron"), "Megatron's format can not say");
  expect_refused(line("--loss last"), "--chat");
  expect_refused(line("--too-long drop"), "--pack");
  expect_refused(line("--chat auto --pack 1"), "--pack");
  expect_refused(line("--chat auto --loss some"), "--loss");
  expect_refused("data tokenize " + path("chat.jsonl") + " --chat llama3 --output " + path("t"), "add --tokenizer");
  write("model/chat_template.jinja", "{{ something }}");
  expect_refused(line(), "chat_template.jinja is none that is known here");
  std::filesystem::remove(path("model/chat_template.jinja"));
  EXPECT_EQ(run_json(line())["template"], "llama3") << "by its special tokens";
  write("model/tokenizer_config.json", "{");
  expect_refused(line(), "tokenizer_config.json");
}

TEST_F(ChatCommandTest, MalformedLinesAreRefused) {
  const std::string good = R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]})";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{", "not JSON"},
      {"3", "not an object"},
      {R"({"text": "q"})", "neither \"messages\""},
      {R"({"messages": "q"})", "not a list of messages"},
      {R"({"messages": []})", "no message"},
      {R"({"messages": [{"role": "user", "content": "a"}, {"content": "b"}]})", "message 2 has no \"role\""},
      {R"({"messages": [{"role": "god", "content": "b"}]})", "message 1 is of 'god'"},
      {R"({"messages": [{"role": "user", "content": {}}]})", "message 1 has object as \"content\""},
      {"{\"messages\": [{\"role\": \"user\", \"content\": \"\xff\"}]}", "not JSON"},
      {std::string(1u << 20, '['), "nested deeper"},
  };
  for (const auto& [bad, says] : cases) {
    write("chat.jsonl", good + "\n\n" + bad + "\n" + good + "\n");
    for (const char* threads : {"1", "2"}) {
      expect_refused(line(std::string("--chat auto --threads ") + threads), says);
      expect_refused(line(std::string("--chat auto --threads ") + threads), path("chat.jsonl") + " line 3");
    }
  }
  write("chat.jsonl", R"({"messages":[{"role":"user","content":"q"}]})");
  expect_refused(line(), "nothing to learn");
  EXPECT_FALSE(std::filesystem::exists(path("t")));
}

}  // namespace
}  // namespace sluice
