// vocab.json, merges.txt and what lies beside them, with a zero byte between each: refused in one line, or a tokenizer.
// Of an empty one there is none, but a vocabulary that what follows has a chance to fit to.
#include "io/tokenizer/gpt2_files.h"
#include "io/tokenizer/tokenizer.h"
#include "tests/fuzz/input.h"

namespace {

constexpr const char* vocabulary =
    R"({"a":0,"b":1,"ab":2,"Ġ":3,"Ġab":4,"1":5,"12":6,"Ċ":7,"abab":8,"Ã":9,"©":10,"<|endoftext|>":11})";

sluice::Gpt2Files files_of(std::string_view bytes) {
  sluice::Gpt2Files files;
  for (const auto& [file, name] :
       {std::pair(&files.vocabulary, "vocab.json"), std::pair(&files.merges, "merges.txt"),
        std::pair(&files.settings, "tokenizer_config.json"),
        std::pair(&files.special_tokens, "special_tokens_map.json"), std::pair(&files.added, "added_tokens.json"),
        std::pair(&files.config, "config.json")}) {
    const std::size_t end = std::min(bytes.find('\0'), bytes.size());
    if (end > 0) *file = {name, std::string(bytes.substr(0, end))};
    bytes.remove_prefix(std::min(end + 1, bytes.size()));
  }
  if (files.vocabulary.path.empty()) files.vocabulary = {"vocab.json", vocabulary};
  files.merges.path = "merges.txt";
  return files;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto tokenizer =
      sluice::Tokenizer::parse(files_of(std::string_view(reinterpret_cast<const char*>(data), size)));
  if (!tokenizer.ok()) {
    sluice::fuzz::check_refusal(tokenizer.error());
    SLUICE_CHECK(tokenizer.error().message.find(".json: ") != std::string::npos ||
                     tokenizer.error().message.find(".txt: ") != std::string::npos,
                 "(%s) names no file", tokenizer.error().message.c_str());
    return 0;
  }
  sluice::Tokenizer::Encoder encoder(*tokenizer);
  std::vector<std::int32_t> ids;
  SLUICE_CHECK(encoder.encode("ab abab<s> 12\n\xc3\xa9", true, ids).ok(), "GPT-2's patterns end");
  for (const std::int32_t id : ids)
    SLUICE_CHECK(id >= 0 && static_cast<std::uint64_t>(id) < tokenizer->vocabulary() &&
                     tokenizer->id(tokenizer->token(id)) == id,
                 "id %d", id);
  tokenizer->decode(ids, false);
  const auto end = tokenizer->end_of_text();
  SLUICE_CHECK(!end || tokenizer->is_special(*end), "a text's end is special");
  return 0;
}
