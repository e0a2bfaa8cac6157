// The executor's parts on their own.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <random>
#include <thread>

#include "offload/run/poison.h"
#include "offload/run/progress.h"
#include "offload/state/worker_team.h"
#include "tests/run/rig.h"
#include "tests/run/toy_plan.h"

namespace sluice::test {
namespace {

TEST(Memory, ArenasAreAlignedPresentAndApart) {
  HostDevice device;
  const std::vector<ArenaSpec> specs{{Tier::device, 3 << 20}, {Tier::host, 5000}};
  auto memory = Memory::create(specs, device);
  auto other = Memory::create(specs, device);
  ASSERT_TRUE(memory.ok()) << memory.error().message;
  ASSERT_TRUE(other.ok()) << other.error().message;
  for (const ArenaSpec& spec : specs) {
    std::byte* const base = memory->at(spec.tier, 0);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(base) % (2u << 20), 0u);
    EXPECT_EQ(memory->bytes(spec.tier), spec.bytes);
    std::memset(base, 1, spec.bytes);
    std::memset(other->at(spec.tier, 0), 2, spec.bytes);
  }
  EXPECT_EQ(*memory->at(Tier::host, 4999), std::byte{1});
  EXPECT_EQ(*memory->at(Tier::device, (3 << 20) - 1), std::byte{1});
  EXPECT_EQ(memory->bytes(Tier::nvme), 0u);
  Memory moved = std::move(memory).value();
  EXPECT_EQ(*moved.at(Tier::host, 0), std::byte{1});
}

/// Small copies and those of tiles go different ways.
TEST(Memory, TheHostCopiesAnyNumberOfBytes) {
  HostDevice device;
  constexpr std::size_t tile = 256u << 10;
  std::vector<std::byte> from(tile + 200);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + i / 251);
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, tile - 1, tile, tile + 1, tile + 130})
    for (const std::size_t at : {0, 1, 63}) {
      std::vector<std::byte> to(tile + 300, std::byte{0xa5});
      ASSERT_TRUE(device.copy(to.data() + at, from.data() + 5, bytes).ok());
      EXPECT_EQ(std::memcmp(to.data() + at, from.data() + 5, bytes), 0) << bytes << " at " << at;
      const auto is_untouched = [](std::byte b) { return b == std::byte{0xa5}; };
      EXPECT_TRUE(std::all_of(to.begin(), to.begin() + static_cast<std::ptrdiff_t>(at), is_untouched));
      EXPECT_TRUE(std::all_of(to.begin() + static_cast<std::ptrdiff_t>(at + bytes), to.end(), is_untouched));
    }
}

TEST(Memory, RefusesWhatTheMachineDoesNotHave) {
  HostDevice device;
  const std::vector<ArenaSpec> specs{{Tier::host, 1ull << 60}};
  const auto memory = Memory::create(specs, device);
  ASSERT_FALSE(memory.ok());
  EXPECT_EQ(memory.error().code, ErrorCode::bad_request);
  EXPECT_NE(memory.error().message.find("host arena"), std::string::npos) << memory.error().message;
}

TEST(Progress, WakesAtTheThresholdAndOnHalt) {
  Progress progress(2, 3);
  std::atomic<int> passed{0};
  std::thread first([&] {
    if (progress.await(0, 0, 3)) ++passed;
    if (progress.await(0, 1, 1)) ++passed;
    if (!progress.await(0, 1, 100)) ++passed;
  });
  std::thread second([&] {
    if (progress.await(1, 0, 5)) ++passed;
    if (!progress.await(1, 0, 6)) ++passed;
  });
  for (std::uint64_t i = 1; i <= 5; ++i) progress.publish(0, i);
  EXPECT_TRUE(progress.await(2, 0, 5));
  progress.publish(1, 1);
  while (passed < 3) std::this_thread::yield();
  progress.halt();
  first.join();
  second.join();
  EXPECT_EQ(passed, 5);
}

TEST(Progress, PingPongLosesNoWakeUp) {
  Progress progress(2, 2);
  constexpr std::uint64_t rounds = 20000;
  std::thread other([&] {
    for (std::uint64_t i = 1; i <= rounds; ++i) {
      ASSERT_TRUE(progress.await(1, 0, i));
      progress.publish(1, i);
    }
  });
  for (std::uint64_t i = 1; i <= rounds; ++i) {
    progress.publish(0, i);
    ASSERT_TRUE(progress.await(0, 1, i));
  }
  other.join();
}

