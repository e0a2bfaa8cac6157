#include "src/train/request/wear.h"

#include <fmt/format.h>

#include "sluice/size.h"

namespace sluice {
namespace {

constexpr double seconds_per_day = 86400, days_per_year = 365.25;

std::string decimal_bytes(double bytes) { return format_count(bytes) + "B"; }

/// In the unit that a person would plan in.
std::string life(double days) {
  if (days < 2) return format_seconds(days * seconds_per_day);
  if (days < 10) return fmt::format("{:.1f} days", days);
  if (days < 2 * days_per_year) return fmt::format("{:.0f} days", days);
  return fmt::format("{:.1f} years", days / days_per_year);
}

}  // namespace

Wear drive_wear(std::uint64_t bytes_per_step, double step_seconds, std::uint64_t tbw_bytes) {
  Wear wear{.bytes_per_step = bytes_per_step, .tbw_bytes = tbw_bytes};
  wear.bytes_per_day = static_cast<double>(bytes_per_step) * seconds_per_day / step_seconds;
  if (tbw_bytes > 0 && wear.bytes_per_day > 0) wear.days = static_cast<double>(tbw_bytes) / wear.bytes_per_day;
  return wear;
}

std::string to_text(const Wear& wear, const std::string& when, std::size_t drives) {
  if (wear.bytes_per_step == 0) return "none: a step writes nothing to the drive";
  std::string text = fmt::format("{} a step, {} a day {}", decimal_bytes(static_cast<double>(wear.bytes_per_step)),
                                 decimal_bytes(wear.bytes_per_day), when);
  if (!wear.days) return text;
  const std::string rated = decimal_bytes(static_cast<double>(wear.tbw_bytes));
  text += drives == 1 ? fmt::format("; a drive rated for {} written lasts ", rated)
                      : fmt::format("; {} drives rated for {} written together last ", drives, rated);
  return text + life(*wear.days);
}

}  // namespace sluice
