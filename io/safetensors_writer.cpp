#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "io/safetensors.h"

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
    if (tensor.name == "__metadata__" || !writer.places_.emplace(tensor.name, Place{end, bytes, 0}).second)
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
  SLUICE_TRY(writer.file_.append(std::as_bytes(std::span(&header_bytes, 1))));
  SLUICE_TRY(writer.file_.append(std::as_bytes(std::span(text))));
  SLUICE_TRY(writer.file_.resize(8 + header_bytes + end));
  return writer;
}

Status SafeTensorsWriter::write(std::string_view name, std::uint64_t byte_offset, std::span<const std::byte> data) {
  const auto it = places_.find(name);
  SLUICE_CHECK(it != places_.end(), "no tensor '%.*s'", static_cast<int>(name.size()), name.data());
  Place& place = it->second;
  SLUICE_CHECK(byte_offset <= place.bytes && data.size() <= place.bytes - byte_offset, "beyond the tensor's end");
  SLUICE_TRY(file_.write_at(place.offset + byte_offset, data));
  place.written += data.size();
  return success();
}

Status SafeTensorsWriter::finish() {
  for (const auto& [name, place] : places_)
    SLUICE_CHECK(place.written == place.bytes, "%llu of %llu bytes of '%s' were written",
                 static_cast<unsigned long long>(place.written), static_cast<unsigned long long>(place.bytes),
                 name.c_str());
  return file_.publish();
}

}  // namespace sluice
