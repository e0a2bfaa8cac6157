#include "io/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "io/json_guard.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t header_bytes_max = 100'000'000;  // the reference implementation's
constexpr std::uint64_t shape_rank_max = 16;
constexpr std::uint64_t values_max = 1u << 20;  // some 100,000 tensors
constexpr std::string_view index_suffix = ".safetensors.index.json";

/// `what` may quote names from the file: kept to one line.
Error wrong_file(const std::string& path, std::string what) {
  for (char& c : what)
    if (static_cast<unsigned char>(c) < 0x20) c = '?';
  return bad_request(fmt::format("{}: {}", path, what));
}

Status read_exactly(int fd, const std::string& path, std::uint64_t offset, std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t n = pread(fd, out.data(), out.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fault(fmt::format("{}: read at offset {} failed: {}", path, offset, std::strerror(errno)));
    if (n == 0) return fault(fmt::format("{}: ends at offset {}: it was changed while being read", path, offset));
    out = out.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  return success();
}

std::optional<TensorDtype> parse_dtype(std::string_view name) {
  for (int i = 0; i <= static_cast<int>(TensorDtype::f64); ++i)
    if (name == tensor_dtype_name(static_cast<TensorDtype>(i))) return static_cast<TensorDtype>(i);
  return std::nullopt;
}

/// A tensor of the header, its offset still relative to the data. Empty message if it is sound.
std::string parse_entry(const Json& value, std::uint64_t data_bytes, TensorEntry& entry) {
  if (!value.is_object() || value.size() != 3) return "does not have exactly dtype, shape and data_offsets";
  const auto dtype = value.find("dtype"), shape = value.find("shape"), offsets = value.find("data_offsets");
  if (dtype == value.end() || !dtype->is_string()) return "has no dtype";
  if (shape == value.end() || !shape->is_array() || shape->size() > shape_rank_max) return "has no valid shape";
  if (offsets == value.end() || !offsets->is_array() || offsets->size() != 2 || !(*offsets)[0].is_number_unsigned() ||
      !(*offsets)[1].is_number_unsigned())
    return "has no valid data_offsets";
  const auto known = parse_dtype(dtype->get_ref<const std::string&>());
  if (!known) return fmt::format("has dtype '{}', which is not known", dtype->get_ref<const std::string&>());
  entry.dtype = *known;
  for (const Json& dimension : *shape) {
    if (!dimension.is_number_unsigned()) return "has no valid shape";
    entry.shape.push_back(dimension.get<std::uint64_t>());
    if (__builtin_mul_overflow(entry.numel, entry.shape.back(), &entry.numel)) return "has a shape that overflows";
  }
  if (__builtin_mul_overflow(entry.numel, tensor_dtype_bytes(entry.dtype), &entry.bytes))
    return "has a shape that overflows";
  const auto begin = (*offsets)[0].get<std::uint64_t>(), end = (*offsets)[1].get<std::uint64_t>();
  if (begin > end || end > data_bytes)
    return fmt::format("lies at [{}, {}) of {} bytes of data", begin, end, data_bytes);
  if (end - begin != entry.bytes)
    return fmt::format("has {} bytes of data where dtype and shape ask for {}", end - begin, entry.bytes);
  entry.offset = begin;
  return {};
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

/// Entries of one file in the order of their data, which must fill the file without gaps.
Result<std::vector<TensorEntry>> parse_header(const std::string& path, const std::string& text,
                                              std::uint64_t data_bytes) {
  if (auto checked = check_json(text, {.depth_max = 3, .values_max = values_max}); !checked.ok())
    return wrong_file(path, "header: " + checked.error().message);
  const Json header = Json::parse(text, nullptr, false);
  std::vector<TensorEntry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      if (!value.is_object()) return wrong_file(path, "__metadata__ is not an object");
      for (const auto& [key, item] : value.items())
        if (!item.is_string()) return wrong_file(path, fmt::format("__metadata__ '{}' is not a string", key));
      continue;
    }
    TensorEntry entry;
    entry.name = name;
    if (const std::string wrong = parse_entry(value, data_bytes, entry); !wrong.empty())
      return wrong_file(path, fmt::format("tensor '{}' {}", name, wrong));
    entries.push_back(std::move(entry));
  }
  std::sort(entries.begin(), entries.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
  });
  std::uint64_t end = 0;
  for (const TensorEntry& entry : entries) {
    if (entry.offset != end)
      return wrong_file(path, fmt::format("data of tensor '{}' {}", entry.name,
                                          entry.offset < end ? "overlaps another's" : "follow a gap"));
    end += entry.bytes;
  }
  if (end != data_bytes)
    return wrong_file(path, fmt::format("has {} bytes of data, its tensors fill {}", data_bytes, end));
  return entries;
}

