// Memory-bound CUDA kernels against what the device's memory gives to a copy.
//
//     bench_cuda_kernels [--smoke] [--json FILE] [--rounds N] [part of a name]
//
// Every kernel works on arrays of a 7B Llama's shapes, random and several times as large as the device's cache. Its
// bytes are those of each operand read once and each result written once. In each round every kernel is timed by events
// beside a device-to-device copy of the same moment; figures are medians over rounds, the ratio that of rates within a
// round. Exits with status 2 where there is no device.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/cuda/adamw.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/copy.h"
#include "kernels/cuda/cross_entropy.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/quantize.h"
#include "sluice/random.h"

namespace sluice {
namespace {

using kernels::cuda::Stream;

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "bench_cuda_kernels: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/// Device arrays, filled with what their users can compute with: normal numbers, or those of one sign, or any bits.
class Arrays {
 public:
  enum class Fill { normal_f32, positive_f32, normal_bf16, positive_bf16, bits };

  template <class T>
  T* make(std::int64_t n, Fill fill) {
    void* p = nullptr;
    const auto bytes = static_cast<std::size_t>(n) * sizeof(T);
    check(cudaMalloc(&p, bytes), "cudaMalloc");
    all_.push_back(p);
    const auto& from = pattern(fill);
    for (std::size_t at = 0; at < bytes; at += from.size())
      check(cudaMemcpy(static_cast<std::byte*>(p) + at, from.data(), std::min(from.size(), bytes - at),
                       cudaMemcpyHostToDevice),
            "fill");
    return static_cast<T*>(p);
  }
  float* f32(std::int64_t n) { return make<float>(n, Fill::normal_f32); }
  bf16* b16(std::int64_t n) { return make<bf16>(n, Fill::normal_bf16); }
  void clear() {
    for (void* p : all_) check(cudaFree(p), "cudaFree");
    all_.clear();
  }
  Arrays() = default;
  Arrays(const Arrays&) = delete;
  Arrays& operator=(const Arrays&) = delete;
  ~Arrays() { clear(); }

