// The streams of `bench io` by fio, in turn with our own, on the same file.
#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "sluice/size.h"
#include "src/device/statistics.h"
#include "tools/bench_io.h"

extern char** environ;  // NOLINT: as POSIX declares it

namespace sluice::tools {
namespace {

struct Measured {
  double bytes_per_second = 0, cpu_seconds_per_gib = 0;
};

/// What the program prints. Errors: bad_request where it is not installed; fault with its last line where it fails.
Result<std::string> output_of(std::vector<std::string> words) {
  std::array<int, 2> pipe_ends{};
  if (pipe2(pipe_ends.data(), O_CLOEXEC) != 0) return fault(fmt::format("pipe: {}", std::strerror(errno)));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], STDERR_FILENO);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t child = 0;
  const int rc = posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(pipe_ends[1]);
  std::string text;
  if (rc == 0) {
    std::array<char, 4096> part{};
    ssize_t n = 0;
    while ((n = read(pipe_ends[0], part.data(), part.size())) > 0 || (n < 0 && errno == EINTR))
      if (n > 0) text.append(part.data(), static_cast<std::size_t>(n));
  }
  close(pipe_ends[0]);
  if (rc != 0)
    return bad_request(fmt::format("cannot run {}: {}; install it (Debian: apt-get install {})", words[0],
                                   std::strerror(rc), words[0]));
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    while (!text.empty() && text.back() == '\n') text.pop_back();
    return fault(fmt::format("{} failed: {}", words[0], text.substr(text.find_last_of('\n') + 1)));
  }
  return text;
}

/// fio as its users set it up for speed: registered files and buffers, no work on the data; all else as it comes.
std::vector<std::string> fio_words(const StreamSetting& s, const DriveBench& bench, double seconds) {
  const bool mixed = s.mode == StreamMode::mixed, direct = bench.file().files()[0].alignment_bytes > 1;
  std::string names;
  for (const IoFile& f : bench.file().files())
    names += fmt::format("{}/proc/{}/fd/{}", names.empty() ? "" : ":", getpid(), f.fd);
  const std::string pattern = mixed ? "rw" : stream_mode_names[static_cast<std::size_t>(s.mode)];
  const std::size_t depth = s.depth * (mixed ? 2 : 1) * bench.file().files().size();
  std::vector<std::string> words{"fio",
                                 "--name=peer",
                                 "--filename=" + names,
                                 fmt::format("--rw={}{}", s.random ? "rand" : "", pattern),
                                 fmt::format("--bs={}", s.block_bytes),
                                 fmt::format("--iodepth={}", depth),
                                 fmt::format("--direct={}", direct ? 1 : 0),
                                 "--time_based",
                                 fmt::format("--runtime={:.0f}ms", seconds * 1000),
                                 "--allow_file_create=0",
                                 "--overwrite=1",
                                 "--fallocate=none",
                                 "--norandommap",
                                 "--scramble_buffers=0",
                                 "--group_reporting",
                                 "--output-format=json"};
  if (s.threads > 1) {
    const std::uint64_t part = bench.file().bytes() / s.threads / s.block_bytes * s.block_bytes;
    words.push_back(fmt::format("--numjobs={}", s.threads));
    words.push_back(fmt::format("--size={}", part));
    words.push_back(fmt::format("--offset_increment={}", part));
  }
  switch (s.backend) {
    case IoBackendKind::libaio: words.emplace_back("--ioengine=libaio"); break;
    case IoBackendKind::threads: words.emplace_back("--ioengine=posixaio"); break;
    default:
      words.insert(words.end(), {"--ioengine=io_uring", "--registerfiles=1", "--fixedbufs=1"});
      if (s.sqpoll) words.emplace_back("--sqthread_poll=1");
      if (s.iopoll) words.emplace_back("--hipri=1");
  }
  return words;
}

Result<Measured> run_fio(const StreamSetting& s, const DriveBench& bench, double seconds) {
  SLUICE_ASSIGN(const std::string text, output_of(fio_words(s, bench, seconds)));
  // Notes may come before the object.
  const auto json = nlohmann::json::parse(text.substr(std::min(text.find('{'), text.size())), nullptr, false);
  if (json.is_discarded() || !json.contains("jobs") || json["jobs"].empty())
    return fault("fio printed no result: " + text.substr(0, text.find('\n')));
  const auto& job = json["jobs"][0];
  Measured m;
  double bytes = 0;
  for (const char* direction : {"read", "write"}) {
    m.bytes_per_second += job[direction]["bw_bytes"].get<double>();
    bytes += job[direction]["io_bytes"].get<double>();
  }
  const double busy = job["job_runtime"].get<double>() / 1000;
  m.cpu_seconds_per_gib =
      (job["usr_cpu"].get<double>() + job["sys_cpu"].get<double>()) / 100 * busy / (bytes / (1ull << 30));
  return m;
}

