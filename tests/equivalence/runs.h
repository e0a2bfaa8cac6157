// Short training runs of a tiny model with a schedule that is given, and everything that may be compared of them.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "io/tokens/token_sink.h"
#include "src/device/profile.h"
#include "src/train/run/trainer.h"
#include "tests/scratch_dir.h"

namespace sluice::test {

inline constexpr PipelineChoice gpipe{PipelineOrder::gpipe, 1}, interleaved{PipelineOrder::interleaved, 2},
    zb_h1{PipelineOrder::zb_h1, 1}, zb_v{PipelineOrder::zb_v, 2};

struct Outcome {
  std::vector<std::uint64_t> loss_bits, norm_bits;
  std::vector<double> losses;
  std::uint64_t state_hash = 0;
  double eval_loss = 0;
  MovedBytes moved;  ///< of all training steps
  std::uint64_t device_peak = 0, host_peak = 0, nvme_peak = 0;
};

/// A folder with text to train on, a profile of this machine that needs no measuring, and model configurations.
class Bench {
 public:
  Bench() {
    setenv("XDG_CACHE_HOME", (std::filesystem::absolute(folder_) / "cache").c_str(), 1);
    std::filesystem::create_directory(folder_ / "drive");
    std::ofstream text(folder_ / "text.txt");
    for (int i = 0; i < 6000; ++i) text << static_cast<char>('a' + (i * i + i / 7) % 26) << (i % 11 == 0 ? " " : "");
    text.close();
    profile_.machine = machine_id();
    profile_.optimizer_threads = 1;
    profile_.drives[drive_key(std::vector<std::string>{folder_ / "drive"})] = {};
    know_device("model of a CUDA device");  // tests/machine
  }

  /// Devices of that kind are not measured: their rates matter to no test, and those of a large card take longer than
  /// the tests.
  void know_device(const std::string& kind) {
    profile_.devices[kind] = {};
    const Status saved = save_profile(folder_ / "profile.json", profile_);
    SLUICE_CHECK(saved.ok(), "(%s)", saved.error().message.c_str());
  }

  /// A token file of documents packed for sequences of 32, of whose tokens two in three count in the loss.
  std::string packed_documents() const {
    auto writer = TokenWriter::create(path("packed.tokens"), 256, {.mask = true, .sequence = 32});
    SLUICE_CHECK(writer.ok(), "(%s)", writer.error().message.c_str());
    std::vector<std::int32_t> tokens;
    std::vector<std::uint8_t> mask;
    for (int row = 0; row < 200; ++row)
      for (int begin = 0, length = 1; begin < 32; begin += length) {
        length = std::min(1 + (row * 7 + begin * 5) % 23, 32 - begin);
        tokens.clear(), mask.clear();
        for (int i = 0; i < length; ++i) {
          tokens.push_back('a' + (i * i + i / 7 + row % 3) % 26);
          mask.push_back(static_cast<std::uint8_t>((row + i) % 3 != 0));
        }
        SLUICE_CHECK(writer->append(tokens, mask).ok(), "(%d)", row);
        writer->end_document();
      }
    SLUICE_CHECK(writer->finish().ok(), "(%s)", path("packed.tokens").c_str());
    return path("packed.tokens");
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  std::string model(int layers, bool tied) const {
    const auto path = folder_ / ("model" + std::to_string(layers) + (tied ? "t" : "u") + ".json");
    std::ofstream(path)
        << R"({"model_type":"llama","vocab_size":256,"hidden_size":64,"intermediate_size":128,)"
        << R"("num_attention_heads":4,"num_key_value_heads":2,"head_dim":16,"max_position_embeddings":64,)"
        << R"("rms_norm_eps":1e-5,"rope_theta":10000.0,"hidden_act":"silu","num_hidden_layers":)" << layers
        << R"(,"tie_word_embeddings":)" << (tied ? "true" : "false") << "}";
    return path;
  }

  RunConfig config(int layers, bool tied, Dtype dtype, std::int64_t steps) const {
    RunConfig c;
    c.model = model(layers, tied);
    c.data = folder_ / "text.txt";
    c.steps = steps;
    c.sequence = 32;
    c.micro_batch = 1;
    c.batch = 4;
    c.dtype = dtype;
    c.optimizer.clip_norm = 0;
    c.optimizer.warmup_steps = 2;
    c.optimizer.lr = 3e-3;
    c.eval_batches = 1;
    c.nvme = {folder_ / "drive"};
    c.nvme_space = 1ull << 30;
    c.device_memory = c.host_memory = 1ull << 30;
    c.queue_depth = 8;
    c.threads = c.optimizer_threads = 1;
    c.profile = folder_ / "profile.json";
    return c;
  }

 private:
  // Not in a memory file system where there is a choice: those have no direct I/O.
  const ScratchDir scratch_{ScratchDir::disk()};
  const std::filesystem::path folder_ = scratch_.path();
  HardwareProfile profile_;
};

class Recorder final : public TrainObserver {
 public:
  explicit Recorder(Outcome& out) : out_(out) {}
  void step(const StepRecord& r) override {
    out_.losses.push_back(r.loss);
    out_.loss_bits.push_back(std::bit_cast<std::uint64_t>(r.loss));
    out_.norm_bits.push_back(std::bit_cast<std::uint64_t>(r.grad_norm));
    out_.device_peak = r.device_peak_bytes;
    out_.host_peak = r.host_peak_bytes;
    out_.nvme_peak = r.nvme_peak_bytes;
  }

