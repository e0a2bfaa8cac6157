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

std::vector<SequencePhase> phases_from(const Prepared& run) {
  std::vector<SequencePhase> phases = phases_of(run.config);
  phases.erase(phases.begin(), phases.begin() + run.config.phase);
  return phases;
}

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
  const SequencePhase now = phase_of(run.config);
  const std::vector<SequencePhase> phases = phases_of(run.config);
  const DriveLayout layout{run.workload.block_bytes, run.profile.drive.stripe_weights};
  for (const std::size_t i : phases_apart(run.config, static_cast<std::size_t>(run.config.phase))) {
    if (phases[i].is_like(now)) continue;
    SLUICE_ASSIGN(const RunConfig config, config_of_phase(run, i));
    if (progress) progress(lengths_text(phases[i]));
    SLUICE_ASSIGN(auto plan, sluice::prepare(config, Purpose::train, progress, Effort::thorough, &layout));
    if (!plan->search.fits) return does_not_fit(*plan).in("--seq-schedule, " + lengths_text(phases[i]));
    plans.others_.push_back(std::move(plan));
  }
  run.states_move = plans.move_behind(run, static_cast<std::size_t>(run.config.phase));
  return plans;
}

const Prepared& PhasePlans::of(const Prepared& run, const SequencePhase& phase) const {
  if (phase_of(run.config).is_like(phase)) return run;
  const auto found = std::ranges::find_if(
      others_, [&](const std::unique_ptr<Prepared>& other) { return phase_of(other->config).is_like(phase); });
  SLUICE_CHECK(found != others_.end(), "no plan for sequences of %s", phase.lengths().c_str());
  return **found;
}

/// From the phase `phase` to the next one, where there is one.
bool PhasePlans::move_behind(const Prepared& run, std::size_t phase) const {
  const std::vector<SequencePhase> phases = phases_of(run.config);
  return phase + 1 < phases.size() &&
         durable_places(of(run, phases[phase])) != durable_places(of(run, phases[phase + 1]));
}

bool PhasePlans::any_move(const Prepared& run) const {
  const std::size_t from = static_cast<std::size_t>(run.config.phase), phases = phases_of(run.config).size();
  for (std::size_t i = from; i + 1 < phases; ++i)
    if (move_behind(run, i)) return true;
  return false;
}

void PhasePlans::go_on(std::unique_ptr<Prepared>& run) {
  const auto next = static_cast<std::size_t>(run->config.phase) + 1;
  const SequencePhase phase = phases_of(run->config)[next];
  const auto found = std::ranges::find_if(
      others_, [&](const std::unique_ptr<Prepared>& other) { return phase_of(other->config).is_like(phase); });
  SLUICE_CHECK(found != others_.end(), "no plan for sequences of %s", phase.lengths().c_str());
  std::swap(run, *found);
  run->config = at_phase(with_decisions(*run), next);
  run->states_move = move_behind(*run, next);
}

std::vector<std::string> phase_texts(const Prepared& run, const PhasePlans& plans) {
  std::vector<std::string> texts;
  const std::vector<SequencePhase> phases = phases_from(run);
  const std::vector<std::size_t> apart = phases_apart(run.config, static_cast<std::size_t>(run.config.phase));
  if (phases.size() == 1) return texts;
  double seconds = 0;
  for (const SequencePhase& phase : phases) {
    const Prepared& plan = plans.of(run, phase);
    const double takes = plan.step_seconds() * static_cast<double>(steps_of(phase));
    seconds += takes;
    if (phases.size() > 2 * apart.size()) continue;
    texts.push_back(fmt::format("steps {} to {}: {}, predicted {} a step, {} in all; {}", number(phase.first),
                                number(phase.last), lengths_text(phase), format_seconds(plan.step_seconds()),
                                format_seconds(takes), arenas_text(plan)));
  }
  if (texts.empty()) {  // again and again
    for (const std::size_t i : apart) {
      const SequencePhase& first = phases[i - static_cast<std::size_t>(run.config.phase)];
      const Prepared& plan = plans.of(run, first);
      std::int64_t steps = 0, turns = 0;
      for (const SequencePhase& phase : phases)
        if (phase.is_like(first)) steps += steps_of(phase), ++turns;
      texts.push_back(fmt::format("{} steps in {} turns, the first of them {} to {}: {}, predicted {} a step; {}",
                                  number(steps), number(turns), number(first.first), number(first.last),
                                  lengths_text(first), format_seconds(plan.step_seconds()), arenas_text(plan)));
    }
  }
  texts.push_back(fmt::format("predicted for all {} steps: {}", number(phases.back().last - phases.front().first + 1),
                              format_seconds(seconds)));
  return texts;
}

nlohmann::ordered_json phases_json(const Prepared& run, const PhasePlans& plans) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const SequencePhase& phase : phases_from(run)) {
    const Prepared& plan = plans.of(run, phase);
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
