// Where tokens and the ends of documents lie in a file, for each format that is read. Files are untrusted: what a
// header says is checked against the file before anything is looked at, and nothing here allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "sluice/status.h"

namespace sluice {

enum class TokenFormat {
  sluice,    ///< io/tokens/token_file.h
  megatron,  ///< Megatron-LM's indexed dataset: NAME.bin and NAME.idx
  llm_c,     ///< llm.c: 256 int32 and the tokens
  nanogpt,   ///< nanoGPT: uint16 tokens and nothing else, known by the ending .bin alone
};
const char* format_name(TokenFormat format);

struct TokenLayout {
  TokenFormat format = TokenFormat::sluice;
  std::uint32_t version = 0;  ///< of sluice's own format; 0: another one
  std::uint32_t token_bytes = 1;
  std::uint64_t first_byte = 0;  ///< of the tokens, in their file
  std::uint64_t count = 0;
  std::uint64_t vocabulary = 0;   ///< where the format does not say: what its type of token can hold
  bool vocabulary_known = false;  ///< the format says it
  bool documents_known = false;   ///< else the file is one document
  std::uint64_t documents = 0;
  std::uint64_t ends_byte = 0;  ///< sluice: of the table of ends. Megatron: of the indices of documents, in the index
  std::uint64_t pointers_byte = 0, sequences = 0;  ///< Megatron: of the sequences' pointers, in the index
  bool mask_known = false;                         ///< the file says which tokens count in the loss
  std::uint64_t mask_byte = 0;                     ///< of that mask
  std::uint64_t packed_sequence = 0;               ///< no document crosses a multiple of it; 0: nothing is said
  std::uint64_t content_end = 0;  ///< sluice: behind the last byte of tokens, table of documents and mask
  std::uint64_t sums_byte = 0;    ///< sluice: of the checksums of blocks; 0: there are none
  std::uint64_t tokenizer = 0;    ///< sluice: which one made the tokens; 0: nothing is said

  /// Blocks are of the bytes [first_byte, sums_byte).
  std::uint64_t blocks() const;
  std::uint64_t block_of(std::uint64_t byte) const;
};

/// `block` < layout.blocks() is what was written. damaged, to follow the file's name.
Status check_block(std::span<const std::byte> file, const TokenLayout& layout, std::uint64_t block);

/// A little-endian number at any byte; the caller has checked that it is there.
template <class T>
T load_number(std::span<const std::byte> bytes, std::uint64_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

/// bad_request with what is wrong, to follow the file's name ("is truncated: ..."); damaged where it is not as somebody
/// has written it. In constant time, but for 8 bytes of each 64 KiB of sluice's own, which are verified.
Result<TokenLayout> sluice_layout(std::span<const std::byte> file);
Result<TokenLayout> llm_c_layout(std::span<const std::byte> file);
Result<TokenLayout> nanogpt_layout(std::span<const std::byte> file);
/// `index`: NAME.idx. Sequences must lie in NAME.bin one after the other, as Megatron writes them: the index is read
/// once from end to end, 20 bytes a document.
Result<TokenLayout> megatron_layout(std::span<const std::byte> index, std::uint64_t data_bytes);

bool has_llm_c_magic(std::span<const std::byte> begin);
bool has_megatron_magic(std::span<const std::byte> begin);

}  // namespace sluice