 private:
  Outcome& out_;
};

inline Outcome run(const Prepared& prepared) {
  Outcome out;
  Recorder recorder(out);
  auto trainer = Trainer::create(prepared, recorder);
  EXPECT_TRUE(trainer.ok()) << trainer.error().message;
  if (!trainer.ok()) return out;
  const std::atomic<bool> stop{false};
  const auto result = (*trainer)->run(stop);
  EXPECT_TRUE(result.ok()) << result.error().message;
  if (!result.ok()) return out;
  const auto hash = (*trainer)->engine().states().state_hash();
  EXPECT_TRUE(hash.ok()) << hash.error().message;
  if (!hash.ok()) return out;
  out.state_hash = *hash;
  out.eval_loss = result->eval_loss().value_or(0);
  out.moved = (*trainer)->engine().team().moved();
  return out;
}

inline std::unique_ptr<Prepared> prepared_with(const RunConfig& config, const Schedule& schedule) {
  auto prepared = prepare_with(config, Purpose::train, schedule);
  EXPECT_TRUE(prepared.ok()) << prepared.error().message;
  if (!prepared.ok()) return nullptr;
  EXPECT_TRUE((*prepared)->search.fits) << does_not_fit(**prepared).message;
  return std::move(*prepared);
}

/// Of a run of one rank; durable ones with updates in both passes write less in their first step.
inline LinkBytes moved_by(const Prepared& p) {
  const StagePlans& stage = p.stages.front();
  const StepPlan& last = p.search.schedule.mixes() ? stage.flush_late : stage.flush;
  const LinkBytes train = plan_link_bytes(p.main()), flush = plan_link_bytes(last),
                  eval = plan_link_bytes(stage.evaluate);
  const auto steps = static_cast<std::uint64_t>(p.config.steps);
  const auto sum = [&](auto field) { return train.*field * steps + flush.*field + eval.*field; };
  return {sum(&LinkBytes::nvme_read), sum(&LinkBytes::nvme_write), sum(&LinkBytes::h2d),
          sum(&LinkBytes::d2h),       sum(&LinkBytes::collective), sum(&LinkBytes::message)};
}

/// Such a run, held against its plan: bytes on every link, peak of every arena.
inline Outcome measured(const RunConfig& c, const Schedule& s) {
  const auto prepared = prepared_with(c, s);
  if (!prepared) return {};
  const Outcome out = run(*prepared);
  const LinkBytes plan = moved_by(*prepared);
  EXPECT_EQ(out.moved.nvme_read, plan.nvme_read);
  EXPECT_EQ(out.moved.nvme_write, plan.nvme_write);
  EXPECT_EQ(out.moved.h2d, plan.h2d);
  EXPECT_EQ(out.moved.d2h, plan.d2h);
  EXPECT_EQ(out.device_peak, prepared->arena_of_machine(Tier::device).arena_bytes);
  EXPECT_EQ(out.host_peak, prepared->arena_of_machine(Tier::host).arena_bytes);
  EXPECT_EQ(out.nvme_peak, prepared->arena_of_machine(Tier::nvme).arena_bytes);
  return out;
}

inline void expect_same(const Outcome& a, const Outcome& b) {
  const auto differ = [](const auto& x, const auto& y) {
    return std::mismatch(x.begin(), x.end(), y.begin(), y.end()).first - x.begin();
  };
  EXPECT_TRUE(a.loss_bits == b.loss_bits) << "losses differ first at step " << differ(a.loss_bits, b.loss_bits) + 1;
  EXPECT_TRUE(a.norm_bits == b.norm_bits) << "norms differ first at step " << differ(a.norm_bits, b.norm_bits) + 1;
  EXPECT_EQ(a.state_hash, b.state_hash);
  EXPECT_EQ(std::bit_cast<std::uint64_t>(a.eval_loss), std::bit_cast<std::uint64_t>(b.eval_loss));
}

}  // namespace sluice::test
