// Pointwise and gather kernels of a transformer, as kernels/cpu/elementwise.h has them: on f32 or bf16 storage with
// fp32 arithmetic, on device memory, in the order of a stream. Outputs may be inputs of the same type and shape. No
// result depends on the device, on addresses or on how often a kernel runs. Faster where addresses and strides are
// multiples of 16 bytes.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream.h"
#include "sluice/dtype.h"

namespace sluice::kernels::cuda {

/// dst = src: to f32 (exactly), and from f32 (nearest even; which NaN is not said). Between f32 and f32 both are copies
/// of the bits.
void widen(const bf16* src, float* dst, std::int64_t n, Stream& stream);
void widen(const float* src, float* dst, std::int64_t n, Stream& stream);
void narrow(const float* src, bf16* dst, std::int64_t n, Stream& stream);
void narrow(const float* src, float* dst, std::int64_t n, Stream& stream);

/// y[i] += x[i], fp32
void add_f32(const float* x, float* y, std::int64_t n, Stream& stream);
/// y[i] += float(x[i]), fp32: a part joins a sum that is kept in fp32
void add_widened(const bf16* x, float* y, std::int64_t n, Stream& stream);
void add_widened(const float* x, float* y, std::int64_t n, Stream& stream);
/// out = a + b (residual); out may be a or b
template <class T>
void add(const T* a, const T* b, T* out, std::int64_t n, Stream& stream);
/// x[r, :] += bias, rows of width, stride ld
template <class T>
void add_bias(T* x, std::int64_t ld, const T* bias, std::int64_t rows, std::int64_t width, Stream& stream);
/// out[r, :] = T(float(x[r, :]) + sum[r, :] + float(bias)), added in fp32 from left to right and rounded once (nearest
/// even), to the bits of the CPU: a residual and a bias join a sum that was kept in fp32. x, sum, out: [rows, width],
/// dense; bias: [width]. x or bias may be null, and takes no part then; out may be x.
template <class T>
void add_sum(const T* x, const float* sum, const T* bias, T* out, std::int64_t rows, std::int64_t width,
             Stream& stream);
/// d_bias[c] += sum over rows of dy[r, c], fp32, in an order that follows from rows; workspace of
/// bias_gradient_workspace_floats(rows, width)
template <class T>
void bias_gradient(const T* dy, std::int64_t ld, std::int64_t rows, std::int64_t width, float* d_bias, float* workspace,
                   Stream& stream);
std::int64_t bias_gradient_workspace_floats(std::int64_t rows, std::int64_t width);

/// h = silu(gate) * up (arXiv 2002.05202), [rows, width] with row strides
template <class T>
void swiglu_forward(const T* gate, const T* up, std::int64_t ld, std::int64_t rows, std::int64_t width, T* h,
                    std::int64_t h_ld, Stream& stream);
/// d_gate, d_up from dh, which becomes h: the gradient of the weights that h meets needs it. May overwrite gate and up.
template <class T>
void swiglu_backward(const T* gate, const T* up, std::int64_t ld, T* dh, std::int64_t dh_ld, std::int64_t rows,
                     std::int64_t width, T* d_gate, T* d_up, std::int64_t d_ld, Stream& stream);
/// GELU (arXiv 1606.08415), tanh form as GPT-2 has it ("gelu_new")
template <class T>
void gelu_forward(const T* x, T* y, std::int64_t n, Stream& stream);
template <class T>
void gelu_backward(const T* x, T* dy, T* dx, std::int64_t n, Stream& stream);  ///< dy becomes y

/// Rotary embedding (arXiv 2104.09864) in the half-split layout of Hugging Face ("rotate_half"), in place on [tokens,
/// heads, head_dim] with token stride `stride`. cos, sin: [positions, head_dim/2] fp32. Position of token t is
/// token_positions[t] (int32, on the device: documents packed into one sequence), or position0 + t % sequence without
/// them. `inverse` rotates back (the backward pass).
template <class T>
void rope(T* x, std::int64_t stride, std::int64_t tokens, std::int64_t sequence, std::int64_t position0,
          std::int64_t heads, std::int64_t head_dim, const float* cos, const float* sin, bool inverse,
          const std::int32_t* token_positions, Stream& stream);

/// cos and sin [rows, half]: of the positions of these tokens, which are as above, times each frequency [half]. The
/// angle is rounded to fp32; its cosine and sine are taken, and scaled, in fp64.
void rope_rows(const float* frequencies, std::int64_t half, double scale, std::int64_t sequence, std::int64_t position0,
               std::int64_t rows, float* cos, float* sin, const std::int32_t* token_positions, Stream& stream);

/// out[t, :] = table[tokens[t], :] (+ positions[p, :] if positions != nullptr). p is token_positions[t], or
/// t % sequence + position0 without them. A negative token is padding: its row of the table is zero, and has no
/// gradient.
template <class T>
void embed_forward(const std::int32_t* tokens, std::int64_t count, std::int64_t sequence, std::int64_t position0,
                   const T* table, const T* positions, std::int64_t width, T* out, const std::int32_t* token_positions,
                   Stream& stream);
/// d_table[tokens[t], :] += d_out[t, :] in token order, as the CPU adds them, to the bit; d_positions likewise, if not
/// null, at token_positions[t], or at t % sequence without them.
template <class T>
void embed_backward(const std::int32_t* tokens, std::int64_t count, std::int64_t sequence, const T* d_out,
                    std::int64_t width, float* d_table, float* d_positions, const std::int32_t* token_positions,
                    Stream& stream);

}  // namespace sluice::kernels::cuda
