#include "kernels/cuda/attention_cudnn.h"

#include <array>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#ifdef SLUICE_HAS_CUDNN
#include "kernels/cuda/cudnn_graph.h"
#include "sluice/round.h"
#endif

namespace sluice::kernels::cuda {

#ifndef SLUICE_HAS_CUDNN

Result<std::unique_ptr<CudnnAttention>> CudnnAttention::create() {
  return fault("sluice was built without the headers of cuDNN");
}

#else

namespace {

enum Id : std::int64_t {
  q_id = 1,
  k_id,
  v_id,
  out_id,
  lse_id,
  d_out_id,
  delta_id,
  dq_id,
  dk_id,
  dv_id,
  scale_id,
  hidden_id,
  window_id,
  one_id
};
using Tensor = CudnnGraph::Tensor;
using Four = CudnnGraph::Four;

/// The tensors that both graphs have, and the scores. cuDNN counts in [batch, head, token, column].
struct Scores {
  const AttentionShape& s;
  CudnnGraph& graph;
  Tensor scale = graph.scalar(scale_id, CUDNN_DATA_FLOAT);
  Tensor q = graph.in_memory(q_id, {s.batch, s.heads, s.queries, s.head_dim}, strides(s.q_stride, s.queries),
                             CUDNN_DATA_BFLOAT16);
  Tensor lse = graph.in_memory(lse_id, {s.batch, s.heads, s.queries, 1}, {s.heads * s.queries, s.queries, 1, 1},
                               CUDNN_DATA_FLOAT);

  Four strides(std::int64_t token, std::int64_t tokens) const { return {tokens * token, s.head_dim, token, 1}; }
  Four square() const { return {s.batch, s.heads, s.queries, s.keys}; }
  Four column() const { return {s.batch, s.heads, s.queries, 1}; }
  /// Keys or values as they lie, and with tokens as columns.
  Tensor rows(Id id, std::int64_t token) const {
    return graph.in_memory(id, {s.batch, s.kv_heads, s.keys, s.head_dim}, strides(token, s.keys), CUDNN_DATA_BFLOAT16);
  }
  Tensor columns(Id id, std::int64_t token) const {
    const Four n = strides(token, s.keys);
    return graph.in_memory(id, {s.batch, s.kv_heads, s.head_dim, s.keys}, {n[0], n[1], n[3], n[2]},
                           CUDNN_DATA_BFLOAT16);
  }
  /// Of queries and outputs.
  Tensor query_rows(Id id, std::int64_t token) const {
    return graph.in_memory(id, {s.batch, s.heads, s.queries, s.head_dim}, strides(token, s.queries),
                           CUDNN_DATA_BFLOAT16);
  }

