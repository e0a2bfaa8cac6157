// Plans of ranks side by side, and what is wrong with them in words.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "offload/plan/finish.h"
#include "offload/plan/world.h"
#include "sluice/topology.h"

namespace sluice::test {

using World = std::vector<StepPlan>;

inline std::vector<Topology> all_ranks(const Topology& topology) {
  std::vector<Topology> ranks;
  for (RankId r = 0; r < topology.ranks(); ++r) ranks.push_back(topology.at(r));
  return ranks;
}

inline std::string text(const std::vector<Violation>& violations) {
  std::string all;
  for (const Violation& v : violations) all += v.message + "\n";
  return all;
}

inline std::set<Violation::Kind> kinds(const std::vector<Violation>& violations) {
  std::set<Violation::Kind> all;
  for (const Violation& v : violations) all.insert(v.kind);
  return all;
}

}  // namespace sluice::test
