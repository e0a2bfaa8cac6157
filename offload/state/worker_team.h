// A few threads that share the chunks of one job: the optimizer's elementwise work.
//
// Not a general pool on purpose: a run allocates nothing, helpers sleep between jobs instead of spinning on cores that
// compute needs, and a helper that the scheduler brings late never holds up the job.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace sluice {

class WorkerTeam {
 public:
  explicit WorkerTeam(int threads);  ///< the caller of run counts as one; at least 1
  ~WorkerTeam();
  WorkerTeam(const WorkerTeam&) = delete;
  WorkerTeam& operator=(const WorkerTeam&) = delete;

  int threads() const { return static_cast<int>(helpers_.size()) + 1; }

  /// work(i) for every i in [0, count), each once, on any of the threads; returns when all are done. One caller at a
  /// time.
  template <class Work>
  void run(std::uint32_t count, Work&& work) {
    using Type = std::remove_reference_t<Work>;
    run_job(
        count, [](void* context, std::uint32_t i) { (*static_cast<Type*>(context))(i); }, &work);
  }

 private:
  using Function = void (*)(void*, std::uint32_t);
  void run_job(std::uint32_t count, Function function, void* context);
  void take_chunks();
  void help();

  Function function_ = nullptr;
  void* context_ = nullptr;
  std::uint32_t count_ = 0;
  std::atomic<std::uint32_t> next_{0};
  std::atomic<std::uint32_t> inside_{0};      ///< helpers that may be looking at the job
  std::atomic<std::uint32_t> generation_{0};  ///< what helpers sleep on
  std::atomic<bool> open_{false}, leaving_{false};
  std::vector<std::thread> helpers_;
};

}  // namespace sluice
