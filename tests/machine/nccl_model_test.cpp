// What the model of NCCL owes to those who are tested with it: bytes in the order of streams, and no forgiveness.
#include <atomic>

#include "kernels/cuda/library.h"
#include "tests/machine/gpus.h"

namespace sluice::test {
namespace {

using kernels::cuda::Library;
using kernels::cuda::Nccl;
using kernels::cuda::NcclCommunicator;
using Ends = std::vector<std::unique_ptr<NcclEnd>>;

class NcclModel : public CardTest {
 protected:
  NcclModel() { put_in({.devices = 4}); }

  /// A communicator of all of them.
  void join(Ends& ends) {
    begin_to_join(ends);
    for (const auto& end : ends) {
      const Status joined = end->settle();
      ASSERT_TRUE(joined.ok()) << joined.error().message;
    }
  }
  void begin_to_join(Ends& ends) {
    const auto nccl = Nccl::open();
    ASSERT_TRUE(nccl.ok()) << nccl.error().message;
    const auto id = (*nccl)->make_id();
    ASSERT_TRUE(id.ok()) << id.error().message;
    for (std::size_t rank = 0; rank < ends.size(); ++rank) {
      ends[rank]->use();
      auto joined = NcclCommunicator::join(*nccl, *id, ends.size(), rank);
      ASSERT_TRUE(joined.ok()) << joined.error().message;
      ends[rank]->comm = std::move(*joined);
    }
  }
  static Status gather(NcclEnd& end, std::byte* full, std::uint64_t part) {
    end.use();
    const Status asked = end.comm->all_gather(full, part, end.stream);
    return asked.ok() ? end.settle() : asked;
  }
  static void expect_refused(const Status& status, const std::string& what) {
    ASSERT_FALSE(status.ok()) << what;
    EXPECT_NE(status.error().message.find(what), std::string::npos) << status.error().message;
    EXPECT_EQ(status.error().message.find('\n'), std::string::npos) << status.error().message;
  }
  /// A function of the library that ours does not hand out.
  static int raw(const char* name) {
    const auto library = Library::open({SLUICE_MODEL_NCCL});
    int (*function)() = nullptr;
    EXPECT_TRUE(library.ok() && library->find(name, function).ok());
    return function();
  }
};

TEST_F(NcclModel, GathersInTheOrderOfStreams) {
  Ends ends = ends_on({0, 1, 2});
  join(ends);
  std::vector<std::byte*> full;
  for (std::size_t r = 0; r < 3; ++r) {
    std::vector<std::byte> bytes(300, std::byte{0});
    std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(100 * r), 100, std::byte(r + 1));
    full.push_back(ends[r]->put(bytes));
  }
  // What is ahead of it in the stream of one rank holds up all.
  std::atomic<bool> open{false};
  ends[1]->use();
  simt_submit(ends[1]->stream, [&] { open.wait(false); });
  for (std::size_t r = 0; r < 3; ++r) ASSERT_TRUE(gather(*ends[r], full[r], 100).ok());
  cudaEvent_t reached = nullptr;
  ends[0]->use();
  cudaEventCreate(&reached);
  cudaEventRecord(reached, ends[0]->stream);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(cudaEventQuery(reached), cudaErrorNotReady);
  open = true;
  open.notify_all();
  for (std::size_t r = 0; r < 3; ++r) {
    const auto bytes = ends[r]->get(full[r], 300);
    for (std::size_t i = 0; i < bytes.size(); ++i) ASSERT_EQ(bytes[i], std::byte(i / 100 + 1)) << "rank " << r;
  }
  EXPECT_EQ(cudaEventQuery(reached), cudaSuccess);
  cudaEventDestroy(reached);
}

TEST_F(NcclModel, CarriesMessagesAndSums) {
  Ends ends = ends_on({2, 0});
  join(ends);
  std::vector<float*> sent, got, full;
  for (std::size_t r = 0; r < 2; ++r) {
    const auto own = static_cast<float>(r + 1);
    sent.push_back(ends[r]->put(std::vector<float>{own, 10 * own}));
    got.push_back(ends[r]->put(std::vector<float>(2)));
    full.push_back(ends[r]->put(std::vector<float>{own, 2 * own, 3 * own, 4 * own}));
  }
  for (std::size_t r = 0; r < 2; ++r) {
    ends[r]->use();
    const std::vector<NcclCommunicator::Outgoing> out{{1 - r, std::as_bytes(std::span(sent[r], 1))},
                                                      {1 - r, std::as_bytes(std::span(sent[r] + 1, 1))}};
    const std::vector<NcclCommunicator::Incoming> in{{1 - r, std::as_writable_bytes(std::span(got[r], 1))},
                                                     {1 - r, std::as_writable_bytes(std::span(got[r] + 1, 1))}};
    ASSERT_TRUE(ends[r]->comm->exchange(out, in, ends[r]->stream).ok());
    ASSERT_TRUE(ends[r]->settle().ok());
    ASSERT_TRUE(ends[r]->comm->reduce_scatter(full[r], full[r] + 2 * r, 2, ends[r]->stream).ok());
    ASSERT_TRUE(ends[r]->settle().ok());
  }
  EXPECT_EQ(ends[0]->get(got[0], 2), (std::vector<float>{2, 20}));
  EXPECT_EQ(ends[1]->get(got[1], 2), (std::vector<float>{1, 10}));
  EXPECT_EQ(ends[0]->get(full[0], 2), (std::vector<float>{3, 6}));
  EXPECT_EQ(ends[1]->get(full[1] + 2, 2), (std::vector<float>{9, 12}));
}

TEST_F(NcclModel, RefusesTwoRanksOnOneDevice) {
  Ends ends = ends_on({1, 1});
  begin_to_join(ends);
  for (const auto& end : ends) expect_refused(end->settle(), "both on CUDA device 1");
}

TEST_F(NcclModel, RefusesWhatHasNotSettled) {
  Ends ends = ends_on({0, 1});
  begin_to_join(ends);
  std::byte* const full = ends[0]->put(std::vector<std::byte>(200));
  ends[0]->use();
  expect_refused(ends[0]->comm->all_gather(full, 100, ends[0]->stream), "has not been seen to settle");
  for (const auto& end : ends) ASSERT_TRUE(end->settle().ok());
  ends[0]->use();
  ASSERT_TRUE(ends[0]->comm->all_gather(full, 100, ends[0]->stream).ok());
  expect_refused(ends[0]->comm->all_gather(full, 100, ends[0]->stream), "has not been seen to settle");
}

TEST_F(NcclModel, RefusesOtherSizesAndOtherCollectives) {
  Ends ends = ends_on({0, 1});
  join(ends);
  std::vector<std::byte*> full;
  for (const auto& end : ends) full.push_back(end->put(std::vector<std::byte>(400)));
  ASSERT_TRUE(gather(*ends[0], full[0], 100).ok());
  expect_refused(gather(*ends[1], full[1], 200), "another collective, size or type");
  ends[1]->use();
  expect_refused(ends[1]->comm->reduce_scatter(reinterpret_cast<float*>(full[1]), reinterpret_cast<float*>(full[1]), 25,
                                               ends[1]->stream),
                 "another collective, size or type");
}

TEST_F(NcclModel, RefusesOrdersThatDifferAmongCommunicators) {
  Ends one = ends_on({0, 1}), other = ends_on({0, 1});
  join(one);
  join(other);
  std::vector<std::byte*> a, b;
  for (std::size_t r = 0; r < 2; ++r) {
    a.push_back(one[r]->put(std::vector<std::byte>(200)));
    b.push_back(other[r]->put(std::vector<std::byte>(200)));
  }
  ASSERT_TRUE(gather(*one[0], a[0], 100).ok());
  ASSERT_TRUE(gather(*other[0], b[0], 100).ok());
  ASSERT_TRUE(gather(*other[1], b[1], 100).ok());
  expect_refused(gather(*one[1], a[1], 100), "do not issue their work in one order");
}

TEST_F(NcclModel, RefusesMemoryThatIsNotTheDevices) {
  Ends ends = ends_on({0, 1});
  join(ends);
  std::vector<std::byte> host(200);
  std::byte *const own = ends[0]->put(host), *const others = ends[1]->put(host);
  for (std::byte* const wrong : {host.data(), others, own + 1})
    expect_refused(gather(*ends[0], wrong, 100), "no memory of the communicator's device");
  EXPECT_TRUE(gather(*ends[0], own, 100).ok());
}

TEST_F(NcclModel, AnAbortEndsWhatWaitsAndWhatComes) {
  Ends ends = ends_on({0, 1});
  join(ends);
  std::byte* const full = ends[0]->put(std::vector<std::byte>(200));
  ASSERT_TRUE(gather(*ends[0], full, 100).ok());
  ends[0]->comm->abort();
  ends[0]->use();
  EXPECT_EQ(cudaStreamSynchronize(ends[0]->stream), cudaSuccess);
  expect_refused(gather(*ends[0], full, 100), "no such communicator");
}

TEST_F(NcclModel, AFailedDeviceLeavesTheOthersWaiting) {
  Ends ends = ends_on({0, 1});
  join(ends);
  std::vector<std::byte*> full;
  for (const auto& end : ends) full.push_back(end->put(std::vector<std::byte>(200)));
  const std::uint64_t done = simt::work_done();
  simt::card().fails_at = done + 1;
  ASSERT_TRUE(gather(*ends[1], full[1], 100).ok());
  ends[1]->use();
  EXPECT_EQ(cudaStreamSynchronize(ends[1]->stream), cudaErrorECCUncorrectable);
  ASSERT_TRUE(gather(*ends[0], full[0], 100).ok()) << "another card works";
  ends[0]->use();
  cudaEvent_t reached = nullptr;
  cudaEventCreate(&reached);
  cudaEventRecord(reached, ends[0]->stream);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(cudaEventQuery(reached), cudaErrorNotReady);
  ends[0]->comm->abort();
  EXPECT_EQ(cudaEventSynchronize(reached), cudaSuccess);
  cudaEventDestroy(reached);
}

/// Nobody reads the memory of one that has ended, which is another's by then.
TEST_F(NcclModel, WhoComesBehindOneThatWasCalledOffWaits) {
  Ends ends = ends_on({0, 1});
  join(ends);
  std::vector<std::byte*> full;
  for (const auto& end : ends) full.push_back(end->put(std::vector<std::byte>(200)));
  ASSERT_TRUE(gather(*ends[0], full[0], 100).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  ends[0]->comm->abort();
  ends[0]->use();
  EXPECT_EQ(cudaStreamSynchronize(ends[0]->stream), cudaSuccess);
  ASSERT_TRUE(gather(*ends[1], full[1], 100).ok());
  ends[1]->use();
  cudaEvent_t reached = nullptr;
  cudaEventCreate(&reached);
  cudaEventRecord(reached, ends[1]->stream);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(cudaEventQuery(reached), cudaErrorNotReady);
  ends[1]->comm->abort();
  EXPECT_EQ(cudaEventSynchronize(reached), cudaSuccess);
  cudaEventDestroy(reached);
}

TEST_F(NcclModel, RefusesGroupsThatAreLeftOpen) {
  Ends ends = ends_on({0, 1});
  join(ends);
  EXPECT_EQ(raw("ncclGroupStart"), 0);
  ends[0]->use();
  expect_refused(ends[0]->settle(), "a group is open");
  EXPECT_EQ(raw("ncclGroupEnd"), 0);
  EXPECT_NE(raw("ncclGroupEnd"), 0);
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(std::thread([] { raw("ncclGroupStart"); }).join(), "a thread has left a group open");
}

TEST_F(NcclModel, BuffersThatAreFreedEarlyEndTheProgram) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(
      {
        Ends ends = ends_on({0, 1});
        join(ends);
        std::vector<std::byte*> full;
        for (const auto& end : ends) full.push_back(end->put(std::vector<std::byte>(200)));
        EXPECT_TRUE(gather(*ends[0], full[0], 100).ok());
        cudaFree(full[0]);
        EXPECT_TRUE(gather(*ends[1], full[1], 100).ok());
        ends[1]->get(full[1], 200);
      },
      "");
}

TEST_F(NcclModel, LibrariesThatWillNotDoAreRefusedInOneLine) {
  const auto missing = Nccl::open({"/nowhere/libnccl.so.2"});
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::bad_request);
  expect_refused(missing.error(), "NCCL is not there: ");
  expect_refused(missing.error(), "--transport staged");
  put_in({.nccl = 21703});
  const auto old = Nccl::open();
  ASSERT_FALSE(old.ok());
  EXPECT_EQ(old.error().code, ErrorCode::bad_request);
  expect_refused(old.error(), "NCCL 2.17.3 is too old, 2.18.1 is the first that will do; update it, or ");
}

}  // namespace
}  // namespace sluice::test
