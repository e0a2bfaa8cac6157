// Whether files and directories can be made where a run will make them: asked before any work, and nothing is made.
#pragma once

#include <cstdint>
#include <string>

#include "src/train/request/run_config.h"

namespace sluice {

/// bad_request, naming the option, where `directory` is not a directory in which files can be made.
Status check_writable_directory(const std::string& option, const std::string& directory);

/// The same for one that may have to be made first, in the nearest directory above it that there is.
Status check_makeable_directory(const std::string& option, const std::string& directory);

/// Whether the file system of a new run has room for what it leaves: the model, and where its steps can not be durable
/// also the states of a run that is stopped. Of the parameters alone; what else there is is known with the plan.
Status check_room(const RunConfig& config, std::uint64_t parameters);

/// Every --nvme directory of a run that will have a swap file there.
Status check_drives(const RunConfig& config);

/// --profile, or the user's default one: read where it is there, else its place.
Status check_profile(const RunConfig& config);

}  // namespace sluice
