#include "src/train/metrics_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace sluice {

namespace {

struct Lines {
  std::uint64_t bytes = 0;  ///< up to and including the last line that holds
  std::int64_t last_step = 0;
  bool bad = false;  ///< the next line is not of a metrics file
};

bool is_regular(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

Lines lines_until(const std::string& path, std::int64_t step) {
  Lines lines;
  std::ifstream in(path, std::ios::binary);
  for (std::string line; std::getline(in, line) && !in.eof();) {
    long long number = 0;
    lines.bad = std::sscanf(line.c_str(), "{\"step\":%lld", &number) != 1 || line.back() != '}';
    if (lines.bad || number > step) break;
    lines.last_step = number;
    lines.bytes += line.size() + 1;
  }
  return lines;
}

Error not_metrics(const std::string& path, std::uint64_t at) {
  return bad_request(path + ": the line at byte " + std::to_string(at) +
                     " is not of a metrics file; move the file away, or put back what was there");
}

}  // namespace

Status check_metrics(const std::string& path) {
  if (!is_regular(path)) return success();
  const Lines lines = lines_until(path, 1);
  return lines.bad && lines.bytes == 0 ? Status(not_metrics(path, 0)) : success();
}

Result<ContinuedMetrics> continue_metrics(const std::string& path, std::int64_t step, std::int64_t rebuilt_max) {
  ContinuedMetrics metrics;
  if (!is_regular(path)) {
    SLUICE_ASSIGN(metrics.writer, LineWriter::open(path, true));
    metrics.last_step = is_regular(path) ? 0 : step;
    return metrics;
  }
  const Lines lines = lines_until(path, step);
  if (lines.bad && step - lines.last_step > rebuilt_max) return not_metrics(path, lines.bytes);
  if (truncate(path.c_str(), static_cast<off_t>(lines.bytes)) != 0)
    return fault(path + ": can not be cut to the lines that hold: " + std::strerror(errno));
  metrics.last_step = lines.last_step;
  SLUICE_ASSIGN(metrics.writer, LineWriter::open(path, true));
  return metrics;
}

}  // namespace sluice
