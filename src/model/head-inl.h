// Final norm and output projection. The loss goes through the vocabulary in chunks of tokens: logits never exist whole.
#pragma once

#include <algorithm>

#include "src/model/blocks.h"
#include "src/model/workspaces.h"

namespace sluice {

enum class HeadMode : std::uint8_t { train, loss };

template <class T, class K>
struct HeadSublayer {
  HeadSublayer(const K& kernels_of_device, const SublayerArgs& a)
      : device(kernels_of_device), args(a), d(*a.model, a.shape, a.dtype, kernels_of_device.sizes()) {
    const bool tied = a.model->config.tied;
    norm = norm_of<T>(a, d);
    Weight<T> matrix = weight<T>(a, "lm_head.weight");
    if (tied)
      matrix = {reinterpret_cast<const T*>(a.tied_parameters) + a.model->units.front().tensors[0].offset,
                a.tied_gradient};
    project = {matrix, d.hidden, d.vocabulary};
  }

  void logits_chunk(const HeadSpace& space, std::int64_t first, std::int64_t rows) const {
    const T* x = reinterpret_cast<const T*>(args.x_in) + first * d.hidden;
    T* normed = reinterpret_cast<T*>(space.normed);
    norm.forward(device, x, rows, normed, space.statistics);
    project.forward(device, normed, rows, kernels::Matrix{space.logits, Dtype::f32, d.logits_ld}, space.scratch);
  }

  const T* gradient_of_logits(const HeadSpace& space, std::int64_t rows) const {
    if constexpr (sizeof(T) == 4) {
      return space.logits;
    } else {
      T* narrow = reinterpret_cast<T*>(space.d_logits);
      device.narrow(space.logits, narrow, rows * d.logits_ld);
      return narrow;
    }
  }

  void train_chunk(const HeadSpace& space, std::int64_t first, std::int64_t rows) const {
    logits_chunk(space, first, rows);
    device.cross_entropy_forward_backward(space.logits, d.logits_ld, args.tokens.targets + first, rows, d.vocabulary,
                                          static_cast<float>(args.loss_scale), space.loss);
    const T* d_logits = gradient_of_logits(space, rows);
    const T* x = reinterpret_cast<const T*>(args.x_in) + first * d.hidden;
    T* d_normed = reinterpret_cast<T*>(space.d_normed);
    project.weight_gradient(device, reinterpret_cast<const T*>(space.normed), d_logits, d.logits_ld, rows,
                            args.accumulate || first > 0, space.scratch);
    project.input_gradient(device, d_logits, d.logits_ld, rows, d_normed, space.scratch);
    norm.backward(device, x, space.statistics, d_normed, rows, reinterpret_cast<T*>(args.d_in) + first * d.hidden,
                  false, space.scratch);
  }

  void loss_chunk(const HeadSpace& space, std::int64_t first, std::int64_t rows) const {
    logits_chunk(space, first, rows);
    device.cross_entropy_forward(space.logits, d.logits_ld, args.tokens.targets + first, rows, d.vocabulary,
                                 space.loss);
  }

  const K& device;
  const SublayerArgs& args;
  Dims d;
  Norm<T> norm{};
  Linear<T> project{};
};

inline void check_workspace(const HeadSpace& space, const SublayerArgs& args) {
  SLUICE_CHECK(space.bytes <= args.workspace.size(), "workspace of %zu bytes, %llu needed", args.workspace.size(),
               static_cast<unsigned long long>(space.bytes));
}

template <class T, class K>
void head_chunks(const K& device, const SublayerArgs& args, HeadMode mode) {
  const HeadSublayer<T, K> head(device, args);
  const bool train = mode == HeadMode::train;
  const HeadSpace space(Carver(args.workspace.data()), head.d, train);
  check_workspace(space, args);
  if (train) open_gradient(device, args);
  for (std::int64_t t = 0; t < head.d.tokens; t += head.d.head_chunk) {
    const std::int64_t rows = std::min(head.d.head_chunk, head.d.tokens - t);
    train ? head.train_chunk(space, t, rows) : head.loss_chunk(space, t, rows);
    device.add_losses(space.loss, rows, t == 0, args.loss);
  }
}

template <class T, class K>
void head_last_logits(const K& device, const SublayerArgs& args) {
  const HeadSublayer<T, K> head(device, args);
  const HeadSpace space(Carver(args.workspace.data()), head.d, false);
  check_workspace(space, args);
  const Dims& d = head.d;
  const T* x = reinterpret_cast<const T*>(args.x_in) + (d.tokens - 1) * d.hidden;
  T* normed = reinterpret_cast<T*>(space.normed);
  head.norm.forward(device, x, 1, normed, space.statistics);
  head.project.forward(device, normed, 1, kernels::Matrix{args.logits, Dtype::f32, d.vocabulary}, space.scratch);
}

/// part_logits, part_gradient and part_loss, of one chunk of tokens.
template <class T, class K>
void head_part(const K& device, OpKind op, const SublayerArgs& args) {
  const HeadSublayer<T, K> head(device, args);
  const Dims& d = head.d;
  HeadSpace space(Carver(args.workspace.data()), d, op == OpKind::part_gradient);
  check_workspace(space, args);
  const std::int64_t first = args.chunk * d.head_chunk, rows = std::min(d.head_chunk, d.tokens - first);
  const std::int32_t* targets = args.tokens.targets + first;
  const T* normed = reinterpret_cast<const T*>(args.normed);
  if (op == OpKind::part_logits) {
    head.project.forward(device, normed, rows, kernels::Matrix{args.logits, Dtype::f32, d.logits_ld}, space.scratch);
    device.cross_entropy_part(args.logits, d.logits_ld, targets, rows, args.words, args.vocabulary_parts);
    return;
  }
  if (op == OpKind::part_loss) {
    device.cross_entropy_of_parts_forward(targets, rows, args.vocabulary_parts, d.split, d.head_chunk, space.loss);
  } else {
    if (first == 0) open_gradient(device, args);
    device.cross_entropy_of_parts_forward_backward(args.logits, d.logits_ld, targets, rows, args.words,
                                                   args.vocabulary_parts, d.split, d.head_chunk,
                                                   static_cast<float>(args.loss_scale), space.loss);
    // Rows of the matrix that are no words have no gradient.
    if (const std::int64_t padding = d.vocabulary - args.words; padding > 0)
      for (std::int64_t r = 0; r < rows; ++r)
        device.zero(args.logits + r * d.logits_ld + args.words, sizeof(float) * static_cast<std::size_t>(padding));
    space.logits = args.logits;
    const T* d_logits = head.gradient_of_logits(space, rows);
    head.project.weight_gradient(device, normed, d_logits, d.logits_ld, rows, args.accumulate || first > 0,
                                 space.scratch);
    head.project.input_gradient(device, d_logits, d.logits_ld, rows, kernels::Matrix{args.d_sum, Dtype::f32, d.hidden},
                                space.scratch);
  }
  // The others have the same, and it counts once.
  if (args.leads)
    device.add_losses(space.loss, rows, first == 0, args.loss);
  else
    device.zero(args.loss, sizeof(double));
}

}  // namespace sluice
