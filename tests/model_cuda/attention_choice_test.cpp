// Which attention a run computes with: cuDNN's is played by our own kernel, told apart by what it leaves in lse.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "src/device/cuda/attention.h"

namespace sluice {
namespace {

using kernels::AttentionShape;
using kernels::cuda::CudnnAttention;
using kernels::cuda::Stream;

constexpr float mark = 4711;

struct Played final : CudnnAttention {
  bool takes = true, fails = false;
  std::uint64_t needs = 0;
  int calls = 0;

  Result<Workspace> prepare(const AttentionShape&) override { return fault("the backward pass is never asked for"); }
  Result<std::uint64_t> prepare_forward(const AttentionShape&) override {
    if (!takes) return fault("not this shape");
    return needs;
  }
  std::string version() const override { return "90000"; }
  Status forward(const AttentionShape&, const bf16*, const bf16*, const bf16*, bf16*, float* lse,
                 std::span<std::byte> workspace, Stream& stream) override {
    ++calls;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(workspace.data()) % 256, 0u);
    EXPECT_GE(workspace.size(), needs);
    if (fails) return fault("cuDNN failed");
    lse[0] = mark;
    return stream.status();
  }
  Status backward(const AttentionShape&, const bf16*, const bf16*, const bf16*, const bf16*, const bf16*, const float*,
                  bf16*, bf16*, bf16*, std::span<std::byte>, Stream&) override {
    return fault("is never asked");
  }
};

class AttentionChoice : public testing::Test {
 protected:
  AttentionChoice() {
    shape.queries = shape.keys = 40;
    shape.heads = 2;
    shape.kv_heads = 1;
    shape.head_dim = 64;
    shape.q_stride = shape.out_stride = 128;
    shape.k_stride = shape.v_stride = 64;
    shape.scale = 0.125f;
  }
  std::unique_ptr<CudaAttention> make(const KernelChoices& choices, bool timed) {
    auto library = std::make_unique<Played>(played);
    played_ = library.get();
    // Ours comes first.
    const auto timer = [this](Stream&, const std::function<Status()>& call) -> Result<double> {
      SLUICE_TRY(call());
      return played_->calls == 0 ? 2.0 : their_seconds;
    };
    auto made = CudaAttention::create(std::move(library), choices, timed, timer);
    EXPECT_TRUE(made.ok());
    return std::move(*made);
  }
  /// Whether cuDNN computed.
  Result<bool> by_library(CudaAttention& attention) {
    std::vector<bf16> q(40 * 128), k(40 * 64), v(40 * 64), out(40 * 128);
    std::vector<float> lse(80);
    const Status status =
        attention.forward(shape, q.data(), k.data(), v.data(), out.data(), lse.data(), workspace, stream);
    if (!status.ok()) return status.error();
    return lse[0] == mark;
  }

  AttentionShape shape;
  Played played;
  double their_seconds = 1;
  Played* played_ = nullptr;
  std::vector<std::byte> memory = std::vector<std::byte>(8192);
  std::span<std::byte> workspace = std::span(memory).subspan(1);
  Stream stream{nullptr};
};

TEST_F(AttentionChoice, IsOursUnlessItWasTimedOrKept) {
  const auto attention = make({}, false);
  EXPECT_FALSE(*by_library(*attention));
  EXPECT_EQ(played_->calls, 0);
  EXPECT_EQ(attention->used(), (KernelChoices{{CudaAttention::words_of(shape), "sluice"}}));
  EXPECT_TRUE(attention->used().empty());
  const auto kept = make({{CudaAttention::words_of(shape), "cudnn 90000"}, {"gemm 1 2 3", "4"}}, false);
  EXPECT_TRUE(*by_library(*kept));
  EXPECT_EQ(played_->calls, 1);
}

TEST_F(AttentionChoice, IsTheQuickerOneThatWorksAndFits) {
  EXPECT_TRUE(*by_library(*make({}, true)));
  their_seconds = 3;
  const auto slow = make({}, true);
  EXPECT_FALSE(*by_library(*slow));
  EXPECT_EQ(slow->used().begin()->second, "sluice");
  const int tried = played_->calls;
  EXPECT_FALSE(*by_library(*slow));
  EXPECT_EQ(played_->calls, tried) << "it is tried once";
  their_seconds = 1;
  played = {};
  played.fails = true;
  EXPECT_FALSE(*by_library(*make({}, true)));
  played = {};
  played.takes = false;
  EXPECT_FALSE(*by_library(*make({}, true)));
  played = {};
  played.needs = 9000;
  EXPECT_FALSE(*by_library(*make({}, true)));
}

TEST_F(AttentionChoice, DocumentsAndCachesAreOurs) {
  const auto attention = make({}, true);
  std::vector<std::int32_t> positions(40);
  for (int i = 0; i < 40; ++i) positions[static_cast<std::size_t>(i)] = i % 20;
  shape.positions = positions.data();
  EXPECT_FALSE(*by_library(*attention));
  shape.positions = nullptr, shape.shift = 40;
  EXPECT_FALSE(*by_library(*attention)) << "keys of another block";
  EXPECT_TRUE(attention->used().empty()) << "there was no choice";
}

TEST_F(AttentionChoice, AKeptChoiceNeedsItsLibraryAndIsNotGivenUp) {
  const KernelChoices kept{{CudaAttention::words_of(shape), "cudnn 90000"}};
  const auto without = CudaAttention::create(nullptr, kept, false);
  ASSERT_FALSE(without.ok());
  EXPECT_EQ(without.error().code, ErrorCode::bad_request);
  EXPECT_FALSE(CudaAttention::create(nullptr, {{CudaAttention::words_of(shape), "torch"}}, false).ok());
  const auto newer =
      CudaAttention::create(std::make_unique<Played>(), {{CudaAttention::words_of(shape), "cudnn 80000"}}, false);
  ASSERT_FALSE(newer.ok());
  EXPECT_NE(newer.error().message.find("80000"), std::string::npos) << newer.error().message;
  played.fails = true;
  const auto result = by_library(*make(kept, false));
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().message, "cuDNN failed");
}

}  // namespace
}  // namespace sluice
