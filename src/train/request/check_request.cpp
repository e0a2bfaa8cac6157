#include "src/train/request/check_request.h"

#include <fmt/format.h>

#include "sluice/clock.h"
#include "src/train/data/batches.h"
#include "src/train/data/data_tokenizer.h"
#include "src/train/data/eval_sets.h"
#include "src/train/inference/inference.h"
#include "src/train/request/check_data.h"
#include "src/train/request/check_outputs.h"
#include "src/train/request/check_places.h"
#include "src/train/request/check_restore.h"
#include "src/train/request/choose_weights.h"
#include "src/train/request/machine_limits.h"
#include "src/train/request/seq_schedule.h"

namespace sluice {
namespace {

/// Which weights are read, if any.
Status decide_weights(const Request& request, const ModelSpec& model, CheckedRequest& checked) {
  if (request.goes_on && request.from_scratch && !checked.config.init.empty())
    return bad_request("--from-scratch contradicts the run, which began from the weights in " + checked.config.init +
                       "; leave the option out to go on, or give another --run DIR");
  if (request.goes_on) return success();
  if (request.purpose != Purpose::train) {
    SLUICE_ASSIGN(checked.config, with_weights(checked.config));
    return success();
  }
  if (!checked.config.restore.empty()) {
    SLUICE_ASSIGN(checked.weights, check_restore(checked.config, request.from_scratch, model));
    return success();
  }
  SLUICE_ASSIGN(WeightsChoice choice, choose_weights(checked.config, request.from_scratch, model));
  checked.config.init = std::move(choice.init);
  checked.weights = std::move(choice.told);
  return success();
}

/// Where files are to be made.
Status check_places(const Request& request) {
  const RunConfig& c = request.config;
  if (!c.run.empty() && !request.on_paper) SLUICE_TRY(check_makeable_directory("--run", c.run));
  return check_profile(c);
}

/// What the machine has to have.
Status check_there(const Request& request) {
  const RunConfig& c = request.config;
  if (c.assume) return success();
  Status there = check_drives(c);
  // The budgets of a run that goes on are those of the machine that it began on, and its plan may need less.
  if (there.ok() && !request.goes_on && !request.follows) there = check_machine(c);
  if (there.ok() || request.goes_on || !request.on_paper) return there;
  return bad_request(there.error().message + ", or --assume that it is there");
}

}  // namespace

namespace {

constexpr int ranks_of_process_max = 64;

/// As they were asked for.
std::string shown_ranks(const RunConfig& c) {
  std::string mesh;
  const auto add = [&](const char* option, int ranks) {
    if (ranks > 1) mesh += fmt::format("{}{} {}", mesh.empty() ? "" : " x ", option, ranks);
  };
  add("--pp", c.stages);
  add("--cp", c.context);
  add("--tp", c.tensor);
  if (mesh.empty()) return fmt::format("--ranks {}", c.ranks);
  add("--dp", batch_ranks(c));
  return fmt::format("{} are {} ranks", mesh, c.ranks);
}

/// Every length is one that the model, the mesh and the batch allow.
Status check_phases(const RunConfig& c) {
  const std::vector<std::size_t> phases = phases_apart(c);
  for (std::size_t i = 0; phases.size() > 1 && i < phases.size(); ++i)
    if (const auto described = describe_request(at_phase(c, phases[i]), Purpose::train); !described.ok())
      return described.error().in("--seq-schedule " + c.seq_schedule);
  return success();
}

using Watch = std::function<void(const std::string& path, double fraction)>;

/// What is told from a second on.
Watch told_of_long_work(const Request& request) {
  if (!request.watch) return {};
  return [watch = request.watch, from = now_seconds() + 1](const std::string& path, double fraction) {
    if (now_seconds() > from) watch("reading the tokens of " + path, fraction);
  };
}

/// The data has sequences of every length.
Status check_data(const RunConfig& c, const ModelConfig& model, std::uint64_t windows_min, bool trains,
                  const Watch& watch) {
  const auto read = [&](double fraction) {
    if (watch) watch(c.data, fraction);
  };
  if (!trains) {
    SLUICE_TRY(check_data_begins(c, model, windows_min));
    return check_tokens(c, model, read);
  }
  for (const std::size_t i : phases_apart(c)) {
    const RunConfig at = at_phase(c, i);
    SLUICE_TRY(check_data_begins(at, model, windows_min));
    if (phase_of(at).of_documents()) SLUICE_TRY(check_documents(at, model));
  }
  return check_tokens(at_phase(c, 0), model, read);
}

/// And so have the sets.
Status check_eval_sets(const RunConfig& c, const ModelConfig& model, bool trains, const Watch& watch) {
  if (!trains) return check_eval_data(c, model, watch);
  for (const std::size_t i : phases_apart(c)) SLUICE_TRY(check_eval_data(at_phase(c, i), model, watch));
  return success();
}

}  // namespace

Result<CheckedRequest> check_request(const Request& request) {
  CheckedRequest checked{request.config, ""};
  RunConfig& c = checked.config;
  SLUICE_TRY(check_outputs(c));
  if (c.ranks_of_node == 0 && c.ranks > ranks_of_process_max)
    return bad_request(
        fmt::format("{}: a process has 1 to {} ranks; more are started with mpirun, or planned with "
                    "--cluster FILE",
                    shown_ranks(c), ranks_of_process_max));
  if (!request.goes_on && c.save_every == 0 && (c.keep > 0 || !c.checkpoints.empty()))
    return bad_request("--keep and --checkpoints are of checkpoints that --save-every N makes; add it");
  if (!request.goes_on) SLUICE_TRY(check_not_unfinished_run("--model", c.model));
  const auto described_or = describe_request(c, request.purpose);
  if (!described_or.ok())
    return c.seq_schedule.empty() ? described_or.error() : described_or.error().in("--seq-schedule " + c.seq_schedule);
  const auto& described = *described_or;
  const bool trains = request.purpose == Purpose::train;
  if (trains) SLUICE_TRY(check_phases(c));
  SLUICE_TRY(decide_weights(request, described->model, checked));
  const bool is_new_run = !c.run.empty() && !request.goes_on && !request.on_paper;
  if (is_new_run) SLUICE_TRY(check_room(c, described->model.parameters));
  if (!c.data.empty()) {
    if (!request.goes_on) {
      SLUICE_ASSIGN(c, with_tokenizer(c));
      SLUICE_ASSIGN(c, with_document_mask(c));
    }
    // One that is learned from or measured, and one that is held out.
    const bool one_part = request.all_text || c.eval_split == 0.0;
    const Status begins = check_data(c, described->model.config, one_part ? 1 : 2, trains, told_of_long_work(request));
    if (!begins.ok() && request.goes_on)
      return bad_request(begins.error().message + "; if the run's data was moved, --data PATH says where");
    SLUICE_TRY(begins);
  } else if (!c.tokenizer.empty() && !request.goes_on && trains) {
    SLUICE_TRY(text_tokenizer("texts", c, described->model.config));
  }
  SLUICE_TRY(check_eval_sets(c, described->model.config, trains, told_of_long_work(request)));
  SLUICE_TRY(check_places(request));
  SLUICE_TRY(check_there(request));
  return checked;
}

}  // namespace sluice
