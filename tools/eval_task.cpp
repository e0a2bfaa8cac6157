#include "tools/eval_task.h"

#include <algorithm>
#include <filesystem>

#include "src/train/request/check_request.h"
#include "tools/eval_options.h"
#include "tools/launch.h"

namespace sluice::tools {
namespace {

/// The run whose directory is named; none for other models.
Result<std::optional<RunDescription>> run_of(const std::string& model) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(model + "/run.json", ignored)) return std::optional<RunDescription>();
  SLUICE_ASSIGN(const RunDirectory directory, RunDirectory::look(absolute_path(model)));
  return directory.run();
}

void take_passes(const RunConfig& run, const std::set<std::string>& given, RunConfig& c) {
  if (!given.contains("--seq")) c.sequence = run.sequence;
  if (!given.contains("--batch")) c.batch = run.batch;
  if (!given.contains("--micro-batch")) c.micro_batch = std::min(run.micro_batch, c.batch);
  if (!given.contains("--slices") && !given.contains("--seq")) c.slices = run.slices;
  if (!given.contains("--dtype")) c.dtype = run.dtype;
  if (!given.contains("--threads")) c.threads = run.threads;
  if (!given.contains("--device")) c.device = run.device;
}

/// The sets, without the windows that are to be evaluated of them.
RunConfig find_sets(const EvalRequest& request, const std::set<std::string>& given, EvalTask& task) {
  RunConfig data = task.config;
  if (task.as_run) {
    data = task.run->config;
    data.run = absolute_path(task.config.model);
    data.sequence = task.config.sequence;
    if (!given.contains("--document-mask")) task.config.document_mask = data.document_mask;
  }
  const bool other_data = !task.as_run && !data.data.empty();
  if (request.options.eval_split)
    data.eval_split = request.options.eval_split;
  else if (other_data)
    data.eval_split = default_eval_split;
  return data;
}

Error nothing_held_out(const std::string& data) {
  return bad_request(data + " holds out nothing to evaluate; give --eval-split, --eval-data FILE or --all-text");
}

/// "book" for the whole of book.txt.
EvalSet whole_file(const RunConfig& data, const Batches& batches) {
  const Result<NamedData> name = parse_eval_data(data.data);
  return {name.ok() ? name->name : data.data, data.data, nullptr, batches.training(), batches.training().count()};
}

}  // namespace

Status describe(const EvalRequest& request, const std::set<std::string>& given,
                const std::function<void(const std::string& what, double fraction)>& watch, EvalTask& task) {
  SLUICE_ASSIGN(task.config, resolve(request.options));
  RunConfig& c = task.config;
  SLUICE_ASSIGN(task.run, run_of(c.model));
  task.as_run = task.run && !given.contains("--data") && !given.contains("--eval-data");
  if (task.run) take_passes(task.run->config, given, c);
  if (c.micro_batch < 1 || c.batch < c.micro_batch || c.batch % c.micro_batch != 0)
    return bad_request("--batch " + std::to_string(c.batch) + " is not a multiple of --micro-batch " +
                       std::to_string(c.micro_batch));
  task.data = find_sets(request, given, task);
  RunConfig& d = task.data;
  if (d.data.empty() && d.eval_data.empty()) {
    SLUICE_ASSIGN(const ModelConfig there, load_config(c.model));
    return bad_request("--data is missing: give text or a token file, or as --model the directory of a run");
  }
  if (!request.all_text && d.eval_data.empty() && d.eval_split == 0) return nothing_held_out(d.data);
  // How many windows does not depend on how many go through the model at once.
  const bool counted = given.contains("--batches") || !task.run;
  d.batch = counted ? c.batch : task.run->config.batch;
  d.eval_batches = request.all_text ? 0 : counted ? request.batches : task.run->config.eval_batches;
  if (request.all_text) d.eval_split = 0;
  c.data = d.data;
  if (task.as_run && !given.contains("--tokenizer")) c.tokenizer = d.tokenizer;
  c.eval_data = d.eval_data;
  c.eval_split = d.eval_split;
  // Documents are kept apart as in the data, or in the first of the sets.
  if (d.data.empty()) {
    SLUICE_ASSIGN(const NamedData first, parse_eval_data(d.eval_data.front()));
    RunConfig masked = c;
    masked.data = first.path;
    SLUICE_ASSIGN(masked, with_document_mask(masked));
    c.document_mask = masked.document_mask;
    c.document_length = masked.document_length;
  }
  SLUICE_ASSIGN(CheckedRequest checked, check_request({.config = c,
                                                       .purpose = Purpose::evaluate,
                                                       .follows = !is_first_process(),
                                                       .all_text = request.all_text,
                                                       .watch = watch}));
  c = std::move(checked.config);
  d.document_mask = c.document_mask;
  d.tokenizer = c.tokenizer;
  if (!task.as_run) d.init = c.init;
  return success();
}

Status open_sets(const EvalRequest& request, const std::function<void(const std::string&)>& note,
                 const std::function<Status(double)>& watch, EvalTask& task) {
  RunConfig& d = task.data;
  SLUICE_ASSIGN(const ModelConfig model, load_config(task.config.model));
  const bool documents = d.document_mask.value_or(false);
  if (!d.data.empty()) {
    SLUICE_ASSIGN(task.file, open_data(d, model, note, watch));
    if (task.as_run && task.file.count() != task.run->data_tokens)
      return bad_request(d.data + " has " + grouped(task.file.count()) + " tokens, and the run's data had " +
                         grouped(task.run->data_tokens) + ": it is not what it was; put it back, or give --data");
    SLUICE_ASSIGN(task.batches, Batches::create(task.file, d, documents));
  }
  SLUICE_ASSIGN(task.sets, open_eval_sets(d, model, documents, task.batches, note));
  if (request.all_text && !d.data.empty()) task.sets.insert(task.sets.begin(), whole_file(d, task.batches));
  if (!task.sets.empty()) return success();
  return nothing_held_out(d.data);
}

}  // namespace sluice::tools
