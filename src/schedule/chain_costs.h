// The chains (src/schedule/chain.h) of a workload on a machine: one of every place along a pipeline.
#pragma once

#include <vector>

#include "sluice/profile.h"
#include "src/schedule/chain.h"

namespace sluice {

/// The units of a place, and behind them the head, or what another stage goes on with.
struct PlaceChain {
  UnitId first = 0;
  Chain chain;
  double times = 1;           ///< that a step passes it: groups of micro-batches
  int alive = 1;              ///< groups whose activations wait at the same time, of all places of the stage
  ByWay rest;                 ///< what a step of the stage asks of each resource beside this
  std::uint64_t working = 0;  ///< the most that one of its backward passes needs beside what waits
};

/// Of a schedule without what it says of activations. From the profile's seconds of ops, and rates of copies and
/// drives.
std::vector<PlaceChain> chains_of(const Workload& workload, const Schedule& schedule, const HardwareProfile& hw);
/// The same without costs, and in no stage's memory.
std::vector<PlaceChain> places_of(const Workload& workload, const Schedule& schedule);
/// Only of the first units, a share of all, what they save may be parked in host memory.
void keep_off_host(PlaceChain& place, double share);
/// And none of their inputs.
void keep_inputs_off_host(PlaceChain& place);
/// Only of the last units, a share of all, what they save and their inputs may be parked on the drive.
void keep_off_drive(PlaceChain& place, double share);

/// What parking asks of a link or drive beyond the time of the pass that it belongs to counts as time of computing: as
/// if there were no room in which it could wait while other passes go on. A plan whose device is full has none.
void count_waits(PlaceChain& place);

/// What waits on the device where all of it does, and what the backward pass at hand needs: more room is of no use.
std::uint64_t most_bytes(const PlaceChain& place);

/// The schedule with these choices for the units of a place.
void choose(Schedule& schedule, const PlaceChain& place, const ChainChoices& choices);
/// What the schedule says of them.
ChainChoices choices_of(const Schedule& schedule, const PlaceChain& place);

/// How much more the schedule's activations ask of the scarcest resource than a lower bound of all that could become of
/// them in the device's memory, as a part of it: 0.03 is 3%. Of the stage where it is most. The rest of the schedule is
/// as it is.
double activation_gap(const Workload& workload, const Schedule& schedule, const HardwareProfile& hw);

}  // namespace sluice
