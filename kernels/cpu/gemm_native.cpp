#include "kernels/cpu/gemm_native.h"

#include <omp.h>

#include <algorithm>
#include <array>
#include <compare>
#include <map>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <string_view>

#include "kernels/cpu/parallel.h"
#include "sluice/status.h"

#ifdef __SANITIZE_THREAD__
/// ThreadSanitizer asks programs for this by name. oneDNN has teams of libgomp's, whose barriers it does not see.
extern "C" const char* __tsan_default_suppressions() { return "called_from_lib:libdnnl.so\n"; }
#endif

namespace sluice::kernels {
namespace {

dnnl::memory::data_type type_of(Dtype t) {
  return t == Dtype::f32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
}

struct Key {
  std::int64_t m, n, k, a_ld, b_ld, c_ld;
  Dtype operands, result;
  bool a_transposed, b_transposed, accumulate;
  int threads;  // a primitive is made for one team size
  auto operator<=>(const Key&) const = default;
};

/// A primitive with the memory objects that its arguments go through.
struct Primitive {
  dnnl::matmul matmul;
  std::array<dnnl::memory, 4> memory;  // a, b, c, scratchpad
  std::uint64_t scratchpad_bytes = 0;
};

dnnl::memory::dims strides(std::int64_t ld, bool transposed) {
  return transposed ? dnnl::memory::dims{1, ld} : dnnl::memory::dims{ld, 1};
}

/// For the calling thread's team.
dnnl::matmul::primitive_desc describe(const Key& key, const dnnl::engine& engine) {
  using dnnl::memory;
  const memory::desc a({key.m, key.k}, type_of(key.operands), strides(key.a_ld, key.a_transposed));
  const memory::desc b({key.k, key.n}, type_of(key.operands), strides(key.b_ld, key.b_transposed));
  const memory::desc c({key.m, key.n}, type_of(key.result), strides(key.c_ld, false));
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (key.accumulate) {
    dnnl::post_ops add;
    add.append_sum(1.0f);
    attributes.set_post_ops(add);
  }
  return {{a, b, c}, attributes, engine, /*allow_empty=*/true};
}

bool optimised(const dnnl::matmul::primitive_desc& description) {
  return description && !std::string_view(description.impl_info_str()).starts_with("ref");
}

/// Primitives of one calling thread. Its oneDNN objects are used by that thread alone, so that nothing is locked.
class PrimitiveCache {
 public:
  /// nullptr: oneDNN has no optimised primitive for this problem.
  Primitive* find(const Key& key) {
    auto [at, is_new] = primitives_.try_emplace(key);
    if (is_new) at->second = make(key);
    return at->second.get();
  }
  dnnl::stream& stream() { return stream_; }

 private:
  std::unique_ptr<Primitive> make(const Key& key) {
    const dnnl::matmul::primitive_desc description = describe(key, engine_);
    if (!optimised(description)) return nullptr;
    auto made = std::make_unique<Primitive>();
    made->matmul = dnnl::matmul(description);
    made->memory = {dnnl::memory(description.src_desc(), engine_, nullptr),
                    dnnl::memory(description.weights_desc(), engine_, nullptr),
                    dnnl::memory(description.dst_desc(), engine_, nullptr),
                    dnnl::memory(description.scratchpad_desc(), engine_, nullptr)};
    made->scratchpad_bytes = description.scratchpad_desc().get_size();
    return made;
  }

  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  std::map<Key, std::unique_ptr<Primitive>> primitives_;
};

PrimitiveCache& cache_of_this_thread() {
  thread_local PrimitiveCache cache;
  return cache;
}

}  // namespace

bool native_gemm(const ConstMatrix& a, const ConstMatrix& b, const Matrix& c, std::int64_t m, std::int64_t n,
                 std::int64_t k, bool accumulate, std::span<std::byte> workspace) {
  PrimitiveCache& cache = cache_of_this_thread();
  Primitive* p = cache.find(
      {m, n, k, a.ld, b.ld, c.ld, a.dtype, c.dtype, a.transposed, b.transposed, accumulate, omp_get_max_threads()});
  if (p == nullptr || p->scratchpad_bytes > workspace.size()) return false;
  auto& [a_memory, b_memory, c_memory, scratchpad] = p->memory;
  a_memory.set_data_handle(const_cast<void*>(a.data), cache.stream());
  b_memory.set_data_handle(const_cast<void*>(b.data), cache.stream());
  c_memory.set_data_handle(c.data, cache.stream());
  scratchpad.set_data_handle(workspace.data(), cache.stream());
  const std::array<dnnl_exec_arg_t, 4> arguments{{{DNNL_ARG_SRC, a_memory.get()},
                                                  {DNNL_ARG_WEIGHTS, b_memory.get()},
                                                  {DNNL_ARG_DST, c_memory.get()},
                                                  {DNNL_ARG_SCRATCHPAD, scratchpad.get()}}};
  const dnnl_status_t status = dnnl_primitive_execute(p->matmul.get(), cache.stream().get(),
                                                      static_cast<int>(arguments.size()), arguments.data());
  SLUICE_CHECK(status == dnnl_success, "oneDNN matmul %lldx%lldx%lld: status %d", static_cast<long long>(m),
               static_cast<long long>(n), static_cast<long long>(k), static_cast<int>(status));
  return true;
}

std::uint64_t native_scratchpad_bytes(std::int64_t m, std::int64_t n, std::int64_t k, Dtype result) {
  struct Shape {
    std::int64_t m, n, k;
    Dtype result;
    auto operator<=>(const Shape&) const = default;
  };
  thread_local std::map<Shape, std::uint64_t> known;
  const auto [at, is_new] = known.try_emplace({m, n, k, result});
  std::uint64_t& most = at->second;
  if (!is_new) return most;
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const int team = omp_get_max_threads(), all = machine_cores();
  omp_set_num_threads(all);
  const auto ask = [&](bool a_transposed, bool b_transposed, bool accumulate) {
    const Key key{m,          n,           k,      a_transposed ? m : k, b_transposed ? k : n,
                  n,          Dtype::bf16, result, a_transposed,         b_transposed,
                  accumulate, all};
    const dnnl::matmul::primitive_desc description = describe(key, engine);
    if (optimised(description)) most = std::max(most, description.scratchpad_desc().get_size());
  };
  ask(false, true, false);
  ask(false, false, false);
  if (result == Dtype::f32)
    for (const bool accumulate : {false, true}) ask(true, false, accumulate);
  omp_set_num_threads(team);
  return most;
}

bool native_bf16_available() {
  const dnnl::cpu_isa isa = dnnl::get_effective_cpu_isa();
  return isa == dnnl::cpu_isa::avx512_core_bf16 || isa == dnnl::cpu_isa::avx512_core_amx;
}

}  // namespace sluice::kernels
