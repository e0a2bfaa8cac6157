#include "tools/run_options.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/files/publish.h"
#include "sluice/size.h"
#include "src/train/data/data_tokenizer.h"
#include "tools/eval_options.h"
#include "tools/run_home.h"
#include "tools/values.h"

namespace sluice::tools {
namespace {

std::atomic<bool> stop_requested{false};

void on_signal(int number) {
  if (stop_requested.exchange(true)) {
    std::signal(number, SIG_DFL);
    std::raise(number);
  }
}

/// A terminal that closes sends it more than once, the shell's and the kernel's own.
void on_hangup(int) { stop_requested.store(true); }

Result<std::optional<Place>> parse_place(const std::string& text) {
  if (text == "auto") return std::optional<Place>();
  for (std::size_t i = 0; i < place_names.size(); ++i)
    if (text == place_names[i]) return std::optional<Place>(static_cast<Place>(i));
  return bad_request("'" + text + "' is not a tier");
}

/// No drive is rated for less than a gigabyte: that is a number whose unit was forgotten.
std::string tbw_has_a_unit(const std::string& text) {
  const auto size = parse_size(text);
  if (!size.ok() || *size >= 1'000'000'000) return "";
  return "'" + text + "' is less than a gigabyte; write what the data sheet says with its unit, like 600TB";
}

bool is_utf8(const std::string& text) {
  // The writer of JSON knows.
  try {
    static_cast<void>(nlohmann::json(text).dump());
    return true;
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
}

/// Records of runs are JSON, and so are reports.
Status check_names(const RunConfig& c) {
  std::vector<std::pair<const char*, std::string>> names{
      {"--model", c.model},     {"--init", c.init},   {"--data", c.data},       {"--run", c.run},
      {"--metrics", c.metrics}, {"--trace", c.trace}, {"--profile", c.profile}, {"--tokenizer", c.tokenizer}};
  for (const std::string& directory : c.nvme) names.emplace_back("--nvme", directory);
  for (const std::string& data : c.eval_data) names.emplace_back("--eval-data", data);
  for (const auto& [option, name] : names)
    if (!is_utf8(name)) return bad_request(std::string(option) + ": the name is not UTF-8; give another one");
  return success();
}

}  // namespace

const std::atomic<bool>& stop_on_signals() {
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
  // Of a terminal that is closed; nohup has it ignored, and so it stays.
  struct sigaction hangup {};
  if (sigaction(SIGHUP, nullptr, &hangup) != 0 || hangup.sa_handler != SIG_IGN) std::signal(SIGHUP, on_hangup);
  return stop_requested;
}

void add_model_options(Command* app, RunOptions* o) {
  RunConfig& c = o->config;
  app->add_option("--model", c.model, "preset, config.json, or a Hugging Face directory")->group("Model");
  app->add_option("--init", c.init,
                  "Hugging Face directory with the weights to start from (default: those in --model, if it is a "
                  "directory that holds "
                  "some)")
      ->group("Model");
  app->add_option("--dtype", o->dtype, "of parameters and activations")
      ->check(one_of({"bf16", "fp32"}))
      ->capture_default_str()
      ->group("Model");
  app->add_option("--device", c.device, "what computes: cpu, cuda (the first GPU; ranks go round all) or cuda:N")
      ->capture_default_str()
      ->group("Machine");
  add_size(app, "--device-memory", &c.device_memory,
           "hard limit of device memory, per rank (default: half of what is free; of a GPU's 90%)")
      ->group("Budgets");
  add_size(app, "--host-memory", &c.host_memory,
           "hard limit of host memory, all ranks (default: a quarter of what is free; half beside a GPU)")
      ->group("Budgets");
  app->add_option("--nvme", o->nvme, "directories for the swap file, separated by commas (default: no drive tier)")
      ->type_name("DIR[,DIR]")
      ->group("Budgets");
  add_size(app, "--nvme-space", &c.nvme_space, "hard limit of the swap file (default: 90% of what is free)")
      ->group("Budgets");
  app->add_option("--threads", c.threads, "compute threads per rank (default: cores / ranks)")
      ->check(range(0, 1024))
      ->group("Machine");
  app->add_option("--optimizer-threads", c.optimizer_threads, "threads of the CPU optimizer")
      ->check(range(0, 1024))
      ->group("Machine");
  app->add_option("--io", c.io_backend, "how the drive is driven (default: as 'bench io --tune' found, else auto)")
      ->check(one_of({"auto", "io_uring", "libaio", "threads"}))
      ->group("Machine");
  app->add_option("--queue-depth", c.queue_depth,
                  "requests in flight per drive, of reads and of writes (default: as tuned, else 16)")
      ->check(range(1, 1024))
      ->group("Machine");
  app->add_option("--profile", c.profile,
                  "hardware profile (default: ~/.cache/sluice/profile.json; measured if missing)")
      ->group("Machine");
  app->add_flag("--json", c.json, "print JSON to standard output and nothing else");
}

void add_data_options(Command* app, RunOptions* o) {
  RunConfig& c = o->config;
  app->add_option("--data", c.data,
                  "text or .jsonl, also as .gz or .zst, tokenized as 'sluice data tokenize' does, or a token file "
                  "(sluice, Megatron-LM, llm.c, nanoGPT)");
  app->add_option("--tokenizer", c.tokenizer,
                  "tokenizer.json, vocab.json with merges.txt, or their directory: makes tokens of texts, and is whose "
                  "tokens a token file has; bytes: bytes are tokens (default: what lies beside --init or --model; a "
                  "preset has none, and bytes are its tokens)")
      ->type_name("FILE|DIR|bytes");
}

void add_batch_options(Command* app, RunOptions* o) {
  RunConfig& c = o->config;
  app->add_option("--seq", c.sequence, "tokens per sequence")->capture_default_str()->group("Batch");
  app->add_option("--batch", c.batch, "sequences per step, all ranks")->capture_default_str()->group("Batch");
  app->add_option("--micro-batch", c.micro_batch, "sequences that are computed at once")
      ->capture_default_str()
      ->group("Batch");
  app->add_option(
         "--slices", c.slices,
         "slices in which sequences go through every sublayer, one after the other: activations on the device are of "
         "one, and keys and values of the others wait on host or drive, so that sequences may be longer than device "
         "memory has room for. Bits depend on it, and --resume may change it")
      ->check(more_than(0))
      ->capture_default_str()
      ->group("Batch");
  app->add_option("--document-mask", o->document_mask,
                  "attention and positions stay inside the documents of a sequence (auto: where 'sluice data tokenize "
                  "--pack' has laid whole documents into it)")
      ->check(one_of({"auto", "on", "off"}))
      ->capture_default_str()
      ->group("Batch");
}

void add_training_options(Command* app, RunOptions* o) {
  RunConfig& c = o->config;
  OptimizerConfig& a = c.optimizer;
  app->add_option(
         "--seq-schedule", c.seq_schedule,
         "in place of --seq: lengths of sequences and how many steps have them, like 512:1000,2048:*, where * "
         "takes all steps that are left. LENGTHxBATCH:STEPS says in place of --batch how many sequences a step has; "
         "SHORTEST-LENGTH:STEPS trains on whole documents of so many tokens, as many in a sequence as fit; and \"...\" "
         "at the end begins again, up to --steps, as 2-512x32:100,513-2048x8:100,... does. Each length has a plan of "
         "its own within the budgets; between two the "
         "states of a durable run stay where they are on the drive, and others go through a checkpoint in the "
         "run's directory. Evaluations have the length of their step, and what is held out is the same for all. With "
         "--resume: lengths of the steps to come")
      ->type_name("LENGTH:STEPS,...")
      ->group("Batch");
  app->add_flag("--from-scratch", o->from_scratch, "begin with random weights, also where --model has its own")
      ->group("Model");
  app->add_option("--ranks", c.ranks, "ranks in this process; those that mpirun starts are its processes")
      ->capture_default_str()
      ->group("Batch");
  app->add_option("--dp", o->data,
                  "ranks that each have a part of every batch (data parallelism). Default: --ranks / --pp / --cp / "
                  "--tp, and where "
                  "--ranks is not given either, 1")
      ->check(more_than(0))
      ->group("Batch");
  app->add_option(
         "--tp", c.tensor,
         "ranks that every sublayer is cut over (tensor parallelism): each has some heads, columns of the MLP and "
         "words, and between sublayers a slice of the tokens (sequence parallelism). Bits depend on it, and "
         "--resume may change it")
      ->check(more_than(0))
      ->capture_default_str()
      ->group("Batch");
  app->add_option(
         "--cp", c.context,
         "ranks that each have a slice of every sequence (context parallelism). They share states as those of --dp do. "
         "Bits depend on it, and --resume may change it")
      ->check(more_than(0))
      ->capture_default_str()
      ->group("Batch");
  app->add_option(
         "--cp-attention", o->cp_attention,
         "how ranks of --cp attend to whole sequences: 'ulysses' (each with some of the heads, which --cp divides), or "
         "'ring' (each with all heads of its own queries, while keys and values go round: any number of ranks, and "
         "fewer bytes where there are few heads of keys and values). Bits depend on it, and --resume may change it")
      ->check(one_of({context_attention_names.begin(), context_attention_names.end()}))
      ->capture_default_str()
      ->group("Batch");
  app->add_option(
         "--pp", c.stages,
         "stages of a pipeline that the model is cut into, each with its part of the parameters and states; the "
         "ranks of a stage, --ranks / --pp / --cp / --tp, each have a part of every batch. No bit depends on it")
      ->check(more_than(0))
      ->capture_default_str()
      ->group("Batch");
  app->add_option(
         "--mesh-order", c.mesh_order,
         "how ranks are numbered through the mesh: neighbours, which are on one machine, differ in the last. pp "
         "comes first. No bit depends on it (but with --reduce int4 on which ranks share a machine)")
      ->capture_default_str()
      ->group("Batch");
  app->add_option(
         "--layout", o->layout,
         "'given' by --pp, --dp, --cp and --tp, or 'auto': of all that --ranks can be arranged in, the one whose "
         "steps are predicted to be quickest within the budgets; those of --pp, --dp, --cp, --cp-attention, --tp, "
         "--pipeline, --micro-batch and --shard-group that are given stay")
      ->check(one_of({"given", "auto"}))
      ->capture_default_str()
      ->group("Batch");
  app->add_option(
         "--pipeline", o->pipeline,
         "order of a pipeline's passes: gpipe (all micro-batches forward, then back), 1f1b (back as soon as can "
         "be, so that a stage holds the activations of few groups), interleaved (1f1b with several chunks of "
         "the model a stage), or zb-h1 and zb-v (gradients of weights come later, where a stage would wait; "
         "with --clip 0 zb-v waits least)")
      ->check(one_of({pipeline_order_names.begin(), pipeline_order_names.end()}))
      ->capture_default_str()
      ->group("Schedule");
  app->add_option("--chunks", c.pipeline.chunks,
                  "parts of the model that each stage has, with --pipeline interleaved or zb-v (default: 2)")
      ->check(more_than(0))
      ->group("Schedule");
  app->add_option(
         "--zero", o->zero,
         "what ranks share (ZeRO): 0 nothing, every rank has all states and gradients are all-reduced; 1 "
         "states; 2 states and gradients; 3 parameters too; auto: states, and of the rest what is predicted to "
         "be quickest within the budgets, unit by unit. The bits are the same")
      ->check(one_of({"auto", "0", "1", "2", "3"}))
      ->capture_default_str()
      ->group("Batch");
  app->add_option(
         "--shard-group", c.shard_group,
         "ranks, neighbours along dp, that have one copy of the states between them; other groups have replicas "
         "(default: all ranks)")
      ->check(more_than(0))
      ->group("Batch");
  app->add_option("--second-copy", c.second_copy,
                  "ranks, neighbours along dp and best on one machine, that keep what a step has gathered between them "
                  "in host memory, so "
                  "that its later passes do not ask other machines (ZeRO++'s hpZ; default: none)")
      ->check(more_than(0))
      ->group("Batch");
  app->add_option("--reduction", o->reduction,
                  "when ranks add up their gradients: after their last micro-batch, or after each lot, so that what "
                  "waits between passes is a shard and not a whole gradient; the bits are the same for the same --lots "
                  "(whose default with 'pass' is as many as can be)")
      ->check(one_of({"last", "pass"}))
      ->capture_default_str()
      ->group("Batch");
  app->add_option(
         "--reduce", o->reduce,
         "how ranks add up gradients: 'tree' (fp32: no bit depends on how many they are or what they share), 'bf16' "
         "(processes send each other bf16, half the bytes), or 'native' (as MPI's library does, and a stop waits "
         "for the step's end), or 'int4' (ranks that share states exchange blocks of 4 bits, first the close ones, "
         "then groups of these, and add up in fp32: ZeRO++'s qgZ); all but the first give other bits with other ranks, "
         "shard groups and --reduction")
      ->check(one_of({rank_sums_names.begin(), rank_sums_names.end()}))
      ->default_str(rank_sums_names.front())
      ->group("Batch");
  app->add_option("--gather", o->gather,
                  "how ranks that share parameters gather them in training: 'exact', or 'int8' (blocks of 8 bits, half "
                  "the bytes of bf16; all ranks compute with what comes of that, and the update has the exact ones: "
                  "ZeRO++'s qwZ)")
      ->check(one_of({rank_gathers_names.begin(), rank_gathers_names.end()}))
      ->default_str(rank_gathers_names.front())
      ->group("Batch");
  app->add_option("--transport", o->transport,
                  "how ranks on GPUs meet: 'staged' (in host memory), 'nccl' (gathers and sums go from GPU to GPU; "
                  "messages between stages are staged) or 'auto' (nccl where each rank has a GPU of its own and the "
                  "library is there). The bits are the same, but with --reduce native")
      ->check(one_of({transport_names.begin(), transport_names.end()}))
      ->capture_default_str()
      ->group("Batch");
  app->add_flag("--zero-plus-plus", o->zero_plus_plus,
                "--gather int8 and --reduce int4; with --second-copy N, of the ranks of a machine, about 1.5 bytes a "
                "parameter go between machines each step instead of 8")
      ->group("Batch");
  app->add_option(
         "--lots", c.lots,
         "equal parts of a batch whose gradients add up as a tree: any number of ranks that divides it by a "
         "power of two trains to the same bits (with --reduce tree), and a run may change it (default: --ranks)")
      ->group("Batch");
  app->add_option("--deadline", c.deadline_seconds,
                  "seconds that a rank waits for others which are alive, or three steps where those take longer; one "
                  "that is gone is noticed after 15 s at most")
      ->capture_default_str()
      ->check(range(1, 1000000))
      ->group("Batch");
  add_size(app, "--drive-tbw", &c.drive_tbw,
           "what the drive is rated to have written to it in its life, like 600TB: TBW in its data sheet; for several "
           "directories in --nvme the sum over their drives (default: unknown, no life is predicted)")
      ->check({tbw_has_a_unit, ""})
      ->group("Machine");
  app->add_option("--steps", c.steps, "optimizer steps")->capture_default_str()->group("Optimizer");
  app->add_option("--lr", a.lr, "peak learning rate")->check(more_than(0))->capture_default_str()->group("Optimizer");
  app->add_option("--lr-end", o->lr_end, "learning rate at the last step (default: a tenth of --lr)")
      ->check(at_least(0))
      ->group("Optimizer");
  app->add_option("--lr-schedule", o->lr_schedule, "decay after warm-up")
      ->check(one_of({"cosine", "linear", "constant"}))
      ->capture_default_str()
      ->group("Optimizer");
  app->add_option("--warmup", a.warmup_steps, "steps of linear warm-up")
      ->check(at_least(0))
      ->capture_default_str()
      ->group("Optimizer");
  app->add_option("--weight-decay", a.weight_decay, "of matrices; norms and biases have none")
      ->check(at_least(0))
      ->capture_default_str()
      ->group("Optimizer");
  app->add_option("--beta1", a.beta1, "decay of exp_avg")
      ->check(between(0.0, 0.9999999))
      ->capture_default_str()
      ->group("Optimizer");
  app->add_option("--beta2", a.beta2, "decay of exp_avg_sq")
      ->check(between(0.0, 0.9999999))
      ->capture_default_str()
      ->group("Optimizer");
  app->add_option("--eps", a.eps, "added to the root of exp_avg_sq")
      ->check(more_than(0))
      ->capture_default_str()
      ->group("Optimizer");
  app->add_option("--clip", a.clip_norm, "global gradient norm to clip to; 0 does not clip")
      ->check(at_least(0))
      ->capture_default_str()
      ->group("Optimizer");
  app->add_option(
         "--moments", o->moments,
         "exp_avg and exp_avg_sq: 8, 4 or 2 (and scales) bytes a parameter; the shorter ones are rounded at random")
      ->check(one_of({"fp32", "bf16", "int8"}))
      ->capture_default_str()
      ->group("Optimizer");
  app->add_option("--gradient-dtype", o->gradient_dtype,
                  "of what an update reads of gradients, and so of what waits for the global norm: 4 or 2 bytes a "
                  "parameter. bf16 is rounded at random, once, when all is added up in fp32")
      ->check(one_of({"fp32", "bf16"}))
      ->capture_default_str()
      ->group("Optimizer");
  app->add_option("--seed", c.seed, "of weights and data order")->capture_default_str()->group("Optimizer");
  app->add_option("--schedule", o->schedule, "order of units and micro-batches")
      ->check(one_of({"auto", "vertical", "horizontal"}))
      ->capture_default_str()
      ->group("Schedule");
  app->add_option("--group", o->group, "micro-batches that pass a unit together, instead of --schedule")
      ->check(more_than(0))
      ->group("Schedule");
  app->add_option(
         "--update", o->update,
         "when the optimizer works: ahead of a unit's next forward pass, with the norm known; in the backward\n"
         "pass, with --clip 0; speculative: in the backward pass as if the step did not clip, and once more\n"
         "where it does (to the same bits; durable steps). Steps that clip often are run as with ahead.\n"
         "auto and speculative may update some units in each pass")
      ->check(one_of({"auto", "ahead", "backward", "speculative"}))
      ->capture_default_str()
      ->group("Schedule");
  app->add_option(
         "--recompute", o->recompute,
         "activations that are made again: none, full: all that sublayers save, sqrt or revolve: most of their "
         "inputs too, optimal: those that cost least; auto: the quickest of what fits")
      ->check(one_of({"auto", "none", "full", "sqrt", "revolve", "optimal"}))
      ->capture_default_str()
      ->group("Schedule");
  app->add_option("--activations", o->activations, "where boundary activations wait for the backward pass")
      ->check(one_of({"auto", "device", "host", "nvme"}))
      ->capture_default_str()
      ->group("Schedule");
  app->add_option("--activation-dtype", o->activation_dtype,
                  "of activations that wait for the backward pass in host memory or on the drive: 'exact' (as they "
                  "are), or in blocks of 128 with one scale, 'int8' or 'fp8' (E4M3), half the bytes of bf16. A "
                  "step's loss is that of exact activations, its gradients are not: their bits depend on what the "
                  "plan parks, and are the same in every run of that plan")
      ->check(one_of({activation_dtype_names.begin(), activation_dtype_names.end()}))
      ->capture_default_str()
      ->group("Schedule");
  app->add_option("--states", o->states, "home of parameters and optimizer states")
      ->check(one_of({"auto", "host", "nvme"}))
      ->capture_default_str()
      ->group("Schedule");
  app->add_option("--residency", o->residency,
                  "parameters that stay on the device: none, all, or from a step's first pass over them to its last")
      ->check(one_of({"auto", "none", "step", "all"}))
      ->capture_default_str()
      ->group("Schedule");
  app->add_option("--optimizer", o->optimizer,
                  "where AdamW runs: on the CPU, or on the device, with the states streamed through it (auto: for each "
                  "unit what is predicted to be quicker); the bits are the same")
      ->check(one_of({"auto", "cpu", "device"}))
      ->capture_default_str()
      ->group("Schedule");
  app->add_option("--prefetch", o->prefetch, "units fetched ahead")->check(range(0, 64))->group("Schedule");
  app->add_option("--run", c.run,
                  "directory of the run: its records and metrics, and at the end the model; the same command goes on "
                  "where a run in it was cut short. 'none' keeps nothing, the trained model is discarded (default: a "
                  "new one, runs/MODEL-DATE)")
      ->type_name("DIR|none")
      ->group("Run");
  app->add_option("--durable", o->durable,
                  "whether every step survives a crash: two slots of every state on the drive, and a commit a step "
                  "(auto: with --nvme, where there is room, but for --run none)")
      ->check(one_of({"auto", "on", "off"}))
      ->capture_default_str()
      ->group("Run");
}

std::string absolute_path(const std::string& path) {
  if (path.empty()) return path;
  std::string text = std::filesystem::absolute(path).lexically_normal().string();
  if (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

std::set<std::string> given_options(const Command& app) {
  std::set<std::string> names;
  for (const Option& option : app.options())
    if (option.count() > 0) names.insert(option.get_name());
  return names;
}

namespace {

/// What is shared is a choice of where things lie and when they are added up: --zero fixes those options.
Status resolve_zero(const RunOptions& o, RunConfig& c) {
  if (o.zero == "auto") return success();
  const auto contradicts = [&](const std::string& option, const std::string& means) {
    return bad_request("--zero " + o.zero + " means " + means + ", and " + option +
                       " was given; leave one of them out");
  };
  if (o.zero == "0") {
    if (c.shard_group > 1)
      return contradicts("--shard-group " + std::to_string(c.shard_group), "that every rank has all states");
    c.shard_group = 1;
    return success();
  }
  if (c.shard_group == 1 && data_ranks(c) > 1) return contradicts("--shard-group 1", "that ranks share the states");
  if (o.zero == "3") {
    if (c.wish.resident == true || c.wish.held == true)
      return contradicts("--residency " + o.residency, "that parameters are gathered for every pass");
    c.wish.resident = c.wish.held = false;
  } else {
    if (c.wish.resident == false && c.wish.held != true)
      return contradicts("--residency " + o.residency, "that parameters are gathered once a step");
    if (!c.wish.resident) c.wish.resident = true;
    if (!c.wish.held) c.wish.held = false;
  }
  if (o.zero == "1") {
    if (c.reduction == Reduction::pass) return contradicts("--reduction pass", "that gradients are added up once");
    return success();
  }
  const std::int64_t at_once = std::int64_t{c.micro_batch} * batch_ranks(c);
  const int micro_batches = at_once > 0 ? static_cast<int>(c.batch / at_once) : 1;
  if (c.reduction == Reduction::last && c.wish.group && *c.wish.group < micro_batches)
    return contradicts(o.group > 0 ? "--group " + std::to_string(o.group) : "--schedule " + o.schedule,
                       "that no whole gradient waits between passes, which takes --schedule vertical or --reduction "
                       "pass");
  c.wish.group = std::max(1, micro_batches);  // of a lot, where ranks add up behind each
  return success();
}

/// What ranks send each other of gradients and parameters.
Status resolve_sums(const RunOptions& o, RunConfig& c) {
  const std::string reduce = o.reduce.value_or(o.zero_plus_plus ? "int4" : "tree"),
                    gather = o.gather.value_or(o.zero_plus_plus ? "int8" : "exact");
  if (o.zero_plus_plus && (reduce != "int4" || gather != "int8"))
    return bad_request("--zero-plus-plus means --gather int8 and --reduce int4, and " +
                       (reduce != "int4" ? "--reduce " + reduce : "--gather " + gather) +
                       " was given; leave one of them out");
  c.sums = static_cast<RankSums>(std::ranges::find(rank_sums_names, reduce) - rank_sums_names.begin());
  c.gathers = gather == "int8" ? RankGathers::int8 : RankGathers::exact;
  return success();
}

}  // namespace

Result<RunConfig> resolve(const RunOptions& o) {
  RunConfig c = o.config;
  if (c.run == keep_nothing) c.run.clear();
  if (o.document_mask != "auto") c.document_mask = o.document_mask == "on";
  c.durable = o.durable == "on" ? Durable::on : o.durable == "off" ? Durable::off : Durable::automatic;
  if (o.sync_delay_ms > 0) {
    c.faults.emplace();
    c.faults->sync_latency_us = static_cast<std::uint32_t>(o.sync_delay_ms) * 1000;
  }
  SLUICE_ASSIGN(const std::vector<std::string> poisoned, split_list("--poison-steps", o.poison));
  for (const std::string& step : poisoned) {
    char* end = nullptr;
    c.poison_steps.push_back(std::strtoll(step.c_str(), &end, 10));
    if (end == step.c_str() || *end != 0) return bad_request("--poison-steps " + o.poison + ": give numbers of steps");
  }
  c.dtype = o.dtype == "bf16" ? Dtype::bf16 : Dtype::f32;
  c.moments = o.moments == "bf16" ? MomentFormat::bf16 : o.moments == "int8" ? MomentFormat::int8 : MomentFormat::f32;
  c.gradient_dtype = o.gradient_dtype == "bf16" ? Dtype::bf16 : Dtype::f32;
  c.activation_dtype = static_cast<ActivationDtype>(std::ranges::find(activation_dtype_names, o.activation_dtype) -
                                                    activation_dtype_names.begin());
  c.optimizer.schedule = o.lr_schedule == "cosine"   ? LrSchedule::cosine
                         : o.lr_schedule == "linear" ? LrSchedule::linear
                                                     : LrSchedule::constant;
  c.optimizer.lr_end = o.lr_end.value_or(c.optimizer.lr / 10);
  SLUICE_ASSIGN(c.nvme, split_list("--nvme", o.nvme));
  const std::int64_t at_once = std::int64_t{c.micro_batch} * batch_ranks(c);
  const int micro_batches = at_once > 0 ? static_cast<int>(c.batch / at_once) : 1;
  if (o.group > 0 && o.schedule != "auto") return bad_request("give either --group or --schedule, not both");
  if (o.group > 0) c.wish.group = o.group;
  if (o.schedule == "horizontal") c.wish.group = 1;
  if (o.schedule == "vertical") c.wish.group = micro_batches;
  if (o.update != "auto")
    c.wish.update =
        static_cast<UpdateOrder>(std::ranges::find(update_order_names, o.update) - update_order_names.begin());
  if (o.recompute != "auto")
    c.wish.recompute =
        static_cast<Recompute>(std::ranges::find(recompute_names, o.recompute) - recompute_names.begin());
  if (o.residency != "auto") c.wish.resident = o.residency == "all";
  if (o.residency != "auto") c.wish.held = o.residency == "step";
  c.reduction = o.reduction == "pass" ? Reduction::pass : Reduction::last;
  SLUICE_TRY(resolve_sums(o, c));
  c.context_attention = o.cp_attention == "ring" ? ContextAttention::ring : ContextAttention::ulysses;
  const auto transport = std::ranges::find(transport_names, o.transport);
  c.transport = static_cast<Transport>(transport - transport_names.begin());
  for (std::size_t i = 0; i < pipeline_order_names.size(); ++i)
    if (o.pipeline == pipeline_order_names[i]) c.pipeline.order = static_cast<PipelineOrder>(i);
  const bool has_chunks = c.pipeline.order == PipelineOrder::interleaved || c.pipeline.order == PipelineOrder::zb_v;
  if (has_chunks && c.pipeline.chunks == 1) c.pipeline.chunks = 2;
  if (o.optimizer != "auto") c.wish.update_on_device = o.optimizer == "device";
  if (o.prefetch >= 0) c.wish.prefetch = o.prefetch;
  SLUICE_TRY(resolve_zero(o, c));
  SLUICE_TRY(check_names(c));
  SLUICE_TRY(resolve_evaluation(o, c));
  // Another process may go on from another directory.
  if (!c.run.empty()) {
    std::error_code ignored;
    const std::vector<std::string> presets = preset_names();
    const bool names_preset = std::find(presets.begin(), presets.end(), c.model) != presets.end();
    if (!names_preset && std::filesystem::exists(c.model, ignored)) c.model = absolute_path(c.model);
    for (std::string* path : {&c.init, &c.data, &c.profile}) *path = absolute_path(*path);
    if (c.tokenizer != bytes_are_tokens) c.tokenizer = absolute_path(c.tokenizer);
    for (std::string& directory : c.nvme) directory = absolute_path(directory);
    for (std::string* path : {&c.run, &c.metrics, &c.trace, &c.checkpoints, &c.restore}) *path = absolute_path(*path);
  }
  SLUICE_ASSIGN(c.wish.activations, parse_place(o.activations));
  SLUICE_ASSIGN(c.wish.states, parse_place(o.states));
  return c;
}

}  // namespace sluice::tools
