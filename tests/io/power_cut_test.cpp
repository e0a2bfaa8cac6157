// After a power cut, what was synced is there, and nothing that was never written.
#include "io/drives/power_cut.h"

#include <fcntl.h>

#include <array>
#include <cstring>
#include <optional>

#include "support.h"

namespace sluice {
namespace {

constexpr std::uint64_t block_bytes = 16 << 10;
constexpr std::size_t block_count = 12;

struct DriveKind {
  IoBackendKind backend;
  bool direct;
  const char* directory;
};

class PowerCutTest : public testing::TestWithParam<DriveKind> {
 protected:
  PowerCutTest() : dir_(GetParam().directory), swap_(make({dir_.path()})) {}

  static SwapFile make(const std::vector<std::string>& directories) {
    return make_swap(directories, block_bytes * block_count * directories.size(), GetParam().direct, {}, block_bytes);
  }

  static std::unique_ptr<IoQueue> open(const std::vector<IoFile>& files, std::shared_ptr<PowerCut> cut) {
    QueueOptions options;
    options.backend = GetParam().backend;
    options.depth = 6;
    options.files = files;
    options.faults.emplace();
    options.faults->power_cut = std::move(cut);
    return open_queue(options);
  }
  std::unique_ptr<IoQueue> open(std::shared_ptr<PowerCut> cut) const { return open(swap_.files(), std::move(cut)); }

  std::uint64_t unit_bytes() const { return std::max<std::uint64_t>(swap_.files()[0].alignment_bytes, 512); }

  /// The file as it is, without the queues.
  static AlignedBytes content(const IoFile& file, std::uint64_t bytes = block_bytes * block_count) {
    AlignedBytes all(bytes);
    EXPECT_EQ(pread(file.fd, all.data(), bytes, 0), static_cast<ssize_t>(bytes));
    return all;
  }
  AlignedBytes content() const { return content(swap_.files()[0]); }

  static std::span<std::byte> block(const AlignedBytes& memory, std::size_t i) {
    return memory.span().subspan(i * block_bytes, block_bytes);
  }

