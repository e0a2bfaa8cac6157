#include "src/train/metrics_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

namespace sluice {

namespace {

struct Lines {
  std::uint64_t bytes = 0;  ///< up to and including the last line that holds
  std::int64_t last_step = 0;
};

bool is_regular(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

Result<Lines> lines_until(const std::string& path, std::int64_t step) {
  Lines lines;
  std::ifstream in(path, std::ios::binary);
  for (std::string line; std::getline(in, line) && !in.eof();) {
    long long number = 0;
    if (std::sscanf(line.c_str(), "{\"step\":%lld", &number) != 1)
      return bad_request(path + ": the line at byte " + std::to_string(lines.bytes) +
                         " is not of a metrics file; move the file away, or put back what was there");
    if (number > step) break;
    lines.last_step = number;
    lines.bytes += line.size() + 1;
  }
  return lines;
}

}  // namespace

Status check_metrics(const std::string& path) {
  if (!is_regular(path)) return success();
  const auto lines = lines_until(path, std::numeric_limits<std::int64_t>::max());
  return lines.ok() ? success() : Status(lines.error());
}

Result<ContinuedMetrics> continue_metrics(const std::string& path, std::int64_t step) {
  ContinuedMetrics metrics;
  if (!is_regular(path)) {
    SLUICE_ASSIGN(metrics.writer, LineWriter::open(path, true));
    metrics.last_step = is_regular(path) ? 0 : step;
    return metrics;
  }
  SLUICE_ASSIGN(const Lines lines, lines_until(path, step));
  if (truncate(path.c_str(), static_cast<off_t>(lines.bytes)) != 0)
    return fault(path + ": can not be cut to the lines that hold: " + std::strerror(errno));
  metrics.last_step = lines.last_step;
  SLUICE_ASSIGN(metrics.writer, LineWriter::open(path, true));
  return metrics;
}

}  // namespace sluice
