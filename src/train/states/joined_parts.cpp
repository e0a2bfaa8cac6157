#include "src/train/states/joined_parts.h"

#include <algorithm>
#include <cstring>

namespace sluice {

Status JoinedParts::add(UnitId unit, RankId rank, std::uint64_t first, std::span<const std::byte> data) {
  const UnitSpec& part = split_.part().units[static_cast<std::size_t>(unit)];
  const UnitSpec& whole = whole_.units[static_cast<std::size_t>(unit)];
  if (missing_ == 0) {
    unit_.assign(whole.numel * element_bytes_, std::byte{0});
    missing_ = part.numel * split_.ranks();
  }
  const std::uint64_t last = first + data.size() / element_bytes_;
  for (std::size_t i = 0; i < part.tensors.size(); ++i) {
    const TensorSpec& t = part.tensors[i];
    if (t.offset >= last || t.offset + t.numel <= first) continue;
    split_.each_run(unit, i, rank, [&](const SplitModel::Run& run) {
      const std::uint64_t begin = t.offset + run.of_part;
      const std::uint64_t a = std::max(first, begin), b = std::min(last, begin + run.numel);
      if (a < b)
        std::memcpy(unit_.data() + (whole.tensors[i].offset + run.of_whole + (a - begin)) * element_bytes_,
                    data.data() + (a - first) * element_bytes_, (b - a) * element_bytes_);
    });
  }
  missing_ -= last - first;
  return missing_ == 0 ? visit_(unit, unit_) : success();
}

}  // namespace sluice
