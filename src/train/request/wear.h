// What a run writes to its drives, and how long they stand it. Flash wears out by writing: vendors rate a drive in
// terabytes that a host may write to it in its life (TBW, JESD218).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace sluice {

/// All drives of a run together. Units are decimal, as in data sheets.
struct Wear {
  std::uint64_t bytes_per_step = 0;
  double bytes_per_day = 0;         ///< training without pause
  std::uint64_t tbw_bytes = 0;      ///< that the drives are rated for; 0: not known
  std::optional<double> days = {};  ///< that new drives last; none if the rating is not known or nothing is written
};

/// Of steps that take `step_seconds` > 0 each.
Wear drive_wear(std::uint64_t bytes_per_step, double step_seconds, std::uint64_t tbw_bytes);

/// "19.4 GB a step, 41.9 TB a day at the predicted step time; a drive rated for 600 TB written lasts 14 days".
/// `when`: "at the predicted step time".
std::string to_text(const Wear& wear, const std::string& when, std::size_t drives);

}  // namespace sluice
