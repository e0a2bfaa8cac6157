#include "src/train/request/layouts.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

#include "offload/parallel.h"
#include "src/device/profile_measure.h"
#include "src/schedule/quick.h"
#include "src/train/request/arrangement.h"

namespace sluice {
namespace {

constexpr std::size_t estimated_at_once = 4;

std::vector<int> divisors(int n) {
  std::vector<int> list;
  for (int d = 1; d <= n; ++d)
    if (n % d == 0) list.push_back(d);
  return list;
}

/// The given one, or all that go with as many stages. GPipe holds more than 1F1B and waits as long.
std::vector<PipelineChoice> pipelines(int stages, const LayoutWish& wish) {
  if (stages == 1) return wish.pipeline ? std::vector<PipelineChoice>() : std::vector{PipelineChoice()};
  if (wish.pipeline) return {*wish.pipeline};
  return {{PipelineOrder::one_forward_one_backward, 1},
          {PipelineOrder::interleaved, 2},
          {PipelineOrder::zb_h1, 1},
          {PipelineOrder::zb_v, 2}};
}

/// The given one, or powers of two from there.
std::vector<int> micro_batches(const RunConfig& given, const LayoutWish& wish) {
  if (wish.micro_batch) return {*wish.micro_batch};
  return {given.micro_batch, 2 * given.micro_batch, 4 * given.micro_batch};
}

/// All of them, whether they can be or not.
std::vector<RunConfig> arrangements(const RunConfig& given, const LayoutWish& wish) {
  std::vector<RunConfig> list;
  const auto open = [](const std::optional<int>& fixed, int value) { return !fixed || *fixed == value; };
  for (const int stages : divisors(given.ranks)) {
    if (!open(wish.stages, stages)) continue;
    for (const int tensor : divisors(given.ranks / stages)) {
      if (!open(wish.tensor, tensor)) continue;
      for (const int context : divisors(given.ranks / stages / tensor)) {
        const int data = given.ranks / stages / tensor / context;
        if (!open(wish.context, context) || !open(wish.data, data)) continue;
        for (const PipelineChoice& pipeline : pipelines(stages, wish)) {
          for (const int micro_batch : micro_batches(given, wish)) {
            RunConfig c = given;
            c.micro_batch = micro_batch;
            c.stages = stages;
            c.tensor = tensor;
            c.context = context;
            if (context == 1) c.context_attention = ContextAttention::ulysses;
            c.pipeline = pipeline;
            std::vector<int> groups{0};
            if (wish.shard_group)
              groups = {*wish.shard_group};
            else if (data * context > 1 && c.gathers == RankGathers::exact && c.sums != RankSums::int4)
              groups = {0, 1};
            for (const int group : groups) {
              c.shard_group = group;
              list.push_back(c);
            }
          }
        }
      }
    }
  }
  return list;
}

/// What an arrangement can be is a matter of the model and the batch; numbers in the words that say so are its own.
std::string kind_of(const std::string& reason) {
  std::string kind;
  for (const char c : reason)
    if (c < '0' || c > '9') kind += c;
  return kind;
}

/// What a rank has to do of one micro-batch, in all stages: alike in all arrangements with the same parts of sublayers,
/// slices and micro-batches.
struct UnitCosts {
  double flop = 0, parameters = 0, units = 0;
  double slice_numel = 0;  ///< of a rank's hidden states between sublayers
};
using UnitKey = std::tuple<int, int, int>;
UnitKey unit_key(const RunConfig& c) { return {c.tensor, c.context, c.micro_batch}; }

UnitCosts unit_costs(const Prepared& run) {
  const Workload& w = run.workload;
  UnitCosts costs;
  for (std::size_t u = 0; u < w.model->units.size(); ++u) {
    const SublayerCost cost = sublayer_cost(*w.model, w.model->units[u], w.shape, w.dtype, *w.kernels);
    costs.flop += cost.forward_flop + cost.backward_flop;
    costs.parameters += static_cast<double>(w.full_numel(static_cast<UnitId>(u)));
  }
  costs.units = static_cast<double>(w.model->config.layers) * 2;
  costs.slice_numel = static_cast<double>(w.shape.tokens() * w.model->config.hidden) / w.tensor_ranks();
  return costs;
}

struct Possible {
  std::vector<RunConfig> configs;
  std::map<UnitKey, UnitCosts> costs;
  std::vector<Layouts::Refused> refused;
};

Possible possible(const RunConfig& given, const LayoutWish& wish) {
  Possible p;
  std::vector<RunConfig> all = arrangements(given, wish);
  std::vector<std::optional<Error>> errors(all.size());
  std::mutex mutex;
  parallel_for(all.size(), [&](std::size_t i) {
    const auto described = describe_request(all[i], Purpose::train);
    if (!described.ok()) {
      errors[i] = described.error();
      return;
    }
    const std::lock_guard lock(mutex);
    if (const UnitKey key = unit_key(all[i]); !p.costs.contains(key)) p.costs[key] = unit_costs(**described);
  });
  std::map<std::string, std::size_t> kinds;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!errors[i]) {
      p.configs.push_back(std::move(all[i]));
      continue;
    }
    const auto [at, is_new] = kinds.try_emplace(kind_of(errors[i]->message), p.refused.size());
    if (is_new) p.refused.push_back({*errors[i], 0});
    ++p.refused[at->second].count;
  }
  return p;
}

