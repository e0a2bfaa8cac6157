// Conversations: what lines hold, what templates make of them, and the ids and masks of transformers
// (tests/fixtures/make_chat.py).
#include <map>
#include <nlohmann/json.hpp>

#include "io/chat/chat_encoding.h"
#include "token_support.h"

namespace sluice {
namespace {

using nlohmann::json;

std::string fixture(const std::string& name) { return std::string(SLUICE_FIXTURES "/") + name; }

/// A template, its published text, and what transformers makes of conversations with it.
struct Published {
  explicit Published(const std::string& name) : file(json::parse(read_text(fixture("chat/" + name + ".json")))) {
    json base = json::parse(read_text(fixture("tokenizers/" + file["tokenizer"].get<std::string>() + ".json")));
    base["added_tokens"] = file["added_tokens"];
    auto parsed = Tokenizer::parse(base.dump(), name);
    EXPECT_TRUE(parsed.ok()) << parsed.error().message;
    tokenizer = std::make_shared<const Tokenizer>(std::move(*parsed));
  }
  static std::string token(const json& name) { return name.is_null() ? "" : name.get<std::string>(); }
  ChatRenderer renderer() const {
    const std::string name = file["template"];
    auto made =
        ChatRenderer::create(*template_named(name), *tokenizer, {token(file["bos_token"]), token(file["eos_token"])});
    EXPECT_TRUE(made.ok()) << made.error().message;
    return *made;
  }
  json file;
  std::shared_ptr<const Tokenizer> tokenizer;
};

std::string bits(const std::vector<std::uint8_t>& mask) {
  std::string out;
  for (const std::uint8_t m : mask) out += m != 0 ? '1' : '0';
  return out;
}

std::string line_of(const json& messages) { return json{{"messages", messages}}.dump(); }

struct Encoded {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> mask;
};

Encoded encode(const Published& p, const std::string& line, ChatLoss loss = ChatLoss::assistant, bool prompt = false) {
  Encoded e;
  const auto conversation = parse_conversation(line, "");
  EXPECT_TRUE(conversation.ok()) << conversation.error().message;
  RenderedChat chat;
  const Status rendered = p.renderer().render(*conversation, loss, prompt, chat);
  EXPECT_TRUE(rendered.ok()) << rendered.error().message;
  EXPECT_TRUE(Tokenizer::Encoder(*p.tokenizer).encode(chat.text, chat.marks, e.ids, e.mask).ok());
  EXPECT_EQ(e.ids.size(), e.mask.size());
  return e;
}

class ChatTemplates : public testing::TestWithParam<const char*> {};

TEST_P(ChatTemplates, GiveTheIdsAndMasksOfTheReference) {
  const Published p(GetParam());
  for (const json& c : p.file["cases"]) {
    const Encoded whole = encode(p, line_of(c["messages"]));
    EXPECT_EQ(whole.ids, c["ids"].get<std::vector<std::int32_t>>()) << c["messages"];
    // Phi 3's <|assistant|> takes white space along that an answer begins with; the reference then counts it as said.
    std::string mask = c["mask"];
    for (std::size_t i = 0; i < whole.ids.size() && i < mask.size(); ++i)
      if (whole.ids[i] == p.tokenizer->id("<|assistant|>").value_or(-1)) mask[i] = '0';
    EXPECT_EQ(bits(whole.mask), mask) << c["messages"] << p.tokenizer->decode(whole.ids, false);
    const Encoded prompt = encode(p, line_of(c["messages"]), ChatLoss::assistant, true);
    EXPECT_EQ(prompt.ids, c["prompt"].get<std::vector<std::int32_t>>()) << c["messages"];
  }
}

TEST_P(ChatTemplates, SpecialTokensThatAreSpeltAreText) {
  const Published p(GetParam());
  Tokenizer::Encoder encoder(*p.tokenizer);
  const TextMark all_content[] = {{.begin = 0, .content = true}};
  std::string spelt;
  for (const json& c : p.file["plain"]) {
    const std::string text = c["text"];
    spelt += text;
    std::vector<std::int32_t> ids;
    std::vector<std::uint8_t> mask;
    ASSERT_TRUE(encoder.encode(text, all_content, ids, mask).ok());
    EXPECT_EQ(ids, c["ids"].get<std::vector<std::int32_t>>()) << text;
  }
  for (const json& t : p.file["added_tokens"]) spelt += t["content"];
  // In a conversation they add no token that is special.
  const auto special = [&](const std::string& user, const std::string& assistant) {
    std::map<std::int32_t, int> count;
    for (const std::int32_t id :
         encode(p, line_of({{{"role", "user"}, {"content", user}}, {{"role", "assistant"}, {"content", assistant}}}))
             .ids)
      if (p.tokenizer->is_special(id)) ++count[id];
    return count;
  };
  EXPECT_EQ(special("x" + spelt + "x", "y"), special("x", "y"));
  EXPECT_EQ(special("x", "y" + spelt + "y"), special("x", "y"));
}

TEST_P(ChatTemplates, AreRecognisedByTheirText) {
  const Published p(GetParam());
  const auto found = recognize_template(p.file["chat_template"].get<std::string>());
  ASSERT_TRUE(found) << GetParam();
  EXPECT_EQ(template_name(*found), std::string(GetParam()));
}

TEST_P(ChatTemplates, LossOfTheLastTurnOrOfAll) {
  const Published p(GetParam());
  const std::string line = line_of({{{"role", "user"}, {"content", "one"}},
                                    {{"role", "assistant"}, {"content", "two"}},
                                    {{"role", "user"}, {"content", "three"}},
                                    {{"role", "assistant"}, {"content", "four"}}});
  const Encoded both = encode(p, line), last = encode(p, line, ChatLoss::last), all = encode(p, line, ChatLoss::all);
  EXPECT_EQ(all.ids, both.ids);
  EXPECT_EQ(all.mask, std::vector<std::uint8_t>(both.ids.size(), 1));
  const std::string assistant = bits(both.mask);
  const std::size_t second = assistant.find("01", assistant.find('1')) + 1;
  EXPECT_EQ(bits(last.mask), std::string(second, '0') + assistant.substr(second));
  EXPECT_NE(bits(last.mask), assistant);
  const std::string weighed = line.substr(0, line.find("\"content\":\"two\"")) + "\"weight\":0," +
                              line.substr(line.find("\"content\":\"two\""));
  EXPECT_EQ(bits(encode(p, weighed).mask), bits(last.mask));
}

INSTANTIATE_TEST_SUITE_P(Chat, ChatTemplates,
                         testing::Values("chatml", "qwen2", "qwen2.5", "smollm", "llama2", "llama3", "llama3.1",
                                         "mistral", "mistral-v3", "phi3", "zephyr"),
                         [](const auto& each) {
                           std::string name = each.param;
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return c == '.' || c == '-'; }, '_');
                           return name;
                         });

