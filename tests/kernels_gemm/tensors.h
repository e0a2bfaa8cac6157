// Test operands in f32 or bf16 at a chosen distance from a page border.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sluice/dtype.h"
#include "sluice/random.h"

namespace sluice::kernels {

class Tensor {
 public:
  Tensor(Dtype dtype, std::int64_t numel, std::int64_t shift_bytes)
      : dtype_(dtype), numel_(static_cast<std::size_t>(numel)), storage_(numel_ * dtype_bytes(dtype) + 16384) {
    void* at = storage_.data();
    std::size_t space = storage_.size();
    data_ = static_cast<std::byte*>(std::align(4096, 1, at, space)) + shift_bytes;
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  void* data() { return data_; }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(data_);
  }
  std::span<std::byte> bytes() { return {data_, numel_ * dtype_bytes(dtype_)}; }

  void set(std::size_t i, float v) {
    if (dtype_ == Dtype::f32)
      as<float>()[i] = v;
    else
      as<bf16>()[i] = to_bf16(v);
  }
  void fill(float v) {
    for (std::size_t i = 0; i < numel_; ++i) set(i, v);
  }
  /// Values in [-scale, scale) in rows of `width` that lie `ld` apart. They depend on seed, row and column alone.
  void fill_random_rows(std::uint64_t seed, std::int64_t rows, std::int64_t width, std::int64_t ld, float scale = 1) {
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < width; ++c)
        set(static_cast<std::size_t>(r * ld + c),
            scale * static_cast<float>(2 * philox_uniform(seed, static_cast<std::uint64_t>(r * width + c), 0) - 1));
  }
  /// All elements as f32.
  std::vector<float> floats() const {
    std::vector<float> out(numel_);
    for (std::size_t i = 0; i < numel_; ++i)
      out[i] = dtype_ == Dtype::f32 ? reinterpret_cast<const float*>(data_)[i]
                                    : to_float(reinterpret_cast<const bf16*>(data_)[i]);
    return out;
  }

 private:
  Dtype dtype_;
  std::size_t numel_;
  std::vector<std::byte> storage_;
  std::byte* data_;
};

}  // namespace sluice::kernels
