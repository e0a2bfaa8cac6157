// What a rank does with its slice of the tokens, where sublayers are cut over ranks: the norm ahead of a sublayer, and
// the residual behind it.
#pragma once

#include <algorithm>

#include "src/model/blocks.h"

namespace sluice {

template <class T, class K>
struct SliceOps {
  SliceOps(const K& kernels_of_device, const SublayerArgs& a)
      : device(kernels_of_device),
        args(a),
        d(*a.model, a.shape, a.dtype, kernels_of_device.sizes()),
        norm(norm_of<T>(a, d)),
        bias(last_bias_of<T>(a, d)) {}

  void enter(const SliceSpace& space, std::int64_t first, std::int64_t rows) const {
    const std::int64_t at = first * d.hidden;
    norm.forward(device, reinterpret_cast<const T*>(args.x_in) + at, rows, reinterpret_cast<T*>(args.normed) + at,
                 space.statistics);
  }
  void leave(std::int64_t first, std::int64_t rows) const {
    const std::int64_t at = first * d.hidden;
    const T* x = args.x_in == nullptr ? nullptr : reinterpret_cast<const T*>(args.x_in) + at;
    device.add_sum(x, static_cast<const float*>(args.sum + at), bias.value, reinterpret_cast<T*>(args.x_out) + at, rows,
                   d.hidden);
  }
  /// The head's input is no part of its output: there d_out is null.
  void enter_backward(const SliceSpace& space, std::int64_t first, std::int64_t rows) const {
    const std::int64_t at = first * d.hidden;
    const T* x = reinterpret_cast<const T*>(args.x_in) + at;
    T* d_in = reinterpret_cast<T*>(args.d_in) + at;
    T* d_normed = reinterpret_cast<T*>(space.d_normed);
    norm.forward(device, x, rows, reinterpret_cast<T*>(space.normed), space.statistics);
    device.narrow(static_cast<const float*>(args.d_sum + at), d_normed, rows * d.hidden);
    const bool has_residual = args.d_out != nullptr;
    if (has_residual) {
      const T* d_out = reinterpret_cast<const T*>(args.d_out) + at;
      bias_gradient(device, bias, d_out, d.hidden, rows, d.hidden, space.scratch);
      device.copy(d_in, d_out, static_cast<std::size_t>(rows * d.hidden) * sizeof(T));
    }
    norm.backward(device, x, space.statistics, d_normed, rows, d_in, has_residual, space.scratch);
  }

  const K& device;
  const SublayerArgs& args;
  Dims d;
  Norm<T> norm;
  Weight<T> bias;
};

template <class T, class K>
void run_slice(const K& device, OpKind op, const SublayerArgs& args) {
  const SliceOps<T, K> slice(device, args);
  const SliceSpace space(Carver(args.workspace.data()), slice.d);
  if (op == OpKind::expose) {
    device.copy(args.d_in, args.d_out, static_cast<std::size_t>(slice.d.slice * slice.d.hidden) * sizeof(T));
    return;
  }
  SLUICE_CHECK(op == OpKind::leave || space.bytes <= args.workspace.size(), "workspace of %zu bytes",
               args.workspace.size());
  for (std::int64_t t = 0; t < slice.d.slice; t += slice.d.slice_chunk) {
    const std::int64_t rows = std::min(slice.d.slice_chunk, slice.d.slice - t);
    if (op == OpKind::enter)
      slice.enter(space, t, rows);
    else if (op == OpKind::leave)
      slice.leave(t, rows);
    else
      slice.enter_backward(space, t, rows);
  }
}

}  // namespace sluice
