#include "src/train/request/layouts.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

#include "offload/parallel.h"
#include "sluice/clock.h"
#include "src/schedule/build.h"
#include "src/schedule/quick.h"
#include "src/schedule/stages.h"
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

std::vector<ContextAttention> attentions(int context, const LayoutWish& wish) {
  if (context == 1) return {ContextAttention::ulysses};
  if (wish.context_attention) return {*wish.context_attention};
  return {ContextAttention::ulysses, ContextAttention::ring};
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
            c.pipeline = pipeline;
            std::vector<int> groups{0};
            if (wish.shard_group)
              groups = {*wish.shard_group};
            else if (data * context > 1 && c.gathers == RankGathers::exact && c.sums != RankSums::int4)
              groups = {0, 1};
            for (const ContextAttention attention : attentions(context, wish)) {
              c.context_attention = attention;
              for (const int group : groups) {
                c.shard_group = group;
                list.push_back(c);
              }
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
  double key_values = 1;   ///< heads of keys and values for each of queries
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
  const ModelConfig& model = w.split ? w.split->whole().config : w.model->config;
  costs.key_values = static_cast<double>(model.kv_heads) / static_cast<double>(model.heads);
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

/// What a step takes at least, or, as if nothing were done beside anything else, what it may take.
enum class Overlap : std::uint8_t { all, none };

double least_seconds(const RunConfig& c, const HardwareProfile& hw, const UnitCosts& costs, std::uint64_t device_bytes,
                     Overlap overlap) {
  const bool bf16 = c.dtype == Dtype::bf16;
  const double rate = hw.device ? (bf16 ? hw.device->gemm_flops_bf16 : hw.device->gemm_flops_f32)
                                : (bf16 ? hw.gemm_flops_bf16 : hw.gemm_flops_f32);
  const double stages = c.stages, tensor = c.tensor, data = data_ranks(c), here = ranks_of_machine(c);
  const double passes = c.batch / (c.micro_batch * batch_ranks(c));
  const double compute = costs.flop * passes * c.slices / stages / rate;
  // Each group has a lane, so that what one receives may pass beside what another does. Ranks of one process share
  // memory.
  const auto seconds = [&](double bytes, double members, double stride) {
    if (c.ranks_of_node == 0) return 0.0;
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
  const double whole_numel = costs.slice_numel * tensor * c.slices;
  const double sums = tensor == 1 ? 0 : seconds((3 * e + 8) * whole_numel * passes * costs.units / stages, tensor, 1);
  // Ranks with slices of sequences receive queries, keys, values and what comes of them, or keys and values alone, and
  // their gradients.
  const double given =
      c.context_attention == ContextAttention::ring ? 4 * costs.key_values * c.context : 4 * (1 + costs.key_values);
  const double attentions = costs.units / 2 / stages * passes;
  const double slices = c.context == 1 ? 0 : seconds(given * e * costs.slice_numel * attentions, c.context, tensor);
  // What the device has no room for comes with each group of micro-batches: parameters once for each way, from other
  // ranks or from the host, sums of gradients from the host. Parameters that ranks share are gathered once a step in
  // any case. Fewer groups bring less and leave the stages of a pipeline to wait for longer.
  const bool shares = c.gathers == RankGathers::exact && shard_group_of(c) == batch_ranks(c);
  const double parameters = e * costs.parameters / stages, gradients = 4 * costs.parameters / stages;
  const double device = device_bytes == 0 ? std::numeric_limits<double>::infinity() : static_cast<double>(device_bytes);
  const auto beyond = [](double bytes, double room) { return std::max(0.0, bytes - std::max(0.0, room)); };
  const double parameters_beyond = beyond(parameters, device),
               gradients_beyond =
                   c.reduction == Reduction::pass ? 0 : beyond(gradients, shares ? device : device - parameters);
  double least = std::numeric_limits<double>::infinity();
  for (double groups = 1;; groups = std::min(2 * groups, passes)) {
    const double again = (2 * groups - 1) * parameters_beyond;
    const bool is_near = c.second_copy > 0;  // who has a copy on its machine asks no other
    const double gathered = shares ? parameters + (is_near ? 0 : again) : 0;
    const double states = data == 1 ? 0 : seconds(sent * costs.parameters / stages + gathered, data, tensor);
    const double brought = (shares ? 0 : again) + (groups - 1) * gradients_beyond;
    const double streamed = hw.device ? brought / hw.device->h2d_bytes_per_second : 0;
    const auto worked = [&](double idle) { return compute * (1 + idle * (stages - 1) / groups); };
    least = std::min(least, overlap == Overlap::all
                                ? std::max({worked(idle_part(c.pipeline)), sums, slices, states, streamed})
                                : worked(std::max(idle_part(c.pipeline), 0.2)) + sums + slices + states + streamed);
    if (groups == passes) return least;
  }
}

/// A few schedules that fit, without turning single knobs.
std::optional<QuickSchedule> estimated(Prepared& run, bool& leaves_out) {
  Workload& w = run.workload;
  const auto estimate = [&] { return quick_schedule(w, run.wish, run.profile, {.leaves_out = &leaves_out}); };
  std::optional<QuickSchedule> found = estimate();
  if (found || !w.durable || run.config.durable == Durable::on || speculates(run.config)) return found;
  // Where the drive has room for both slots of all states that is not the reason.
  constexpr double slots_bytes_max = 2 * 14;
  const double of_rank = static_cast<double>(run.model.parameters) / (w.stages() * w.tensor_ranks() * w.shards());
  const std::uint64_t drive = w.budget_bytes[static_cast<std::size_t>(Tier::nvme)];
  if (drive == 0 || static_cast<double>(drive) > 2 * slots_bytes_max * of_rank) return found;
  w.durable = false;  // as a run would be
  return estimate();
}

/// Builds and proves its step on the sample that it was estimated on, and looks at what the whole's ranks hold.
Status prove_on_sample(Layout& layout, const Prepared& like) {
  SLUICE_ASSIGN(const auto run, arranged(like, layout.config));
  const Workload& w = run->workload;
  const Sample sample(w, run->wish.pipeline);
  const Schedule s = sample.of(layout.schedule);
  const Workload few = sample.workload(sample.lengths(layout.schedule).few);
  std::vector<StepPlan> plans(few.stages());
  parallel_for(plans.size(), [&](std::size_t i) {
    plans[i] = build_plan(few.main_kind(), at_stage(few, static_cast<RankId>(i)), s, PackEffort::quick);
    for (Arena& a : plans[i].arenas) a.budget_bytes = 0;  // those of the whole
  });
  std::vector<const StepPlan*> stages;
  for (const StepPlan& plan : plans) stages.push_back(&plan);
  if (const std::vector<Violation> found = prove(stages, few, s); !found.empty())
    return fault("a plan is illegal, which is a bug in its builder: " + found.front().message);
  layout.needs = usual_needs(w, layout.schedule, Plans::main);
  layout.is_proven = true;
  return success();
}

/// With somewhat less room where the sample's schedule takes a little more of the whole's budgets than there is. False
/// where that does not do.
Result<bool> fit_as_a_whole(Layout& layout, const Prepared& like) {
  SLUICE_ASSIGN(const auto run, arranged(like, layout.config));
  const Workload& w = run->workload;
  double margin = 1;
  for (int tries = 0; tries < 3; ++tries) {
    const TierBytes needs = usual_needs(w, layout.schedule, Plans::main);
    if (within(needs, w.budget_bytes)) return true;
    margin *= 1.01 * excess(needs, w.budget_bytes);
    const std::optional<QuickSchedule> quick = quick_schedule(w, run->wish, run->profile, {.margin = margin});
    if (!quick) return false;
    layout.schedule = quick->schedule;
    layout.seconds = quick->estimate.step_seconds;
    layout.limit = quick->estimate.bottleneck();
  }
  return false;
}

/// Long pipelines take long to estimate, with as many stages and micro-batches as are on their way at once. Each slice
/// of those is a pass, and meets those before it in attention.
bool is_soon_estimated(const RunConfig& c, const UnitCosts& costs) {
  constexpr double passes_max = 4096;
  const double stages = c.stages, units = std::min(costs.units, 4 * stages * c.pipeline.chunks);
  const double micro_batches = c.batch / (c.micro_batch * batch_ranks(c));
  const double slices = c.slices, passes = slices * (1 + (slices - 1) / 4);
  return c.stages == 1 || units * std::min(micro_batches, 3 * stages) * passes <= passes_max;
}

/// What is not estimated yet.
struct Open {
  double bound, guess;  ///< seconds that it takes at least; that it may take
  std::size_t config;
};

/// The least guesses first, but of those that are close, of each number of stages in turn: in which of them a guess is
/// good shows only then.
void put_in_order(std::vector<Open>& open, const std::vector<RunConfig>& configs) {
  constexpr double close = 2;
  std::ranges::sort(open, [](const Open& a, const Open& b) {
    return std::tie(a.guess, a.bound, a.config) < std::tie(b.guess, b.bound, b.config);
  });
  std::map<int, std::size_t> seen;
  std::vector<std::size_t> turn(configs.size());
  for (const Open& o : open)
    turn[o.config] = o.guess > close * open.front().guess ? open.size() : seen[configs[o.config].stages]++;
  std::ranges::stable_sort(open, {}, [&](const Open& o) { return turn[o.config]; });
}

/// Whether an arrangement trains to the bits of the configuration as it was given.
bool keeps_bits(const RunConfig& given, const Prepared& run) {
  const RunConfig& c = run.config;
  const Workload& w = run.workload;
  if (c.tensor != given.tensor || c.context != given.context || c.sums != RankSums::tree) return false;
  if (c.activation_dtype != ActivationDtype::exact) return false;  // each parks what its plan finds best
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
  return least_seconds(run.config, run.profile, unit_costs(run), run.workload.budget_bytes[0], Overlap::all);
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
  std::vector<Open> order;
  for (std::size_t i = 0; i < p.configs.size(); ++i) {
    const UnitCosts& costs = p.costs.at(unit_key(p.configs[i]));
    const std::uint64_t device = first->workload.budget_bytes[0];
    // Half of the device is about what is left for parameters.
    order.push_back({least_seconds(p.configs[i], first->profile, costs, device, Overlap::all),
                     least_seconds(p.configs[i], first->profile, costs, device / 2, Overlap::none), i});
  }
  const auto slow = std::stable_partition(order.begin(), order.end(), [&](const Open& o) {
    return is_soon_estimated(p.configs[o.config], p.costs.at(unit_key(p.configs[o.config])));
  });
  if (slow != order.begin()) {
    layouts.not_looked_at = static_cast<int>(order.end() - slow);
    order.erase(slow, order.end());
  }
  put_in_order(order, p.configs);
  std::vector<double> quickest;  // so far, in order
  for (std::size_t begin = 0; begin < order.size(); begin += estimated_at_once) {
    if (effort.prunes && quickest.size() >= searched_max) {
      const auto is_slower = [&](const Open& o) { return o.bound > quickest[searched_max - 1]; };
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
    std::vector<char> too_long(end - begin);
    parallel_for(end - begin, [&](std::size_t i) {
      const RunConfig& c = p.configs[order[begin + i].config];
      Result<std::unique_ptr<Prepared>> request = arranged(*first, c);
      if (!request.ok()) {
        described[i] = request.error();
        return;
      }
      bool leaves_out = false;
      std::optional<QuickSchedule> quick = estimated(**request, leaves_out);
      too_long[i] = !quick && leaves_out;
      if (!quick) return;
      found[i].emplace();
      found[i]->config = c;
      found[i]->seconds = quick->estimate.step_seconds;
      found[i]->limit = quick->estimate.bottleneck();
      found[i]->schedule = std::move(quick->schedule);
      found[i]->keeps_bits = keeps_bits(config, **request);
    });
    for (std::size_t i = 0; i < found.size(); ++i) {
      SLUICE_TRY(described[i]);
      if (!found[i]) {
        ++(too_long[i] ? layouts.not_looked_at : layouts.without_room);
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
    found.is_searched = found.is_proven = true;
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
  std::vector<Layout> sampled;
  std::size_t next = 0;
  for (; next < others.size() && layouts.found.size() + sampled.size() < searched_max; ++next) {
    if (progress) progress("proving arrangements on samples: " + std::to_string(sampled.size()) + " done");
    SLUICE_ASSIGN(const bool fits, fit_as_a_whole(others[next], *first));
    if (!fits) {
      ++layouts.without_room;
      continue;
    }
    SLUICE_TRY(prove_on_sample(others[next], *first));
    sampled.push_back(std::move(others[next]));
  }
  std::ranges::stable_sort(sampled, quicker);
  std::ranges::move(sampled, std::back_inserter(layouts.found));
  others.erase(others.begin(), others.begin() + static_cast<std::ptrdiff_t>(next));
  std::ranges::move(others, std::back_inserter(layouts.found));
  return layouts;
}

}  // namespace sluice
