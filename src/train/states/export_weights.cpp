#include "src/train/states/export_weights.h"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/files/json_guard.h"
#include "io/files/publish.h"
#include "sluice/half.h"
#include "sluice/size.h"
#include "src/train/run/companions.h"
#include "src/train/states/model_writer.h"
#include "src/train/states/moment_files.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

/// Whether an export can have written a file of that name.
bool is_export_name(const std::string& name) {
  const bool weights = (name.starts_with("model") || name.starts_with(moment_files)) &&
                       (name.ends_with(".safetensors") || name.ends_with(".index.json"));
  return weights || is_companion(name);
}

Result<Json> read_object(const std::string& path) {
  SLUICE_ASSIGN(const std::string text, read_file(path, 1u << 20));
  if (const Status sane = check_json(text); !sane.ok()) return sane.error().in(path);
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return bad_request(path + " is not a JSON object");
  return json;
}

Status check_space(const std::string& directory, std::uint64_t bytes) {
  const std::string parent = fs::path(directory).parent_path().string();
  struct statvfs space {};
  if (statvfs(parent.c_str(), &space) != 0)
    return bad_request(fmt::format("can not create {}: {}: {}", directory, parent, std::strerror(errno)));
  const std::uint64_t free = static_cast<std::uint64_t>(space.f_bavail) * space.f_frsize;
  if (bytes <= free) return success();
  return bad_request(fmt::format("{}: the model takes {}, and {} is free there; choose another drive", directory,
                                 format_bytes(bytes), format_bytes(free)));
}

/// Values in the export's element type.
class Rounding {
 public:
  Rounding(Dtype dtype, const ModelSpec& model) : dtype_(dtype), model_(model) {}

  Result<std::span<const std::byte>> operator()(UnitId unit, std::uint64_t first, const WeightValues& given) {
    if (dtype_ == given.dtype()) return given.bytes();
    const std::span<const float> values = given.as_f32();
    SLUICE_CHECK(values.size() == given.size(), "(%s from %s)", dtype_name(dtype_), dtype_name(given.dtype()));
    bits_.resize(values.size());
    if (dtype_ == Dtype::bf16) {  // a loop of its own, which compilers vectorise
      std::transform(values.begin(), values.end(), bits_.begin(), [](float value) { return to_bf16(value).bits; });
      return std::as_bytes(std::span<const std::uint16_t>(bits_));
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      bits_[i] = float_to_half(values[i]);
      if ((bits_[i] & 0x7fffu) == 0x7c00u && std::isfinite(values[i]))
        return bad_request(fmt::format("{} has the value {}, which float16 can not hold; export bf16 or f32",
                                       tensor_at(unit, first + i), values[i]));
    }
    return std::as_bytes(std::span<const std::uint16_t>(bits_));
  }

 private:
  std::string tensor_at(UnitId unit, std::uint64_t element) const {
    const UnitSpec& spec = model_.units[static_cast<std::size_t>(unit)];
    for (const TensorSpec& t : spec.tensors)
      if (element >= t.offset && element < t.offset + t.numel) return t.stored.name;
    return spec.name;
  }

  Dtype dtype_;
  const ModelSpec& model_;
  std::vector<std::uint16_t> bits_;
};

Status write_weights(WholeWeights& weights, Dtype dtype, ModelWriter& writer, const States::Watch& watch) {
  Rounding rounding(dtype, weights.model());
  std::uint64_t done = 0, total = 0;
  for (const UnitSpec& unit : weights.model().units) total += unit.numel;
  const auto write = [&](UnitId unit, std::uint64_t first, const WeightValues& values) -> Status {
    SLUICE_ASSIGN(const std::span<const std::byte> data, rounding(unit, first, values));
    SLUICE_TRY(writer.write(unit, first, data));
    return watch(static_cast<double>(done += values.size()) / static_cast<double>(total));
  };
  // Parameters that steps compute with are bf16 already; all else is made from the masters.
  SLUICE_TRY(weights.visit(dtype != Dtype::bf16, write));
  return writer.finish();
}

/// Beside the weights in `directory`; adds them to the result.
Status write_moments(WholeWeights& weights, const std::string& directory, const ExportOptions& options,
                     const RestoreListener& listener, ExportResult& result) {
  const ModelSpec model = moments_as_model(weights.model());
  SLUICE_ASSIGN(ModelWriter writer,
                ModelWriter::create(model, directory, Dtype::f32, options.shard_bytes_max, moment_files));
  const States::Watch watch = listener.watch("writing moments to " + options.directory);
  std::uint64_t done = 0, total = 0;
  for (const UnitSpec& unit : model.units) total += unit.numel;
  UnitId first_unit = 0;
  for (const StateKind kind : {StateKind::exp_avg, StateKind::exp_avg_sq}) {
    const auto write = [&](UnitId unit, std::uint64_t first, const WeightValues& values) -> Status {
      SLUICE_TRY(writer.write(first_unit + unit, first, values.bytes()));
      return watch(static_cast<double>(done += values.size()) / static_cast<double>(total));
    };
    SLUICE_TRY(weights.visit_moments(kind, write));
    first_unit += static_cast<UnitId>(weights.model().units.size());
  }
  SLUICE_TRY(writer.finish());
  result.data_bytes += writer.data_bytes();
  const std::vector<std::string> files = writer.files();
  result.files.insert(result.files.end(), files.begin(), files.end());
  return success();
}

