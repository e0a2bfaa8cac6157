// What the kernel sweeps of the CPU share: SIMD targets, thread counts.
#pragma once

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cstdint>

#include "kernels/cpu/gemm.h"
#include "values.h"

namespace sluice::test {

/// Runs f with 1, 2 and 3 threads in the team, and leaves 2.
template <class F>
void with_thread_counts(const F& f) {
  for (int threads : {1, 2, 3}) {
    SCOPED_TRACE(testing::Message() << threads << " threads");
    kernels::set_compute_threads(threads);
    f();
  }
  kernels::set_compute_threads(2);
}

/// Runs f with dispatch forced to each SIMD target that this CPU supports.
template <class F>
void with_targets(const F& f) {
  hwy::SetSupportedTargetsForTest(0);
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    f();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
}

template <class T>
class Kernel : public testing::Test {};

}  // namespace sluice::test