  ScratchDir dir_;
  SwapFile swap_;
};

bool equal(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

/// Versions of each block that may be there after a cut.
class Model {
 public:
  Model() : blocks_(block_count) {
    for (Block& b : blocks_) {
      b.versions.emplace_back(block_bytes);
      std::memset(b.versions.back().data(), 0, block_bytes);
    }
  }

  /// Writes of one batch are in flight together: of those to one block, each may be the last.
  void begin_batch() { ++batch_; }
  std::span<std::byte> write(std::size_t number, std::uint64_t seed) {
    Block& b = blocks_[number];
    if (b.batch != batch_) {
      b.batch = batch_;
      b.batch_begin = b.versions.size();
    }
    b.versions.emplace_back(block_bytes);
    fill(b.versions.back().span(), seed);
    return b.versions.back().span();
  }
  /// By a sync that started after all batches.
  void all_durable() {
    for (Block& b : blocks_) {
      b.versions.erase(b.versions.begin(), b.versions.begin() + static_cast<std::ptrdiff_t>(b.batch_begin));
      b.batch_begin = 0;
    }
    begin_batch();
  }

  struct Outcomes {
    std::size_t synced = 0, kept = 0, lost = 0, torn = 0;
  };
  void check(const AlignedBytes& file, std::uint64_t unit_bytes, Outcomes& outcomes) const {
    for (std::size_t b = 0; b < block_count; ++b) {
      const auto found = file.span().subspan(b * block_bytes, block_bytes);
      const auto& versions = blocks_[b].versions;
      for (std::uint64_t at = 0; at < block_bytes; at += unit_bytes) {
        const bool known = std::any_of(versions.begin(), versions.end(), [&](const AlignedBytes& v) {
          return equal(v.span().subspan(at, unit_bytes), found.subspan(at, unit_bytes));
        });
        ASSERT_TRUE(known) << "block " << b << " at " << at << ": " << versions.size() << " versions";
      }
      if (versions.size() == 1) ++outcomes.synced;
      if (versions.size() != 2) continue;
      ++(equal(found, versions[0].span())   ? outcomes.lost
         : equal(found, versions[1].span()) ? outcomes.kept
                                            : outcomes.torn);
    }
  }

 private:
  struct Block {
    std::vector<AlignedBytes> versions;
    std::uint64_t batch = 0;
    std::size_t batch_begin = 0;  ///< first version of its last batch
  };
  std::vector<Block> blocks_;
  std::uint64_t batch_ = 1;
};

/// Random batches of writes, and reads between them, until the power is gone.
class Workload {
 public:
  Workload(IoQueue& queue, Model& model, std::uint64_t seed) : queue_(queue), model_(model), random_(seed) {}

  void run() {
    while (write_batch()) {
      if (random_() % 2 == 0) continue;
      if (!transfer_now(queue_, IoOp::sync, 0, 0, {}).ok()) return;
      model_.all_durable();
    }
  }

 private:
  /// With one queue of a few requests, a block may be written to twice at the same time.
  bool write_batch() {
    model_.begin_batch();
    std::array<IoRequest, 6> requests;
    for (std::size_t i = 0; i < 6; ++i) {
      IoRequest& r = requests[i];
      const std::size_t b = random_() % block_count;
      if (random_() % 4 == 0)
        r = request_of(IoOp::read, b * block_bytes, read_.span().subspan(i * block_bytes, block_bytes));
      else
        r = request_of(IoOp::write, b * block_bytes, model_.write(b, random_()));
      EXPECT_TRUE(queue_.submit(&r));
    }
    return queue_.drain().ok();
  }

  IoQueue& queue_;
  Model& model_;
  AlignedBytes read_{6 * block_bytes};
  std::mt19937_64 random_;
};

TEST_P(PowerCutTest, WhatWasSyncedIsThereAndTheRestIsKeptLostOrTorn) {
  const std::uint64_t seeds = std::string_view(GetParam().directory) == "." ? 60 : 400;
  Model::Outcomes outcomes;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    swap_ = make({dir_.path()});
    const auto cut = std::make_shared<PowerCut>(seed, 1 + seed % 60);
    Model model;
    auto queue = open(cut);
    Workload(*queue, model, seed).run();
    EXPECT_TRUE(cut->happened());
    model.check(content(), unit_bytes(), outcomes);
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
  EXPECT_GT(outcomes.synced, seeds);
  EXPECT_GT(outcomes.kept, seeds / 8);
  EXPECT_GT(outcomes.lost, seeds / 8);
  EXPECT_GT(outcomes.torn, seeds / 8);
}

TEST_P(PowerCutTest, ConcurrentRewritesLeaveOneOfThem) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    swap_ = make({dir_.path()});
    const auto cut = std::make_shared<PowerCut>(seed);
    Model model;
    {
      auto queue = open(cut);
      std::array<IoRequest, 6> requests;
      for (std::size_t i = 0; i < 6; ++i) {
        requests[i] = request_of(IoOp::write, i % 2 * block_bytes, model.write(i % 2, seed * 10 + i));
        ASSERT_TRUE(queue->submit(&requests[i]));
      }
      ASSERT_TRUE(queue->drain().ok());
    }
    cut->cut_now();
    Model::Outcomes ignored;
    model.check(content(), unit_bytes(), ignored);
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

TEST_P(PowerCutTest, TheSameSeedLeavesTheSame) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    std::optional<AlignedBytes> first;
    for (int run = 0; run < 2; ++run) {
      swap_ = make({dir_.path()});
      const auto cut = std::make_shared<PowerCut>(seed, 20);
      Model model;
      auto queue = open(cut);
      std::mt19937_64 random(seed);
      for (int i = 0; i < 30; ++i) {
        const std::size_t b = random() % block_count;
        const bool sync = random() % 8 == 0;
        const Status done = sync ? transfer_now(*queue, IoOp::sync, 0, 0, {})
                                 : transfer_now(*queue, IoOp::write, 0, b * block_bytes, model.write(b, random()));
        EXPECT_EQ(done.ok(), i < 19);
      }
      if (run == 0)
        first = content();
      else
        EXPECT_TRUE(equal(first->span(), content().span())) << "seed " << seed;
    }
  }
}

TEST_P(PowerCutTest, QueuesOnOneFileGoDarkTogether) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    swap_ = make({dir_.path()});
    const auto cut = std::make_shared<PowerCut>(seed, 6);
    Model model;
    // The second one by a descriptor of its own.
    std::vector<IoFile> files = swap_.files();
    files[0].fd = ::open(files[0].path.c_str(), O_RDWR | O_CLOEXEC | (files[0].alignment_bytes > 1 ? O_DIRECT : 0));
    ASSERT_GE(files[0].fd, 0);
    auto one = open(cut), two = open(files, cut);
    EXPECT_TRUE(transfer_now(*one, IoOp::write, 0, 0, model.write(0, seed)).ok());
    EXPECT_TRUE(transfer_now(*two, IoOp::sync, 0, 0, {}).ok()) << "covers what the other queue wrote";
    model.all_durable();
    // A later write of one queue over that of another.
    EXPECT_TRUE(transfer_now(*one, IoOp::write, 0, block_bytes, model.write(1, seed + 100)).ok());
    EXPECT_TRUE(transfer_now(*two, IoOp::write, 0, block_bytes, model.write(1, seed + 200)).ok());
    EXPECT_TRUE(transfer_now(*one, IoOp::write, 0, 2 * block_bytes, model.write(2, seed + 300)).ok());
    EXPECT_FALSE(cut->happened());
    EXPECT_FALSE(transfer_now(*two, IoOp::read, 0, 0, block(content(), 0)).ok()) << "the sixth";
    EXPECT_TRUE(cut->happened());
    for (IoQueue* queue : {one.get(), two.get()}) {
      const Status after = transfer_now(*queue, IoOp::write, 0, 0, model.write(0, 1));
      ASSERT_FALSE(after.ok());
      EXPECT_NE(after.error().message.find("Input/output error"), std::string::npos);
      EXPECT_FALSE(transfer_now(*queue, IoOp::sync, 0, 0, {}).ok());
    }
    Model::Outcomes outcomes;
    model.check(content(), unit_bytes(), outcomes);
    two.reset();
    close(files[0].fd);
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

TEST_P(PowerCutTest, NothingLandsAfterwards) {
  std::size_t lost = 0;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    swap_ = make({dir_.path()});
    const auto cut = std::make_shared<PowerCut>(seed);
    Model model;
    auto one = open(cut), two = open(cut);
    std::array<IoRequest, 8> requests;
    for (std::size_t i = 0; i < 8; ++i) {
      requests[i] = request_of(IoOp::write, i * block_bytes, model.write(i, seed * 8 + i));
      ASSERT_TRUE((i < 4 ? one : two)->submit(&requests[i]));
    }
    cut->cut_now();
    EXPECT_FALSE(one->drain().ok());
    EXPECT_FALSE(cut->happened()) << "the other queue's writes may still land";
    EXPECT_FALSE(two->drain().ok());
    EXPECT_TRUE(cut->happened());
    const AlignedBytes left = content();
    for (IoQueue* queue : {one.get(), two.get()}) {
      for (std::size_t i = 0; i < 6; ++i) ASSERT_TRUE(queue->submit(&requests[i]));
      EXPECT_FALSE(queue->drain().ok());
    }
    one.reset();
    two.reset();
    EXPECT_TRUE(equal(left.span(), content().span()));
    Model::Outcomes outcomes;
    model.check(left, unit_bytes(), outcomes);
    lost += outcomes.lost + outcomes.torn;
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
  EXPECT_GT(lost, 60u);
}

// One queue's write is in flight while another rewrites the same place and syncs that.
TEST_P(PowerCutTest, AnEarlierWriteDoesNotTakeADurableOneWithIt) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    swap_ = make({dir_.path()});
    const auto cut = std::make_shared<PowerCut>(seed);
    Model model;
    auto one = open(cut), two = open(cut);
    IoRequest slow = request_of(IoOp::write, 0, model.write(0, seed));
    ASSERT_TRUE(one->submit(&slow));
    EXPECT_TRUE(transfer_now(*two, IoOp::write, 0, 0, model.write(0, seed + 100)).ok());
    EXPECT_TRUE(transfer_now(*two, IoOp::sync, 0, 0, {}).ok());
    model.all_durable();
    EXPECT_TRUE(transfer_now(*two, IoOp::write, 0, 0, model.write(0, seed + 200)).ok());
    cut->cut_now();
    EXPECT_FALSE(one->drain().ok());
    EXPECT_TRUE(cut->happened());
    Model::Outcomes outcomes;
    model.check(content(), unit_bytes(), outcomes);
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

// The other way round: the earlier one is synced, and the later one, which started before it had landed, is lost.
TEST_P(PowerCutTest, ALaterWriteDoesNotTakeADurableOneWithIt) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    swap_ = make({dir_.path()});
    const auto cut = std::make_shared<PowerCut>(seed);
    Model model;
    auto one = open(cut), two = open(cut);
    IoRequest durable = request_of(IoOp::write, 0, model.write(0, seed));
    IoRequest later = request_of(IoOp::write, 0, model.write(0, seed + 100));
    ASSERT_TRUE(one->submit(&durable));
    ASSERT_TRUE(two->submit(&later));
    EXPECT_TRUE(one->drain().ok());
    EXPECT_TRUE(transfer_now(*one, IoOp::sync, 0, 0, {}).ok());
    model.all_durable();
    cut->cut_now();
    EXPECT_FALSE(two->drain().ok());
    Model::Outcomes outcomes;
    model.check(content(), unit_bytes(), outcomes);
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

// A sync covers neither what was in flight when it started nor other files.
TEST_P(PowerCutTest, SomeSyncsComeTooEarlyOrElsewhere) {
  const ScratchDir other(GetParam().directory);
  std::size_t early_lost = 0, elsewhere_lost = 0;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SwapFile two = make({dir_.path(), other.path()});
    const auto cut = std::make_shared<PowerCut>(seed);
    Model model;
    auto queue = open(two.files(), cut);
    ASSERT_TRUE(transfer_now(*queue, IoOp::write, 0, 0, model.write(0, seed)).ok());
    ASSERT_TRUE(transfer_now(*queue, IoOp::write, 1, 0, model.write(1, seed)).ok());
    IoRequest write = request_of(IoOp::write, block_bytes, model.write(2, seed)), sync = request_of(IoOp::sync, 0, {});
    ASSERT_TRUE(queue->submit(&write));
    ASSERT_TRUE(queue->submit(&sync));
    ASSERT_TRUE(queue->drain().ok());
    queue.reset();
    cut->cut_now();
    const AlignedBytes a = content(two.files()[0]), b = content(two.files()[1]);
    AlignedBytes expected(block_bytes);
    fill(expected.span(), seed);
    EXPECT_TRUE(equal(block(a, 0), expected.span()));
    early_lost += !equal(block(a, 1), expected.span());
    elsewhere_lost += !equal(block(b, 0), expected.span());
  }
  EXPECT_GT(early_lost, 5u);
  EXPECT_GT(elsewhere_lost, 5u);
}

