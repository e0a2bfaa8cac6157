#include "src/train/request/longest_sequence.h"

#include <algorithm>
#include <numeric>

#include "src/schedule/sample.h"
#include "src/schedule/smallest.h"

namespace sluice {
namespace {

constexpr std::int64_t longest_looked_for = 1ll << 30;

/// Whether there is a plan of such sequences: the same answer that the smallest budgets give.
Result<bool> has_plan(RunConfig config, std::int64_t tokens, const Tell& progress) {
  config.sequence = tokens;
  config.beyond_positions = true;
  if (progress) progress("trying sequences of " + std::to_string(tokens) + " tokens");
  SLUICE_ASSIGN(const auto run, prepare_to_estimate(config, Purpose::train, {}));
  Workload& w = run->workload;
  w.durable = config.durable == Durable::on || speculates(config);
  if (w.stages() > 1 && !Sample(w, run->wish.pipeline).is_whole())
    return bad_request(
        "--max-seq looks for plans that fit to the page, and of so many stages and layers only a "
        "sample is planned; give lengths to try with --seq");
  TierBytes budgets = budgets_of(w);
  if (config.nvme.empty()) budgets.nvme = 0;
  return FrugalFamily(w, run->wish).fit(budgets).has_value();
}

}  // namespace

/// Slices of sequences, two in a ring or as many as a rank takes, and slices of a micro-batch's tokens.
std::int64_t shortest_sequence(const RunConfig& c) {
  const bool ring = c.context > 1 && c.context_attention == ContextAttention::ring;
  const std::int64_t slices = static_cast<std::int64_t>(c.context) * (ring ? 2 : c.slices);
  return slices * (c.tensor / std::gcd<std::int64_t>(c.tensor, c.micro_batch));
}

Result<LongestSequence> longest_sequence(const RunConfig& config, const Tell& progress) {
  LongestSequence found;
  SLUICE_ASSIGN(const ModelConfig model, load_config(config.model));
  found.positions = model.max_positions;
  const std::int64_t unit = shortest_sequence(config);
  const std::int64_t most = (model.family == Family::gpt2 ? model.max_positions : longest_looked_for) / unit;
  SLUICE_ASSIGN(const bool any, has_plan(config, unit, {}));
  if (!any)
    return bad_request("--max-seq: no budget of these has room for sequences of " + std::to_string(unit) +
                       (unit == 1 ? " token" : " tokens") + "; plan --seq " + std::to_string(unit) +
                       " says what would");
  // In units: `fits` does, `too_long` does not or is one more than is looked for.
  std::int64_t fits = 1, too_long = most + 1;
  for (std::int64_t length = std::clamp<std::int64_t>(1024 / unit, 2, most); fits < most;
       length = std::min(most, 2 * length)) {
    SLUICE_ASSIGN(const bool does, has_plan(config, length * unit, progress));
    if (!does) {
      too_long = length;
      break;
    }
    fits = length;
  }
  while (too_long - fits > 1) {
    const std::int64_t length = fits + (too_long - fits) / 2;
    SLUICE_ASSIGN(const bool does, has_plan(config, length * unit, progress));
    (does ? fits : too_long) = length;
  }
  found.tokens = fits * unit;
  found.refused = fits < most ? too_long * unit : 0;
  return found;
}

}  // namespace sluice
