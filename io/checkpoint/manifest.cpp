#include "io/checkpoint/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "io/checkpoint/pieces.h"
#include "io/checksum.h"
#include "io/files/json_guard.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view sum_key = "\"xxh3\": \"";
constexpr std::uint64_t values_max = 64u << 20;
constexpr std::uint64_t numel_max = std::uint64_t{1} << 48;  // products with small numbers do not overflow
constexpr const char* format_name = "sluice checkpoint";

std::uint64_t text_sum(std::string_view text) { return checksum(std::as_bytes(std::span(text))); }

std::string hex(std::uint64_t value) { return fmt::format("{:016x}", value); }

Json to_json(const StoredUnit& unit) {
  Json pieces = Json::array(), states = Json::array();
  for (const TensorPiece& p : unit.pieces)
    pieces.push_back({p.tensor, p.row, p.column, p.rows, p.columns, p.at, p.stride});
  for (const StoredState& s : unit.states)
    states.push_back({{"state", state_names[static_cast<std::size_t>(s.kind)]},
                      {"offset", s.offset},
                      {"bytes", s.bytes},
                      {"block_bytes", s.block_bytes}});
  return {{"name", unit.name}, {"numel", unit.numel}, {"states", states}, {"pieces", pieces}};
}

/// Looks into JSON that nobody has looked at. The first thing that is wrong is remembered, with where it is.
class Look {
 public:
  Look(const Json& json, std::string where, std::optional<Error>& wrong)
      : json_(&json), where_(std::move(where)), wrong_(&wrong) {}

  bool ok() const { return !*wrong_; }
  void refuse(const std::string& why) const {
    if (!*wrong_) *wrong_ = bad_request(where_ + " " + why);
  }
  Look operator[](const char* key) const {
    const std::string where = where_.empty() ? key : where_ + "." + key;
    if (json_->is_object() && json_->contains(key)) return {(*json_)[key], where, *wrong_};
    Look missing{nothing(), where, *wrong_};
    missing.refuse("is missing");
    return missing;
  }
  std::uint64_t number(std::uint64_t max) const {
    if (json_->is_number_unsigned() && json_->get<std::uint64_t>() <= max) return json_->get<std::uint64_t>();
    refuse(fmt::format("must be a whole number up to {}", max));
    return 0;
  }
  std::string text() const {
    if (json_->is_string()) return json_->get<std::string>();
    refuse("must be a string");
    return {};
  }
  std::uint64_t sum() const {
    const std::string digits = text();
    const bool sane = digits.size() == 16 && digits.find_first_not_of("0123456789abcdef") == std::string::npos;
    if (!sane) refuse("must be 16 hexadecimal digits");
    return sane ? std::stoull(digits, nullptr, 16) : 0;
  }
  std::string object() const {
    if (!json_->is_object()) refuse("must be an object");
    return json_->dump();
  }
  /// Of something that becomes a name in a file system or a dataset.
  std::string name(std::size_t bytes_max) const {
    std::string name = text();
    const bool sane = !name.empty() && name.size() <= bytes_max && name.find('/') == std::string::npos &&
                      name.front() != '.' &&
                      std::all_of(name.begin(), name.end(), [](char c) { return c > ' ' && c < 0x7f; });
    if (!sane) refuse("is no name: " + shown(name));
    return name;
  }
  template <class Visit>
  void each(const Visit& visit) const {
    if (!json_->is_array()) return refuse("must be a list");
    for (std::size_t i = 0; i < json_->size() && ok(); ++i)
      visit(Look{(*json_)[i], fmt::format("{}[{}]", where_, i), *wrong_});
  }
  template <class Value>
  Value one_of(std::initializer_list<std::pair<const char*, Value>> values) const {
    const std::string given = text();
    for (const auto& [name, value] : values)
      if (given == name) return value;
    refuse("has the value '" + shown(given) + "', which is not known");
    return values.begin()->second;
  }

 private:
  static const Json& nothing() {
    static const Json null;
    return null;
  }
  const Json* json_;
  std::string where_;
  std::optional<Error>* wrong_;
};

