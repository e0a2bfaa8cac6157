#include "src/device/quiet.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <thread>

namespace sluice {
namespace {

constexpr int attempts_max = 3;
constexpr double look_seconds = 0.1;

cpu_set_t usable_set() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) CPU_SET(0, &set);
  return set;
}

double seconds_of(const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); }

/// Ticks of "cpuN user nice system idle iowait irq softirq steal ..." in which the core was not idle.
double busy_ticks(const std::string& line) {
  std::istringstream fields(line);
  std::string name;
  fields >> name;
  double busy = 0, value = 0;
  for (int i = 0; i < 8 && fields >> value; ++i)
    if (i != 3 && i != 4) busy += value;
  return busy;
}

}  // namespace

CpuReading SystemCpuClock::read() {
  CpuReading r;
  const cpu_set_t usable = usable_set();
  std::ifstream stat("/proc/stat");
  for (std::string line; std::getline(stat, line);) {
    unsigned core = 0;
    if (std::sscanf(line.c_str(), "cpu%u", &core) == 1 && core < CPU_SETSIZE && CPU_ISSET(core, &usable))
      r.all += busy_ticks(line) / static_cast<double>(sysconf(_SC_CLK_TCK));
  }
  rusage own{};
  getrusage(RUSAGE_SELF, &own);
  r.own = seconds_of(own.ru_utime) + seconds_of(own.ru_stime);
  r.wall = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  return r;
}

void SystemCpuClock::sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

int SystemCpuClock::cores() const {
  const cpu_set_t usable = usable_set();
  return std::max(1, CPU_COUNT(&usable));
}

std::string disturbance(const CpuReading& before, const CpuReading& after, int cores, double tolerated) {
  const double wall = after.wall - before.wall;
  if (wall <= 0) return "";
  // Ticks are counted late: what is less than one of each core is no use by others.
  const double ticks = 0.01 * cores;
  const double others = (after.all - before.all) - (after.own - before.own) - ticks;
  if (others <= tolerated * cores * wall) return "";
  return fmt::format("other programs used {:.1f} of {} cores", others / wall, cores);
}

std::string disturbance_now(CpuClock& clock) {
  const CpuReading before = clock.read();
  clock.sleep(look_seconds);
  return disturbance(before, clock.read(), clock.cores());
}

Result<QuietMeasurer::Measured> QuietMeasurer::measure(Better better, const std::function<Result<double>()>& once,
                                                       double tolerated) {
  Measured best;
  for (int attempt = 0; attempt < attempts_max; ++attempt) {
    const CpuReading before = clock_.read();
    SLUICE_ASSIGN(const double value, once());
    const CpuReading after = clock_.read();
    best.disturbance = disturbance(before, after, clock_.cores(), tolerated);
    const bool ahead = better == Better::more ? value > best.value : value < best.value;
    if (attempt == 0 || ahead) best.value = value;
    if (attempt > 0) patience_ -= after.wall - before.wall;
    if (best.disturbance.empty() || patience_ <= 0) break;
  }
  return best;
}

}  // namespace sluice
