// Pointwise and gather kernels of a transformer, on f32 or bf16 storage with fp32 arithmetic, in the calling thread's
// OpenMP team. Results do not depend on the number of threads. Outputs may be inputs of the same type and shape.
#pragma once

#include <cstdint>

#include "sluice/dtype.h"

namespace sluice::kernels {

/// dst = src: to f32 (exactly), and from f32 (nearest even). Between f32 and f32 both are copies of the bits.
void widen(const bf16* src, float* dst, std::int64_t n);
void widen(const float* src, float* dst, std::int64_t n);
void narrow(const float* src, bf16* dst, std::int64_t n);
void narrow(const float* src, float* dst, std::int64_t n);

/// y[i] += x[i], fp32
void add_f32(const float* x, float* y, std::int64_t n);
/// y[i] += float(x[i]), fp32: a part joins a sum that is kept in fp32
void add_widened(const bf16* x, float* y, std::int64_t n);
void add_widened(const float* x, float* y, std::int64_t n);
/// out = a + b (residual); out may be a or b
template <class T>
void add(const T* a, const T* b, T* out, std::int64_t n);
/// x[r, :] += bias, rows of width, stride ld
template <class T>
void add_bias(T* x, std::int64_t ld, const T* bias, std::int64_t rows, std::int64_t width);
/// out[r, :] = T(float(x[r, :]) + sum[r, :] + float(bias)), added in fp32 from left to right and rounded once (nearest
/// even): a residual and a bias join a sum that was kept in fp32. x, sum, out: [rows, width], dense; bias: [width]. x
/// or bias may be null, and takes no part then; out may be x.
template <class T>
void add_sum(const T* x, const float* sum, const T* bias, T* out, std::int64_t rows, std::int64_t width);
/// d_bias[c] += sum over rows of dy[r, c], fp32, fixed order (blocks of 64 rows);
/// workspace: ceil(rows / 64) * width floats
template <class T>
void bias_gradient(const T* dy, std::int64_t ld, std::int64_t rows, std::int64_t width, float* d_bias,
                   float* workspace);

/// h = silu(gate) * up, [rows, width] with row strides
template <class T>
void swiglu_forward(const T* gate, const T* up, std::int64_t ld, std::int64_t rows, std::int64_t width, T* h,
                    std::int64_t h_ld);
/// d_gate, d_up from dh, which becomes h: the gradient of the weights that h meets needs it. May overwrite gate and up.
template <class T>
void swiglu_backward(const T* gate, const T* up, std::int64_t ld, T* dh, std::int64_t dh_ld, std::int64_t rows,
                     std::int64_t width, T* d_gate, T* d_up, std::int64_t d_ld);
/// GELU, tanh form as GPT-2 has it ("gelu_new")
template <class T>
void gelu_forward(const T* x, T* y, std::int64_t n);
template <class T>
void gelu_backward(const T* x, T* dy, T* dx, std::int64_t n);  ///< dy becomes y

/// Where tokens stand: one after the other in rows of `sequence`, or as `each` says.
struct Positions {
  std::int64_t sequence = 1, first = 0;
  const std::int32_t* each = nullptr;  ///< [tokens]
  std::int64_t operator()(std::int64_t token) const { return each != nullptr ? each[token] : first + token % sequence; }
};

/// Rotary embedding in the half-split layout of Hugging Face ("rotate_half"), in place on [tokens, heads, head_dim]
/// with token stride `stride`. cos, sin: [positions, head_dim/2] fp32. `inverse` rotates back (the backward pass).
template <class T>
void rope(T* x, std::int64_t stride, std::int64_t tokens, const Positions& positions, std::int64_t heads,
          std::int64_t head_dim, const float* cos, const float* sin, bool inverse);

/// cos and sin [rows, half]: of the positions of these tokens times each frequency [half]. The angle is rounded to fp32
/// as in the programs that trained the published weights; its cosine and sine are taken, and scaled, in fp64.
void rope_rows(const float* frequencies, std::int64_t half, double scale, const Positions& positions, std::int64_t rows,
               float* cos, float* sin);

/// out[t, :] = table[tokens[t], :] (+ places[positions(t), :] if places != nullptr). A negative token is padding: its
/// row of the table is zero, and has no gradient.
template <class T>
void embed_forward(const std::int32_t* tokens, std::int64_t count, const Positions& positions, const T* table,
                   const T* places, std::int64_t width, T* out);
/// d_table[tokens[t], :] += d_out[t, :] in token order; d_places[positions(t), :] likewise, if not null
template <class T>
void embed_backward(const std::int32_t* tokens, std::int64_t count, const Positions& positions, const T* d_out,
                    std::int64_t width, float* d_table, float* d_places);

}  // namespace sluice::kernels