Result<Dtype> chosen_dtype(const WholeWeights& weights, const ExportOptions& options) {
  const Dtype dtype = options.dtype.value_or(weights.dtype());
  if (dtype != Dtype::f32 || weights.has_masters()) return dtype;
  return bad_request(
      "--dtype f32: the run is complete and has kept its bf16 parameters only; leave the option out, and widen them as "
      "they are loaded");
}

/// As `weights` are now. damaged when those of their step can not be read as they were kept.
Result<ExportResult> export_step(WholeWeights& weights, const ExportOptions& options, const RestoreListener& listener) {
  const std::string& directory = options.directory;
  ExportResult result;
  SLUICE_ASSIGN(result.dtype, chosen_dtype(weights, options));
  result.step = weights.step();
  result.parameters = weights.model().parameters;
  std::error_code ignored;
  const bool replaces = is_there(directory) && !fs::is_empty(directory, ignored);
  const std::string source = weights.companions();
  if (!source.empty() && !is_there(source))
    listener.note(source + ", which the run began from, is gone: tokenizer files are not copied");
  SLUICE_ASSIGN(const std::string config,
                config_with_companions(weights.model().config, result.dtype, source, weights.marks()));
  // Before the room is counted: what killed exports left goes now.
  SLUICE_ASSIGN(StagedDirectory staged, StagedDirectory::create(directory, is_export_name));
  const std::uint64_t moment_bytes = options.optimizer ? 2 * sizeof(float) : 0;
  SLUICE_TRY(check_space(directory, result.parameters * (dtype_bytes(result.dtype) + moment_bytes)));
  SLUICE_ASSIGN(ModelWriter writer,
                ModelWriter::create(weights.model(), staged.staging(), result.dtype, options.shard_bytes_max));
  SLUICE_TRY(write_weights(weights, result.dtype, writer, listener.watch("writing " + directory)));
  result.data_bytes = writer.data_bytes();
  result.files = writer.files();
  if (options.optimizer) SLUICE_TRY(write_moments(weights, staged.staging(), options, listener, result));
  SLUICE_ASSIGN(const std::vector<std::string> copied, write_companions(source, staged.staging(), config));
  result.files.insert(result.files.end(), copied.begin(), copied.end());
  SLUICE_TRY(staged.publish(replaces));
  return result;
}

}  // namespace

Status check_export_target(const std::string& directory, bool force) {
  std::error_code error;
  if (!is_there(directory)) return success();
  if (!fs::is_directory(directory, error)) return bad_request(directory + " is there and not a directory");
  std::vector<std::string> names;
  for (fs::directory_iterator entry(directory, error); !error && entry != fs::directory_iterator();
       entry.increment(error))
    names.push_back(entry->path().filename().string());
  if (error) return bad_request(directory + ": can not be read: " + error.message());
  if (names.empty()) return success();
  const auto foreign = std::find_if_not(names.begin(), names.end(), is_export_name);
  if (foreign != names.end())
    return bad_request(directory + " holds " + *foreign + ", which is not of an export; give another directory");
  const Result<Json> config = read_object(directory + "/config.json");
  if (!config.ok() || !config->contains(export_mark))
    return bad_request(directory + " is not empty, and holds no earlier export; give another directory");
  if (force) return success();
  return bad_request(directory + " holds an earlier export; add --force to replace it, or give another directory");
}

Result<ExportResult> export_weights(WholeWeights& weights, const ExportOptions& options,
                                    const RestoreListener& listener) {
  if (options.optimizer && !weights.has_moments())
    return bad_request(
        "--optimizer: no moments are kept there that could be exported; of a run that can go on save a "
        "checkpoint (sluice checkpoint save), and export that");
  SLUICE_TRY(check_export_target(options.directory, options.force));
  Result<ExportResult> result = export_step(weights, options, listener);
  if (result.ok() || result.error().code != ErrorCode::damaged) return result;
  listener.note(result.error().message);
  SLUICE_TRY(weights.verify(listener));
  return export_step(weights, options, listener);
}

}  // namespace sluice
