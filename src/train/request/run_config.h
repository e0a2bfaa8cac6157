// Everything that a user can say about a run.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/drives/fault.h"
#include "sluice/dtype.h"
#include "sluice/moments.h"
#include "src/device/cluster.h"
#include "src/schedule/search.h"

namespace sluice {

enum class LrSchedule : std::uint8_t { cosine, linear, constant };

/// AdamW and its learning rate: linear warm-up, then cosine or linear decay to `lr_end`, or constant.
struct OptimizerConfig {
  double lr = 3e-4, lr_end = 3e-5;
  std::int64_t warmup_steps = 20;
  LrSchedule schedule = LrSchedule::cosine;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
  double clip_norm = 1.0;  ///< 0: no clipping
};
/// Learning rate of a step (1-based) of a run of `steps` steps.
double learning_rate(const OptimizerConfig& config, std::int64_t step, std::int64_t steps);

/// Whether a run can go on after it was cut short at any moment. automatic: where it has a run directory and a drive
/// with room for two slots of every state.
enum class Durable : std::uint8_t { automatic, on, off };

/// How ranks on GPUs give each other what lies in device memory. staged: through host memory. nccl: collectives go from
/// GPU to GPU. automatic: nccl where every rank has a GPU of its own and the library is there.
enum class Transport : std::uint8_t { automatic, staged, nccl };
constexpr std::array<const char*, 3> transport_names{"auto", "staged", "nccl"};

struct RunConfig {
  std::string model;
  std::string init;  ///< Hugging Face directory with the initial weights; empty: random
  std::string data;  ///< token file, or text
  /// What makes tokens of texts, and whose a token file's are: a tokenizer's file or directory, or "bytes"; empty: what
  /// lies beside the model (src/train/data/data_tokenizer.h).
  std::string tokenizer;
  std::string run;  ///< run directory; empty: nothing is kept
  /// Attention and positions stay inside the documents of a sequence. None: where the data's documents are packed.
  std::optional<bool> document_mask;
  /// Tokens of documents of one length in which attention has as much to do as in the data's; 0: as `sequence`.
  std::int64_t document_length = 0;
  Durable durable = Durable::automatic;
  int skip_limit = 3;  ///< steps in a row that may be skipped because they are not finite, where the run is durable
  std::int64_t steps = 100;
  std::int64_t sequence = 256;
  std::string
      seq_schedule;     ///< lengths of sequences and steps that have them (seq_schedule.h); empty: all as `sequence`
  int phase = 0;        ///< of it: `sequence` is its length
  int micro_batch = 1;  ///< sequences per micro-batch
  int batch = 8;        ///< sequences per step, all ranks
  int ranks = 1;    ///< all: stages x ranks with parts of the batch x with slices of those x with parts of sublayers
  int stages = 1;   ///< of a pipeline, that each have a part of the model
  int tensor = 1;   ///< ranks that sublayers are cut over, which have the same part of the batch
  int context = 1;  ///< ranks that have slices of the same sequences
  int slices = 1;   ///< in which a rank takes each sequence, one after the other
  ContextAttention context_attention = ContextAttention::ulysses;
  std::string mesh_order = "pp,dp,cp,tp";  ///< how ranks are numbered: neighbours differ in the last (mesh_order_of)
  PipelineChoice pipeline;
  int shard_group = 0;  ///< ranks of a stage that have one copy of its states between them; 0: all
  int second_copy = 0;  ///< ranks, close to each other, that have a copy of a step's parameters between them; 0: none
  /// Of those that share states, that exchange gradients in few bits first; 0: those of a machine, which run.json has.
  int close_ranks = 0;
  Reduction reduction = Reduction::last;
  RankSums sums = RankSums::tree;            ///< of gradients over ranks
  RankGathers gathers = RankGathers::exact;  ///< of parameters that ranks share, in training
  Transport transport = Transport::automatic;
  int lots = 0;  ///< of a batch, in whose tree gradients add up (src/schedule/lots.h); 0: as many as ranks of a stage
  Dtype dtype = Dtype::bf16;
  MomentFormat moments = MomentFormat::f32;
  Dtype gradient_dtype = Dtype::f32;  ///< of what updates read of gradients, and of what waits for them
  ActivationDtype activation_dtype = ActivationDtype::exact;  ///< of activations that wait away from the device
  OptimizerConfig optimizer;
  std::uint64_t seed = 1;
  /// Of the data, held out for evaluation; none: as runs of early versions have it (src/train/data/held_out.h).
  std::optional<double> eval_split;
  std::vector<std::string> eval_data;  ///< further sets to evaluate on, "NAME=FILE" (src/train/data/eval_sets.h)
  std::int64_t eval_every = 0;         ///< 0: only at the end
  int eval_batches = 4;                ///< batches of each set per evaluation; 0: all of it
  std::int64_t hash_every = 0;
  std::string metrics, trace;
  std::string restore;           ///< checkpoint that a new run begins from; empty: weights alone, or nothing
  bool reset_optimizer = false;  ///< and not from its moments
  std::int64_t save_every = 0;   ///< steps between checkpoints; 0: none
  int keep = 0;                  ///< the last so many of them; 0: all
  std::string checkpoints;       ///< directory of them; empty: the run's own (checkpoints_path)

