// sluice eval: how well a model predicts texts.
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "src/train/data/data_tokenizer.h"
#include "src/train/inference/inference.h"
#include "src/train/request/decided.h"
#include "src/train/run/alike.h"
#include "tools/commands.h"
#include "tools/eval_options.h"
#include "tools/eval_task.h"
#include "tools/launch.h"
#include "tools/terminal.h"
#include "tools/values.h"

namespace sluice::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t byte_vocabulary = 256;

/// What came out of a set.
struct SetResult {
  const EvalSet* set = nullptr;
  EvaluateResult result;
  double bits_per_byte = 0;  ///< 0: not known
};

/// What made the tokens. The loss does not need it: where it can not be used that is said, before the work.
std::optional<Tokenizer> tokenizer_of(const RunConfig& config, ProgressLine& line) {
  const std::string& path = config.tokenizer.empty() ? config.init : config.tokenizer;
  if (config.tokenizer == bytes_are_tokens || (config.tokenizer.empty() && !Tokenizer::lies_in(path)))
    return std::nullopt;
  Result<Tokenizer> tokenizer = Tokenizer::load(path);
  if (tokenizer.ok()) return std::move(*tokenizer);
  line.note("bits per byte are not known: " + tokenizer.error().message);
  return std::nullopt;
}

/// Of the text behind the tokens; 0 where that is not known.
Result<double> bits_per_byte(const Prepared& run, const std::optional<Tokenizer>& tokenizer, const Windows& windows,
                             const EvaluateResult& result) {
  const double bits = result.loss / std::log(2.0);
  const RunConfig& c = run.config;
  const bool of_bytes = c.tokenizer == bytes_are_tokens || (c.tokenizer.empty() && !Tokenizer::lies_in(c.init) &&
                                                            run.model.config.vocabulary == byte_vocabulary);
  if (!tokenizer) return of_bytes ? bits : 0.0;
  SLUICE_ASSIGN(const std::uint64_t bytes, text_bytes(windows, c, *tokenizer));
  return bytes == 0 ? 0.0 : bits * static_cast<double>(result.tokens) / static_cast<double>(bytes);
}

Json to_json(const SetResult& r) {
  Json j;
  j["loss"] = r.result.loss;
  j["perplexity"] = std::exp(r.result.loss);
  if (r.bits_per_byte > 0) j["bits_per_byte"] = r.bits_per_byte;
  j["tokens"] = r.result.tokens;
  j["windows"] = r.result.windows;
  j["text_tokens"] = r.set->tokens().count();
  return j;
}

void print_json(const std::vector<SetResult>& results) {
  Json j = Json::object(), losses = Json::object(), sets = Json::object();
  for (const SetResult& r : results) {
    // The set that goes by no name.
    if (r.set->name == held_out_name || results.size() == 1) j.update(to_json(r));
    losses[r.set->name] = r.result.loss;
    sets[r.set->name] = to_json(r);
  }
  j["eval"] = losses;
  j["sets"] = sets;
  std::printf("%s\n", j.dump().c_str());
}

void print_text(const std::vector<SetResult>& results) {
  for (const SetResult& r : results) {
    if (results.size() > 1) std::printf("%s: ", r.set->name.c_str());
    std::printf("loss %.4f nats/token, perplexity %.3f", r.result.loss, std::exp(r.result.loss));
    if (r.bits_per_byte > 0) std::printf(", %.4f bits per byte", r.bits_per_byte);
    std::printf("\nover %llu tokens (%llu windows) of the %llu in %s\n",
                static_cast<unsigned long long>(r.result.tokens), static_cast<unsigned long long>(r.result.windows),
                static_cast<unsigned long long>(r.set->tokens().count()), r.set->path.c_str());
  }
}

/// Who leads searches, and the others follow.
Result<std::unique_ptr<Prepared>> prepare_on_ranks(const RunConfig& config, World* world, const Tell& tell) {
  const auto fitting = [&]() -> Result<std::unique_ptr<Prepared>> {
    SLUICE_ASSIGN(auto run, prepare(config, Purpose::evaluate, tell));
    if (!run->search.fits) return does_not_fit(*run);
    return run;
  };
  if (world == nullptr) return fitting();
  return share_prepared(*world, world->leads() ? fitting() : fault("it follows"), Purpose::evaluate, config);
}

