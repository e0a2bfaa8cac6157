#include "src/train/request/run_changes.h"

#include <algorithm>
#include <bit>
#include <map>
#include <nlohmann/json.hpp>

#include "src/train/request/run_config_json.h"
#include "src/train/request/seq_schedule.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

/// As a person writes the value of the option.
std::string shown(const std::string& option, const Json& value) {
  static const std::map<std::string, std::vector<const char*>> names{
      {"--dtype", {"fp32", "bf16"}},
      {"--moments", {"fp32", "bf16", "int8"}},
      {"--gradient-dtype", {"fp32", "bf16"}},
      {"--activation-dtype", {activation_dtype_names.begin(), activation_dtype_names.end()}},
      {"--lr-schedule", {"cosine", "linear", "constant"}},
      {"--activations", {"device", "host", "nvme"}},
      {"--states", {"device", "host", "nvme"}},
      {"--reduction", {"last", "pass"}},
      {"--recompute", {recompute_names.begin(), recompute_names.end()}},
      {"--update", {update_order_names.begin(), update_order_names.end()}},
      {"--pipeline", {pipeline_order_names.begin(), pipeline_order_names.end()}},
      {"--reduce", {rank_sums_names.begin(), rank_sums_names.end()}},
      {"--gather", {rank_gathers_names.begin(), rank_gathers_names.end()}},
      {"--cp-attention", {context_attention_names.begin(), context_attention_names.end()}},
      {"--transport", {transport_names.begin(), transport_names.end()}},
      {"--durable", {"auto", "on", "off"}},
  };
  if (option == "--eval-split" && value.is_null()) return "the last twentieth of its windows";
  if (value.is_null()) return "auto";
  if (option == "--seq-schedule" && value == "") return "none";
  if (option == "--document-mask") return value == true ? "on" : "off";
  if (option == "--residency") return value == true ? "all" : "none";
  if (option == "--shard-group" && value == 0) return "all ranks";
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
  const bool sized =
      option == "--threads" || option == "--lots" || option.ends_with("-memory") || option == "--nvme-space";
  return sized && value == 0;
}

/// Why an option can not have another value.
std::string reason(const std::string& option) {
  constexpr const char* data = "which tokens a step takes, and how they are added up, follows from it";
  static const std::map<std::string, const char*> reasons{
      {"--model", "its states are that model's"},
      {"--init", "weights are loaded before its first step"},
      {"--restore", "it began from those states"},
      {"--reset-optimizer", "it began so"},
      {"--document-mask", data},
      {"--seq", data},
      {"--batch", data},
      {"--seed", data},
      {"--eval-split", data},
      {"--metrics", "the lines of its steps are there"},
  };
  const auto found = reasons.find(option);
  return found == reasons.end() ? "it began so" : found->second;
}

bool changes_bits(const ConfigField& f) {
  return f.change == Change::recorded || f.change == Change::recast || f.change == Change::scheduled;
}

/// Of the options that change bits of steps, or also the plan, those that differ.
std::vector<ConfigField> changed_fields(const Json& before, const Json& now, bool of_plans_too = false) {
  std::vector<ConfigField> changed;
  for (const ConfigField& f : config_fields())
    if ((changes_bits(f) || (of_plans_too && f.change == Change::planned)) && before[f.key] != now[f.key])
      changed.push_back(f);
  return changed;
}

/// Numbers of ranks that add up the lots of a run in its tree.
std::string ranks_of(int lots) {
  std::string text = "1";
  int least = std::max(lots, 1);
  while (least % 2 == 0) least /= 2;
  for (int ranks = least; ranks <= lots; ranks *= 2)
    if (ranks > 1) text += (ranks == lots ? " or " : ", ") + std::to_string(ranks);
  return text;
}

/// The batch is cut as it was when the run began.
Status check_ranks(const RunConfig& run, const RunConfig& given) {
  const int ranks = given.stages > 0 ? batch_ranks(given) : 0;
  const int share = ranks > 0 && run.lots % ranks == 0 ? run.lots / ranks : 0;
  if (ranks == batch_ranks(run) || ranks == 1 || std::has_single_bit(static_cast<unsigned>(share))) return success();
  const std::string of_stages = given.stages > 1 ? " of --pp " + std::to_string(given.stages) + " stages" : "";
  return bad_request(
      "--ranks " + std::to_string(given.ranks) + of_stages + " contradicts the run, whose gradients add up in --lots " +
      std::to_string(run.lots) + ": it can go on with " + ranks_of(run.lots) + (given.stages > 1 ? " a stage" : "") +
      "; leave the option out to go on with " + std::to_string(run.ranks) + ", or give another --run DIR");
}