TEST(Progress, ArmedWakerIsCalledOnce) {
  Progress progress(1, 1);
  int calls = 0;
  progress.set_waker(
      0, [](void* count) { ++*static_cast<int*>(count); }, &calls);
  EXPECT_FALSE(progress.arm(0, 0, 2));
  progress.publish(0, 1);
  EXPECT_EQ(calls, 0);
  progress.publish(0, 2);
  progress.publish(0, 3);
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(progress.arm(0, 0, 3));
}

TEST(WorkerTeam, EveryChunkOnce) {
  for (const int threads : {1, 2, 5}) {
    WorkerTeam team(threads);
    for (std::uint32_t count : {0u, 1u, 2u, 7u, 1000u}) {
      std::vector<std::atomic<int>> done(count);
      for (int round = 0; round < 20; ++round) team.run(count, [&](std::uint32_t i) { ++done[i]; });
      for (const auto& each : done) ASSERT_EQ(each.load(), 20);
    }
  }
}

TEST(Optimizer, NormDoesNotDependOnThreads) {
  std::vector<float> gradient(5 * 65536 + 777);
  initial_content(3, 0, 1, std::as_writable_bytes(std::span(gradient)));
  std::vector<double> sums;
  for (const int threads : {1, 2, 4}) {
    WorkerTeam team(threads);
    std::vector<double> partial(gradient.size() / norm_block_numel + 1);
    ExactSum sum;
    add_tile_norm(gradient, team, partial, &sum);
    sums.push_back(sum.value());
  }
  EXPECT_EQ(sums[0], sums[1]);
  EXPECT_EQ(sums[0], sums[2]);
}

/// As long as integers of 128 bits hold it.
double sum_in_integers(std::span<const double> values) {
  __int128 sum = 0;
  for (const double v : values) sum += static_cast<__int128>(std::ldexp(v, 60));
  return std::ldexp(static_cast<double>(sum), -60);
}

TEST(ExactSum, IsRoundedOnceWhateverTheOrderAndTheParts) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 200; ++round) {
    std::vector<double> values;
    for (int i = 0; i < 200; ++i)
      values.push_back(
          std::ldexp(static_cast<double>(static_cast<std::int64_t>(random())), -63 - static_cast<int>(random() % 8)) *
          (round % 2 ? 1 : std::ldexp(1.0, static_cast<int>(random() % 40))));
    for (double& v : values) v = std::ldexp(std::trunc(std::ldexp(v, 60)), -60);
    const double expected = sum_in_integers(values);
    ExactSum forward, parts[3];
    for (const double v : values) forward.add(v);
    std::shuffle(values.begin(), values.end(), random);
    for (std::size_t i = 0; i < values.size(); ++i) parts[random() % 3].add(values[i]);
    parts[2].add(parts[0]);
    parts[2].add(parts[1]);
    ASSERT_EQ(forward.value(), expected);
    ASSERT_EQ(std::bit_cast<std::uint64_t>(parts[2].value()), std::bit_cast<std::uint64_t>(expected));
  }
}

TEST(ExactSum, HoldsTheWholeRange) {
  constexpr double most = std::numeric_limits<double>::max(), least = std::numeric_limits<double>::denorm_min();
  const auto sum = [](std::initializer_list<double> values) {
    ExactSum s;
    for (const double v : values) s.add(v);
    return s.value();
  };
  EXPECT_EQ(sum({}), 0);
  for (const double v : {1.0, -1.0, least, -least, 3 * least, most, -most, 0x1p-1022, 0x1.fffffffffffffp-1023, 0.1})
    EXPECT_EQ(sum({v}), v) << v;
  EXPECT_EQ(sum({most, least, -most}), least);
  EXPECT_EQ(sum({most, most, -most}), most);
  EXPECT_EQ(sum({most, most}), std::numeric_limits<double>::infinity());
  EXPECT_EQ(sum({1, 0x1p-53}), 1) << "to even";
  EXPECT_EQ(sum({1, 0x1p-53, least}), 1 + 0x1p-52) << "above the middle";
  EXPECT_EQ(sum({1 + 0x1p-52, 0x1p-53}), 1 + 0x1p-51) << "to even";
  EXPECT_EQ(sum({std::numeric_limits<double>::infinity(), 1}), std::numeric_limits<double>::infinity());
  EXPECT_EQ(sum({-std::numeric_limits<double>::infinity(), most}), -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(sum({std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()})));
  EXPECT_TRUE(std::isnan(sum({1, std::numeric_limits<double>::quiet_NaN()})));
}

