#!/usr/bin/env python3
"""sluice beside DeepSpeed's ZeRO-3 with optimizer states on a drive, on the same machine's CPU, in turns.

    python3 -m venv VENV && VENV/bin/pip install torch transformers ninja psutil setuptools
    DS_ACCELERATOR=cpu VENV/bin/pip install --no-build-isolation deepspeed      # and the headers of libaio
    VENV/bin/python bench/peers/deepspeed_nvme.py --data TEXT --nvme DIR [--rounds 2] [--steps 3] [--profile FILE]

Both train the shape of llama-125m from random weights on the same bytes, with AdamW, clipping, and nothing that survives
a crash. First configurations of DeepSpeed make some small steps:

bf16, fp32     optimizer states on the drive, in groups of parameters, parameters in memory
-pipelined     the next group is read and the last one written meanwhile
-parameters    parameters on the drive too
-checkpointing activations are made again in the backward pass

One that fails is recorded with its message. Then the quickest one (or --peer NAME) takes turns with sluice at
--seq x --batch tokens a step. fp32 is there because PyTorch multiplies bf16 matrices slowly on processors without
instructions for that; sluice trains in bf16 always, with fp32 masters and moments.

Prints two tables in Markdown. First steps are left out, times are medians, ratios are of medians within a round. Memory
is the peak of each process: the most of sluice's rss_bytes, and VmHWM of DeepSpeed's (without what it has when all is
imported in parentheses). Drive bytes are those of the last step. DeepSpeed compiles two extensions when it first runs,
which takes minutes and is not timed.
"""
import argparse
import json
import math
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from shapes import SHAPES

MIB = 1 << 20
GROUP = 30_000_000  # elements that DeepSpeed updates at once, and of a buffer: above the largest parameter's
CONFIGURATIONS = ["fp32", "fp32-pipelined", "fp32-parameters", "fp32-checkpointing", "bf16", "bf16-pipelined",
                  "bf16-parameters", "bf16-checkpointing"]
TRIED = ["fp32", "fp32-pipelined", "fp32-parameters", "fp32-checkpointing", "bf16", "bf16-parameters"]


def deepspeed_settings(name, micro_batches, micro_batch, folder):
    place = {"device": "nvme", "nvme_path": folder, "pin_memory": False}
    zero = {"stage": 3, "sub_group_size": GROUP, "offload_optimizer": {**place, "buffer_count": 4}}
    if "pipelined" in name:
        zero["offload_optimizer"].update(pipeline_read=True, pipeline_write=True, buffer_count=16)
    if "parameters" in name:
        zero["offload_param"] = {**place, "buffer_count": 5, "buffer_size": GROUP, "max_in_cpu": 0}
    return {
        "train_micro_batch_size_per_gpu": micro_batch, "gradient_accumulation_steps": micro_batches,
        "gradient_clipping": 1.0, "bf16": {"enabled": name.startswith("bf16")}, "zero_optimization": zero,
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
        "aio": {"block_size": MIB, "queue_depth": 32, "intra_op_parallelism": 1, "single_submit": False,
                "overlap_events": True},
        "steps_per_print": 1 << 30,
    }


def status_bytes(key):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(key + ":"))


def drive_bytes():
    with open("/proc/self/io") as lines:
        values = dict(line.split(": ") for line in lines)
    return int(values["read_bytes"]), int(values["write_bytes"])


def worker(task):
    """In a process of its own: trains with DeepSpeed and prints one line of JSON per step, or one with the error."""
    def say(**line):
        print(json.dumps(line), flush=True)

    try:
        import torch
        import deepspeed
        from transformers import LlamaConfig, LlamaForCausalLM
        torch.set_num_threads(task["threads"])
        if task.get("build"):
            from deepspeed.ops.op_builder import AsyncIOBuilder, CPUAdamBuilder
            AsyncIOBuilder().load()
            CPUAdamBuilder().load()
            say(torch=torch.__version__, deepspeed=deepspeed.__version__)
            return
        with open(task["data"], "rb") as source:
            text = source.read(8 * MIB)
        imported = status_bytes("VmRSS")
        torch.manual_seed(1)
        model = LlamaForCausalLM(LlamaConfig(**SHAPES[task["model"]], max_position_embeddings=2048, use_cache=False,
                                             tie_word_embeddings=False, attention_bias=False))
        if "checkpointing" in task["name"]:
            model.gradient_checkpointing_enable()
        rows, seq = task["micro_batch"], task["seq"]
        micro_batches = task["batch"] // rows
        settings = deepspeed_settings(task["name"], micro_batches, rows, task["folder"])
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
        engine.train()
        position = 0
        for number in range(task["steps"]):
            before, start, losses = drive_bytes(), time.perf_counter(), []
            for _ in range(micro_batches):
                if position + rows * seq > len(text):
                    position = 0
                tokens = torch.tensor(list(text[position:position + rows * seq])).view(rows, seq)
                position += rows * seq
                loss = engine(input_ids=tokens, labels=tokens).loss
                engine.backward(loss)
                engine.step()
                losses.append(loss.item())
            seconds = time.perf_counter() - start
            if not all(math.isfinite(value) for value in losses):
                raise ValueError(f"a loss of step {number + 1} is not finite")
            read, written = (after - b for after, b in zip(drive_bytes(), before))
            say(step_seconds=seconds, loss=statistics.mean(losses), peak=status_bytes("VmHWM"), imported=imported,
                read=read, written=written)
    except Exception as error:  # whatever DeepSpeed raises is a result
        lines = [line.strip() for line in f"{type(error).__name__}: {error}".splitlines() if line.strip()]
        say(error=" ".join(lines[:1] + lines[-1:] if len(lines) > 1 else lines))
        import traceback
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # threads of the I/O handle may never end


