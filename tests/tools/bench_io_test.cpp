// sluice bench io as a person runs it, and what it is made of.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "src/device/drive_bench.h"
#include "src/device/latency.h"
#include "src/device/profile.h"
#include "src/device/statistics.h"
#include "tests/scratch_dir.h"
#include "tests/tools/command.h"

namespace sluice {
namespace {

using nlohmann::json;

class BenchIo : public CommandTest {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(path("drive"));
    std::filesystem::create_directory(path("other"));
  }
  std::string on_drive(const char* seconds = "0.05") const {
    return "bench io --path " + path("drive") + " --size 16MiB --seconds " + seconds + " ";
  }
  bool nothing_left() const {
    return std::filesystem::is_empty(path("drive")) && std::filesystem::is_empty(path("other"));
  }
};

void expect_result(const json& r, const char* mode, double more_requests = 1.001) {
  EXPECT_EQ(r["mode"], mode);
  for (const char* name : {"block_bytes", "depth", "bytes_per_second", "iops"}) EXPECT_GT(r[name], 0) << name;
  EXPECT_GE(r["cpu_seconds_per_gib"], 0);
  EXPECT_TRUE(r["backend"].is_string());
  const json& latency = r["latency_us"];
  EXPECT_GT(latency["p50"], 0);
  EXPECT_LE(latency["p50"], latency["p99"]);
  EXPECT_LE(latency["p99"], latency["p999"]);
  EXPECT_LE(latency["p999"], latency["max"]);
  // Requests at the ends of stripes are smaller than a block.
  const double blocks = r["bytes_per_second"].get<double>() / r["block_bytes"].get<double>();
  EXPECT_GE(r["iops"], 0.999 * blocks);
  EXPECT_LE(r["iops"], more_requests * blocks);
}

TEST_F(BenchIo, EveryModeBackendAndPattern) {
  for (const char* backend : {"io_uring", "libaio", "threads"}) {
    for (const char* mode : {"read", "write", "mixed"}) {
      for (const char* more :
           {"", " --pattern random --block 4KiB --depth 32", " --threads 2 --block 64KiB --depth 1"}) {
        const Finished f = sluice(on_drive() + "--json --mode " + mode + " --backend " + backend + more);
        ASSERT_EQ(f.status, 0) << f.err;
        const json r = json::parse(f.out);
        expect_result(r, mode);
        EXPECT_EQ(r["backend"], backend);
        if (std::string(mode) == "mixed") {
          const double reads = r["read_bytes_per_second"], writes = r["write_bytes_per_second"];
          EXPECT_GT(reads, 0.3 * writes);
          EXPECT_GT(writes, 0.3 * reads);
        }
      }
    }
  }
  EXPECT_TRUE(nothing_left());
}

TEST_F(BenchIo, AllModesAsTableAndJson) {
  const Finished table = sluice(on_drive());
  ASSERT_EQ(table.status, 0) << table.err;
  for (const char* word : {"read", "write", "mixed", "IOPS", "p99.9", "CPU s/GiB"})
    EXPECT_NE(table.out.find(word), std::string::npos) << word << "\n" << table.out;
  EXPECT_EQ(table.err, "");
  const json all = json::parse(sluice(on_drive() + "--json").out);
  ASSERT_EQ(all["results"].size(), 3u);
  expect_result(all["results"][2], "mixed");
}

TEST_F(BenchIo, SeveralPathsAreStriped) {
  const Finished f = sluice(on_drive() + "--json --mode mixed --path " + path("other"));
  ASSERT_EQ(f.status, 0) << f.err;
  expect_result(json::parse(f.out), "mixed", 1.3);
  EXPECT_TRUE(nothing_left());
}

TEST_F(BenchIo, RefusesWhatCannotBeMeasured) {
  expect_refused(on_drive() + "--block 1000", "4096");
  expect_refused(on_drive() + "--block 32MiB", "smaller than a block of 32 MiB");
  expect_refused(on_drive() + "--block 0", "0 has room for nothing");
  expect_refused(on_drive() + "--path " + path("drive/../drive"), "both are one place; name it once");
  expect_refused("bench io --size 4000TiB --path " + path("drive"), "free");
  expect_refused(on_drive() + "--backend aio", "aio");
  expect_refused(on_drive() + "--backend threads --sqpoll", "io_uring");
  expect_refused(on_drive() + "--sweep --tune", "exclude");
  expect_refused(on_drive() + "--memory 9999GiB", "--memory");
  expect_refused(on_drive() + "--memory 9999GiB --sweep", "--memory");
  expect_refused(on_drive() + "--tune --profile " + path("drive"), path("drive"));
  expect_refused(on_drive() + "--svg x.svg", "--sweep");
  expect_refused(on_drive() + "--sweep --depth 4", "--depth: --sweep and --tune measure all of them");
  expect_refused(on_drive() + "--tune --block 64KiB", "--block: --sweep and --tune measure all of them");
  expect_refused(on_drive() + "--pairs 5", "--pairs is of --against: add it");
  expect_refused(on_drive() + "--profile p.json", "--tune");
  expect_refused("bench io --path " + path("nowhere"), "nowhere");
  write("file", "x");
  expect_refused("bench io --path " + path("file"), "not a directory");
  EXPECT_EQ(read(path("file")), "x");
  EXPECT_TRUE(nothing_left());
}

TEST_F(BenchIo, SweepWritesTheFileThatIsNamed) {
  for (const char* name : {"a.svg", "a.svg", "noending"}) {
    const Finished f = sluice(on_drive("0.01") + "--mode read --backend threads --sweep --json --svg " + path(name));
    ASSERT_EQ(f.status, 0) << f.err;
    const json r = json::parse(f.out);
    EXPECT_GE(r["results"].size(), 50u);
    EXPECT_EQ(r["picture"], path(name));
    const std::string svg = read(path(name));
    EXPECT_EQ(svg.rfind("<svg", 0), 0u);
    EXPECT_NE(svg.find("</svg>"), std::string::npos);
    EXPECT_GT(std::count(svg.begin(), svg.end(), '\n'), 100);
  }
  EXPECT_TRUE(nothing_left());
}

// Reads, writes and both have a heat map each, in one file, and no other file is made. Without a name an older picture
// stays.
TEST_F(BenchIo, ASweepOfAllModesIsOnePicture) {
  std::filesystem::create_directory(path("here"));
  write("here/io-sweep.svg", "mine");
  const std::string sweep =
      "bench io --path " + path("drive") + " --size 1MiB --seconds 0.01 --backend threads --sweep";
  const Finished f = sluice(sweep + " --svg " + path("here/X"));
  ASSERT_EQ(f.status, 0) << f.err;
  EXPECT_NE(f.out.find("drawn in " + path("here/X") + "\n"), std::string::npos) << f.out;
  const std::string svg = read(path("here/X"));
  for (const char* mode : {"read", "write", "mixed"})
    EXPECT_NE(svg.find(std::string(", ") + mode + "</text>"), std::string::npos) << mode;
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(path("here")), {}), 2);
  ASSERT_EQ(std::system(("cd " + path("here") + " && " SLUICE_BINARY " " + sweep + " --mode read >.o 2>.e").c_str()),
            0);
  EXPECT_EQ(read(path("here/io-sweep.svg")), "mine");
  EXPECT_EQ(read(path("here/io-sweep-2.svg")).rfind("<svg", 0), 0u);
  // Where it can not be written is said before minutes of measuring.
  expect_refused(sweep + " --svg " + path("no/such/folder.svg"), "No such file");
  expect_refused(sweep + " --svg " + path("here"), "directory");
  // Another picture may be replaced, and nothing else.
  expect_refused(sweep + " --svg " + path("here/io-sweep.svg"), "is there, and is no picture");
  EXPECT_EQ(read(path("here/io-sweep.svg")), "mine");
}