Error none_is_possible(const RunConfig& given, const Possible& p) {
  if (p.refused.size() == 1) return p.refused.front().error;
  const std::string ranks = "--layout auto: no arrangement of " + std::to_string(given.ranks) + " ranks can be";
  return bad_request(p.refused.empty() ? ranks + " with those of --pp, --dp, --cp and --tp that are given"
                                       : ranks + "; of the first: " + p.refused.front().error.message);
}

/// Of passes of one group each, forward, back to the input and back to the weights, which take as long: the part of
/// them that each stage but one adds to a step.
double idle_part(const PipelineChoice& p) {
  switch (p.order) {
    case PipelineOrder::zb_v: return 0;
    case PipelineOrder::zb_h1: return 1.0 / 3;
    default: return 1.0 / static_cast<double>(p.chunks);
  }
}

double least_seconds(const RunConfig& c, const HardwareProfile& hw, const UnitCosts& costs,
                     std::uint64_t device_bytes) {
  const bool bf16 = c.dtype == Dtype::bf16;
  const double rate = hw.device ? (bf16 ? hw.device->gemm_flops_bf16 : hw.device->gemm_flops_f32)
                                : (bf16 ? hw.gemm_flops_bf16 : hw.gemm_flops_f32);
  const double stages = c.stages, tensor = c.tensor, data = data_ranks(c), here = ranks_of_machine(c);
  const double passes = c.batch / (c.micro_batch * batch_ranks(c));
  const double compute = costs.flop * passes / stages / rate * (1 + idle_part(c.pipeline) * (stages - 1) / passes);
  if (c.ranks_of_node == 0) return compute;  // ranks of one process share memory
  // Each group has a lane, so that what one receives may pass beside what another does.
  const auto seconds = [&](double bytes, double members, double stride) {
    const double inside = std::clamp(here / stride, 1.0, members), outside = members - inside;
    const auto rate_of = [](const std::optional<MessageRates>& measured) {
      const MessageRates m = measured.value_or(MessageRates());
      return std::max(m.gather_bytes_per_second, m.reduce_bytes_per_second);
    };
    const double part = bytes / members;
    return std::max(part * (inside - 1) / rate_of(hw.messages_inside),
                    part * outside * here / rate_of(hw.messages_between));
  };
  const double e = static_cast<double>(dtype_bytes(c.dtype)), sent = c.sums == RankSums::tree ? 4 : 0;
  const double sums =
      tensor == 1 ? 0 : seconds((3 * e + 8) * costs.slice_numel * tensor * passes * costs.units / stages, tensor, 1);
  // Parameters that ranks share are gathered once a step, and those that the device has no room for once more.
  const double of_stage = costs.parameters / stages, room = static_cast<double>(device_bytes) / e / of_stage;
  const bool shares = c.gathers == RankGathers::exact && shard_group_of(c) == batch_ranks(c);
  const double gathered = shares ? e * (2 - (device_bytes == 0 ? 1 : std::min(1.0, room))) : 0;
  const double states = data == 1 ? 0 : seconds((sent + gathered) * of_stage, data, tensor);
  return std::max({compute, sums, states});
}