 private:
  /// A few MiB that are repeated; prime lengths would be no better, since no kernel compares arrays.
  const std::vector<std::byte>& pattern(Fill fill) {
    std::vector<std::byte>& made = patterns_[static_cast<std::size_t>(fill)];
    if (!made.empty()) return made;
    constexpr std::size_t words = 1 << 20;
    made.resize(words * 4);
    for (std::size_t i = 0; i < words; ++i) {
      std::uint32_t word = philox(1, i, 0)[0];
      const auto x = static_cast<float>(philox_normal(2, i, 0));
      if (fill == Fill::normal_f32) word = std::bit_cast<std::uint32_t>(x);
      if (fill == Fill::positive_f32) word = std::bit_cast<std::uint32_t>(x * x + 1e-3f);
      if (fill == Fill::normal_bf16 || fill == Fill::positive_bf16) {
        const auto y = static_cast<float>(philox_normal(3, i, 0));
        word = to_bf16(x).bits | static_cast<std::uint32_t>(to_bf16(y).bits) << 16;
        if (fill == Fill::positive_bf16) word &= 0x7fff7fffu;
      }
      std::memcpy(made.data() + 4 * i, &word, 4);
    }
    return made;
  }
  std::vector<void*> all_;
  std::vector<std::byte> patterns_[5];
};

struct Case {
  std::string name;
  double bytes = 0;
  std::function<void(Stream&)> run;
};

struct Shape {
  std::int64_t tokens = 16384, width = 4096, hidden = 11008, heads = 32, head_dim = 128, sequence = 4096,
               vocabulary = 32000, head_tokens = 4096, parameters = 128 << 20;
  static Shape smoke() { return {64, 256, 352, 2, 128, 32, 1003, 16, 5000}; }
};

using Group = std::function<std::vector<Case>(Arrays&, const Shape&)>;

std::vector<Case> pointwise(Arrays& a, const Shape& s) {
  const std::int64_t n = s.tokens * s.width, wide = s.tokens * s.hidden;
  float *f = a.f32(n), *sum = a.f32(n);
  bf16 *x = a.b16(n), *y = a.b16(n), *z = a.b16(n), *bias = a.b16(s.width);
  bf16 *gate = a.b16(wide), *up = a.b16(wide), *h = a.b16(wide), *d_gate = a.b16(wide), *d_up = a.b16(wide);
  auto* d_bias = a.f32(s.width);
  auto* work = a.f32(kernels::cuda::bias_gradient_workspace_floats(s.tokens, s.width));
  float *part_lse = a.f32(s.tokens * s.heads), *lse = a.f32(s.tokens * s.heads);
  const kernels::AttentionShape heads{
      .queries = s.tokens, .keys = s.tokens, .heads = s.heads, .head_dim = s.head_dim, .out_stride = s.width};
  const auto d = static_cast<double>(n), w = static_cast<double>(wide);
  namespace k = kernels::cuda;
  return {
      {"widen", 6 * d, [=](Stream& on) { k::widen(x, f, n, on); }},
      {"narrow", 6 * d, [=](Stream& on) { k::narrow(f, x, n, on); }},
      {"add_f32", 12 * d, [=](Stream& on) { k::add_f32(f, sum, n, on); }},
      {"add_widened bf16", 10 * d, [=](Stream& on) { k::add_widened(x, sum, n, on); }},
      {"attention_merge bf16", 10 * d, [=](Stream& on) { k::attention_merge(heads, x, part_lse, false, f, lse, on); }},
      {"add bf16", 6 * d, [=](Stream& on) { k::add(x, y, z, n, on); }},
      {"add_bias bf16", 4 * d, [=](Stream& on) { k::add_bias(z, s.width, bias, s.tokens, s.width, on); }},
      {"add_sum bf16", 8 * d, [=](Stream& on) { k::add_sum(x, f, bias, z, s.tokens, s.width, on); }},
      {"bias_gradient bf16", 2 * d,
       [=](Stream& on) { k::bias_gradient(y, s.width, s.tokens, s.width, d_bias, work, on); }},
      {"gelu_forward bf16", 4 * d, [=](Stream& on) { k::gelu_forward(x, z, n, on); }},
      {"gelu_backward bf16", 8 * d, [=](Stream& on) { k::gelu_backward(x, y, z, n, on); }},
      {"swiglu_forward bf16", 6 * w,
       [=](Stream& on) { k::swiglu_forward(gate, up, s.hidden, s.tokens, s.hidden, h, s.hidden, on); }},
      {"swiglu_backward bf16", 12 * w,
       [=](Stream& on) {
         k::swiglu_backward(gate, up, s.hidden, h, s.hidden, s.tokens, s.hidden, d_gate, d_up, s.hidden, on);
       }},
      {"fill_f32", 4 * d, [=](Stream& on) { k::fill_f32(sum, 0.5f, n, on); }},
      {"copy_rows (slice of a matrix)", 2 * d,
       [=](Stream& on) { k::copy_rows(x, s.width * 2, z, s.width, s.width, s.tokens, on); }},
  };
}

std::vector<Case> norms(Arrays& a, const Shape& s) {
  const std::int64_t n = s.tokens * s.width;
  bf16 *x = a.b16(n), *y = a.b16(n), *dy = a.b16(n), *dx = a.b16(n), *w = a.b16(s.width), *b = a.b16(s.width);
  auto* mean = a.make<float>(s.tokens, Arrays::Fill::positive_f32);
  auto* rstd = a.make<float>(s.tokens, Arrays::Fill::positive_f32);
  auto *d_weight = a.f32(s.width), *d_bias = a.f32(s.width);
  auto* work = a.f32(kernels::cuda::norm_workspace_floats(s.tokens, s.width));
  const auto d = static_cast<double>(n);
  namespace k = kernels::cuda;
  const auto backward = [=](bool add) {
    return [=](Stream& on) {
      k::rmsnorm_backward(x, s.width, w, rstd, dy, s.width, s.tokens, s.width, dx, s.width, add, d_weight, work, on);
    };
  };
  return {
      {"rmsnorm_forward bf16", 4 * d,
       [=](Stream& on) { k::rmsnorm_forward(x, s.width, w, 1e-5f, s.tokens, s.width, y, s.width, rstd, on); }},
      {"rmsnorm_backward bf16", 6 * d, backward(false)},
      {"rmsnorm_backward bf16, added", 8 * d, backward(true)},
      {"layernorm_forward bf16", 4 * d,
       [=](Stream& on) { k::layernorm_forward(x, w, b, 1e-5f, s.tokens, s.width, y, mean, rstd, on); }},
      {"layernorm_backward bf16", 6 * d,
       [=](Stream& on) {
         k::layernorm_backward(x, w, mean, rstd, dy, s.tokens, s.width, dx, false, d_weight, d_bias, work, on);
       }},
  };
}

/// Words as a text has them: word r about 1 / r times as often as the first.
std::vector<std::int32_t> words_of_text(std::int64_t count, std::int64_t vocabulary) {
  std::vector<std::int32_t> out;
  for (std::int64_t t = 0; t < count; ++t) {
    const double u = philox_uniform(5, static_cast<std::uint64_t>(t), 0);
    out.push_back(static_cast<std::int32_t>(std::pow(static_cast<double>(vocabulary), u)) - 1);
  }
  return out;
}

std::vector<Case> positions(Arrays& a, const Shape& s) {
  const std::int64_t n = s.tokens * s.width, half = s.head_dim / 2;
  bf16 *x = a.b16(n), *table = a.b16(s.vocabulary * s.width);
  float *cos = a.f32(s.sequence * half), *sin = a.f32(s.sequence * half), *d_table = a.f32(s.vocabulary * s.width);
  auto* tokens = a.make<std::int32_t>(s.tokens, Arrays::Fill::bits);
  const auto text = words_of_text(s.tokens, s.vocabulary);
  check(cudaMemcpy(tokens, text.data(), text.size() * sizeof(text[0]), cudaMemcpyHostToDevice), "tokens");
  auto distinct = text;
  std::sort(distinct.begin(), distinct.end());
  const auto rows = static_cast<double>(std::unique(distinct.begin(), distinct.end()) - distinct.begin());
  const auto d = static_cast<double>(n);
  namespace k = kernels::cuda;
  return {
      {"rope bf16", 4 * d,
       [=](Stream& on) {
         k::rope(x, s.width, s.tokens, s.sequence, 0, s.heads, s.head_dim, cos, sin, false, nullptr, on);
       }},
      {"embed_forward bf16", 2 * d + 2 * rows * static_cast<double>(s.width),
       [=](Stream& on) {
         k::embed_forward<bf16>(tokens, s.tokens, s.sequence, 0, table, nullptr, s.width, x, nullptr, on);
       }},
      {"embed_backward bf16", 2 * d + 8 * rows * static_cast<double>(s.width),
       [=](Stream& on) { k::embed_backward(tokens, s.tokens, s.sequence, x, s.width, d_table, nullptr, nullptr, on); }},
  };
}

std::vector<Case> head(Arrays& a, const Shape& s) {
  const std::int64_t n = s.head_tokens * s.vocabulary;
  float *logits = a.f32(n), *loss = a.f32(s.head_tokens);
  auto* parts = a.make<kernels::VocabularyPart>(s.head_tokens, Arrays::Fill::positive_f32);
  auto* targets = a.make<std::int32_t>(s.head_tokens, Arrays::Fill::bits);
  const auto text = words_of_text(s.head_tokens, s.vocabulary);
  check(cudaMemcpy(targets, text.data(), text.size() * sizeof(text[0]), cudaMemcpyHostToDevice), "targets");
  const auto d = static_cast<double>(n);
  namespace k = kernels::cuda;
  return {
      {"cross_entropy_forward", 4 * d,
       [=](Stream& on) {
         k::cross_entropy_forward(logits, s.vocabulary, targets, s.head_tokens, s.vocabulary, loss, on);
       }},
      {"cross_entropy_forward_backward", 8 * d,
       [=](Stream& on) {
         k::cross_entropy_forward_backward(logits, s.vocabulary, targets, s.head_tokens, s.vocabulary, 1.0f, loss, on);
       }},
      {"cross_entropy_part", 4 * d,
       [=](Stream& on) {
         k::cross_entropy_part(logits, s.vocabulary, targets, s.head_tokens, s.vocabulary, parts, on);
       }},
      {"cross_entropy_of_parts_forward_backward", 8 * d,
       [=](Stream& on) {
         k::cross_entropy_of_parts_forward_backward(logits, s.vocabulary, targets, s.head_tokens, s.vocabulary, parts,
                                                    1, s.head_tokens, 1.0f, loss, on);
       }},
  };
}

std::vector<Case> optimizer(Arrays& a, const Shape& s) {
  const std::int64_t n = s.parameters;
  const auto d = static_cast<double>(n);
  bf16 *p = a.b16(n), *g16 = a.b16(n);
  auto* r = a.make<std::int16_t>(n, Arrays::Fill::bits);
  float *m = a.f32(n), *v = a.make<float>(n, Arrays::Fill::positive_f32), *g = a.f32(n);
  bf16 *m16 = a.b16(n), *v16 = a.make<bf16>(n, Arrays::Fill::positive_bf16);
  auto *m8 = a.make<std::int8_t>(n, Arrays::Fill::bits), *v8 = a.make<std::int8_t>(n, Arrays::Fill::bits);
  auto* scale_m = a.make<float>(n / 256 + 1, Arrays::Fill::positive_f32);
  auto* scale_v = a.make<float>(n / 256 + 1, Arrays::Fill::positive_f32);
  const std::pair<void*, void*> stored[] = {{m, v}, {m16, v16}, {m8, v8}};  // as MomentFormat counts
  auto* diverged = a.make<std::uint64_t>(1, Arrays::Fill::bits);
  auto* sum = a.make<double>(1, Arrays::Fill::bits);
  auto* work = a.make<double>(n / 4096 + 1, Arrays::Fill::bits);
  AdamwStep step;
  step.step = 1000;
  step.lr = 1e-6f;
  step.rounding_key = 7;
  namespace k = kernels::cuda;
  std::vector<Case> all;
  for (const MomentFormat moments : {MomentFormat::f32, MomentFormat::bf16, MomentFormat::int8})
    for (const Dtype gradient : {Dtype::f32, Dtype::bf16}) {
      AdamwRange range;
      range.gradient_dtype = gradient;
      range.moments = moments;
      range.parameter = p;
      range.remainder = r;
      std::tie(range.exp_avg, range.exp_avg_sq) = stored[static_cast<std::size_t>(moments)];
      range.exp_avg_scales = scale_m;
      range.exp_avg_sq_scales = scale_v;
      range.gradient = gradient == Dtype::f32 ? static_cast<void*>(g) : static_cast<void*>(g16);
      range.numel = n;
      const double bytes = 8 + 4 * static_cast<double>(moment_bytes(moments)) +
                           static_cast<double>(dtype_bytes(gradient)) +
                           (moments == MomentFormat::int8 ? 16.0 / 256 : 0);
      all.push_back(
          {std::string("adamw ") + moment_format_name(moments) + " moments, " + dtype_name(gradient) + " gradient",
           bytes * d, [=](Stream& on) { k::adamw(step, range, diverged, on); }});
    }
  all.push_back({"split_master", 8 * d, [=](Stream& on) { k::split_master(g, p, r, n, on); }});
  all.push_back({"join_master", 8 * d, [=](Stream& on) { k::join_master(p, r, g, n, on); }});
  all.push_back({"add_squared_norm", 4 * d, [=](Stream& on) { k::add_squared_norm(m, n, sum, work, on); }});
  return all;
}

template <class T>
void add_quantized(std::vector<Case>& cases, T* x, const Quantization& q, std::uint8_t* codes, float* scales,
                   std::int64_t n) {
  const std::string kind = std::string(sizeof(T) == 4 ? " f32, " : " bf16, ") +
                           (q.format == CodeFormat::e4m3 ? "e4m3" : "int" + std::to_string(q.bits)) + " by " +
                           std::to_string(q.block);
  const double bytes = static_cast<double>(n) * sizeof(T) + static_cast<double>(quantized_bytes(n, q));
  namespace k = kernels::cuda;
  cases.push_back({"quantize" + kind, bytes, [=](Stream& on) { k::quantize(x, n, q, codes, scales, on); }});
  cases.push_back({"dequantize" + kind, bytes, [=](Stream& on) { k::dequantize(codes, scales, n, q, x, on); }});
  if constexpr (sizeof(T) == 4)
    cases.push_back({"dequantize_add" + kind, bytes + 4 * static_cast<double>(n),
                     [=](Stream& on) { k::dequantize_add(codes, scales, n, q, x, on); }});
}

std::vector<Case> quantization(Arrays& a, const Shape& s) {
  const std::int64_t n = s.parameters;
  float* f = a.f32(n);
  bf16* x = a.b16(n);
  auto* codes = a.make<std::uint8_t>(n, Arrays::Fill::bits);
  auto* scales = a.make<float>(n / 32 + 1, Arrays::Fill::positive_f32);
  std::vector<Case> all;
  for (const std::int64_t block : {32, 256, 2048})
    for (const Quantization& q :
         {Quantization{8, block}, Quantization{4, block}, Quantization{8, block, CodeFormat::e4m3}}) {
      add_quantized(all, f, q, codes, scales, n);
      add_quantized(all, x, q, codes, scales, n);
    }
  return all;
}

/// Seconds of one call, from events around `calls` of them.
class Clock {
 public:
  Clock() {
    check(cudaEventCreate(&begin_), "cudaEventCreate");
    check(cudaEventCreate(&end_), "cudaEventCreate");
  }
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;
  ~Clock() {
    static_cast<void>(cudaEventDestroy(begin_));
    static_cast<void>(cudaEventDestroy(end_));
  }
  double seconds(Stream& on, int calls, const std::function<void(Stream&)>& f) {
    check(cudaEventRecord(begin_, on.handle()), "cudaEventRecord");
    for (int i = 0; i < calls; ++i) f(on);
    check(cudaEventRecord(end_, on.handle()), "cudaEventRecord");
    if (const Status& status = on.synchronize(); !status) {
      std::fprintf(stderr, "bench_cuda_kernels: %s\n", status.error().message.c_str());
      std::exit(1);
    }
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    return static_cast<double>(milliseconds) / 1e3 / calls;
  }