Status eval(const EvalRequest& request, const std::set<std::string>& given, World* world) {
  const bool leads = world == nullptr || world->leads();
  const auto together = [&](const Status& own) { return world == nullptr ? own : agree(*world, own); };
  ProgressLine line(10, leads && !request.options.config.json);
  const auto tell = [&](const std::string& note) { line.note(note); };
  EvalTask task;
  const auto reading = [&](const std::string& what, double fraction) { line.task(what, fraction); };
  SLUICE_TRY(together(describe(request, given, reading, task)));
  line.finish();
  task.config.ranks_of_node = request.options.config.ranks_of_node;
  task.config.devices_apart = request.options.config.devices_apart;
  task.config.transport = Transport::automatic;
  const std::atomic<bool>& stop = stop_on_signals();
  SLUICE_ASSIGN(auto run, prepare_on_ranks(task.config, world, tell));
  // Not before: their tokens are kept, and who is refused leaves nothing.
  const auto watch = [&](double fraction) -> Status {
    line.task("tokenizing " + task.data.data, fraction);
    if (!stop.load()) return success();
    return Error{ErrorCode::cancelled, "stopped by a signal while tokenizing " + task.data.data};
  };
  // Who leads makes tokens of texts; the others find them.
  SLUICE_TRY(together(leads ? open_sets(request, tell, watch, task) : success()));
  SLUICE_TRY(together(leads ? success() : open_sets(request, tell, watch, task)));
  if (world != nullptr) {
    const auto sets = mark_of_sets(task.sets);
    SLUICE_TRY(together(sets.ok() ? success() : Status(sets.error())));
    SLUICE_TRY(check_alike(*world, "data to evaluate on", *sets));
    SLUICE_TRY(check_alike(*world, "weights in " + task.config.init, mark_of_weights(task.config.init)));
  }
  // A GPU's bits are those of its kernels.
  if (task.run && !task.run->device.empty() && task.run->device == run->workload.device)
    run->kernels = task.run->kernels;
  SLUICE_ASSIGN(auto evaluator, Evaluator::create(
                                    *run,
                                    [&](double fraction) {
                                      line.task("reading weights from " + task.config.init, fraction);
                                      return success();
                                    },
                                    world));
  const std::optional<Tokenizer> tokenizer = tokenizer_of(task.config, line);
  std::vector<SetResult> results;
  for (const EvalSet& set : task.sets) {
    const auto result = evaluator->evaluate(set.windows, stop, [&](double fraction, double loss) {
      char shown[64];
      std::snprintf(shown, sizeof shown, "loss %.4f", loss);
      line.update(task.sets.size() > 1 ? set.name + ": " + shown : shown, fraction);
    });
    if (!result.ok()) {
      line.finish();
      return result.error();
    }
    const auto bits = leads ? bits_per_byte(*run, tokenizer, set.windows, *result) : Result<double>(0.0);
    SLUICE_TRY(together(bits.ok() ? success() : Status(bits.error())));
    results.push_back({&set, *result, *bits});
  }
  line.finish();
  if (!leads) return success();
  task.config.json ? print_json(results) : print_text(results);
  return success();
}

}  // namespace

void add_eval(Command& app, Outcome& outcome) {
  Command* command = add_command(
      app, "eval", "measure a model's loss on texts",
      "  sluice eval --model out          # a run: its own sets, and exactly the losses that it ended with\n"
      "  sluice eval --model out --eval-data wiki=wiki.tokens --eval-data code.jsonl --batches all\n"
      "  sluice eval --model ./Llama-3.2-1B --data tokens.bin --all-text --seq 2048 --batch 4 \\\n"
      "      --device-memory 1GiB --host-memory 512MiB --nvme /mnt/nvme\n"
      "With a run as the model what is left out of sequence, batch, type and sets is as the run has it.");
  auto request = std::make_shared<EvalRequest>();
  RunOptions* options = &request->options;
  add_model_options(command, options);
  command->get_option("--model")->required();
  add_data_options(command, options);
  add_eval_set_options(command, options);
  Option* batches =
      add_batches(command, "--batches", &request->batches,
                  "batches of each set, its first ones; of --data the windows that training with this --seq and "
                  "--eval-split leaves out; 'all' or 0")
          ->group("Batch");
  command->add_flag("--all-text", request->all_text, "every whole window from the start of each file")
      ->excludes(batches)
      ->group("Batch");
  add_batch_options(command, options);
  command->callback([request, command, &outcome] {
    run_on_ranks("eval", request->options, given_options(*command), outcome,
                 [&](const std::set<std::string>& given, World* world) { return eval(*request, given, world); });
  });
}

}  // namespace sluice::tools
