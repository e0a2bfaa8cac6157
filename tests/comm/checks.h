// What every transport does alike, checked from the side of one rank: by threads of one process, or by processes.
#pragma once

#include <string>
#include <vector>

#include "src/comm/world.h"

namespace sluice::test {

/// What was wrong, a line each. All ranks of the world call it.
std::vector<std::string> check_collectives(World& world, RankId rank);
std::vector<std::string> check_messages(World& world, RankId rank);
std::vector<std::string> check_groups(World& world, RankId rank);
/// Rank 0 cancels while the others wait, and all meet again.
std::vector<std::string> check_cancelling(World& world, RankId rank);
/// Texts, agreement and data from process to process: of processes.
std::vector<std::string> check_between_steps(World& world);

}  // namespace sluice::test
