#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <set>

#include "io/tokens/token_sink.h"
#include "offload/plan/finish.h"
#include "src/train/data/eval_sets.h"
#include "tests/inference/rig.h"

namespace sluice {
namespace {

const std::atomic<bool> never{false};

std::vector<std::int32_t> bytes_of(const std::string& text) {
  std::vector<std::int32_t> tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

/// Where parameters live, from everything on the device to everything on the drive.
enum class Home { device, host, nvme };

RunConfig at(Home home, RunConfig c, const std::string& swap) {
  c.wish.resident = home == Home::device;
  c.wish.states = home == Home::nvme ? Place::nvme : Place::host;
  if (home == Home::nvme) c.nvme = {swap};
  return c;
}

struct Output {
  std::vector<std::int32_t> tokens;
  std::vector<float> logits;  ///< of every step
  std::uint64_t nvme_read = 0;
};

Output generate(const Prepared& run, const std::string& prompt, int count, const Sampling& sampling) {
  const auto generator = expect_ok(Generator::create(run));
  Output r;
  std::vector<std::int32_t> fresh = bytes_of(prompt);
  for (int i = 0; i < count; ++i) {
    const auto logits = expect_ok(generator->append(fresh));
    r.logits.insert(r.logits.end(), logits.begin(), logits.end());
    r.tokens.push_back(expect_ok(sample_token(logits, sampling, static_cast<std::uint64_t>(generator->position()))));
    fresh = {r.tokens.back()};
  }
  EXPECT_TRUE(generator->finish().ok());
  r.nvme_read = generator->engine().team().moved().nvme_read;
  return r;
}

/// Over all windows of config.data, or the first of those that are held out.
EvaluateResult loss_of(const Prepared& run, bool whole) {
  const RunConfig& c = run.config;
  const TokenFile tokens = expect_ok(open_text(c));
  Windows windows(tokens, c.sequence, false);
  if (!whole) {
    const Batches batches = expect_ok(Batches::create(tokens, c.sequence, c.seed, false, std::nullopt));
    windows = batches.held_out_windows();
    windows = windows.first(eval_windows(c, windows.count()));
  }
  return expect_ok(expect_ok(Evaluator::create(run))->evaluate(windows, never));
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

double nats(std::span<const float> logits, std::int32_t target) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float l : logits) sum += std::exp(static_cast<double>(l) - largest);
  return std::log(sum) + largest - static_cast<double>(logits[static_cast<std::size_t>(target)]);
}

TEST_F(InferenceTest, DecodePlansAreLegal) {
  std::ofstream(path("tied.json")) << R"({"model_type": "gpt2", "vocab_size": 256, "n_embd": 64, "n_layer": 2,
    "n_head": 2, "n_positions": 128, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5})";
  for (const std::string& name : {std::string("llama-tiny"), path("tied.json")})
    for (const Home home : {Home::device, Home::host, Home::nvme})
      for (const std::int64_t prefill : {1, 7, 64})
        for (const int lead : {0, 1, 3}) {
          RunConfig c = at(home, config(Dtype::bf16, prefill), path("swap"));
          c.model = name;
          c.wish.prefetch = lead;
          const auto run = decode(c, 100);
          ASSERT_TRUE(run->search.fits);
          ASSERT_EQ(run->main().kind, PlanKind::decode);
          const auto violations = check(run->main());
          EXPECT_TRUE(violations.empty()) << name << ": " << violations.front().message;
        }
}

TEST_F(InferenceTest, TheSmallestBudgetsThatAreNamedSuffice) {
  RunConfig c = config(Dtype::bf16, 16);
  c.nvme = {path("swap")};
  c.device_memory = c.host_memory = 4096;
  const TierBytes smallest = smallest_budgets(*decode(c, 64)).corner;
  c.device_memory = smallest.device - 1;
  c.host_memory = smallest.host;
  EXPECT_FALSE(decode(c, 64)->search.fits);
  c.device_memory = smallest.device;
  const auto run = decode(c, 64);
  ASSERT_TRUE(run->search.fits);
  EXPECT_TRUE(check(run->main()).empty());
  const Output starved = generate(*run, "the rain", 8, {});
  const Output rich = generate(*decode(at(Home::device, config(Dtype::bf16, 16), ""), 64), "the rain", 8, {});
  EXPECT_TRUE(same_bits(starved.logits, rich.logits));
}

