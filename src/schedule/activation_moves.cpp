#include "src/schedule/activation_moves.h"

#include <algorithm>
#include <utility>

#include "sluice/status.h"
#include "src/device/calibrate.h"

namespace sluice {

ActivationMoves::ActivationMoves(RankContext& context, GradientMoves& gradients)
    : RankMoves(context),
      gradients_(gradients),
      ops_{[this](OpKind kind, UnitId u, int mb) -> Op& { return compute(kind, u, mb); },
           [this](Op& op, UnitId u) { touch_parameters(op, u); },
           [this](Op& op, UnitId u, int mb) { touch_tokens(op, u, mb); },
           [this](UnitId u) -> const SublayerCost& { return costs_[static_cast<std::size_t>(u)]; },
           [this](Op& op, UnitId u, int mb, Mode mode) { touch_saved(op, u, mb, mode); }},
      context_(context, ops_),
      part_(context, gradients, ops_, context_) {
  for (auto& row : cost_index_) row.fill(-1);
  for (UnitId u = 0; u <= head_unit(); ++u)
    costs_.push_back(sublayer_cost(*work_.model, spec(u), work_.shape, work_.dtype, *work_.kernels, work_.kv_capacity));
  if (work_.activation_dtype == ActivationDtype::exact) return;
  for (const SublayerCost& cost : costs_)
    layouts_.push_back({parked_input(work_, cost), parked_saved(work_, cost, SavedPart::all),
                        parked_saved(work_, cost, SavedPart::rest), parked_saved(work_, cost, SavedPart::core)});
}

const ParkedLayout* ActivationMoves::layout_of_input(UnitId v) const {
  const bool in_bits = parks_input_in_bits(work_, travels(v) && has(v - 1));
  return in_bits ? &layouts_[static_cast<std::size_t>(v)].input : nullptr;
}

const ParkedLayout* ActivationMoves::layout_of_saved(UnitId u) const {
  if (layouts_.empty()) return nullptr;
  const Layouts& of = layouts_[static_cast<std::size_t>(u)];
  return is_core_apart(u) ? &of.rest : &of.saved;
}

const ParkedLayout* ActivationMoves::layout_of_core(UnitId u) const {
  return layouts_.empty() ? nullptr : &layouts_[static_cast<std::size_t>(u)].core;
}

bool ActivationMoves::keeps_input(UnitId u) const {
  return kind_ == PlanKind::train && u != head_unit() && choice(u).boundary != Place::device;
}

bool ActivationMoves::travels(UnitId u) const {
  return !schedule_.hold && schedule_.group > 1 && choice(u).boundary != Place::device;
}

/// Of each micro-batch once, by the first unit of the stage that reads them.
void ActivationMoves::load_tokens(int mb) {
  if (parts_.tokens[static_cast<std::size_t>(mb)].valid()) return;
  const std::string name = "tokens.mb" + std::to_string(mb);
  const Part to = device(name, TokenPlanes::bytes(work_.shape, work_.documents), Life::lasting);
  parts_.tokens[static_cast<std::size_t>(mb)] = to;
  const Part loaded = stage(name, to.bytes);
  Op& op = emit_.op(OpKind::load_tokens, LaneKind::input, 0);
  op.micro_batch = mb;
  op.bytes = to.bytes;
  Emitter::touch(op, loaded, Role::dst, Mode::write);
  emit_.move(OpKind::copy, LaneKind::h2d, 0, loaded, to, -1, mb);
}

/// Of the unit that is passed first, or with the gradient of what follows it.
void ActivationMoves::receive_inputs(UnitId u, int mb, bool backward) {
  const UnitId v = backward ? u + 1 : u;  // whose input it is
  if (v == 0 || v > head_unit() || has(backward ? v : v - 1)) return;
  const int chunk = stages_.owner(v).chunk;
  const std::uint64_t bytes = costs_[static_cast<std::size_t>(u)].boundary_bytes;
  if (backward)
    micro(v, mb).arrived_d = receive(gradient_group(chunk), stages_.stage_of(v), bytes, label(v, "d", mb), v, mb);
  else
    micro(v, mb).arrived_x = receive(activation_group(chunk), stages_.stage_of(v - 1), bytes, label(v, "x", mb), v, mb);
}

void ActivationMoves::send_outputs(UnitId u, int mb, bool backward) {
  const UnitId v = backward ? u : u + 1;
  if (v == 0 || v > head_unit() || has(backward ? v - 1 : v)) return;
  const int chunk = stages_.owner(v).chunk;
  PerMicroBatch& m = micro(v, mb);
  if (backward) {
    send(gradient_group(chunk), stages_.stage_of(v - 1), m.d, label(v, "d", mb), v, mb);
    m.d = Part{};
  } else {
    send(activation_group(chunk), stages_.stage_of(v), m.x, label(v, "x", mb), v, mb);
    m.x = m.produced = Part{};
  }
}

void ActivationMoves::land_inputs(UnitId u, int mb, bool backward) {
  if (PerMicroBatch& m = micro(u, mb); m.arrived_x.valid())
    m.x = m.produced = landed(std::exchange(m.arrived_x, Part{}), label(u, "x", mb), u, mb);
  if (!backward || u >= head_unit()) return;
  if (PerMicroBatch& above = micro(u + 1, mb); above.arrived_d.valid())
    above.d = landed(std::exchange(above.arrived_d, Part{}), label(u + 1, "d", mb), u, mb);
}

void ActivationMoves::bring_inputs(UnitId u, int mb, bool backward) {
  PerMicroBatch& m = micro(u, mb);
  if (!m.x.valid() && m.parked_x.part.valid())
    m.x = bring(m.parked_x, label(u, "x", mb), u, mb, Life::brief, &m.brought.x);
  if (!backward) return;
  if (m.parked_saved.part.valid()) {
    m.saved = bring(std::exchange(m.parked_saved, {}), label(u, "saved", mb), u, mb, Life::brief, &m.brought.saved);
    if (has_core(u) && !is_core_apart(u)) split_saved(u, m);
  }
  if (m.parked_core.part.valid())
    m.core = bring(std::exchange(m.parked_core, {}), label(u, "core", mb), u, mb, Life::brief, &m.brought.core);
  if (u >= head_unit()) return;
  PerMicroBatch& above = micro(u + 1, mb);
  if (above.parked_d.part.valid()) {
    above.d = bring(above.parked_d, label(u + 1, "d", mb), u, mb, Life::brief);
    above.parked_d = {};
  }
}

void ActivationMoves::unpack_inputs(UnitId u, int mb) {
  PerMicroBatch& m = micro(u, mb);
  if (m.brought.x.valid()) unpack(std::exchange(m.brought.x, {}), m.x, *layout_of_input(u), u, mb);
  if (m.brought.saved.valid()) unpack(std::exchange(m.brought.saved, {}), m.saved, *layout_of_saved(u), u, mb);
  if (m.brought.core.valid()) unpack(std::exchange(m.brought.core, {}), m.core, *layout_of_core(u), u, mb);
}

/// What follows tokens through the model: their words at the ends, and where documents begin for every attention.
bool ActivationMoves::reads_tokens(UnitId u) const {
  const Sublayer kind = spec(u).kind;
  return kind == Sublayer::embed || kind == Sublayer::head || (kind == Sublayer::attention && work_.has_positions());
}

void ActivationMoves::touch_tokens(Op& op, UnitId u, int mb) {
  if (reads_tokens(u)) Emitter::touch(op, parts_.tokens[static_cast<std::size_t>(mb)], Role::tokens, Mode::read);
}

/// Index in the plan's cost keys, which all ranks share.
std::int32_t ActivationMoves::cost_of(Sublayer sublayer, OpKind kind) {
  std::int32_t& index = cost_index_[static_cast<std::size_t>(sublayer)][static_cast<std::size_t>(kind)];
  if (index >= 0) return index;
  std::vector<std::string>& keys = emit_.plan().cost_keys;
  const std::string key = cost_key(work_, sublayer, kind);
  auto at = std::find(keys.begin(), keys.end(), key);
  if (at == keys.end()) at = keys.insert(keys.end(), key);
  return index = static_cast<std::int32_t>(at - keys.begin());
}

Op& ActivationMoves::compute(OpKind kind, UnitId u, int mb) {
  Op& op = emit_.op(kind, LaneKind::compute, u);
  op.micro_batch = mb;
  op.flop = op_flop(costs_[static_cast<std::size_t>(u)], kind);
  op.cost = cost_of(spec(u).kind, kind);
  return op;
}

void ActivationMoves::touch_parameters(Op& op, UnitId u) {
  Emitter::touch(op, unit(u).open, Role::parameters, Mode::read);
  if (u == head_unit() && work_.model->config.tied)
    Emitter::touch(op, parts_.tied.valid() ? parts_.tied : unit(0).open, Role::tied_parameters, Mode::read);
}

void ActivationMoves::touch_workspace(OpKind kind, UnitId u, Part& out) {
  const SublayerCost& cost = costs_[static_cast<std::size_t>(u)];
  const bool back = kind == OpKind::backward || kind == OpKind::backward_weight || kind == OpKind::forward_backward;
  const std::uint64_t bytes = kind == OpKind::backward_input   ? cost.backward_input_workspace_bytes
                              : kind == OpKind::backward_again ? cost.backward_again_workspace_bytes
                              : back                           ? cost.backward_workspace_bytes
                                                               : cost.forward_workspace_bytes;
  if (bytes > 0) out = device(label(u, "workspace"), bytes);
}

void ActivationMoves::forward(UnitId u, int mb, bool keeps) {
  unpack_inputs(u, mb);
  make_outputs(u, mb, keeps);
  pack_outputs(u, mb);
  leave_input(u, mb);
}

void ActivationMoves::make_outputs(UnitId u, int mb, bool keeps) {
  if (reads_tokens(u)) load_tokens(mb);
  const SublayerCost& cost = costs_[static_cast<std::size_t>(u)];
  PerMicroBatch& m = micro(u, mb);
  const bool train = kind_ == PlanKind::train;
  if (train && keeps && cost.saved_bytes > 0)
    make_room_for_saved(u, mb, choice(u).saved != Saved::recompute, has_core(u) && core_choice(u) != Saved::recompute,
                        Life::lasting);
  const Part out = device(label(u + 1, "x", mb), cost.boundary_bytes, Life::lasting);
  micro(u + 1, mb).x = micro(u + 1, mb).produced = out;
  micro(u + 1, mb).kept = keeps;
  if (is_cut()) return part_.forward(u, mb, out, keeps);
  if (context_.has_ops_of(u)) return context_.forward(u, mb, {m.x, Role::x_in}, m.saved, {out, Role::x_out}, keeps);
  Part workspace;
  touch_workspace(OpKind::forward, u, workspace);
  Op& op = compute(OpKind::forward, u, mb);
  touch_parameters(op, u);
  touch_tokens(op, u, mb);
  if (u > 0) Emitter::touch(op, m.x, Role::x_in, Mode::read);
  Emitter::touch(op, out, Role::x_out, Mode::write);
  touch_saved(op, u, mb, Mode::write);
  if (!parts_.kv.empty() && parts_.kv[static_cast<std::size_t>(u)].valid())
    Emitter::touch(op, parts_.kv[static_cast<std::size_t>(u)], Role::kv_cache, Mode::read_write);
  if (workspace.valid()) Emitter::touch(op, workspace, Role::workspace, Mode::write);
}

/// In one piece where both are wanted and become of the same.
void ActivationMoves::make_room_for_saved(UnitId u, int mb, bool rest, bool core, Life life) {
  const SublayerCost& cost = costs_[static_cast<std::size_t>(u)];
  PerMicroBatch& m = micro(u, mb);
  if (rest && core && !is_core_apart(u)) {
    m.saved = device(label(u, "saved", mb), cost.saved_bytes, life);
    return split_saved(u, m);
  }
  if (rest) m.saved = device(label(u, "saved", mb), cost.saved_bytes - cost.core_bytes, life);
  if (core) m.core = device(label(u, "core", mb), cost.core_bytes, life);
}

/// What is one piece.
void ActivationMoves::split_saved(UnitId u, PerMicroBatch& m) const {
  const SublayerCost& cost = costs_[static_cast<std::size_t>(u)];
  const Part whole = m.saved;
  m.saved = whole.slice(0, cost.saved_bytes - cost.core_bytes);
  m.core = whole.slice(cost.saved_bytes - cost.core_bytes, cost.core_bytes);
}

void ActivationMoves::touch_saved(Op& op, UnitId u, int mb, Mode mode) {
  const PerMicroBatch& m = micro(u, mb);
  if (m.saved.valid()) Emitter::touch(op, m.saved, Role::saved, mode);
  if (m.core.valid()) Emitter::touch(op, m.core, Role::core, mode);
}

namespace {

bool goes(Saved saved) { return saved == Saved::host || saved == Saved::nvme; }
Place place_of(Saved saved) { return saved == Saved::host ? Place::host : Place::nvme; }

}  // namespace

/// Both where they are one piece.
Part ActivationMoves::saved_piece(UnitId u, int mb) {
  const PerMicroBatch& m = micro(u, mb);
  Part whole = m.saved;
  if (has_core(u) && !is_core_apart(u)) whole.bytes += m.core.bytes;
  return whole;
}

void ActivationMoves::pack_outputs(UnitId u, int mb) {
  if (layouts_.empty()) return;
  PerMicroBatch& m = micro(u, mb);
  const ParkedLayout* input = u > 0 ? layout_of_input(u) : nullptr;
  if (input != nullptr && parks_arrived_input(u, mb)) m.packed.x = pack(m.produced, *input, label(u, "x", mb), u, mb);
  if (m.saved.valid() && goes(choice(u).saved))
    m.packed.saved = pack(saved_piece(u, mb), *layout_of_saved(u), label(u, "saved", mb), u, mb);
  if (m.core.valid() && is_core_apart(u) && goes(core_choice(u)))
    m.packed.core = pack(m.core, *layout_of_core(u), label(u, "core", mb), u, mb);
  const UnitId v = u + 1;
  const ParkedLayout* output = layout_of_input(v);
  if (output != nullptr && parks_output(u, mb))
    micro(v, mb).packed.x = pack(micro(v, mb).produced, *output, label(v, "x", mb), v, mb);
}

void ActivationMoves::park_saved(UnitId u, int mb) {
  PerMicroBatch& m = micro(u, mb);
  if (m.saved.valid() && goes(choice(u).saved)) {
    const Part whole = saved_piece(u, mb);
    if (has_core(u) && !is_core_apart(u)) m.core = Part{};
    m.parked_saved = park(whole, place_of(choice(u).saved), label(u, "saved", mb), u, mb, layout_of_saved(u),
                          std::exchange(m.packed.saved, {}));
    m.saved = Part{};
  }
  if (m.core.valid() && is_core_apart(u) && goes(core_choice(u))) {
    m.parked_core = park(m.core, place_of(core_choice(u)), label(u, "core", mb), u, mb, layout_of_core(u),
                         std::exchange(m.packed.core, {}));
    m.core = Part{};
  }
}

/// Of a unit whose input has come from another stage.
bool ActivationMoves::parks_arrived_input(UnitId u, int mb) {
  return u > 0 && !has(u - 1) && keeps_input(u) && !micro(u, mb).parked_x.part.valid();
}

/// For the next unit's backward pass, or also on the way to it.
bool ActivationMoves::parks_output(UnitId u, int mb) {
  const UnitId v = u + 1;
  return has(v) && ((micro(v, mb).kept && keeps_input(v)) || travels(v));
}

/// Behind a pass forward: the input's device copy ends unless it waits there for the backward pass.
void ActivationMoves::leave_input(UnitId u, int mb) {
  PerMicroBatch& m = micro(u, mb);
  if (kind_ != PlanKind::train || !m.kept || choice(u).boundary != Place::device) m.x = Part{};
  if (!m.kept) m.parked_x = {};
}

void ActivationMoves::recompute(UnitId u, int mb, bool for_halves) {
  unpack_inputs(u, mb);
  if (!for_halves && backward_makes_saved(u)) return;
  const Life life = for_halves ? Life::lasting : Life::brief;
  const SublayerCost& cost = costs_[static_cast<std::size_t>(u)];
  PerMicroBatch& m = micro(u, mb);
  const bool rest = cost.saved_bytes > 0 && !m.saved.valid(), core = has_core(u) && !m.core.valid();
  if (!rest && !core) return;
  if (context_.has_ops_of(u) && !is_cut()) {
    make_room_for_saved(u, mb, rest, core, life);
    return context_.attend(u, mb, {m.x, Role::x_in}, m.saved);
  }
  if (is_cut() && rest) part_.enter_again(u, mb);
  Part workspace;
  if (!is_cut() || !context_.has_ops_of(u)) touch_workspace(OpKind::recompute, u, workspace);
  make_room_for_saved(u, mb, rest, core, life);
  if (context_.has_ops_of(u)) return context_.attend(u, mb, {m.normed, Role::normed}, m.saved);
  const OpKind all = is_cut() ? OpKind::part_recompute : OpKind::recompute;
  Op& op = compute(rest && core == has_core(u) ? all : rest ? OpKind::recompute_qkv : OpKind::recompute_core, u, mb);
  touch_parameters(op, u);
  touch_tokens(op, u, mb);
  if (rest) Emitter::touch(op, is_cut() ? m.normed : m.x, is_cut() ? Role::normed : Role::x_in, Mode::read);
  if (rest) Emitter::touch(op, m.saved, Role::saved, Mode::write);
  if (!rest) Emitter::touch(op, m.saved, Role::saved, Mode::read);
  if (core) Emitter::touch(op, m.core, Role::core, Mode::write);
  if (workspace.valid()) Emitter::touch(op, workspace, Role::workspace, Mode::write);
}

void ActivationMoves::backward(UnitId u, int mb) {
  if (is_cut()) return part_.backward(u, mb);
  const SublayerCost& cost = costs_[static_cast<std::size_t>(u)];
  PerMicroBatch& m = micro(u, mb);
  PerMicroBatch& above = micro(u + 1, mb);
  if (context_.has_ops_of(u)) {
    m.d = device(label(u, "d", mb), cost.boundary_bytes, Life::lasting);
    const Mode mode = gradients_.open_lot(u, work_.turn_back(mb));
    context_.backward(u, mb, {m.x, Role::x_in}, m.saved, above.d, {m.d, Role::d_in}, unit(u).gradients.back(), mode);
    return close_backward(u, mb);
  }
  Part workspace;
  const OpKind kind = backward_makes_saved(u) && !m.saved.valid() ? OpKind::backward_again : OpKind::backward;
  touch_workspace(kind, u, workspace);
  if (u > 0) m.d = device(label(u, "d", mb), cost.boundary_bytes, Life::lasting);
  const Mode mode = gradients_.open_lot(u, work_.turn_back(mb));
  Op& op = compute(kind, u, mb);
  op.accumulate = mode == Mode::read_write;
  if (u > 0) touch_parameters(op, u);
  touch_tokens(op, u, mb);
  if (u > 0) Emitter::touch(op, m.x, Role::x_in, Mode::read);
  touch_saved(op, u, mb, Mode::read);
  Emitter::touch(op, above.d, Role::d_out, Mode::read);
  if (u > 0) Emitter::touch(op, m.d, Role::d_in, Mode::write);
  Emitter::touch(op, unit(u).gradients.back(), Role::gradient, mode);
  if (workspace.valid()) Emitter::touch(op, workspace, Role::workspace, Mode::write);
  close_backward(u, mb);
}

void ActivationMoves::close_backward(UnitId u, int mb) {
  PerMicroBatch& m = micro(u, mb);
  m.x = m.saved = m.core = micro(u + 1, mb).d = Part{};
  m.parked_x = {};
  gradients_.close_lot(u, work_.turn_back(mb));
}

void ActivationMoves::backward_input(UnitId u, int mb) {
  const SublayerCost& cost = costs_[static_cast<std::size_t>(u)];
  PerMicroBatch& m = micro(u, mb);
  Part workspace;
  touch_workspace(OpKind::backward_input, u, workspace);
  m.d = device(label(u, "d", mb), cost.boundary_bytes, Life::lasting);
  m.deferred = device(label(u, "deferred", mb), cost.deferred_bytes, Life::lasting);
  Op& op = compute(OpKind::backward_input, u, mb);
  touch_parameters(op, u);
  touch_tokens(op, u, mb);
  Emitter::touch(op, m.x, Role::x_in, Mode::read);
  touch_saved(op, u, mb, Mode::read);
  m.d_out = std::exchange(micro(u + 1, mb).d, Part{});
  Emitter::touch(op, m.d_out, Role::d_out, Mode::read);
  Emitter::touch(op, m.d, Role::d_in, Mode::write);
  Emitter::touch(op, m.deferred, Role::deferred, Mode::write);
  if (workspace.valid()) Emitter::touch(op, workspace, Role::workspace, Mode::write);
}

void ActivationMoves::backward_weight(UnitId u, int mb) {
  PerMicroBatch& m = micro(u, mb);
  Part workspace;
  touch_workspace(OpKind::backward_weight, u, workspace);
  const Mode mode = gradients_.open_lot(u, mb);
  Op& op = compute(OpKind::backward_weight, u, mb);
  op.accumulate = mode == Mode::read_write;
  touch_tokens(op, u, mb);
  Emitter::touch(op, m.x, Role::x_in, Mode::read);
  touch_saved(op, u, mb, Mode::read);
  Emitter::touch(op, m.d_out, Role::d_out, Mode::read);
  Emitter::touch(op, m.deferred, Role::deferred, Mode::read_write);
  Emitter::touch(op, unit(u).gradients.back(), Role::gradient, mode);
  if (workspace.valid()) Emitter::touch(op, workspace, Role::workspace, Mode::write);
  m.x = m.saved = m.core = m.d_out = m.deferred = Part{};
  m.parked_x = {};
  gradients_.close_lot(u, mb);
}

void ActivationMoves::head(int mb) {
  load_tokens(mb);
  if (is_cut()) return part_.head(mb);
  const UnitId u = head_unit();
  const SublayerCost& cost = costs_[static_cast<std::size_t>(u)];
  PerMicroBatch& m = micro(u, mb);
  Part workspace;
  touch_workspace(OpKind::forward_backward, u, workspace);
  m.d = device(label(u, "d", mb), cost.boundary_bytes, Life::lasting);
  const Mode mode = gradients_.open_lot(u, mb);
  const Part tied = gradients_.has_tied_gradient() ? gradients_.tied_gradient(work_.lot_sums().lot_of(mb)) : Part{};
  Op& op = compute(OpKind::forward_backward, u, mb);
  op.accumulate = mode == Mode::read_write;
  touch_parameters(op, u);
  touch_tokens(op, u, mb);
  Emitter::touch(op, m.x, Role::x_in, Mode::read);
  Emitter::touch(op, m.d, Role::d_in, Mode::write);
  Emitter::touch(op, unit(u).gradients.back(), Role::gradient, mode);
  if (tied.valid()) Emitter::touch(op, tied, Role::tied_gradient, mode);
  Emitter::touch(op, parts_.losses.slice(8 * static_cast<std::uint64_t>(mb), 8), Role::loss, Mode::write);
  if (workspace.valid()) Emitter::touch(op, workspace, Role::workspace, Mode::write);
  m.x = Part{};
  m.parked_x = {};
  gradients_.close_lot(u, mb);
}

void ActivationMoves::evaluate_head(int mb) {
  load_tokens(mb);
  if (is_cut()) return part_.evaluate_head(mb);
  const UnitId u = head_unit();
  Part workspace;
  touch_workspace(OpKind::loss, u, workspace);
  Op& op = compute(OpKind::loss, u, mb);
  touch_parameters(op, u);
  touch_tokens(op, u, mb);
  Emitter::touch(op, micro(u, mb).x, Role::x_in, Mode::read);
  Emitter::touch(op, parts_.losses.slice(8 * static_cast<std::uint64_t>(mb), 8), Role::loss, Mode::write);
  if (workspace.valid()) Emitter::touch(op, workspace, Role::workspace, Mode::write);
  micro(u, mb).x = Part{};
}

void ActivationMoves::decode_head() {
  const UnitId u = head_unit();
  Part workspace;
  touch_workspace(OpKind::logits, u, workspace);
  const Part out = device("logits.device", parts_.logits.bytes);
  Op& op = compute(OpKind::logits, u, 0);
  touch_parameters(op, u);
  Emitter::touch(op, micro(u, 0).x, Role::x_in, Mode::read);
  Emitter::touch(op, out, Role::logits, Mode::write);
  if (workspace.valid()) Emitter::touch(op, workspace, Role::workspace, Mode::write);
  micro(u, 0).x = Part{};
  emit_.move(OpKind::copy, LaneKind::d2h, u, out, parts_.logits);
}

void ActivationMoves::park_outputs(UnitId u, int mb, bool backward) {
  if (backward) {
    PerMicroBatch& m = micro(u, mb);
    if (u == 0 || !travels(u) || !m.d.valid()) return;
    m.parked_d = park(m.d, choice(u).boundary, label(u, "d", mb), u, mb);
    m.d = Part{};
    return;
  }
  PerMicroBatch& m = micro(u, mb);
  if (parks_arrived_input(u, mb))
    m.parked_x = park(m.produced, choice(u).boundary, label(u, "x", mb), u, mb, layout_of_input(u),
                      std::exchange(m.packed.x, {}));
  park_saved(u, mb);
  if (!parks_output(u, mb)) return;
  const UnitId v = u + 1;
  PerMicroBatch& next = micro(v, mb);
  next.parked_x = park(next.produced, choice(v).boundary, label(v, "x", mb), v, mb, layout_of_input(v),
                       std::exchange(next.packed.x, {}));
  if (travels(v)) next.x = Part{};
}

}  // namespace sluice
