// Everything about a request that can be known before anything is measured, searched or made: one list of checks, in
// one order, for train, plan, eval and generate.
#pragma once

#include <functional>
#include <string>

#include "src/train/request/prepare.h"
#include "src/train/request/run_config.h"

namespace sluice {

struct Request {
  RunConfig config;
  Purpose purpose = Purpose::train;
  bool from_scratch = false;  ///< of a new run: its weights are random, whatever lies beside its model
  bool goes_on = false;       ///< its run began before: it has its weights
  bool follows = false;       ///< another process of this machine looks at memory and GPUs
  bool on_paper = false;      ///< nothing is run: no directory is made, and data that is not named need not be there
  bool all_text = false;      ///< of an evaluation: of all of its text and not of a held-out part
  /// Hears how much of a token file has been read, where that takes more than a second.
  std::function<void(const std::string& what, double fraction)> watch = {};
};

struct CheckedRequest {
  RunConfig config;     ///< with `init`, tokenizer and document mask decided
  std::string weights;  ///< of training: where they come from, as a line for people; empty for a run that goes on
};

/// Nothing is written, also where it is killed. bad_request for the first thing that does not hold: options against
/// each other; --model and its config; the weights' headers against the model; --data and the sets of --eval-data,
/// their beginning and vocabulary; where the run, metrics and traces are to go; the profile; the drives' directories
/// and the budgets, of which plans may assume that the machine has them.
Result<CheckedRequest> check_request(const Request& request);

}  // namespace sluice