TEST_F(InferenceTest, DecodedLogitsGiveTheLossOfTheFullForwardPass) {
  constexpr std::int64_t length = 48;
  const std::vector<std::int32_t> tokens = bytes_of(rhyme(length + 1));
  auto writer = expect_ok(TokenWriter::create(path("short.tok"), 256));
  ASSERT_TRUE(writer.append(tokens).ok());
  ASSERT_TRUE(writer.finish().ok());
  RunConfig c = config(Dtype::f32, length);
  c.data = path("short.tok");
  const auto prepared = evaluate(c);
  const EvaluateResult full = loss_of(*prepared, true);
  EXPECT_EQ(full.tokens, static_cast<std::uint64_t>(length));

  const auto run = decode(config(Dtype::f32, 1), length);
  const auto generator = expect_ok(Generator::create(*run));
  double sum = 0;
  std::vector<float> last;
  for (std::size_t t = 0; t < length; ++t) {
    const auto logits = expect_ok(generator->append(std::span(tokens).subspan(t, 1)));
    sum += nats(logits, tokens[t + 1]);
    last.assign(logits.begin(), logits.end());
  }
  EXPECT_NEAR(sum / length, full.loss, 1e-4);
  EXPECT_LT(full.loss, 4.5) << "the model has learnt nothing, so agreement shows little";

  // The prompt in passes of several tokens, the last of them shorter, fills the cache with the same.
  const auto chunked = decode(config(Dtype::f32, 13), length);
  const auto other = expect_ok(Generator::create(*chunked));
  const auto logits = expect_ok(other->append(std::span(tokens).first(length)));
  EXPECT_EQ(other->position(), length);
  for (std::size_t i = 0; i < last.size(); ++i) EXPECT_NEAR(logits[i], last[i], 1e-4) << i;
}

TEST_F(InferenceTest, WhereParametersLieChangesNoBit) {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    Sampling sampling;
    sampling.seed = 7;
    const auto resident = decode(at(Home::device, config(dtype, 8), ""), 64);
    const Output expected = generate(*resident, "the rain in spain", 40, sampling);
    EXPECT_EQ(expected.nvme_read, 0u);
    for (const Home home : {Home::host, Home::nvme}) {
      RunConfig c = at(home, config(dtype, 8), path("swap"));
      c.delay_seed = 3;
      const auto streamed = decode(c, 64);
      const Output run = generate(*streamed, "the rain in spain", 40, sampling);
      EXPECT_EQ(run.tokens, expected.tokens);
      EXPECT_TRUE(same_bits(run.logits, expected.logits));
      // Three passes for the 17 tokens of the prompt, one for each token but the last.
      const std::uint64_t passes = 3 + 39;
      EXPECT_EQ(run.nvme_read, passes * plan_link_bytes(streamed->main()).nvme_read);
      if (home == Home::nvme) {
        EXPECT_GE(run.nvme_read, passes * streamed->model.parameters * dtype_bytes(dtype));
      }
    }
  }
}

TEST_F(InferenceTest, SeedsDecideTheText) {
  const auto run = decode(config(Dtype::bf16, 8), 64);
  Sampling one, two;
  two.seed = 2;
  const Output first = generate(*run, "plains", 40, one);
  EXPECT_EQ(generate(*run, "plains", 40, one).tokens, first.tokens);
  EXPECT_NE(generate(*run, "plains", 40, two).tokens, first.tokens);
  one.temperature = two.temperature = 0;
  EXPECT_EQ(generate(*run, "plains", 40, one).tokens, generate(*run, "plains", 40, two).tokens);
}

