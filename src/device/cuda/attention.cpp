#include "src/device/cuda/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

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

std::string CudaAttention::words_of(const AttentionShape& s) {
  return fmt::format("{} {} {} {} {} {} {} {} {} {}", words_begin, s.batch, s.queries, s.heads, s.kv_heads, s.head_dim,
                     s.window, s.q_stride, s.k_stride, s.out_stride);
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
    attention->by_library_[shape] = is_cudnn(kernel);
  }
  return attention;
}

Status CudaAttention::forward(const AttentionShape& shape, const bf16* q, const bf16* k, const bf16* v, bf16* out,
                              float* lse, std::span<std::byte> workspace, Stream& stream) {
  const auto by_us = [&] {
    kernels::cuda::attention_forward(shape, q, k, v, out, lse, workspace, stream);
    return stream.status();
  };
  // It takes no documents, and no keys from a cache.
  if (library_ == nullptr || shape.positions != nullptr || shape.keys != shape.queries) return by_us();
  const std::string words = words_of(shape);
  const std::span<std::byte> room = aligned(workspace);
  const auto by_library = [&] { return library_->forward(shape, q, k, v, out, lse, room, stream); };
  auto choice = by_library_.find(words);
  if (choice == by_library_.end()) {
    bool quicker = false;
    const auto needs = timed_ ? library_->prepare_forward(shape) : Result<std::uint64_t>(fault("not asked"));
    if (needs.ok() && *needs <= room.size()) {
      SLUICE_ASSIGN(const double our_seconds, timer_(stream, by_us));
      // What fails here is not chosen.
      const Result<double> their_seconds = timer_(stream, by_library);
      quicker = their_seconds.ok() && *their_seconds < our_seconds;
    }
    choice = by_library_.emplace(words, quicker).first;
  }
  used_.insert(words);
  return choice->second ? by_library() : by_us();
}

KernelChoices CudaAttention::used() {
  KernelChoices choices;
  for (const std::string& words : used_) choices[words] = by_library_[words] ? theirs + library_->version() : ours;
  used_.clear();
  return choices;
}

}  // namespace sluice
