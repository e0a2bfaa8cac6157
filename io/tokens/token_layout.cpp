#include "io/tokens/token_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "io/checksum.h"
#include "io/tokens/token_file.h"
#include "io/tokens/token_header.h"

namespace sluice {

static_assert(std::endian::native == std::endian::little, "token files are little endian");

namespace {

// llm.c, dev/data/data_common.py (write_datafile) and llmc/dataloader.h: int32 header[256] with the magic, the version
// and the number of tokens; then uint16 tokens (GPT-2) or uint32 tokens (Llama 3).
constexpr std::uint32_t llm_c_gpt2_magic = 20240520, llm_c_llama3_magic = 20240801;
constexpr std::uint64_t llm_c_header_bytes = 1024;

/// Only an int32's worth of ids exist in this program.
constexpr std::uint64_t vocabulary_max = 0x7fffffff;

Error damaged(std::string message) { return {ErrorCode::damaged, std::move(message)}; }

Result<TokenHeader> read_header(std::span<const std::byte> file) {
  if (file.size() < sizeof(TokenHeader))
    return bad_request(fmt::format("is not a token file: {} bytes are fewer than its header has", file.size()));
  const auto h = load_number<TokenHeader>(file, 0);
  if (std::memcmp(h.magic, token_magic, sizeof h.magic) != 0) return bad_request("is not a token file (wrong magic)");
  if (h.schema_version == 0 || h.schema_version > token_file_schema_version)
    return bad_request(
        fmt::format("has schema version {}, this program reads 1 to {}", h.schema_version, token_file_schema_version));
  if (h.checksum != header_checksum(h)) return damaged("has a damaged header");
  if (file.size() < token_header_bytes(h.schema_version)) return damaged("is truncated: its header is not whole");
  if (h.token_bytes != 1 && h.token_bytes != 2 && h.token_bytes != 4)
    return bad_request(fmt::format("has tokens of {} bytes", h.token_bytes));
  if (h.vocabulary == 0 || h.vocabulary > vocabulary_max)
    return bad_request(fmt::format("has a vocabulary of {}", h.vocabulary));
  return h;
}

Status place_documents(TokenLayout& layout, const TokenHeader& h, std::uint64_t size) {
  layout.documents_known = true;
  layout.documents = h.documents;
  layout.ends_byte = table_offset(layout.content_end);
  const std::uint64_t room = size < layout.ends_byte ? 0 : (size - layout.ends_byte) / 8;
  if (h.documents > room)
    return damaged(fmt::format("is truncated: the ends of {} of {} documents are there", room, h.documents));
  // Without documents nothing need be there, nor what fills up to the table.
  if (size < layout.ends_byte) return damaged("is truncated: its table of documents is not there");
  layout.content_end = layout.ends_byte + h.documents * 8;
  return success();
}

/// From version 3 on: the mask behind the table of documents, and sequences that are full.
Status place_features(TokenLayout& layout, const TokenHeader& h, std::uint64_t size) {
  if ((h.flags & ~token_flag_mask) != 0)
    return bad_request(fmt::format("has the flags {:#x}, this program knows {:#x}", h.flags, token_flag_mask));
  if (h.sequence > 0 && h.count % h.sequence != 0)
    return bad_request(
        fmt::format("is packed for sequences of {} tokens and has {}, which do not fill them", h.sequence, h.count));
  layout.packed_sequence = h.sequence;
  if ((h.flags & token_flag_mask) == 0) return success();
  layout.mask_known = true;
  layout.mask_byte = layout.content_end;
  const std::uint64_t room = size - layout.mask_byte;
  if (room < mask_bytes(h.count))
    return damaged(fmt::format("is truncated: {} of {} bytes of its mask are there", room, mask_bytes(h.count)));
  layout.content_end += mask_bytes(h.count);
  return success();
}

/// From version 4 on. Returns where the file ends.
Result<std::uint64_t> place_sums(TokenLayout& layout, std::uint64_t size) {
  layout.sums_byte = table_offset(layout.content_end);
  const std::uint64_t room = size < layout.sums_byte ? 0 : (size - layout.sums_byte) / 8;
  if (size < layout.sums_byte || room < layout.blocks())
    return damaged(fmt::format("is truncated: {} of {} of its checksums are there", room, layout.blocks()));
  return layout.sums_byte + layout.blocks() * 8;
}

/// Where everything lies, by the header and the file's size alone.
Result<TokenLayout> place(const TokenHeader& h, std::uint64_t size) {
  TokenLayout layout;
  layout.version = h.schema_version;
  layout.token_bytes = h.token_bytes;
  layout.first_byte = token_header_bytes(h.schema_version);
  layout.count = h.count;
  layout.vocabulary = h.vocabulary;
  layout.vocabulary_known = true;
  const std::uint64_t room = (size - layout.first_byte) / h.token_bytes;
  if (h.count > room) return damaged(fmt::format("is truncated: {} of {} tokens are there", room, h.count));
  layout.content_end = layout.first_byte + h.count * h.token_bytes;
  if (has_table(h)) SLUICE_TRY(place_documents(layout, h, size));
  if (h.schema_version >= 3) SLUICE_TRY(place_features(layout, h, size));
  const char* last = layout.mask_known ? "its mask" : layout.documents_known ? "its last document" : "its last token";
  std::uint64_t end = layout.content_end;
  if (h.schema_version >= 4) {
    SLUICE_ASSIGN(end, place_sums(layout, size));
    last = "its checksums";
  }
  if (size != end) return damaged(fmt::format("has bytes after {}", last));
  return layout;
}

Status check_sums(std::span<const std::byte> file, const TokenLayout& layout) {
  if (layout.sums_byte == 0) return success();
  const auto sealed = load_number<SealedTokenHeader>(file, 0);
  StreamingChecksum sum;
  sum.add(file.subspan(layout.sums_byte));
  if (layout.tokenizer != 0) sum.add(std::as_bytes(std::span(&layout.tokenizer, 1)));
  if (sum.value() == sealed.sums) return success();
  return damaged("has a damaged table of checksums");
}

/// What else is looked at when the file is opened: ends of the table of documents and of the mask.
Status check_ends(std::span<const std::byte> file, const TokenLayout& layout) {
  const auto check_byte = [&](std::uint64_t at) {
    return layout.sums_byte == 0 ? success() : check_block(file, layout, layout.block_of(at));
  };
  if (layout.documents_known) {
    std::uint64_t last = 0;
    if (layout.documents > 0) {
      const std::uint64_t at = layout.ends_byte + (layout.documents - 1) * 8;
      SLUICE_TRY(check_byte(at));
      last = load_number<std::uint64_t>(file, at);
    }
    if (last != layout.count)
      return damaged(fmt::format("has {} tokens, but its last document ends at {}", layout.count, last));
  }
  if (!layout.mask_known || layout.count % 8 == 0) return success();
  const std::uint64_t at = layout.mask_byte + mask_bytes(layout.count) - 1;
  SLUICE_TRY(check_byte(at));
  if (load_number<std::uint8_t>(file, at) >> layout.count % 8 == 0) return success();
  return damaged(fmt::format("has a mask for more than its {} tokens", layout.count));
}

}  // namespace

const char* format_name(TokenFormat format) {
  switch (format) {
    case TokenFormat::sluice: return "sluice";
    case TokenFormat::megatron: return "megatron";
    case TokenFormat::llm_c: return "llm.c";
    case TokenFormat::nanogpt: return "nanogpt";
  }
  return "";
}

bool has_table(const TokenHeader& h) {
  if (h.schema_version < 4) return h.schema_version > 1;
  return h.documents > 0 || h.flags != 0 || h.sequence > 0;
}

TokenHeader unsealed(TokenHeader h) {
  if (h.schema_version < 4) return h;
  h.schema_version = h.flags != 0 || h.sequence > 0 ? 3 : h.documents > 0 ? 2 : 1;
  h.checksum = header_checksum(h);
  return h;
}

std::uint64_t TokenLayout::blocks() const {
  return sums_byte == 0 ? 0 : (sums_byte - first_byte + token_block_bytes - 1) / token_block_bytes;
}

std::uint64_t TokenLayout::block_of(std::uint64_t byte) const { return (byte - first_byte) / token_block_bytes; }

Status check_block(std::span<const std::byte> file, const TokenLayout& layout, std::uint64_t block) {
  const std::uint64_t begin = layout.first_byte + block * token_block_bytes;
  const std::uint64_t end = std::min(begin + token_block_bytes, layout.sums_byte);
  if (checksum(file.subspan(begin, end - begin)) == load_number<std::uint64_t>(file, layout.sums_byte + block * 8))
    return success();
  return damaged(fmt::format("is damaged: its bytes {} to {} are not those that were written (block {} of {})", begin,
                             end - 1, block, layout.blocks()));
}

Result<TokenLayout> sluice_layout(std::span<const std::byte> file) {
  SLUICE_ASSIGN(const TokenHeader header, read_header(file));
  SLUICE_ASSIGN(TokenLayout layout, place(header, file.size()));
  if (header.schema_version >= 5) layout.tokenizer = load_number<NamedTokenHeader>(file, 0).tokenizer;
  if (header.schema_version >= 5 && layout.tokenizer == 0) return damaged("does not name its tokenizer");
  SLUICE_TRY(check_sums(file, layout));
  SLUICE_TRY(check_ends(file, layout));
  return layout;
}

bool has_llm_c_magic(std::span<const std::byte> begin) {
  if (begin.size() < 4) return false;
  const auto magic = load_number<std::uint32_t>(begin, 0);
  return magic == llm_c_gpt2_magic || magic == llm_c_llama3_magic;
}

Result<TokenLayout> llm_c_layout(std::span<const std::byte> file) {
  if (file.size() < llm_c_header_bytes)
    return bad_request(
        fmt::format("is truncated: an llm.c header has {} bytes, the file {}", llm_c_header_bytes, file.size()));
  const bool llama3 = load_number<std::uint32_t>(file, 0) == llm_c_llama3_magic;
  const auto version = load_number<std::int32_t>(file, 4);
  if (version != (llama3 ? 7 : 1))
    return bad_request(
        fmt::format("is an llm.c file of version {}, this program reads version {}", version, llama3 ? 7 : 1));
  const auto count = load_number<std::int32_t>(file, 8);
  if (count < 0) return bad_request(fmt::format("says that it has {} tokens", count));
  TokenLayout layout;
  layout.format = TokenFormat::llm_c;
  layout.token_bytes = llama3 ? 4 : 2;
  layout.first_byte = llm_c_header_bytes;
  layout.count = static_cast<std::uint64_t>(count);
  layout.vocabulary = llama3 ? vocabulary_max : 1u << 16;
  const std::uint64_t room = (file.size() - llm_c_header_bytes) / layout.token_bytes;
  if (layout.count > room) return bad_request(fmt::format("is truncated: {} of {} tokens are there", room, count));
  if (file.size() != llm_c_header_bytes + layout.count * layout.token_bytes)
    return bad_request("has bytes after its last token");
  return layout;
}

// nanoGPT, data/*/prepare.py: np.memmap(dtype=uint16) without a header.
Result<TokenLayout> nanogpt_layout(std::span<const std::byte> file) {
  if (file.size() % 2 != 0)
    return bad_request(fmt::format(
        "has {} bytes, which are no uint16 tokens; a text with the ending .bin needs another name", file.size()));
  TokenLayout layout;
  layout.format = TokenFormat::nanogpt;
  layout.token_bytes = 2;
  layout.count = file.size() / 2;
  layout.vocabulary = 1u << 16;
  return layout;
}

}  // namespace sluice