/// Of a few schedules that fit, without turning single knobs; 0 where none does.
double estimated_seconds(Prepared& run) {
  Workload& w = run.workload;
  const auto estimate = [&]() -> double {
    const std::optional<QuickSchedule> quick = quick_schedule(w, run.wish, run.profile);
    return quick ? quick->estimate.step_seconds : 0;
  };
  const double seconds = estimate();
  if (seconds > 0 || !w.durable || run.config.durable == Durable::on) return seconds;
  // Where the drive has room for both slots of all states that is not the reason.
  constexpr double slots_bytes_max = 2 * 14;
  const double of_rank = static_cast<double>(run.model.parameters) / (w.stages() * w.tensor_ranks() * w.shards());
  const std::uint64_t drive = w.budget_bytes[static_cast<std::size_t>(Tier::nvme)];
  if (drive == 0 || static_cast<double>(drive) > 2 * slots_bytes_max * of_rank) return 0;
  w.durable = false;  // as a run would be
  return estimate();
}

/// Long pipelines take long to estimate, with as many stages and micro-batches as are on their way at once.
bool is_soon_estimated(const RunConfig& c, const UnitCosts& costs) {
  constexpr double passes_max = 16384;
  const double stages = c.stages, units = std::min(costs.units, 4 * stages * c.pipeline.chunks);
  const double micro_batches = c.batch / (c.micro_batch * batch_ranks(c));
  return c.stages == 1 || units * std::min(micro_batches, 3 * stages) <= passes_max;
}

/// The least bounds first, but of each number of stages in turn: in which of them a bound is close shows only then.
std::vector<std::pair<double, std::size_t>> round_robin(std::vector<std::pair<double, std::size_t>> bounds,
                                                        const std::vector<RunConfig>& configs) {
  std::ranges::sort(bounds);
  std::map<int, std::size_t> seen;
  std::vector<std::size_t> turn(configs.size());
  for (const auto& [bound, i] : bounds) turn[i] = seen[configs[i].stages]++;
  std::ranges::stable_sort(bounds, {}, [&](const auto& b) { return turn[b.second]; });
  return bounds;
}

/// Whether an arrangement trains to the bits of the configuration as it was given.
bool keeps_bits(const RunConfig& given, const Prepared& run) {
  const RunConfig& c = run.config;
  const Workload& w = run.workload;
  if (c.tensor != given.tensor || c.context != given.context || c.sums != RankSums::tree) return false;
  if (c.micro_batch != given.micro_batch) return false;
  if (w.lots * w.batch_ranks() != lots_of(given)) return false;
  const auto is_power = [](int count) { return std::has_single_bit(static_cast<unsigned>(count)); };
  return c.context == 1 || batch_ranks(c) == batch_ranks(given) ||
         (c.reduction == Reduction::last && is_power(batch_ranks(c)) && is_power(batch_ranks(given)));
}

}  // namespace

Result<RunConfig> any_layout(const RunConfig& config, const LayoutWish& wish) {
  Possible p = possible(config, wish);
  if (p.configs.empty()) return none_is_possible(config, p);
  return std::move(p.configs.front());
}

double least_seconds(const Prepared& run) {
  return least_seconds(run.config, run.profile, unit_costs(run), run.workload.budget_bytes[0]);
}

