// What train and plan are asked for: a new run, or the one that is in the directory.
#pragma once

#include <memory>
#include <set>
#include <string>

#include "src/train/run/run_directory.h"
#include "tools/run_options.h"

namespace sluice::tools {

/// Whether there is something to begin with: bad_request where --resume names no run, and where --run names no
/// directory and a model, or data that is needed, is missing.
Status check_named(const RunOptions& options, bool data_needed);

/// The options, or those of the run in the directory with what may change laid over it. bad_request where they
/// contradict the run, where they ask for more than a complete one has, where its swap file is not where it should be;
/// and of a new one as check_named.
Result<RunConfig> described_config(const RunOptions& options, const std::set<std::string>& given,
                                   const RunDirectory& directory, bool data_needed);

/// A new run with a schedule that is searched, or the directory's with its own.
Result<std::unique_ptr<Prepared>> prepare_described(const RunConfig& config, const RunDirectory& directory,
                                                    const Tell& progress);

}  // namespace sluice::tools
