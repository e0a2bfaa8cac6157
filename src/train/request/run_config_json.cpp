#include "src/train/request/run_config_json.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "src/train/data/data_tokenizer.h"
#include "src/train/request/seq_schedule.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

/// Every option of a run that its directory keeps: option, key, field. One list for writing, reading and comparing.
template <class Config, class F>
void each_field(Config& c, F f) {
  auto& a = c.optimizer;
  auto& w = c.wish;
  f("--model", "model", c.model, Change::never);
  f("--init", "init", c.init, Change::never);
  f("--restore", "restore", c.restore, Change::never);
  f("--reset-optimizer", "reset_optimizer", c.reset_optimizer, Change::never);
  f("--data", "data", c.data, Change::free);
  f("--tokenizer", "tokenizer", c.tokenizer, Change::never);
  f("--document-mask", "document_mask", c.document_mask, Change::never);
  f("", "document_length", c.document_length, Change::free);
  f("--steps", "steps", c.steps, Change::recorded);
  f("--seq", "sequence", c.sequence, Change::scheduled);
  f("--seq-schedule", "seq_schedule", c.seq_schedule, Change::recorded);
  f("", "phase", c.phase, Change::scheduled);
  f("--micro-batch", "micro_batch", c.micro_batch, Change::recast);
  f("--batch", "batch", c.batch, Change::scheduled);
  f("--ranks", "ranks", c.ranks, Change::recorded);
  f("--pp", "pp", c.stages, Change::recorded);
  f("--tp", "tp", c.tensor, Change::recast);
  f("--cp", "cp", c.context, Change::recast);
  f("--slices", "slices", c.slices, Change::recast);
  f("--mesh-order", "mesh_order", c.mesh_order, Change::recorded);
  f("--cp-attention", "cp_attention", c.context_attention, Change::recast);
  f("--pipeline", "pipeline", c.pipeline.order, Change::recorded);
  f("--chunks", "chunks", c.pipeline.chunks, Change::recorded);
  f("--lots", "lots", c.lots, Change::recast);
  f("--shard-group", "shard_group", c.shard_group, Change::recorded);
  f("--second-copy", "second_copy", c.second_copy, Change::planned);
  f("--reduction", "reduction", c.reduction, Change::recorded);
  f("--reduce", "reduce", c.sums, Change::recorded);
  f("", "close_ranks", c.close_ranks, Change::free);
  f("--gather", "gather", c.gathers, Change::recorded);
  f("--transport", "transport", c.transport, Change::free);
  f("--dtype", "dtype", c.dtype, Change::recast);
  f("--moments", "moments", c.moments, Change::recast);
  f("--gradient-dtype", "gradient_dtype", c.gradient_dtype, Change::recast);
  f("--activation-dtype", "activation_dtype", c.activation_dtype, Change::recast);
  f("--lr", "lr", a.lr, Change::recorded);
  f("--lr-end", "lr_end", a.lr_end, Change::recorded);
  f("--lr-schedule", "lr_schedule", a.schedule, Change::recorded);
  f("--warmup", "warmup_steps", a.warmup_steps, Change::recorded);
  f("--beta1", "beta1", a.beta1, Change::recorded);
  f("--beta2", "beta2", a.beta2, Change::recorded);
  f("--eps", "eps", a.eps, Change::recorded);
  f("--weight-decay", "weight_decay", a.weight_decay, Change::recorded);
  f("--clip", "clip_norm", a.clip_norm, Change::recorded);
  f("--seed", "seed", c.seed, Change::never);
  f("--max-skipped", "skip_limit", c.skip_limit, Change::free);
  f("--eval-split", "eval_split", c.eval_split, Change::never);
  f("--eval-data", "eval_data", c.eval_data, Change::free);
  f("--eval-every", "eval_every", c.eval_every, Change::free);
  f("--eval-batches", "eval_batches", c.eval_batches, Change::free);
  f("--hash", "hash_every", c.hash_every, Change::free);
  f("--save-every", "save_every", c.save_every, Change::free);
  f("--keep", "keep", c.keep, Change::free);
  f("--checkpoints", "checkpoints", c.checkpoints, Change::free);
  f("--metrics", "metrics", c.metrics, Change::never);
  f("--trace", "trace", c.trace, Change::free);
  f("--device", "device", c.device, Change::free);
  f("--device-memory", "device_memory", c.device_memory, Change::planned);
  f("--host-memory", "host_memory", c.host_memory, Change::planned);
  f("--nvme-space", "nvme_space", c.nvme_space, Change::planned);
  f("--nvme", "nvme", c.nvme, Change::free);
  f("--drive-tbw", "drive_tbw", c.drive_tbw, Change::free);
  f("--io", "io_backend", c.io_backend, Change::free);
  f("--queue-depth", "queue_depth", c.queue_depth, Change::free);
  f("--threads", "threads", c.threads, Change::recorded);
  f("--optimizer-threads", "optimizer_threads", c.optimizer_threads, Change::free);
  f("--group", "group", w.group, Change::planned);
  f("--update", "update_ahead", w.update, Change::planned);
  f("--recompute", "recompute", w.recompute, Change::planned);
  f("--activations", "activations", w.activations, Change::planned);
  f("--prefetch", "prefetch", w.prefetch, Change::planned);
  f("--states", "states", w.states, Change::planned);
  f("--residency", "resident", w.resident, Change::planned);
  f("--residency", "held", w.held, Change::planned);
  f("--optimizer", "update_on_device", w.update_on_device, Change::planned);
  f("--durable", "durable", c.durable, Change::planned);
  f("--profile", "profile", c.profile, Change::free);
  f("--deadline", "deadline_seconds", c.deadline_seconds, Change::free);
  f("--delay-seed", "delay_seed", c.delay_seed, Change::free);
  f("--poison-steps", "poison_steps", c.poison_steps, Change::free);
}

