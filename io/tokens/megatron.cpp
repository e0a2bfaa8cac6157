#include "io/tokens/megatron.h"

#include <fmt/format.h>

#include "io/tokens/token_layout.h"

namespace sluice {
namespace {

/// The type of the tokens: their width and what they can hold. Negative ones are seen as too large when they are read.
Status set_type(TokenLayout& layout, std::uint8_t code) {
  switch (static_cast<MegatronType>(code)) {
    case MegatronType::uint8: layout.token_bytes = 1, layout.vocabulary = 1u << 8; return success();
    case MegatronType::int8: layout.token_bytes = 1, layout.vocabulary = 1u << 7; return success();
    case MegatronType::uint16: layout.token_bytes = 2, layout.vocabulary = 1u << 16; return success();
    case MegatronType::int16: layout.token_bytes = 2, layout.vocabulary = 1u << 15; return success();
    case MegatronType::int32: layout.token_bytes = 4, layout.vocabulary = 0x7fffffff; return success();
    case MegatronType::int64: break;
  }
  return bad_request(fmt::format(
      "has tokens of type {}, this program reads 1 (uint8), 2 (int8), 3 (int16), 4 (int32) and 8 (uint16)", code));
}

/// Sequences one after the other from the first byte of NAME.bin to its last.
Status check_sequences(std::span<const std::byte> index, const TokenLayout& layout, std::uint64_t data_bytes) {
  std::uint64_t expected = 0;
  for (std::uint64_t s = 0; s < layout.sequences; ++s) {
    const auto length = load_number<std::int32_t>(index, megatron_header_bytes + s * 4);
    const auto pointer = load_number<std::uint64_t>(index, layout.pointers_byte + s * 8);
    if (length < 0) return bad_request(fmt::format("gives sequence {} a length of {}", s, length));
    if (pointer != expected)
      return bad_request(
          fmt::format("puts sequence {} at byte {} and not at {}, behind the one before; write it anew "
                      "with Megatron's tools",
                      s, static_cast<std::int64_t>(pointer), expected));
    // Below 2^33 a sequence, on top of no more than data_bytes: no overflow.
    expected += static_cast<std::uint64_t>(length) * layout.token_bytes;
    if (expected > data_bytes)
      return bad_request(
          fmt::format("puts sequence {} beyond the {} bytes of its .bin; is that truncated?", s, data_bytes));
  }
  if (expected != data_bytes)
    return bad_request(
        fmt::format("knows {} of the {} bytes of its .bin; is it of another .bin?", expected, data_bytes));
  return success();
}

Status check_documents(std::span<const std::byte> index, const TokenLayout& layout) {
  std::uint64_t before = 0;
  for (std::uint64_t d = 0; d <= layout.documents; ++d) {
    const auto first = load_number<std::uint64_t>(index, layout.ends_byte + d * 8);
    if (first < before || first > layout.sequences || (d == 0 && first != 0))
      return bad_request(fmt::format("says that document {} begins with sequence {} of {}", d,
                                     static_cast<std::int64_t>(first), layout.sequences));
    before = first;
  }
  if (before != layout.sequences)
    return bad_request(fmt::format("has {} sequences and documents for {}", layout.sequences, before));
  return success();
}

}  // namespace

std::string megatron_name(const std::string& path) {
  for (const char* ending : {".bin", ".idx"})
    if (path.size() > 4 && path.ends_with(ending)) return path.substr(0, path.size() - 4);
  return path;
}

bool has_megatron_magic(std::span<const std::byte> begin) {
  return begin.size() >= megatron_magic_bytes && std::memcmp(begin.data(), megatron_magic, megatron_magic_bytes) == 0;
}

Result<TokenLayout> megatron_layout(std::span<const std::byte> index, std::uint64_t data_bytes) {
  if (!has_megatron_magic(index)) return bad_request("is not a Megatron index (wrong magic)");
  if (index.size() < megatron_header_bytes)
    return bad_request(fmt::format("is truncated: a Megatron index has a header of {} bytes, the file {}",
                                   megatron_header_bytes, index.size()));
  const auto version = load_number<std::uint64_t>(index, megatron_version_byte);
  if (version != 1) return bad_request(fmt::format("has version {}, this program reads version 1", version));
  TokenLayout layout;
  layout.format = TokenFormat::megatron;
  SLUICE_TRY(set_type(layout, load_number<std::uint8_t>(index, megatron_type_byte)));
  layout.sequences = load_number<std::uint64_t>(index, megatron_sequences_byte);
  const auto entries = load_number<std::uint64_t>(index, megatron_entries_byte);
  if (entries == 0) return bad_request("has no table of documents");
  std::uint64_t sequence_bytes = 0, entry_bytes = 0, needed = 0;
  if (__builtin_mul_overflow(layout.sequences, std::uint64_t{12}, &sequence_bytes) ||
      __builtin_mul_overflow(entries, std::uint64_t{8}, &entry_bytes) ||
      __builtin_add_overflow(sequence_bytes, entry_bytes, &needed) ||
      __builtin_add_overflow(needed, megatron_header_bytes, &needed) || needed > index.size())
    return bad_request(fmt::format("is truncated: {} sequences and {} documents do not fit in its {} bytes",
                                   layout.sequences, entries - 1, index.size()));
  if (needed != index.size())
    return bad_request(
        fmt::format("has {} bytes after its tables; the modes of multimodal data are not read", index.size() - needed));
  layout.pointers_byte = megatron_header_bytes + layout.sequences * 4;
  layout.ends_byte = layout.pointers_byte + layout.sequences * 8;
  layout.documents = entries - 1;
  layout.documents_known = true;
  SLUICE_TRY(check_sequences(index, layout, data_bytes));
  SLUICE_TRY(check_documents(index, layout));
  layout.count = data_bytes / layout.token_bytes;
  return layout;
}

}  // namespace sluice
