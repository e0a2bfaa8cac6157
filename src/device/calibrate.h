// Seconds that each compute op of a model takes alone on this machine: what `simulate` predicts with.
#pragma once

#include <string>

#include "sluice/plan.h"
#include "sluice/profile.h"
#include "sluice/status.h"
#include "src/device/device.h"
#include "src/device/doubts.h"
#include "src/schedule/schedule.h"

namespace sluice {

/// Stable text that contains every dimension on which the seconds of this op depend and nothing else:
/// "attention.backward b1 s512 h768 a12 kv12 d64 w0 llama t2 bf16". Only the CPU's ops depend on threads.
std::string cost_key(const Workload& workload, Sublayer sublayer, OpKind kind);

/// Measure every distinct sublayer op in the plans of a run of this workload that profile.op_seconds does not have yet,
/// on random data in memory of its own (median of a few runs; of a CPU's ops that last the median of three rounds of
/// such, and where the budget ends first the less of two), and add it. When `budget_seconds` are spent, the rest is
/// extrapolated from FLOP at the rate of what ran. *changed tells whether anything was added. Sets the calling thread's
/// OpenMP team to workload.threads. On a GPU the kernels that were chosen go to profile.device and its entry in
/// profile.devices. What is measured while others use the machine (by `clock`; null: the system's) is measured once
/// more where the budget allows, and else noted in `doubts`, which may be null. A GPU's seconds are its own.
Status calibrate(const Workload& workload, Device& device, HardwareProfile& profile, double budget_seconds,
                 bool* changed, Doubts* doubts = nullptr, CpuClock* clock = nullptr);

/// The kernels that were chosen for these ops, of the device in use.
KernelChoices chosen_kernels(const HardwareProfile& profile, const std::vector<std::string>& cost_keys);

}  // namespace sluice
