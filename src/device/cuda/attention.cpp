#include "src/device/cuda/attention.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "kernels/cuda/stopwatch.h"

namespace sluice {
namespace {

using kernels::AttentionShape;
using kernels::cuda::CudnnAttention;
using kernels::cuda::Stream;

constexpr const char *words_begin = "attention", *ours = "sluice", *theirs = "cudnn ";
constexpr int repetitions = 5;
constexpr std::uintptr_t library_alignment = 256;

std::span<std::byte> aligned(std::span<std::byte> workspace) {
  const auto address = reinterpret_cast<std::uintptr_t>(workspace.data());
  return workspace.subspan(
      std::min((library_alignment - address % library_alignment) % library_alignment, workspace.size()));
}

}  // namespace

bool CudaAttention::is_cudnn(const std::string& kernel) { return kernel.starts_with(theirs); }

CudaAttention::Key CudaAttention::key_of(const AttentionShape& s) {
  return {s.batch, s.queries, s.heads, s.kv_heads, s.head_dim, s.window, s.q_stride, s.k_stride, s.out_stride};
}

std::string CudaAttention::words_of(const AttentionShape& shape) {
  return fmt::format("{} {}", words_begin, fmt::join(key_of(shape), " "));
}

Result<double> CudaAttention::time(Stream& stream, const std::function<Status()>& call) {
  SLUICE_TRY(call());
  kernels::cuda::Stopwatch watch;
  const bool began = watch.begin(stream);
  for (int i = 0; i < repetitions; ++i) SLUICE_TRY(call());
  const double seconds = watch.seconds(stream);
  if (!began || seconds < 0) return fault("attention can not be timed: the device failed");
  return seconds / repetitions;
}

Result<std::unique_ptr<CudaAttention>> CudaAttention::create(std::unique_ptr<CudnnAttention> library,
                                                             const KernelChoices& choices, bool timed, Timer timer) {
  std::unique_ptr<CudaAttention> attention(new CudaAttention(std::move(library), timed, std::move(timer)));
  for (const auto& [shape, kernel] : choices) {
    if (!shape.starts_with(words_begin)) continue;
    if (kernel != ours && !is_cudnn(kernel)) return bad_request("'" + kernel + "' computes no attention");
    if (is_cudnn(kernel) && attention->library_ == nullptr)
      return bad_request("attention was computed by " + kernel + ", which is not there");
    if (is_cudnn(kernel) && kernel != theirs + attention->library_->version())
      return bad_request("attention was computed by " + kernel + ", this is " + attention->library_->version());
    attention->kept_[shape] = kernel;
  }
  return attention;
}

Status CudaAttention::forward(const AttentionShape& shape, const bf16* q, const bf16* k, const bf16* v, bf16* out,
                              float* lse, std::span<std::byte> workspace, Stream& stream) {
  const auto by_us = [&] {
    kernels::cuda::attention_forward(shape, q, k, v, out, lse, workspace, stream);
    return stream.status();
  };
  // It takes no documents, no keys from a cache, and no blocks of longer sequences.
  if (library_ == nullptr || shape.positions != nullptr || shape.keys != shape.queries || shape.offset() != 0)
    return by_us();
  const std::span<std::byte> room = aligned(workspace);
  const auto by_library = [&] { return library_->forward(shape, q, k, v, out, lse, room, stream); };
  auto met = met_.find(key_of(shape));
  if (met == met_.end()) {
    const auto time = [&](const auto& call) { return timer_(stream, call); };
    Choice choice{words_of(shape)};
    if (const auto kept = kept_.find(choice.words); kept != kept_.end()) {
      choice.by_library = is_cudnn(kept->second);
    } else if (timed_) {
      if (const auto needs = library_->prepare_forward(shape); needs.ok() && *needs <= room.size()) {
        SLUICE_ASSIGN(const double our_seconds, time(by_us));
        // What fails here is not chosen.
        const Result<double> their_seconds = time(by_library);
        choice.by_library = their_seconds.ok() && *their_seconds < our_seconds;
      }
    }
    met = met_.emplace(key_of(shape), std::move(choice)).first;
  }
  met->second.used = true;
  return met->second.by_library ? by_library() : by_us();
}

KernelChoices CudaAttention::used() {
  KernelChoices choices;
  for (auto& [key, choice] : met_)
    if (std::exchange(choice.used, false))
      choices[choice.words] = choice.by_library ? theirs + library_->version() : ours;
  return choices;
}

}  // namespace sluice
