// Checkpoints that no run has written: every element of every state is a function of its tensor and its place there.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "io/checkpoint/checkpoint.h"
#include "io/checkpoint/state_writer.h"
#include "offload/state/moment_layout.h"
#include "sluice/adamw.h"
#include "sluice/random.h"
#include "src/train/states/export.h"
#include "src/train/states/moment_values.h"
#include "src/train/states/state_layout.h"
#include "src/train/states/state_pieces.h"
#include "src/train/states/state_source.h"
#include "src/train/states/write_ring.h"

namespace sluice::test {

/// Of all magnitudes, small ones and zeros too; of exp_avg_sq none is negative.
inline float made_value(StateKind kind, std::uint32_t tensor, std::uint64_t element) {
  std::uint64_t x = (element + 1) * 0x9e3779b97f4a7c15ull + tensor * 0xbf58476d1ce4e5b9ull +
                    static_cast<std::uint64_t>(kind) * 0x94d049bb133111ebull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x ^= x >> 27;
  if (x % 97 == 0) return 0;
  const auto mantissa = static_cast<std::uint32_t>(x >> 40) & 0x7fffffu;
  const std::uint32_t exponent = 127 - 12 + static_cast<std::uint32_t>(x >> 8) % 12;
  const std::uint32_t sign = kind == StateKind::exp_avg_sq ? 0 : static_cast<std::uint32_t>(x & 1) << 31;
  return std::bit_cast<float>(sign | exponent << 23 | mantissa);
}

/// fp32 values of a unit's flat buffer.
inline std::vector<float> made_values(const Manifest& manifest, const StoredUnit& unit, StateKind kind) {
  std::vector<float> flat(unit.numel, 0.0f);
  for (const TensorPiece& p : unit.pieces)
    for (std::uint64_t r = 0; r < p.rows; ++r)
      for (std::uint64_t c = 0; c < p.columns; ++c)
        flat[p.at + r * p.stride + c] =
            made_value(kind, p.tensor, (p.row + r) * manifest.tensors[p.tensor].columns() + p.column + c);
  return flat;
}

/// The same as they are stored.
inline std::vector<std::byte> made_state(const Manifest& manifest, const StoredUnit& unit, StateKind kind) {
  const bool is_moment = kind == StateKind::exp_avg || kind == StateKind::exp_avg_sq;
  std::vector<float> values = made_values(manifest, unit, is_moment ? kind : StateKind::parameter);
  const StoredFormats& formats = manifest.formats;
  std::vector<std::byte> bytes(stored_bytes(formats, kind, unit.numel));
  if (is_moment && formats.moments == MomentFormat::int8) {
    const MomentLayout layout{formats.moments, formats.moment_group_numel};
    for (std::uint64_t at = 0; at < unit.numel; at += moment_block_numel) {
      const MomentLayout::Place place = layout.place(at, unit.numel);
      const float scale = encode_moments(kind, std::span(values).subspan(at, moment_block_numel),
                                         reinterpret_cast<std::uint8_t*>(bytes.data() + place.codes));
      std::memcpy(bytes.data() + place.scales, &scale, sizeof scale);
    }
    // Padding has no codes, though exp_avg_sq has none of zero.
    std::vector<bool> is_padding(unit.numel, true);
    for (const TensorPiece& p : unit.pieces)
      for (std::uint64_t r = 0; r < p.rows; ++r)
        for (std::uint64_t c = 0; c < p.columns; ++c) is_padding[p.at + r * p.stride + c] = false;
    for (std::uint64_t i = 0; i < unit.numel; ++i)
      if (is_padding[i]) bytes[layout.place(i, unit.numel).codes] = std::byte{0};
  } else if (is_moment ? formats.moments == MomentFormat::f32 : formats.parameters == Dtype::f32) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
  } else if (is_moment) {
    for (std::uint64_t i = 0; i < unit.numel; ++i) {
      const bf16 value = to_bf16(values[i]);
      std::memcpy(bytes.data() + 2 * i, &value, 2);
    }
  } else {
    std::vector<bf16> parameters(unit.numel);
    std::vector<std::int16_t> remainders(unit.numel);
    split_master(values.data(), parameters.data(), remainders.data(), static_cast<std::int64_t>(unit.numel));
    std::memcpy(bytes.data(),
                kind == StateKind::parameter ? static_cast<const void*>(parameters.data()) : remainders.data(),
                bytes.size());
  }
  return bytes;
}

