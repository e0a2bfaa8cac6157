#include "src/train/stored_weights.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "sluice/adamw.h"
#include "src/train/hugging_face.h"
#include "src/train/snapshot.h"

namespace sluice {
namespace {

constexpr std::uint64_t model_piece_numel = 1u << 19;

/// model.safetensors of a run that is complete.
class ModelWeights final : public StoredWeights {
 public:
  explicit ModelWeights(const RunDirectory& directory) : StoredWeights(directory) {}
  Status open(std::uint64_t steps) {
    SLUICE_ASSIGN(const ModelConfig config, load_config(directory_.path() + "/config.json"));
    model_ = build_model(config);
    step_ = steps;
    SLUICE_ASSIGN(weights_, HuggingFaceWeights::open(directory_.path(), model_));
    return success();
  }
  Place place() const override { return Place::model; }

 protected:
  RankId ranks() const override { return 1; }
  std::uint64_t shard_numel(UnitId unit) const override { return model_.units[static_cast<std::size_t>(unit)].numel; }
  std::uint64_t piece_numel() const override { return model_piece_numel; }
  Status read(UnitId unit, RankId, std::uint64_t first, bool, std::span<float> values) override {
    return weights_.read(model_.units[static_cast<std::size_t>(unit)], first, values);
  }

 private:
  HuggingFaceWeights weights_;
};

/// States of a run that can go on, as their plan lays them out.
class StateWeights : public StoredWeights {
 public:
  explicit StateWeights(const RunDirectory& directory) : StoredWeights(directory) {}

 protected:
  Status prepare_states() {
    const RunDescription& run = *directory_.run();
    const DriveLayout layout{run.block_bytes, run.stripe_weights};
    RunConfig config = run.config;
    config.run = directory_.path();  // wherever it was when it began
    SLUICE_ASSIGN(prepared_, prepare_stored(config, run.schedule, layout));
    model_ = prepared_->model;
    return check_same_states(directory_, *prepared_);
  }
  Status open_engine(const std::string& swap) {
    SLUICE_ASSIGN(engine_, Engine::open_states(*prepared_, swap));
    for (Memory* memory : {&parameter_, &remainder_})
      // Whole pages are read.
      memory->reset(static_cast<std::byte*>(std::aligned_alloc(buffer_alignment_bytes, piece_bytes())));
    SLUICE_CHECK(parameter_ != nullptr && remainder_ != nullptr, "(no memory for a piece)");
    return success();
  }
  RankId ranks() const override { return prepared_->workload.ranks; }
  std::uint64_t shard_numel(UnitId unit) const override { return prepared_->workload.shard_numel(unit); }
  std::uint64_t piece_numel() const override { return engine_->piece_numel(); }

  Status read(UnitId unit, RankId rank, std::uint64_t first, bool masters, std::span<float> values) override {
    SLUICE_TRY(read_state(unit, StateKind::parameter, rank, first, values.size(), parameter_.get()));
    if (dtype() == Dtype::f32) {
      std::memcpy(values.data(), parameter_.get(), values.size_bytes());
      return success();
    }
    const auto* const parameters = reinterpret_cast<const bf16*>(parameter_.get());
    if (!masters) {
      std::transform(parameters, parameters + values.size(), values.begin(), [](bf16 p) { return to_float(p); });
      return success();
    }
    SLUICE_TRY(read_state(unit, StateKind::remainder, rank, first, values.size(), remainder_.get()));
    join_master(parameters, reinterpret_cast<const std::int16_t*>(remainder_.get()), values.data(),
                static_cast<std::int64_t>(values.size()));
    return success();
  }
  /// `numel` may end before padding does.
  virtual Status read_state(UnitId unit, StateKind kind, RankId rank, std::uint64_t first, std::uint64_t numel,
                            std::byte* out) = 0;

  std::unique_ptr<Prepared> prepared_;
  std::unique_ptr<Engine> engine_;

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  using Memory = std::unique_ptr<std::byte, Free>;
  std::uint64_t piece_bytes() const { return padded_bytes(4 * engine_->piece_numel()) + buffer_alignment_bytes; }
  Memory parameter_, remainder_;
};

/// The committed slots of a durable run.
class SlotWeights final : public StateWeights {
 public:
  explicit SlotWeights(const RunDirectory& directory) : StateWeights(directory) {}
  Status open(const RestoreListener& listener) {
    SLUICE_TRY(prepare_states());
    SLUICE_TRY(open_engine(swap_name(run().id)));
    SLUICE_ASSIGN(const auto journal, open_journal(directory_, *prepared_, *engine_->store(), false));
    SLUICE_ASSIGN(step_, restore_newest(directory_, *engine_, *journal, ranks(), listener));
    return success();
  }
  Place place() const override { return Place::slots; }