StoredTensor read_tensor(const Look& from) {
  StoredTensor tensor;
  tensor.name = from["name"].text();
  if (tensor.name.empty() || tensor.name.size() > 1024) from["name"].refuse("must have 1 to 1024 bytes");
  std::uint64_t numel = 1;
  from["shape"].each([&](const Look& size) {
    const std::uint64_t n = size.number(numel_max);
    if (n == 0 || numel > numel_max / n) return size.refuse("makes a tensor of no elements, or of too many");
    numel *= n;
    tensor.shape.push_back(n);
  });
  if (tensor.shape.empty() || tensor.shape.size() > 8) from["shape"].refuse("must have 1 to 8 dimensions");
  return tensor;
}

TensorPiece read_piece(const Look& from, const std::vector<StoredTensor>& tensors, std::uint64_t numel) {
  std::vector<std::uint64_t> v;
  from.each([&](const Look& number) { v.push_back(number.number(numel_max)); });
  if (from.ok() && v.size() != 7) from.refuse("must have seven numbers");
  if (!from.ok()) return {};
  const TensorPiece p{static_cast<std::uint32_t>(v[0]), v[1], v[2], v[3], v[4], v[5], v[6]};
  if (v[0] >= tensors.size()) {
    from.refuse("is of a tensor that is not there");
    return {};
  }
  const StoredTensor& t = tensors[p.tensor];
  const bool inside = p.rows > 0 && p.columns > 0 && p.row + p.rows <= t.rows() && p.column + p.columns <= t.columns();
  if (!inside) {
    from.refuse("is not within " + shown(t.name));
    return {};
  }
  // Rows do not overlap in the buffer, and all lie in it.
  const bool placed = p.at < numel && p.columns <= numel - p.at &&
                      (p.rows == 1 || (p.stride >= p.columns && (p.rows - 1) <= (numel - p.at - p.columns) / p.stride));
  if (!placed) from.refuse("is not within its unit");
  return p;
}

StoredState read_state(const Look& from, const StoredUnit& unit, const StoredFormats& formats) {
  StoredState s;
  s.kind = from["state"].one_of<StateKind>({{"parameter", StateKind::parameter},
                                            {"remainder", StateKind::remainder},
                                            {"exp_avg", StateKind::exp_avg},
                                            {"exp_avg_sq", StateKind::exp_avg_sq}});
  s.offset = from["offset"].number(std::numeric_limits<std::int64_t>::max() / 2);
  s.bytes = from["bytes"].number(std::numeric_limits<std::int64_t>::max() / 2);
  s.block_bytes = static_cast<std::uint32_t>(from["block_bytes"].number(sum_block_bytes_max));
  if (s.offset % state_alignment_bytes != 0) from["offset"].refuse("must be a multiple of 4096");
  if (s.block_bytes == 0 || s.block_bytes % state_alignment_bytes != 0)
    from["block_bytes"].refuse("must be a multiple of 4096");
  if (s.kind == StateKind::remainder && formats.parameters != Dtype::bf16)
    from["state"].refuse("is a remainder, which belongs to parameters in bf16");
  if (from.ok() && s.bytes != stored_bytes(formats, s.kind, unit.numel))
    from["bytes"].refuse(fmt::format("must be {}", stored_bytes(formats, s.kind, unit.numel)));
  return s;
}

StoredUnit read_unit(const Look& from, const Manifest& manifest) {
  StoredUnit unit;
  unit.name = from["name"].name(256);
  unit.numel = from["numel"].number(numel_max);
  if (unit.numel == 0 || unit.numel % 4096 != 0) from["numel"].refuse("must be a multiple of 4096, and not 0");
  from["pieces"].each(
      [&](const Look& piece) { unit.pieces.push_back(read_piece(piece, manifest.tensors, unit.numel)); });
  from["states"].each([&](const Look& state) {
    unit.states.push_back(read_state(state, unit, manifest.formats));
    for (std::size_t i = 0; i + 1 < unit.states.size(); ++i)
      if (unit.states[i].kind == unit.states.back().kind) state.refuse("is there twice");
  });
  if (from.ok() && unit.states.empty()) from["states"].refuse("must not be empty");
  return unit;
}

