// Attention on the device, forward and backward in bf16, against what matrix multiply reaches on it; our own kernels,
// and cuDNN's where it is installed and takes the shape.
//
//     bench_cuda_attention [--smoke] [--json FILE] [--rounds N] [part of a name]
//
// FLOP are those of the pairs of query and key that see each other: two products forward, five backward. The ratio is
// to the rate of an 8192 x 8192 x 8192 multiply of the same round; medians. Status 2 where there is no device.
#include <cmath>

#include "bench/cuda_bench.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_cudnn.h"
#include "kernels/cuda/gemm.h"

namespace sluice {
namespace {

using namespace bench;
namespace cuda = kernels::cuda;

struct Case {
  const char* name;
  std::int64_t batch, sequence, heads, kv_heads, head_dim, window = 0, document = 0;
};
constexpr Case smoke_cases[] = {{"smoke", 1, 70, 2, 1, 64}, {"smoke documents", 1, 70, 2, 1, 64, 0, 20}};
constexpr Case full_cases[] = {{"gpt2-124m", 8, 1024, 12, 12, 64},
                               {"llama-1b", 4, 2048, 32, 4, 64},
                               {"llama-7b", 2, 4096, 32, 32, 128},
                               {"llama-70b", 1, 4096, 64, 8, 128},
                               {"head_dim 80", 2, 4096, 32, 32, 80},
                               {"head_dim 96", 2, 4096, 32, 32, 96},
                               {"llama-7b 16k", 1, 16384, 32, 8, 128},
                               {"window 1024 of 16k", 1, 16384, 32, 8, 128, 1024},
                               {"documents of 1000 in 16k", 1, 16384, 32, 8, 128, 0, 1000}};

std::int64_t first_key(const Case& c, std::int64_t query) {
  const std::int64_t begin = c.document > 0 ? query - query % c.document : 0;
  return c.window > 0 ? std::max(begin, query - c.window + 1) : begin;
}

/// Of one product of queries and keys.
double product_flop(const Case& c) {
  double pairs = 0;
  for (std::int64_t i = 0; i < c.sequence; ++i) pairs += static_cast<double>(i - first_key(c, i) + 1);
  return 2 * pairs * static_cast<double>(c.batch * c.heads * c.head_dim);
}

/// Everything that one case works on.
struct Operands {
  Arrays arrays;
  kernels::AttentionShape shape;
  bf16 *q, *k, *v, *out, *d_out, *dq, *dk, *dv;
  float* lse;
  std::span<std::byte> workspace;

  explicit Operands(const Case& c) {
    const std::int64_t q_width = c.heads * c.head_dim, k_width = c.kv_heads * c.head_dim, tokens = c.batch * c.sequence;
    shape = {c.batch, c.sequence, c.sequence, c.heads, c.kv_heads, c.head_dim,
             q_width, k_width,    k_width,    q_width, c.window,   1 / std::sqrt(static_cast<float>(c.head_dim))};
    for (bf16** x : {&q, &out, &d_out, &dq}) *x = arrays.make<bf16>(tokens * q_width);
    for (bf16** x : {&k, &v, &dk, &dv}) *x = arrays.make<bf16>(tokens * k_width);
    lse = arrays.make<float>(tokens * c.heads);
    const std::uint64_t bytes = cuda::attention_workspace_bytes(shape, Dtype::bf16);
    workspace = {reinterpret_cast<std::byte*>(arrays.make<float>(static_cast<std::int64_t>(bytes / 4))), bytes};
    if (c.document > 0) {
      std::vector<std::int32_t> positions;
      for (std::int64_t i = 0; i < tokens; ++i)
        positions.push_back(static_cast<std::int32_t>(i % c.sequence % c.document));
      auto* const at = arrays.make<std::int32_t>(tokens);
      check(cudaMemcpy(at, positions.data(), positions.size() * sizeof(positions[0]), cudaMemcpyHostToDevice), "fill");
      shape.positions = at;
    }
  }
  void forward(Stream& on) { cuda::attention_forward(shape, q, k, v, out, lse, workspace, on); }
  void backward(Stream& on) { cuda::attention_backward(shape, q, k, v, out, d_out, lse, dq, dk, dv, workspace, on); }
};

/// A large multiply: what matrix units reach here and now.
class Multiply {
 public:
  explicit Multiply(std::int64_t size) : size_(size) {
    Result<std::unique_ptr<cuda::Gemm>> made = cuda::Gemm::create({});
    if (!made) check(Status(made.error()));
    gemm_ = std::move(*made);
    auto *a = arrays_.make<bf16>(size * size), *b = arrays_.make<bf16>(size * size),
         *c = arrays_.make<bf16>(size * size);
    call_ = {{a, Dtype::bf16, size, false}, {b, Dtype::bf16, size, true}, {c, Dtype::bf16, size}, size, size, size};
    const std::uint64_t bytes = cuda::gemm_workspace_bytes(size, size, size, Dtype::bf16, Dtype::bf16);
    workspace_ = {reinterpret_cast<std::byte*>(arrays_.make<float>(static_cast<std::int64_t>(bytes / 4))), bytes};
  }
  void run(Stream& on) { check(gemm_->multiply(call_, workspace_, on)); }
  double flop() const { return 2 * std::pow(static_cast<double>(size_), 3); }

