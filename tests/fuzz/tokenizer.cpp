// tokenizer.json: refused in one line, or it encodes and decodes.
#include "io/tokenizer/tokenizer.h"

#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto tokenizer =
      sluice::Tokenizer::parse(std::string_view(reinterpret_cast<const char*>(data), size), "tokenizer.json");
  if (!tokenizer.ok()) {
    sluice::fuzz::check_refusal(tokenizer.error());
    return 0;
  }
  sluice::Tokenizer::Encoder encoder(*tokenizer);
  std::vector<std::int32_t> ids;
  // A pattern may need too many steps: that is said, and nothing else goes wrong.
  if (!encoder.encode("ab  a\n12 <s>\xc3\xa9 \xe2\x96\x81z", true, ids).ok()) return 0;
  for (const std::int32_t id : ids)
    SLUICE_CHECK(id >= 0 && (static_cast<std::uint64_t>(id) < tokenizer->vocabulary() || tokenizer->token(id).empty()),
                 "id %d", id);
  tokenizer->decode(ids, false);
  return 0;
}