/// Nothing lies within something else, and all of it in the file.
void check_places(const Look& from, const StoredFile& file) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> places;
  for (const StoredUnit& unit : file.units)
    for (const StoredState& s : unit.states) places.emplace_back(s.offset, s.offset + s.bytes);
  std::sort(places.begin(), places.end());
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (places[i].second > file.bytes) return from.refuse("has states behind its end");
    if (i > 0 && places[i].first < places[i - 1].second) return from.refuse("has states that lie in each other");
  }
}

StoredFile read_stored_file(const Look& from, const Manifest& manifest) {
  StoredFile file;
  file.name = from["name"].name(128);
  if (!file.name.ends_with(".h5") || file.name == master_name) from["name"].refuse("is no name of a file of states");
  file.bytes = from["bytes"].number(std::numeric_limits<std::int64_t>::max() / 2);
  file.structure = from["structure_xxh3"].sum();
  file.sums = from["sums_xxh3"].sum();
  std::set<std::string> names;
  from["units"].each([&](const Look& unit) {
    file.units.push_back(read_unit(unit, manifest));
    if (!names.insert(file.units.back().name).second) unit["name"].refuse("is there twice");
  });
  if (from.ok() && file.units.empty()) from["units"].refuse("must not be empty");
  if (!from.ok()) return file;
  check_places(from, file);
  std::uint64_t sums = 0;
  for (StoredUnit& unit : file.units)
    for (StoredState& s : unit.states) {
      s.first_sum = sums;
      sums += s.blocks();
    }
  return file;
}

StoredFormats read_formats(const Look& from) {
  StoredFormats formats;
  formats.parameters = from["parameters"].one_of<Dtype>({{"f32", Dtype::f32}, {"bf16", Dtype::bf16}});
  formats.moments = from["moments"].one_of<MomentFormat>(
      {{"f32", MomentFormat::f32}, {"bf16", MomentFormat::bf16}, {"int8", MomentFormat::int8}});
  formats.moment_group_numel = from["moment_group_numel"].number(1u << 18);
  const std::uint64_t group = formats.moment_group_numel;
  const bool sane = formats.moments == MomentFormat::int8 ? group >= 4096 && (group & (group - 1)) == 0 : group == 1;
  if (!sane) from["moment_group_numel"].refuse("does not fit the format of the moments");
  return formats;
}

Result<std::string_view> without_sum(std::string_view text) {
  const std::size_t key = text.rfind(sum_key);
  if (key == std::string_view::npos || text.size() < key + sum_key.size() + 16)
    return bad_request("has no checksum at its end: it was cut off, or not written by a tool that knows this format");
  if (text.substr(key + sum_key.size(), 16) != hex(text_sum(text.substr(0, key))))
    return bad_request("is not what its checksum is of: it is damaged");
  return text.substr(0, key);
}

}  // namespace

