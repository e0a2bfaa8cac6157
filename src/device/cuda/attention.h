// Which kernel computes attention on a CUDA GPU: our own, or cuDNN's where it is there, takes the shape and is quicker.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_cudnn.h"
#include "sluice/profile.h"
#include "sluice/status.h"

namespace sluice {

/// The forward pass alone is chosen: cuDNN's backward pass needs memory in proportion to the square of the sequence if
/// its bits are to be the same every time. What either forward pass leaves, ours goes on from. One thread at a time.
class CudaAttention {
 public:
  using Timer = std::function<Result<double>(kernels::cuda::Stream&, const std::function<Status()>&)>;
  /// `library` may be null: then all attention is our own. With `timed`, shapes that are not in `choices` are timed
  /// when they are first met; else they are our own. bad_request where a choice is cuDNN's and there is none.
  static Result<std::unique_ptr<CudaAttention>> create(std::unique_ptr<kernels::cuda::CudnnAttention> library,
                                                       const KernelChoices& choices, bool timed, Timer timer = time);

  /// Seconds of one call by the device's clock: of several after one to warm up.
  static Result<double> time(kernels::cuda::Stream& stream, const std::function<Status()>& call);

  /// As kernels::cuda::attention_forward. fault where cuDNN was chosen and fails.
  template <class T>
  Status forward(const kernels::AttentionShape& shape, const T* q, const T* k, const T* v, T* out, float* lse,
                 std::span<std::byte> workspace, kernels::cuda::Stream& stream) {
    kernels::cuda::attention_forward(shape, q, k, v, out, lse, workspace, stream);
    return success();
  }
  Status forward(const kernels::AttentionShape& shape, const bf16* q, const bf16* k, const bf16* v, bf16* out,
                 float* lse, std::span<std::byte> workspace, kernels::cuda::Stream& stream);

  /// Of the shapes that were met since this was asked last.
  KernelChoices used();

  /// Whether a choice's kernel is the library's, of whatever version.
  static bool is_cudnn(const std::string& kernel);
  /// Words for a shape, as choices have them: "attention 1 4096 32 ...".
  static std::string words_of(const kernels::AttentionShape& shape);

 private:
  CudaAttention(std::unique_ptr<kernels::cuda::CudnnAttention> library, bool timed, Timer timer)
      : library_(std::move(library)), timed_(timed), timer_(std::move(timer)) {}

  std::unique_ptr<kernels::cuda::CudnnAttention> library_;
  bool timed_;
  Timer timer_;
  /// Of a shape that was met; its words are made once, since a step allocates nothing.
  struct Choice {
    std::string words;
    bool by_library = false, used = false;
  };
  using Key = std::array<std::int64_t, 9>;
  static Key key_of(const kernels::AttentionShape& shape);

  KernelChoices kept_;
  std::map<Key, Choice> met_;
};

}  // namespace sluice
