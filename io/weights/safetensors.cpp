#include "io/weights/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "io/files/json_guard.h"
#include "io/files/os_error.h"
#include "io/weights/safetensors_header.h"

namespace sluice {
namespace {

using safetensors::header_bytes_max;

constexpr std::string_view index_suffix = ".safetensors.index.json";

Error wrong_file(const std::string& path, const std::string& what) {
  return bad_request(fmt::format("{}: {}", path, what));
}

/// The header's text of a file of `file_bytes`.
Result<std::string> read_header(int fd, const std::string& path, std::uint64_t file_bytes) {
  if (file_bytes < 8) return wrong_file(path, "is too short for safetensors");
  std::uint64_t header_bytes = 0;
  SLUICE_TRY(read_exactly(fd, path, 0, std::as_writable_bytes(std::span(&header_bytes, 1))));
  if (header_bytes > header_bytes_max)
    return wrong_file(path, fmt::format("header of {} bytes is larger than {}", header_bytes, header_bytes_max));
  if (header_bytes > file_bytes - 8)
    return wrong_file(path, fmt::format("is truncated: header of {} bytes in a file of {}", header_bytes, file_bytes));
  std::string text(header_bytes, '\0');
  SLUICE_TRY(read_exactly(fd, path, 8, std::as_writable_bytes(std::span(text))));
  if (text.empty() || text[0] != '{') return wrong_file(path, "header does not begin with '{'");
  return text;
}

/// Open `name` beneath the directory; no link is followed on the way.
Result<int> open_beneath(int directory_fd, const std::string& directory, const std::string& name) {
  open_how how{};
  how.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS;
  const long fd = syscall(SYS_openat2, directory_fd, name.c_str(), &how, sizeof how);
  if (fd >= 0) return static_cast<int>(fd);
  if (errno == ELOOP)
    return bad_request(
        fmt::format("{}/{} is a symbolic link, which is not followed: copy the files (cp -L)", directory, shown(name)));
  if (errno == EXDEV) return bad_request(fmt::format("'{}' leads out of {}", shown(name), directory));
  return os_error(fmt::format("can not open {}/{}", directory, shown(name)), errno);
}

}  // namespace

const char* tensor_dtype_name(TensorDtype t) {
  constexpr const char* names[] = {"BOOL", "U8",  "I8",  "F8_E4M3", "F8_E5M2", "I16", "U16", "F16",
                                   "BF16", "I32", "U32", "F32",     "I64",     "U64", "F64"};
  return names[static_cast<std::size_t>(t)];
}

std::uint64_t tensor_dtype_bytes(TensorDtype t) {
  if (t <= TensorDtype::f8_e5m2) return 1;
  if (t <= TensorDtype::bf16) return 2;
  return t <= TensorDtype::f32 ? 4 : 8;
}

std::optional<Dtype> to_dtype(TensorDtype t) {
  switch (t) {
    case TensorDtype::f32: return Dtype::f32;
    case TensorDtype::bf16: return Dtype::bf16;
    case TensorDtype::f16: return Dtype::f16;
    case TensorDtype::i32: return Dtype::i32;
    default: return std::nullopt;
  }
}

TensorDtype to_tensor_dtype(Dtype t) {
  switch (t) {
    case Dtype::f32: return TensorDtype::f32;
    case Dtype::bf16: return TensorDtype::bf16;
    case Dtype::f16: return TensorDtype::f16;
    case Dtype::i32: break;
  }
  return TensorDtype::i32;
}

SafeTensors::~SafeTensors() {
  for (const ReadAhead::File& file : files_) close(file.fd);
}

SafeTensors& SafeTensors::operator=(SafeTensors&& other) noexcept {
  std::swap(files_, other.files_);
  std::swap(entries_, other.entries_);
  return *this;
}

Status SafeTensors::add_file(int fd, const std::string& path) {
  const auto index = static_cast<std::uint32_t>(files_.size());
  files_.push_back({fd, path});
  struct stat st {};
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) return wrong_file(path, "is not a regular file");
  const auto file_bytes = static_cast<std::uint64_t>(st.st_size);
  SLUICE_ASSIGN(const std::string header, read_header(fd, path, file_bytes));
  const std::uint64_t data_start = 8 + header.size();
  auto entries = safetensors::parse_header(header, file_bytes - data_start);
  if (!entries.ok()) return entries.error().in(path);
  for (auto& [name, entry] : *entries) {
    entry.offset += data_start;
    entry.file = index;
  }
  entries_.merge(*entries);
  if (entries->empty()) return success();
  return wrong_file(path, fmt::format("tensor '{}' is also in another file", shown(entries->begin()->first)));
}

Status SafeTensors::add_indexed(const std::string& index_path) {
  SLUICE_ASSIGN(const std::string text, read_file(index_path, header_bytes_max));
  auto index = safetensors::parse_index(text);
  if (!index.ok()) return index.error().in(index_path);
  const std::size_t slash = index_path.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : index_path.substr(0, slash);
  const int directory_fd = ::open(directory.empty() ? "/" : directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (directory_fd < 0) return wrong_file(directory, std::strerror(errno));
  const std::string prefix = directory + "/";
  Status status;
  for (const std::string& name : index->files) {
    auto fd = open_beneath(directory_fd, directory, name);
    status = fd.ok() ? add_file(*fd, prefix + name) : Status(fd.error());
    if (!status.ok()) break;
  }
  close(directory_fd);
  SLUICE_TRY(std::move(status));
  for (const auto& [tensor, file] : index->tensors) {
    const TensorEntry* entry = find(tensor);
    if (entry == nullptr || entry->file != file)
      return wrong_file(index_path, fmt::format("tensor '{}' is not in {}", shown(tensor), shown(index->files[file])));
  }
  return success();
}

Result<SafeTensors> SafeTensors::open(const std::string& path) {
  SafeTensors model;
  std::string target = path;
  struct stat st {};
  if (stat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode)) {
    target = path + "/model.safetensors";
    if (access(target.c_str(), F_OK) != 0) target = path + "/model" + std::string(index_suffix);
    if (access(target.c_str(), F_OK) != 0)
      return bad_request(fmt::format("{} has neither model.safetensors nor model{}", path, index_suffix));
  }
  if (target.ends_with(index_suffix)) {
    SLUICE_TRY(model.add_indexed(target));
    return model;
  }
  const int fd = ::open(target.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return os_error(fmt::format("can not open {}", target), errno);
  SLUICE_TRY(model.add_file(fd, target));
  return model;
}

const TensorEntry* SafeTensors::find(std::string_view name) const {
  const auto it = entries_.find(name);
  return it == entries_.end() ? nullptr : &it->second;
}

Status SafeTensors::read(const TensorEntry& entry, std::uint64_t byte_offset, std::span<std::byte> out) const {
  SLUICE_CHECK(byte_offset <= entry.bytes && out.size() <= entry.bytes - byte_offset, "[%llu, +%zu) of %llu bytes",
               static_cast<unsigned long long>(byte_offset), out.size(), static_cast<unsigned long long>(entry.bytes));
  const ReadAhead::File& file = files_[entry.file];
  return read_exactly(file.fd, file.path, entry.offset + byte_offset, out);
}

}  // namespace sluice