TEST(Chat, TheBorderOfAMessageCutsNoWord) {
  const Published p("chatml");
  // "\n" of the template and the newlines of the message are one token: it holds some of what is said.
  const Encoded e =
      encode(p, line_of({{{"role", "user"}, {"content", "a"}}, {{"role", "assistant"}, {"content", "\n\n  Hello\n"}}}));
  std::string learned;
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < e.ids.size(); ++i)
    if (e.mask[i] != 0) ids.push_back(e.ids[i]);
  learned = p.tokenizer->decode(ids, false);
  EXPECT_TRUE(learned == "\n\n  Hello\n<|im_end|>" || learned == "\n\n\n  Hello\n<|im_end|>") << learned;
}

TEST(Chat, TurnsAreCheckedWhereTheTemplateHasThem) {
  const Published llama2("llama2"), chatml("chatml");
  const auto roles = [](const std::vector<std::string>& names) {
    json messages = json::array();
    for (const std::string& name : names) messages.push_back({{"role", name}, {"content", "x"}});
    return *parse_conversation(line_of(messages), "");
  };
  RenderedChat chat;
  const auto refused = [&](const Published& p, const std::vector<std::string>& names, const std::string& what) {
    const Status rendered = p.renderer().render(roles(names), ChatLoss::assistant, false, chat);
    ASSERT_FALSE(rendered.ok());
    EXPECT_EQ(rendered.error().code, ErrorCode::bad_request);
    EXPECT_NE(rendered.error().message.find(what), std::string::npos) << rendered.error().message;
  };
  EXPECT_TRUE(llama2.renderer().render(roles({"system", "user", "assistant", "user"}), {}, false, chat).ok());
  refused(llama2, {"assistant"}, "message 1 is of assistant where template llama2 has user");
  refused(llama2, {"system", "assistant"}, "message 2 is of assistant");
  refused(llama2, {"user", "user"}, "message 2 is of user where template llama2 has assistant");
  refused(llama2, {"user", "system"}, "message 2 is of system");
  refused(llama2, {"user", "tool"}, "message 2 is of a tool");
  EXPECT_TRUE(
      chatml.renderer().render(roles({"user", "assistant", "tool", "assistant", "system"}), {}, false, chat).ok());
}