def deepspeed(arguments, limit, **task):
    """Lines of the steps of one configuration, and None or why it failed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1",
                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": str(arguments.threads),
                   "PATH": os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", "")}
    with tempfile.TemporaryDirectory(dir=arguments.nvme, ignore_cleanup_errors=True) as folder:
        task = {"model": arguments.model, "threads": arguments.threads, "data": arguments.data, "folder": folder, **task}
        process = subprocess.Popen([sys.executable, __file__, "--worker", json.dumps(task)], env=environment, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        late = False
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            late = True
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
    lines = []
    for line in out.splitlines():
        if line.startswith('{"'):
            lines.append(json.loads(line))
    errors = [line["error"] for line in lines if "error" in line]
    if late:
        errors = [f"not done after {limit} s"]
    elif process.returncode != 0 and not errors:
        last = [line.strip() for line in err.splitlines() if line.strip()][-1:] or ["no message"]
        ended = f"signal {-process.returncode}" if process.returncode < 0 else f"status {process.returncode}"
        errors = [f"ended by {ended}: {last[0]}"]
    if errors and arguments.verbose:
        print(err, file=sys.stderr)
    return [line for line in lines if "error" not in line], errors[-1] if errors else None


def sluice(arguments, profile, seq, batch, micro_batch, steps):
    common = ["--model", arguments.model, "--seq", str(seq), "--batch", str(batch), "--micro-batch", str(micro_batch),
              "--states", "nvme", "--residency", "none", "--device-memory", arguments.device_memory, "--host-memory",
              arguments.host_memory, "--nvme", arguments.nvme, "--clip", "1.0", "--durable", "off", "--run", "none",
              "--data", arguments.data, "--threads", str(arguments.threads), "--profile", profile, "--json"]
    verb = ["train", *common, "--eval-batches", "1", "--steps", str(steps)] if steps else ["plan", *common]
    done = subprocess.run([arguments.sluice, *verb], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{arguments.sluice} {' '.join(verb)}: exit status {done.returncode}: {done.stderr.strip()}")
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [{"step_seconds": line["step_seconds"], "loss": line["loss"], "peak": line["rss_bytes"],
             "read": line["nvme_read_bytes"], "written": line["nvme_write_bytes"]}
            for line in lines if "step_seconds" in line]


def median_seconds(lines):
    return statistics.median(line["step_seconds"] for line in lines[1:])


def cells(tokens, lines):
    """Of the lines of some runs."""
    seconds = statistics.median(line["step_seconds"] for run in lines for line in run[1:])
    every = [line for run in lines for line in run]
    peak = max(line["peak"] for line in every)
    memory = f"{peak / MIB:.0f}"
    if "imported" in every[0]:
        memory += f" ({(peak - max(line['imported'] for line in every)) / MIB:.0f})"
    last = every[-1]
    return (f"{seconds:.2f} | {tokens / seconds:.0f} | {memory} | {last['read'] / 1e9:.2f}, {last['written'] / 1e9:.2f} | "
            f"{lines[0][0]['loss']:.2f}, {lines[0][-1]['loss']:.2f}")


HEAD = "step s | tokens/s | peak memory MiB | drive GB a step (read, written) | losses (first, last)"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sluice", default="build/release/bin/sluice")
    parser.add_argument("--data", required=True, help="any text of some MB")
    parser.add_argument("--nvme", required=True, help="directory on the drive, for both")
    parser.add_argument("--model", default="llama-125m", choices=SHAPES)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3, help="of each in a round, the first of which is left out")
    parser.add_argument("--seq", type=int, default=512)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--micro-batch", type=int, default=2, help="of sluice")
    parser.add_argument("--peer-micro-batch", type=int, default=1)
    parser.add_argument("--device-memory", default="1GiB")
    parser.add_argument("--host-memory", default="1GiB")
    parser.add_argument("--configurations", default=",".join(TRIED), help="that make small steps")
    parser.add_argument("--peer", choices=CONFIGURATIONS, help="that takes turns (default: the quickest)")
    parser.add_argument("--small-seq", type=int, default=64, help="tokens of the one sequence of a small step")
    parser.add_argument("--small-steps", type=int, default=2)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--limit", type=int, default=900, help="seconds that a run of DeepSpeed may take")
    parser.add_argument("--small-limit", type=int, default=120, help="seconds that one of small steps may take")
    parser.add_argument("--profile", help="of the machine, for sluice (default: measured anew)")
    parser.add_argument("--verbose", action="store_true", help="what a failing DeepSpeed said")
    arguments = parser.parse_args()
    arguments.data, arguments.nvme = os.path.abspath(arguments.data), os.path.abspath(arguments.nvme)
    if arguments.batch % arguments.micro_batch or arguments.batch % arguments.peer_micro_batch:
        parser.error("--batch must be a multiple of --micro-batch and of --peer-micro-batch")
    if min(arguments.steps, arguments.small_steps) < 2:
        parser.error("the first of the steps is left out: there must be two")
    return arguments


def main():
    if sys.argv[1:2] == ["--worker"]:
        worker(json.loads(sys.argv[2]))
        return
    arguments = parse_arguments()

    def note(text):
        print(text, file=sys.stderr, flush=True)

    start = time.monotonic()
    versions, error = deepspeed(arguments, None, build=True, name="build")
    if error:
        sys.exit(f"deepspeed_nvme.py: DeepSpeed cannot be had: {error}")
    versions = versions[-1]
    note(f"DeepSpeed's extensions: {time.monotonic() - start:.0f} s")
    with tempfile.TemporaryDirectory() as folder:
        profile = arguments.profile or str(pathlib.Path(folder) / "profile.json")
        sluice(arguments, profile, arguments.seq, arguments.batch, arguments.micro_batch, 0)
        note(f"profile: {time.monotonic() - start:.0f} s")

        tokens = arguments.small_seq
        print(f"{arguments.model}, {arguments.threads} threads, deepspeed {versions['deepspeed']}, torch "
              f"{versions['torch']}; small steps of {tokens} tokens\n\n| | {HEAD} |\n|---|---|---|---|---|---|")
        ours = sluice(arguments, profile, tokens, 1, 1, arguments.small_steps)
        print(f"| sluice | {cells(tokens, [ours])} |", flush=True)
        quickest = {}
        for name in [name for name in arguments.configurations.split(",") if name]:
            lines, error = deepspeed(arguments, arguments.small_limit, name=name, seq=tokens, batch=1, micro_batch=1,
                                     steps=arguments.small_steps)
            if error:
                print(f"| DeepSpeed {name} | fails: {error.replace('|', '/')} | | | | |", flush=True)
            else:
                quickest[name] = median_seconds(lines)
                print(f"| DeepSpeed {name} | {cells(tokens, [lines])} |", flush=True)
            note(f"{name}: {time.monotonic() - start:.0f} s")
        peer = arguments.peer or min(quickest, key=quickest.get, default=None)
        if not peer:
            sys.exit("deepspeed_nvme.py: no configuration of DeepSpeed works")

        tokens, rounds = arguments.seq * arguments.batch, []
        for number in range(arguments.rounds):
            ours = sluice(arguments, profile, arguments.seq, arguments.batch, arguments.micro_batch, arguments.steps)
            theirs, error = deepspeed(arguments, arguments.limit, name=peer, seq=arguments.seq, batch=arguments.batch,
                                      micro_batch=arguments.peer_micro_batch, steps=arguments.steps)
            if error:
                print(f"\nDeepSpeed {peer} fails at {tokens} tokens a step: {error}")
                return
            rounds.append((ours, theirs))
            note(f"round {number + 1}: sluice {median_seconds(ours):.2f} s, DeepSpeed {peer} "
                 f"{median_seconds(theirs):.2f} s; {time.monotonic() - start:.0f} s")
    ratios = [median_seconds(theirs) / median_seconds(ours) for ours, theirs in rounds]
    print(f"\nSteps of {tokens} tokens, {arguments.rounds} rounds of {arguments.steps} steps in turns; sluice in "
          f"{arguments.device_memory} + {arguments.host_memory}, micro-batches of {arguments.micro_batch}; DeepSpeed's of "
          f"{arguments.peer_micro_batch}\n\n| | {HEAD} | speed by DeepSpeed's, per round |\n|---|---|---|---|---|---|---|")
    print(f"| sluice | {cells(tokens, [r[0] for r in rounds])} | {statistics.median(ratios):.2f} "
          f"({', '.join(f'{r:.2f}' for r in ratios)}) |")
    print(f"| DeepSpeed {peer} | {cells(tokens, [r[1] for r in rounds])} | 1 |")


if __name__ == "__main__":
    main()
