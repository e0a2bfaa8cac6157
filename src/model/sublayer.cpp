#include "src/model/sublayer.h"

#include <cstring>

#include "src/model/blocks.h"
#include "src/model/layers.h"

namespace sluice {
namespace {

template <class F32, class Bf16>
void by_dtype(const SublayerArgs& args, const F32& f32, const Bf16& bf) {
  SLUICE_CHECK(args.dtype == Dtype::f32 || args.dtype == Dtype::bf16, "%s", dtype_name(args.dtype));
  args.dtype == Dtype::f32 ? f32(args) : bf(args);
}

}  // namespace

void sublayer_forward(const SublayerArgs& args) {
  switch (args.unit->kind) {
    case Sublayer::embed: return by_dtype(args, embed_forward<float>, embed_forward<bf16>);
    case Sublayer::attention: return by_dtype(args, attention_forward<float>, attention_forward<bf16>);
    case Sublayer::mlp: return by_dtype(args, mlp_forward<float>, mlp_forward<bf16>);
    case Sublayer::head: SLUICE_CHECK(false, "the head has ops of its own");
  }
}

void sublayer_backward(const SublayerArgs& args) {
  switch (args.unit->kind) {
    case Sublayer::embed: return by_dtype(args, embed_backward<float>, embed_backward<bf16>);
    case Sublayer::attention: return by_dtype(args, attention_backward<float>, attention_backward<bf16>);
    case Sublayer::mlp: return by_dtype(args, mlp_backward<float>, mlp_backward<bf16>);
    case Sublayer::head: SLUICE_CHECK(false, "the head has ops of its own");
  }
}

void head_forward_backward(const SublayerArgs& args) {
  by_dtype(
      args, [](const SublayerArgs& a) { head_chunks<float>(a, HeadMode::train); },
      [](const SublayerArgs& a) { head_chunks<bf16>(a, HeadMode::train); });
}

void head_loss(const SublayerArgs& args) {
  by_dtype(
      args, [](const SublayerArgs& a) { head_chunks<float>(a, HeadMode::loss); },
      [](const SublayerArgs& a) { head_chunks<bf16>(a, HeadMode::loss); });
}

void head_logits(const SublayerArgs& args) { by_dtype(args, head_last_logits<float>, head_last_logits<bf16>); }

void open_gradient(const SublayerArgs& args) {
  if (args.accumulate) return;
  const auto zero = [&](std::uint64_t first, std::uint64_t last) {
    std::memset(args.gradient + first, 0, 4 * (last - first));
  };
  std::uint64_t done = 0;
  for (const TensorSpec& t : args.unit->tensors) {
    const bool set_by_matmul = args.unit->kind != Sublayer::embed && t.shape.size() == 2;
    if (!set_by_matmul) continue;
    zero(done, t.offset);
    done = t.offset + t.numel;
  }
  zero(done, args.unit->numel);
}

}  // namespace sluice