 private:
  Arrays arrays_;
  std::int64_t size_;
  std::unique_ptr<cuda::Gemm> gemm_;
  cuda::GemmCall call_;
  std::span<std::byte> workspace_;
};

struct Pass {
  const char *by, *name;
  double products;
  std::uint64_t workspace_bytes;
  std::function<void()> run;
};

/// Ours, and cuDNN's if it has a plan for the shape; `scratch` keeps its workspace.
std::vector<Pass> passes_of(Operands& o, cuda::CudnnAttention* cudnn, Arrays& scratch, Stream& on) {
  std::vector<Pass> passes{{"sluice", "forward", 2, 0, [&] { o.forward(on); }},
                           {"sluice", "backward", 5, o.workspace.size(), [&] { o.backward(on); }}};
  if (cudnn == nullptr) return passes;
  const Result<cuda::CudnnAttention::Workspace> bytes = cudnn->prepare(o.shape);
  if (!bytes) return passes;
  const std::uint64_t most = std::max(bytes->forward, bytes->backward) / 4 * 4 + 4;
  const std::span<std::byte> space(
      reinterpret_cast<std::byte*>(scratch.make<float>(static_cast<std::int64_t>(most / 4))), most);
  passes.push_back({"cuDNN", "forward", 2, bytes->forward, [&o, &on, cudnn, space] {
                      check(cudnn->forward(o.shape, o.q, o.k, o.v, o.out, o.lse, space, on));
                    }});
  passes.push_back({"cuDNN", "backward", 5, bytes->backward, [&o, &on, cudnn, space] {
                      check(
                          cudnn->backward(o.shape, o.q, o.k, o.v, o.out, o.d_out, o.lse, o.dq, o.dk, o.dv, space, on));
                    }});
  return passes;
}

int run(int argc, char** argv) {
  const CudaOptions options = cuda_options("bench_cuda_attention", argc, argv);
  Stream stream(nullptr);
  Multiply multiply(options.smoke ? 64 : 8192);
  Result<std::unique_ptr<cuda::CudnnAttention>> cudnn = cuda::CudnnAttention::create();
  if (!cudnn) std::printf("without cuDNN: %s\n", cudnn.error().message.c_str());
  std::vector<std::string> json;
  std::printf("%-26s %-7s %-9s %9s %10s %9s %9s %7s %9s\n", "shape", "by", "pass", "GFLOP", "us", "TFLOP/s", "multiply",
              "ratio", "MiB used");
  for (const Case& c : options.smoke ? std::span<const Case>(smoke_cases) : full_cases) {
    if (std::string(c.name).find(options.filter) == std::string::npos) continue;
    Arrays scratch;
    Operands o(c);
    const std::vector<Pass> passes = passes_of(o, cudnn ? cudnn->get() : nullptr, scratch, stream);
    std::vector<std::function<void()>> work{[&] { multiply.run(stream); }};
    for (const Pass& pass : passes) work.push_back(pass.run);
    const auto seconds = rounds(stream, options.rounds, options.smoke ? 1 : 2, work);
    for (std::size_t i = 0; i < passes.size(); ++i) {
      const Pass& pass = passes[i];
      const auto& took = seconds[i + 1];
      const double flop = pass.products * product_flop(c), s = median(took);
      const double ratio = median_ratio(seconds[0], took) * flop / multiply.flop();
      std::printf("%-26s %-7s %-9s %9.1f %10.1f %9.1f %9.1f %7.3f %9.1f\n", c.name, pass.by, pass.name, flop / 1e9,
                  s * 1e6, flop / s / 1e12, multiply.flop() / median(seconds[0]) / 1e12, ratio,
                  static_cast<double>(pass.workspace_bytes) / (1 << 20));
      json.push_back(
          text("\"name\": \"%s\", \"by\": \"%s\", \"pass\": \"%s\", \"flop\": %.6g, \"seconds\": %.9g, "
               "\"flops\": %.6g, \"multiply_flops\": %.6g, \"ratio\": %.4f, \"workspace_bytes\": %llu",
               c.name, pass.by, pass.name, flop, s, flop / s, multiply.flop() / median(seconds[0]), ratio,
               static_cast<unsigned long long>(pass.workspace_bytes)));
    }
  }
  write_json(options, json);
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) { return sluice::run(argc, argv); }
