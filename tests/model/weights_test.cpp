// Initial weights and weights under Hugging Face names.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <map>

#include "models.h"
#include "src/model/hf_weights.h"
#include "src/model/init.h"

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
      const auto dtype = at->second.second;
      return HfTensor{dtype, at->second.first, [dtype](std::uint64_t byte, std::span<std::byte> out) {
                        write(*dtype, byte, out);
                        return success();
                      }};
    };
  }

 private:
  static void write(Dtype dtype, std::uint64_t byte, std::span<std::byte> out) {
    const std::uint64_t size = dtype_bytes(dtype);
    for (std::uint64_t i = 0; i < out.size() / size; ++i) {
      const auto value = static_cast<float>((byte / size + i) % value_count);
      if (dtype == Dtype::f32) std::memcpy(out.data() + 4 * i, &value, 4);
      if (dtype == Dtype::bf16) store16(to_bf16(value).bits, out.data() + 2 * i);
      if (dtype == Dtype::f16) store16(half_of((byte / size + i) % value_count), out.data() + 2 * i);
    }
  }
  static void store16(std::uint16_t bits, std::byte* to) { std::memcpy(to, &bits, 2); }
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

void expect_filled(const ModelSpec& model, Dtype dtype) {
  const Stored all = stored(model, dtype);
  EXPECT_TRUE(check_hf_weights(model, all.lookup()).ok());
  for (const UnitSpec& unit : model.units) {
    std::vector<float> expected(unit.numel, 0.0f), got(unit.numel, NAN);
    for (const TensorSpec& t : unit.tensors)
      for (std::uint64_t i = 0; i < t.numel; ++i)
        expected[t.offset + i] = static_cast<float>((t.stored.first + i) % value_count);
    for (std::uint64_t first = 0; first < unit.numel; first += 1001) {
      const std::span<float> part = std::span(got).subspan(first, std::min<std::uint64_t>(1001, unit.numel - first));
      ASSERT_TRUE(read_hf_weights(unit, all.lookup(), first, part).ok());
    }
    EXPECT_EQ(got, expected) << unit.name << " " << dtype_name(dtype);
  }
}

TEST(HfWeights, fill_units_from_every_dtype_and_in_parts) {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
    expect_filled(build_model(test::small_models()[0]), dtype);
    expect_filled(phi3(), dtype);
  }
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