 private:
  cudaEvent_t begin_{}, end_{};
};

struct Row {
  std::string name;
  double bytes, seconds, rate, copy_rate, ratio, worst, best;
};

struct Options {
  bool smoke = false;
  std::string json, filter;
  int rounds = 15;
};

std::vector<Row> measure(const Group& group, const Options& options, Clock& clock, Stream& on) {
  const Shape shape = options.smoke ? Shape::smoke() : Shape();
  Arrays arrays;
  const std::int64_t copy_bytes = options.smoke ? 1 << 16 : std::int64_t{512} << 20;
  auto *from = arrays.make<std::byte>(copy_bytes, Arrays::Fill::bits),
       *to = arrays.make<std::byte>(copy_bytes, Arrays::Fill::bits);
  const auto copy = [=](Stream& s) {
    check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(copy_bytes), cudaMemcpyDeviceToDevice, s.handle()),
          "copy");
  };
  std::vector<Case> cases = group(arrays, shape);
  std::erase_if(cases, [&](const Case& c) { return c.name.find(options.filter) == std::string::npos; });
  std::vector<std::vector<double>> seconds(cases.size()), copies(cases.size()), ratios(cases.size());
  const int calls = options.smoke ? 1 : 4;
  for (int round = -1; round < options.rounds; ++round)  // the first one warms up
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const double copied = 2 * static_cast<double>(copy_bytes) / clock.seconds(on, calls, copy);
      const double took = clock.seconds(on, calls, cases[i].run);
      if (round < 0) continue;
      seconds[i].push_back(took);
      copies[i].push_back(copied);
      ratios[i].push_back(cases[i].bytes / took / copied);
    }
  std::vector<Row> rows;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const double s = median(seconds[i]);
    rows.push_back({cases[i].name, cases[i].bytes, s, cases[i].bytes / s, median(copies[i]), median(ratios[i]),
                    *std::min_element(ratios[i].begin(), ratios[i].end()),
                    *std::max_element(ratios[i].begin(), ratios[i].end())});
  }
  return rows;
}