Result<Measured> run_own(const StreamSetting& s, DriveBench& bench, double seconds) {
  SLUICE_ASSIGN(const StreamResult r, bench.run(s, seconds));
  return Measured{r.bytes_per_second(), r.cpu_seconds_per_gib()};
}

/// Rates and costs of a series of measurements, and their ratios to the peer's in the same round.
struct Series {
  std::vector<double> rates, costs;
  void add(const Measured& m) {
    rates.push_back(m.bytes_per_second);
    costs.push_back(m.cpu_seconds_per_gib);
  }
  std::vector<double> ratios(const Series& peer, std::vector<double> Series::*of) const {
    std::vector<double> out;
    for (std::size_t i = 0; i < (this->*of).size(); ++i) out.push_back((this->*of)[i] / (peer.*of)[i]);
    return out;
  }
};

struct Comparison {
  Series own, peer, again;  ///< `again`: fio a second time in each round, the machine's noise
};

Result<Comparison> compare(const StreamSetting& s, DriveBench& bench, const BenchIoOptions& o, ProgressLine& line) {
  Comparison c;
  for (int pair = 0; pair < o.pairs; ++pair) {
    line.update(
        fmt::format("{}: pair {} of {}", stream_mode_names[static_cast<std::size_t>(s.mode)], pair + 1, o.pairs),
        static_cast<double>(pair) / o.pairs);
    // Each takes each place in turn.
    for (int place = 0; place < 3; ++place) {
      const int who = (place + pair) % 3;
      SLUICE_ASSIGN(const Measured m, who == 0 ? run_own(s, bench, o.seconds) : run_fio(s, bench, o.seconds));
      (who == 0 ? c.own : who == 1 ? c.peer : c.again).add(m);
    }
  }
  return c;
}

std::string with_interval(const std::vector<double>& ratios) {
  const Interval i = median_interval(ratios);
  return fmt::format("{:.3f} [{:.3f}, {:.3f}]", median(ratios), i.low, i.high);
}

nlohmann::ordered_json ratio_json(const std::vector<double>& ratios) {
  const Interval i = median_interval(ratios);
  return {{"median", median(ratios)}, {"low", i.low}, {"high", i.high}};
}

}  // namespace

Status bench_io_against_fio(const BenchIoOptions& o) {
  ProgressLine line(10, !o.json);
  SLUICE_ASSIGN(const std::string version, output_of({"fio", "--version"}));
  SLUICE_ASSIGN(DriveBench bench, open_drive_bench(o, line));
  Table table({"", "sluice", "fio", "sluice / fio", "fio / fio", "CPU s/GiB", "of fio's"});
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (const StreamMode mode : o.modes) {
    StreamSetting s = o.setting;
    s.mode = mode;
    // Both must run on the same engine; io_uring is what `auto` stands for here.
    if (s.backend == IoBackendKind::automatic) s.backend = IoBackendKind::io_uring;
    SLUICE_ASSIGN(const Comparison c, compare(s, bench, o, line));
    const auto speed = c.own.ratios(c.peer, &Series::rates), noise = c.again.ratios(c.peer, &Series::rates);
    const auto cost = c.own.ratios(c.peer, &Series::costs);
    const char* const name = stream_mode_names[static_cast<std::size_t>(mode)];
    table.add({name, format_rate(median(c.own.rates)), format_rate(median(c.peer.rates)), with_interval(speed),
               with_interval(noise), fmt::format("{:.4f}", median(c.own.costs)), with_interval(cost)});
    results.push_back({{"mode", name},
                       {"backend", io_backend_names[static_cast<std::size_t>(s.backend)]},
                       {"block_bytes", s.block_bytes},
                       {"depth", s.depth},
                       {"pairs", o.pairs},
                       {"bytes_per_second", median(c.own.rates)},
                       {"peer_bytes_per_second", median(c.peer.rates)},
                       {"ratio", ratio_json(speed)},
                       {"peer_against_itself", ratio_json(noise)},
                       {"cpu_seconds_per_gib", median(c.own.costs)},
                       {"peer_cpu_seconds_per_gib", median(c.peer.costs)},
                       {"cpu_ratio", ratio_json(cost)}});
  }
  line.finish();
  const std::string peer = version.substr(0, version.find('\n'));
  if (o.json) {
    fmt::print("{}\n", nlohmann::ordered_json{{"peer", peer}, {"results", results}}.dump());
    return success();
  }
  fmt::print("{} x {}, {} pairs of {}, {}; medians, with the 95% interval of the median ratio\n{}", o.setting.depth,
             format_bytes(o.setting.block_bytes), o.pairs, format_seconds(o.seconds), peer, table.text());
  return success();
}

}  // namespace sluice::tools