/// Slices of sequences add up behind the lots of a rank, which is a node of the tree where ranks have powers of two of
/// them, and the same one for any number of ranks only where they add up once.
Status check_slices(const RunConfig& run, const RunConfig& now) {
  if (run.context == 1 || !has_same_bits(run, now)) return success();
  const auto is_power = [](int count) { return std::has_single_bit(static_cast<unsigned>(count)); };
  const int before = batch_ranks(run), after = batch_ranks(now);
  const bool adds_alike = run.reduction == Reduction::last && is_power(before) && is_power(after);
  const std::string cut = " contradicts the run, in which --cp " + std::to_string(run.context) + " ranks ";
  if (run.reduction != now.reduction)
    return bad_request("--reduction " + std::string(reduction_names[static_cast<std::size_t>(now.reduction)]) + cut +
                       "have slices of sequences, whose sums another --reduction adds up in another order; leave the "
                       "option out to go on");
  const bool shares_alike = shares_states(run) == shares_states(now) && shard_group_of(run) == shard_group_of(now);
  if (before == after && !adds_alike && !shares_alike)
    return bad_request("--shard-group " + std::to_string(now.shard_group) + cut +
                       "have slices of sequences, whose sums other groups would add up in another order; leave the "
                       "option out to go on");
  if (before == after || adds_alike) return success();
  return bad_request("--ranks " + std::to_string(now.ranks) + cut + "have slices of sequences and " +
                     std::to_string(before) + " parts of a batch" +
                     (run.reduction == Reduction::pass ? " that add up behind every lot" : "") +
                     ", so that other numbers of parts would add up in another order; leave the option out to go on "
                     "with " +
                     std::to_string(run.ranks));
}

/// Another schedule of lengths is one of the steps to come: up to the phase that the run is at it is the run's own.
Status take_seq_schedule(const RunConfig& run, Json& merged) {
  if (merged["seq_schedule"] == run.seq_schedule) return success();
  const std::string text = merged["seq_schedule"];
  SLUICE_ASSIGN(const auto phases, parse_seq_schedule(text, merged["steps"].get<std::int64_t>()));
  if (!run.document_mask.value_or(false) && std::ranges::any_of(phases, &SequencePhase::of_documents))
    return bad_request("--seq-schedule " + text + " takes whole documents, which this run does not keep apart; " +
                       "give lengths alone, or begin a run with --document-mask on");
  const std::vector<SequencePhase> before = phases_of(run);
  const auto at = static_cast<std::size_t>(run.phase);
  std::string begins;
  const auto is_like = [&](const SequencePhase& a, const SequencePhase& b) {
    return a.has_lengths_of(b) && batch_of(a, run) == batch_of(b, run);
  };
  bool alike = at < phases.size() && is_like(phases[at], before[at]);
  for (std::size_t i = 0; i < at; ++i) {
    begins += before[i].text() + ":" + std::to_string(before[i].last - before[i].first + 1) + ",";
    alike = alike && i < phases.size() && is_like(phases[i], before[i]) && phases[i].last == before[i].last;
  }
  if (alike) {
    merged["sequence"] = run.sequence;
    merged["phase"] = run.phase;
    return success();
  }
  return bad_request("--seq-schedule " + text + " contradicts the run, which is at sequences of " +
                     before[at].lengths() + " from step " + std::to_string(before[at].first) +
                     " on; give one that begins with " + begins + before[at].text() + ":STEPS");
}

/// Options that --zero fixes.
bool follows_from_zero(const std::string& option) {
  return option == "--shard-group" || option == "--residency" || option == "--group";
}

}  // namespace

bool has_same_bits(const RunConfig& a, const RunConfig& b) {
  const Json one = to_json(a), other = to_json(b);
  return std::ranges::none_of(
      config_fields(), [&](const ConfigField& f) { return f.change == Change::recast && one[f.key] != other[f.key]; });
}

namespace {

bool same_steps(const RunConfig& a, const RunConfig& b) { return changed_fields(to_json(a), to_json(b)).empty(); }

}  // namespace

