#include "src/train/run/step_journal.h"

#include <algorithm>

#include "io/checksum.h"
#include "offload/state/moment_layout.h"

namespace sluice {

namespace {

enum class Counted : std::uint8_t { layout, names, places };

std::uint64_t layout_of(const Prepared& run, Counted counted) {
  StreamingChecksum sum;
  const auto add = [&](const auto& numbers) { sum.add(std::as_bytes(std::span(numbers))); };
  const std::uint64_t group = MomentLayout::of(run.workload.moments, run.search.schedule.tile_numel).group_numel;
  for (RankId r = 0; r < run.workload.ranks(); ++r)
    for (const Buffer& b : run.stage_of_rank(r).main.buffers) {
      if (b.slots != 2) continue;
      if (counted == Counted::names)
        add(b.name);
      else
        add(std::array<std::uint64_t, 3>{static_cast<std::uint64_t>(b.unit), static_cast<std::uint64_t>(b.state),
                                         group});
      add(std::array<std::uint64_t, 4>{r, b.bytes, b.offset, counted == Counted::places ? 0 : b.block_bytes});
    }
  // Which of them a rank has. Early versions took that to follow from its number, but with slices of sequences, which
  // had once been numbered otherwise.
  const bool by_number =
      counted == Counted::names && (run.workload.context_ranks() == 1 || run.config.mesh_order == "pp,cp,dp,tp");
  const std::vector<Axis>& axes = run.workload.topology.axes;
  for (std::size_t i = 0; i < axes.size() && !by_number; ++i) {
    if (counted == Counted::names)
      add(std::array<std::uint64_t, 2>{axes[i].size, axes[i].stride});
    else if (axes[i].size > 1)
      add(std::array<std::uint64_t, 3>{i, axes[i].size, axes[i].stride});
  }
  return sum.value();
}

}  // namespace

std::uint64_t durable_layout(const Prepared& run) { return layout_of(run, Counted::layout); }
std::uint64_t named_layout(const Prepared& run) { return layout_of(run, Counted::names); }
std::uint64_t durable_places(const Prepared& run) { return layout_of(run, Counted::places); }

Result<std::unique_ptr<StepJournal>> StepJournal::open(const RunDirectory& directory,
                                                       std::span<SwapStore* const> stores, const Options& options) {
  auto journal = std::make_unique<StepJournal>();
  journal->first_ = options.first;
  for (std::size_t i = 0; i < stores.size(); ++i) {
    const auto r = static_cast<RankId>(options.first + i);
    auto rank = std::make_unique<Rank>();
    rank->tables = stores[i]->durable_sums();
    CommitLog::Identity identity;
    identity.run_id = options.run_id;
    identity.layout = options.layout;
    identity.rank = r;
    for (const BufferSums* table : rank->tables) identity.sums += table->slots[0].values().size();
    rank->sums.resize(rank->tables.size());
    rank->results.reserve(CommitLog::results_max);
    SLUICE_ASSIGN(rank->log, CommitLog::open(directory.commit_path(r), identity, options.queue, options.create));
    journal->ranks_.push_back(std::move(rank));
  }
  return journal;
}

std::vector<std::uint64_t> StepJournal::steps() const {
  std::vector<std::uint64_t> steps;
  for (const CommitRecord& record : ranks_.front()->log->records())
    if (std::all_of(ranks_.begin(), ranks_.end(), [&](const auto& rank) {
          const auto& records = rank->log->records();
          return std::any_of(records.begin(), records.end(),
                             [&](const CommitRecord& other) { return other.step == record.step; });
        }))
      steps.push_back(record.step);
  std::sort(steps.begin(), steps.end(), std::greater());
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  return steps;
}

std::vector<const CommitRecord*> StepJournal::records(RankId rank, std::uint64_t step) const {
  std::vector<const CommitRecord*> found;
  for (const CommitRecord& record : at(rank).log->records())
    if (record.step == step) found.push_back(&record);
  return found;
}

Status StepJournal::publish() {
  for (auto rank = ranks_.rbegin(); rank != ranks_.rend(); ++rank) SLUICE_TRY((*rank)->log->publish());
  return success();
}

bool StepJournal::step_back(RankId r, std::uint64_t step) {
  Rank& rank = at(r);
  if (rank.committed.load() == step) return false;
  SLUICE_CHECK(rank.previous == step, "(%llu, %llu, %llu)", static_cast<unsigned long long>(rank.committed.load()),
               static_cast<unsigned long long>(rank.previous), static_cast<unsigned long long>(step));
  rank.log->step_back();
  rank.committed.store(step);
  return true;
}

std::vector<std::string> StepJournal::damage() const {
  std::vector<std::string> all;
  for (const auto& rank : ranks_) all.insert(all.end(), rank->log->damage().begin(), rank->log->damage().end());
  return all;
}

void StepJournal::continue_from(RankId rank, const CommitRecord& record) {
  at(rank).log->continue_from(record);
  at(rank).committed.store(record.step);
  at(rank).previous = record.step;
  for (const StepResult& result : record.results) add(result);
}

Status StepJournal::forget_newer() {
  for (const auto& rank : ranks_) SLUICE_TRY(rank->log->forget_newer());
  return success();
}

void StepJournal::add(const StepResult& result) {
  const std::lock_guard lock(mutex_);
  recent_[result.step % recent_.size()] = result;
}

std::optional<StepResult> StepJournal::find(std::uint64_t step) const {
  const std::lock_guard lock(mutex_);
  const StepResult& result = recent_[step % recent_.size()];
  return step > 0 && result.step == step ? std::optional(result) : std::nullopt;
}

Status StepJournal::commit(RankId r, std::uint64_t step, std::uint8_t parity) {
  Rank& rank = at(r);
  rank.results.clear();
  for (std::uint64_t s = step > recent_.size() ? step - recent_.size() + 1 : 1; s <= step; ++s)
    if (const auto result = find(s)) rank.results.push_back(*result);
  for (std::size_t i = 0; i < rank.tables.size(); ++i) rank.sums[i] = rank.tables[i]->slots[parity].values();
  SLUICE_TRY(rank.log->write(step, parity, rank.results, rank.sums));
  rank.previous = rank.committed.exchange(step);
  return success();
}

std::uint64_t StepJournal::committed() const {
  std::uint64_t least = ~0ull;
  for (const auto& rank : ranks_) least = std::min(least, rank->committed.load());
  return least;
}

}  // namespace sluice
