#include "tools/phases.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "sluice/size.h"
#include "src/train/data/batches.h"
#include "src/train/data/held_out.h"
#include "src/train/request/decided.h"
#include "src/train/run/step_journal.h"

namespace sluice::tools {

namespace {

std::string number(std::int64_t n) { return grouped(static_cast<std::uint64_t>(n)); }

std::int64_t steps_of(const SequencePhase& phase) { return phase.last - phase.first + 1; }

std::string arenas_text(const Prepared& plan) {
  const auto arena = [&](Tier tier) { return format_bytes(plan.arena_of_machine(tier).arena_bytes); };
  return fmt::format("arenas: device {}, host {}, nvme {}", arena(Tier::device), arena(Tier::host), arena(Tier::nvme));
}

std::string lengths_text(const SequencePhase& phase) {
  return phase.of_documents()
             ? fmt::format("whole documents of {} to {} tokens", number(phase.shortest), number(phase.sequence))
             : fmt::format("sequences of {} tokens", number(phase.sequence));
}

}  // namespace

Result<RunConfig> config_of_phase(const Prepared& run, std::size_t phase) {
  RunConfig config = at_phase(with_decisions(run), phase);
  if (!config.document_mask.value_or(false)) return config;
  return with_document_mask(config);  // documents are other parts of other sequences
}

Result<PhasePlans> PhasePlans::prepare(Prepared& run, const Tell& progress) {
  PhasePlans plans;
  plans.phases_ = phases_of(run.config);
  plans.phases_.erase(plans.phases_.begin(), plans.phases_.begin() + run.config.phase);
  const DriveLayout layout{run.workload.block_bytes, run.profile.drive.stripe_weights};
  std::vector<SequencePhase> kinds;
  for (std::size_t i = 0; i < plans.phases_.size(); ++i) {
    const SequencePhase& phase = plans.phases_[i];
    const auto known = std::ranges::find_if(kinds, [&](const SequencePhase& kind) { return kind.is_like(phase); });
    plans.kinds_.push_back(static_cast<std::size_t>(known - kinds.begin()));
    if (known != kinds.end()) continue;
    kinds.push_back(phase);
    plans.plans_.emplace_back();
    if (i == 0) {
      plans.places_.push_back(durable_places(run));
      continue;
    }
    SLUICE_ASSIGN(const RunConfig config, config_of_phase(run, static_cast<std::size_t>(run.config.phase) + i));
    if (progress) progress(lengths_text(phase));
    SLUICE_ASSIGN(plans.plans_.back(), sluice::prepare(config, Purpose::train, progress, Effort::thorough, &layout));
    if (!plans.plans_.back()->search.fits)
      return does_not_fit(*plans.plans_.back()).in("--seq-schedule, " + lengths_text(phase));
    plans.places_.push_back(durable_places(*plans.plans_.back()));
  }
  run.states_move = plans.moves_behind(0);
  return plans;
}

const Prepared& PhasePlans::of(const Prepared& run, std::size_t phase) const {
  const std::unique_ptr<Prepared>& plan = plans_[kinds_[phase]];
  return plan ? *plan : run;
}

/// To the next one, where there is one.
bool PhasePlans::moves_behind(std::size_t phase) const {
  return phase + 1 < kinds_.size() && places_[kinds_[phase]] != places_[kinds_[phase + 1]];
}

bool PhasePlans::any_move() const {
  for (std::size_t i = 0; i + 1 < kinds_.size(); ++i)
    if (moves_behind(i)) return true;
  return false;
}

void PhasePlans::go_on(std::unique_ptr<Prepared>& run) {
  SLUICE_CHECK(phases_.size() > 1, "no phase behind step %lld", static_cast<long long>(phases_.front().last));
  const auto next = static_cast<std::size_t>(run->config.phase) + 1;
  plans_[kinds_[0]] = std::move(run);
  run = std::move(plans_[kinds_[1]]);
  run->config = at_phase(with_decisions(*run), next);
  phases_.erase(phases_.begin());
  kinds_.erase(kinds_.begin());
  run->states_move = moves_behind(0);
}

std::string phase_begins(const Prepared& run) {
  const SequencePhase phase = phase_of(run.config);
  return fmt::format("step {}: from here on {}, to step {}", number(phase.first), lengths_text(phase),
                     number(phase.last));
}

std::vector<std::string> phase_texts(const Prepared& run, const PhasePlans& plans) {
  std::vector<std::string> texts;
  const std::vector<SequencePhase>& phases = plans.phases();
  if (plans.none()) return texts;
  struct Turns {
    std::size_t first = 0;
    std::int64_t steps = 0, turns = 0;
  };
  std::vector<Turns> kinds;
  double seconds = 0;
  for (std::size_t i = 0; i < phases.size(); ++i) {
    seconds += plans.of(run, i).step_seconds() * static_cast<double>(steps_of(phases[i]));
    auto kind = std::ranges::find_if(kinds, [&](const Turns& t) { return phases[t.first].is_like(phases[i]); });
    if (kind == kinds.end()) kind = kinds.insert(kind, {i});
    kind->steps += steps_of(phases[i]);
    ++kind->turns;
  }
  const bool again = phases.size() > 2 * kinds.size();
  for (std::size_t i = 0; !again && i < phases.size(); ++i) {
    const Prepared& plan = plans.of(run, i);
    const double takes = plan.step_seconds() * static_cast<double>(steps_of(phases[i]));
    texts.push_back(fmt::format("steps {} to {}: {}, predicted {} a step, {} in all; {}", number(phases[i].first),
                                number(phases[i].last), lengths_text(phases[i]), format_seconds(plan.step_seconds()),
                                format_seconds(takes), arenas_text(plan)));
  }
  for (std::size_t i = 0; again && i < kinds.size(); ++i) {
    const SequencePhase& first = phases[kinds[i].first];
    const Prepared& plan = plans.of(run, kinds[i].first);
    texts.push_back(fmt::format("{} steps in {} turns, the first of them {} to {}: {}, predicted {} a step; {}",
                                number(kinds[i].steps), number(kinds[i].turns), number(first.first), number(first.last),
                                lengths_text(first), format_seconds(plan.step_seconds()), arenas_text(plan)));
  }
  const auto changes = static_cast<std::int64_t>(phases.size()) - 1;
  const bool stay = run.workload.durable && !plans.any_move();
  texts.push_back(fmt::format(
      "predicted for all {} steps: {}, and {} changes of length, for each of which {}",
      number(phases.back().last - phases.front().first + 1), format_seconds(seconds), number(changes),
      stay ? "the arenas are made anew"
           : "states of " + format_bytes(state_bytes(run)) + " are written to the run's directory and read again"));
  return texts;
}

nlohmann::ordered_json phases_json(const Prepared& run, const PhasePlans& plans) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < plans.phases().size(); ++i) {
    const SequencePhase& phase = plans.phases()[i];
    const Prepared& plan = plans.of(run, i);
    nlohmann::ordered_json j{{"sequence", phase.sequence}};
    if (phase.of_documents()) j["shortest_document"] = phase.shortest;
    j["batch"] = batch_of(phase, run.config);
    j.update({{"first_step", phase.first},
              {"last_step", phase.last},
              {"step_seconds", plan.step_seconds()},
              {"device_bytes", plan.arena_of_machine(Tier::device).arena_bytes},
              {"host_bytes", plan.arena_of_machine(Tier::host).arena_bytes},
              {"nvme_bytes", plan.arena_of_machine(Tier::nvme).arena_bytes}});
    all.push_back(std::move(j));
  }
  return all;
}

}  // namespace sluice::tools
