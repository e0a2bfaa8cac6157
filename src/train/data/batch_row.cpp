#include "src/train/data/batch_row.h"

#include <array>

namespace sluice {

Status read_targets(const TokenFile& tokens, std::uint64_t start, std::span<std::int32_t> targets) {
  SLUICE_TRY(tokens.read(start, targets));
  if (!tokens.has_mask()) return success();
  std::array<std::uint8_t, 512> counts;
  for (std::size_t at = 0; at < targets.size(); at += counts.size()) {
    const std::span part = targets.subspan(at, std::min(counts.size(), targets.size() - at));
    SLUICE_TRY(tokens.read_mask(start + at, std::span(counts).first(part.size())));
    for (std::size_t i = 0; i < part.size(); ++i)
      if (counts[i] == 0) part[i] = -1;
  }
  return success();
}

}  // namespace sluice