  Tensor apply(cudnnPointwiseMode_t mode, Tensor x, Tensor b) const {
    const Tensor y = graph.between(square());
    graph.pointwise(mode, x, b, y);
    return y;
  }
  Tensor exponential(Tensor x) const {
    const Tensor y = graph.between(square());
    graph.pointwise(CUDNN_POINTWISE_EXP, x, y);
    return y;
  }
  Tensor scaled(Tensor keys) const {
    const Tensor scores = graph.between(square());
    graph.matmul(q, keys, scores);
    return apply(CUDNN_POINTWISE_MUL, scores, scale);
  }
  /// x where `left` compares with `right` as asked, minus infinity elsewhere.
  Tensor keep_where(cudnnPointwiseMode_t compare, Tensor left, Tensor right, Tensor hidden, Tensor x) const {
    const Tensor seen = graph.between(square(), CUDNN_DATA_BOOLEAN), y = graph.between(square());
    graph.pointwise(compare, left, right, seen, CUDNN_DATA_BOOLEAN);
    graph.select(x, hidden, seen, y);
    return y;
  }
  std::pair<Tensor, Tensor> indices(Tensor like) const {
    const Tensor row = graph.between(square(), CUDNN_DATA_INT32),
                 column_index = graph.between(square(), CUDNN_DATA_INT32);
    graph.index(2, like, row);
    graph.index(3, like, column_index);
    return {row, column_index};
  }
  /// What queries do not see becomes minus infinity: later keys, and those before the window.
  Tensor masked(Tensor x) const {
    const auto [row, key] = indices(x);
    x = keep_where(CUDNN_POINTWISE_CMP_GE, row, key, graph.scalar(hidden_id, CUDNN_DATA_FLOAT), x);
    if (s.window <= 0) return x;
    const auto [row2, key2] = indices(x);
    const Tensor behind = graph.between(square());
    graph.pointwise(CUDNN_POINTWISE_ADD, key2, graph.scalar(window_id, CUDNN_DATA_FLOAT), behind);
    return keep_where(CUDNN_POINTWISE_CMP_GT, behind, row2, graph.scalar(hidden_id + 100, CUDNN_DATA_FLOAT), x);
  }
};

/// out = softmax(mask(scale Q K^T)) V, lse = largest + log(sum)
void forward_graph(const AttentionShape& s, CudnnGraph& graph) {
  const Scores scores{s, graph};
  const Tensor x = scores.masked(scores.scaled(scores.columns(k_id, s.k_stride)));
  const Tensor largest = graph.between(scores.column()), sum = graph.between(scores.column());
  graph.reduce(CUDNN_REDUCE_TENSOR_MAX, x, largest);
  const Tensor e = scores.exponential(scores.apply(CUDNN_POINTWISE_SUB, x, largest));
  graph.reduce(CUDNN_REDUCE_TENSOR_ADD, e, sum);
  const Tensor logarithm = graph.between(scores.column());
  graph.pointwise(CUDNN_POINTWISE_LOG, sum, logarithm);
  graph.pointwise(CUDNN_POINTWISE_ADD, largest, logarithm, scores.lse);
  const Tensor p = graph.between(scores.square(), CUDNN_DATA_BFLOAT16);
  graph.pointwise(CUDNN_POINTWISE_DIV, e, sum, p);
  graph.matmul(p, scores.rows(v_id, s.v_stride), scores.query_rows(out_id, s.out_stride));
}

/// gradient = x^T y, a head of keys or values each; those of a group are added.
void transposed_product(const Scores& scores, Tensor x, Tensor y, Tensor gradient) {
  const AttentionShape& s = scores.s;
  CudnnGraph& graph = scores.graph;
  const Tensor turned =
      graph.between({s.batch, s.heads, s.keys, s.queries},
                    {s.heads * s.queries * s.keys, s.queries * s.keys, 1, s.keys}, CUDNN_DATA_BFLOAT16);
  graph.reshape(x, turned);
  if (s.heads == s.kv_heads) return graph.matmul(turned, y, gradient);
  const Tensor of_heads = graph.between({s.batch, s.heads, s.keys, s.head_dim}, CUDNN_DATA_BFLOAT16);
  graph.matmul(turned, y, of_heads);
  graph.reduce(CUDNN_REDUCE_TENSOR_ADD, of_heads, gradient);
}

void backward_graph(const AttentionShape& s, CudnnGraph& graph) {
  const Scores scores{s, graph};
  const Tensor d_out = scores.query_rows(d_out_id, s.out_stride), out = scores.query_rows(out_id, s.out_stride);
  const Tensor keys = scores.columns(k_id, s.k_stride);
  const Four rows{s.batch, s.heads, s.queries, s.head_dim};
  const Tensor products = graph.between(
      rows, {s.heads * s.queries * s.head_dim, s.queries * s.head_dim, s.heads * s.head_dim, 1}, CUDNN_DATA_FLOAT);
  graph.pointwise(CUDNN_POINTWISE_MUL, d_out, out, products);
  const Tensor dots = graph.between(scores.column());
  graph.reduce(CUDNN_REDUCE_TENSOR_ADD, products, dots);
  const Tensor delta =
      graph.in_memory(delta_id, scores.column(), {s.heads * s.queries, s.queries, 1, 1}, CUDNN_DATA_FLOAT);
  graph.pointwise(CUDNN_POINTWISE_MUL, dots, graph.scalar(one_id, CUDNN_DATA_FLOAT), delta);

  const Tensor relative = scores.apply(CUDNN_POINTWISE_SUB, scores.scaled(keys), scores.lse);
  const Tensor p = scores.exponential(scores.masked(relative));
  transposed_product(scores, p, d_out, scores.rows(dv_id, s.v_stride));

  const Tensor dp = graph.between(scores.square());
  graph.matmul(d_out, scores.columns(v_id, s.v_stride), dp);
  const Tensor ds =
      scores.apply(CUDNN_POINTWISE_MUL,
                   scores.apply(CUDNN_POINTWISE_MUL, scores.apply(CUDNN_POINTWISE_SUB, dp, delta), p), scores.scale);
  transposed_product(scores, ds, scores.q, scores.rows(dk_id, s.k_stride));
  const Tensor key_rows =
      graph.between({s.batch, s.kv_heads, s.keys, s.head_dim}, scores.strides(s.k_stride, s.keys), CUDNN_DATA_BFLOAT16);
  graph.reshape(keys, key_rows);
  graph.matmul(ds, key_rows, scores.query_rows(dq_id, s.q_stride));
}

using Key = std::array<std::int64_t, 11>;
Key key_of(const AttentionShape& s) {
  return {s.batch,    s.queries,  s.keys,     s.heads,      s.kv_heads, s.head_dim,
          s.q_stride, s.k_stride, s.v_stride, s.out_stride, s.window};
}

/// Of one pass.
struct Plan {
  CudnnPlan plan;
  std::uint64_t delta_bytes = 0;  ///< of the backward pass, in front of the plan's own workspace
  std::uint64_t workspace_bytes() const { return delta_bytes + plan.workspace_bytes(); }
};

class Attention final : public CudnnAttention {
 public:
  explicit Attention(const Cudnn& cudnn) : cudnn_(cudnn) {}
  Attention(const Attention&) = delete;
  Attention& operator=(const Attention&) = delete;
  ~Attention() override {
    for (auto& plans : plans_) plans.clear();
    if (handle_ != nullptr) static_cast<void>(cudnn_.destroy(handle_));
  }
  Status start() { return cudnn_.as_status(cudnn_.create(&handle_), "cannot start"); }

