// sluice checkpoint reshape: the same states for other ranks, or in other formats.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "sluice/size.h"
#include "src/train/run/saved_states.h"
#include "src/train/states/reshape_checkpoint.h"
#include "tools/checkpoint_commands.h"
#include "tools/run_home.h"
#include "tools/run_options.h"
#include "tools/values.h"

namespace sluice::tools {
namespace {

struct ReshapeArguments {
  std::string from, dtype, moments;
  ReshapeRequest to;
  bool json = false;
};

std::string exactness(const ReshapeResult& result) {
  if (result.exact) return "every value is as it was";
  if (result.encoded_blocks > 0)
    return std::to_string(result.encoded_blocks) + " blocks of 256 8-bit moments were encoded anew";
  return std::string("moments were rounded to ") + moment_format_name(result.formats.moments);
}

void print_json(const ReshapeArguments& options, const ReshapeResult& result) {
  const LayoutDegrees& d = options.to.degrees;
  const nlohmann::ordered_json j{
      {"checkpoint", result.path},
      {"step", result.step},
      {"ranks", d.ranks()},
      {"pp", d.stages},
      {"dp", d.data},
      {"tp", d.tensor},
      {"cp", d.context},
      {"dtype", dtype_name(result.formats.parameters)},
      {"moments", result.has_moments ? nlohmann::ordered_json(moment_format_name(result.formats.moments)) : nullptr},
      {"files", result.files},
      {"bytes", result.state_bytes},
      {"read_bytes", result.read_bytes},
      {"exact", result.exact},
      {"encoded_blocks", result.encoded_blocks}};
  std::printf("%s\n", j.dump().c_str());
}

Status reshape(ReshapeArguments options) {
  if (!options.dtype.empty()) options.to.parameters = options.dtype == "bf16" ? Dtype::bf16 : Dtype::f32;
  for (const MomentFormat format : {MomentFormat::f32, MomentFormat::bf16, MomentFormat::int8})
    if (options.moments == moment_format_name(format)) options.to.moments = format;
  SLUICE_ASSIGN(const std::string named, checkpoints_of(options.from));
  SLUICE_ASSIGN(Checkpoint from, Checkpoint::open(named));
  SLUICE_TRY(from.check_present());
  SLUICE_TRY(check_same_run(from.manifest().run, options.to.parent));
  const std::atomic<bool>& stop = stop_on_signals();
  ProgressLine line(10, !options.json);
  const auto result = reshape_checkpoint(from, options.to, on_line(line, stop).watch("writing " + options.to.parent));
  line.finish();
  if (!result.ok()) return result.error();
  if (options.json) {
    print_json(options, *result);
    return success();
  }
  const unsigned ranks = options.to.degrees.ranks();
  const std::string moments =
      result->has_moments ? std::string(" and ") + moment_format_name(result->formats.moments) + " moments" : " alone";
  std::printf("%s: step %llu for %u %s, %s, %s parameters%s; %s\n", result->path.c_str(),
              static_cast<unsigned long long>(result->step), ranks, ranks == 1 ? "rank" : "ranks",
              format_bytes(result->state_bytes).c_str(), dtype_name(result->formats.parameters), moments.c_str(),
              exactness(*result).c_str());
  return success();
}

}  // namespace

void add_checkpoint_reshape(Command& checkpoint, Outcome& outcome) {
  Command* command = add_command(
      checkpoint, "reshape", "write a checkpoint in the layout of other ranks, or in other formats",
      "  sluice checkpoint reshape out/checkpoints ./reshaped --pp 2 --dp 4 --tp 2\n"
      "  sluice checkpoint reshape out/checkpoints/step-120 ./narrow --dtype bf16 --moments int8\n"
      "FROM is a checkpoint, or a directory of several, of which the newest is taken; the run need not be there.\n"
      "TO_DIR/step-N appears whole or not at all. Stages are neighbouring units with about as many bytes; every block "
      "is\n"
      "verified as it is read. Layouts change no bit, except of 8-bit moments where --tp cuts their blocks of 256\n"
      "elements elsewhere: those are encoded anew, and counted. f32 parameters to bf16 and back is exact, since bf16 "
      "ones\n"
      "have remainders; shorter moments are rounded. The last line says whether every value is as it was.\n"
      "'train --restore' reads any layout, and trains in the one that the run had or that its own options name.");
  auto options = std::make_shared<ReshapeArguments>();
  command->add_option("FROM", options->from, "checkpoint to read")->required();
  command->add_option("TO_DIR", options->to.parent, "directory of checkpoints to write to; made if missing")
      ->required();
  LayoutDegrees& d = options->to.degrees;
  command->add_option("--pp", d.stages, "stages that the model's units are cut over (default: 1)")->check(at_least(1));
  command->add_option("--dp", d.data, "ranks that states are sharded over (default: 1)")->check(at_least(1));
  command->add_option("--tp", d.tensor, "ranks that sublayers are cut over (default: 1)")->check(at_least(1));
  command
      ->add_option("--cp", d.context, "ranks that sequences are cut over: they share states as --dp's do (default: 1)")
      ->check(at_least(1));
  command->add_option("--dtype", options->dtype, "of the parameters (default: as they are)")
      ->check(one_of({"f32", "bf16"}));
  command->add_option("--moments", options->moments, "format of the moments (default: as they are)")
      ->check(one_of({"f32", "bf16", "int8"}));
  add_size(command, "--host-memory", &options->to.memory_bytes,
           "most memory that this takes; more than it needs is read ahead into (default: 256MiB)");
  command->add_flag("--json", options->json, "print JSON to standard output and nothing else");
  command->callback([options, &outcome] { outcome.finish("checkpoint reshape", reshape(*options)); });
}

}  // namespace sluice::tools
