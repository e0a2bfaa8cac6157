// Final norm and output projection. The loss goes through the vocabulary in chunks of tokens: logits never exist whole.
#include <algorithm>

#include "kernels/cpu/cross_entropy.h"
#include "src/model/blocks.h"
#include "src/model/layers.h"
#include "src/model/layout.h"

namespace sluice {
namespace {

template <class T>
struct Head {
  explicit Head(const SublayerArgs& a) : args(a), d(*a.model, a.shape, a.dtype) {
    const bool tied = a.model->config.tied;
    if (d.gpt2)
      norm = {weight<T>(a, "ln_f.weight"), weight<T>(a, "ln_f.bias"), a.model->config.norm_eps, d.hidden};
    else
      norm = {weight<T>(a, "norm.weight"), {}, a.model->config.norm_eps, d.hidden};
    Weight<T> matrix = weight<T>(a, "lm_head.weight");
    if (tied)
      matrix = {reinterpret_cast<const T*>(a.tied_parameters) + a.model->units.front().tensors[0].offset,
                a.tied_gradient};
    project = {matrix, d.hidden, d.vocabulary};
  }

  void logits_chunk(const HeadSpace& space, std::int64_t first, std::int64_t rows) const {
    const T* x = reinterpret_cast<const T*>(args.x_in) + first * d.hidden;
    T* normed = reinterpret_cast<T*>(space.normed);
    norm.forward(x, rows, normed, space.statistics);
    project.forward(normed, rows, kernels::Matrix{space.logits, Dtype::f32, d.vocabulary}, space.scratch);
  }

  const T* gradient_of_logits(const HeadSpace& space, std::int64_t rows) const {
    if constexpr (sizeof(T) == 4) {
      return space.logits;
    } else {
      T* narrow = reinterpret_cast<T*>(space.d_logits);
      kernels::narrow(space.logits, narrow, rows * d.vocabulary);
      return narrow;
    }
  }

  void train_chunk(const HeadSpace& space, std::int64_t first, std::int64_t rows) const {
    logits_chunk(space, first, rows);
    kernels::cross_entropy_forward_backward(space.logits, d.vocabulary, args.tokens.targets + first, rows, d.vocabulary,
                                            static_cast<float>(args.loss_scale), space.loss);
    const T* d_logits = gradient_of_logits(space, rows);
    const T* x = reinterpret_cast<const T*>(args.x_in) + first * d.hidden;
    T* d_normed = reinterpret_cast<T*>(space.d_normed);
    project.weight_gradient(reinterpret_cast<const T*>(space.normed), d_logits, rows, args.accumulate || first > 0,
                            space.scratch);
    project.input_gradient(d_logits, rows, d_normed, space.scratch);
    norm.backward(x, space.statistics, d_normed, rows, reinterpret_cast<T*>(args.d_in) + first * d.hidden, false,
                  space.scratch);
  }

  void loss_chunk(const HeadSpace& space, std::int64_t first, std::int64_t rows) const {
    logits_chunk(space, first, rows);
    kernels::cross_entropy_forward(space.logits, d.vocabulary, args.tokens.targets + first, rows, d.vocabulary,
                                   space.loss);
  }

  const SublayerArgs& args;
  Dims d;
  Norm<T> norm{};
  Linear<T> project{};
};

void check_workspace(const HeadSpace& space, const SublayerArgs& args) {
  SLUICE_CHECK(space.bytes <= args.workspace.size(), "workspace of %zu bytes, %llu needed", args.workspace.size(),
               static_cast<unsigned long long>(space.bytes));
}

}  // namespace

template <class T>
void head_chunks(const SublayerArgs& args, HeadMode mode) {
  const Head<T> head(args);
  const bool train = mode == HeadMode::train;
  const HeadSpace space(Carver(args.workspace.data()), head.d, train);
  check_workspace(space, args);
  if (train) open_gradient(args);
  double sum = 0;
  for (std::int64_t t = 0; t < head.d.tokens; t += head.d.head_chunk) {
    const std::int64_t rows = std::min(head.d.head_chunk, head.d.tokens - t);
    train ? head.train_chunk(space, t, rows) : head.loss_chunk(space, t, rows);
    for (std::int64_t i = 0; i < rows; ++i) sum += static_cast<double>(space.loss[i]);
  }
  *args.loss = sum;
}

template <class T>
void head_last_logits(const SublayerArgs& args) {
  const Head<T> head(args);
  const HeadSpace space(Carver(args.workspace.data()), head.d, false);
  check_workspace(space, args);
  const Dims& d = head.d;
  const T* x = reinterpret_cast<const T*>(args.x_in) + (d.tokens - 1) * d.hidden;
  T* normed = reinterpret_cast<T*>(space.normed);
  head.norm.forward(x, 1, normed, space.statistics);
  head.project.forward(normed, 1, kernels::Matrix{args.logits, Dtype::f32, d.vocabulary}, space.scratch);
}

template void head_chunks<float>(const SublayerArgs&, HeadMode);
template void head_chunks<bf16>(const SublayerArgs&, HeadMode);
template void head_last_logits<float>(const SublayerArgs&);
template void head_last_logits<bf16>(const SublayerArgs&);

}  // namespace sluice