TEST(Chat, TokensThatTheTokenizerLacksAreNamed) {
  const Published llama2("llama2");
  expect_refused(ChatRenderer::create(ChatTemplate::chatml, *llama2.tokenizer, {}),
                 "template chatml needs the special token <|im_start|>");
  expect_refused(ChatRenderer::create(ChatTemplate::mistral_v3, *llama2.tokenizer, {}), "[INST]");
  expect_refused(ChatRenderer::create(ChatTemplate::zephyr, *llama2.tokenizer, {"", "</none>"}), "</none>");
  const auto zephyr = ChatRenderer::create(ChatTemplate::zephyr, *llama2.tokenizer, {});
  ASSERT_TRUE(zephyr.ok());
  EXPECT_EQ(zephyr->end_of_turn(), llama2.tokenizer->id("</s>"));
  EXPECT_EQ(Published("phi3").renderer().end_of_turn(), Published("phi3").tokenizer->id("<|end|>"));
}

TEST(Chat, LinesOfBothKindsAreRead) {
  const auto messages = parse_conversation(
      R"({"id": 7, "messages": [{"role": "system", "content": ""}, {"content": "q", "role": "user", "name": "n"},
          {"role": "assistant", "content": "\u00e9\ud83d\ude00", "weight": 0, "tool_calls": null}], "tools": []})",
      "");
  ASSERT_TRUE(messages.ok()) << messages.error().message;
  ASSERT_EQ(messages->size(), 3u);
  EXPECT_EQ((*messages)[0].role, ChatRole::system);
  EXPECT_EQ((*messages)[0].content, "");
  EXPECT_EQ((*messages)[2].content, "é😀");
  EXPECT_FALSE((*messages)[2].learned);
  const auto share_gpt =
      parse_conversation(R"({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]})", "");
  ASSERT_TRUE(share_gpt.ok());
  EXPECT_EQ((*share_gpt)[0].role, ChatRole::user);
  EXPECT_EQ((*share_gpt)[1].role, ChatRole::assistant);
  EXPECT_TRUE(parse_conversation(R"({"turns": [{"role": "user", "content": "q"}]})", "turns").ok());
}

TEST(Chat, LinesThatAreNoConversationAreRefused) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "not JSON"},
      {"[]", "the line is array and not an object"},
      {"{}", "neither \"messages\" nor \"conversations\""},
      {R"({"messages": 3})", "number as \"messages\" and not a list"},
      {R"({"messages": []})", "no message in \"messages\""},
      {R"({"messages": [3]})", "message 1 is number and not an object"},
      {R"({"messages": [{"content": "a"}]})", "message 1 has no \"role\""},
      {R"({"messages": [{"role": 1, "content": "a"}]})", "message 1 has number as \"role\""},
      {R"({"messages": [{"role": "user", "content": "a"}, {"role": "boss", "content": "a"}]})",
       "message 2 is of 'boss'"},
      {R"({"messages": [{"role": "us\ner", "content": "a"}]})", "message 1 is of 'us?er'"},
      {R"({"messages": [{"role": "user"}]})", "message 1 has no \"content\""},
      {R"({"messages": [{"role": "user", "content": null}]})", "null as \"content\""},
      {R"({"messages": [{"role": "user", "content": [{"type": "text"}]}]})", "array as \"content\""},
      {R"({"messages": [{"role": "assistant", "content": "", "tool_calls": [1]}]})", "tool_calls"},
      {R"({"messages": [{"role": "assistant", "content": "", "weight": 0.5}]})", "weight"},
      {R"({"messages": [{"role": "user", "content": "a"}], "tools": [{}]})", "tools"},
      {R"({"conversations": [{"from": "human"}]})", "message 1 has no \"value\""},
      {R"({"messages": [{"role": "user", "content": "a"}], "messages": []})", "appears twice"},
      {R"({"messages": [{"role": "user", "content": "\ud800"}]})", "not JSON"},
      {"{\"messages\": [{\"role\": \"user\", \"content\": \"\xff\"}]}", "not JSON"},
      {std::string(100, '[') + std::string(100, ']'), "nested deeper"},
  };
  for (const auto& [line, what] : cases) expect_refused(parse_conversation(line, ""), what);
  expect_refused(parse_conversation(R"({"messages": []})", "turns"), "the line has no \"turns\"");
}

