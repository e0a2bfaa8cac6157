// What the moves of a rank's program share: where everything of each unit is while the program is written down, and the
// small moves that larger ones are made of.
//
//   home       parameters and optimizer states between steps, persistent on host or nvme
//   open       a unit's whole parameters (or fp32 gradient) on the device, for one pass
//   parked     an activation, accumulator or boundary gradient sent to host or nvme, to be brought back
#pragma once

#include <array>
#include <string>
#include <vector>

#include "offload/state/moment_layout.h"
#include "src/model/sublayer.h"
#include "src/schedule/emitter.h"
#include "src/schedule/parked.h"
#include "src/schedule/stages.h"

namespace sluice {

/// Of StepPlan::groups: who has the other shards, who votes on a step, who has the same shard, and who of the first is
/// close; then who has the other parts of a sublayer, and who of those has the same. Behind these are those of messages
/// between stages: for each chunk of a stage activations that come to it, and the gradients that go back for them; then
/// a tied matrix on its way to the head, and the gradient that the head has for it; and all ranks for barriers. What
/// goes opposite ways is apart, so that neither waits behind the other.
constexpr std::int32_t sharding_group = 0, control_group = 1, replica_group = 2, close_group = 3, tensor_group = 4,
                       copy_group = 5, context_group = 6, far_group = 7, first_message_group = 8;
constexpr std::int32_t activation_group(int chunk) { return first_message_group + 2 * chunk; }
constexpr std::int32_t gradient_group(int chunk) { return activation_group(chunk) + 1; }

/// One transfer and optimizer tile: elements [element, element + numel) of the rank's shard of the unit.
struct TileRef {
  UnitId unit;
  int index;
  std::uint64_t element, numel;
};
std::vector<TileRef> unit_tiles(const Workload& workload, const Schedule& schedule, UnitId unit);

/// What an update reads and writes: those that have a home.
inline constexpr std::array home_states{StateKind::parameter, StateKind::remainder, StateKind::exp_avg,
                                        StateKind::exp_avg_sq};

struct RankParts {
  struct Parked {
    Place place = Place::device;
    Part part;
    const ParkedLayout* layout = nullptr;  ///< of what is not as it was
  };
  struct Codes {
    Part x, saved, core;
  };
  struct PerMicroBatch {
    Part x, saved, d;           ///< on the device: input, saved activations, gradient of the input
    Part core;                  ///< on the device: of what attention saves its core, which `saved` is without then
    Part d_out, deferred;       ///< between both halves of a backward pass
    Part block, d_block;        ///< of a slice's keys and values, where one rank takes several, and their gradient
    Part normed;                ///< of all tokens, where sublayers are cut: from recomputing on
    Part produced;              ///< the input as its producer left it, until it is parked
    bool kept = true;           ///< the input waits for the backward pass; else only for the pass behind its producer's
    Part arrived_x, arrived_d;  ///< in host memory, from another stage
    Parked parked_x, parked_saved, parked_core, parked_d, parked_block, parked_d_block;
    Codes packed, brought;  ///< on the device: on their way to where they wait, and back
  };
  /// The tile of each state while it is worked on.
  struct Tile {
    std::array<Part, state_names.size()> parts;
    Part& operator[](StateKind k) { return parts[static_cast<std::size_t>(k)]; }
  };
  struct PerUnit {
    std::uint64_t shard_numel = 0;
    Part resident, open, shard_gradient;
    std::vector<Part> gradients;  ///< partial sums on the device, that of the current lot last
    std::array<Part, 4> home;     ///< by StateKind, one shard each
    std::array<Part, 4> mirror;   ///< the durable copy on nvme of a home in host memory
    Part second_copy;             ///< in host memory, of this step
    Part gradient_wait;
    std::vector<Parked> parked_gradients;
    std::vector<Parked> shard_sums;  ///< partial sums of what was reduced: parked, or on the device
    bool updated = false;            ///< in this iteration
    bool fetched_before = false;     ///< its last backward pass fetches nothing: the update reads the parameters itself
    std::vector<PerMicroBatch> mb;
    std::vector<Tile> tile;         ///< in host memory
    std::vector<Tile> device_tile;  ///< where the device updates the unit
  };

