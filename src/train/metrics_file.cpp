#include "src/train/metrics_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace sluice {

Result<ContinuedMetrics> continue_metrics(const std::string& path, std::int64_t step) {
  ContinuedMetrics metrics;
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored) || !std::filesystem::is_regular_file(path, ignored)) {
    SLUICE_ASSIGN(metrics.writer, LineWriter::open(path, true));
    metrics.last_step = std::filesystem::is_regular_file(path, ignored) ? 0 : step;
    return metrics;
  }
  std::uint64_t kept = 0;
  {
    std::ifstream in(path, std::ios::binary);
    for (std::string line; std::getline(in, line) && !in.eof();) {
      long long number = 0;
      if (std::sscanf(line.c_str(), "{\"step\":%lld", &number) != 1)
        return bad_request(path + ": the line at byte " + std::to_string(kept) +
                           " is not of a metrics file; move the file away, or put back what was there");
      if (number > step) break;
      metrics.last_step = number;
      kept += line.size() + 1;
    }
  }
  if (truncate(path.c_str(), static_cast<off_t>(kept)) != 0)
    return fault(path + ": can not be cut to the lines that hold: " + std::strerror(errno));
  SLUICE_ASSIGN(metrics.writer, LineWriter::open(path, true));
  return metrics;
}

}  // namespace sluice
