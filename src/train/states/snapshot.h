// All states of a run in one file: how a run that is not durable goes on after it was asked to stop, or had to, and how
// any run goes on with another number of ranks.
//
// Header (64 bytes, little endian): magic "SLUICSNP", u32 version, u32 zero, u64 run id, u64 step, u64 bytes of states,
// 24 bytes zero. Then the states in logical order, and u64 XXH3 of everything before. Then what the metrics tell of the
// last steps, since their lines may not have been written: u64 count, StepResults, u64 XXH3 of both. Early versions end
// before it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/train/states/engine.h"

namespace sluice {

/// The states after `step`. The file appears whole or not at all. Nothing may run meanwhile.
Status save_snapshot(const std::string& path, std::uint64_t run_id, std::uint64_t step, Engine& engine,
                     std::span<const StepResult> results, const States::Watch& watch);
constexpr std::uint64_t snapshot_head_bytes = 64;  ///< the states begin here

/// Reads the whole file and compares its checksum. Returns the step. Errors as load_snapshot.
Result<std::uint64_t> verify_snapshot(const std::string& path, std::uint64_t run_id, std::uint64_t state_bytes,
                                      const States::Watch& watch);
/// Verifies the file, then fills the engine's states. Returns the step. bad_request when it is damaged or another
/// run's.
Result<std::uint64_t> load_snapshot(const std::string& path, std::uint64_t run_id, Engine& engine,
                                    const States::Watch& watch);
/// What the snapshot tells of the last steps; nothing where that is missing or damaged: states do not depend on it.
std::vector<StepResult> snapshot_results(const std::string& path, std::uint64_t state_bytes);

}  // namespace sluice
