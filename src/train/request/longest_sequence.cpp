#include "src/train/request/longest_sequence.h"

#include <algorithm>
#include <numeric>

#include "src/schedule/sample.h"
#include "src/schedule/smallest.h"
#include "src/train/request/decided.h"

namespace sluice {
namespace {

constexpr std::int64_t longest_looked_for = 1ll << 30;

/// Sequences that budgets have room for: the same answer that the smallest budgets give.
class Lengths {
 public:
  Lengths(const RunConfig& config, const Tell& progress) : config_(config), progress_(progress) {}

  /// Whether there is a plan of such sequences with this base of FrugalFamily.
  Result<bool> has_plan(std::int64_t tokens, std::size_t base) {
    if (progress_ && has_any_ && tokens != at_) progress_("trying sequences of " + std::to_string(tokens) + " tokens");
    at_ = config_.sequence = tokens;
    SLUICE_ASSIGN(const auto run, prepare_to_estimate(config_, Purpose::train, {}));
    Workload& w = run->workload;
    w.durable = config_.durable == Durable::on || speculates(config_);
    if (w.stages() > 1 && !Sample(w, run->wish.pipeline).is_whole())
      return bad_request(
          "--max-seq looks for plans that fit to the page, and of so many stages and layers only a "
          "sample is planned; give lengths to try with --seq");
    TierBytes budgets = budgets_of(w);
    if (config_.nvme.empty()) budgets.nvme = 0;
    const FrugalFamily family(w, run->wish);
    spots_.resize(family.bases());
    const bool fits = base < spots_.size() && family.fits(base, budgets, spots_[base]);
    has_any_ |= fits;
    return fits;
  }
  /// Known behind the first call.
  std::size_t bases() const { return spots_.size(); }
  /// The last length that there is a plan of, in units, at most `most`; `fits` is one.
  Result<std::int64_t> last(std::size_t base, std::int64_t unit, std::int64_t fits, std::int64_t most) {
    std::int64_t too_long = most + 1;
    for (std::int64_t step = fits > 1 ? fits / 64 + 1 : 1024 / unit + 1; too_long > most && fits < most; step *= 2) {
      const std::int64_t length = fits + std::min(step, most - fits);
      SLUICE_ASSIGN(const bool does, has_plan(length * unit, base));
      (does ? fits : too_long) = length;
    }
    while (too_long - fits > 1) {
      const std::int64_t length = fits + (too_long - fits) / 2;
      SLUICE_ASSIGN(const bool does, has_plan(length * unit, base));
      (does ? fits : too_long) = length;
    }
    return fits;
  }

 private:
  RunConfig config_;
  const Tell& progress_;
  std::int64_t at_ = 0;
  bool has_any_ = false;                   ///< a refusal of all is one line
  std::vector<FrugalFamily::Spot> spots_;  ///< by base: where it kept the budgets with the last length
};

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
  // Open budgets are those of now for all lengths, and for who plans the longest.
  found.config = config;
  found.config.beyond_positions = true;
  found.config.sequence = unit;
  SLUICE_ASSIGN(const auto now, prepare_to_estimate(found.config, Purpose::train, {}));
  found.config = with_budgets(*now);
  const std::int64_t most = (model.family == Family::gpt2 ? model.max_positions : longest_looked_for) / unit;
  Lengths lengths(found.config, progress);
  // One base after the other as far as it goes, until none of them goes further than the last one did.
  std::int64_t fits = 0;  // in units
  std::size_t refusing = 0;
  for (std::size_t base = 0; fits < most; base = (base + 1) % lengths.bases()) {
    SLUICE_ASSIGN(const bool goes_further, lengths.has_plan((fits + 1) * unit, base));
    if (goes_further) {
      SLUICE_ASSIGN(fits, lengths.last(base, unit, fits + 1, most));
      refusing = 0;
    }
    if (++refusing == lengths.bases()) break;
  }
  if (fits == 0)
    return bad_request("--max-seq: no budget of these has room for sequences of " + std::to_string(unit) +
                       (unit == 1 ? " token" : " tokens") + "; plan --seq " + std::to_string(unit) +
                       " says what would");
  found.config.sequence = fits * unit;
  found.refused = fits < most ? (fits + 1) * unit : 0;
  return found;
}

}  // namespace sluice