  Result<Workspace> prepare(const AttentionShape& shape) override {
    SLUICE_ASSIGN(const Plan* const first, plan_of(shape, false));
    SLUICE_ASSIGN(const Plan* const second, plan_of(shape, true));
    return Workspace{first->workspace_bytes(), second->workspace_bytes()};
  }

  Result<std::uint64_t> prepare_forward(const AttentionShape& shape) override {
    SLUICE_ASSIGN(const Plan* const plan, plan_of(shape, false));
    return plan->workspace_bytes();
  }

  std::string version() const override { return std::to_string(cudnn_.version()); }

  Status forward(const AttentionShape& s, const bf16* q, const bf16* k, const bf16* v, bf16* out, float* lse,
                 std::span<std::byte> workspace, Stream& stream) override {
    SLUICE_ASSIGN(const Plan* const pass, begin(s, false, workspace, stream));
    const Scalars values(s);
    return run(pass->plan, values, workspace.data(), {{q_id, q}, {k_id, k}, {v_id, v}, {out_id, out}, {lse_id, lse}});
  }

  Status backward(const AttentionShape& s, const bf16* q, const bf16* k, const bf16* v, const bf16* out,
                  const bf16* d_out, const float* lse, bf16* dq, bf16* dk, bf16* dv, std::span<std::byte> workspace,
                  Stream& stream) override {
    SLUICE_ASSIGN(const Plan* const pass, begin(s, true, workspace, stream));
    const Scalars values(s);
    return run(pass->plan, values, workspace.data() + pass->delta_bytes,
               {{q_id, q},
                {k_id, k},
                {v_id, v},
                {out_id, out},
                {lse_id, lse},
                {d_out_id, d_out},
                {delta_id, workspace.data()},
                {dq_id, dq},
                {dk_id, dk},
                {dv_id, dv},
                {one_id, &values.one}});
  }

