// State on its way to and from the drive outside steps.
#include "offload/run/swap_window.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>

#include "tests/scratch_dir.h"

namespace sluice::test {
namespace {

constexpr std::uint32_t block_bytes = 8192;
constexpr std::uint64_t piece_bytes = 2 * block_bytes;
constexpr std::uint64_t buffer_bytes = 25 * block_bytes + 5000;  // the last piece is a part of a block

/// A swap file of one nvme buffer, striped over two folders.
class Drive {
 public:
  explicit Drive(QueueOptions queue = {}) {
    Buffer buffer;
    buffer.name = "state";
    buffer.tier = Tier::nvme;
    buffer.bytes = buffer_bytes;
    buffer.life = Life::persistent;
    buffer.block_bytes = block_bytes;
    plan_.buffers = {buffer};
    SwapOptions swap;
    for (const char* name : {"a", "b"}) {
      swap.directories.push_back(directory_ / name);
      std::filesystem::create_directory(swap.directories.back());
    }
    swap.bytes = footprint_bytes(buffer);
    swap.stripe_bytes = 4096;
    file_ = std::move(SwapFile::create(swap)).value();
    memory_.emplace(std::move(Memory::create({}, device_)).value());
    store_ = std::move(SwapStore::create(file_, 0, footprint_bytes(buffer), *memory_, queue)).value();
    EXPECT_TRUE(store_->bind(plan_).ok());
  }
  ~Drive() {
    store_.reset();
    file_ = SwapFile{};
  }
  SwapStore& store() { return *store_; }

 private:
  const ScratchDir directory_;
  StepPlan plan_;
  HostDevice device_;
  SwapFile file_;
  std::optional<Memory> memory_;
  std::unique_ptr<SwapStore> store_;
};

std::byte content(std::uint64_t offset) { return static_cast<std::byte>(offset * 7 + offset / 4096); }

Status write_all(SwapStore& store) {
  SwapWindow window(piece_bytes);
  for (std::uint64_t offset = 0; offset < buffer_bytes; offset += piece_bytes) {
    const std::uint64_t bytes = std::min(piece_bytes, buffer_bytes - offset);
    SLUICE_ASSIGN(SwapWindow::Piece * piece, window.take());
    for (std::uint64_t i = 0; i < bytes; ++i) piece->data()[i] = content(offset + i);
    SLUICE_TRY(window.write(*piece, store, 0, Slot::current, offset, bytes));
  }
  return window.finish();
}

Result<std::vector<std::byte>> read_all(SwapStore& store) {
  SwapWindow window(piece_bytes);
  std::vector<std::byte> all;
  const std::array<BufferId, 1> buffers{0};
  SLUICE_TRY(window.scan(store, buffers, [&](const SwapWindow::Part& part, std::span<const std::byte> data) {
    EXPECT_EQ(part.offset_bytes, all.size());
    all.insert(all.end(), data.begin(), data.end());
    return success();
  }));
  return all;
}

TEST(SwapWindow, reads_what_it_wrote_with_several_transfers_in_flight) {
  for (const std::size_t depth : {1, 3, 32}) {
    SCOPED_TRACE(depth);
    QueueOptions queue;
    queue.depth = depth;  // of each of the two files
    constexpr std::uint64_t files = 2;
    queue.faults = FaultOptions{.seed = 5, .short_probability = 0.2, .interrupt_probability = 0.2, .hold_max = 4};
    Drive drive(queue);
    ASSERT_TRUE(write_all(drive.store()).ok());
    const auto all = read_all(drive.store());
    ASSERT_TRUE(all.ok()) << all.error().message;
    ASSERT_EQ(all->size(), buffer_bytes);
    for (std::uint64_t i = 0; i < buffer_bytes; ++i) ASSERT_EQ((*all)[i], content(i)) << i;
    for (const IoOp op : {IoOp::read, IoOp::write}) {
      const std::uint64_t most = drive.store().queue(op).counters().in_flight_max;
      EXPECT_EQ(most, std::min<std::uint64_t>(depth * files, 32)) << io_op_name(op);
    }
  }
}

TEST(SwapWindow, a_new_file_reads_as_the_zeros_that_nobody_wrote) {
  Drive drive;
  ASSERT_FALSE(read_all(drive.store()).ok());
  drive.store().assume_zero(0, Slot::current);
  const auto all = read_all(drive.store());
  ASSERT_TRUE(all.ok()) << all.error().message;
  EXPECT_EQ(*all, std::vector<std::byte>(buffer_bytes));
  EXPECT_EQ(drive.store().written_bytes(), 0u);
  // What is not zero is not taken for zero.
  ASSERT_TRUE(write_all(drive.store()).ok());
  drive.store().assume_zero(0, Slot::current);
  EXPECT_FALSE(read_all(drive.store()).ok());
}

TEST(SwapWindow, failures_are_told_wherever_they_happen) {
  using Target = FaultOptions::Target;
  for (std::uint64_t nth = 1; nth <= 51; nth += 5) {
    SCOPED_TRACE(nth);
    QueueOptions queue;
    queue.faults = FaultOptions{.fail_target = Target::write, .fail_nth = nth};
    const Status written = write_all(Drive(queue).store());
    ASSERT_FALSE(written.ok());
    EXPECT_NE(written.error().message.find("write of 4096 bytes"), std::string::npos) << written.error().message;

    queue.faults = FaultOptions{.fail_target = Target::read, .fail_nth = nth};
    Drive unreadable(queue);
    ASSERT_TRUE(write_all(unreadable.store()).ok());
    const auto read = read_all(unreadable.store());
    ASSERT_FALSE(read.ok());
    EXPECT_NE(read.error().message.find("read of 4096 bytes"), std::string::npos) << read.error().message;

    queue.faults = FaultOptions{.lost_write_nth = nth};
    Drive lossy(queue);
    ASSERT_TRUE(write_all(lossy.store()).ok());
    const auto lost = read_all(lossy.store());
    ASSERT_FALSE(lost.ok());
    EXPECT_NE(lost.error().message.find("came back changed"), std::string::npos) << lost.error().message;
  }
}

TEST(SwapWindow, a_visitor_that_stops_leaves_nothing_in_flight) {
  Drive drive;
  ASSERT_TRUE(write_all(drive.store()).ok());
  {
    SwapWindow window(piece_bytes);
    const std::array<BufferId, 1> buffers{0};
    const Status stopped =
        window.scan(drive.store(), buffers, [](const SwapWindow::Part& part, std::span<const std::byte>) {
          return part.offset_bytes == 2 * piece_bytes ? Status(fault("enough")) : success();
        });
    ASSERT_FALSE(stopped.ok());
    EXPECT_EQ(stopped.error().message, "enough");
  }
  EXPECT_EQ(drive.store().queue(IoOp::read).in_flight(), 0u);
}

}  // namespace
}  // namespace sluice::test
