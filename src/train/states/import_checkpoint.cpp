#include "src/train/states/import_checkpoint.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "io/checkpoint/checkpoint.h"
#include "io/files/json_guard.h"
#include "sluice/adamw.h"
#include "src/train/run/companions.h"
#include "src/train/states/hugging_face.h"
#include "src/train/states/moment_files.h"
#include "src/train/states/save_checkpoint.h"
#include "src/train/states/state_layout.h"
#include "src/train/states/state_pieces.h"
#include "src/train/states/whole_weights.h"
#include "src/train/states/write_ring.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t buffers = 8;
constexpr std::uint64_t config_bytes_max = 1u << 20;

/// The model's configuration with what the directory's says of special tokens.
Result<std::string> described_model(const ModelConfig& config, Dtype dtype, const std::string& directory) {
  SLUICE_ASSIGN(const std::string text, config_with_companions(config, dtype, directory, Json::object()));
  Json json = Json::parse(text);
  const Json tokens = special_tokens_of(json);
  for (const auto& [name, value] : tokens.items())
    if (value.is_null()) json.erase(name);
  return json.dump();
}

/// Of the export that the directory is; 0 where it is none.
Result<std::uint64_t> marked_step(const std::string& directory) {
  SLUICE_ASSIGN(const std::string text, read_json_file(directory + "/config.json", config_bytes_max));
  const Json config = Json::parse(text, nullptr, false);
  if (!config.is_object() || !config.contains(export_mark) || !config[export_mark].is_object()) return 0;
  const Json& mark = config[export_mark];
  const bool is_step = mark.contains("step") && mark["step"].is_number_unsigned();
  return is_step ? mark["step"].get<std::uint64_t>() : 0;
}

class Importing {
 public:
  Importing(const ImportRequest& request, const std::function<Status(double)>& watch)
      : request_(request), watch_(watch) {}

  Result<ImportResult> run();

 private:
  Status open();
  Status write_parameters(WriteRing& ring);
  Status write_moments(WriteRing& ring);
  /// Every piece of the files' weights, which are those of `model`.
  using Put = std::function<Status(UnitId unit, std::uint64_t first, const WeightValues& values)>;
  Status scan(const HuggingFaceWeights& weights, const ModelSpec& model, Dtype wanted, const Put& put);
  /// `fill` makes the bytes of a state's elements from `first` on.
  template <class Fill>
  Status write(WriteRing& ring, UnitId unit, StateKind kind, std::uint64_t first, std::uint64_t numel,
               const Fill& fill);

  const ImportRequest& request_;
  const std::function<Status(double)>& watch_;
  ModelSpec model_, moments_model_;
  HuggingFaceWeights weights_, moments_;
  bool has_moments_ = false;
  Manifest manifest_;
  std::unique_ptr<StateWriter> writer_;
  std::uint64_t done_bytes_ = 0, all_bytes_ = 0;
};

Status Importing::open() {
  SLUICE_ASSIGN(const ModelConfig config, load_config(request_.directory));
  model_ = build_model(config);
  SLUICE_ASSIGN(weights_, HuggingFaceWeights::open(request_.directory, model_));
  manifest_.formats.parameters =
      request_.dtype.value_or(weights_.all_stored_as(Dtype::bf16) ? Dtype::bf16 : Dtype::f32);
  if (const std::string path = moments_beside(request_.directory); !path.empty()) {
    moments_model_ = moments_as_model(model_);
    SLUICE_ASSIGN(moments_, HuggingFaceWeights::open(path, moments_model_));
    has_moments_ = true;
    SLUICE_ASSIGN(manifest_.step, marked_step(request_.directory));
  }
  manifest_.tensors = stored_tensors(model_);
  manifest_.run = "{}";
  SLUICE_ASSIGN(manifest_.model, described_model(config, manifest_.formats.parameters, request_.directory));
  return success();
}

Status Importing::scan(const HuggingFaceWeights& weights, const ModelSpec& model, Dtype wanted, const Put& put) {
  WeightPieces pieces(model, ShardMap(model, 1), {0, 1}, state_window_numel);
  SLUICE_ASSIGN(const auto stream, WeightStream::open(weights, pieces, wanted));
  while (const std::optional<WeightPiece> piece = pieces.next()) {
    SLUICE_ASSIGN(const WeightValues values, stream->next());
    SLUICE_TRY(put(piece->unit, piece->at, values));
    if (watch_) SLUICE_TRY(watch_(static_cast<double>(done_bytes_) / static_cast<double>(all_bytes_)));
  }
  return success();
}

