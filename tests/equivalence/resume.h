// Runs in a directory that are cut short and go on: each attempt is what one process would do.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

#include "tests/equivalence/runs.h"

namespace sluice::test {

using nlohmann::json;

/// Stops the run after a step, as a signal would.
class Stopper final : public TrainObserver {
 public:
  static constexpr std::int64_t when_filled = -2;  ///< with the states of a checkpoint, before any step
  explicit Stopper(std::int64_t after) : after_(after) {}
  void note(const std::string& text) override {
    notes += text + "\n";
    stop = stop || (after_ == when_filled && text.starts_with("going on after step"));
  }
  void step(const StepRecord& r) override { stop = stop || r.step == after_; }
  std::atomic<bool> stop{false};
  std::string notes;

 private:
  std::int64_t after_;
};

struct Attempt {
  std::optional<Error> error;
  TrainResult result;
  std::string notes;
};

struct Finished {
  std::uint64_t state_hash = 0;
  double eval_loss = 0;
  std::vector<json> lines;
};

class Resume : public testing::Test {
 protected:
  static constexpr std::int64_t all_steps = 6;

  RunConfig config(bool durable) const {
    RunConfig c = bench_.config(1, true, Dtype::bf16, all_steps);
    c.optimizer.clip_norm = 0.7;
    c.hash_every = 1;
    c.durable = durable ? Durable::on : Durable::off;
    return c;
  }

  std::string fresh_directory() { return bench_.path("run" + std::to_string(++runs_)); }

  static constexpr std::int64_t at_once = -1;

  /// One process's part of a run: prepared anew each time, from the directory if a run is there.
  static Attempt attempt(RunConfig c, const std::string& path, const Schedule& schedule, std::int64_t stop_after = 0) {
    Attempt a;
    c.run = path;
    c.metrics = path + ".jsonl";  // beside, where damage to the directory does not reach
    auto directory = RunDirectory::open(path);
    if (!directory.ok()) {
      a.error = directory.error();
      return a;
    }
    auto prepared = prepare_with(c, Purpose::train, schedule);
    EXPECT_TRUE(prepared.ok() && (*prepared)->search.fits) << (prepared.ok() ? "" : prepared.error().message);
    Stopper observer(stop_after);
    observer.stop = stop_after == at_once;
    auto trainer = Trainer::create(**prepared, observer, &*directory, &observer.stop);
    if (trainer.ok()) {
      auto result = (*trainer)->run(observer.stop);
      if (result.ok()) a.result = *result;
      if (!result.ok()) a.error = result.error();
    } else {
      a.error = trainer.error();
    }
    a.notes = observer.notes;
    return a;
  }

  static Finished finished(const std::string& path, const Attempt& last) {
    EXPECT_FALSE(last.error) << last.error->message;
    Finished f;
    f.eval_loss = last.result.eval_loss().value_or(0);
    f.state_hash = last.result.state_hash.value_or(0);
    std::ifstream in(path + ".jsonl");
    for (std::string line; std::getline(in, line);) {
      json j = json::parse(line), kept;
      for (const char* key : {"step", "loss", "grad_norm", "lr", "tokens", "state_hash", "eval_loss", "skipped"})
        if (j.contains(key)) kept[key] = j[key];
      f.lines.push_back(kept);
    }
    return f;
  }

  static void expect_same(const Finished& a, const Finished& b) {
    EXPECT_EQ(a.state_hash, b.state_hash);
    EXPECT_EQ(a.eval_loss, b.eval_loss);
    ASSERT_EQ(a.lines.size(), b.lines.size());
    for (std::size_t i = 0; i < a.lines.size(); ++i) EXPECT_EQ(a.lines[i], b.lines[i]) << "line " << i;
  }

  Schedule schedule(bool ahead, Place home) const {
    Schedule s;
    s.group = 2;
    s.update_ahead = ahead;
    s.tile_numel = 1 << 13;
    UnitChoice unit;
    unit.parameter_home = unit.state_home = home;
    unit.gradient = Place::nvme;
    s.units.assign(4, unit);
    return s;
  }

  Bench bench_;
  int runs_ = 0;
};

}  // namespace sluice::test