INSTANTIATE_TEST_SUITE_P(Kinds, PowerCutTest,
                         testing::Values(DriveKind{IoBackendKind::io_uring, true, "."},
                                         DriveKind{IoBackendKind::io_uring, false, "/dev/shm"},
                                         DriveKind{IoBackendKind::threads, true, "."},
                                         DriveKind{IoBackendKind::threads, false, "/dev/shm"}),
                         [](const auto& kind) {
                           return std::string(io_backend_names[static_cast<int>(kind.param.backend)]) +
                                  (kind.param.direct ? "_direct" : "_buffered");
                         });

TEST(PowerCut, UnalignedWritesLoseSectorsAndNeverTheSize) {
  const ScratchDir dir;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    const std::string path = dir / std::to_string(seed), before(1900, 'a');
    write_text(path, before);
    IoFile file;
    file.fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    file.path = path;
    const auto cut = std::make_shared<PowerCut>(seed);
    QueueOptions options;
    options.files = {file};
    options.faults.emplace();
    options.faults->power_cut = cut;
    std::vector<std::byte> data(1500, std::byte{'b'});
    ASSERT_TRUE(transfer_now(*open_queue(options), IoOp::write, 0, 300, data).ok());
    close(file.fd);  // the cut has its own
    cut->cut_now();
    const std::string after = read_text(path);
    ASSERT_EQ(after.size(), before.size());
    std::string written = before;
    written.replace(300, 1500, 1500, 'b');
    for (std::size_t at = 0; at < after.size(); at += 512)
      EXPECT_TRUE(after.substr(at, 512) == before.substr(at, 512) || after.substr(at, 512) == written.substr(at, 512));
  }
}

// Only what a sync has made durable outlives a cut, whichever faults there are besides.
TEST(PowerCut, GoesWithOtherFaults) {
  const ScratchDir dir("/dev/shm");
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    SwapFile swap = make_swap({dir.path()}, block_bytes * block_count, false);
    QueueOptions options;
    options.depth = 6;
    options.files = swap.files();
    options.files[0].alignment_bytes = 512;  // of short transfers too: a sector is of one version
    options.faults = FaultOptions{.seed = seed,
                                  .short_probability = 0.3,
                                  .interrupt_probability = 0.2,
                                  .hold_max = 3,
                                  .latency_random_us = 100,
                                  .sync_latency_us = 50,
                                  .bytes_per_second = 1u << 30,
                                  .power_cut = std::make_shared<PowerCut>(seed, 10 + seed)};
    Model model;
    auto queue = open_queue(options);
    Workload(*queue, model, seed).run();
    EXPECT_TRUE(options.faults->power_cut->happened());
    AlignedBytes left(swap.bytes());
    ASSERT_EQ(pread(swap.files()[0].fd, left.data(), swap.bytes(), 0), static_cast<ssize_t>(swap.bytes()));
    Model::Outcomes outcomes;
    model.check(left, 512, outcomes);
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace sluice
