// Initial weights and weights under Hugging Face names.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>

#include "models.h"
#include "src/model/hf_weights.h"
#include "src/model/init.h"
#include "src/train/states/hugging_face.h"
#include "tests/scratch_dir.h"

namespace sluice {
namespace {

TEST(InitialWeights, do_not_depend_on_how_they_are_cut) {
  const ModelSpec model = build_model(test::small_models()[2]);
  for (const UnitSpec& unit : model.units) {
    std::vector<float> whole(unit.numel), parts(unit.numel, NAN);
    initial_weights(unit, 42, 0, whole);
    for (std::uint64_t first = 0; first < unit.numel; first += 777)
      initial_weights(unit, 42, first,
                      std::span(parts).subspan(first, std::min<std::uint64_t>(777, unit.numel - first)));
    EXPECT_EQ(whole, parts) << unit.name;
  }
}

TEST(InitialWeights, have_the_spread_that_the_tensor_asks_for) {
  const ModelSpec model = build_model(preset_config("llama-tiny").value());
  const UnitSpec& unit = model.units[1];
  std::vector<float> values(unit.numel);
  initial_weights(unit, 1, 0, values);
  for (const TensorSpec& t : unit.tensors) {
    double sum = 0, squares = 0;
    for (std::uint64_t i = 0; i < t.numel; ++i) {
      const double x = values[t.offset + i];
      sum += x;
      squares += x * x;
    }
    const double n = static_cast<double>(t.numel), mean = sum / n, deviation = std::sqrt(squares / n - mean * mean);
    const bool matrix = t.shape.size() == 2;
    EXPECT_NEAR(mean, matrix ? 0 : 1, 1e-3) << t.name;
    EXPECT_NEAR(deviation, matrix ? t.init_std : 0, 0.05 * t.init_std) << t.name;
  }
  EXPECT_NEAR(unit.tensor("o_proj.weight")->init_std, 0.02 / std::sqrt(8.0), 1e-12);
}

constexpr std::uint64_t value_count = 251;  // no divisor of where anything begins

/// Tensors in memory whose element i is i modulo value_count.
class Stored {
 public:
  void add(const std::string& name, std::vector<std::int64_t> shape, std::optional<Dtype> dtype) {
    tensors_[name] = {std::move(shape), dtype};
  }
  void erase(const std::string& name) { tensors_.erase(name); }
  HfLookup lookup() const {
    return [this](const std::string& name) -> std::optional<HfTensor> {
      const auto at = tensors_.find(name);
      if (at == tensors_.end()) return std::nullopt;
      return HfTensor{at->second.second, at->second.first};
    };
  }
  /// As a file, its tensors in the order of their names, as transformers writes them; a header of odd length if asked.
  void write(const std::string& path, bool odd) const {
    std::string header = "{", data;
    for (const auto& [name, tensor] : tensors_) {
      const auto& [shape, dtype] = tensor;
      std::uint64_t numel = 1;
      for (const std::int64_t extent : shape) numel *= static_cast<std::uint64_t>(extent);
      const std::size_t begin = data.size();
      for (std::uint64_t i = 0; i < numel; ++i) append(*dtype, i % value_count, data);
      header += fmt::format("{}\"{}\":{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                            header.size() > 1 ? "," : "", name, tensor_dtype_name(to_tensor_dtype(*dtype)),
                            fmt::join(shape, ","), begin, data.size());
    }
    header += "}";
    header.append(2 - header.size() % 2 - (odd ? 1 : 0), ' ');
    const std::uint64_t bytes = header.size();
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&bytes), 8);
    out << header << data;
  }

