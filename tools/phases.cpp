#include "tools/phases.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "sluice/size.h"
#include "src/train/data/batches.h"
#include "src/train/data/held_out.h"
#include "src/train/request/decided.h"
#include "src/train/request/seq_schedule.h"
#include "src/train/run/step_journal.h"

namespace sluice::tools {

Result<RunConfig> config_of_phase(const Prepared& run, std::size_t phase) {
  RunConfig config = at_phase(with_decisions(run), phase);
  if (!config.document_mask.value_or(false)) return config;
  return with_document_mask(config);  // documents are other parts of other sequences
}

Result<std::vector<std::unique_ptr<Prepared>>> prepare_later_phases(Prepared& run, const Tell& progress) {
  std::vector<std::unique_ptr<Prepared>> later;
  const std::vector<SequencePhase> phases = phases_of(run.config);
  const DriveLayout layout{run.workload.block_bytes, run.profile.drive.stripe_weights};
  for (auto i = static_cast<std::size_t>(run.config.phase) + 1; i < phases.size(); ++i) {
    SLUICE_ASSIGN(const RunConfig config, config_of_phase(run, i));
    if (progress) progress("sequences of " + grouped(static_cast<std::uint64_t>(config.sequence)));
    SLUICE_ASSIGN(later.emplace_back(), prepare(config, Purpose::train, progress, Effort::thorough, &layout));
    if (!later.back()->search.fits)
      return does_not_fit(*later.back()).in(fmt::format("--seq-schedule, sequences of {}", config.sequence));
    Prepared& before = later.size() > 1 ? *later[later.size() - 2] : run;
    before.states_move = durable_places(before) != durable_places(*later.back());
  }
  return later;
}

std::string phase_text(const Prepared& run) {
  const SequencePhase phase = phase_of(run.config);
  const auto number = [](std::int64_t n) { return grouped(static_cast<std::uint64_t>(n)); };
  const auto arena = [&](Tier tier) { return format_bytes(run.arena_of_machine(tier).arena_bytes); };
  return fmt::format(
      "steps {} to {}: sequences of {} tokens, predicted {} a step, {} in all; arenas: device {}, host {}, nvme {}",
      number(phase.first), number(phase.last), number(phase.sequence), format_seconds(run.step_seconds()),
      format_seconds(run.step_seconds() * static_cast<double>(phase.last - phase.first + 1)), arena(Tier::device),
      arena(Tier::host), arena(Tier::nvme));
}

nlohmann::ordered_json phase_json(const Prepared& run) {
  const SequencePhase phase = phase_of(run.config);
  return {{"sequence", phase.sequence},
          {"first_step", phase.first},
          {"last_step", phase.last},
          {"step_seconds", run.step_seconds()},
          {"device_bytes", run.arena_of_machine(Tier::device).arena_bytes},
          {"host_bytes", run.arena_of_machine(Tier::host).arena_bytes},
          {"nvme_bytes", run.arena_of_machine(Tier::nvme).arena_bytes}};
}

}  // namespace sluice::tools
