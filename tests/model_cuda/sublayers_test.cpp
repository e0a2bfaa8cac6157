// The sublayers with CUDA's kernels beside the CPU's, on the model of a device that is host memory.
#include "src/device/cuda/sublayers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <tuple>
#include <vector>

#include "tests/model/model_runner.h"
#include "tests/model/models.h"

namespace sluice {
namespace {

using test::Computer;
using test::ModelRunner;

class CudaSublayers : public testing::TestWithParam<std::tuple<ModelConfig, Dtype>> {
 protected:
  void SetUp() override {
    auto libraries = CudaLibraries::open({}, false);
    ASSERT_TRUE(libraries.ok()) << libraries.error().message;
    libraries_ = std::move(*libraries);
    stream_ = std::make_unique<kernels::cuda::Stream>(nullptr);
    kernels_ = std::make_unique<CudaKernels>(*stream_, libraries_);
  }
  Computer cuda() {
    return {&cuda_kernel_sizes, [this](OpKind op, const SublayerArgs& args) {
              const Status status = run_sublayer_on_cuda(*kernels_, op, args);
              ASSERT_TRUE(status.ok()) << status.error().message;
            }};
  }
  const ModelConfig& config() const { return std::get<0>(GetParam()); }
  Dtype dtype() const { return std::get<1>(GetParam()); }
  double tolerance() const { return dtype() == Dtype::f32 ? 2e-5 : 3e-2; }

  CudaLibraries libraries_;
  std::unique_ptr<kernels::cuda::Stream> stream_;
  std::unique_ptr<CudaKernels> kernels_;
};

double relative_error(std::span<const float> got, std::span<const float> expected) {
  double difference = 0, norm = 1e-12;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(static_cast<double>(got[i]) - static_cast<double>(expected[i]), 2);
    norm += std::pow(static_cast<double>(expected[i]), 2);
  }
  return std::sqrt(difference / norm);
}

TEST_P(CudaSublayers, ComputeWhatTheCpuComputes) {
  const BatchShape shape{2, 70};
  const auto tokens = test::some_tokens(shape, config().vocabulary, 3);
  std::vector<std::int32_t> positions;
  for (int row = 0; row < 2; ++row)
    for (const int length : {9, 1, 40, 20})
      for (int t = 0; t < length; ++t) positions.push_back(t);
  for (const bool documents : {false, true}) {
    SCOPED_TRACE(documents ? "documents" : "one document");
    ModelRunner cpu(config(), shape, dtype()), device(config(), shape, dtype(), 0, cuda());
    double losses[2];
    for (ModelRunner* run : {&cpu, &device}) {
      run->initialise(5);
      if (documents) run->set_positions(positions);
      run->forward(tokens.data());
      losses[run == &device] = run->backward(tokens.data(), 1.0 / 140);
      run->add_tied_gradient();
    }
    EXPECT_NEAR(losses[1], losses[0], tolerance() * losses[0] / 10);
    EXPECT_LE(relative_error(device.logits(), cpu.logits()), tolerance());
    for (std::size_t u = 0; u < cpu.spec.units.size(); ++u)
      for (const TensorSpec& t : cpu.spec.units[u].tensors)
        EXPECT_LE(relative_error({device.gradients[u].as<float>() + t.offset, t.numel},
                                 {cpu.gradients[u].as<float>() + t.offset, t.numel}),
                  tolerance())
            << t.name;
  }
}

TEST_P(CudaSublayers, RecomputeAndAccumulateToTheSameBits) {
  const BatchShape shape{2, 70};
  const auto first = test::some_tokens(shape, config().vocabulary, 3),
             second = test::some_tokens(shape, config().vocabulary, 4);
  std::vector<std::vector<float>> kept;
  for (const bool again : {false, true}) {
    ModelRunner run(config(), shape, dtype(), 0, cuda());
    run.initialise(5);
    bool accumulate = false;
    for (const auto* tokens : {&first, &second}) {
      run.forward(tokens->data());
      if (again) run.recompute(ModelRunner::Again::halves);
      run.backward(tokens->data(), 1.0 / 280, accumulate);
      accumulate = true;
    }
    for (std::size_t u = 0; u < run.spec.units.size(); ++u) {
      const float* gradient = run.gradients[u].as<float>();
      std::vector<float> all(gradient, gradient + run.spec.units[u].numel);
      if (again) {
        EXPECT_TRUE(all == kept[u]) << run.spec.units[u].name;
      } else {
        kept.push_back(std::move(all));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CudaSublayers,
                         testing::Combine(testing::ValuesIn(test::small_models()),
                                          testing::Values(Dtype::f32, Dtype::bf16)),
                         [](const auto& p) {
                           return std::get<0>(p.param).name + "_" + dtype_name(std::get<1>(p.param));
                         });

}  // namespace
}  // namespace sluice
