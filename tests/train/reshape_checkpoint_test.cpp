// Checkpoints in other layouts and formats: the same bits, whatever way round.
#include "src/train/states/reshape_checkpoint.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "io/checkpoint/verify.h"
#include "src/train/states/diff_checkpoints.h"
#include "tests/scratch_dir.h"
#include "tests/train/made_checkpoint.h"

namespace sluice::test {
namespace {

class Reshape : public ::testing::Test {
 protected:
  std::string in(const std::string& name) const { return scratch_ / name; }
  static ReshapeRequest request(const std::string& parent, const LayoutDegrees& degrees) {
    ReshapeRequest r;
    r.parent = parent;
    r.degrees = degrees;
    return r;
  }
  Result<ReshapeResult> reshape(const std::string& from, const ReshapeRequest& r) {
    SLUICE_ASSIGN(Checkpoint opened, Checkpoint::open(from));
    return reshape_checkpoint(opened, r, {});
  }
  /// Every block of it too has its checksum.
  void expect_whole(const std::string& path) {
    auto opened = Checkpoint::open(path);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    const Status whole = verify_checkpoint(*opened, {}, [](std::uint64_t) { return success(); });
    EXPECT_TRUE(whole.ok()) << whole.error().message;
  }
  bool same(const std::string& a, const std::string& b) {
    auto one = Checkpoint::open(a), other = Checkpoint::open(b);
    EXPECT_TRUE(one.ok() && other.ok());
    const auto diff = diff_checkpoints(*one, *other, {}, {});
    EXPECT_TRUE(diff.ok()) << (diff.ok() ? "" : diff.error().message);
    return diff.ok() && diff->same();
  }
  /// Through all of the layouts, one after the other; each is compared with the values.
  void go_round(const ModelSpec& model, const StoredFormats& formats, const std::vector<LayoutDegrees>& layouts) {
    std::filesystem::remove_all(in("0"));
    const auto made = make_checkpoint(in("0"), model, layouts.front(), formats);
    ASSERT_TRUE(made.ok()) << made.error().message;
    const Tensors values = whole_tensors(*made);
    if (formats.moments == MomentFormat::f32) {
      ASSERT_TRUE(same_bits(values, made_tensors(model)));
    }
    std::string from = in("0");
    for (std::size_t i = 1; i < layouts.size(); ++i) {
      const std::string to = in(std::to_string(i));
      std::filesystem::remove_all(to);
      const auto result = reshape(from, request(to, layouts[i]));
      ASSERT_TRUE(result.ok()) << result.error().message;
      EXPECT_EQ(result->encoded_blocks, 0u) << i;
      EXPECT_TRUE(result->exact);
      EXPECT_TRUE(same_bits(whole_tensors(to), values)) << i;
      EXPECT_TRUE(same(from, to)) << i;
      expect_whole(to);
      from = to;
    }
    EXPECT_TRUE(manifest_of(in("0")) == manifest_of(from)) << "the last layout is the first one: so are all checksums";
  }

  /// What it is, but for the structure of its files, in which HDF5 says when they were made.
  static Manifest manifest_of(const std::string& path) {
    auto opened = Checkpoint::open(path);
    EXPECT_TRUE(opened.ok()) << (opened.ok() ? "" : opened.error().message);
    Manifest m = opened.ok() ? opened->manifest() : Manifest{};
    for (StoredFile& file : m.files) file.structure = 0;
    return m;
  }