Result<Layouts> find_layouts(const RunConfig& config, const LayoutWish& wish, const Tell& progress,
                             const LayoutEffort& effort) {
  Possible p = possible(config, wish);
  if (p.configs.empty()) return none_is_possible(config, p);
  Layouts layouts;
  layouts.refused = std::move(p.refused);
  if (progress)
    progress("estimating " + std::to_string(p.configs.size()) + " arrangements of " + std::to_string(config.ranks) +
             " ranks");
  SLUICE_ASSIGN(const auto first, prepare_to_estimate(p.configs.front(), Purpose::train, progress));
  const double began = now_seconds();
  std::vector<std::pair<double, std::size_t>> order;
  for (std::size_t i = 0; i < p.configs.size(); ++i)
    order.emplace_back(least_seconds(p.configs[i], first->profile, p.costs.at(unit_key(p.configs[i])),
                                     first->workload.budget_bytes[0]),
                       i);
  const auto slow = std::stable_partition(order.begin(), order.end(), [&](const auto& o) {
    return is_soon_estimated(p.configs[o.second], p.costs.at(unit_key(p.configs[o.second])));
  });
  if (slow != order.begin()) {
    layouts.not_looked_at = static_cast<int>(order.end() - slow);
    order.erase(slow, order.end());
  }
  order = round_robin(std::move(order), p.configs);
  std::vector<double> quickest;  // so far, in order
  for (std::size_t begin = 0; begin < order.size(); begin += estimated_at_once) {
    if (effort.prunes && quickest.size() >= searched_max) {
      const auto is_slower = [&](const auto& o) { return o.first > quickest[searched_max - 1]; };
      const auto kept = std::stable_partition(order.begin() + static_cast<std::ptrdiff_t>(begin), order.end(),
                                              std::not_fn(is_slower));
      layouts.bounded += static_cast<int>(order.end() - kept);
      order.erase(kept, order.end());
    }
    if (begin >= order.size()) break;
    const std::size_t end = std::min(begin + estimated_at_once, order.size()), rest = order.size() - begin;
    if (begin > 0 && now_seconds() - began > effort.estimating_seconds) {
      layouts.not_looked_at += static_cast<int>(rest);
      break;
    }
    std::vector<std::optional<Layout>> found(end - begin);
    std::vector<Status> described(end - begin);
    parallel_for(end - begin, [&](std::size_t i) {
      const RunConfig& c = p.configs[order[begin + i].second];
      Result<std::unique_ptr<Prepared>> request = arranged(*first, c);
      if (!request.ok()) {
        described[i] = request.error();
        return;
      }
      const double seconds = estimated_seconds(**request);
      if (seconds == 0) return;
      found[i].emplace();
      found[i]->config = c;
      found[i]->seconds = seconds;
      found[i]->keeps_bits = keeps_bits(config, **request);
    });
    for (std::size_t i = 0; i < found.size(); ++i) {
      SLUICE_TRY(described[i]);
      if (!found[i]) {
        ++layouts.without_room;
        continue;
      }
      quickest.insert(std::ranges::upper_bound(quickest, found[i]->seconds), found[i]->seconds);
      layouts.found.push_back(*std::move(found[i]));
    }
  }
  const auto quicker = [](const Layout& a, const Layout& b) { return a.seconds < b.seconds; };
  std::ranges::stable_sort(layouts.found, quicker);
  std::vector<Layout> searched, others;
  const std::size_t most = std::min(layouts.found.size(), searched_max);
  const double start = now_seconds();
  for (Layout& found : layouts.found) {
    const std::size_t done = searched.size();
    const bool enough = done == most || (done > 0 && now_seconds() - start > effort.searching_seconds);
    if (enough) {
      others.push_back(std::move(found));
      continue;
    }
    if (progress)
      progress("searching arrangement " + std::to_string(done + 1) + " of " + std::to_string(most) +
               " of the quickest");
    Result<std::unique_ptr<Prepared>> run = prepare(found.config, Purpose::train, {}, Effort::quick);
    if (!run.ok()) {
      layouts.refused.push_back({run.error(), 1});
      continue;
    }
    if (!(*run)->search.fits) {
      ++layouts.without_room;
      continue;
    }
    found.is_searched = true;
    found.seconds = (*run)->step_seconds();
    found.needs = (*run)->search.needs;
    found.limit = (*run)->predicted().bottleneck;
    // Plans take memory: those of the quickest are kept.
    const bool is_quickest =
        std::ranges::none_of(searched, [&](const Layout& l) { return l.seconds <= found.seconds; });
    if (is_quickest) {
      for (Layout& l : searched) l.run.reset();
      found.run = *std::move(run);
    }
    searched.push_back(std::move(found));
  }
  std::ranges::stable_sort(searched, quicker);
  layouts.found = std::move(searched);
  if (layouts.found.empty()) return layouts;
  std::ranges::move(others, std::back_inserter(layouts.found));
  return layouts;
}

}  // namespace sluice
