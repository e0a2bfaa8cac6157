// What a checkpoint is: its tensors, and where in which file each element of each state lies (docs/checkpoint.md).
//
// A checkpoint is a directory "step-N" with a file of states for each rank that wrote one (HDF5), the checksums of its
// blocks beside it, and manifest.json, which alone says that the checkpoint is whole and what it is. In memory nothing
// is known here of models or ranks: a file has units, a unit has a flat buffer for each state, and pieces say which
// elements of it are which rectangle of which tensor.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/dtype.h"
#include "sluice/moments.h"
#include "sluice/plan.h"
#include "sluice/status.h"

namespace sluice {

constexpr int checkpoint_schema = 1;
constexpr const char* manifest_name = "manifest.json";
constexpr const char* master_name = "model.h5";  ///< whole tensors, as views of the files
constexpr std::uint64_t state_alignment_bytes = 4096;
constexpr std::uint64_t sum_block_bytes_max = 4u << 20;

/// Taken as a matrix: all dimensions but the last are its rows.
struct StoredTensor {
  std::string name;
  std::vector<std::uint64_t> shape;
  std::uint64_t rows() const;
  std::uint64_t columns() const { return shape.empty() ? 1 : shape.back(); }
  bool operator==(const StoredTensor&) const = default;
};

/// A rectangle of a tensor: its row r begins at element `at` + r x `stride` of the unit's flat buffer.
struct TensorPiece {
  std::uint32_t tensor = 0;
  std::uint64_t row = 0, column = 0;  ///< of the tensor
  std::uint64_t rows = 0, columns = 0;
  std::uint64_t at = 0, stride = 0;
  std::uint64_t end() const { return at + (rows - 1) * stride + columns; }
  bool operator==(const TensorPiece&) const = default;
};

/// One state of a unit's flat buffer: consecutive bytes of the file.
struct StoredState {
  StateKind kind = StateKind::parameter;
  std::uint64_t offset = 0, bytes = 0;  ///< in the file: a multiple of state_alignment_bytes
  std::uint32_t block_bytes = 0;        ///< that each checksum is of; the last block may be shorter
  std::uint64_t first_sum = 0;          ///< in the file's list of checksums
  std::uint64_t blocks() const { return (bytes + block_bytes - 1) / block_bytes; }
  bool operator==(const StoredState&) const = default;
};

struct StoredUnit {
  std::string name;
  std::uint64_t numel = 0;  ///< of the flat buffer
  std::vector<TensorPiece> pieces;
  std::vector<StoredState> states;
  bool operator==(const StoredUnit&) const = default;
};

struct StoredFile {
  std::string name;             ///< "rank-00000.h5"; its checksums are in "rank-00000.sums"
  std::uint64_t bytes = 0;      ///< of the file
  std::uint64_t structure = 0;  ///< XXH3 of all its bytes that are not of a state, in order
  std::uint64_t sums = 0;       ///< XXH3 of the file of checksums
  std::vector<StoredUnit> units;
  bool operator==(const StoredFile&) const = default;

  std::uint64_t sum_count() const;
  std::uint64_t state_bytes() const;
  std::string sums_name() const;
  /// Of the dataset of a state: "/L0.attention/exp_avg".
  static std::string dataset(const StoredUnit& unit, const StoredState& state) {
    return "/" + unit.name + "/" + state_names[static_cast<std::size_t>(state.kind)];
  }
};

/// How the elements of states are stored: what they mean is in docs/checkpoint.md.
struct StoredFormats {
  Dtype parameters = Dtype::f32;  ///< bf16: there is a remainder, with which it is the fp32 master
  MomentFormat moments = MomentFormat::f32;
  std::uint64_t moment_group_numel = 1;  ///< of int8: see offload/state/moment_layout.h
  bool operator==(const StoredFormats&) const = default;
};

/// Of all of them.
std::uint64_t state_bytes(std::span<const StoredFile> files);

struct Manifest {
  std::uint64_t step = 0;
  StoredFormats formats;
  std::vector<StoredTensor> tensors;
  std::vector<StoredFile> files;
  std::string model;  ///< a JSON object: the Hugging Face configuration
  std::string run;    ///< a JSON object: who wrote it, and what a run needs to go on
  bool operator==(const Manifest&) const = default;

  std::uint64_t state_bytes() const { return sluice::state_bytes(files); }
};

/// Of the flat buffer's elements in this state.
std::uint64_t stored_bytes(const StoredFormats& formats, StateKind kind, std::uint64_t numel);

/// The text of manifest.json, which ends with its own checksum.
std::string manifest_text(const Manifest& manifest);
/// `body` ends behind the comma of its last field; gets the checksum as another one, and the closing brace.
std::string sealed_manifest(std::string body);
/// Nothing of it is believed: bad_request, naming the field, for what a writer would not have written: another schema,
/// a text that its checksum is not of, places outside of files or of each other's, sizes that overflow, elements of
/// tensors that are missing or there twice and not the same, names with slashes.
Result<Manifest> parse_manifest(std::string_view text);

}  // namespace sluice
