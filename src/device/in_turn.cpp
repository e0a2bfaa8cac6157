#include "src/device/in_turn.h"

#include <algorithm>
#include <barrier>
#include <cstdint>
#include <thread>

#include "sluice/clock.h"
#include "src/device/statistics.h"

namespace sluice {
namespace {

/// What the threads share. Every thread runs the same sequence of calls and meets the others in each.
class Turns {
 public:
  Turns(int threads, double seconds) : meet_(threads), round_seconds_(seconds / in_turn_rounds) {}

  /// Seconds that all threads together take for `count` passes each; the same value for every thread.
  double seconds(const ThreadPass& pass, int thread, std::int64_t count) {
    meet_.arrive_and_wait();
    if (thread == 0) start_ = now_seconds();
    for (std::int64_t i = 0; i < count; ++i) pass(thread);
    meet_.arrive_and_wait();
    if (thread == 0) took_ = now_seconds() - start_;
    meet_.arrive_and_wait();
    return took_;
  }

  /// How many passes fill a round. Few short ones would measure how threads meet.
  std::int64_t count_of(const ThreadPass& pass, int thread) {
    for (std::int64_t count = 1;; count *= 4) {
      const double took = seconds(pass, thread, count);
      if (took < round_seconds_ / 4) continue;
      return std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(count) * round_seconds_ / took));
    }
  }

 private:
  std::barrier<> meet_;
  const double round_seconds_;
  double start_ = 0, took_ = 0;  ///< written by thread 0, between barriers
};

Passes summary(const std::vector<double>& rates) {
  const auto [least, most] = std::minmax_element(rates.begin(), rates.end());
  const double middle = median(rates);
  return {middle, (*most - *least) / middle};
}

}  // namespace

std::vector<Passes> measure_in_turn(std::span<const ThreadPass> passes, int threads, double seconds) {
  Turns turns(threads, seconds);
  std::vector<std::vector<double>> rates(passes.size());
  const auto work = [&](int thread) {
    std::vector<std::int64_t> counts;
    counts.reserve(passes.size());
    for (const ThreadPass& pass : passes) counts.push_back(turns.count_of(pass, thread));
    for (int round = 0; round < in_turn_rounds; ++round)
      for (std::size_t p = 0; p < passes.size(); ++p) {
        const double took = turns.seconds(passes[p], thread, counts[p]);
        if (thread == 0) rates[p].push_back(static_cast<double>(counts[p]) / took);
      }
  };
  std::vector<std::thread> team;
  team.reserve(static_cast<std::size_t>(threads));
  for (int thread = 1; thread < threads; ++thread) team.emplace_back(work, thread);
  work(0);
  for (std::thread& t : team) t.join();
  std::vector<Passes> result;
  result.reserve(rates.size());
  for (const std::vector<double>& of_pass : rates) result.push_back(summary(of_pass));
  return result;
}

}  // namespace sluice
