// Whether the next steps are better begun as if they did not clip.
#pragma once

#include <array>
#include <cstddef>

namespace sluice {

/// Counts which of the last steps had a norm above the threshold, and weighs by that share two ways to run the next:
/// speculative, where a step that clips is repaired, and with updates that wait for the norm, where it makes no
/// difference. Knows nothing but predictions and norms, which are the same on all ranks.
class ClipForecast {
 public:
  static constexpr std::size_t steps_max = 32;

  struct Costs {
    double speculative = 0, repaired = 0, ahead = 0;  ///< seconds of a step; repaired: of one that clips
    double changing = 0;                              ///< seconds, before steps are speculative again
  };
  /// `may_wait`: there is a plan for steps that wait.
  ClipForecast(Costs costs, bool may_wait) : costs_(costs), may_wait_(may_wait) {}

  void add(bool clipped);
  std::size_t steps() const { return count_; }  ///< that it knows of, the last steps_max at most
  std::size_t clipped() const;                  ///< of those

  /// Whether the next steps are to wait for their norms, where they do or do not now: what is not a hundredth quicker,
  /// or does not make good in steps_max steps what a change takes, is not worth it. First steps mostly clip, and wait.
  bool waits(bool waits_now) const;

 private:
  Costs costs_;
  bool may_wait_;
  std::array<bool, steps_max> last_{};
  std::size_t next_ = 0, count_ = 0;
};

}  // namespace sluice