  std::vector<PerUnit> units;
  std::vector<Part> tokens;  ///< by micro-batch
  std::vector<Part> kv;      ///< by unit
  Part tied;                 ///< the embedding's matrix, where the head is on another stage than that
  Part losses, control, logits;
  Part diverged;          ///< per unit, counted on the device
  bool has_norm = false;  ///< the step's norm has been begun
};

/// Of one plan, and of all moves on it.
struct RankContext {
  Emitter& emit;
  const Workload& work;
  const Schedule& schedule;
  PlanKind kind;
  Stages stages;
  RankParts parts;
};

class RankMoves {
 protected:
  using Parked = RankParts::Parked;
  using PerMicroBatch = RankParts::PerMicroBatch;
  using PerUnit = RankParts::PerUnit;
  using Tile = RankParts::Tile;

  explicit RankMoves(RankContext& context)
      : emit_(context.emit),
        work_(context.work),
        schedule_(context.schedule),
        kind_(context.kind),
        stages_(context.stages),
        stage_(work_.topology.position(pipeline_axes)),
        shard_(work_.topology.position(shard_axes)),
        parts_(context.parts),
        moments_(MomentLayout::of(work_.moments, schedule_.tile_numel)) {}

  PerUnit& unit(UnitId u) { return parts_.units[static_cast<std::size_t>(u)]; }
  const PerUnit& unit(UnitId u) const { return parts_.units[static_cast<std::size_t>(u)]; }
  const UnitSpec& spec(UnitId u) const { return work_.model->units[static_cast<std::size_t>(u)]; }
  const UnitChoice& choice(UnitId u) const { return schedule_.units[static_cast<std::size_t>(u)]; }
  bool updates_ahead(UnitId u) const { return schedule_.updates_ahead(u); }
  PerMicroBatch& micro(UnitId u, int mb) { return unit(u).mb[static_cast<std::size_t>(mb)]; }
  Tile& tile(const TileRef& t) { return unit(t.unit).tile[static_cast<std::size_t>(t.index)]; }
  Tile& device_tile(const TileRef& t) { return unit(t.unit).device_tile[static_cast<std::size_t>(t.index)]; }
  /// Whether the unit is this stage's.
  bool has(UnitId u) const { return stages_.stage_of(u) == stage_; }
  bool has_tied_elsewhere() const {
    return work_.model->config.tied && stages_.stage_of(0) != stages_.stage_of(head_unit());
  }
  std::int32_t tied_group() const { return activation_group(schedule_.pipeline.chunks); }
  std::int32_t tied_gradient_group() const { return tied_group() + 1; }
  std::int32_t barrier_group() const { return tied_gradient_group() + 1; }
  std::uint64_t tied_bytes(std::uint64_t bytes_per_element) const {
    return bytes_per_element * static_cast<std::uint64_t>(work_.model->config.vocabulary * work_.model->config.hidden);
  }
  UnitId head_unit() const { return static_cast<UnitId>(work_.model->units.size()) - 1; }
  std::uint64_t element_bytes() const { return dtype_bytes(work_.dtype); }
  bool has_remainder() const { return work_.dtype == Dtype::bf16; }
  /// Of what waits for an update.
  std::uint64_t gradient_bytes() const { return dtype_bytes(work_.gradient_dtype); }
  bool has_state(StateKind k) const;
  std::uint64_t state_bytes(StateKind k, std::uint64_t numel) const;  ///< of the first `numel` elements of a shard

  std::string label(UnitId u, const char* what, int mb = -1) const;  ///< empty where the plan has no names
  std::string lot_label(UnitId u, const char* what, int lot) const;
  std::string tile_label(const TileRef& t, StateKind k) const;

  /// To and from another stage: through host memory where ranks meet there. What arrives there is landed later.
  /// `gathered`: what it is a part of, where that has come from several ranks: whoever reads any of it waits for all of
  /// it, on all ranks alike.
  void send(std::int32_t group, RankId to, const Part& part, const std::string& name, UnitId u, int mb = -1,
            const Part& gathered = {});
  Part receive(std::int32_t group, RankId from, std::uint64_t bytes, const std::string& name, UnitId u, int mb = -1);
  Part landed(const Part& arrived, const std::string& name, UnitId u, int mb = -1);