template <class S, class F>
void each_choice(S& c, F&& f) {
  f("resident", c.resident);
  f("held", c.held);
  f("second_copy", c.second_copy);
  f("parameter_home", c.parameter_home);
  f("state_home", c.state_home);
  f("gradient", c.gradient);
  f("accumulator", c.accumulator);
  f("saved", c.saved);
  f("core", c.core);
  f("boundary", c.boundary);
  f("blocks", c.blocks);
  f("sweep", c.sweep);
  f("update_on_device", c.update_on_device);
  f("late", c.late);
}

template <class S, class F>
void each_knob(S& s, F&& f) {
  f("pipeline", s.pipeline.order);
  f("chunks", s.pipeline.chunks);
  f("cut", s.cut);
  f("group", s.group);
  f("update_ahead", s.update_ahead);
  f("both_orders", s.both_orders);
  f("keeps_gradients", s.keeps_gradients);
  f("prefetch", s.prefetch);
  f("activations_ahead", s.activations_ahead);
  f("gradients_ahead", s.gradients_ahead);
  f("lag", s.lag);
  f("tiles_in_flight", s.tiles_in_flight);
  f("hold", s.hold);
  f("tile_numel", s.tile_numel);
}

template <class T>
Json value_json(const T& value) {
  if constexpr (std::is_enum_v<T>)
    return static_cast<int>(value);
  else
    return value;
}
template <class T>
Json value_json(const std::optional<T>& value) {
  return value ? value_json(*value) : Json(nullptr);
}

/// How many values there are.
template <class T>
constexpr int count_of = 0;
template <>
constexpr int count_of<LrSchedule> = 3;
template <>
constexpr int count_of<Durable> = 3;
template <>
constexpr int count_of<Transport> = static_cast<int>(transport_names.size());
template <>
constexpr int count_of<ContextAttention> = static_cast<int>(context_attention_names.size());
template <>
constexpr int count_of<PipelineOrder> = static_cast<int>(pipeline_order_names.size());
template <>
constexpr int count_of<Reduction> = static_cast<int>(reduction_names.size());
template <>
constexpr int count_of<RankSums> = static_cast<int>(rank_sums_names.size());
template <>
constexpr int count_of<RankGathers> = static_cast<int>(rank_gathers_names.size());
template <>
constexpr int count_of<Dtype> = 2;  // those that runs have
template <>
constexpr int count_of<ActivationDtype> = static_cast<int>(activation_dtype_names.size());
template <>
constexpr int count_of<MomentFormat> = 3;
template <>
constexpr int count_of<Place> = static_cast<int>(place_names.size());
template <>
constexpr int count_of<Saved> = static_cast<int>(saved_names.size());