TEST(Chat, ATemplateIsChosenByWhatLiesBesideTheTokenizer) {
  const ScratchDir dir;
  const Published smollm("smollm"), llama2("llama2");
  const auto choose = [&](const Published& p, const std::string& name = "auto") {
    return choose_template(name, *p.tokenizer, dir.path());
  };
  auto chosen = choose(smollm);
  ASSERT_TRUE(chosen.ok()) << chosen.error().message;
  EXPECT_EQ(chosen->name, ChatTemplate::chatml);
  EXPECT_NE(chosen->why.find("special tokens"), std::string::npos);
  expect_refused(choose(llama2), "name one of chatml, qwen2, qwen2.5");
  const auto config = [&](const json& chat_template) {
    write_text(
        dir / "tokenizer_config.json",
        json{{"bos_token", {{"content", "<s>"}}}, {"eos_token", "</s>"}, {"chat_template", chat_template}}.dump());
  };
  config(smollm.file["chat_template"]);
  chosen = choose(smollm);
  ASSERT_TRUE(chosen.ok());
  EXPECT_EQ(chosen->name, ChatTemplate::smollm);
  EXPECT_EQ(chosen->tokens.bos, "<s>");
  EXPECT_EQ(chosen->tokens.eos, "</s>");
  EXPECT_NE(chosen->why.find("tokenizer_config.json"), std::string::npos);
  config(json::array(
      {{{"name", "tool_use"}, {"template", "x"}}, {{"name", "default"}, {"template", llama2.file["chat_template"]}}}));
  EXPECT_EQ(choose(llama2)->name, ChatTemplate::llama2);
  EXPECT_EQ(choose(llama2, "zephyr")->name, ChatTemplate::zephyr) << "what is named counts";
  expect_refused(choose(llama2, "vicuna"), "--chat 'vicuna' is none of auto, chatml");
  write_text(dir / "chat_template.jinja", "{{ messages[0]['content'] }}");
  expect_refused(choose(smollm), "chat_template.jinja is none that is known here");
  write_text(dir / "chat_template.jinja", smollm.file["chat_template"].get<std::string>() + "<think>");
  expect_refused(choose(smollm), "chat_template.jinja is none that is known here");
}

TEST(Chat, TemplatesOfOthersAreNotTakenForOneOfThese) {
  for (const char* jinja :
       {"", "{{ messages }}", "<|im_start|>system\\nYou are somebody else.<|im_end|>",
        "{{bos_token}}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}",
        "{{system_message}}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}",
        "<think>{{'<think>'}}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}",
        "{{'<|im_start|>' + message['role'] + ' ' + message['content'] + '<|im_end|>' + '\\n'}}", "{{ 'open", "{",
        "{{ '\\", "[INST]{{ message['content'] }}[/INST]",
        "{{ bos_token }}{{ '[INST] ' + message['content'] + ' [/INST]' }}{{ message['content'] + eos_token}}",
        "[SYSTEM_PROMPT]' ' + message['content']'[INST] '[/INST]'",
        "{{ '<|user|>' + message['content'] + '<|end|>' }}"})
    EXPECT_FALSE(recognize_template(jinja)) << jinja;
  EXPECT_EQ(recognize_template("{%- for message in messages -%}{{- \"<|im_start|>\" + message.role + \"\\n\" + "
                               "message.content+\"<|im_end|>\"+\"\n\" -}}{% endfor %}"),
            ChatTemplate::chatml)
      << "quotes, dots, spaces and newlines as people write them";
}

class ChatFiles : public testing::Test {
 protected:
  TokenizeOptions options(const std::string& lines) {
    write_text(dir_ / "chat.jsonl", lines);
    TokenizeOptions options;
    options.texts = {.paths = {dir_ / "chat.jsonl"}, .kind = TextKind::jsonl, .whole_lines = true};
    options.output = dir_ / "chat.tokens";
    return options;
  }
  TextEncoding encoding(ChatOptions options = {}) const {
    return chat_encoding(published_.tokenizer, published_.renderer(), std::move(options));
  }
  std::string lines(std::size_t repeat = 1) const {
    std::string out;
    for (std::size_t i = 0; i < repeat; ++i)
      for (const json& c : published_.file["cases"]) out += line_of(c["messages"]) + "\n";
    return out;
  }
  ScratchDir dir_;
  Published published_{"qwen2"};
};