  /// Of what lies in device memory, unless it was staged: where such collectives are a device's, all are on one lane.
  Op& meet(OpKind kind, std::int32_t group, UnitId u, const Part& part);
  /// The other members' parts of it arrive; they have no contents yet. Through host memory where ranks meet there.
  void gather_parts(UnitId u, const Part& whole, std::int32_t group);
  /// Of what every member of the group has of `whole`, which is where they meet, the sum of this one's part.
  void reduce_parts(UnitId u, const Part& whole, const Part& own, std::int32_t group);
  /// Of each of `pieces` equal pieces of `from` a part goes to every member, and `to` has what came from them.
  void exchange_parts(UnitId u, const Part& from, const Part& to, std::int32_t group, std::int64_t pieces,
                      RankSums sums = RankSums::tree);
  /// All of `from` goes to the next member of the group, and `to` has what the one before it sent.
  void shift_part(UnitId u, const Part& from, const Part& to, std::int32_t group);
  /// `pieces` of `numel` elements each to a new buffer; and that op, or one of those back, on buffers that are there.
  Part quantized(UnitId u, const Part& from, std::int64_t numel, std::int64_t pieces, const Quantization& q,
                 const std::string& name);
  Op& quantize(OpKind kind, UnitId u, const Part& from, const Part& to, std::int64_t numel, std::int64_t pieces,
               const Quantization& q);
  void carry(OpKind kind, UnitId u, const Part& from, const Part& to, std::int32_t group, std::int64_t pieces,
             RankSums sums, std::uint64_t arrives);
  /// The sum of all of it, on all members, in its place.
  void add_met(UnitId u, const Part& whole, std::int32_t group);
  /// Both on the device.
  void add_in_place(UnitId u, const Part& whole, std::int32_t group);
  Part reduced_part(UnitId u, const Part& whole, const std::string& name, std::int32_t group);

  Part device(const std::string& name, std::uint64_t bytes, Life life = Life::brief);
  Part stage(const std::string& name, std::uint64_t bytes);
  Part own_part(const Part& whole, std::int32_t group) const;
  Part tile_of(const Part& whole, const TileRef& t, std::uint64_t bytes_per_element) const;
  Part own_tile(const Part& parameters, const TileRef& t) const;
  Part state_tile(const Part& whole, const TileRef& t, StateKind k) const;
  Part slot_tile(const Part& whole, const TileRef& t, StateKind k, bool write);
  Part home_tile(const TileRef& t, StateKind k, bool write);
  Part host_tile(const TileRef& t, StateKind k);
  Part bring_home_tile(const TileRef& t, StateKind k);
  void save_home_tile(const TileRef& t, StateKind k, const Part& host);
  /// `packed`: codes of its values, where the layout has any.
  Parked park(const Part& device_part, Place place, const std::string& name, UnitId u, int mb,
              const ParkedLayout* layout = nullptr, const Part& packed = {});
  /// Where it was packed, its values come as codes in a new buffer, `*packed`, which are still to be unpacked.
  Part bring(const Parked& parked, const std::string& name, UnitId u, int mb, Life life, Part* packed = nullptr);
  /// Codes of an activation's values to a new buffer; and values of codes.
  Part pack(const Part& from, const ParkedLayout& layout, const std::string& name, UnitId u, int mb);
  void unpack(const Part& packed, const Part& to, const ParkedLayout& layout, UnitId u, int mb);

  /// What travels of an activation, piece behind piece.
  struct Pieces {
    std::array<Part, 8> parts;
    std::size_t count = 0;
    std::uint64_t bytes = 0;
    void add(const Part& part) {
      if (part.bytes == 0) return;
      parts.at(count++) = part;
      bytes += part.bytes;
    }
  };
  static Pieces pieces_of(const Part& whole, const ParkedLayout* layout, const Part& packed);
  void copy_pieces(LaneKind lane, UnitId u, int mb, const Pieces& pieces, std::uint64_t at, const Part& host);

  Emitter& emit_;
  const Workload& work_;
  const Schedule& schedule_;
  PlanKind kind_;
  const Stages& stages_;
  RankId stage_;
  RankId shard_;  ///< of a unit, that is this rank's
  RankParts& parts_;
  MomentLayout moments_;
};

}  // namespace sluice
