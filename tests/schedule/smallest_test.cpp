// The smallest budgets hold to the page, and the search keeps to them.
#include "src/schedule/smallest.h"

#include <gtest/gtest.h>

#include "random_schedule.h"
#include "src/schedule/build.h"
#include "src/schedule/search.h"

namespace sluice::test {
namespace {

constexpr std::uint64_t page = buffer_alignment_bytes;
constexpr std::uint64_t unlimited = FrugalFamily::unlimited;

/// What changes the smallest budgets.
struct Options {
  const char* name;
  void (*change)(Workload&, ScheduleWish&);
};
const Options all_options[] = {
    {"clipping", [](Workload&, ScheduleWish& wish) { wish.update = UpdateOrder::ahead; }},
    {"no clipping", [](Workload&, ScheduleWish&) {}},
    {"updates in the backward pass", [](Workload&, ScheduleWish& wish) { wish.update = UpdateOrder::backward; }},
    {"8-bit moments", [](Workload& w, ScheduleWish&) { w.moments = MomentFormat::int8; }},
    {"bf16 gradients that wait",
     [](Workload& w, ScheduleWish& wish) {
       w.gradient_dtype = Dtype::bf16;
       wish.update = UpdateOrder::ahead;
     }},
    {"bf16 gradients", [](Workload& w, ScheduleWish&) { w.gradient_dtype = Dtype::bf16; }},
    {"durable", [](Workload& w, ScheduleWish&) { w.durable = true; }},
    {"fp32", [](Workload& w, ScheduleWish&) { w.dtype = Dtype::f32; }},
    {"two ranks", [](Workload& w, ScheduleWish&) { w.topology = data_parallel(2); }},
    {"horizontal", [](Workload&, ScheduleWish& wish) { wish.group = 1; }},
    {"no recompute", [](Workload&, ScheduleWish& wish) { wish.recompute = Recompute::none; }},
    {"activations on the device", [](Workload&, ScheduleWish& wish) { wish.activations = Place::device; }},
    {"states in host memory", [](Workload&, ScheduleWish& wish) { wish.states = Place::host; }},
    {"all resident", [](Workload&, ScheduleWish& wish) { wish.resident = true; }},
    {"updates on the device", [](Workload&, ScheduleWish& wish) { wish.update_on_device = true; }},
    {"prefetch", [](Workload&, ScheduleWish& wish) { wish.prefetch = 2; }},
    {"activations in 8 bits",
     [](Workload& w, ScheduleWish& wish) {
       w.activation_dtype = ActivationDtype::fp8;
       wish.group = 1;
     }},
    {"documents", [](Workload& w, ScheduleWish&) { w.documents = true; }},
    {"slices",
     [](Workload& w, ScheduleWish&) {
       w.shape.slices = 4;
       w.shape.sequence /= 4;
       w.micro_batches *= 4;
     }},
    {"evaluation", [](Workload& w, ScheduleWish&) { w.inference = true; }},
};

struct BudgetCase {
  ModelSpec model;
  Workload work;
  ScheduleWish wish;
};
void make_case(const ModelConfig& config, std::int64_t sequence, int micro_batches, const Options& options,
               BudgetCase& c) {
  c.model = build_model(config);
  c.work.model = &c.model;
  c.work.shape = {1, sequence};
  c.work.micro_batches = micro_batches;
  options.change(c.work, c.wish);
}
void make_case(const std::string& preset, std::int64_t sequence, int micro_batches, const Options& options,
               BudgetCase& c) {
  const auto config = preset_config(preset);
  ASSERT_TRUE(config.ok());
  make_case(*config, sequence, micro_batches, options, c);
}

std::string text(const TierBytes& b) {
  return std::to_string(b.device) + " + " + std::to_string(b.host) + " + " + std::to_string(b.nvme);
}

/// Whether a member keeps the budgets: one base after the other too, and wherever on their chains it is looked for
/// first.
bool has_fit(const FrugalFamily& family, const TierBytes& budgets) {
  const bool has = family.fit(budgets).has_value();
  for (const std::size_t first : {std::size_t{0}, std::size_t{5}, std::size_t{1} << 20}) {
    bool found = false;
    for (std::size_t base = 0; base < family.bases(); ++base) {
      FrugalFamily::Spot spot{first, first};
      found |= family.fits(base, budgets, spot);
    }
    EXPECT_EQ(found, has) << "looked for at " << first;
  }
  return has;
}

/// At `b` a schedule is found that needs no more, by family and search; with a page less of any tier none is.
void expect_border(const BudgetCase& c, const TierBytes& b, bool with_search) {
  SCOPED_TRACE(text(b));
  const FrugalFamily family(c.work, c.wish);
  const std::optional<Schedule> at = family.fit(b);
  ASSERT_TRUE(at.has_value());
  const TierBytes needs = run_needs(c.work, *at);
  EXPECT_LE(needs.device, b.device);
  EXPECT_LE(needs.host, b.host);
  EXPECT_LE(needs.nvme, b.nvme);
  const auto search = [&](const TierBytes& budgets) {
    Workload w = c.work;
    // 0 would be no limit; a byte has room for nothing.
    for (const Tier t : {Tier::device, Tier::host, Tier::nvme})
      w.budget_bytes[static_cast<std::size_t>(t)] = std::max<std::uint64_t>(1, budgets.of(t));
    return search_schedule(w, c.wish, HardwareProfile{});
  };
  if (with_search) {
    const SearchResult found = search(b);
    EXPECT_TRUE(found.fits);
    EXPECT_LE(found.needs.host, std::max<std::uint64_t>(1, b.host));
  }
  for (const Tier t : {Tier::device, Tier::host, Tier::nvme}) {
    if (b.of(t) < page) continue;
    TierBytes less = b;
    less.of(t) -= page;
    EXPECT_FALSE(has_fit(family, less)) << tier_names[static_cast<std::size_t>(t)];
    EXPECT_FALSE(with_search && search(less).fits) << tier_names[static_cast<std::size_t>(t)];
  }
}

/// The least of each tier with the others as in `given` is a border too.
void expect_least(const BudgetCase& c, const TierBytes& given) {
  SCOPED_TRACE("given " + text(given));
  const FrugalFamily family(c.work, c.wish);
  const LeastBytes least = family.least(given);
  const auto holds = [&](Tier t, const std::optional<std::uint64_t>& bytes) {
    TierBytes b = given;
    b.of(t) = bytes.value_or(unlimited);
    EXPECT_EQ(has_fit(family, b), bytes.has_value()) << tier_names[static_cast<std::size_t>(t)];
    if (!bytes || *bytes < page) return;
    b.of(t) -= page;
    EXPECT_FALSE(has_fit(family, b)) << tier_names[static_cast<std::size_t>(t)];
  };
  holds(Tier::device, least.device);
  holds(Tier::host, least.host);
  holds(Tier::nvme, least.nvme);
}

TEST(Smallest, BudgetsHoldToThePageWithEveryOption) {
  for (const Options& options : all_options) {
    SCOPED_TRACE(options.name);
    BudgetCase c;
    make_case(tiny_config(Family::llama, true), 32, 3, options, c);
    const FrugalFamily family(c.work, c.wish);
    const TierBytes corner = family.corner();
    expect_border(c, corner, true);
    const TierBytes without_drive = family.corner(0);
    if (!c.work.durable) expect_border(c, without_drive, true);
    expect_least(c, {corner.device * 2, corner.host * 8, corner.nvme * 2});
    // A drive that holds half of it.
    expect_least(c, {corner.device * 2, without_drive.host, corner.nvme / 2});
    expect_least(c, {corner.device, 2 * corner.host, corner.nvme / 2});
    // Much less host memory than a frugal run without a drive takes, and a roomy device.
    expect_least(c, {unlimited, without_drive.host - without_drive.host / 4, 0});
    expect_least(c, {unlimited, unlimited, unlimited});
    expect_least(c, {page, page, 0});
    if (HasFailure()) return;
  }
}

TEST(Smallest, BudgetsHoldForEveryPreset) {
  for (const std::string& preset : preset_names()) {
    SCOPED_TRACE(preset);
    BudgetCase c;
    make_case(preset, 256, 1, all_options[0], c);
    const FrugalFamily family(c.work, c.wish);
    const TierBytes corner = family.corner();
    expect_border(c, corner, false);
    if (c.model.parameters < 2e9) expect_least(c, {corner.device * 2, corner.host * 4, corner.nvme});
    if (HasFailure()) return;
  }
}

// As it was met: a plan took 451 MiB of host memory and 40.6 GiB of drive beside a column that called 274 MiB and
// 63.2 GiB the smallest possible, and 40 MiB of host memory did with clipping.
TEST(Smallest, BudgetsAreNotAboveWhatAPlanTakes) {
  BudgetCase c;
  make_case("llama-7b", 256, 2, all_options[1], c);
  c.work.moments = MomentFormat::int8;
  const TierBytes given{1ull << 30, 512ull << 20, 1000ull << 30};
  const LeastBytes least = FrugalFamily(c.work, c.wish).least(given);
  BudgetCase clipping;
  make_case("llama-7b", 256, 2, all_options[0], clipping);
  clipping.work.moments = MomentFormat::int8;
  const LeastBytes clipped = FrugalFamily(clipping.work, clipping.wish).least(given);
  ASSERT_TRUE(least.device && least.host && least.nvme && clipped.host);
  EXPECT_LE(*least.host, *clipped.host) << "what clipping needs is open without it";
  EXPECT_LE(*least.host, 40ull << 20);
  c.work.budget_bytes = {given.device, given.host, given.nvme};
  const SearchResult found = search_schedule(c.work, c.wish, HardwareProfile{});
  ASSERT_TRUE(found.fits);
  EXPECT_LE(*least.device, found.needs.device);
  EXPECT_LE(*least.host, found.needs.host);
  EXPECT_LE(*least.nvme, found.needs.nvme);
}

}  // namespace
}  // namespace sluice::test
