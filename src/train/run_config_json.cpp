#include "src/train/run_config_json.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

/// Whether a run that goes on may have another value: where it changes neither the states nor where they lie.
enum class Change : std::uint8_t { never, free };

/// Every option of a run that its directory keeps: option, key, field. One list for writing, reading and comparing.
template <class Config, class F>
void each_field(Config& c, F f) {
  auto& a = c.optimizer;
  auto& w = c.wish;
  f("--model", "model", c.model, Change::never);
  f("--init", "init", c.init, Change::never);
  f("--data", "data", c.data, Change::never);
  f("--document-mask", "document_mask", c.document_mask, Change::never);
  f("", "document_length", c.document_length, Change::free);
  f("--steps", "steps", c.steps, Change::never);
  f("--seq", "sequence", c.sequence, Change::never);
  f("--micro-batch", "micro_batch", c.micro_batch, Change::never);
  f("--batch", "batch", c.batch, Change::never);
  f("--ranks", "ranks", c.ranks, Change::never);
  f("--dtype", "dtype", c.dtype, Change::never);
  f("--moments", "moments", c.moments, Change::never);
  f("--lr", "lr", a.lr, Change::never);
  f("--lr-end", "lr_end", a.lr_end, Change::never);
  f("--lr-schedule", "lr_schedule", a.schedule, Change::never);
  f("--warmup", "warmup_steps", a.warmup_steps, Change::never);
  f("--beta1", "beta1", a.beta1, Change::never);
  f("--beta2", "beta2", a.beta2, Change::never);
  f("--eps", "eps", a.eps, Change::never);
  f("--weight-decay", "weight_decay", a.weight_decay, Change::never);
  f("--clip", "clip_norm", a.clip_norm, Change::never);
  f("--seed", "seed", c.seed, Change::never);
  f("--max-skipped", "skip_limit", c.skip_limit, Change::free);
  f("--eval-every", "eval_every", c.eval_every, Change::free);
  f("--eval-batches", "eval_batches", c.eval_batches, Change::free);
  f("--hash", "hash_every", c.hash_every, Change::free);
  f("--metrics", "metrics", c.metrics, Change::never);
  f("--trace", "trace", c.trace, Change::free);
  f("--device", "device", c.device, Change::free);
  f("--device-memory", "device_memory", c.device_memory, Change::never);
  f("--host-memory", "host_memory", c.host_memory, Change::never);
  f("--nvme-space", "nvme_space", c.nvme_space, Change::never);
  f("--nvme", "nvme", c.nvme, Change::never);
  f("--drive-tbw", "drive_tbw", c.drive_tbw, Change::free);
  f("--io", "io_backend", c.io_backend, Change::free);
  f("--queue-depth", "queue_depth", c.queue_depth, Change::free);
  f("--threads", "threads", c.threads, Change::never);
  f("--optimizer-threads", "optimizer_threads", c.optimizer_threads, Change::free);
  f("--group", "group", w.group, Change::never);
  f("--update", "update_ahead", w.update_ahead, Change::never);
  f("--recompute", "recompute", w.recompute, Change::never);
  f("--activations", "activations", w.activations, Change::never);
  f("--prefetch", "prefetch", w.prefetch, Change::never);
  f("--states", "states", w.states, Change::never);
  f("--residency", "resident", w.resident, Change::never);
  f("--optimizer", "update_on_device", w.update_on_device, Change::never);
  f("--durable", "durable", c.durable, Change::never);
  f("--profile", "profile", c.profile, Change::free);
  f("--delay-seed", "delay_seed", c.delay_seed, Change::free);
  f("--poison-steps", "poison_steps", c.poison_steps, Change::free);
}

template <class S, class F>
void each_choice(S& c, F&& f) {
  f("resident", c.resident);
  f("parameter_home", c.parameter_home);
  f("state_home", c.state_home);
  f("gradient", c.gradient);
  f("accumulator", c.accumulator);
  f("saved", c.saved);
  f("boundary", c.boundary);
  f("update_on_device", c.update_on_device);
}