Result<RunConfig> continued(const RunConfig& stored, const RunConfig& given, const std::set<std::string>& options,
                            bool resume) {
  if (options.contains("--ranks") && !options.contains("--lots") && !options.contains("--micro-batch"))
    SLUICE_TRY(check_ranks(stored, given));
  const Json before = to_json(stored), now = to_json(given);
  Json merged = before;
  // With a constant rate a longer run begins as the shorter one did.
  const bool may_grow = stored.optimizer.schedule == LrSchedule::constant && given.steps > stored.steps;
  // Left open, it is a tenth of the rate.
  const bool end_follows = options.contains("--lr") && stored.optimizer.lr_end == stored.optimizer.lr / 10;
  for (const ConfigField& f : config_fields()) {
    const std::string name = f.option;
    const bool said = options.contains(name) || (name == "--group" && options.contains("--schedule")) ||
                      (name == "--lr-end" && end_follows) || (options.contains("--zero") && follows_from_zero(name)) ||
                      (options.contains("--zero-plus-plus") && (name == "--gather" || name == "--reduce"));
    if (!said || before[f.key] == now[f.key] || (f.change != Change::free && left_open(name, now[f.key]))) continue;
    merged[f.key] = now[f.key];
    const bool held = std::string_view(f.key) == "held";
    const auto text = [&](const Json& value) {
      if (held && !value.is_null()) return std::string(value == true ? "step" : "none or all");
      return value == "" ? std::string("none") : shown(name, value);
    };
    const bool is_from_zero = !options.contains(name) && options.contains("--zero") && follows_from_zero(name);
    const std::string contradiction = (is_from_zero ? "--zero means " : "") + name + " " + text(now[f.key]) +
                                      (is_from_zero ? ", and that" : "") + " contradicts the run, which has " +
                                      text(before[f.key]);
    if (f.change == Change::never || f.change == Change::scheduled)
      return bad_request(contradiction + ": " + reason(name) + "; leave the option out to go on, or start a new run");
    if (f.change != Change::free && !resume && !(name == "--steps" && may_grow))
      return bad_request(contradiction +
                         "; add --resume to go on with it from here on, leave the option out to go on "
                         "as before, or give another --run DIR");
  }
  if (!resume && options.contains("--nvme") && given.nvme.size() != stored.nvme.size())
    return bad_request("--nvme names " + std::to_string(given.nvme.size()) +
                       " directories, and the swap file of the run is striped over " +
                       std::to_string(stored.nvme.size()) +
                       "; name where each of them is now, in their order, or add --resume to go on with others");
  SLUICE_TRY(take_seq_schedule(stored, merged));
  SLUICE_ASSIGN(RunConfig config, run_config_from_json(merged));
  SLUICE_TRY(check_slices(stored, config));
  // More ranks have fewer micro-batches each, and their plan is made anew.
  const int micro_batches = config.batch / (config.micro_batch * batch_ranks(config));
  const int before_all = stored.batch / (stored.micro_batch * batch_ranks(stored));
  if (batch_ranks(config) != batch_ranks(stored) && config.wish.group == stored.wish.group && config.wish.group)
    config.wish.group = *config.wish.group == before_all
                            ? micro_batches
                            : std::clamp(*config.wish.group, 1, std::max(1, micro_batches));
  if (!is_laid_out_alike(config, stored) && !options.contains("--shard-group") && !options.contains("--zero") &&
      !shares_states(config) && batch_ranks(config) % config.shard_group != 0)
    config.shard_group = 0;
  const int shards = shard_group_of(config);
  if (!options.contains("--second-copy") && config.second_copy > 0 &&
      (config.second_copy >= shards || shards % config.second_copy != 0))
    config.second_copy = 0;
  config.run = given.run;
  config.json = given.json;
  config.faults = given.faults;
  return config;
}

std::vector<RunChange> with_change(std::vector<RunChange> changes, const RunConfig& before, const RunConfig& now,
                                   std::int64_t done) {
  changes.push_back({done + 1, before});
  std::vector<RunChange> kept;
  for (RunChange& change : changes) {
    change.from = std::min(change.from, done + 1);
    // Nothing was run between two changes before one step, nor ahead of the first.
    if (change.from > 1 && (kept.empty() || kept.back().from < change.from)) kept.push_back(std::move(change));
  }
  for (std::size_t i = kept.size(); i-- > 0;)
    if (same_steps(kept[i].before, i + 1 < kept.size() ? kept[i + 1].before : now))
      kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(i));
  return kept;
}

const RunConfig& config_of_step(const std::vector<RunChange>& changes, const RunConfig& now, std::int64_t step) {
  for (const RunChange& change : changes)
    if (step < change.from) return change.before;
  return now;
}

std::string change_text(const RunConfig& before, const RunConfig& now) {
  const Json was = to_json(before), is = to_json(now);
  std::string text;
  for (const ConfigField& f : changed_fields(was, is, true)) {
    if (*f.option == 0) continue;  // it follows from another
    text += (text.empty() ? "" : ", ") + std::string(f.option) + " " + shown(f.option, is[f.key]) + " (" +
            shown(f.option, was[f.key]) + " before)";
  }
  return text;
}

Json to_json(const std::vector<RunChange>& changes, const RunConfig& now) {
  Json all = Json::array();
  for (std::size_t i = 0; i < changes.size(); ++i) {
    const Json was = to_json(changes[i].before), is = to_json(i + 1 < changes.size() ? changes[i + 1].before : now);
    Json change{{"from", changes[i].from}};
    for (const ConfigField& f : changed_fields(was, is)) {
      change["was"][f.key] = was[f.key];
      change["is"][f.key] = is[f.key];
    }
    all.push_back(change);
  }
  return all;
}

Result<std::vector<RunChange>> changes_from_json(const Json& json, const RunConfig& now) {
  const Error wrong = bad_request("'changes' is not a list of what changed from which step on");
  if (!json.is_array()) return wrong;
  std::vector<RunChange> changes(json.size());
  Json config = to_json(now);
  for (std::size_t i = json.size(); i-- > 0;) {
    const Json& change = json[i];
    if (!change.is_object() || !change.contains("from") || !change["from"].is_number_integer() ||
        !change.contains("was") || !change["was"].is_object())
      return wrong;
    changes[i].from = change["from"].get<std::int64_t>();
    for (const auto& [key, value] : change["was"].items()) config[key] = value;
    SLUICE_ASSIGN(changes[i].before, run_config_from_json(config));
    if (i + 1 < changes.size() && changes[i].from >= changes[i + 1].from) return wrong;
  }
  return changes;
}

}  // namespace sluice