 private:
  static void append(Dtype dtype, std::uint64_t n, std::string& data) {
    const auto value = static_cast<float>(n);
    const std::uint16_t bits = dtype == Dtype::bf16 ? to_bf16(value).bits : half_of(n);
    if (dtype == Dtype::f32)
      data.append(reinterpret_cast<const char*>(&value), 4);
    else
      data.append(reinterpret_cast<const char*>(&bits), 2);
  }
  static std::uint16_t half_of(std::uint64_t n) {
    if (n == 0) return 0;
    const int exponent = 63 - std::countl_zero(n);
    return static_cast<std::uint16_t>((exponent + 15) << 10 | (n << (10 - exponent) & 0x3ff));
  }
  std::map<std::string, std::pair<std::vector<std::int64_t>, std::optional<Dtype>>> tensors_;
};

Stored stored(const ModelSpec& model, Dtype dtype, std::size_t cut_prefix = 0) {
  Stored all;
  for (const UnitSpec& unit : model.units)
    for (const TensorSpec& t : unit.tensors) {
      const std::string& name = t.stored.name;
      all.add(name.starts_with("lm_head") ? name : name.substr(cut_prefix), t.stored.shape, dtype);
    }
  return all;
}

ModelSpec phi3() {
  ModelConfig config = test::small_llama("phi3");
  config.fused = true;
  return build_model(config);
}

/// Every element of every unit, from a file, in pieces that begin and end anywhere, of several ranks.
void expect_filled(const ModelSpec& model, Dtype dtype, RankId ranks, std::uint64_t piece_numel, bool odd,
                   bool as_stored = false) {
  SCOPED_TRACE(fmt::format("{}, {} ranks, {} elements", dtype_name(dtype), static_cast<int>(ranks), piece_numel));
  const ScratchDir folder;
  stored(model, dtype).write(folder / "model.safetensors", odd);
  const auto weights = HuggingFaceWeights::open(folder.path(), model);
  ASSERT_TRUE(weights.ok()) << weights.error().message;
  const ShardMap map(model, ranks);
  WeightPieces pieces(model, map, {0, map.shards()}, piece_numel);
  const auto stream = WeightStream::open(*weights, pieces, as_stored ? Dtype::bf16 : Dtype::f32);
  ASSERT_TRUE(stream.ok()) << stream.error().message;
  std::vector<std::vector<float>> got(model.units.size());
  while (const auto piece = pieces.next()) {
    const auto values = (*stream)->next();
    ASSERT_TRUE(values.ok()) << values.error().message;
    ASSERT_EQ(values->size(), piece->numel);
    std::vector<float>& unit = got[static_cast<std::size_t>(piece->unit)];
    ASSERT_EQ(piece->first, unit.size());
    EXPECT_EQ(values->dtype(), as_stored && dtype == Dtype::bf16 ? Dtype::bf16 : Dtype::f32);
    for (const float value : values->as_f32()) unit.push_back(value);
    for (const bf16 value : values->as_bf16()) unit.push_back(to_float(value));
  }
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    std::vector<float> expected(map.full_numel(static_cast<UnitId>(u)), 0.0f);
    for (const TensorSpec& t : model.units[u].tensors)
      for (std::uint64_t i = 0; i < t.numel; ++i)
        expected[t.offset + i] = static_cast<float>((t.stored.first + i) % value_count);
    EXPECT_EQ(got[u], expected) << model.units[u].name;
  }
}

TEST(HfWeights, fill_units_from_every_dtype_and_in_parts) {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
    expect_filled(build_model(test::small_models()[0]), dtype, 1, 1001, false);
    expect_filled(build_model(test::small_models()[6]), dtype, 1, 1u << 19, true);
    expect_filled(phi3(), dtype, 1, 1001, true);
    expect_filled(phi3(), dtype, 3, 2048, false);
    expect_filled(phi3(), dtype, 3, 2048, true, true);
  }
}

