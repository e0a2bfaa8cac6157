// Any bytes as text, through a tokenizer of every kind: the same ids again, and byte-level BPE loses nothing.
#include <iterator>
#include <memory>

#include "io/tokenizer/streaming_decoder.h"
#include "io/tokenizer/unicode.h"
#include "tests/fuzz/input.h"

namespace {

using sluice::Tokenizer;

struct Kind {
  std::string name;
  bool keeps_all = false;  ///< of valid text
  Tokenizer tokenizer;
  std::unique_ptr<Tokenizer::Encoder> encoder;
};

Kind make(const char* name, bool keeps_all) {
  auto loaded = Tokenizer::load(std::string(SLUICE_FIXTURES "/tokenizers/") + name + ".json");
  SLUICE_CHECK(loaded.ok(), "(%s)", loaded.error().message.c_str());
  return {name, keeps_all, std::move(*loaded), nullptr};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Kind kinds[] = {make("gpt2", true),     make("llama3", true),    make("qwen2", false),
                         make("smollm", true),   make("llama2", false),   make("mistral", false),
                         make("options", false), make("metaspace", false)};
  if (size == 0) return 0;
  // The first byte says which: eight inputs of one kind find more than one input of eight.
  Kind& kind = kinds[data[0] % std::size(kinds)];
  if (kind.encoder == nullptr) kind.encoder = std::make_unique<Tokenizer::Encoder>(kind.tokenizer);
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::string storage;
  const std::string_view valid = sluice::valid_utf8(text, storage);
  SLUICE_CHECK(sluice::valid_utf8_prefix(valid) == valid.size(), "not made valid");
  std::vector<std::int32_t> ids, again;
  SLUICE_CHECK(kind.encoder->encode(text, false, ids).ok(), "(%s)", kind.name.c_str());
  SLUICE_CHECK(kind.encoder->encode(text, false, again).ok() && ids == again, "(%s)", kind.name.c_str());
  const std::string decoded = kind.tokenizer.decode(ids, false);
  SLUICE_CHECK(sluice::valid_utf8_prefix(decoded) == decoded.size(), "(%s)", kind.name.c_str());
  SLUICE_CHECK(!kind.keeps_all || decoded == valid, "(%s)", kind.name.c_str());
  sluice::StreamingDecoder stream(kind.tokenizer, {});
  std::string streamed;
  // A stream remembers eight tokens: it has forgotten some, and all after is the same.
  for (std::size_t i = 0; i < ids.size() && i < 16; ++i) streamed += stream.push(ids[i]);
  streamed += stream.finish();
  SLUICE_CHECK(sluice::valid_utf8_prefix(streamed) == streamed.size(), "(%s)", kind.name.c_str());
  return 0;
}
