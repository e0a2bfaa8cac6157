// A small model, trained once, that tests read from in many ways.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "src/train/inference/inference.h"

namespace sluice {

template <class T>
T expect_ok(Result<T> result) {
  if (result.ok()) return std::move(result).value();
  ADD_FAILURE() << result.error().message;
  std::abort();
}

/// English-like text that a model learns something from in a few steps.
std::string rhyme(std::size_t bytes);

class InferenceTest : public testing::Test {
 protected:
  /// Trains llama-tiny in fp32 for a few steps into model().
  static void SetUpTestSuite();
  static void TearDownTestSuite();

  static std::string path(const std::string& name) { return (folder_ / name).string(); }
  static std::string model() { return path("model"); }
  static std::string text() { return path("text"); }

  /// A config on one thread, on model()'s weights, with a profile that makes measuring needless.
  static RunConfig config(Dtype dtype, std::int64_t sequence);
  static std::unique_ptr<Prepared> decode(RunConfig config, std::int64_t tokens);
  static std::unique_ptr<Prepared> evaluate(const RunConfig& config);
  /// Makes up the seconds of every op, so that nothing is measured: schedules depend on them, results must not.
  static void write_profile(const std::string& path, const std::string& model, BatchShape shape, Dtype dtype);

  static std::filesystem::path folder_;
  static double trained_loss_;  ///< held-out, as training reported it
};

}  // namespace sluice
