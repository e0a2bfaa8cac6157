#include "src/train/run/together.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "src/train/run/step_record.h"

namespace sluice {
namespace {

/// As long as NFS keeps what it knows of a directory, at most.
constexpr int stale_seconds = 60;

template <class T>
std::string_view bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

/// Every process's, by process.
template <class T>
Result<std::vector<T>> gather(World& world, const T& own) {
  SLUICE_ASSIGN(const std::vector<std::string> texts, world.exchange(bytes_of(own)));
  std::vector<T> all(texts.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (texts[i].size() != sizeof(T)) return fault("the processes of the run are not at the same place");
    std::memcpy(&all[i], texts[i].data(), sizeof(T));
  }
  return all;
}

}  // namespace

Status Together::lead(const std::function<Status()>& work) {
  if (world_.is_alone()) return work();
  SLUICE_TRY(leader_does(world_, work));
  if (directory_ == nullptr) return success();
  // A file system over a network may show what was there some seconds ago.
  const int looks = world_.ranks_of_node() == world_.ranks() ? 1 : stale_seconds;
  for (int look = 1;; ++look) {
    const auto look_again = [&]() -> Status {
      SLUICE_ASSIGN(*directory_, RunDirectory::look(directory_->path()));
      return success();
    };
    SLUICE_TRY(agree(world_, world_.leads() ? success() : look_again()));
    const std::uint64_t id = directory_->run() ? 31 * directory_->run()->id + directory_->run()->layout : 0;
    SLUICE_ASSIGN(const std::vector<std::uint64_t> ids, gather(world_, id));
    const auto other = std::ranges::find_if(ids, [&](std::uint64_t of) { return of != ids.front(); });
    if (other == ids.end()) return success();
    if (look == looks)
      return bad_request("--run " + directory_->path() + " is another directory for rank " +
                         std::to_string(other - ids.begin()) +
                         " than for rank 0; give one on a file system that all ranks share");
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
}

Result<bool> Together::leader_says(const std::function<bool()>& own) {
  SLUICE_ASSIGN(const std::string value, from_leader(world_, world_.leads() && own() ? "1" : "0"));
  return value.starts_with('1');
}

Result<bool> Together::any_says(bool own) {
  SLUICE_ASSIGN(const std::int64_t value, largest(own ? 1 : 0));
  return value == 1;
}

Result<std::int64_t> Together::largest(std::int64_t own) {
  if (world_.is_alone()) return own;
  SLUICE_ASSIGN(const std::vector<std::int64_t> all, gather(world_, own));
  return *std::ranges::max_element(all);
}

Result<std::int64_t> Together::smallest(std::int64_t own) {
  SLUICE_ASSIGN(const std::int64_t value, largest(-own));
  return -value;
}

Status Together::share(StepRecord& record) {
  if (world_.is_alone()) return success();
  struct Part {
    std::uint64_t device_peak_bytes, host_peak_bytes, nvme_peak_bytes, rss_bytes;
    MovedBytes moved;
  };
  const Part own{record.device_peak_bytes, record.host_peak_bytes, record.nvme_peak_bytes, record.rss_bytes,
                 record.moved};
  SLUICE_ASSIGN(const std::vector<Part> all, gather(world_, own));
  record.host_peak_bytes = record.nvme_peak_bytes = record.rss_bytes = 0;
  record.moved = {};
  for (const Part& part : all) {
    record.device_peak_bytes = std::max(record.device_peak_bytes, part.device_peak_bytes);
    record.host_peak_bytes += part.host_peak_bytes;
    record.nvme_peak_bytes += part.nvme_peak_bytes;
    record.rss_bytes += part.rss_bytes;
    record.moved += part.moved;
  }
  return success();
}

}  // namespace sluice