bool write_json(const std::string& path, const cudaDeviceProp& device, int driver, const Options& options,
                const std::vector<Row>& rows) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return false;
  std::fprintf(file,
               "{\"schema\": 1, \"device\": \"%s\", \"compute_capability\": \"%d.%d\", \"multiprocessors\": %d, "
               "\"cuda_driver\": %d, \"cuda_runtime\": %d, \"smoke\": %s, \"rounds\": %d, \"kernels\": [",
               device.name, device.major, device.minor, device.multiProcessorCount, driver, CUDART_VERSION,
               options.smoke ? "true" : "false", options.rounds);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& r = rows[i];
    std::fprintf(file,
                 "%s\n  {\"name\": \"%s\", \"bytes\": %.0f, \"seconds\": %.9g, \"bytes_per_second\": %.6g, "
                 "\"copy_bytes_per_second\": %.6g, \"ratio\": %.4f, \"ratio_least\": %.4f, \"ratio_most\": %.4f}",
                 i == 0 ? "" : ",", r.name.c_str(), r.bytes, r.seconds, r.rate, r.copy_rate, r.ratio, r.worst, r.best);
  }
  std::fprintf(file, "\n]}\n");
  return std::fclose(file) == 0;
}

int run(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--smoke") {
      options.smoke = true;
      options.rounds = 2;
    } else if (arg == "--json" && i + 1 < argc) {
      options.json = argv[++i];
    } else if (arg == "--rounds" && i + 1 < argc && std::atoi(argv[i + 1]) > 0) {
      options.rounds = std::atoi(argv[++i]);
    } else if (arg[0] != '-' && options.filter.empty()) {
      options.filter = arg;
    } else {
      std::fprintf(stderr, "bench_cuda_kernels: '%s' is not one of --smoke, --json FILE, --rounds N, part of a name\n",
                   argv[i]);
      return 2;
    }
  }
  int count = 0, driver = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess || count == 0) {
    std::fprintf(stderr, "bench_cuda_kernels: no CUDA device: %s\n",
                 error != cudaSuccess ? cudaGetErrorString(error) : "the driver knows none");
    return 2;
  }
  cudaDeviceProp device{};
  check(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  Stream stream(nullptr);
  Clock clock;
  std::vector<Row> rows;
  for (const Group& group :
       {Group(pointwise), Group(norms), Group(positions), Group(head), Group(optimizer), Group(quantization)})
    for (Row& row : measure(group, options, clock, stream)) rows.push_back(std::move(row));
  std::printf("%s, %d multiprocessors; %d rounds, medians\n", device.name, device.multiProcessorCount, options.rounds);
  std::printf("%-40s %9s %10s %9s %9s %7s  %s\n", "kernel", "MB", "us", "GB/s", "copy", "ratio", "of rounds");
  for (const Row& r : rows)
    std::printf("%-40s %9.1f %10.2f %9.1f %9.1f %7.3f  %.3f .. %.3f\n", r.name.c_str(), r.bytes / 1e6, r.seconds * 1e6,
                r.rate / 1e9, r.copy_rate / 1e9, r.ratio, r.worst, r.best);
  if (!options.json.empty() && !write_json(options.json, device, driver, options, rows)) {
    std::fprintf(stderr, "bench_cuda_kernels: %s cannot be written\n", options.json.c_str());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) { return sluice::run(argc, argv); }