TEST_F(ChatFiles, HoldTheMask) {
  const auto report = tokenize(options(lines()), encoding());
  ASSERT_TRUE(report.ok()) << report.error().message;
  const TokenFile file = open_tokens(dir_ / "chat.tokens");
  ASSERT_TRUE(file.has_mask());
  std::uint64_t d = 0, learned = 0;
  for (const json& c : published_.file["cases"]) {
    const auto document = file.document(d++);
    ASSERT_TRUE(document.ok());
    std::vector<std::int32_t> ids(document->count());
    std::vector<std::uint8_t> mask(document->count());
    ASSERT_TRUE(file.read(document->begin, ids).ok());
    EXPECT_TRUE(file.read_mask(document->begin, mask).ok());
    EXPECT_EQ(ids, c["ids"].get<std::vector<std::int32_t>>());
    EXPECT_EQ(bits(mask), c["mask"]);
    learned += static_cast<std::uint64_t>(std::count(mask.begin(), mask.end(), 1));
  }
  EXPECT_EQ(d, file.documents());
  EXPECT_EQ(report->training.loss_tokens, learned);
}

TEST(Chat, ACompletionIsWhatFollowsItsPrompt) {
  const Published llama3("llama3");  // with a beginning of sequence in its own template
  const std::int32_t eos = *llama3.tokenizer->id("<|eot_id|>");
  const auto encoded = [&](const std::string& line, ChatLoss loss) {
    Encoded e;
    const Status done =
        completion_encoding(llama3.tokenizer, eos, loss).make_encoder()->encode_masked(line, e.ids, e.mask);
    EXPECT_TRUE(done.ok()) << done.error().message;
    return e;
  };
  const std::string line = R"({"prompt": "Why <|eot_id|>\nis", "completion": " it so?"})";
  const Encoded e = encoded(line, ChatLoss::assistant);
  std::vector<std::int32_t> ids = {*llama3.tokenizer->id("<|begin_of_text|>")};
  std::vector<std::uint8_t> mask = {0};
  const TextMark content[] = {{.begin = 0, .content = true}};
  ASSERT_TRUE(Tokenizer::Encoder(*llama3.tokenizer).encode("Why <|eot_id|>\nis it so?", content, ids, mask).ok());
  ids.push_back(eos);
  EXPECT_EQ(e.ids, ids);
  std::vector<std::int32_t> learned;
  for (std::size_t i = 0; i < e.ids.size(); ++i)
    if (e.mask[i] != 0) learned.push_back(e.ids[i]);
  EXPECT_EQ(llama3.tokenizer->decode(learned, false), " it so?<|eot_id|>");
  EXPECT_EQ(encoded(line, ChatLoss::all).mask, std::vector<std::uint8_t>(ids.size(), 1));
  EXPECT_EQ(bits(encoded(R"({"prompt": "a", "completion": ""})", ChatLoss::assistant).mask), "001");
  for (const char* bad : {R"({"prompt": "a"})", R"({"completion": "a"})", R"({"prompt": 1, "completion": "a"})", "[]"})
    expect_refused(parse_completion(bad), "the line ");
}

TEST_F(ChatFiles, WithNothingToLearnAreLeftOut) {
  const std::string asked = line_of({{{"role", "user"}, {"content", "hello?"}}}) + "\n";
  const auto report = tokenize(options(asked + lines() + asked), encoding());
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_EQ(report->empty_documents, 2u);
  EXPECT_EQ(report->training.documents, 40u);
  expect_refused(tokenize(options(asked), encoding()), "nothing to learn");
  EXPECT_TRUE(tokenize(options(asked), encoding({.field = {}, .loss = ChatLoss::all})).ok());
}

TEST_F(ChatFiles, ErrorsNameFileAndLine) {
  for (const int threads : {1, 3}) {
    TokenizeOptions o = options(lines() + "\n{\"messages\": [{\"role\": \"user\"}]}\n{}\n");
    o.threads = threads;
    expect_refused(tokenize(o, encoding()), "chat.jsonl line 42: message 1 has no \"content\"");
  }
  EXPECT_EQ(dir_.files(), 1u) << "nothing is left of what fails";
}

TEST_F(ChatFiles, ThreadsAndPackingChangeNoByte) {
  TokenizeOptions o = options(lines(30));
  o.held_out = 0.1;
  for (const bool pack : {false, true}) {
    if (pack) o.pack = PackOptions{.sequence = 256};
    std::string training, held_out;
    for (const int threads : {1, 2, 5}) {
      o.threads = threads;
      const auto report = tokenize(o, encoding());
      ASSERT_TRUE(report.ok()) << report.error().message;
      if (threads == 1) training = read_text(dir_ / "chat.tokens"), held_out = read_text(dir_ / "chat.eval.tokens");
      EXPECT_TRUE(read_text(dir_ / "chat.tokens") == training);
      EXPECT_TRUE(read_text(dir_ / "chat.eval.tokens") == held_out);
    }
    EXPECT_EQ(open_tokens(dir_ / "chat.eval.tokens").packed_sequence(), pack ? 256u : 0u);
  }
}

}  // namespace
}  // namespace sluice