TEST_F(InferenceTest, TokensThatDoNotFitAreRefused) {
  const auto run = decode(config(Dtype::bf16, 8), 20);
  const auto generator = expect_ok(Generator::create(*run));
  const auto refused = [&](std::vector<std::int32_t> tokens) {
    const auto result = generator->append(tokens);
    return !result.ok() && result.error().code == ErrorCode::bad_request;
  };
  EXPECT_TRUE(refused({}));
  EXPECT_TRUE(refused({256}));
  EXPECT_TRUE(refused({1, -1}));
  EXPECT_TRUE(refused(std::vector<std::int32_t>(21, 65)));
  EXPECT_EQ(generator->position(), 0);
  EXPECT_TRUE(generator->append(std::vector<std::int32_t>(20, 65)).ok());
  EXPECT_TRUE(refused({65}));
}

TEST(SampleToken, DrawsByProbability) {
  const std::vector<float> logits{0, std::log(2.0f), std::log(5.0f), -1000};
  const auto counts = [&](const Sampling& sampling) {
    std::map<std::int32_t, int> count;
    for (std::uint64_t i = 0; i < 8000; ++i) ++count[expect_ok(sample_token(logits, sampling, i))];
    return count;
  };
  auto all = counts({1, 0, 5});
  EXPECT_NEAR(all[0], 1000, 120);  // four standard deviations
  EXPECT_NEAR(all[1], 2000, 155);
  EXPECT_NEAR(all[2], 5000, 174);
  EXPECT_EQ(all[3], 0);
  auto two = counts({1, 2, 5});
  EXPECT_EQ(two[0], 0);
  EXPECT_NEAR(two[1], 8000 * 2 / 7.0, 162);
  auto hot = counts({1000, 3, 5});
  EXPECT_NEAR(hot[0], 8000 / 3.0, 170);
  EXPECT_EQ(counts({0, 0, 5})[2], 8000);
  EXPECT_EQ(counts({1, 1, 5})[2], 8000);
  EXPECT_EQ(counts({1e-30, 0, 5})[2], 8000);
}

TEST(SampleToken, KeepsTheFewestTokensThatAreLikelyEnough) {
  const std::vector<float> logits{0, std::log(2.0f), std::log(5.0f), std::log(2.0f)};  // of ten: 1, 2, 5, 2
  const auto drawn = [&](double top_p, int top_k = 0, double temperature = 1) {
    std::set<std::int32_t> all;
    Sampling s{temperature, top_k, 7, top_p};
    for (std::uint64_t i = 0; i < 4000; ++i) all.insert(expect_ok(sample_token(logits, s, i)));
    return all;
  };
  EXPECT_EQ(drawn(0.3), (std::set<std::int32_t>{2}));
  EXPECT_EQ(drawn(0.499), (std::set<std::int32_t>{2}));
  EXPECT_EQ(drawn(0.6), (std::set<std::int32_t>{1, 2})) << "of equals the smaller token";
  EXPECT_EQ(drawn(0.8), (std::set<std::int32_t>{1, 2, 3}));
  EXPECT_EQ(drawn(0.95), (std::set<std::int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(drawn(0.8, 2), (std::set<std::int32_t>{1, 2})) << "of what top-k leaves, 2 and 5 of seven";
  EXPECT_EQ(drawn(0.5, 0, 100), (std::set<std::int32_t>{1, 2})) << "after the temperature";
}

TEST(SampleToken, PenalizesWhatCameBeforeOnce) {
  const std::vector<float> logits{4, 3, -1, -2};
  const auto most_likely = [&](double penalty, std::vector<std::int32_t> before) {
    return expect_ok(sample_token(logits, {0, 0, 1, 1, penalty}, 0, before));
  };
  EXPECT_EQ(most_likely(1, {0, 0}), 0);
  EXPECT_EQ(most_likely(1.3, {0, 0}), 0) << "4 / 1.3 once is more than 3";
  EXPECT_EQ(most_likely(1.5, {0}), 1);
  EXPECT_EQ(most_likely(100, {0, 1, 2}), 0);
  EXPECT_EQ(expect_ok(sample_token(std::vector<float>{-3, -2}, {0, 0, 1, 1, 2}, 0, std::vector<std::int32_t>{1})), 0);
  EXPECT_EQ(most_likely(2, {-1, 99}), 0) << "tokens of no logit are left out";
}

TEST(SampleToken, TiesAndLogitsThatAreNoNumbers) {
  EXPECT_EQ(expect_ok(sample_token(std::vector<float>{1, 3, 3}, {0, 0, 1}, 0)), 1);
  EXPECT_EQ(expect_ok(sample_token(std::vector<float>{1, 3, 3}, {1, 1, 1}, 0)), 1);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const auto result = sample_token(std::vector<float>{1, bad}, {}, 9);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, ErrorCode::fault);
    EXPECT_NE(result.error().message.find("position 9"), std::string::npos);
  }
}

