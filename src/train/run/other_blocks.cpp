#include "src/train/run/other_blocks.h"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "io/checksum.h"
#include "offload/run/swap_window.h"
#include "src/train/run/saved_states.h"

namespace sluice {
namespace {

/// As SwapStore::durable_sums lists them: by their place in the arena.
std::vector<BufferId> durable_buffers(const StepPlan& plan) {
  std::vector<BufferId> ids;
  for (BufferId id = 0; id < plan.buffers.size(); ++id)
    if (plan.buffers[id].slots == 2) ids.push_back(id);
  std::ranges::sort(ids, {}, [&](BufferId id) { return plan.buffers[id].offset; });
  return ids;
}

/// Of the store's current slots, which are those of `before` and verified as such: the checksums of the blocks that
/// `after` has of the same bytes.
Result<std::vector<std::uint64_t>> sums_of(SwapStore& store, const StepPlan& before, const StepPlan& after,
                                           const States::Watch& watch) {
  const std::vector<BufferId> from = durable_buffers(before), to = durable_buffers(after);
  SLUICE_CHECK(from.size() == to.size(), "(%zu, %zu)", from.size(), to.size());
  std::uint64_t done = 0, total = 0;
  for (const BufferId id : from) total += before.buffers[id].bytes;
  SwapWindow window(drive_block_bytes_max);
  std::vector<std::uint64_t> sums;
  for (std::size_t i = 0; i < from.size(); ++i) {
    const Buffer& buffer = before.buffers[from[i]];
    const std::uint32_t block = after.buffers[to[i]].block_bytes;
    const std::uint64_t larger = std::max(block, buffer.block_bytes), smaller = std::min(block, buffer.block_bytes);
    SLUICE_CHECK(larger % smaller == 0 && larger <= drive_block_bytes_max, "(%llu, %llu)",
                 static_cast<unsigned long long>(larger), static_cast<unsigned long long>(smaller));
    const std::uint64_t part_bytes = drive_block_bytes_max / larger * larger;  // whole blocks of both
    std::uint64_t asked = 0;
    const auto next = [&]() -> std::optional<SwapWindow::Part> {
      if (asked == buffer.bytes) return std::nullopt;
      const SwapWindow::Part part{&store, from[i], asked, std::min(part_bytes, buffer.bytes - asked)};
      asked += part.bytes;
      return part;
    };
    BlockChecksums blocks((buffer.bytes + block - 1) / block);
    SLUICE_TRY(window.scan(next, [&](const SwapWindow::Part& part, std::span<const std::byte> data) {
      for (std::uint64_t at = 0; at < data.size(); at += block)
        blocks.set((part.offset_bytes + at) / block,
                   data.subspan(at, std::min<std::uint64_t>(block, data.size() - at)));
      done += data.size();
      return watch ? watch(static_cast<double>(done) / static_cast<double>(total)) : success();
    }));
    sums.insert(sums.end(), blocks.values().begin(), blocks.values().end());
  }
  return sums;
}

}  // namespace

Result<std::uint64_t> commit_other_blocks(const RunDirectory& directory, const Prepared& now, World& world,
                                          const RestoreListener& listener,
                                          const std::function<Status(std::uint64_t step)>& check) {
  std::unique_ptr<Prepared> before;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<StepJournal> journal;
  const auto open = [&]() -> Status {
    SLUICE_ASSIGN(before, prepare_as_left(directory, now.config));
    SLUICE_ASSIGN(engine, Engine::open_states(*before, directory.run()->id, &world));
    SLUICE_ASSIGN(journal, open_journal(directory, *before, *engine, false, listener));
    return success();
  };
  SLUICE_TRY(agree(world, open()));
  const RankRange here = world.here();
  std::vector<std::vector<std::uint64_t>> sums(here.count);
  const TakeRecord take = [&](RankId r, const CommitRecord& record, const States::Watch& watch) -> Status {
    engine->states().take_slots(r, record);
    SLUICE_ASSIGN(sums[r - here.first],
                  sums_of(*engine->store(r), before->stage_of_rank(r).main, now.stage_of_rank(r).main, watch));
    return success();
  };
  SLUICE_ASSIGN(const std::uint64_t step, restore_newest(directory, *engine, *journal, listener, take));
  SLUICE_TRY(agree(world, check(step)));
  const auto write = [&]() -> Status {
    SLUICE_ASSIGN(const QueueOptions queue, checkpoint_queue(now));
    std::vector<StepResult> results;
    for (std::uint64_t s = step; s > 0 && journal->find(s); --s) results.insert(results.begin(), *journal->find(s));
    CommitLog::Identity identity;
    identity.run_id = directory.run()->id;
    identity.layout = durable_layout(now);
    for (RankId r = here.first; r < here.end(); ++r) {
      const std::vector<std::uint64_t>& own = sums[r - here.first];
      identity.rank = r;
      identity.sums = own.size();
      SLUICE_ASSIGN(auto log, CommitLog::open(directory.next_commit_path(r, identity.layout), identity, queue, true));
      const std::array tables{std::span(own)};
      SLUICE_TRY(log->write(step, engine->store(r)->parity(), results, tables));
      SLUICE_TRY(log->publish());
    }
    return success();
  };
  SLUICE_TRY(agree(world, write()));
  return step;
}

}  // namespace sluice
