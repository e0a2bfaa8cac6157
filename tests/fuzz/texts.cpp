// JSON lines, plain and packed: documents, or one line that names the place.
#include "io/tokens/text_source.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const sluice::fuzz::Folder folder;
  if (size == 0) return 0;
  // The first byte says which: what is packed, and how it is read.
  static constexpr const char* names[] = {"a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.txt.gz", "a.txt.zst", "a.txt"};
  const std::string name = names[data[0] % 6];
  sluice::TextSource::Options options;
  options.paths = {folder.write(name, {data + 1, size - 1})};
  options.part_bytes = data[0] >= 128 ? 7 : 0;
  options.document_bytes_max = 1u << 20;
  auto source = sluice::TextSource::open(options);
  if (!source.ok()) {
    sluice::fuzz::check_refusal(source.error());
    return 0;
  }
  sluice::TextPiece piece;
  for (;;) {
    const auto more = source->next(piece);
    if (!more.ok()) {
      sluice::fuzz::check_refusal(more.error());
      return 0;
    }
    if (!*more) return 0;
    std::string storage;
    std::string_view text;
    const sluice::Status read = source->text_of(piece, storage, text);
    if (!read.ok()) sluice::fuzz::check_refusal(read.error());
  }
}
