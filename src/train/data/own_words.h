// Tokens as a rank sees them that has a part of the vocabulary.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/vocabulary_part.h"
#include "src/model/split.h"

namespace sluice {

/// The planes of a micro-batch of so many tokens, in place: words count from the rank's first one. Inputs that are not
/// its own are padding, and targets that are not are another's (kernels/vocabulary_part.h).
inline void keep_own_words(const SplitModel& split, RankId rank, std::size_t tokens, std::span<std::int32_t> planes) {
  const auto first = static_cast<std::int32_t>(split.first_word(rank)),
             end = first + static_cast<std::int32_t>(split.words(rank));
  const auto keep = [&](std::span<std::int32_t> words, std::int32_t elsewhere) {
    for (std::int32_t& word : words)
      if (word >= 0) word = word >= first && word < end ? word - first : elsewhere;
  };
  keep(planes.first(tokens), -1);
  keep(planes.subspan(tokens, tokens), kernels::target_elsewhere);
}

}  // namespace sluice
