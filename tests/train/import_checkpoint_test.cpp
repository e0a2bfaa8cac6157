// Checkpoints as Hugging Face directories, and back: the same bits.
#include "src/train/states/import_checkpoint.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/weights/safetensors.h"
#include "src/train/states/checkpoint_weights.h"
#include "src/train/states/diff_checkpoints.h"
#include "src/train/states/export_weights.h"
#include "src/train/states/moment_files.h"
#include "tests/scratch_dir.h"
#include "tests/train/made_checkpoint.h"

namespace sluice::test {
namespace {

class Import : public ::testing::Test {
 protected:
  std::string in(const std::string& name) const { return scratch_ / name; }
  Result<ExportResult> export_to(const std::string& from, ExportOptions options) {
    const RestoreListener quiet{[](const std::string&) {},
                                [](const std::string&) -> States::Watch { return [](double) { return success(); }; }};
    SLUICE_ASSIGN(const auto weights, CheckpointWeights::open(from));
    return export_weights(*weights, options, quiet);
  }
  Result<ImportResult> import(const std::string& directory, const std::string& to,
                              std::optional<Dtype> dtype = std::nullopt) {
    std::filesystem::remove_all(to);
    return import_checkpoint({directory, to, dtype, {}}, {});
  }
  bool same(const std::string& a, const std::string& b) {
    auto one = Checkpoint::open(a), other = Checkpoint::open(b);
    EXPECT_TRUE(one.ok() && other.ok());
    const auto diff = diff_checkpoints(*one, *other, {}, {});
    EXPECT_TRUE(diff.ok()) << (diff.ok() ? "" : diff.error().message);
    return diff.ok() && diff->same();
  }