TEST_F(InferenceTest, HeldOutLossIsTheOneThatTrainingReports) {
  RunConfig c = config(Dtype::f32, 64);
  c.data = text();
  c.batch = 4;
  c.micro_batch = 2;
  const auto run = evaluate(c);
  const TokenFile tokens = expect_ok(open_text(c));
  const Batches batches = expect_ok(Batches::create(tokens, c.sequence, c.seed, false, std::nullopt));
  double weights_read = 0;
  const auto evaluator = expect_ok(Evaluator::create(*run, [&](double f) {
    EXPECT_GE(f, weights_read);
    weights_read = f;
    return success();
  }));
  EXPECT_EQ(weights_read, 1.0);
  double last = 0, fraction = 0;
  const EvaluateResult result =
      expect_ok(evaluator->evaluate(batches.held_out_windows().first(12), never, [&](double f, double loss) {
        EXPECT_GT(f, fraction);
        fraction = f;
        last = loss;
      }));
  EXPECT_EQ(result.windows, 12u);
  EXPECT_EQ(fraction, 1.0);
  EXPECT_EQ(last, result.loss);
  EXPECT_EQ(result.loss, trained_loss_);
}

TEST_F(InferenceTest, EveryWindowCountsOnceHoweverTheyAreBatched) {
  std::ofstream(path("eleven")) << rhyme(11 * 40 + 25);
  double alone = 0;
  for (const auto& [micro_batch, batch] : {std::pair{1, 1}, {1, 4}, {3, 3}, {4, 8}, {16, 16}}) {
    RunConfig c = config(Dtype::f32, 40);
    c.data = path("eleven");
    c.micro_batch = micro_batch;
    c.batch = batch;
    const auto run = evaluate(c);
    const EvaluateResult result = loss_of(*run, true);
    EXPECT_EQ(result.windows, 11u);
    EXPECT_EQ(result.tokens, 440u);
    if (alone == 0) alone = result.loss;
    if (micro_batch == 1) {
      EXPECT_EQ(result.loss, alone) << "the number of micro-batches changes no bit";
    }
    EXPECT_NEAR(result.loss, alone, 1e-6) << micro_batch << " of " << batch;
  }
}

TEST_F(InferenceTest, StreamedEvaluationChangesNoBit) {
  double losses[3];
  for (const Home home : {Home::device, Home::host, Home::nvme}) {
    RunConfig c = at(home, config(Dtype::bf16, 40), path("swap"));
    c.data = text();
    c.micro_batch = 2;
    c.batch = 6;
    const auto run = evaluate(c);
    EXPECT_TRUE(check(run->main()).empty());
    losses[static_cast<int>(home)] = loss_of(*run, false).loss;
  }
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_EQ(losses[0], losses[2]);
}

TEST_F(InferenceTest, StoppedEvaluationIsCancelled) {
  RunConfig c = config(Dtype::bf16, 40);
  c.data = text();
  const auto run = evaluate(c);
  const std::atomic<bool> stop{true};
  const TokenFile tokens = expect_ok(open_text(c));
  const auto result = expect_ok(Evaluator::create(*run))->evaluate(Windows(tokens, c.sequence, false), stop);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::cancelled);
}

}  // namespace
}  // namespace sluice