 protected:
  Status read_state(UnitId unit, StateKind kind, RankId rank, std::uint64_t first, std::uint64_t,
                    std::byte* out) override {
    const std::uint64_t whole = std::min(piece_numel(), shard_numel(unit) - first);
    return engine_->read_state(unit, kind, rank, first, whole, out);
  }
};

/// The snapshot of a run that is not durable.
class SnapshotWeights final : public StateWeights {
 public:
  explicit SnapshotWeights(const RunDirectory& directory) : StateWeights(directory) {}
  ~SnapshotWeights() override {
    if (fd_ >= 0) close(fd_);
  }
  Status open(const RestoreListener& listener) {
    SLUICE_TRY(prepare_states());
    SLUICE_TRY(open_engine(""));
    const std::string path = directory_.snapshot_path();
    std::uint64_t end = snapshot_head_bytes;
    SLUICE_TRY(engine_->each_shard([&](UnitId unit, StateKind kind, RankId rank) {
      offsets_[{unit, kind, rank}] = end;
      end += engine_->shard_stream_bytes(unit, kind, rank);
      return success();
    }));
    SLUICE_ASSIGN(step_, verify_snapshot(path, run().id, end - snapshot_head_bytes,
                                         listener.watch("verifying the states that were saved")));
    fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    return fd_ >= 0 ? success() : Status(fault(path + ": can not be opened: " + std::strerror(errno)));
  }
  Place place() const override { return Place::snapshot; }

 protected:
  Status read_state(UnitId unit, StateKind kind, RankId rank, std::uint64_t first, std::uint64_t numel,
                    std::byte* out) override {
    const std::uint64_t size = kind == StateKind::remainder ? 2 : dtype_bytes(dtype());
    const std::uint64_t offset = offsets_.at({unit, kind, rank}) + first * size, bytes = numel * size;
    for (std::uint64_t done = 0; done < bytes;) {
      const ssize_t n = pread(fd_, out + done, bytes - done, static_cast<off_t>(offset + done));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0)
        return fault(directory_.snapshot_path() +
                     ": read failed: " + (n < 0 ? std::strerror(errno) : "it was changed while being read"));
      done += static_cast<std::uint64_t>(n);
    }
    return success();
  }

 private:
  int fd_ = -1;
  std::map<std::tuple<UnitId, StateKind, RankId>, std::uint64_t> offsets_;
};

template <class Weights, class Argument>
Result<std::unique_ptr<StoredWeights>> opened(const RunDirectory& directory, const Argument& argument) {
  auto weights = std::make_unique<Weights>(directory);
  SLUICE_TRY(weights->open(argument));
  return std::unique_ptr<StoredWeights>(std::move(weights));
}

}  // namespace

Result<std::unique_ptr<StoredWeights>> StoredWeights::open(const RunDirectory& directory,
                                                           const RestoreListener& listener) {
  if (!directory.run()) return bad_request(directory.path() + " holds no run: there is no run.json in it");
  SLUICE_ASSIGN(const auto result, directory.result());
  if (result) return opened<ModelWeights>(directory, (*result)["steps"].get<std::uint64_t>());
  if (directory.run()->config.durable == Durable::on && directory.has_commits())
    return opened<SlotWeights>(directory, listener);
  if (directory.run()->config.durable == Durable::off && directory.has_snapshot())
    return opened<SnapshotWeights>(directory, listener);
  return bad_request(directory.path() +
                     ": the run was cut short before anything of it was kept; go on with it (sluice train --run " +
                     directory.path() + " --resume)");
}

Status StoredWeights::visit(bool masters, const Visit& visit_piece) {
  std::vector<float> values;
  for (UnitId unit = 0; unit < static_cast<UnitId>(model_.units.size()); ++unit) {
    const std::uint64_t shard = shard_numel(unit), numel = model_.units[static_cast<std::size_t>(unit)].numel;
    for (RankId rank = 0; rank < ranks(); ++rank) {
      const std::uint64_t begin = rank * shard, content = begin < numel ? std::min(shard, numel - begin) : 0;
      for (std::uint64_t at = 0; at < content; at += piece_numel()) {
        values.resize(std::min(piece_numel(), content - at));
        SLUICE_TRY(read(unit, rank, at, masters, values));
        SLUICE_TRY(visit_piece(unit, begin + at, values));
      }
    }
  }
  return success();
}

}  // namespace sluice
