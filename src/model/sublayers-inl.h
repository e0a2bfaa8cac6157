// The sublayers with the kernels of one kind of device, by op, kind of unit and element type.
#pragma once

#include <string>

#include "src/model/attention-inl.h"
#include "src/model/context-inl.h"
#include "src/model/embed-inl.h"
#include "src/model/head-inl.h"
#include "src/model/mlp-inl.h"
#include "src/model/slice-inl.h"
#include "src/model/sublayer.h"

namespace sluice {

template <class T, class K>
void forward_of_kind(const K& device, const SublayerArgs& args) {
  switch (args.unit->kind) {
    case Sublayer::embed: return embed_forward<T>(device, args);
    case Sublayer::attention: return attention_forward<T>(device, args);
    case Sublayer::mlp: return mlp_forward<T>(device, args);
    case Sublayer::head: SLUICE_CHECK(false, "the head has ops of its own");
  }
}

template <class T, class K>
void backward_of_kind(const K& device, const SublayerArgs& args) {
  switch (args.unit->kind) {
    case Sublayer::embed: return embed_backward<T>(device, args);
    case Sublayer::attention: return attention_backward<T>(device, args);
    case Sublayer::mlp: return mlp_backward<T>(device, args);
    case Sublayer::head: SLUICE_CHECK(false, "the head has ops of its own");
  }
}

template <class T, class K>
void backward_half_of_kind(const K& device, OpKind op, const SublayerArgs& args) {
  switch (args.unit->kind) {
    case Sublayer::attention: return attention_backward_half<T>(device, op, args);
    case Sublayer::mlp: return mlp_backward_half<T>(device, op, args);
    default: SLUICE_CHECK(false, "%s: its backward pass is one", args.unit->name.c_str());
  }
}

template <class T, class K>
void part_of_kind(const K& device, OpKind op, const SublayerArgs& args) {
  switch (args.unit->kind) {
    case Sublayer::embed: return embed_part<T>(device, op, args);
    case Sublayer::attention: return attention_part<T>(device, op, args);
    case Sublayer::mlp: return mlp_part<T>(device, op, args);
    case Sublayer::head: return head_part<T>(device, op, args);
  }
}

template <class T, class K>
void run_typed(const K& device, OpKind op, const SublayerArgs& args) {
  switch (op) {
    case OpKind::forward:
    case OpKind::recompute: return forward_of_kind<T>(device, args);
    case OpKind::recompute_qkv:
    case OpKind::recompute_core: return attention_again<T>(device, op, args);
    case OpKind::backward: return backward_of_kind<T>(device, args);
    case OpKind::backward_again:
      SLUICE_CHECK(args.unit->kind == Sublayer::mlp && args.saved == nullptr, "%s", args.unit->name.c_str());
      return mlp_backward<T>(device, args);
    case OpKind::backward_input:
    case OpKind::backward_weight: return backward_half_of_kind<T>(device, op, args);
    case OpKind::enter:
    case OpKind::leave:
    case OpKind::expose:
    case OpKind::enter_backward: return run_slice<T>(device, op, args);
    case OpKind::part_forward:
    case OpKind::part_recompute:
    case OpKind::part_backward:
    case OpKind::part_logits:
    case OpKind::part_gradient:
    case OpKind::part_loss: return part_of_kind<T>(device, op, args);
    case OpKind::qkv:
    case OpKind::core:
    case OpKind::core_earlier:
    case OpKind::out:
    case OpKind::out_backward:
    case OpKind::core_backward:
    case OpKind::core_earlier_backward:
    case OpKind::qkv_backward: return run_context<T>(device, op, args);
    case OpKind::forward_backward: return head_chunks<T>(device, args, HeadMode::train);
    case OpKind::loss: return head_chunks<T>(device, args, HeadMode::loss);
    case OpKind::logits: return head_last_logits<T>(device, args);
    default: SLUICE_CHECK(false, "%s is no op of a sublayer", op_names[static_cast<std::size_t>(op)]);
  }
}

/// A compute op of a unit, but accumulate.
template <class K>
void run_sublayer(const K& device, OpKind op, const SublayerArgs& args) {
  SLUICE_CHECK(args.dtype == Dtype::f32 || args.dtype == Dtype::bf16, "%s", dtype_name(args.dtype));
  args.dtype == Dtype::f32 ? run_typed<float>(device, op, args) : run_typed<bf16>(device, op, args);
}

}  // namespace sluice