TEST_F(BenchIo, RequestsThatDoNotFitTheFileAreSaid) {
  const std::string drive = "bench io --path " + path("drive") + " --size 1MiB --seconds 0.01 --backend threads ";
  const Finished sweep = sluice(drive + "--mode write --sweep --svg " + path("s.svg"));
  ASSERT_EQ(sweep.status, 0) << sweep.err;
  // Of 9 blocks x 7 depths, 7 + 7 + 5 + 4 + 3 + 2 + 1 fit into 1 MiB; 4 MiB x 64 would be the largest.
  EXPECT_NE(sweep.err.find("34 of 63 settings are left out"), std::string::npos) << sweep.err;
  EXPECT_NE(sweep.err.find("the file of 1 MiB; --size 256MiB has room for all"), std::string::npos) << sweep.err;
  const json mixed = json::parse(sluice(drive + "--mode mixed --sweep --json --svg " + path("s.svg")).out);
  EXPECT_EQ(mixed["left_out"], 40);
  for (const json& r : mixed["results"])
    EXPECT_LE(2 * r["block_bytes"].get<int>() * r["depth"].get<int>(), 1 << 20) << r.dump();
  expect_refused("bench io --path " + path("drive") + " --size 4KiB --sweep --svg " + path("t.svg") + " --threads 2",
                 "--size");
  EXPECT_FALSE(std::filesystem::exists(path("t.svg")));
  // One setting is measured as it is given, and the numbers are said.
  const Finished one = sluice(drive + "--mode read --block 256KiB --depth 8");
  EXPECT_EQ(one.status, 0) << one.err;
  EXPECT_NE(one.err.find("2 MiB are in flight at once (read), more than the file of 1 MiB"), std::string::npos)
      << one.err;
  EXPECT_EQ(sluice(drive + "--mode read --block 256KiB --depth 4").err, "");
}

