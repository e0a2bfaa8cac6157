// Checkpoints that the updates of a step write while training goes on, against those of steps that stop for them.
#include <functional>
#include <map>

#include "io/checkpoint/checkpoint.h"
#include "io/checkpoint/verify.h"
#include "tests/equivalence/resume.h"

namespace sluice::test {
namespace {

/// Does something when a step is over, while the next one runs.
class Meddler final : public TrainObserver {
 public:
  explicit Meddler(std::function<void(std::int64_t)> meddle) : meddle_(std::move(meddle)) {}
  void note(const std::string&) override {}
  void step(const StepRecord& r) override { meddle_(r.step); }

 private:
  std::function<void(std::int64_t)> meddle_;
};

class Saves : public Resume {
 protected:
  enum class Order { ahead, backward, both };
  /// What the files of each checkpoint of a run have: the checksums of their blocks' checksums, by file.
  using Sums = std::map<std::uint64_t, std::vector<std::pair<std::string, std::uint64_t>>>;
  static Sums sums(const std::string& run) {
    Sums all;
    const auto listed = list_checkpoints(run + "/checkpoints");
    EXPECT_TRUE(listed.ok());
    for (const ListedCheckpoint& c : *listed) {
      EXPECT_TRUE(c.is_whole) << c.path;
      auto opened = Checkpoint::open(c.path);
      EXPECT_TRUE(opened.ok()) << opened.error().message;
      // And that is what is there.
      const Status whole = verify_checkpoint(*opened, {}, [](std::uint64_t) { return success(); });
      EXPECT_TRUE(whole.ok()) << whole.error().message;
      for (const StoredFile& file : opened->manifest().files)
        all[opened->manifest().step].push_back({file.name, file.sums});
    }
    return all;
  }
  static int beside(const Attempt& a) {
    int times = 0;
    for (std::size_t at = 0; (at = a.notes.find("while training goes on", at)) != std::string::npos; ++at) ++times;
    return times;
  }
  /// The same run, with nothing that stops its steps, and with hashes that do.
  void expect_same_checkpoints(RunConfig c, const Schedule& s, int saved_beside) {
    const std::string stops = fresh_directory(), goes_on = fresh_directory();
    c.save_every = c.hash_every = 2;
    const Attempt whole = attempt(c, stops, s);
    const Finished expected = finished(stops, whole);
    EXPECT_EQ(beside(whole), 0);
    c.hash_every = 0;
    c.delay_seed = 7;
    const Attempt saving = attempt(c, goes_on, s);
    EXPECT_EQ(finished(goes_on, saving).state_hash, expected.state_hash);
    EXPECT_EQ(beside(saving), saved_beside) << saving.notes;
    EXPECT_EQ(sums(goes_on), sums(stops));
    EXPECT_EQ(sums(goes_on).size(), static_cast<std::size_t>(c.steps / 2));
  }
};

TEST_F(Saves, WrittenByUpdatesAreThoseOfStepsThatStop) {
  for (const Order order : {Order::ahead, Order::backward, Order::both})
    for (const Place home : {Place::nvme, Place::host})
      for (const auto& [ranks, shards] : {std::pair(1, 0), std::pair(2, 0), std::pair(2, 1)})
        for (const bool on_device : {false, true}) {
          const bool ahead = order == Order::ahead;
          SCOPED_TRACE(std::string(ahead                  ? "ahead "
                                   : order == Order::both ? "both passes "
                                                          : "backward ") +
                       place_names[static_cast<std::size_t>(home)] + " " + std::to_string(ranks) +
                       " ranks, groups of " + std::to_string(shards) + (on_device ? ", updated on the device" : ""));
          RunConfig c = config(home == Place::nvme);
          if (!ahead) c.optimizer.clip_norm = 0;
          c.ranks = ranks;
          c.shard_group = shards;
          c.moments = on_device ? MomentFormat::f32 : MomentFormat::int8;
          Schedule s = schedule(ahead, home);
          s.units[1].resident = true;
          s.units[1].update_on_device = s.units[2].update_on_device = on_device;
          s.units[0].late = s.units[2].late = order == Order::both;
          expect_same_checkpoints(c, s, 2);  // the last step's states are at rest
        }
}

/// The states change while they are written: lanes wait at random, and updates of the next step are close behind.
TEST_F(Saves, AreOfTheirStepHoweverSoonTheStatesChange) {
  for (const Place home : {Place::nvme, Place::host}) {
    RunConfig c = config(false);
    c.steps = 40;
    Schedule s = schedule(true, home);
    s.tiles_in_flight = 2;
    expect_same_checkpoints(c, s, 19);
    c.optimizer.clip_norm = 0;
    s.update_ahead = false;
    s.units[1].late = s.units[2].late = true;
    expect_same_checkpoints(c, s, 19);
  }
}

/// Step 3 makes the states of step 2, and is then found not to be finite.
TEST_F(Saves, OfAStepThatIsLeftOutAreMadeAnew) {
  for (const Order order : {Order::ahead, Order::backward, Order::both}) {
    RunConfig c = config(true);
    if (order != Order::ahead) c.optimizer.clip_norm = 0;
    c.poison_steps = {3, 4};
    const std::string stops = fresh_directory(), goes_on = fresh_directory();
    Schedule s = schedule(order == Order::ahead, Place::nvme);
    s.units[1].late = s.units[3].late = order == Order::both;
    c.save_every = c.hash_every = 2;
    const Finished expected = finished(stops, attempt(c, stops, s));
    c.hash_every = 0;
    const Finished f = finished(goes_on, attempt(c, goes_on, s));
    EXPECT_EQ(f.state_hash, expected.state_hash);
    EXPECT_EQ(sums(goes_on), sums(stops));
  }
}

/// What an update has written for a step that is made again is in no checkpoint, and neither is what waits for its norm
/// lost where a run changes over.
TEST_F(Saves, OfStepsThatAreMadeAgainAreOfTheSecondTime) {
  for (const Place home : {Place::nvme, Place::host})
    for (const auto& [both, keeps, late] :
         {std::tuple(false, false, false), std::tuple(true, false, false), std::tuple(false, true, false),
          std::tuple(false, false, true), std::tuple(true, true, true)}) {
      SCOPED_TRACE(std::string(place_names[static_cast<std::size_t>(home)]) + (both ? " both orders" : "") +
                   (keeps ? " gradients are kept" : "") + (late ? " both passes" : ""));
      RunConfig c = config(true);
      c.steps = 12;
      const std::string stops = fresh_directory(), goes_on = fresh_directory();
      c.save_every = c.hash_every = 2;
      const Finished expected = finished(stops, attempt(c, stops, schedule(true, home)));
      c.hash_every = 0;
      Schedule s = schedule(false, home);
      s.both_orders = both;
      s.keeps_gradients = keeps;
      s.units[0].late = s.units[2].late = late;
      const Attempt a = attempt(c, goes_on, s);
      EXPECT_EQ(finished(goes_on, a).state_hash, expected.state_hash);
      EXPECT_EQ(sums(goes_on), sums(stops));
    }
}

/// What hinders a checkpoint ends the run, which keeps its states and goes on when that is mended.
TEST_F(Saves, ThatCanNotBeWrittenLeaveTheRunWhole) {
  for (const bool durable : {true, false})
    for (const bool at_begin : {true, false}) {
      SCOPED_TRACE(std::string(durable ? "durable, " : "") + (at_begin ? "at its begin" : "at its end"));
      RunConfig c = config(durable);
      c.hash_every = 0;
      c.save_every = 2;
      const Schedule s = schedule(true, Place::nvme);
      const std::string whole = fresh_directory(), path = fresh_directory();
      const Finished expected = finished(whole, attempt(c, whole, s));
      RunConfig cut = c;
      cut.run = path;
      cut.metrics = path + ".jsonl";
      auto prepared = prepare_with(cut, Purpose::train, s);
      ASSERT_TRUE(prepared.ok());
      const std::string there = path + "/checkpoints";
      Meddler meddler([&](std::int64_t step) {
        // Step 4's checkpoint begins when step 4 is nearly over, and is whole when step 5 is.
        if (step != (at_begin ? 3 : 4)) return;
        for (const auto& entry : std::filesystem::directory_iterator(there))
          if (at_begin || entry.path().filename().string().find(".tmp-") != std::string::npos)
            std::filesystem::remove_all(entry.path());
        if (!at_begin) return;
        std::filesystem::remove(there);
        std::ofstream(there) << "in the way";
      });
      {
        auto directory = RunDirectory::open(path);
        ASSERT_TRUE(directory.ok());
        auto trainer = Trainer::create(**prepared, meddler, &*directory);
        ASSERT_TRUE(trainer.ok()) << trainer.error().message;
        const std::atomic<bool> never{false};
        const auto result = (*trainer)->run(never);
        ASSERT_FALSE(result.ok());
        EXPECT_EQ(result.error().code, ErrorCode::fault) << result.error().message;
        EXPECT_NE(result.error().message.find("kept"), std::string::npos) << result.error().message;
        EXPECT_NE(result.error().message.find("checkpoints"), std::string::npos) << result.error().message;
      }
      if (at_begin) std::filesystem::remove(there);
      expect_same(finished(path, attempt(c, path, s)), expected);
    }
}

}  // namespace
}  // namespace sluice::test
