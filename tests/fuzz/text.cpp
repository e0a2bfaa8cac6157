// Any bytes as text, through every kind of tokenizer: the same ids again, and byte-level BPE loses nothing.
#include <deque>
#include <memory>

#include "io/tokenizer/streaming_decoder.h"
#include "io/tokenizer/unicode.h"
#include "tests/fuzz/input.h"

namespace {

struct Kind {
  std::string name;
  sluice::Tokenizer tokenizer;
  std::unique_ptr<sluice::Tokenizer::Encoder> encoder;
};

std::deque<Kind>& kinds() {
  static std::deque<Kind> all;
  if (!all.empty()) return all;
  for (const char* name : {"gpt2", "llama3", "qwen2", "smollm", "llama2", "mistral", "options", "metaspace"}) {
    auto loaded = sluice::Tokenizer::load(std::string(SLUICE_FIXTURES "/tokenizers/") + name + ".json");
    SLUICE_CHECK(loaded.ok(), "(%s)", loaded.error().message.c_str());
    Kind& kind = all.emplace_back(Kind{name, std::move(*loaded), nullptr});
    kind.encoder = std::make_unique<sluice::Tokenizer::Encoder>(kind.tokenizer);
  }
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  std::string storage;
  const std::string_view valid = sluice::valid_utf8(text, storage);
  SLUICE_CHECK(sluice::valid_utf8_prefix(valid) == valid.size(), "not made valid");
  for (Kind& kind : kinds()) {
    std::vector<std::int32_t> ids, again;
    SLUICE_CHECK(kind.encoder->encode(text, false, ids).ok(), "(%s)", kind.name.c_str());
    SLUICE_CHECK(kind.encoder->encode(text, false, again).ok() && ids == again, "(%s)", kind.name.c_str());
    const std::string decoded = kind.tokenizer.decode(ids, false);
    SLUICE_CHECK(sluice::valid_utf8_prefix(decoded) == decoded.size(), "(%s)", kind.name.c_str());
    if (kind.name == "gpt2" || kind.name == "llama3" || kind.name == "smollm")
      SLUICE_CHECK(decoded == valid, "(%s)", kind.name.c_str());
    sluice::StreamingDecoder stream(kind.tokenizer, {});
    std::string streamed;
    for (std::size_t i = 0; i < ids.size() && i < 40; ++i) streamed += stream.push(ids[i]);
    streamed += stream.finish();
    SLUICE_CHECK(sluice::valid_utf8_prefix(streamed) == streamed.size(), "(%s)", kind.name.c_str());
  }
  return 0;
}
