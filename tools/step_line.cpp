#include "tools/step_line.h"

#include <fmt/format.h>

#include <array>

#include "sluice/size.h"
#include "src/device/efficiency.h"

namespace sluice::tools {
namespace {

std::string short_bytes(std::uint64_t bytes) {
  constexpr std::array<char, 6> units{'K', 'M', 'G', 'T', 'P', 'E'};
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < units.size()) value /= 1024, ++unit;
  return fmt::format("{:.{}f}{}", value, value < 9.95 ? 1 : 0, units[unit]);
}

/// "dev 1.2G host 3.4G nvme 20G".
std::string short_memory(const StepRecord& r) {
  std::string text = "dev " + short_bytes(r.device_peak_bytes);
  if (r.host_peak_bytes > 0) text += " host " + short_bytes(r.host_peak_bytes);
  if (r.nvme_peak_bytes > 0) text += " nvme " + short_bytes(r.nvme_peak_bytes);
  return text;
}

/// "1.23k" for "1.23 k".
std::string short_count(double value) {
  std::string text = format_count(value);
  std::erase(text, ' ');
  return text;
}

}  // namespace

std::vector<std::string> step_forms(const StepRecord& r, std::int64_t steps) {
  const std::string count = fmt::format("{}/{}", r.step, steps);
  const std::string head = fmt::format("step {}  loss {:.4f}  ", count, r.loss);
  const std::string memory = short_memory(r), rate = short_count(r.tokens_per_second);
  const std::string dense = fmt::format("{} loss {:.4f} {} tok/s", count, r.loss, rate);
  return {fmt::format("{}{} tokens/s  efficiency {}  device {}  host {}  nvme {}", head, rate,
                      format_efficiency(r.efficiency), format_bytes(r.device_peak_bytes),
                      format_bytes(r.host_peak_bytes), format_bytes(r.nvme_peak_bytes)),
          fmt::format("{}{} tok/s  {}  eff {}", head, rate, memory, format_efficiency(r.efficiency)),
          fmt::format("{}{} tok/s  {}", head, rate, memory),
          fmt::format("{} {}", dense, memory),
          dense,
          fmt::format("{} loss {:.4f}", count, r.loss),
          count};
}

}  // namespace sluice::tools
