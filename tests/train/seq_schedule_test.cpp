// Lengths of sequences one after another: what is parsed, what is refused, and which tokens each length takes.
#include "src/train/request/seq_schedule.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "io/tokens/token_sink.h"
#include "src/train/data/batches.h"
#include "src/train/request/run_changes.h"
#include "src/train/request/run_config_json.h"
#include "tests/scratch_dir.h"

namespace sluice {
namespace {

RunConfig config_of(const std::string& schedule, std::int64_t steps) {
  RunConfig c;
  c.model = "llama-tiny";
  c.seq_schedule = schedule;
  c.steps = steps;
  return at_phase(c, 0);
}

TEST(SeqSchedule, PhasesFollowEachOther) {
  const auto phases = parse_seq_schedule("512:1000,2048:3,64:*", 1010);
  ASSERT_TRUE(phases.ok()) << phases.error().message;
  ASSERT_EQ(phases->size(), 3u);
  const std::vector<std::array<std::int64_t, 3>> expected{{512, 1, 1000}, {2048, 1001, 1003}, {64, 1004, 1010}};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ((*phases)[i].sequence, expected[i][0]);
    EXPECT_EQ((*phases)[i].first, expected[i][1]);
    EXPECT_EQ((*phases)[i].last, expected[i][2]);
  }
  EXPECT_EQ(parse_seq_schedule("512:1000,2048:3", 0)->back().last, 1003) << "the phases say how many steps there are";
  EXPECT_EQ(parse_seq_schedule("8:*", 5)->front().last, 5);
}

TEST(SeqSchedule, WhatIsNoneIsRefusedWithTheReason) {
  const auto refused = [](const std::string& text, std::int64_t steps, const std::string& what) {
    const auto phases = parse_seq_schedule(text, steps);
    ASSERT_FALSE(phases.ok()) << text;
    EXPECT_EQ(phases.error().code, ErrorCode::bad_request);
    EXPECT_NE(phases.error().message.find(what), std::string::npos) << phases.error().message;
  };
  for (const char* text :
       {"", ",", "512", "512:", ":5", "512:5,", ",512:5", "512:5,,64:*", "a:5", "512:b", "512:-1", "0:5", "512:0",
        "512:5:6", "512:5 ,64:*", "512:1.5", "99999999999999999999:1", "16777217:1", "512:99999999999"})
    refused(text, 100, "is not LENGTH:STEPS");
  refused("512:*,64:5", 100, "nothing may follow it");
  refused("512:*,64:5", 0, "nothing may follow it");
  refused("512:5,512:*", 100, "512 follows 512");
  refused("512:100,64:*", 100, "none is left for sequences of 64; give at least --steps 101");
  refused("512:10,64:20", 100, "has 30 steps, and --steps is 100");
  refused("512:*", std::numeric_limits<std::int64_t>::max(), "give at most 1073741824");
}

TEST(SeqSchedule, PhasesOfDocumentsHaveAShortestOne) {
  const auto phases = parse_seq_schedule("2-512:10,513-2048:5,512:*", 100);
  ASSERT_TRUE(phases.ok()) << phases.error().message;
  ASSERT_EQ(phases->size(), 3u);
  EXPECT_EQ((*phases)[0].shortest, 2);
  EXPECT_EQ((*phases)[0].sequence, 512);
  EXPECT_EQ((*phases)[1].lengths(), "513 to 2048");
  EXPECT_EQ((*phases)[1].text(), "513-2048");
  EXPECT_FALSE((*phases)[2].of_documents());
  EXPECT_FALSE((*phases)[2].is_like((*phases)[0]));
  const auto refused = [](const std::string& text, const std::string& what) {
    const auto wrong = parse_seq_schedule(text, 100);
    ASSERT_FALSE(wrong.ok()) << text;
    EXPECT_NE(wrong.error().message.find(what), std::string::npos) << wrong.error().message;
  };
  for (const char* text : {"-512:*", "2-:*", "2-512-600:*", "a-512:*", "2-b:*", "0-512:*", "2:512-600"})
    refused(text, "is not LENGTH:STEPS");
  refused("1-512:*", "a document of one token has nothing to learn; give 2-512");
  refused("513-512:*", "the shortest document is longer than the longest; give 512-513");
  refused("2-512:10,2-512:*", "2-512 follows 2-512");
}

TEST(SeqSchedule, SaysHowManySequencesAStepHas) {
  const RunConfig c = config_of("512x8:10,2-64x32:5,2048x2:*", 100);
  EXPECT_EQ(c.batch, 8);
  EXPECT_EQ(at_phase(c, 1).batch, 32);
  EXPECT_EQ(at_phase(at_phase(c, 1), 2).batch, 2);
  EXPECT_EQ(phase_of(at_phase(c, 1)).text(), "2-64x32");
  EXPECT_EQ(tokens_after(at_phase(c, 2), 17), 10u * 512 * 8 + 5u * 64 * 32 + 2u * 2048 * 2);
  EXPECT_EQ(samples_before(at_phase(c, 2)), 10u * 512 * 8 / 2048);
  EXPECT_TRUE(check_seq_schedule(at_phase(c, 1)).ok());
  RunConfig wrong = at_phase(c, 1);
  wrong.batch = 8;
  EXPECT_FALSE(check_seq_schedule(wrong).ok());
  // The order of documents goes on behind those of the same lengths, however many a step had.
  EXPECT_EQ(samples_before(at_phase(config_of("2-64x32:5,2-64x8:5,65-512x4:1,2-64x8:*", 100), 3)), 5u * 32 + 5u * 8);
  const auto refused = [](const std::string& text, const std::string& what) {
    const auto phases = parse_seq_schedule(text, 100);
    ASSERT_FALSE(phases.ok()) << text;
    EXPECT_NE(phases.error().message.find(what), std::string::npos) << phases.error().message;
  };
  refused("512x8:10,2048:*", "say it of all, or of none");
  refused("512:10,2048x8:10,...", "say it of all, or of none");
  refused("512x8:10,512x8:*", "512x8 follows 512x8");
  for (const char* text : {"512x:*", "x8:*", "512x0:*", "512x-1:*", "512x8x8:*", "512X8:*", "512x9999999999:*"})
    refused(text, "is not LENGTH:STEPS");
  const auto go_on = [](const RunConfig& run, const std::string& text) {
    RunConfig given = run;
    given.seq_schedule = text;
    return continued(run, given, {"--seq-schedule"}, true);
  };
  const RunConfig run = at_phase(config_of("512x8:10,2048x2:*", 40), 1);
  EXPECT_TRUE(go_on(run, "512x8:10,2048x2:5,512x8:*").ok());
  EXPECT_TRUE(go_on(config_of("512x8:*", 40), "512:10,2048:*").ok()) << "as many as it has";
  const auto other = go_on(run, "512x8:10,2048x4:*");
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.error().message.find("begins with 512x8:10,2048x2:STEPS"), std::string::npos);
  EXPECT_FALSE(go_on(run, "512x4:10,2048x2:*").ok());
}

