#include "kernels/cpu/adamw.h"

#include "sluice/status.h"

namespace sluice {
namespace {

const kernels::AdamwLoops& loops(MomentFormat format) {
  switch (format) {
    case MomentFormat::f32: return kernels::adamw_loops_f32();
    case MomentFormat::bf16: return kernels::adamw_loops_bf16();
    case MomentFormat::int8: break;
  }
  return kernels::adamw_loops_int8();
}

/// Row or column of AdamwLoops.
int place(Dtype dtype) {
  SLUICE_CHECK(dtype == Dtype::f32 || dtype == Dtype::bf16, "(%s)", dtype_name(dtype));
  return dtype == Dtype::f32 ? 0 : 1;
}

}  // namespace

AdamwReport adamw(const AdamwStep& s, const AdamwRange& range) {
  SLUICE_CHECK(range.moments != MomentFormat::int8 || range.first_index % moment_block_numel == 0, "(%llu)",
               static_cast<unsigned long long>(range.first_index));
  return {loops(range.moments).at[place(range.dtype)][place(range.gradient_dtype)](kernels::adamw_constants(s), range)};
}

AdamwReport adamw_bf16(const AdamwStep& s, bf16* parameter, std::int16_t* remainder, float* exp_avg, float* exp_avg_sq,
                       const float* gradient, std::int64_t numel) {
  return adamw(s, {.parameter = parameter,
                   .remainder = remainder,
                   .exp_avg = exp_avg,
                   .exp_avg_sq = exp_avg_sq,
                   .gradient = gradient,
                   .numel = numel});
}

AdamwReport adamw_bf16(const AdamwStep& s, bf16* parameter, std::int16_t* remainder, float* exp_avg, float* exp_avg_sq,
                       const bf16* gradient, std::int64_t numel) {
  return adamw(s, {.gradient_dtype = Dtype::bf16,
                   .parameter = parameter,
                   .remainder = remainder,
                   .exp_avg = exp_avg,
                   .exp_avg_sq = exp_avg_sq,
                   .gradient = gradient,
                   .numel = numel});
}

AdamwReport adamw_f32(const AdamwStep& s, float* parameter, float* exp_avg, float* exp_avg_sq, const float* gradient,
                      std::int64_t numel) {
  return adamw(s, {.dtype = Dtype::f32,
                   .parameter = parameter,
                   .exp_avg = exp_avg,
                   .exp_avg_sq = exp_avg_sq,
                   .gradient = gradient,
                   .numel = numel});
}

}  // namespace sluice