 private:
  /// What graphs read from host memory.
  struct Scalars {
    explicit Scalars(const AttentionShape& s) : scale(s.scale), window(static_cast<float>(s.window)) {}
    float scale, window, hidden = -std::numeric_limits<float>::infinity(), one = 1;
  };

  Status run(const CudnnPlan& plan, const Scalars& values, void* workspace, std::vector<CudnnPointer> tensors) const {
    tensors.push_back({scale_id, &values.scale});
    tensors.push_back({hidden_id, &values.hidden});
    if (values.window > 0) {
      tensors.push_back({window_id, &values.window});
      tensors.push_back({hidden_id + 100, &values.hidden});
    }
    return plan.run(handle_, tensors, workspace);
  }

  Result<const Plan*> begin(const AttentionShape& shape, bool backward, std::span<std::byte> workspace,
                            Stream& stream) {
    if (!stream.status()) return stream.status().error();
    SLUICE_ASSIGN(const Plan* const pass, plan_of(shape, backward));
    if (const std::uint64_t needed = pass->workspace_bytes(); workspace.size() < needed)
      return fault("cuDNN attention needs " + std::to_string(needed) + " bytes of workspace and was given " +
                   std::to_string(workspace.size()));
    SLUICE_TRY(cudnn_.as_status(cudnn_.set_stream(handle_, stream.handle()), "a stream"));
    return pass;
  }

  Result<const Plan*> plan_of(const AttentionShape& s, bool backward) {
    auto& plans = plans_[backward ? 1 : 0];
    const bool whole = s.positions == nullptr && s.keys == s.queries && s.offset() == 0;
    if (const auto at = plans.find(key_of(s)); at != plans.end() && whole) return &at->second;
    const bool even = (s.q_stride | s.k_stride | s.v_stride | s.out_stride | s.head_dim) % 8 == 0;
    if (!whole || s.queries < 2 || s.head_dim > 128 || !even || s.heads % s.kv_heads != 0)
      return bad_request(
          "cuDNN attention takes as many keys as queries, at the same places, without packed documents, and head_dim "
          "up "
          "to 128 with rows of multiples of 8");
    // Release notes: backward was wrong before 9.10.2, and until 9.15 where keys do not fill blocks of 128.
    const std::size_t version = cudnn_.version();
    if (version < 91002 || (version < 91600 && s.keys % 128 != 0))
      return fault("cuDNN " + std::to_string(version) + " has errors in attention of this shape; use 9.16 or later");
    CudnnGraph graph(cudnn_);
    backward ? backward_graph(s, graph) : forward_graph(s, graph);
    SLUICE_ASSIGN(CudnnPlan plan, graph.plan(handle_, true));
    const auto rows = static_cast<std::uint64_t>(s.batch * s.heads * s.queries);
    const std::uint64_t delta_bytes = backward ? round_up(rows * sizeof(float), 256) : 0;
    return &plans.emplace(key_of(s), Plan{std::move(plan), delta_bytes}).first->second;
  }

  Cudnn cudnn_;
  cudnnHandle_t handle_ = nullptr;
  std::array<std::map<Key, Plan>, 2> plans_;  ///< forward, backward
};

}  // namespace

Result<std::unique_ptr<CudnnAttention>> CudnnAttention::create() {
  SLUICE_ASSIGN(const Cudnn cudnn, Cudnn::open());
  auto attention = std::make_unique<Attention>(cudnn);
  SLUICE_TRY(attention->start());
  return std::unique_ptr<CudnnAttention>(std::move(attention));
}

#endif

}  // namespace sluice::kernels::cuda