TEST(SeqSchedule, BeginsAgainUpToTheLastStep) {
  const auto phases = parse_seq_schedule("2-16:10,17-64:5,32:1,...", 44);
  ASSERT_TRUE(phases.ok()) << phases.error().message;
  const std::vector<std::array<std::int64_t, 3>> expected{{16, 1, 10},  {64, 11, 15}, {32, 16, 16}, {16, 17, 26},
                                                          {64, 27, 31}, {32, 32, 32}, {16, 33, 42}, {64, 43, 44}};
  ASSERT_EQ(phases->size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ((*phases)[i].sequence, expected[i][0]);
    EXPECT_EQ((*phases)[i].first, expected[i][1]);
    EXPECT_EQ((*phases)[i].last, expected[i][2]);
  }
  EXPECT_EQ(parse_seq_schedule("8:10,16:10,...", 15)->back().last, 15) << "not even once";
  const RunConfig c = config_of("2-16:10,17-64:5,32:1,...", 44);
  EXPECT_EQ(phases_apart(c), (std::vector<std::size_t>{0, 1, 2}));
  EXPECT_EQ(phases_apart(c, 4), (std::vector<std::size_t>{4, 5, 6}));
  const auto refused = [](const std::string& text, std::int64_t steps, const std::string& what) {
    const auto wrong = parse_seq_schedule(text, steps);
    ASSERT_FALSE(wrong.ok()) << text;
    EXPECT_NE(wrong.error().message.find(what), std::string::npos) << wrong.error().message;
  };
  refused("8:10,16:10,...", 10, "none is left for sequences of 16; give at least --steps 11");
  refused("8:10,16:10,...", 0, "say with --steps how many there are");
  refused("8:10,16:10,...,32:5", 100, "nothing may follow it");
  refused("8:10,16:10,8:5,...", 100, "8 follows 8 where it begins again");
  refused("8:10,...", 100, "8 follows 8 where it begins again");
  refused("...", 100, "is not LENGTH:STEPS");
  refused("8:1,16:1,...", 20'000, "would change lengths more than 1000 times");
  EXPECT_EQ(parse_seq_schedule_once("8:10,16:10,...")->size(), 2u);
  EXPECT_FALSE(parse_seq_schedule_once("8:10,8:10,...").ok());
}

TEST(SeqSchedule, ARunIsAtOneOfItsPhases) {
  const RunConfig c = config_of("32:10,64:5,16:*", 40), later = at_phase(c, 2);
  EXPECT_EQ(c.sequence, 32);
  EXPECT_EQ(later.sequence, 16);
  EXPECT_EQ(phase_of(later).first, 16);
  EXPECT_EQ(border_sequence(c), 32);
  EXPECT_EQ(border_sequence(later), 32);
  EXPECT_FALSE(is_laid_out_alike(c, later));
  EXPECT_TRUE(is_laid_out_alike(c, c));
  EXPECT_TRUE(has_same_bits(c, later)) << "nobody has asked for others";
  RunConfig wrong = later;
  wrong.sequence = 64;
  EXPECT_FALSE(check_seq_schedule(wrong).ok());
  wrong = later;
  wrong.phase = 3;
  EXPECT_FALSE(check_seq_schedule(wrong).ok());
  wrong.phase = -1;
  EXPECT_FALSE(check_seq_schedule(wrong).ok());
  wrong = RunConfig();
  EXPECT_TRUE(check_seq_schedule(wrong).ok());
  wrong.phase = 7;
  EXPECT_FALSE(check_seq_schedule(wrong).ok()) << "without a schedule there is one phase";
}

TEST(SeqSchedule, OfTheStepsToComeMayBeAnother) {
  const RunConfig run = at_phase(config_of("32:10,64:*", 40), 1);
  const auto with = [&](const std::string& text) {
    RunConfig given = run;
    given.seq_schedule = text;
    return continued(run, given, {"--seq-schedule"}, true);
  };
  const auto longer = with("32:10,64:20,128:*");
  ASSERT_TRUE(longer.ok()) << longer.error().message;
  EXPECT_EQ(longer->sequence, 64);
  EXPECT_EQ(longer->phase, 1);
  EXPECT_EQ(phase_of(*longer).last, 30);
  EXPECT_TRUE(is_laid_out_alike(*longer, run));
  for (const char* text : {"32:11,64:*", "64:*", "32:10,16:*", "16:10,64:*", "32:40"}) {
    const auto refused = with(text);
    ASSERT_FALSE(refused.ok()) << text;
    EXPECT_NE(refused.error().message.find("begins with 32:10,64:STEPS"), std::string::npos) << refused.error().message;
  }
  EXPECT_FALSE(with("32:10,64:5").ok()) << "other steps";
  const auto documents = with("32:10,64:5,2-64:*");
  ASSERT_FALSE(documents.ok());
  EXPECT_NE(documents.error().message.find("which this run does not keep apart"), std::string::npos);
  RunConfig apart = run;
  apart.document_mask = true;
  RunConfig given = apart;
  given.seq_schedule = "32:10,64:5,2-64:5,...";
  const auto taken = continued(apart, given, {"--seq-schedule"}, true);
  ASSERT_TRUE(taken.ok()) << taken.error().message;
  EXPECT_EQ(phase_of(*taken).last, 15);
}

// As many tokens as before them, in sequences of their own length.
TEST(SeqSchedule, TheOrderOfTheDataGoesOnBehindWhatWasSeen) {
  RunConfig c = config_of("32:10,64:5,24:*", 40);
  c.batch = 6;
  EXPECT_EQ(samples_before(c), 0u);
  EXPECT_EQ(tokens_after(c, 0), 0u);
  EXPECT_EQ(tokens_after(c, 9), 9u * 6 * 32);
  EXPECT_EQ(tokens_after(at_phase(c, 1), 12), 6u * (10 * 32 + 2 * 64));
  EXPECT_EQ(samples_before(at_phase(c, 1)), 10u * 6 * 32 / 64);
  EXPECT_EQ(samples_before(at_phase(c, 2)), (10u * 6 * 32 + 5u * 6 * 64 + 23) / 24);
}

// Documents go on behind those of their own lengths, and windows behind what windows had.
TEST(SeqSchedule, TheOrderOfDocumentsIsTheirOwn) {
  RunConfig c = config_of("2-16:10,17-64:5,32:2,...", 60);
  c.batch = 6;
  const std::vector<std::uint64_t> expected{0, 0, 0, 60, 30, 12, 120, 60, 24, 180};
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(samples_before(at_phase(c, i)), expected[i]) << i;
  EXPECT_EQ(tokens_after(c, 16), 6u * (10 * 16 + 5 * 64 + 1 * 32));
}

TEST(SeqSchedule, IsKeptAndItsChangesAreRecorded) {
  const RunConfig before = config_of("32:10,64:*", 40), now = at_phase(before, 1);
  const auto read = run_config_from_json(to_json(now));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(to_json(*read), to_json(now));
  const std::vector<RunChange> changes = with_change({}, before, now, 10);
  const nlohmann::ordered_json told = to_json(changes, now);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0]["from"], 11);
  EXPECT_EQ(told[0]["was"]["sequence"], 32);
  EXPECT_EQ(told[0]["is"]["sequence"], 64);
  const auto again = changes_from_json(told, now);
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_EQ(config_of_step(*again, now, 10).sequence, 32);
  EXPECT_EQ(config_of_step(*again, now, 11).sequence, 64);
  EXPECT_EQ(change_text(before, now), "--seq 64 (32 before)");
  nlohmann::ordered_json damaged = to_json(now);
  damaged["seq_schedule"] = "32:10,:";
  EXPECT_FALSE(run_config_from_json(damaged).ok());
}