/// Shard files named by an index, and which tensors each should hold.
Result<std::map<std::string, std::set<std::string>>> read_index(const std::string& path) {
  SLUICE_ASSIGN(const std::string text, read_file(path, header_bytes_max));
  if (auto checked = check_json(text, {.depth_max = 8, .values_max = values_max}); !checked.ok())
    return wrong_file(path, checked.error().message);
  const Json index = Json::parse(text, nullptr, false);
  const auto weight_map = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || weight_map == index.end() || !weight_map->is_object())
    return wrong_file(path, "has no weight_map");
  std::map<std::string, std::set<std::string>> shards;
  for (const auto& [name, file] : weight_map->items()) {
    if (!file.is_string()) return wrong_file(path, fmt::format("weight_map of '{}' is not a file name", name));
    const auto& file_name = file.get_ref<const std::string&>();
    if (file_name.find('\0') != std::string::npos)
      return wrong_file(path, "weight_map has a file name with a zero byte");
    shards[file_name].insert(name);
  }
  return shards;
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
        fmt::format("{}/{} is a symbolic link, which is not followed: copy the files (cp -L)", directory, name));
  if (errno == EXDEV) return bad_request(fmt::format("'{}' leads out of {}", name, directory));
  return bad_request(fmt::format("can not open {}/{}: {}", directory, name, std::strerror(errno)));
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
  for (const File& file : files_) close(file.fd);
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
  SLUICE_ASSIGN(std::vector<TensorEntry> entries, parse_header(path, header, file_bytes - data_start));
  for (TensorEntry& entry : entries) {
    entry.offset += data_start;
    entry.file = index;
    const std::string name = entry.name;
    if (!entries_.emplace(name, std::move(entry)).second)
      return wrong_file(path, fmt::format("tensor '{}' is also in another file", name));
  }
  return success();
}

Status SafeTensors::add_indexed(const std::string& index_path) {
  SLUICE_ASSIGN(const auto shards, read_index(index_path));
  const std::size_t slash = index_path.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : index_path.substr(0, slash + 1);
  const int directory_fd = ::open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (directory_fd < 0) return wrong_file(directory, std::strerror(errno));
  const std::string prefix = directory + "/";
  Status status;
  for (const auto& [name, tensors] : shards) {
    auto fd = open_beneath(directory_fd, directory, name);
    status = fd.ok() ? add_file(*fd, prefix + name) : Status(fd.error());
    if (!status.ok()) break;
  }
  close(directory_fd);
  SLUICE_TRY(std::move(status));
  for (const auto& [name, tensors] : shards) {
    for (const std::string& tensor : tensors) {
      const TensorEntry* entry = find(tensor);
      if (entry == nullptr || files_[entry->file].path != prefix + name)
        return wrong_file(index_path, fmt::format("tensor '{}' is not in {}", tensor, name));
    }
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
  if (fd < 0) return bad_request(fmt::format("can not open {}: {}", target, std::strerror(errno)));
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
  const File& file = files_[entry.file];
  return read_exactly(file.fd, file.path, entry.offset + byte_offset, out);
}

}  // namespace sluice
