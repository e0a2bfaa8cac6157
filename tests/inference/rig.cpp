#include "tests/inference/rig.h"

#include <fstream>

#include "src/device/calibrate.h"
#include "src/device/profile.h"
#include "src/train/run/trainer.h"

namespace sluice {

std::filesystem::path InferenceTest::folder_;
double InferenceTest::trained_loss_ = 0;

std::string rhyme(std::size_t bytes) {
  const std::vector<std::string> words{"the ", "rain ", "in ", "spain ", "falls ", "mainly ", "on ", "plains\n"};
  std::string text;
  for (std::size_t i = 0; text.size() < bytes; ++i) text += words[(i * i + i / 7) % words.size()];
  text.resize(bytes);
  return text;
}

void InferenceTest::write_profile(const std::string& path, const std::string& model, BatchShape shape, Dtype dtype) {
  HardwareProfile profile;
  profile.machine = machine_id();
  if (std::filesystem::exists(path)) profile = expect_ok(load_profile(path));
  profile.drives[drive_key(std::vector<std::string>{std::filesystem::path(path).parent_path()})] = {};
  const ModelSpec spec = build_model(expect_ok(load_config(model)));
  Workload workload;
  workload.model = &spec;
  workload.shape = shape;
  workload.dtype = dtype;
  for (const Sublayer s : {Sublayer::embed, Sublayer::attention, Sublayer::mlp, Sublayer::head})
    for (const OpKind k : {OpKind::forward, OpKind::recompute, OpKind::backward, OpKind::backward_again,
                           OpKind::forward_backward, OpKind::loss, OpKind::logits})
      profile.op_seconds[cost_key(workload, s, k)] = 1e-4;
  const Status saved = save_profile(path, profile);
  ASSERT_TRUE(saved.ok()) << saved.error().message;
}

RunConfig InferenceTest::config(Dtype dtype, std::int64_t sequence) {
  RunConfig c;
  c.model = c.init = model();
  c.dtype = dtype;
  c.sequence = sequence;
  c.batch = c.micro_batch = 1;
  c.threads = c.optimizer_threads = 1;
  c.device_memory = 64u << 20;
  c.host_memory = 64u << 20;
  c.profile = path("profile.json");
  return c;
}

std::unique_ptr<Prepared> InferenceTest::decode(RunConfig config, std::int64_t tokens) {
  config.steps = tokens;
  write_profile(config.profile, config.model, {1, config.sequence}, config.dtype);
  return expect_ok(prepare(config, Purpose::decode, {}));
}

std::unique_ptr<Prepared> InferenceTest::evaluate(const RunConfig& config) {
  write_profile(config.profile, config.model, {config.micro_batch, config.sequence}, config.dtype);
  return expect_ok(prepare(config, Purpose::evaluate, {}));
}

void InferenceTest::SetUpTestSuite() {
  std::string pattern = (std::filesystem::temp_directory_path() / "sluice-inference-XXXXXX").string();
  ASSERT_NE(mkdtemp(pattern.data()), nullptr);
  folder_ = pattern;
  std::filesystem::create_directory(path("swap"));
  setenv("XDG_CACHE_HOME", path("cache").c_str(), 1);
  std::ofstream(text()) << rhyme(20000);
  RunConfig c = config(Dtype::f32, 64);
  c.model = "llama-tiny";
  c.init.clear();
  c.data = text();
  c.run = model();
  c.steps = 12;
  c.batch = 4;
  c.micro_batch = 2;
  c.eval_batches = 3;
  c.optimizer.lr = 3e-3;
  c.optimizer.warmup_steps = 2;
  write_profile(c.profile, c.model, {2, 64}, c.dtype);
  const auto run = expect_ok(prepare(c, Purpose::train, {}));
  TrainObserver silent;
  RunDirectory directory = expect_ok(RunDirectory::open(c.run));
  const auto trainer = expect_ok(Trainer::create(*run, silent, &directory));
  const std::atomic<bool> stop{false};
  trained_loss_ = expect_ok(trainer->run(stop)).eval_loss().value();
}

void InferenceTest::TearDownTestSuite() { std::filesystem::remove_all(folder_); }

}  // namespace sluice