// Each of the threads may be the one that waits when it ends.
TEST(HfWeights, a_stream_that_nobody_reads_to_its_end_ends) {
  const ModelSpec model = phi3();
  const ScratchDir folder;
  stored(model, Dtype::bf16).write(folder / "model.safetensors", false);
  const auto weights = HuggingFaceWeights::open(folder.path(), model);
  ASSERT_TRUE(weights.ok()) << weights.error().message;
  const WeightPieces pieces(model, ShardMap(model, 1), {0, 1}, 256);
  for (int taken = 0; taken < 9; ++taken) {
    const auto stream = WeightStream::open(*weights, pieces);
    ASSERT_TRUE(stream.ok()) << stream.error().message;
    for (int i = 0; i < taken; ++i) ASSERT_TRUE((*stream)->next().ok());
  }
  std::filesystem::resize_file(folder / "model.safetensors", 6000);
  const auto stream = WeightStream::open(*weights, pieces);
  ASSERT_TRUE(stream.ok()) << stream.error().message;
  Result<WeightValues> next = (*stream)->next();
  for (int i = 0; i < 1000 && next.ok(); ++i) next = (*stream)->next();
  ASSERT_FALSE(next.ok());
  EXPECT_EQ(next.error().code, ErrorCode::fault);
  EXPECT_NE(next.error().message.find("model.safetensors: ends at offset "), std::string::npos) << next.error().message;
}

TEST(HfWeights, fused_tensors_are_listed_once_and_as_they_are_stored) {
  const ModelSpec model = phi3();
  const auto check = [&](const Stored& all, std::vector<std::string> names = {}) {
    const Status status = check_hf_weights(model, all.lookup(), names);
    return status.ok() ? std::string() : status.error().message;
  };
  const std::string attention = "model.layers.0.self_attn.", qkv = attention + "qkv_proj.weight";
  const std::string gate_up = "model.layers.0.mlp.gate_up_proj.weight";
  EXPECT_EQ(check(stored(model, Dtype::bf16)), "");
  EXPECT_EQ(check(stored(model, Dtype::bf16, 6)), "");
  Stored all = stored(model, Dtype::bf16);
  all.erase(qkv);
  all.add(gate_up, {48, 32}, Dtype::bf16);
  const std::string q = attention + "q_proj.weight";
  all.add(q, {32, 32}, Dtype::bf16);
  EXPECT_EQ(check(all, {gate_up, q}),
            "the tensors are not the model's; missing: " + qkv + "; wrong: " + gate_up +
                " has shape [48, 32], the config asks for [96, 32]; not in the model that the config describes: " + q);
}

TEST(HfWeights, names_may_lack_the_prefix) {
  const ModelSpec llama = build_model(test::small_models()[0]), gpt2 = build_model(test::small_models()[5]);
  EXPECT_TRUE(check_hf_weights(llama, stored(llama, Dtype::bf16, 6).lookup()).ok());
  EXPECT_TRUE(check_hf_weights(gpt2, stored(gpt2, Dtype::bf16, 12).lookup()).ok());
}

TEST(HfWeights, refusals_name_the_tensor) {
  const ModelSpec model = build_model(test::small_models()[0]);
  const std::string name = "model.layers.0.mlp.down_proj.weight";
  const auto refusal = [&](const Stored& all) {
    const Status status = check_hf_weights(model, all.lookup());
    EXPECT_FALSE(status.ok());
    if (status.ok()) return std::string();
    EXPECT_EQ(status.error().code, ErrorCode::bad_request);
    EXPECT_NE(status.error().message.find(name), std::string::npos);
    return status.error().message;
  };
  Stored all = stored(model, Dtype::bf16);
  all.erase(name);
  EXPECT_NE(refusal(all).find("missing"), std::string::npos);
  all.add(name, {48, 32}, Dtype::bf16);
  EXPECT_NE(refusal(all).find("[48, 32]"), std::string::npos);
  all.add(name, {32, 48}, std::nullopt);
  EXPECT_NE(refusal(all).find("BF16"), std::string::npos);
  all.add(name, {32, 48}, Dtype::i32);
  EXPECT_NE(refusal(all).find("BF16"), std::string::npos);
  all.add(name, {32, 48}, Dtype::f16);
  EXPECT_TRUE(check_hf_weights(model, all.lookup()).ok());
  all.erase("lm_head.weight");
  EXPECT_FALSE(check_hf_weights(model, all.lookup()).ok());
}

}  // namespace
}  // namespace sluice