TEST_F(BenchIo, TuneWritesWhatTrainUses) {
  HardwareProfile profile;
  profile.machine = machine_id();
  profile.op_seconds["kept"] = 3;
  ASSERT_TRUE(save_profile(path("p.json"), profile).ok());
  const Finished f = sluice(on_drive("0.01") + "--tune --backend threads --json --profile " + path("p.json"));
  ASSERT_EQ(f.status, 0) << f.err;
  const json r = json::parse(f.out);
  auto tuned = load_profile(path("p.json"));
  ASSERT_TRUE(tuned.ok()) << tuned.error().message;
  EXPECT_EQ(tuned->op_seconds.at("kept"), 3);
  ASSERT_TRUE(select_drive(*tuned, std::vector<std::string>{path("drive")}));
  EXPECT_EQ(tuned->drive.backend, "threads");
  EXPECT_EQ(tuned->drive.block_bytes, r["chosen"]["block_bytes"]);
  EXPECT_EQ(tuned->drive.depth, r["chosen"]["depth"]);
  double best = 0;
  for (const json& c : r["candidates"]) best = std::max(best, c["bytes_per_second"].get<double>());
  EXPECT_GE(r["chosen"]["bytes_per_second"], 0.99 * best);
  for (const json& c : r["candidates"])
    if (c["bytes_per_second"] >= 0.99 * best) {
      EXPECT_LE(r["chosen"]["cpu_seconds_per_gib"], c["cpu_seconds_per_gib"]);
    }
}

TEST_F(BenchIo, FioIsNeededOnlyForComparing) {
  const Finished f = sluice(on_drive() + "--mode read --against fio --pairs 3 --json");
  if (f.status == 0) {
    const json r = json::parse(f.out)["results"][0];
    EXPECT_GT(r["ratio"]["median"], 0);
    EXPECT_LE(r["ratio"]["low"], r["ratio"]["high"]);
    EXPECT_GT(r["peer_against_itself"]["median"], 0);
    EXPECT_GT(r["cpu_ratio"]["median"], 0);
  } else {
    EXPECT_EQ(f.status, 2);
    EXPECT_NE(f.err.find("apt-get install fio"), std::string::npos) << f.err;
  }
  EXPECT_TRUE(nothing_left());
}

