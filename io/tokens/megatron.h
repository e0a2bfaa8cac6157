// Megatron-LM's indexed dataset: NAME.bin holds tokens, NAME.idx says where sequences and documents begin.
//
// NAME.idx, little endian, unaligned, as megatron/core/datasets/indexed_dataset.py (_IndexWriter, _IndexReader) has it:
// 9 bytes "MMIDIDX\0\0", u64 version 1, u8 type of the tokens, u64 sequences, u64 entries of the last table, then i32
// tokens of each sequence, i64 byte of each sequence in NAME.bin, i64 first sequence of each document and, at the end,
// the number of sequences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace sluice {

constexpr char megatron_magic[9] = "MMIDIDX\0";  ///< with the string's own zero
constexpr std::uint64_t megatron_magic_bytes = 9, megatron_header_bytes = 34;
constexpr std::uint64_t megatron_version_byte = 9, megatron_type_byte = 17, megatron_sequences_byte = 18,
                        megatron_entries_byte = 26;
/// The types (DType there) that hold tokens; 6 and 7 are floating point.
enum class MegatronType : std::uint8_t { uint8 = 1, int8 = 2, int16 = 3, int32 = 4, int64 = 5, uint16 = 8 };

/// NAME of NAME, NAME.bin and NAME.idx.
std::string megatron_name(const std::string& path);

}  // namespace sluice
