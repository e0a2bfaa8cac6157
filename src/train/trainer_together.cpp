// What the processes of a run decide together. Each of these is called by all of them, and gives all the same answer.
#include <algorithm>
#include <cstring>

#include "src/comm/in_process.h"
#include "src/train/trainer.h"

namespace sluice {
namespace {

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

Trainer::Trainer(const Prepared& run, TrainObserver& observer, RunDirectory* directory, const std::atomic<bool>* stop,
                 World* world)
    : run_(run),
      observer_(observer),
      directory_(directory),
      stop_(stop),
      own_world_(world == nullptr ? std::make_unique<InProcessWorld>(run.workload.ranks()) : nullptr),
      world_(world == nullptr ? *own_world_ : *world) {}

/// The leader does it; then the others look at the directory again, which must be the same one.
Status Trainer::lead(const std::function<Status()>& work) {
  if (world_.is_alone()) return work();
  SLUICE_TRY(leader_does(world_, work));
  if (directory_ == nullptr) return success();
  if (!world_.leads()) {
    SLUICE_ASSIGN(*directory_, RunDirectory::look(directory_->path()));
  }
  const std::uint64_t id = directory_->run() ? directory_->run()->id : 0;
  SLUICE_ASSIGN(const std::vector<std::uint64_t> ids, gather(world_, id));
  for (std::size_t process = 1; process < ids.size(); ++process)
    if (ids[process] != ids.front())
      return bad_request("--run " + directory_->path() + " is another directory for rank " + std::to_string(process) +
                         " than for rank 0; give one on a file system that all ranks share");
  return success();
}

Result<bool> Trainer::leader_says(bool own) {
  SLUICE_ASSIGN(const std::string value, from_leader(world_, own ? "1" : "0"));
  return value.starts_with('1');
}

Result<bool> Trainer::any_says(bool own) {
  SLUICE_ASSIGN(const std::int64_t value, largest(own ? 1 : 0));
  return value == 1;
}

Result<std::int64_t> Trainer::largest(std::int64_t own) {
  if (world_.is_alone()) return own;
  SLUICE_ASSIGN(const std::vector<std::int64_t> all, gather(world_, own));
  return *std::ranges::max_element(all);
}

Result<std::int64_t> Trainer::smallest(std::int64_t own) {
  SLUICE_ASSIGN(const std::int64_t value, largest(-own));
  return -value;
}

/// bad_request naming who differs.
Status Trainer::check_alike(const std::string& what, std::uint64_t own) {
  if (world_.is_alone()) return success();
  SLUICE_ASSIGN(const std::vector<std::uint64_t> all, gather(world_, own));
  for (std::size_t process = 1; process < all.size(); ++process)
    if (all[process] != all.front())
      return bad_request("rank " + std::to_string(process) + " has other " + what + " than rank 0: " + run_.config.data +
                         " must be the same file everywhere");
  return success();
}

/// From what a step was for the ranks of here to what it was for all.
Status Trainer::share(StepRecord& record) {
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
