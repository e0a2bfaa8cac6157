// A step as reports show it, read back from JSON that may be anybody's (src/train/request/step_json.h).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "sluice/status.h"

namespace sluice::tools {

/// Of ops of a kind on a lane: seconds in which one was under way, and how many they are.
struct WorkRow {
  std::string lane, op;
  std::uint64_t ops = 0, bytes = 0;
  double predicted = 0, measured = 0;
};
struct PassRow {
  std::string unit, direction, limit;
  std::uint64_t times = 0;
  double bound = 0, predicted = 0, measured = 0;
};
struct MemoryRow {
  std::string tier, contents;  ///< "parameters 1.2 GiB, ..." where most is alive
  std::uint64_t budget = 0, arena = 0, peak = 0;
};
struct ResourceRow {
  std::string name;
  double seconds = 0;
};

struct ReportedStep {
  double step_seconds = 0, bound_seconds = 0, pass_bound_seconds = 0;  ///< predicted
  std::string bottleneck;
  std::uint64_t ranks = 1;
  bool has_measured = false;
  std::vector<ResourceRow> resources;
  std::vector<WorkRow> work;
  std::vector<PassRow> passes;
  std::vector<MemoryRow> memory;  ///< as predicted
};
/// bad_request, without a file's name, where it is not what step_json makes: charts take it as it is.
Result<ReportedStep> read_step(const nlohmann::ordered_json& json);

}  // namespace sluice::tools