template <class T>
struct Read {
  static bool from(const Json& json, T& out) {
    if constexpr (std::is_enum_v<T>) {
      static_assert(count_of<T> > 0);
      if (!json.is_number_integer() || json.get<std::int64_t>() < 0 || json.get<std::int64_t>() >= count_of<T>)
        return false;
      out = static_cast<T>(json.get<int>());
    } else if constexpr (std::is_same_v<T, bool>) {
      if (!json.is_boolean()) return false;
      out = json.get<bool>();
    } else if constexpr (std::is_integral_v<T>) {
      if (!json.is_number_integer()) return false;
      out = json.get<T>();
      if (sizeof(T) == 1 && json != static_cast<int>(out)) return false;
    } else if constexpr (std::is_floating_point_v<T>) {
      if (!json.is_number()) return false;
      out = json.get<T>();
    } else {
      static_assert(std::is_same_v<T, std::string>);
      if (!json.is_string()) return false;
      out = json.get<std::string>();
    }
    return true;
  }
};
template <class T>
struct Read<std::optional<T>> {
  static bool from(const Json& json, std::optional<T>& out) {
    out.reset();
    return json.is_null() || Read<T>::from(json, out.emplace());
  }
};
/// Of choices that runs from before there were more than two have a boolean for.
template <class T>
bool read_choice(const Json& json, std::size_t count, T if_true, T if_false, T& out) {
  if (json.is_boolean()) return out = json.get<bool>() ? if_true : if_false, true;
  if (!json.is_number_integer() || json.get<std::int64_t>() < 0 ||
      json.get<std::int64_t>() >= static_cast<std::int64_t>(count))
    return false;
  return out = static_cast<T>(json.get<int>()), true;
}
template <>
struct Read<Recompute> {
  static bool from(const Json& json, Recompute& out) {
    return read_choice(json, recompute_names.size(), Recompute::full, Recompute::none, out);
  }
};
template <>
struct Read<UpdateOrder> {
  static bool from(const Json& json, UpdateOrder& out) {
    return read_choice(json, update_order_names.size(), UpdateOrder::ahead, UpdateOrder::backward, out);
  }
};
template <class T>
struct Read<std::vector<T>> {
  static bool from(const Json& json, std::vector<T>& out) {
    if (!json.is_array()) return false;
    out.assign(json.size(), T{});
    for (std::size_t i = 0; i < json.size(); ++i)
      if (!Read<T>::from(json[i], out[i])) return false;
    return true;
  }
};

/// Keys that version 0.1's first runs do not have: their fields stay as they are.
constexpr std::array<std::string_view, 43> later_keys{"restore",
                                                      "reset_optimizer",
                                                      "save_every",
                                                      "keep",
                                                      "checkpoints",
                                                      "close_ranks",
                                                      "mesh_order",
                                                      "cp_attention",
                                                      "transport",
                                                      "cp",
                                                      "slices",
                                                      "blocks",
                                                      "gather",
                                                      "document_mask",
                                                      "document_length",
                                                      "device",
                                                      "update_on_device",
                                                      "eval_split",
                                                      "eval_data",
                                                      "tokenizer",
                                                      "lots",
                                                      "deadline_seconds",
                                                      "shard_group",
                                                      "reduction",
                                                      "reduce",
                                                      "held",
                                                      "second_copy",
                                                      "pp",
                                                      "pipeline",
                                                      "chunks",
                                                      "cut",
                                                      "tp",
                                                      "core",
                                                      "sweep",
                                                      "gradient_dtype",
                                                      "activation_dtype",
                                                      "activations_ahead",
                                                      "gradients_ahead",
                                                      "both_orders",
                                                      "keeps_gradients",
                                                      "late",
                                                      "seq_schedule",
                                                      "phase"};

