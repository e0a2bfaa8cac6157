#include "src/train/request/layouts.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "offload/parallel.h"
#include "src/device/profile_measure.h"
#include "src/schedule/estimate.h"
#include "src/schedule/recipe.h"
#include "src/schedule/search.h"
#include "src/schedule/smallest.h"
#include "src/schedule/wish.h"
#include "src/train/request/arrangement.h"

namespace sluice {
namespace {

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
          RunConfig c = given;
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
  return list;
}

/// What an arrangement can be is a matter of the model and the batch; numbers in the words that say so are its own.
std::string kind_of(const std::string& reason) {
  std::string kind;
  for (const char c : reason)
    if (c < '0' || c > '9') kind += c;
  return kind;
}

struct Possible {
  std::vector<RunConfig> configs;
  std::vector<Layouts::Refused> refused;
};

Possible possible(const RunConfig& given, const LayoutWish& wish) {
  Possible p;
  std::map<std::string, std::size_t> kinds;
  for (RunConfig& c : arrangements(given, wish)) {
    const auto described = describe_request(c, Purpose::train);
    if (described.ok()) {
      p.configs.push_back(std::move(c));
      continue;
    }
    const auto [at, is_new] = kinds.try_emplace(kind_of(described.error().message), p.refused.size());
    if (is_new) p.refused.push_back({described.error(), 0});
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

constexpr double estimating_seconds = 40, searching_seconds = 60;
/// Units times micro-batches of a pipeline whose plans are simulated in a second or two: a model of fewer layers does
/// not stand for those. More are of few parts of a batch and small groups, which promise little.
constexpr std::size_t passes_of_pipeline_max = 16384;

bool is_quickly_estimated(const Prepared& run) {
  const Workload& w = run.workload;
  return w.stages() == 1 || w.model->units.size() * static_cast<std::size_t>(w.micro_batches) <= passes_of_pipeline_max;
}

/// What a step takes at least, roughly: its FLOP, a pipeline's bubble, and what a rank receives of parameters,
/// gradients and parts of sums. Says which arrangements are looked at first.
double promised_seconds(const Prepared& run) {
  const Workload& w = run.workload;
  const bool bf16 = w.dtype == Dtype::bf16;
  const double rate = run.profile.device
                          ? (bf16 ? run.profile.device->gemm_flops_bf16 : run.profile.device->gemm_flops_f32)
                          : (bf16 ? run.profile.gemm_flops_bf16 : run.profile.gemm_flops_f32);
  double flop = 0, parameters = 0;
  for (std::size_t u = 0; u < w.model->units.size(); ++u) {
    const SublayerCost cost = sublayer_cost(*w.model, w.model->units[u], w.shape, w.dtype, *w.kernels);
    flop += cost.forward_flop + cost.backward_flop;
    parameters += static_cast<double>(w.full_numel(static_cast<UnitId>(u)));
  }
  const double stages = w.stages(), passes = w.micro_batches, tensor = w.tensor_ranks(), data = w.data_ranks();
  const PipelineChoice& p = run.config.pipeline;
  const double idle = p.order == PipelineOrder::zb_v    ? 0
                      : p.order == PipelineOrder::zb_h1 ? 0.5
                                                        : 1.0 / static_cast<double>(p.chunks);
  const double compute = flop * passes / stages / rate * (1 + idle * (stages - 1) / passes);
  const auto link = [&](double members) {
    const bool inside = members * tensor <= ranks_of_machine(run.config);
    const MessageRates rates =
        (inside ? run.profile.messages_inside : run.profile.messages_between).value_or(MessageRates());
    return rates.gather_bytes_per_second / (inside ? 1.0 : static_cast<double>(ranks_of_machine(run.config)));
  };
  const double sums = tensor == 1
                          ? 0
                          : 14.0 * static_cast<double>(w.shape.tokens() * w.model->config.hidden) * passes *
                                static_cast<double>(w.model->units.size()) / stages * (tensor - 1) / tensor / link(1);
  const double states = data == 1 ? 0 : 8 * parameters / stages * (data - 1) / data / link(data);
  return std::max({compute, sums, states});
}

/// Of a few schedules that fit, without turning single knobs; 0 where none does.
double estimated_seconds(Prepared& run) {
  Workload& w = run.workload;
  const auto estimate = [&]() -> double {
    const Estimator estimator(w, run.profile);
    const Cook cook(w, run.wish);
    std::vector<int> groups = open_groups(w, run.wish);
    if (groups.size() > 2) groups = {groups.front(), groups.back()};
    double best = 0;
    const auto look_at = [&](const std::optional<Schedule>& schedule) {
      if (!schedule) return;
      const double seconds = estimator.estimate(*schedule).step_seconds;
      if (best == 0 || seconds < best) best = seconds;
    };
    for (const int group : groups)
      look_at(cook.follow({group, open_updates(w, run.wish).front(), true, Saved::recompute}));
    if (best == 0) look_at(FrugalFamily(w, run.wish).fit(budgets_of(w)));
    return best;
  };
  const double seconds = estimate();
  if (seconds > 0 || !w.durable || run.config.durable == Durable::on) return seconds;
  w.durable = false;  // as a run would be
  return estimate();
}

/// Whether an arrangement trains to the bits of the configuration as it was given.
bool keeps_bits(const RunConfig& given, const Prepared& run) {
  const RunConfig& c = run.config;
  const Workload& w = run.workload;
  if (c.tensor != given.tensor || c.context != given.context || c.sums != RankSums::tree) return false;
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

Result<Layouts> find_layouts(const RunConfig& config, const LayoutWish& wish, const Tell& progress) {
  Possible p = possible(config, wish);
  if (p.configs.empty()) return none_is_possible(config, p);
  Layouts layouts;
  layouts.refused = std::move(p.refused);
  if (progress)
    progress("estimating " + std::to_string(p.configs.size()) + " arrangements of " + std::to_string(config.ranks) +
             " ranks");
  SLUICE_ASSIGN(const auto first, prepare_to_estimate(p.configs.front(), Purpose::train, progress));
  const double began = now_seconds();
  std::vector<std::unique_ptr<Prepared>> requests;
  for (const RunConfig& c : p.configs) {
    SLUICE_ASSIGN(auto request, arranged(*first, c));
    requests.push_back(std::move(request));
  }
  std::vector<std::pair<double, std::size_t>> order;
  for (std::size_t i = 0; i < requests.size(); ++i) order.emplace_back(promised_seconds(*requests[i]), i);
  std::ranges::sort(order);
  constexpr double not_estimated = -1;
  std::vector<double> seconds(requests.size(), not_estimated);
  // The first two whatever that takes.
  parallel_for(order.size(), [&](std::size_t i) {
    Prepared& request = *requests[order[i].second];
    if (i < 2 || (now_seconds() - began < estimating_seconds && is_quickly_estimated(request)))
      seconds[order[i].second] = estimated_seconds(request);
  });
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (seconds[i] < 0) ++layouts.not_looked_at;
    if (seconds[i] < 0) continue;
    if (seconds[i] == 0) {
      ++layouts.without_room;
      continue;
    }
    Layout& found = layouts.found.emplace_back();
    found.config = p.configs[i];
    found.seconds = seconds[i];
    found.keeps_bits = keeps_bits(config, *requests[i]);
    requests[i].reset();
  }
  const auto quicker = [](const Layout& a, const Layout& b) { return a.seconds < b.seconds; };
  std::ranges::stable_sort(layouts.found, quicker);
  std::vector<Layout> searched, others;
  const std::size_t most = std::min(layouts.found.size(), searched_max);
  const double start = now_seconds();
  for (Layout& found : layouts.found) {
    const std::size_t done = searched.size();
    const bool enough = done == most || (done > 0 && now_seconds() - start > searching_seconds);
    if (enough) {
      others.push_back(std::move(found));
      continue;
    }
    if (progress)
      progress("searching arrangement " + std::to_string(done + 1) + " of " + std::to_string(most) +
               " of the quickest");
    Result<std::unique_ptr<Prepared>> run = prepare(found.config, Purpose::train, {});
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
