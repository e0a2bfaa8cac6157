// Files that users name for a model's configuration, and that are its weights.
#pragma once

#include <optional>
#include <string>

namespace sluice {

/// What a file of weights is and what to do instead, like "is PyTorch's pickle of weights, which is not read; ...", by
/// its first bytes and the end of its name. None for other files, and for those that can not be read.
std::optional<std::string> weights_instead_of_config(const std::string& path);

}  // namespace sluice
