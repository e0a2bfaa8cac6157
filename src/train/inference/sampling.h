// Which token follows: drawn from the logits.
#pragma once

#include <cstdint>
#include <span>

#include "sluice/status.h"

namespace sluice {

/// In this order, as transformers' generate has it: repetition penalty, temperature, top-k, top-p.
struct Sampling {
  double temperature = 1;  ///< 0: always the most likely token
  int top_k = 0;           ///< draw from the k most likely tokens; 0: from all
  std::uint64_t seed = 1;
  double top_p = 1;               ///< draw from the fewest tokens that together are at least so likely
  double repetition_penalty = 1;  ///< logits of tokens that came before are divided by it, negative ones multiplied
};

/// The token that follows at `position`, after the tokens `before`: a pure function of its arguments. Ties go to the
/// smaller token. Errors: fault when a logit is not finite.
Result<std::int32_t> sample_token(std::span<const float> logits, const Sampling& sampling, std::uint64_t position,
                                  std::span<const std::int32_t> before = {});

}  // namespace sluice