  ScratchDir scratch_{"/dev/shm"};  // syncs are many
};

constexpr StoredFormats f32{}, bf16_all{Dtype::bf16, MomentFormat::bf16, 1}, mixed{Dtype::bf16, MomentFormat::f32, 1},
    int8_small{Dtype::bf16, MomentFormat::int8, 4096}, int8_large{Dtype::f32, MomentFormat::int8, 1u << 18};

TEST_F(Reshape, EveryLayoutHasTheSameBits) {
  const std::vector<LayoutDegrees> layouts{{2, 1, 2, 1}, {1, 3, 2, 1}, {1, 1, 1, 1}, {3, 2, 4, 1},
                                           {1, 2, 3, 2}, {2, 5, 1, 1}, {2, 1, 2, 1}};
  for (const auto& [name, model] : small_models())
    for (const StoredFormats& formats : {f32, bf16_all, mixed}) {
      SCOPED_TRACE(name);
      go_round(model, formats, layouts);
    }
}

/// Blocks of 256 elements are of the flat buffer of a part, and shards cut none.
TEST_F(Reshape, EightBitMomentsChangeNotWhilePartsStay) {
  for (const auto& [name, model] : small_models())
    for (const StoredFormats& formats : {int8_small, int8_large}) {
      SCOPED_TRACE(name);
      go_round(model, formats, {{1, 1, 1, 1}, {1, 3, 1, 1}, {2, 1, 1, 2}, {4, 1, 1, 1}, {1, 7, 1, 1}, {1, 1, 1, 1}});
      go_round(model, formats, {{1, 1, 2, 1}, {2, 3, 2, 1}, {1, 1, 2, 2}, {1, 1, 2, 1}});
    }
}

TEST_F(Reshape, EightBitMomentsThatAreCutAnewAreCounted) {
  for (const auto& [name, model] : small_models()) {
    SCOPED_TRACE(name);
    std::filesystem::remove_all(in("from"));
    std::filesystem::remove_all(in("to"));
    ASSERT_TRUE(make_checkpoint(in("from"), model, {1, 1, 1, 1}, int8_small).ok());
    const auto result = reshape(in("from"), request(in("to"), {1, 1, 2, 1}));
    ASSERT_TRUE(result.ok()) << result.error().message;
    EXPECT_GT(result->encoded_blocks, 0u);
    EXPECT_FALSE(result->exact);
    const Tensors before = whole_tensors(in("from")), after = whole_tensors(in("to"));
    for (const auto& [tensor, values] : before) {
      const std::vector<float>& now = after.at(tensor);
      float largest = 0;
      for (const float value : values) largest = std::max(largest, std::fabs(value));
      for (std::size_t i = 0; i < values.size(); ++i) {
        const float error = tensor.starts_with("parameter") ? 0 : largest * 0.03f;
        ASSERT_NEAR(values[i], now[i], error) << tensor << i;
      }
    }
  }
}

TEST_F(Reshape, ParametersChangeTheirFormatAndBack) {
  for (const auto& [name, model] : small_models()) {
    SCOPED_TRACE(name);
    for (const char* folder : {"f32", "bf16", "back"}) std::filesystem::remove_all(in(folder));
    ASSERT_TRUE(make_checkpoint(in("f32"), model, {1, 2, 1, 1}, f32).ok());
    ReshapeRequest narrow = request(in("bf16"), {2, 1, 2, 1}), wide = request(in("back"), {1, 2, 1, 1});
    narrow.parameters = Dtype::bf16;
    wide.parameters = Dtype::f32;
    const auto narrowed = reshape(in("f32"), narrow), widened = reshape(in("bf16"), wide);
    ASSERT_TRUE(narrowed.ok() && widened.ok());
    EXPECT_TRUE(narrowed->exact && widened->exact);
    EXPECT_TRUE(same(in("f32"), in("bf16")));
    const Manifest first = manifest_of(in("f32")), last = manifest_of(in("back"));
    EXPECT_TRUE(first.files == last.files) << "checksums too";
    EXPECT_EQ(first.run, last.run);
    EXPECT_NE(manifest_of(in("bf16")).model.find("bfloat16"), std::string::npos);
  }
}

TEST_F(Reshape, MomentsChangeTheirFormat) {
  const ModelSpec model = small_models().at("gpt2");
  ASSERT_TRUE(make_checkpoint(in("f32"), model, {1, 2, 1, 1}, f32).ok());
  std::string from = in("f32");
  for (const auto& [format, exact] : {std::pair{MomentFormat::bf16, false},
                                      {MomentFormat::f32, true},
                                      {MomentFormat::int8, false},
                                      {MomentFormat::f32, true}}) {
    ReshapeRequest r = request(in("next"), {1, 1, 2, 1});
    r.moments = format;
    std::filesystem::remove_all(in("next"));
    const auto result = reshape(from, r);
    ASSERT_TRUE(result.ok()) << result.error().message;
    EXPECT_EQ(result->exact, exact);
    if (exact) {
      EXPECT_TRUE(same(from, in("next")));
    }
    const Tensors all = made_tensors(model), now = whole_tensors(in("next"));
    for (const auto& [name, values] : all) {
      double squares = 0, norm = 0;
      for (std::size_t i = 0; i < values.size(); ++i) {
        squares += std::pow(static_cast<double>(values[i]) - now.at(name)[i], 2);
        norm += std::pow(static_cast<double>(values[i]), 2);
      }
      EXPECT_LE(std::sqrt(squares), name.starts_with("parameter") ? 0 : 0.03 * std::sqrt(norm)) << name;
    }
    std::filesystem::remove_all(in("kept"));
    std::filesystem::rename(in("next"), in("kept"));
    from = in("kept");
  }
}

/// States that are not there are not made up.
TEST_F(Reshape, ParametersAloneStayAlone) {
  const ModelSpec model = small_models().at("llama");
  ASSERT_TRUE(make_checkpoint(in("from"), model, {1, 2, 2, 1}, mixed, false, false).ok());
  ASSERT_TRUE(reshape(in("from"), request(in("to"), {2, 1, 1, 1})).ok());
  auto to = Checkpoint::open(in("to"));
  ASSERT_TRUE(to.ok());
  for (const StoredFile& file : to->manifest().files)
    for (const StoredUnit& unit : file.units) EXPECT_EQ(unit.states.size(), 1u);
  EXPECT_TRUE(same_bits(whole_tensors(in("from"), false), whole_tensors(in("to"), false)));
  EXPECT_TRUE(same(in("from"), in("to")));
}

TEST_F(Reshape, StagesAreAsEvenAsUnitsAllow) {
  ModelSpec model = small_models().at("llama");
  const auto sizes = [&](std::vector<std::uint64_t> numels) {
    model.units.resize(numels.size(), model.units.front());
    for (std::size_t u = 0; u < numels.size(); ++u) model.units[u].numel = numels[u] * 4096;
  };
  sizes({9, 1, 2, 1, 2, 1, 2, 9});
  EXPECT_EQ(cut_into_stages(model, 1), (std::vector<std::size_t>{0, 8}));
  EXPECT_EQ(cut_into_stages(model, 3), (std::vector<std::size_t>{0, 1, 7, 8}));
  sizes({1, 1, 1, 1, 1, 1, 1});
  EXPECT_EQ(cut_into_stages(model, 7), (std::vector<std::size_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  for (const std::uint32_t stages : {2, 3, 4, 5}) {
    const std::vector<std::size_t> first = cut_into_stages(model, stages);
    for (std::size_t s = 0; s < stages; ++s) {
      EXPECT_LE(first[s + 1] - first[s], (7 + stages - 1) / stages);
      EXPECT_GE(first[s + 1] - first[s], 7 / stages);
    }
  }
}

TEST_F(Reshape, WhatCanNotBeIsRefused) {
  const ModelSpec model = small_models().at("llama");
  ASSERT_TRUE(make_checkpoint(in("from"), model, {1, 1, 1, 1}, f32).ok());
  const auto refused = [&](const ReshapeRequest& r, const std::string& what) {
    const auto result = reshape(in("from"), r);
    ASSERT_FALSE(result.ok()) << what;
    EXPECT_EQ(result.error().code, ErrorCode::bad_request);
    EXPECT_NE(result.error().message.find(what), std::string::npos) << result.error().message;
    EXPECT_FALSE(std::filesystem::exists(r.parent));
  };
  refused(request(in("to"), {0, 1, 1, 1}), "--pp 0");
  refused(request(in("to"), {99, 1, 1, 1}), "--pp 99");
  refused(request(in("to"), {1, 1, 5, 1}), "--tp 5");
  refused(request(in("to"), {1, 70000, 1, 1}), "--dp 70000");
  ReshapeRequest little = request(in("to"), {1, 1, 1, 1});
  little.memory_bytes = 16u << 20;
  refused(little, "--host-memory 16 MiB is too little");
  ASSERT_TRUE(reshape(in("from"), request(in("to"), {1, 2, 1, 1})).ok());
  const auto again = reshape(in("from"), request(in("to"), {1, 1, 1, 1}));
  ASSERT_FALSE(again.ok());
  EXPECT_NE(again.error().message.find("is there already"), std::string::npos) << again.error().message;
}

/// What is needed is enough.
TEST_F(Reshape, LittleMemoryMakesTheSameFiles) {
  const ModelSpec model = small_models().at("gpt2");
  ASSERT_TRUE(make_checkpoint(in("from"), model, {2, 2, 2, 1}, f32).ok());
  ReshapeRequest little = request(in("little"), {1, 2, 3, 1});
  little.memory_bytes = 0;
  const auto refused = reshape(in("from"), little);
  ASSERT_FALSE(refused.ok());
  for (little.memory_bytes = 32u << 20; !reshape(in("from"), little).ok();) little.memory_bytes += 1u << 20;
  ASSERT_TRUE(reshape(in("from"), request(in("much"), {1, 2, 3, 1})).ok());
  EXPECT_TRUE(manifest_of(in("little")) == manifest_of(in("much")));
}

/// All parts have some of every row of a matrix whose columns are cut: still each block is read once.
TEST_F(Reshape, WhatPartsHaveInCommonIsReadOnce) {
  ModelConfig config;
  config.hidden = 1024;
  config.ffn = 4096;
  config.layers = 1;
  config.heads = config.kv_heads = 16;
  config.head_dim = 64;
  ASSERT_TRUE(make_checkpoint(in("from"), build_model(config), {1, 1, 1, 1}, f32, false, false).ok());
  auto opened = Checkpoint::open(in("from"));
  ASSERT_TRUE(opened.ok());
  ReshapeRequest r = request(in("to"), {1, 1, 8, 1});
  r.memory_bytes = 0;
  const auto refused = reshape_checkpoint(*opened, r, {});
  ASSERT_FALSE(refused.ok());
  const std::string text = refused.error().message, takes = "it takes ";
  r.memory_bytes = std::stoull(text.substr(text.find(takes) + takes.size())) << 20;
  const auto result = reshape_checkpoint(*opened, r, {});
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_LE(result->read_bytes, opened->manifest().state_bytes());
  // Shards whose bounds are within blocks are written side by side.
  const auto shards = reshape_checkpoint(*opened, request(in("shards"), {1, 5, 2, 1}), {});
  ASSERT_TRUE(shards.ok()) << shards.error().message;
  EXPECT_LE(shards->read_bytes, opened->manifest().state_bytes());
}

TEST_F(Reshape, DamageIsNamedAndLeavesNothing) {
  const ModelSpec model = small_models().at("llama");
  const auto made = make_checkpoint(in("from"), model, {1, 2, 1, 1}, f32);
  ASSERT_TRUE(made.ok());
  auto opened = Checkpoint::open(in("from"));
  ASSERT_TRUE(opened.ok());
  const StoredUnit& unit = opened->manifest().files[1].units[2];
  const std::string file = *made + "/rank-00001.h5";
  std::fstream damaged(file, std::ios::binary | std::ios::in | std::ios::out);
  const auto at = static_cast<std::streamoff>(unit.states[1].offset + 100);
  damaged.seekg(at);
  const char byte = static_cast<char>(damaged.get() ^ 1);
  damaged.seekp(at);
  damaged.put(byte);
  damaged.close();
  const auto result = reshape(in("from"), request(in("to"), {1, 1, 2, 1}));
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::bad_request);
  EXPECT_NE(result.error().message.find("rank-00001.h5: block 0 of /" + unit.name + "/exp_avg"), std::string::npos)
      << result.error().message;
  EXPECT_FALSE(std::filesystem::exists(in("to")));
}

TEST_F(Reshape, FaultsOfTheDriveLeaveNothing) {
  const ModelSpec model = small_models().at("llama");
  ASSERT_TRUE(make_checkpoint(in("from"), model, {1, 1, 1, 1}, f32).ok());
  for (const int error : {EIO, ENOSPC})
    for (const bool writes : {true, false})
      for (const std::uint64_t n : {1, 5, 9}) {
        ReshapeRequest r = request(in("to"), {1, 2, 2, 1});
        FaultOptions& faults = (writes ? r.writes : r.reads).faults.emplace();
        faults.fail_target = writes ? FaultOptions::Target::write : FaultOptions::Target::read;
        faults.fail_nth = n;
        faults.fail_errno = error;
        const auto result = reshape(in("from"), r);
        ASSERT_FALSE(result.ok());
        EXPECT_EQ(result.error().code, ErrorCode::fault) << result.error().message;
        EXPECT_FALSE(std::filesystem::exists(in("to")));
      }
  std::size_t heard = 0;
  auto opened = Checkpoint::open(in("from"));
  ASSERT_TRUE(opened.ok());
  const auto stopped = reshape_checkpoint(*opened, request(in("to"), {1, 2, 2, 1}), [&](double fraction) -> Status {
    EXPECT_TRUE(fraction > 0 && fraction < 1);
    if (++heard == 4) return Error{ErrorCode::cancelled, "enough"};
    return success();
  });
  ASSERT_FALSE(stopped.ok());
  EXPECT_EQ(stopped.error().code, ErrorCode::cancelled);
  EXPECT_FALSE(std::filesystem::exists(in("to")));
}

TEST_F(Reshape, DifferencesAreMeasured) {
  const ModelSpec model = small_models().at("llama");
  ASSERT_TRUE(make_checkpoint(in("a"), model, {1, 1, 1, 1}, f32).ok());
  ASSERT_TRUE(make_checkpoint(in("b"), model, {1, 2, 2, 1}, bf16_all).ok());
  ASSERT_TRUE(make_checkpoint(in("alone"), model, {1, 2, 2, 1}, mixed, false, false).ok());
  ASSERT_TRUE(make_checkpoint(in("other"), small_models().at("gpt2"), {1, 1, 1, 1}, f32).ok());
  const auto diff = [&](const std::string& x, const std::string& y) {
    auto a = Checkpoint::open(in(x)), b = Checkpoint::open(in(y));
    EXPECT_TRUE(a.ok() && b.ok());
    return diff_checkpoints(*a, *b, {}, {});
  };
  const auto rounded = diff("a", "b");
  ASSERT_TRUE(rounded.ok()) << rounded.error().message;
  const Tensors a = made_tensors(model), b = whole_tensors(in("b"));
  std::size_t expected = 0;
  for (const auto& [name, values] : a) {
    double largest = 0, squares = 0, norm = 0;
    std::uint64_t different = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double d = std::fabs(static_cast<double>(values[i]) - b.at(name)[i]);
      different += d != 0;
      largest = std::max(largest, d);
      squares += d * d;
      norm += static_cast<double>(values[i]) * values[i];
    }
    if (different == 0) continue;
    ++expected;
    const auto found = std::find_if(rounded->differences.begin(), rounded->differences.end(), [&](const auto& d) {
      return std::string(state_names[static_cast<std::size_t>(d.kind)]) + "." + d.tensor == name;
    });
    ASSERT_NE(found, rounded->differences.end()) << name;
    EXPECT_EQ(found->numel, values.size());
    EXPECT_EQ(found->different, different);
    EXPECT_EQ(found->largest, largest);
    EXPECT_NEAR(found->relative, std::sqrt(squares / norm), 1e-12);
  }
  EXPECT_EQ(rounded->differences.size(), expected);
  EXPECT_GT(expected, 0u);
  const auto alone = diff("alone", "a");
  ASSERT_TRUE(alone.ok());
  EXPECT_EQ(alone->without_moments, 1);
  EXPECT_FALSE(alone->same());
  const auto other = diff("a", "other");
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().code, ErrorCode::bad_request);
  EXPECT_NE(other.error().message.find("another model"), std::string::npos);
}

}  // namespace
}  // namespace sluice::test