  ScratchDir scratch_{"/dev/shm"};
};

TEST_F(Import, ExportsComeBackAsTheyWere) {
  for (const auto& [name, model] : small_models())
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16})
      for (const std::uint64_t shard_bytes : {~0ull, 100'000ull}) {
        SCOPED_TRACE(name + " " + dtype_name(dtype));
        for (const char* folder : {"from", "model"}) std::filesystem::remove_all(in(folder));
        ASSERT_TRUE(make_checkpoint(in("from"), model, {2, 1, 2, 1}, {dtype, MomentFormat::f32, 1}).ok());
        ExportOptions options;
        options.directory = in("model");
        options.dtype = Dtype::f32;
        options.shard_bytes_max = shard_bytes;
        options.optimizer = true;
        const auto exported = export_to(in("from"), options);
        ASSERT_TRUE(exported.ok()) << exported.error().message;
        EXPECT_EQ(exported->step, 5u);
        const auto imported = import(in("model"), in("back"), dtype);
        ASSERT_TRUE(imported.ok()) << imported.error().message;
        EXPECT_EQ(imported->path, in("back/step-5"));
        EXPECT_TRUE(imported->has_moments);
        EXPECT_EQ(imported->dtype, dtype);
        EXPECT_TRUE(same(in("from"), in("back")));
      }
}

TEST_F(Import, MomentsAreNamedAsTheirTensors) {
  const ModelSpec model = small_models().at("fused");
  ASSERT_TRUE(make_checkpoint(in("from"), model, {1, 3, 1, 1}, {Dtype::bf16, MomentFormat::int8, 4096}).ok());
  ExportOptions options;
  options.directory = in("model");
  options.optimizer = true;
  ASSERT_TRUE(export_to(in("from"), options).ok());
  const auto weights = SafeTensors::open(in("model")), moments = SafeTensors::open(moments_beside(in("model")));
  ASSERT_TRUE(weights.ok() && moments.ok());
  EXPECT_EQ(moments->entries().size(), 2 * weights->entries().size());
  for (const auto& [name, entry] : weights->entries())
    for (const char* state : {"exp_avg.", "exp_avg_sq."}) {
      const TensorEntry* moment = moments->find(state + name);
      ASSERT_NE(moment, nullptr) << name;
      EXPECT_EQ(moment->shape, entry.shape);
      EXPECT_EQ(moment->dtype, TensorDtype::f32);
    }
  const Tensors values = whole_tensors(in("from"));
  const std::string name = "exp_avg_sq.model.norm.weight";
  std::vector<float> stored(values.at(name).size());
  ASSERT_TRUE(moments->read(*moments->find(name), 0, std::as_writable_bytes(std::span(stored))).ok());
  EXPECT_EQ(stored, values.at(name));
}

TEST_F(Import, WeightsAloneAreStepZero) {
  const ModelSpec model = small_models().at("gpt2");
  ASSERT_TRUE(make_checkpoint(in("from"), model, {1, 1, 1, 1}, {Dtype::bf16, MomentFormat::f32, 1}).ok());
  for (const Dtype dtype : {Dtype::bf16, Dtype::f32}) {
    std::filesystem::remove_all(in("model"));
    ExportOptions options;
    options.directory = in("model");
    options.dtype = dtype;
    ASSERT_TRUE(export_to(in("from"), options).ok());
    const auto imported = import(in("model"), in("back"));
    ASSERT_TRUE(imported.ok()) << imported.error().message;
    EXPECT_EQ(imported->path, in("back/step-0"));
    EXPECT_FALSE(imported->has_moments);
    EXPECT_EQ(imported->dtype, dtype) << "what all weights are";
    const Tensors before = whole_tensors(in("from"), false), now = whole_tensors(in("back"), false);
    if (dtype == Dtype::f32) {
      EXPECT_TRUE(same_bits(before, now));
      continue;
    }
    for (const auto& [name, values] : before)
      for (std::size_t i = 0; i < values.size(); ++i) {
        bf16 parameter;
        std::int16_t remainder = 0;
        split_master(&values[i], &parameter, &remainder, 1);
        ASSERT_EQ(now.at(name)[i], to_float(parameter)) << name << i;
      }
  }
}

TEST_F(Import, WhatIsNotTheModelsIsRefused) {
  const ModelSpec model = small_models().at("llama");
  ASSERT_TRUE(make_checkpoint(in("from"), model, {1, 1, 1, 1}, {}).ok());
  ExportOptions options;
  options.directory = in("model");
  options.optimizer = true;
  ASSERT_TRUE(export_to(in("from"), options).ok());
  const auto refused = [&](const std::string& what) {
    const auto imported = import(in("model"), in("back"));
    ASSERT_FALSE(imported.ok()) << what;
    EXPECT_EQ(imported.error().code, ErrorCode::bad_request);
    EXPECT_NE(imported.error().message.find(what), std::string::npos) << imported.error().message;
    EXPECT_FALSE(std::filesystem::exists(in("back")));
  };
  std::filesystem::rename(in("model/optimizer.safetensors"), in("kept"));
  std::filesystem::copy_file(in("model/model.safetensors"), in("model/optimizer.safetensors"));
  refused("optimizer.safetensors");
  std::filesystem::rename(in("kept"), in("model/optimizer.safetensors"));
  std::filesystem::rename(in("model/model.safetensors"), in("kept"));
  refused("model");
  std::filesystem::rename(in("kept"), in("model/model.safetensors"));
  ImportRequest request{in("model"), in("back"), std::nullopt, {}};
  FaultOptions& faults = request.writes.faults.emplace();
  faults.fail_target = FaultOptions::Target::write;
  faults.fail_nth = 3;
  faults.fail_errno = ENOSPC;
  const auto full = import_checkpoint(request, {});
  ASSERT_FALSE(full.ok());
  EXPECT_EQ(full.error().code, ErrorCode::fault);
  EXPECT_FALSE(std::filesystem::exists(in("back")));
  // What has no moments exports none.
  ASSERT_TRUE(make_checkpoint(in("alone"), model, {1, 1, 1, 1}, {}, false, false).ok());
  options.directory = in("none");
  const auto none = export_to(in("alone"), options);
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.error().message.find("--optimizer"), std::string::npos) << none.error().message;
  EXPECT_FALSE(std::filesystem::exists(in("none")));
}

}  // namespace
}  // namespace sluice::test