  std::string device = "cpu";                                        ///< what computes, as Device::open takes it
  std::uint64_t device_memory = 0, host_memory = 0, nvme_space = 0;  ///< bytes; 0: a share of what the machine has
  std::vector<std::string> nvme;
  std::uint64_t drive_tbw = 0;  ///< bytes written that the drives of `nvme` are rated for, together; 0: not known
  std::string io_backend;       ///< empty: as the drive was tuned
  int queue_depth = 0;          ///< requests in flight per drive and direction; 0: as the drive was tuned
  int threads = 0;              ///< compute threads per rank; 0: cores / ranks
  int optimizer_threads = 0;
  ScheduleWish wish;
  std::string profile;                     ///< path; empty: the user's default
  std::optional<FaultOptions> faults;      ///< injected into the drive's queues: for tests
  std::vector<std::int64_t> poison_steps;  ///< their losses become NaN: for tests
  std::uint64_t delay_seed = 0;            ///< not 0: random delays before ops, to show that timing changes no bit
  int deadline_seconds = 600;              ///< that a collective may take, or three steps where they take longer
  /// Of ranks that are processes, or of a cluster: how many share a machine. 0: all ranks are this process's.
  int ranks_of_node = 0;
  bool devices_apart = false;  ///< of those, each is shown GPUs of its own
  bool json = false;
  std::shared_ptr<const Cluster> cluster;  ///< of machines to plan for; none: this one
  bool beyond_positions = false;           ///< plan for longer sequences than a model with rotary positions is made for
  bool assume = false;  ///< plan for a machine that has the budgets and drives, whatever this one has
};

/// Updates are made before the norm is known that they clip by.
inline bool speculates(const RunConfig& c) {
  return c.optimizer.clip_norm > 0 && c.wish.update == UpdateOrder::speculative;
}

/// Where a run saves its checkpoints; empty where it keeps nothing.
inline std::string checkpoints_path(const RunConfig& c) {
  return !c.checkpoints.empty() || c.run.empty() ? c.checkpoints : c.run + "/checkpoints";
}

/// Of a stage: the parts of a batch.
inline int batch_ranks(const RunConfig& c) {
  return std::max(1, c.ranks / std::max(1, c.stages) / std::max(1, c.tensor) / std::max(1, c.context));
}
/// Of a stage: those, and slices of them, whose gradients are added up.
inline int data_ranks(const RunConfig& c) { return batch_ranks(c) * std::max(1, c.context); }
/// Of those with other parts of the batch, that have one copy of the states between them. Where all have, slices share
/// it too.
inline bool shares_states(const RunConfig& c) { return c.shard_group == 0 || c.shard_group == data_ranks(c); }
inline int shard_group_of(const RunConfig& c) { return shares_states(c) ? batch_ranks(c) : c.shard_group; }

/// The axes of the mesh along which there are several ranks, in the order of their numbers.
inline std::string numbered_axes(const RunConfig& c) {
  std::string axes;
  for (std::size_t at = 0; at + 2 <= c.mesh_order.size(); at += 3) {
    const std::string name = c.mesh_order.substr(at, 2);
    const int size = name == "pp" ? c.stages : name == "dp" ? batch_ranks(c) : name == "cp" ? c.context : c.tensor;
    if (size > 1) axes += name;
  }
  return axes;
}

/// Whether the ranks of a run of one have the states that those of the other have, on as many drives.
bool shares_alike(const RunConfig& a, const RunConfig& b);
/// Whether it also has the same plan: else it is planned anew before it goes on, and where states do not lie alike then
/// they are laid out anew.
bool is_laid_out_alike(const RunConfig& a, const RunConfig& b);

/// Whether it is planned for devices that are not here.
inline bool has_other_devices(const RunConfig& c) { return c.cluster != nullptr && c.cluster->device.has_value(); }
/// That share a machine's memory, cores and drives.
inline int ranks_of_machine(const RunConfig& c) { return c.ranks_of_node > 0 ? c.ranks_of_node : c.ranks; }

}  // namespace sluice
