#include <fmt/format.h>

#include <algorithm>

#include "offload/parallel.h"
#include "sluice/size.h"
#include "src/schedule/needs.h"
#include "src/schedule/sample.h"
#include "src/schedule/smallest.h"
#include "src/train/request/arrangement.h"
#include "src/train/request/choose_schedule.h"
#include "src/train/request/prepare.h"

namespace sluice {
namespace {

/// Of a large workload, whose members of FrugalFamily take minutes to pack: what the most frugal of them has alive,
/// with as many micro-batches as are on their way at once.
TierBytes about_least(Workload w, const ScheduleWish& wish, bool has_drive) {
  Schedule s = frugal_schedule(w, wish.pipeline);
  s.group = open_groups(w, wish).front();
  s.update_ahead = open_updates(w, wish).front();
  s.tile_numel = tile_for(w, 1u << 18, 64);
  if (!has_drive)
    for (UnitChoice& c : s.units)
      c.parameter_home = c.state_home = c.gradient = c.accumulator = c.boundary = c.blocks = Place::host;
  s = fixed(std::move(s), wish);
  w.micro_batches = Sample(w, wish.pipeline).lengths(s).few;
  return usual_needs(w, s, Plans::main);
}

}  // namespace

SmallestBudgets smallest_budgets(const Prepared& run) {
  const auto ranks = static_cast<std::uint64_t>(ranks_of_machine(run.config));
  const auto of_all = [&](TierBytes b) { return TierBytes{b.device, b.host * ranks, b.nvme * ranks}; };
  if (run.is_given) {
    const TierBytes needs = of_all(run.search.needs);
    return {{needs.device, needs.host, needs.nvme}, needs};
  }
  Workload w = run.workload;
  w.durable = !w.inference && (run.config.durable == Durable::on || speculates(run.config));
  const bool has_drive = !run.config.nvme.empty();
  const ScheduleWish wish = wish_of(run);
  SmallestBudgets smallest;
  if ((w.stages() > 1 || has_other_devices(run.config)) && !Sample(w, wish.pipeline).is_whole()) {
    const TierBytes least = about_least(w, wish, has_drive);
    return {{std::nullopt, std::nullopt, std::nullopt}, of_all(least), true};
  }
  TierBytes budgets = budgets_of(w);
  if (!has_drive) budgets.nvme = 0;
  parallel_invoke([&] { smallest.least = FrugalFamily(w, wish).least(budgets); },
                  [&] {
                    const std::uint64_t limit = has_drive ? FrugalFamily::unlimited : 0;
                    smallest.corner = of_all(FrugalFamily(w, wish).corner(limit));
                  });
  for (std::optional<std::uint64_t>* shared : {&smallest.least.host, &smallest.least.nvme})
    if (*shared) **shared *= ranks;
  return smallest;
}

Error does_not_fit(const Prepared& run, const SmallestBudgets& smallest) {
  const auto ranks = static_cast<std::uint64_t>(ranks_of_machine(run.config));
  const bool has_drive = !run.config.nvme.empty();
  const auto option = [](const char* name, std::uint64_t bytes) {
    return std::string(name) + " " + std::to_string(bytes) + " (" + format_bytes(bytes) + ")";
  };
  const TierBytes& s = smallest.corner;
  std::string text = run.config.model + " does not fit: the smallest budgets are " +
                     (smallest.is_estimated ? "about " : "") + option("--device-memory", s.device) + ", " +
                     option("--host-memory", s.host);
  if (has_drive)
    text += ", " + option("--nvme-space", s.nvme);
  else
    text += " without a drive, less with --nvme DIR";
  const auto given = [&](Tier t) { return run.workload.budget_bytes[static_cast<std::size_t>(t)]; };
  text += "; given are " + format_bytes(given(Tier::device)) + ", " + format_bytes(given(Tier::host) * ranks);
  if (has_drive) text += ", " + format_bytes(given(Tier::nvme) * ranks);
  if (ranks > 1)
    text += fmt::format(" (each rank has 1/{} of the host memory{})", ranks, has_drive ? " and the drive" : "");
  std::string alone;
  const auto add = [&](const char* name, const std::optional<std::uint64_t>& bytes) {
    if (bytes) alone += (alone.empty() ? "" : ", or ") + option(name, *bytes);
  };
  add("--device-memory", smallest.least.device);
  add("--host-memory", smallest.least.host);
  if (has_drive) add("--nvme-space", smallest.least.nvme);
  if (!run.is_given && !alone.empty()) text += ", where one of these alone would do: " + alone;
  return bad_request(text);
}

}  // namespace sluice
