// What members that split a vocabulary's columns tell each other of a token. The same bytes on every device.
#pragma once

#include <cstdint>

namespace sluice::kernels {

/// A target that counts and is another member's word. All other negative targets are ignored.
constexpr std::int32_t target_elsewhere = -2;

constexpr bool is_ignored(std::int32_t target) { return target < 0 && target != target_elsewhere; }

/// Of one token, over the columns of one member. All zero where the token's target is ignored.
struct VocabularyPart {
  double sum;     ///< of exp(x - largest); 0 without columns, NaN where a logit is NaN or +infinity
  float largest;  ///< of the logits, at least -FLT_MAX, which it is without columns
  float target;   ///< the target's logit where the member has its column, else 0
};
static_assert(sizeof(VocabularyPart) == 16);

}  // namespace sluice::kernels