TEST(Optimizer, ChunksCoverTrainableSegmentsOnly) {
  OptimizerUnit unit;
  unit.segments = {{10, 100, 1, 1, true}, {200, 200000, 0, 0.5f, true}, {200300, 50, 1, 1, false}};
  std::vector<UpdateChunk> chunks;
  append_chunks(unit, 50, 300000, chunks);
  std::vector<int> touched(300000);
  for (const UpdateChunk& chunk : chunks)
    for (std::uint32_t i = 0; i < chunk.numel; ++i) ++touched[chunk.begin + i];
  for (std::size_t i = 0; i < touched.size(); ++i) {
    const std::size_t element = i + 50;
    const bool inside = element < 110 || (element >= 200 && element < 200200);
    ASSERT_EQ(touched[i], inside ? 1 : 0) << element;
  }
}

/// Runs `f(rank, communicator)` on a thread for each rank.
TEST(SwapStore, SlotsAreApartAndParityChoosesThem) {
  const ToyTraining toy = toy_training(1, 1, 1);
  Rig rig(toy.plans, toy.units, {});
  SwapStore& store = *rig.store();
  ASSERT_TRUE(store.bind(toy.plan()).ok());
  BufferId durable = 0;
  while (toy.plan().buffers[durable].slots != 2) ++durable;
  const std::uint64_t bytes = toy.plan().buffers[durable].bytes;
  auto pages = map_pages(bytes);
  ASSERT_TRUE(pages.ok());
  const auto fill = [&](int value) { std::memset(*pages, value, bytes); };
  EXPECT_FALSE(store.read(durable, Slot::current, 0, {*pages, bytes}).ok()) << "never written";
  const std::uint64_t read_before = store.read_bytes();
  fill(1);
  ASSERT_TRUE(store.write(durable, Slot::current, 0, {*pages, bytes}).ok());
  fill(2);
  ASSERT_TRUE(store.write(durable, Slot::next, 0, {*pages, bytes}).ok());
  ASSERT_TRUE(store.sync().ok());
  ASSERT_TRUE(store.read(durable, Slot::current, 0, {*pages, bytes}).ok());
  EXPECT_EQ((*pages)[bytes - 1], std::byte{1});
  store.set_parity(1);
  ASSERT_TRUE(store.read(durable, Slot::current, 8192, {*pages, 8192}).ok());
  EXPECT_EQ((*pages)[0], std::byte{2});
  EXPECT_EQ(store.written_bytes(), 2 * bytes);
  EXPECT_EQ(store.read_bytes() - read_before, bytes + 8192);
  // Another plan may not see something else in the same place.
  StepPlan other = toy.plan();
  other.buffers[durable].bytes -= 8192;
  EXPECT_FALSE(store.bind(other).ok());
  unmap_pages(*pages, bytes);
}

TEST(Poison, FillsPiecesAfterTheirLastUse) {
  StepPlan plan;
  plan.lanes = {{LaneKind::compute}};
  for (const auto& [name, life] :
       {std::pair("a", Life::brief), std::pair("kept", Life::persistent), std::pair("b", Life::lasting)}) {
    Buffer buffer;
    buffer.name = name;
    buffer.tier = Tier::device;
    buffer.bytes = 8192;
    buffer.life = life;
    buffer.offset = plan.buffers.size() * 8192;
    plan.buffers.push_back(buffer);
  }
  const auto op = [&](std::vector<Access> accesses) {
    Op made;
    made.kind = OpKind::forward;
    made.accesses = std::move(accesses);
    plan.ops.push_back(made);
  };
  op({{0, 0, 4096, Role::x_out, Mode::write}, {1, 0, 8192, Role::x_out, Mode::write}});
  op({{0, 4096, 4096, Role::x_out, Mode::write}, {2, 0, 8192, Role::gradient, Mode::read_write}});
  op({{0, 0, 8192, Role::x_in, Mode::read}});
  op({{0, 0, 4096, Role::x_in, Mode::read}});
  HostDevice device;
  const std::vector<ArenaSpec> specs{{Tier::device, 3 * 8192}};
  auto memory = Memory::create(specs, device);
  ASSERT_TRUE(memory.ok());
  Poisoner poisoner(plan, *memory);
  const auto byte = [&](std::uint64_t offset) { return *memory->at(Tier::device, offset); };
  for (int iteration = 0; iteration < 2; ++iteration) {
    std::memset(memory->at(Tier::device, 0), 1, 3 * 8192);
    // Completions need not come in program order.
    for (const OpId id : {1u, 0u, 3u}) poisoner.finished(id);
    EXPECT_EQ(byte(0), std::byte{1});
    poisoner.finished(2);
    EXPECT_EQ(byte(0), poison_byte);
    EXPECT_EQ(byte(8191), poison_byte);
    EXPECT_EQ(byte(8192), std::byte{1}) << "persistent";
    EXPECT_EQ(byte(2 * 8192), std::byte{1}) << "read before it is written: carried over";
  }
}

}  // namespace
}  // namespace sluice::test
