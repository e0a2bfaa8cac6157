#include "offload/state/worker_team.h"

namespace sluice {

WorkerTeam::WorkerTeam(int threads) {
  for (int i = 1; i < threads; ++i) helpers_.emplace_back([this] { help(); });
}

WorkerTeam::~WorkerTeam() {
  leaving_.store(true);
  generation_.fetch_add(1);
  generation_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void WorkerTeam::take_chunks() {
  while (true) {
    const std::uint32_t i = next_.fetch_add(1, std::memory_order_relaxed);
    if (i >= count_) return;
    function_(context_, i);
  }
}

void WorkerTeam::run_job(std::uint32_t count, Function function, void* context) {
  if (helpers_.empty() || count <= 1) {
    for (std::uint32_t i = 0; i < count; ++i) function(context, i);
    return;
  }
  function_ = function;
  context_ = context;
  count_ = count;
  next_.store(0, std::memory_order_relaxed);
  open_.store(true);
  generation_.fetch_add(1);
  generation_.notify_all();
  take_chunks();
  // Close, then wait for those inside. A helper enters first and looks at `open_` after, so it either finds the job
  // closed or is seen here.
  open_.store(false);
  for (std::uint32_t inside = inside_.load(); inside != 0; inside = inside_.load()) inside_.wait(inside);
}

void WorkerTeam::help() {
  std::uint32_t seen = 0;
  while (true) {
    generation_.wait(seen);
    seen = generation_.load();
    if (leaving_.load()) return;
    inside_.fetch_add(1);
    if (open_.load()) take_chunks();
    if (inside_.fetch_sub(1) == 1) inside_.notify_one();
  }
}

}  // namespace sluice
