// Hugging Face safetensors (github.com/huggingface/safetensors): reading untrusted files, one or sharded by an index,
// and writing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/files/publish.h"
#include "io/weights/read_ahead.h"
#include "io/weights/stream_writer.h"
#include "sluice/dtype.h"
#include "sluice/status.h"

namespace sluice {

/// Element types that the format knows.
enum class TensorDtype : std::uint8_t {
  boolean,
  u8,
  i8,
  f8_e4m3,
  f8_e5m2,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  i64,
  u64,
  f64
};
const char* tensor_dtype_name(TensorDtype t);  ///< as in the file: "BF16"
std::uint64_t tensor_dtype_bytes(TensorDtype t);
std::optional<Dtype> to_dtype(TensorDtype t);  ///< f32, bf16, f16, i32
TensorDtype to_tensor_dtype(Dtype t);

struct TensorEntry {
  std::string name;
  TensorDtype dtype = TensorDtype::f32;
  std::vector<std::uint64_t> shape;
  std::uint64_t numel = 1;
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;  ///< in the file
  std::uint32_t file = 0;    ///< index of the shard
};

/// The tensors of one file or of all shards of a model. Move-only.
class SafeTensors {
 public:
  /// `path`: a .safetensors file, a .safetensors.index.json file, or a directory with model.safetensors or
  /// model.safetensors.index.json. Shards named by an index are opened beneath its directory, and no link on the way is
  /// followed, wherever it leads: an index is data, and must not choose what else is read. A file that the caller names
  /// may be a link. bad_request for everything that is wrong with the files; only headers are read.
  static Result<SafeTensors> open(const std::string& path);

  SafeTensors() = default;
  ~SafeTensors();
  SafeTensors(SafeTensors&& other) noexcept = default;
  SafeTensors& operator=(SafeTensors&& other) noexcept;

  /// Null when there is none.
  const TensorEntry* find(std::string_view name) const;
  /// In order of name.
  const std::map<std::string, TensorEntry, std::less<>>& entries() const { return entries_; }
  /// Bytes [byte_offset, byte_offset + out.size()) of the tensor's data. Thread-safe.
  Status read(const TensorEntry& entry, std::uint64_t byte_offset, std::span<std::byte> out) const;
  /// The files that TensorEntry::file counts, open: for who reads much of them ahead.
  std::span<const ReadAhead::File> files() const { return files_; }

 private:
  Status add_file(int fd, const std::string& path);
  Status add_indexed(const std::string& index_path);
  std::vector<ReadAhead::File> files_;
  std::map<std::string, TensorEntry, std::less<>> entries_;
};

/// Writes one file that appears when finish() succeeds.
class SafeTensorsWriter {
 public:
  struct Tensor {
    std::string name;
    TensorDtype dtype;
    std::vector<std::uint64_t> shape;
  };
  static Result<SafeTensorsWriter> create(const std::string& path, const std::vector<Tensor>& tensors,
                                          const std::map<std::string, std::string>& metadata = {});
  /// Part of a tensor's data. All of the data in the order of the tensors: a file is one stream.
  Status write(std::string_view name, std::uint64_t byte_offset, std::span<const std::byte> data);
  Status finish();

 private:
  struct Place {
    std::uint64_t offset, bytes;  ///< in the file
  };
  AtomicFile file_;
  std::unique_ptr<StreamWriter> stream_;  ///< into file_
  std::map<std::string, Place, std::less<>> places_;
};

}  // namespace sluice