// What one length holds out no other one trains on, also where the border is a document's.
TEST(SeqSchedule, WhatIsHeldOutIsSoOfAllLengths) {
  const ScratchDir scratch;
  for (const std::vector<std::size_t>& documents :
       {std::vector<std::size_t>{5000}, std::vector<std::size_t>(125, 40)}) {
    const std::string path = scratch.path() + "/tokens";
    auto writer = TokenWriter::create(path, 6000, {});
    ASSERT_TRUE(writer.ok()) << writer.error().message;
    std::int32_t next = 0;
    for (const std::size_t length : documents) {
      std::vector<std::int32_t> tokens(length);
      for (std::int32_t& token : tokens) token = next++;  // each says where it is
      ASSERT_TRUE(writer->append(tokens).ok());
      writer->end_document();
    }
    ASSERT_TRUE(writer->finish().ok());
    const auto file = TokenFile::open(path);
    ASSERT_TRUE(file.ok()) << file.error().message;
    RunConfig config = config_of("7:10,64:5,48:*", 40);
    config.eval_split = 0.1;
    std::set<std::int32_t> trained, held_out;
    std::vector<std::uint64_t> begins;
    for (std::size_t phase = 0; phase < 3; ++phase) {
      const RunConfig c = at_phase(config, phase);
      const auto batches = Batches::create(*file, c, false);
      ASSERT_TRUE(batches.ok()) << batches.error().message;
      begins.push_back(batches->held_out().begin);
      std::vector<std::int32_t> planes(2 * static_cast<std::size_t>(c.sequence));
      const BatchRow row = BatchRow::of(planes, 0, 1, static_cast<std::uint64_t>(c.sequence));
      const auto take = [&](const Windows& windows, std::set<std::int32_t>& into) {
        ASSERT_GT(windows.count(), 0u);
        for (std::uint64_t i = 0; i < windows.count(); ++i) {
          ASSERT_TRUE(windows.read(i, row).ok());
          into.insert(row.inputs.begin(), row.inputs.end());
        }
      };
      take(batches->training(), trained);
      take(batches->held_out_windows(), held_out);
    }
    EXPECT_EQ(std::set<std::uint64_t>(begins.begin(), begins.end()).size(), 1u);
    EXPECT_LT(*trained.rbegin(), *held_out.begin());
    EXPECT_EQ(static_cast<std::uint64_t>(*held_out.begin()), begins.front());
    // No more is lost than a window.
    EXPECT_GE(static_cast<std::uint64_t>(*trained.rbegin()) + 8, begins.front());
  }
}

TEST(SeqSchedule, DataThatOneLengthDoesNotFitIsRefused) {
  const ScratchDir scratch;
  const std::string path = scratch.path() + "/tokens";
  auto writer = TokenWriter::create(path, 300, {});
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE(writer->append(std::vector<std::int32_t>(100, 7)).ok());
  ASSERT_TRUE(writer->finish().ok());
  const auto file = TokenFile::open(path);
  ASSERT_TRUE(file.ok());
  const auto at = [&](const std::string& schedule, std::size_t phase) {
    RunConfig config = config_of(schedule, 10);
    config.eval_split = 0.45;  // of 12 windows of 8
    return Batches::create(*file, at_phase(config, phase), false);
  };
  EXPECT_TRUE(at("8:2,40:*", 0).ok());
  EXPECT_TRUE(at("8:2,40:*", 1).ok());
  EXPECT_TRUE(at("8:2,64:*", 0).ok());
  const auto refused = at("8:2,64:*", 1);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("44 are held out, are too few for sequences of 64"), std::string::npos)
      << refused.error().message;
}

}  // namespace
}  // namespace sluice