template <class S, class F>
void each_knob(S& s, F&& f) {
  f("group", s.group);
  f("update_ahead", s.update_ahead);
  f("prefetch", s.prefetch);
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

template <class T>
struct Read {
  static bool from(const Json& json, T& out) {
    if constexpr (std::is_enum_v<T>) {
      if (!json.is_number_integer() || json.get<int>() < 0 || json.get<int>() > 16) return false;
      out = static_cast<T>(json.get<int>());
    } else if constexpr (std::is_same_v<T, bool>) {
      if (!json.is_boolean()) return false;
      out = json.get<bool>();
    } else if constexpr (std::is_integral_v<T>) {
      if (!json.is_number_integer()) return false;
      out = json.get<T>();
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
constexpr std::array<std::string_view, 4> later_keys{"document_mask", "document_length", "device", "update_on_device"};

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

Result<RunConfig> run_config_from_json(const Json& json) {
  RunConfig config;
  Reader read(json);
  each_field(config, [&](const char*, const char* key, auto& field, Change) { read(key, field); });
  SLUICE_TRY(read.status());
  return config;
}

Json to_json(const Schedule& schedule) {
  Json j;
  each_knob(schedule, [&](const char* key, const auto& field) { j[key] = value_json(field); });
  for (const UnitChoice& choice : schedule.units) {
    Json unit;
    each_choice(choice, [&](const char* key, const auto& field) { unit[key] = value_json(field); });
    j["units"].push_back(unit);
  }
  return j;
}

Result<Schedule> schedule_from_json(const Json& json) {
  Schedule schedule;
  Reader read(json);
  each_knob(schedule, read);
  SLUICE_TRY(read.status());
  if (!json.contains("units") || !json["units"].is_array()) return bad_request("'units' is missing");
  for (const Json& unit : json["units"]) {
    Reader read_unit(unit);
    each_choice(schedule.units.emplace_back(), read_unit);
    SLUICE_TRY(read_unit.status());
  }
  return schedule;
}

namespace {

/// As a person writes the value of the option.
std::string shown(const std::string& option, const Json& value) {
  static const std::map<std::string, std::vector<const char*>> names{
      {"--dtype", {"fp32", "bf16"}},
      {"--moments", {"fp32", "bf16", "int8"}},
      {"--lr-schedule", {"cosine", "linear", "constant"}},
      {"--activations", {"device", "host", "nvme"}},
      {"--states", {"device", "host", "nvme"}},
      {"--durable", {"auto", "on", "off"}},
  };
  if (value.is_null()) return "auto";
  if (option == "--document-mask") return value == true ? "on" : "off";
  if (option == "--update") return value == true ? "ahead" : "backward";
  if (option == "--recompute") return value == true ? "full" : "none";
  if (option == "--residency") return value == true ? "all" : "none";
  if (option == "--optimizer") return value == true ? "device" : "cpu";
  const auto of = names.find(option);
  if (of == names.end() || !value.is_number_integer())
    return value.is_string() ? value.get<std::string>() : value.dump();
  return value.get<std::size_t>() < of->second.size() ? of->second[value.get<std::size_t>()] : value.dump();
}

/// Options that leave it to the program: what it has decided stays decided.
bool left_open(const std::string& option, const Json& value) {
  if (value.is_null()) return true;
  if (option == "--durable") return value == static_cast<int>(Durable::automatic);
  const bool sized = option == "--threads" || option.ends_with("-memory") || option == "--nvme-space";
  return sized && value == 0;
}

}  // namespace

Result<RunConfig> continued(const RunConfig& stored, const RunConfig& given, const std::set<std::string>& options) {
  const Json before = to_json(stored), now = to_json(given);
  Json merged = before;
  std::string contradiction;
  // With a constant rate a longer run begins as the shorter one did.
  const bool may_grow = stored.optimizer.schedule == LrSchedule::constant && given.steps > stored.steps;
  each_field(stored, [&](const char* option, const char* key, const auto&, Change change) {
    const std::string name = option;
    const bool said = options.contains(name) || (name == "--group" && options.contains("--schedule"));
    if (!said || before[key] == now[key] || (change == Change::never && left_open(name, now[key]))) return;
    merged[key] = now[key];
    if (change == Change::free || (name == "--steps" && may_grow) || !contradiction.empty()) return;
    contradiction = name + " " + shown(name, now[key]) + " contradicts the run, which has " + shown(name, before[key]);
  });
  if (!contradiction.empty()) return bad_request(contradiction);
  SLUICE_ASSIGN(RunConfig config, run_config_from_json(merged));
  config.run = given.run;
  config.json = given.json;
  config.faults = given.faults;
  return config;
}

}  // namespace sluice