/// Writes parent/step-5 of the model in this layout.
inline Result<std::string> make_checkpoint(const std::string& parent, const ModelSpec& model,
                                           const LayoutDegrees& degrees, const StoredFormats& formats,
                                           bool with_remainders = true, bool with_moments = true) {
  Manifest m;
  m.step = 5;
  m.formats = formats;
  m.tensors = stored_tensors(model);
  m.model = hf_config_json(model.config, formats.parameters);
  m.run = R"({"writer":"a test"})";
  SLUICE_ASSIGN(NewCheckpoint made, NewCheckpoint::create(parent, m.step));
  std::vector<StoredFile> written;
  for (StoredFile& file :
       files_of_layout(model, degrees, formats, state_kinds(formats, with_remainders, with_moments))) {
    if (file.units.empty()) continue;
    std::uint64_t most = 0;
    for (const StoredUnit& unit : file.units)
      for (const StoredState& s : unit.states) most = std::max(most, s.bytes);
    WriteRing ring(1, most);
    SLUICE_ASSIGN(const auto writer, StateWriter::create(made.directory(), m, std::move(file), {}));
    for (std::size_t u = 0; u < writer->file().units.size(); ++u)
      for (std::size_t s = 0; s < writer->file().units[u].states.size(); ++s) {
        const std::vector<std::byte> bytes =
            made_state(m, writer->file().units[u], writer->file().units[u].states[s].kind);
        SLUICE_ASSIGN(std::byte* const memory, ring.take());
        std::memcpy(memory, bytes.data(), bytes.size());
        SLUICE_TRY(ring.write(*writer, u, s, 0, bytes.size()));
      }
    SLUICE_TRY(ring.finish());
    SLUICE_ASSIGN(StoredFile stored, writer->close());
    written.push_back(std::move(stored));
  }
  m.files = std::move(written);
  SLUICE_TRY(made.publish(m));
  return made.path();
}

/// fp32 values of every tensor, by state and name: what a reader that knows nothing of layouts has.
using Tensors = std::map<std::string, std::vector<float>>;
inline Tensors whole_tensors(const std::string& path, bool with_moments = true) {
  Tensors all;
  auto opened = Checkpoint::open(path);
  EXPECT_TRUE(opened.ok()) << (opened.ok() ? "" : opened.error().message);
  if (!opened.ok()) return all;
  StateSource source(*opened, {}, {});
  for (const StateKind kind : state_kinds({}, false, with_moments))
    for (std::uint32_t t = 0; t < opened->manifest().tensors.size(); ++t) {
      const StoredTensor& tensor = opened->manifest().tensors[t];
      const std::vector<TensorPiece> pieces{{t, 0, 0, tensor.rows(), tensor.columns(), 0, tensor.columns()}};
      std::vector<float>& values = all[std::string(state_names[static_cast<std::size_t>(kind)]) + "." + tensor.name];
      values.resize(tensor.rows() * tensor.columns());
      bool given = false;
      const Status read = source.scan(
          [&]() -> std::optional<StateWindow> {
            if (std::exchange(given, true)) return std::nullopt;
            return StateWindow{&pieces, kind, 0, values.size(), 0};
          },
          [&](const StateWindow&, std::span<const std::byte> data) {
            std::memcpy(values.data(), data.data(), data.size());
            return success();
          });
      EXPECT_TRUE(read.ok()) << (read.ok() ? "" : read.error().message);
    }
  return all;
}

/// With the same bits: NaN is NaN.
inline bool same_bits(const Tensors& a, const Tensors& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [name, values] : a) {
    const auto other = b.find(name);
    if (other == b.end() || other->second.size() != values.size() ||
        std::memcmp(values.data(), other->second.data(), values.size() * sizeof(float)) != 0)
      return false;
  }
  return true;
}

/// What fp32 states of the model are.
inline Tensors made_tensors(const ModelSpec& model, bool with_moments = true) {
  Tensors all;
  for (const StateKind kind : state_kinds({}, false, with_moments))
    for (const UnitSpec& unit : model.units)
      for (const TensorSpec& t : unit.tensors) {
        auto& values = all[std::string(state_names[static_cast<std::size_t>(kind)]) + "." + t.name];
        for (std::uint64_t i = 0; i < t.numel; ++i) values.push_back(made_value(kind, t.index, i));
      }
  return all;
}

/// Small ones of every kind that layouts see: llama; GPT-2's Conv1D, biases and tied head; fewer heads of keys than
/// ranks, and words that do not divide; Phi-3's fused tensors.
inline std::map<std::string, ModelSpec> small_models() {
  std::map<std::string, ModelSpec> models;
  models.emplace("llama", build_model(*preset_config("llama-tiny")));
  ModelConfig gpt2;
  gpt2.family = Family::gpt2;
  gpt2.name = "gpt2";
  gpt2.vocabulary = 301;
  gpt2.hidden = 96;
  gpt2.heads = gpt2.kv_heads = 6;
  gpt2.ffn = 384;
  gpt2.max_positions = 64;
  gpt2.tied = true;
  models.emplace("gpt2", build_model(gpt2));
  ModelConfig grouped;
  grouped.name = "qwen3";
  grouped.vocabulary = 259;
  grouped.heads = 8;
  grouped.kv_heads = 2;
  grouped.ffn = 200;
  grouped.qk_norm = true;
  models.emplace("grouped", build_model(grouped));
  ModelConfig fused;
  fused.name = "phi3";
  fused.fused = true;
  fused.kv_heads = 2;
  models.emplace("fused", build_model(fused));
  return models;
}

}  // namespace sluice::test
