#include "src/train/states/snapshot.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <vector>

#include "io/checksum.h"
#include "io/files/publish.h"

namespace sluice {
namespace {

struct Header {
  std::array<char, 8> magic{'S', 'L', 'U', 'I', 'C', 'S', 'N', 'P'};
  std::uint32_t version = 1, reserved = 0;
  std::uint64_t run_id = 0, step = 0, state_bytes = 0;
  std::array<std::uint64_t, 3> zero{};
};
static_assert(sizeof(Header) == snapshot_head_bytes);

/// Reads a file front to back and sums what it has read.
class Reading {
 public:
  explicit Reading(const std::string& path) : path_(path), in_(path, std::ios::binary) {}
  Status read(std::span<std::byte> out) {
    if (!in_.read(reinterpret_cast<char*>(out.data()), static_cast<std::streamsize>(out.size())))
      return bad_request(path_ + " ends too early: it is damaged; start a new run");
    sum_.add(out);
    return success();
  }
  template <class T>
  Status read(T& value) {
    return read(std::as_writable_bytes(std::span(&value, 1)));
  }
  std::uint64_t sum() const { return sum_.value(); }

 private:
  std::string path_;
  std::ifstream in_;
  StreamingChecksum sum_;
};

/// Of the results, together with how many there are.
std::uint64_t results_sum(std::uint64_t count, std::span<const StepResult> results) {
  StreamingChecksum sum;
  sum.add(std::as_bytes(std::span(&count, 1)));
  sum.add(std::as_bytes(results));
  return sum.value();
}

Result<std::uint64_t> read_head(Reading& file, const std::string& path, std::uint64_t run_id,
                                std::uint64_t state_bytes) {
  Header header;
  const Header expected;
  SLUICE_TRY(file.read(header));
  if (header.magic != expected.magic || header.version != expected.version)
    return bad_request(path + " is not a snapshot of this version");
  if (header.run_id != run_id || header.state_bytes != state_bytes)
    return bad_request(path + " belongs to another run");
  return header.step;
}

}  // namespace

Status save_snapshot(const std::string& path, std::uint64_t run_id, std::uint64_t step, Engine& engine,
                     std::span<const StepResult> results, const States::Watch& watch) {
  SLUICE_ASSIGN(AtomicFile file, AtomicFile::create(path, 0600));
  StreamingChecksum sum;
  const auto append = [&](std::span<const std::byte> data) {
    sum.add(data);
    return file.append(data);
  };
  Header header;
  header.run_id = run_id;
  header.step = step;
  header.state_bytes = engine.states().state_stream_bytes();
  SLUICE_TRY(append(std::as_bytes(std::span(&header, 1))));
  std::uint64_t done = 0;
  const auto save = [&](std::span<const std::byte> data) -> Status {
    if (watch) SLUICE_TRY(watch(static_cast<double>(done += data.size()) / static_cast<double>(header.state_bytes)));
    return append(data);
  };
  SLUICE_TRY(engine.states().save_states(save));
  const std::uint64_t value = sum.value();
  SLUICE_TRY(file.append(std::as_bytes(std::span(&value, 1))));
  const std::uint64_t count = results.size(), sum_of_results = results_sum(count, results);
  SLUICE_TRY(file.append(std::as_bytes(std::span(&count, 1))));
  SLUICE_TRY(file.append(std::as_bytes(results)));
  SLUICE_TRY(file.append(std::as_bytes(std::span(&sum_of_results, 1))));
  return file.publish();
}

Result<std::uint64_t> verify_snapshot(const std::string& path, std::uint64_t run_id, std::uint64_t state_bytes,
                                      const States::Watch& watch) {
  Reading whole(path);
  SLUICE_ASSIGN(const std::uint64_t step, read_head(whole, path, run_id, state_bytes));
  std::vector<std::byte> chunk(1 << 20);
  for (std::uint64_t at = 0; at < state_bytes; at += chunk.size()) {
    const std::uint64_t bytes = std::min<std::uint64_t>(chunk.size(), state_bytes - at);
    SLUICE_TRY(whole.read(std::span(chunk).first(bytes)));
    if (watch) SLUICE_TRY(watch(static_cast<double>(at + bytes) / static_cast<double>(state_bytes)));
  }
  const std::uint64_t sum = whole.sum();
  std::uint64_t expected = 0;
  SLUICE_TRY(whole.read(expected));
  if (sum != expected) return bad_request(path + " does not have the checksum that was written with it: it is damaged");
  return step;
}

Result<std::uint64_t> load_snapshot(const std::string& path, std::uint64_t run_id, Engine& engine,
                                    const States::Watch& watch) {
  const std::uint64_t state_bytes = engine.states().state_stream_bytes();
  SLUICE_ASSIGN(const std::uint64_t step, verify_snapshot(path, run_id, state_bytes, {}));
  Reading states(path);
  SLUICE_TRY(read_head(states, path, run_id, state_bytes));
  std::uint64_t done = 0;
  const auto load = [&](std::span<std::byte> data) -> Status {
    if (watch) SLUICE_TRY(watch(static_cast<double>(done += data.size()) / static_cast<double>(state_bytes)));
    return states.read(data);
  };
  SLUICE_TRY(engine.states().load_states(load));
  return step;
}

std::vector<StepResult> snapshot_results(const std::string& path, std::uint64_t state_bytes) {
  std::ifstream in(path, std::ios::binary);
  const auto read = [&in](void* to, std::size_t bytes) {
    return static_cast<bool>(in.read(static_cast<char*>(to), static_cast<std::streamsize>(bytes)));
  };
  in.seekg(static_cast<std::streamoff>(snapshot_head_bytes + state_bytes + sizeof(std::uint64_t)));
  std::uint64_t count = 0, sum = 0;
  if (!read(&count, sizeof count) || count > CommitLog::results_max) return {};
  std::vector<StepResult> results(count);
  if (!read(results.data(), count * sizeof(StepResult)) || !read(&sum, sizeof sum)) return {};
  return sum == results_sum(count, results) ? results : std::vector<StepResult>();
}

}  // namespace sluice