std::uint64_t StoredTensor::rows() const {
  std::uint64_t rows = 1;
  for (std::size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
  return rows;
}

std::uint64_t StoredFile::sum_count() const {
  std::uint64_t count = 0;
  for (const StoredUnit& unit : units)
    for (const StoredState& s : unit.states) count += s.blocks();
  return count;
}

std::string StoredFile::sums_name() const { return name.substr(0, name.size() - 3) + ".sums"; }

std::uint64_t StoredFile::state_bytes() const {
  std::uint64_t all = 0;
  for (const StoredUnit& unit : units)
    for (const StoredState& s : unit.states) all += s.bytes;
  return all;
}

std::uint64_t state_bytes(std::span<const StoredFile> files) {
  std::uint64_t bytes = 0;
  for (const StoredFile& file : files) bytes += file.state_bytes();
  return bytes;
}

std::uint64_t stored_bytes(const StoredFormats& formats, StateKind kind, std::uint64_t numel) {
  switch (kind) {
    case StateKind::parameter: return numel * dtype_bytes(formats.parameters);
    case StateKind::remainder: return numel * 2;
    case StateKind::gradient: return numel * 4;
    default: break;
  }
  if (formats.moments != MomentFormat::int8) return numel * moment_bytes(formats.moments);
  // Groups of codes, each with its scales behind it, padded to a page.
  const auto group_bytes = [](std::uint64_t n) { return n + (n / moment_block_numel * 4 + 4095) / 4096 * 4096; };
  const std::uint64_t group = formats.moment_group_numel;
  return numel / group * group_bytes(group) + group_bytes(numel % group);
}

std::string manifest_text(const Manifest& m) {
  // A line for each tensor and each unit: large enough to read, small enough to hold.
  std::string text =
      fmt::format("{{\n\"format\": \"{}\",\n\"schema\": {},\n\"step\": {},\n", format_name, checkpoint_schema, m.step);
  text += fmt::format("\"formats\": {{\"parameters\": \"{}\", \"moments\": \"{}\", \"moment_group_numel\": {}}},\n",
                      dtype_name(m.formats.parameters), moment_format_name(m.formats.moments),
                      m.formats.moment_group_numel);
  text += "\"model\": " + m.model + ",\n\"run\": " + m.run + ",\n\"tensors\": [";
  for (std::size_t i = 0; i < m.tensors.size(); ++i)
    text += (i == 0 ? "\n" : ",\n") + Json{{"name", m.tensors[i].name}, {"shape", m.tensors[i].shape}}.dump();
  text += "\n],\n\"files\": [";
  for (std::size_t i = 0; i < m.files.size(); ++i) {
    const StoredFile& file = m.files[i];
    text += fmt::format(
        "{}{{\"name\": \"{}\", \"bytes\": {}, \"structure_xxh3\": \"{}\", \"sums_xxh3\": \"{}\", \"units\": [",
        i == 0 ? "\n" : ",\n", file.name, file.bytes, hex(file.structure), hex(file.sums));
    for (std::size_t u = 0; u < file.units.size(); ++u) text += (u == 0 ? "\n" : ",\n") + to_json(file.units[u]).dump();
    text += "\n]}";
  }
  return sealed_manifest(std::move(text) + "\n],\n");
}

std::string sealed_manifest(std::string body) {
  const std::uint64_t sum = text_sum(body);
  return std::move(body) + std::string(sum_key) + hex(sum) + "\"\n}\n";
}

Result<Manifest> parse_manifest(std::string_view text) {
  SLUICE_TRY(without_sum(text));
  JsonLimits limits;
  limits.values_max = values_max;
  SLUICE_TRY(check_json(text, limits));
  const Json json = Json::parse(text, nullptr, false);
  std::optional<Error> wrong;
  const Look top(json, "", wrong);
  if (!json.is_object() || !json.contains("format") || json["format"] != format_name)
    return bad_request("is not of a checkpoint of sluice");
  const std::uint64_t schema = top["schema"].number(1u << 20);
  if (!wrong && schema != checkpoint_schema)
    return bad_request(fmt::format("has schema {}, and this sluice knows schema {}; use the version that wrote it",
                                   schema, checkpoint_schema));
  Manifest m;
  m.step = top["step"].number(std::numeric_limits<std::int64_t>::max());
  m.formats = read_formats(top["formats"]);
  m.model = top["model"].object();
  m.run = top["run"].object();
  std::set<std::string> names;
  top["tensors"].each([&](const Look& tensor) {
    m.tensors.push_back(read_tensor(tensor));
    if (!names.insert(m.tensors.back().name).second) tensor["name"].refuse("is there twice");
  });
  names.clear();
  top["files"].each([&](const Look& file) {
    m.files.push_back(read_stored_file(file, m));
    if (!names.insert(m.files.back().name).second) file["name"].refuse("is there twice");
  });
  if (wrong) return *wrong;
  SLUICE_TRY(check_coverage(m));
  return m;
}

}  // namespace sluice
