// Sizes in bytes as people write them ("512MiB", "1.5GB"), and quantities as people read them.
#pragma once

#include <cctype>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "sluice/status.h"

namespace sluice {

namespace size_detail {

/// Bytes of a unit's name in any case; 0 if there is no such unit. KiB and plain K are 1024, KB is 1000.
inline std::uint64_t unit_bytes(std::string_view unit) {
  std::string u;
  for (const char c : unit) u += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  if (u.empty() || u == "B") return 1;
  const std::string_view letters = "KMGTP";
  const std::size_t power = letters.find(u[0]);
  if (power == std::string_view::npos) return 0;
  const std::string rest = u.substr(1);
  if (rest != "" && rest != "B" && rest != "IB") return 0;
  const std::uint64_t base = rest == "B" ? 1000 : 1024;
  std::uint64_t bytes = base;
  for (std::size_t i = 0; i < power; ++i) bytes *= base;
  return bytes;
}

inline std::string printed(const char* format, double value, const char* unit) {
  char text[64];
  std::snprintf(text, sizeof text, format, value, unit);
  return text;
}

}  // namespace size_detail

/// Bytes of "512MiB", "24GiB", "1.5GB", "64k", "4096". Fractions of a byte are dropped. bad_request on anything else,
/// on signs, and on sizes of 2^63 bytes or more.
inline Result<std::uint64_t> parse_size(std::string_view text) {
  const Error refused =
      bad_request("'" + std::string(text) + "' is not a size; write it like 512MiB, 24GiB, 1.5GB or 4096");
  std::size_t i = 0;
  std::uint64_t whole = 0;
  for (; i < text.size() && std::isdigit(static_cast<unsigned char>(text[i])); ++i)
    if (__builtin_mul_overflow(whole, std::uint64_t{10}, &whole) ||
        __builtin_add_overflow(whole, static_cast<std::uint64_t>(text[i] - '0'), &whole))
      return bad_request("'" + std::string(text) + "' is too large for a size in bytes");
  if (i == 0) return refused;
  long double fraction = 0;
  if (i < text.size() && text[i] == '.') {
    const std::size_t first = ++i;
    for (long double place = 0.1L; i < text.size() && std::isdigit(static_cast<unsigned char>(text[i]));
         ++i, place /= 10)
      fraction += place * static_cast<long double>(text[i] - '0');
    if (i == first) return refused;
  }
  while (i < text.size() && text[i] == ' ') ++i;
  const std::uint64_t unit = size_detail::unit_bytes(text.substr(i));
  if (unit == 0) return refused;
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(whole, unit, &bytes) || bytes >= (std::uint64_t{1} << 63))
    return bad_request("'" + std::string(text) + "' is too large for a size in bytes");
  return bytes + static_cast<std::uint64_t>(fraction * static_cast<long double>(unit) + 1e-9L);
}

/// "1.50 GiB", "512 MiB", "4096 B".
inline std::string format_bytes(std::uint64_t bytes) {
  static constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 6) value /= 1024, ++unit;
  const bool exact = value == std::floor(value);
  return size_detail::printed(exact ? "%.0f %s" : value < 10 ? "%.2f %s" : "%.1f %s", value, units[unit]);
}

/// "1 h 02 min", "3 min 05 s", "12.3 s", "4.56 ms", "7.8 us".
inline std::string format_seconds(double seconds) {
  if (!(seconds >= 0)) return "?";
  if (seconds < 1e-3) return size_detail::printed("%.1f %s", seconds * 1e6, "us");
  if (seconds < 1) return size_detail::printed("%.2f %s", seconds * 1e3, "ms");
  if (seconds < 60) return size_detail::printed("%.2f %s", seconds, "s");
  char text[64];
  const double minutes = std::floor(seconds / 60);
  if (minutes < 60)
    std::snprintf(text, sizeof text, "%.0f min %02.0f s", minutes, std::floor(seconds - 60 * minutes));
  else
    std::snprintf(text, sizeof text, "%.0f h %02.0f min", std::floor(minutes / 60),
                  minutes - 60 * std::floor(minutes / 60));
  return text;
}

/// A value with a decimal prefix: "1.23 G" for 1.23e9; append what it counts ("FLOP/s", "B/s", "tokens/s").
inline std::string format_count(double value) {
  static constexpr const char* prefixes[] = {"", "k", "M", "G", "T", "P"};
  int prefix = 0;
  while (std::fabs(value) >= 1000 && prefix < 5) value /= 1000, ++prefix;
  return size_detail::printed(std::fabs(value) < 10    ? "%.2f %s"
                              : std::fabs(value) < 100 ? "%.1f %s"
                                                       : "%.0f %s",
                              value, prefixes[prefix]);
}

/// "1.23 GB/s".
inline std::string format_rate(double bytes_per_second) { return format_count(bytes_per_second) + "B/s"; }

}  // namespace sluice