template <class Fill>
Status Importing::write(WriteRing& ring, UnitId unit, StateKind kind, std::uint64_t first, std::uint64_t numel,
                        const Fill& fill) {
  const auto u = static_cast<std::size_t>(unit);
  const std::vector<StoredState>& states = writer_->file().units[u].states;
  const auto state = std::find_if(states.begin(), states.end(), [&](const StoredState& s) { return s.kind == kind; });
  SLUICE_ASSIGN(std::byte* const memory, ring.take());
  fill(memory);
  const std::uint64_t bytes = stored_bytes(manifest_.formats, kind, numel);
  done_bytes_ += bytes;
  return ring.write(*writer_, u, static_cast<std::size_t>(state - states.begin()),
                    stored_bytes(manifest_.formats, kind, first), bytes);
}

Status Importing::write_parameters(WriteRing& ring) {
  std::vector<bf16> parameters(state_window_numel);
  std::vector<std::int16_t> remainders(state_window_numel);
  return scan(
      weights_, model_, manifest_.formats.parameters,
      [&](UnitId unit, std::uint64_t first, const WeightValues& values) -> Status {
        const std::uint64_t n = values.size();
        std::span<const std::byte> bytes = values.bytes();
        if (manifest_.formats.parameters == Dtype::bf16) {
          std::fill_n(remainders.begin(), n, std::int16_t{0});  // of what bf16 has exactly
          if (values.dtype() == Dtype::f32) {
            split_master(values.as_f32().data(), parameters.data(), remainders.data(), static_cast<std::int64_t>(n));
            bytes = std::as_bytes(std::span(parameters).first(n));
          }
          SLUICE_TRY(write(ring, unit, StateKind::remainder, first, n,
                           [&](std::byte* to) { std::memcpy(to, remainders.data(), n * sizeof remainders[0]); }));
        }
        return write(ring, unit, StateKind::parameter, first, n,
                     [&](std::byte* to) { std::memcpy(to, bytes.data(), bytes.size()); });
      });
}

Status Importing::write_moments(WriteRing& ring) {
  const auto units = static_cast<UnitId>(model_.units.size());
  return scan(moments_, moments_model_, Dtype::f32,
              [&](UnitId unit, std::uint64_t first, const WeightValues& values) -> Status {
                const StateKind kind = unit < units ? StateKind::exp_avg : StateKind::exp_avg_sq;
                return write(ring, unit % units, kind, first, values.size(),
                             [&](std::byte* to) { std::memcpy(to, values.bytes().data(), values.bytes().size()); });
              });
}

Result<ImportResult> Importing::run() {
  SLUICE_TRY(open());
  std::vector<StoredFile> files =
      files_of_layout(model_, {}, manifest_.formats, state_kinds(manifest_.formats, true, has_moments_));
  all_bytes_ = files.front().state_bytes();
  SLUICE_TRY(check_checkpoint_room(request_.parent, all_bytes_));
  SLUICE_ASSIGN(NewCheckpoint made, NewCheckpoint::create(request_.parent, manifest_.step));
  WriteRing ring(buffers, state_window_numel * sizeof(float));
  SLUICE_ASSIGN(writer_, StateWriter::create(made.directory(), manifest_, std::move(files.front()), request_.writes));
  const auto write_all = [&]() -> Status {
    SLUICE_TRY(write_parameters(ring));
    if (has_moments_) SLUICE_TRY(write_moments(ring));
    return ring.finish();
  };
  const Status written = write_all();
  if (!written.ok()) {
    writer_.reset();  // what is in flight is from the ring's memory
    return written.error();
  }
  SLUICE_ASSIGN(StoredFile stored, writer_->close());
  manifest_.files.push_back(std::move(stored));
  SLUICE_TRY(made.publish(manifest_));
  return ImportResult{made.path(), manifest_.step, model_.parameters, all_bytes_, manifest_.formats.parameters,
                      has_moments_};
}

}  // namespace

Result<ImportResult> import_checkpoint(const ImportRequest& request, const std::function<Status(double)>& watch) {
  return Importing(request, watch).run();
}

}  // namespace sluice