/// Whether a process has a file below the folder open, also one without a name.
bool has_open(pid_t process, const std::string& folder) {
  std::error_code gone;
  std::filesystem::directory_iterator file("/proc/" + std::to_string(process) + "/fd", gone);
  for (; !gone && file != std::filesystem::directory_iterator(); file.increment(gone)) {
    std::error_code closed;
    if (std::filesystem::read_symlink(file->path(), closed).string().rfind(folder + "/", 0) == 0) return true;
  }
  return false;
}

TEST_F(BenchIo, SignalsLeaveNothing) {
  for (const int signal_number : {SIGINT, SIGKILL}) {
    const pid_t child = fork();
    if (child == 0) {
      const int null = open("/dev/null", O_RDWR);
      dup2(null, STDOUT_FILENO);
      dup2(null, STDERR_FILENO);
      execl(SLUICE_BINARY, SLUICE_BINARY, "bench", "io", "--path", path("drive").c_str(), "--size", "16MiB",
            "--seconds", "60", static_cast<char*>(nullptr));
      _exit(127);
    }
    int status = 0;
    while (!has_open(child, path("drive"))) {
      ASSERT_EQ(waitpid(child, &status, WNOHANG), 0) << "it ended by itself";
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    kill(child, signal_number);
    ASSERT_EQ(waitpid(child, &status, 0), child);
    if (signal_number == SIGINT) {
      ASSERT_TRUE(WIFEXITED(status));
      EXPECT_EQ(WEXITSTATUS(status), 1);
    }
    EXPECT_TRUE(nothing_left());
  }
}

TEST(Latency, QuantilesAreWithinTheBucket) {
  std::mt19937_64 random(3);
  LatencyHistogram whole, a, b;
  std::vector<std::uint64_t> values;
  for (int i = 0; i < 20000; ++i) {
    const std::uint64_t v = random() >> (random() % 50 + 8);
    values.push_back(v);
    whole.add(v);
    (i % 3 == 0 ? a : b).add(v);
  }
  a.add(b);
  std::sort(values.begin(), values.end());
  for (const double share : {0.001, 0.01, 0.5, 0.9, 0.99, 0.999, 1.0}) {
    const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(values.size()))) - 1;
    const double exact = static_cast<double>(values[rank]) * 1e-9;
    EXPECT_GE(whole.quantile_seconds(share), exact * (1 - 1e-12));
    EXPECT_LE(whole.quantile_seconds(share), exact * 1.016 + 1e-12);
    EXPECT_EQ(whole.quantile_seconds(share), a.quantile_seconds(share));
  }
  EXPECT_EQ(whole.max_seconds(), static_cast<double>(values.back()) * 1e-9);
  EXPECT_EQ(LatencyHistogram().quantile_seconds(0.5), 0);
}

TEST(Statistics, MedianAndItsInterval) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
  // By the binomial law the interval of 15 values is the 4th to the 12th, of 6 all of them, of 5 less than 95%.
  std::vector<double> values;
  for (int i = 15; i > 0; --i) values.push_back(i);
  EXPECT_EQ(median_interval(values).low, 4);
  EXPECT_EQ(median_interval(values).high, 12);
  EXPECT_EQ(median_interval({1, 2, 3, 4, 5, 6}).low, 1);
  EXPECT_EQ(median_interval({1, 2, 3, 4, 5, 6}).high, 6);
  EXPECT_EQ(median_interval({5}).low, 5);
}

// A drive that fails ends the measurement with its message: here the file is shorter than the bench believes.
TEST(DriveBenchTest, FaultsAreReported) {
  const ScratchDir folder;
  auto bench = DriveBench::create({{folder.path()}, {}, 8 << 20, nullptr});
  ASSERT_TRUE(bench.ok()) << bench.error().message;
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "it has no name";
  ASSERT_TRUE(bench->fill({}).ok());
  ASSERT_EQ(ftruncate(bench->file().files()[0].fd, 1 << 20), 0);
  StreamSetting setting;
  setting.mode = StreamMode::read;
  const auto result = bench->run(setting, 0.2);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.error().message.find("end of the file"), std::string::npos) << result.error().message;
}

}  // namespace
}  // namespace sluice
