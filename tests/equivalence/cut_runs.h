// Runs of a model of six units, embedding, two layers of two sublayers and head, that is cut over ranks.
#pragma once

#include <cmath>
#include <fstream>
#include <string>
#include <utility>

#include "resume.h"

namespace sluice::test {

struct Places {
  Place home = Place::nvme, accumulator = Place::host, boundary = Place::device;
  bool resident = false, held = false;
  Saved saved = Saved::recompute;
  bool again = false;  ///< inputs are made again
  std::optional<Saved> core = std::nullopt;
  Place gradient = Place::nvme;
};

class CutRuns : public Resume {
 protected:
  Schedule schedule(const RunConfig& c, std::vector<UnitId> cut, int group, const Places& places = {},
                    bool ahead = true) const {
    Schedule s = Resume::schedule(ahead, places.home);
    s.pipeline = c.pipeline;
    s.cut = std::move(cut);
    s.group = group;
    s.gradients_ahead = group % 2 == 1;
    s.prefetch = 1;
    s.units.assign(6, s.units.front());
    for (UnitChoice& unit : s.units) {
      unit.accumulator = places.accumulator;
      unit.boundary = places.boundary;
      unit.resident = places.resident;
      unit.held = places.held;
      unit.saved = places.saved;
      unit.core = places.core;
      unit.gradient = places.gradient;
    }
    if (places.again)
      for (std::size_t u = 1; u < 5; ++u) s.units[u].sweep = static_cast<std::uint8_t>(u == 3 ? 2 : 1);
    return s;
  }
  Finished whole(const RunConfig& c, const Schedule& s) {
    const std::string path = fresh_directory();
    return finished(path, attempt(c, path, s));
  }
  /// Losses and norms of all steps, and the evaluation's loss, differ by so much of themselves at most.
  static void expect_close(const Finished& got, const Finished& expected, double part) {
    ASSERT_EQ(got.lines.size(), expected.lines.size());
    for (std::size_t i = 0; i < expected.lines.size(); ++i)
      for (const char* key : {"loss", "grad_norm"}) {
        const double is = expected.lines[i][key];
        EXPECT_NEAR(got.lines[i][key].get<double>(), is, part * std::fabs(is)) << key << " of step " << i + 1;
      }
    EXPECT_NEAR(got.eval_loss, expected.eval_loss, part * expected.eval_loss);
  }

  /// Of two layers.
  std::string model(const std::string& name, const std::string& fields) const {
    const std::string path = bench_.path(name + ".json");
    std::ofstream(path) << R"({"vocab_size":257,"initializer_range":0.05,)" << fields << "}";
    return path;
  }
  std::string llama(const std::string& type, bool tied, int key_values, int heads = 4, int columns = 128) const {
    return model(
        type + (tied ? "t" : "u") + std::to_string(key_values) + "of" + std::to_string(heads),
        R"("hidden_size":64,"head_dim":16,"num_hidden_layers":2,"max_position_embeddings":64,"rms_norm_eps":1e-5,)"
        R"("rope_theta":10000.0,"hidden_act":"silu","num_attention_heads":)" +
            std::to_string(heads) + R"(,"num_key_value_heads":)" + std::to_string(key_values) +
            R"(,"intermediate_size":)" + std::to_string(columns) + R"(,"model_type":")" + type +
            R"(","tie_word_embeddings":)" + (tied ? "true" : "false"));
  }
  /// Mistral's sliding window.
  std::string windowed(int window) const {
    return model(
        "window" + std::to_string(window),
        R"("hidden_size":64,"head_dim":16,"num_hidden_layers":2,"max_position_embeddings":64,"rms_norm_eps":1e-5,)"
        R"("rope_theta":10000.0,"hidden_act":"silu","num_attention_heads":4,"num_key_value_heads":4,)"
        R"("intermediate_size":128,"model_type":"mistral","tie_word_embeddings":true,"sliding_window":)" +
            std::to_string(window));
  }
};

}  // namespace sluice::test
