#include "tools/bench_adamw.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "kernels/cpu/stream.h"
#include "offload/run/memory.h"
#include "src/device/in_turn.h"

namespace sluice::tools {
namespace {

constexpr AdamwFormat formats[] = {
    {Dtype::bf16, MomentFormat::f32, Dtype::bf16},  {Dtype::bf16, MomentFormat::f32, Dtype::f32},
    {Dtype::bf16, MomentFormat::bf16, Dtype::bf16}, {Dtype::bf16, MomentFormat::bf16, Dtype::f32},
    {Dtype::bf16, MomentFormat::int8, Dtype::bf16}, {Dtype::bf16, MomentFormat::int8, Dtype::f32},
    {Dtype::f32, MomentFormat::f32, Dtype::bf16},   {Dtype::f32, MomentFormat::f32, Dtype::f32},
    {Dtype::f32, MomentFormat::bf16, Dtype::bf16},  {Dtype::f32, MomentFormat::bf16, Dtype::f32},
    {Dtype::f32, MomentFormat::int8, Dtype::bf16},  {Dtype::f32, MomentFormat::int8, Dtype::f32}};

struct Stream {
  const char* name;
  void (*pass)(std::span<float>);
};
constexpr Stream streams[] = {{"one array", kernels::stream_update},
                              {"one array, prefetched", kernels::stream_update_ahead},
                              {"four arrays, prefetched", kernels::stream_update_four}};

/// One thread's tensor, array behind array in one allocation, each from a page on.
class State {
 public:
  static Result<State> make(const AdamwFormat& format, std::uint64_t numel) {
    State s;
    const std::uint64_t scales = moment_scales(format.moments, numel);
    const std::uint64_t sizes[] = {numel * dtype_bytes(format.parameter),
                                   format.parameter == Dtype::bf16 ? numel * 2 : 0,
                                   numel * moment_bytes(format.moments),
                                   numel * moment_bytes(format.moments),
                                   scales * sizeof(float),
                                   scales * sizeof(float),
                                   numel * dtype_bytes(format.gradient)};
    std::uint64_t at[std::size(sizes)], end = 0;
    for (std::size_t i = 0; i < std::size(sizes); ++i) {
      at[i] = end;
      end += (sizes[i] + page_bytes - 1) / page_bytes * page_bytes;
    }
    SLUICE_ASSIGN(s.pages_, Pages::make(end));
    std::byte* const base = s.pages_.data();
    s.range_ = {.dtype = format.parameter,
                .gradient_dtype = format.gradient,
                .moments = format.moments,
                .parameter = base + at[0],
                .remainder = reinterpret_cast<std::int16_t*>(base + at[1]),
                .exp_avg = base + at[2],
                .exp_avg_sq = base + at[3],
                .exp_avg_scales = reinterpret_cast<float*>(base + at[4]),
                .exp_avg_sq_scales = reinterpret_cast<float*>(base + at[5]),
                .gradient = base + at[6],
                .numel = static_cast<std::int64_t>(numel)};
    s.fill_gradient(base + at[6]);
    // The stream moves as many bytes as the update; it may run over the state, which it leaves as it was after two
    // passes: it flips signs.
    const auto moved = static_cast<std::uint64_t>(format.bytes_per_parameter() * static_cast<double>(numel) / 2);
    s.stream_ = {reinterpret_cast<float*>(base), std::min(moved, end) / sizeof(float)};
    return s;
  }

  void update() {
    AdamwStep s;
    s.step = 10;
    s.lr = 1e-6f;
    s.gradient_scale = 0.9f;
    s.rounding_key = ++updates_;
    adamw(s, range_);
  }
  void stream(const Stream& s) {
    s.pass(stream_);
    s.pass(stream_);
  }
  double stream_bytes() const { return 4.0 * static_cast<double>(stream_.size_bytes()); }  ///< both passes, both ways

 private:
  static constexpr std::uint64_t page_bytes = 4096;
  void fill_gradient(std::byte* to) const {
    for (std::int64_t i = 0; i < range_.numel; ++i) {
      const float g = 1e-5f * static_cast<float>(i * 7919 % 201 - 100);
      if (range_.gradient_dtype == Dtype::f32)
        reinterpret_cast<float*>(to)[i] = g;
      else
        reinterpret_cast<bf16*>(to)[i] = to_bf16(g);
    }
  }

  Pages pages_;
  AdamwRange range_;
  std::span<float> stream_;
  std::uint64_t updates_ = 0;
};

}  // namespace

std::string AdamwFormat::name() const {
  return fmt::format("{}/{}/{}", dtype_name(parameter), moment_format_name(moments), dtype_name(gradient));
}

double AdamwFormat::bytes_per_parameter() const {
  const double scale = moments == MomentFormat::int8 ? sizeof(float) / static_cast<double>(moment_block_numel) : 0;
  const double state = 4 + 2 * (static_cast<double>(moment_bytes(moments)) + scale);
  return 2 * state + static_cast<double>(dtype_bytes(gradient));
}

std::span<const AdamwFormat> adamw_formats() { return formats; }

Result<AdamwRate> measure_adamw(const AdamwFormat& format, const AdamwBenchOptions& options) {
  const auto threads = static_cast<std::size_t>(options.threads);
  const std::uint64_t each = std::max<std::uint64_t>(1, options.numel / threads);
  std::vector<State> states;
  for (std::size_t t = 0; t < threads; ++t) {
    SLUICE_ASSIGN(State state, State::make(format, each));
    states.push_back(std::move(state));
  }
  std::vector<ThreadPass> passes{[&states](int t) { states[static_cast<std::size_t>(t)].update(); }};
  for (const Stream& stream : streams)
    passes.emplace_back([&states, &stream](int t) { states[static_cast<std::size_t>(t)].stream(stream); });
  const std::vector<Passes> rates = measure_in_turn(passes, options.threads, options.seconds);

  AdamwRate rate;
  rate.parameters_per_second = static_cast<double>(each * threads) * rates[0].per_second;
  rate.spread = rates[0].spread;
  for (std::size_t s = 0; s < std::size(streams); ++s) {
    const double reached = states[0].stream_bytes() * static_cast<double>(threads) * rates[1 + s].per_second;
    if (reached <= rate.stream_bytes_per_second) continue;
    rate.stream_bytes_per_second = reached;
    rate.stream = streams[s].name;
  }
  return rate;
}

}  // namespace sluice::tools
