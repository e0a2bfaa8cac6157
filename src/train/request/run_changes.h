// A run that goes on may go on otherwise: what may be another, what may not and why, and from which step on it was.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

#include "src/train/request/run_config.h"

namespace sluice {

/// The stored configuration with what the user gave anew (names of options, like "--metrics") laid over it. `resume`:
/// the user says that the run goes on; else what would change its steps is refused, for it may be meant for a new one.
/// bad_request for the first option that can not be another, with both values and the reason.
Result<RunConfig> continued(const RunConfig& stored, const RunConfig& given, const std::set<std::string>& options,
                            bool resume);

/// Whether steps of both add up the same numbers in the same order, as far as that follows from how the batch, the
/// sublayers and the sequences are cut, and from what states are kept in.
bool has_same_bits(const RunConfig& a, const RunConfig& b);

/// Up to the step before `from` the run was as `before` says, from there on as the next change, or the run, does.
struct RunChange {
  std::int64_t from = 0;
  RunConfig before;
};

/// Those of a run that stands behind step `done` and goes on as `now`, where it was as `before`. Steps that are run
/// anew are as `now`; what no step was run with is forgotten.
std::vector<RunChange> with_change(std::vector<RunChange> changes, const RunConfig& before, const RunConfig& now,
                                   std::int64_t done);

/// As the step was run, or will be.
const RunConfig& config_of_step(const std::vector<RunChange>& changes, const RunConfig& now, std::int64_t step);

/// "--lr 0.001 (0.0003 before), --steps 60 (40 before)": of what changes steps or the plan; empty where nothing does.
std::string change_text(const RunConfig& before, const RunConfig& now);

/// A list of {"from": 41, "was": {"lr": 0.0003}, "is": {"lr": 0.001}}.
nlohmann::ordered_json to_json(const std::vector<RunChange>& changes, const RunConfig& now);
/// bad_request for anything else.
Result<std::vector<RunChange>> changes_from_json(const nlohmann::ordered_json& json, const RunConfig& now);

}  // namespace sluice