/// Reads fields of one object; remembers the first that is not what it should be.
class Reader {
 public:
  explicit Reader(const Json& json) : json_(json) {}
  template <class T>
  void operator()(const char* key, T& field) {
    const bool is_there = json_.is_object() && json_.contains(key);
    if (!is_there && json_.is_object() && std::ranges::find(later_keys, key) != later_keys.end()) return;
    const bool good = is_there && Read<T>::from(json_[key], field);
    if (!good && wrong_.empty()) wrong_ = key;
  }
  Status status() const {
    if (wrong_.empty()) return success();
    return bad_request("'" + wrong_ + "' is missing or of another kind");
  }

 private:
  const Json& json_;
  std::string wrong_;
};

}  // namespace

Json to_json(const RunConfig& config) {
  Json j;
  each_field(config, [&](const char*, const char* key, const auto& field, Change) { j[key] = value_json(field); });
  return j;
}

const std::vector<ConfigField>& config_fields() {
  static const std::vector<ConfigField> fields = [] {
    std::vector<ConfigField> all;
    RunConfig config;
    each_field(config, [&](const char* option, const char* key, const auto&, Change change) {
      all.push_back({option, key, change});
    });
    return all;
  }();
  return fields;
}

bool shares_alike(const RunConfig& a, const RunConfig& b) {
  return a.ranks == b.ranks && a.stages == b.stages && a.pipeline == b.pipeline &&
         shares_states(a) == shares_states(b) && shard_group_of(a) == shard_group_of(b) &&
         numbered_axes(a) == numbered_axes(b) && a.nvme.size() == b.nvme.size();
}

bool is_laid_out_alike(const RunConfig& a, const RunConfig& b) {
  if (!shares_alike(a, b) || a.reduction != b.reduction || a.sequence != b.sequence) return false;
  const Json one = to_json(a), other = to_json(b);
  return std::ranges::all_of(config_fields(), [&](const ConfigField& f) {
    return (f.change != Change::planned && f.change != Change::recast) || one[f.key] == other[f.key];
  });
}

Result<RunConfig> run_config_from_json(const Json& json) {
  RunConfig config;
  config.tokenizer = bytes_of_texts;  // where the key is missing
  Reader read(json);
  each_field(config, [&](const char*, const char* key, auto& field, Change) { read(key, field); });
  SLUICE_TRY(read.status());
  // Of runs from before it was a choice.
  if (json.is_object() && !json.contains("mesh_order")) config.mesh_order = "pp,cp,dp,tp";
  // Of runs from before there was a third way.
  if (json.is_object() && !json.contains("held") && config.wish.resident) config.wish.held = false;
  SLUICE_TRY(check_seq_schedule(config));
  return config;
}

Json to_json(const Schedule& schedule) {
  Json j;
  each_knob(schedule, [&](const char* key, const auto& field) { j[key] = value_json(field); });
  const auto list = [&](const char* key, const std::vector<UnitChoice>& units) {
    for (const UnitChoice& choice : units) {
      Json unit;
      each_choice(choice, [&](const char* of_unit, const auto& field) { unit[of_unit] = value_json(field); });
      j[key].push_back(unit);
    }
  };
  list("units", schedule.units);
  list("waiting", schedule.waiting);
  return j;
}

Result<Schedule> schedule_from_json(const Json& json) {
  Schedule schedule;
  Reader read(json);
  each_knob(schedule, read);
  SLUICE_TRY(read.status());
  const auto fill = [&](const char* key, std::vector<UnitChoice>& units) -> Status {
    if (!json.contains(key) || !json[key].is_array()) return bad_request("'" + std::string(key) + "' is missing");
    for (const Json& unit : json[key]) {
      Reader read_unit(unit);
      each_choice(units.emplace_back(), read_unit);
      SLUICE_TRY(read_unit.status());
    }
    return success();
  };
  SLUICE_TRY(fill("units", schedule.units));
  if (json.contains("waiting")) SLUICE_TRY(fill("waiting", schedule.waiting));
  if (!schedule.waiting.empty() && schedule.waiting.size() != schedule.units.size())
    return bad_request("'waiting' has another number of units than 'units'");
  return schedule;
}

}  // namespace sluice
