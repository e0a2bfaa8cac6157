#include "io/token_layout.h"

#include <fmt/format.h>

#include <bit>

#include "io/token_file.h"
#include "io/token_header.h"

namespace sluice {

static_assert(std::endian::native == std::endian::little, "token files are little endian");

namespace {

// llm.c, dev/data/data_common.py (write_datafile) and llmc/dataloader.h: int32 header[256] with the magic, the version
// and the number of tokens; then uint16 tokens (GPT-2) or uint32 tokens (Llama 3).
constexpr std::uint32_t llm_c_gpt2_magic = 20240520, llm_c_llama3_magic = 20240801;
constexpr std::uint64_t llm_c_header_bytes = 1024;

/// Only an int32's worth of ids exist in this program.
constexpr std::uint64_t vocabulary_max = 0x7fffffff;

Result<TokenLayout> with_documents(TokenLayout layout, const TokenHeader& h, std::span<const std::byte> file) {
  layout.documents_known = true;
  layout.documents = h.documents;
  layout.ends_byte = table_offset(h.count * h.token_bytes);
  const std::uint64_t room = file.size() < layout.ends_byte ? 0 : (file.size() - layout.ends_byte) / 8;
  if (h.documents > room)
    return bad_request(fmt::format("is truncated: the ends of {} of {} documents are there", room, h.documents));
  if (h.schema_version == 2 && file.size() != layout.ends_byte + h.documents * 8)
    return bad_request("has bytes after its last document");
  const std::uint64_t last =
      h.documents == 0 ? 0 : load_number<std::uint64_t>(file, layout.ends_byte + (h.documents - 1) * 8);
  if (last != h.count)
    return bad_request(fmt::format("has {} tokens, but its last document ends at {}", h.count, last));
  return layout;
}

/// Version 3: the mask behind the table of documents, and sequences that are full.
Result<TokenLayout> with_features(TokenLayout layout, const TokenHeader& h, std::span<const std::byte> file) {
  if ((h.flags & ~token_flag_mask) != 0)
    return bad_request(fmt::format("has the flags {:#x}, this program knows {:#x}", h.flags, token_flag_mask));
  if (h.sequence > 0 && h.count % h.sequence != 0)
    return bad_request(
        fmt::format("is packed for sequences of {} tokens and has {}, which do not fill them", h.sequence, h.count));
  layout.packed_sequence = h.sequence;
  const std::uint64_t documents_end = layout.ends_byte + h.documents * 8;
  if ((h.flags & token_flag_mask) == 0 && file.size() != documents_end)
    return bad_request("has bytes after its last document");
  if ((h.flags & token_flag_mask) == 0) return layout;
  layout.mask_known = true;
  layout.mask_byte = documents_end;
  const std::uint64_t room = file.size() - layout.mask_byte;
  if (room < mask_bytes(h.count))
    return bad_request(fmt::format("is truncated: {} of {} bytes of its mask are there", room, mask_bytes(h.count)));
  if (h.count % 8 != 0 &&
      load_number<std::uint8_t>(file, layout.mask_byte + mask_bytes(h.count) - 1) >> h.count % 8 != 0)
    return bad_request(fmt::format("has a mask for more than its {} tokens", h.count));
  if (room != mask_bytes(h.count)) return bad_request("has bytes after its mask");
  return layout;
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

Result<TokenLayout> sluice_layout(std::span<const std::byte> file) {
  if (file.size() < sizeof(TokenHeader))
    return bad_request(fmt::format("is not a token file: {} bytes are fewer than its header has", file.size()));
  const auto h = load_number<TokenHeader>(file, 0);
  if (std::memcmp(h.magic, token_magic, sizeof h.magic) != 0) return bad_request("is not a token file (wrong magic)");
  if (h.schema_version == 0 || h.schema_version > token_file_schema_version)
    return bad_request(
        fmt::format("has schema version {}, this program reads 1 to {}", h.schema_version, token_file_schema_version));
  if (h.checksum != header_checksum(h)) return bad_request("has a damaged header");
  if (h.token_bytes != 1 && h.token_bytes != 2 && h.token_bytes != 4)
    return bad_request(fmt::format("has tokens of {} bytes", h.token_bytes));
  if (h.vocabulary == 0 || h.vocabulary > vocabulary_max)
    return bad_request(fmt::format("has a vocabulary of {}", h.vocabulary));
  const std::uint64_t room = (file.size() - sizeof h) / h.token_bytes;
  if (h.count > room) return bad_request(fmt::format("is truncated: {} of {} tokens are there", room, h.count));
  TokenLayout layout;
  layout.token_bytes = h.token_bytes;
  layout.first_byte = sizeof h;
  layout.count = h.count;
  layout.vocabulary = h.vocabulary;
  layout.vocabulary_known = true;
  if (h.schema_version > 1) {
    SLUICE_ASSIGN(layout, with_documents(layout, h, file));
    return h.schema_version > 2 ? with_features(layout, h, file) : layout;
  }
  if (file.size() - sizeof h != h.count * h.token_bytes) return bad_request("has bytes after its last token");
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
