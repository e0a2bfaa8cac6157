#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "io/weights/safetensors.h"

namespace sluice {

Result<SafeTensorsWriter> SafeTensorsWriter::create(const std::string& path, const std::vector<Tensor>& tensors,
                                                    const std::map<std::string, std::string>& metadata) {
  SafeTensorsWriter writer;
  // Ordered, so that the header names tensors as their data lie.
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t end = 0;
  for (const Tensor& tensor : tensors) {
    std::uint64_t bytes = tensor_dtype_bytes(tensor.dtype);
    for (const std::uint64_t dimension : tensor.shape)
      if (__builtin_mul_overflow(bytes, dimension, &bytes))
        return bad_request(fmt::format("{}: tensor '{}' has a shape that overflows", path, tensor.name));
    if (tensor.name == "__metadata__" || !writer.places_.emplace(tensor.name, Place{end, bytes}).second)
      return bad_request(fmt::format("{}: tensor '{}' appears twice", path, tensor.name));
    header[tensor.name] = {
        {"dtype", tensor_dtype_name(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {end, end + bytes}}};
    end += bytes;
  }
  std::string text = header.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  text.append((8 - text.size() % 8) % 8, ' ');  // data begin aligned to 8, as the reference implementation writes
  const std::uint64_t header_bytes = text.size();
  for (auto& [name, place] : writer.places_) place.offset += 8 + header_bytes;
  SLUICE_ASSIGN(writer.file_, AtomicFile::create(path));
  SLUICE_ASSIGN(writer.stream_, StreamWriter::create(writer.file_.fd(), path, 8 + header_bytes + end, {}));
  SLUICE_TRY(writer.stream_->append(std::as_bytes(std::span(&header_bytes, 1))));
  SLUICE_TRY(writer.stream_->append(std::as_bytes(std::span(text))));
  return writer;
}

Status SafeTensorsWriter::write(std::string_view name, std::uint64_t byte_offset, std::span<const std::byte> data) {
  const auto it = places_.find(name);
  SLUICE_CHECK(it != places_.end(), "no tensor '%.*s'", static_cast<int>(name.size()), name.data());
  const Place& place = it->second;
  SLUICE_CHECK(byte_offset <= place.bytes && data.size() <= place.bytes - byte_offset, "beyond the tensor's end");
  SLUICE_CHECK(place.offset + byte_offset == stream_->appended_bytes(), "byte %llu of '%.*s' comes at %llu of the file",
               static_cast<unsigned long long>(byte_offset), static_cast<int>(name.size()), name.data(),
               static_cast<unsigned long long>(stream_->appended_bytes()));
  return stream_->append(data);
}

Status SafeTensorsWriter::finish() {
  SLUICE_TRY(stream_->finish());
  stream_.reset();
  return file_.publish();
}

}  // namespace sluice
