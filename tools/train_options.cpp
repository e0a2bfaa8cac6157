// All options of train. plan takes the same.
#include "tools/eval_options.h"
#include "tools/run_options.h"
#include "tools/values.h"

namespace sluice::tools {

void add_train_options(Command* app, RunOptions* o) {
  RunConfig& c = o->config;
  add_model_options(app, o);
  add_data_options(app, o);
  app->add_flag("--resume", o->resume, "go on with the run in --run; every other option may be left out")->group("Run");
  app->add_option("--max-skipped", c.skip_limit,
                  "stop after so many steps in a row whose loss or gradient is not finite; before that they are "
                  "skipped where the run is durable (else the first one stops the run)")
      ->check(more_than(0))
      ->capture_default_str()
      ->group("Run");
  app->add_flag("--kernels-anew", o->kernels_anew,
                "a run that goes on on a GPU takes the kernels that are quickest there now, where those that it began "
                "with are another library's; bits may differ from there on")
      ->group("Run");
  app->add_option("--metrics", c.metrics,
                  "file for one JSON object per step, where nothing is or this run's own (default: metrics.jsonl in "
                  "the directory of the run)");
  app->add_option("--trace", c.trace, "file for the predicted and measured timeline of the last step");
  app->add_option("--hash", c.hash_every, "hash all parameters and states every N steps")->check(at_least(0));
  app->add_option(
         "--restore", c.restore,
         "begin a new run from a checkpoint, or from the latest in a directory of them: with its settings, data "
         "and layout where nothing else is said, in any other layout where it is")
      ->group("Checkpoints");
  app->add_option("--verify-with", o->verify_with,
                  "restore only what the owner of this public key has signed (see 'sluice checkpoint sign')")
      ->group("Checkpoints");
  app->add_flag("--reset-optimizer", c.reset_optimizer, "restore without moments: they begin at zero")
      ->group("Checkpoints");
  app->add_option("--save-every", c.save_every,
                  "save a checkpoint every N steps: all states, to go on from in any layout (--restore)")
      ->check(at_least(0))
      ->group("Checkpoints");
  app->add_option("--keep", c.keep, "keep the last K checkpoints; 0 keeps all")
      ->check(at_least(0))
      ->group("Checkpoints");
  app->add_option("--checkpoints", c.checkpoints, "directory of checkpoints (default: checkpoints in that of the run)")
      ->group("Checkpoints");
  add_evaluation_options(app, o);
  add_batch_options(app, o);
  add_training_options(app, o);
  app->add_option("--delay-seed", c.delay_seed, "delay ops at random, from this seed: results must not change")
      ->group("Testing");
  app->add_option("--sync-delay", o->sync_delay_ms, "milliseconds that every fdatasync takes longer")
      ->check(range(0, 10000))
      ->group("Testing");
  app->add_option("--poison-steps", o->poison, "make the gradients of these steps NaN, like 5,6")->group("Testing");
}

}  // namespace sluice::tools
