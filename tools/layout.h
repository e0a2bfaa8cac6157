// --layout auto: the arrangement of ranks is looked for.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>

#include "src/train/request/check_request.h"
#include "src/train/request/layouts.h"
#include "tools/run_options.h"

namespace sluice::tools {

/// Whether it is asked for. bad_request where it contradicts other options.
Result<bool> wants_layout(const RunOptions& options, const std::set<std::string>& given, const RunConfig& config,
                          bool goes_on);
/// The request is checked with an arrangement that can be, before anything is measured. `found` has at least one.
struct LayoutAnswer {
  CheckedRequest checked;  ///< with the quickest
  Layouts layouts;
};
Result<LayoutAnswer> find_layout(const RunOptions& options, const std::set<std::string>& given, Request request,
                                 const Tell& progress);

/// "pp 2 x dp 4 x cp 1 x tp 1, zb-h1"
std::string layout_text(const RunConfig& config);
/// The ten quickest, and why the others are not among them.
std::string layouts_text(const Layouts& layouts);
nlohmann::ordered_json layouts_json(const Layouts& layouts);

}  // namespace sluice::tools
