#!/usr/bin/env python3
"""sluice beside PyTorch's FSDP2 on one GPU, in turns: states in host memory, and everything on the device.

    python3 bench/peers/fsdp2_offload.py --model llama-1b --device-memory 4GiB --host-memory 24GiB --seq 2048 \
        --micro-batch 4 --batch 32 [--rounds 2] [--steps 4] [--only sluice,offload,...] [--profile FILE]

All train the same shape from random weights on random bytes, in bf16 with fp32 masters, moments and sums of gradients,
AdamW and clipping, and nothing that survives a crash. What takes turns:

sluice              within --device-memory and --host-memory
offload             FSDP2 with CPUOffloadPolicy: parameters, gradients and fused AdamW in host memory, checkpointed
offload-accumulate  the same, but gradients of all micro-batches are summed on the device before they leave it
sluice-large        its states in host memory too, with 9/10 of the device's memory for the rest
resident            FSDP2, everything on the device, nothing checkpointed
resident-checkpoint the same with layers checkpointed

Prints a table in Markdown. First steps are left out, times are medians; device memory is the peak that sluice counted, and
the most that PyTorch's allocator held at once (what it reserved in parentheses). Nothing of PyTorch is compiled. Needs torch and
transformers; --device cpu tries the script itself without a GPU.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback

from shapes import SHAPES

KINDS = ["sluice", "offload", "offload-accumulate", "sluice-large", "resident", "resident-checkpoint"]
GIB = 1 << 30


def worker(task):
    """In a process of its own: trains with FSDP2 and prints one line of JSON per step."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
    from transformers import LlamaConfig, LlamaForCausalLM

    on_gpu = task["device"] != "cpu"
    kind = "cuda" if on_gpu else "cpu"
    offload = task["kind"].startswith("offload")
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", rank=0, world_size=1,
                                         store=torch.distributed.HashStore())
    mesh = init_device_mesh(kind, (1,))
    torch.manual_seed(1)
    with torch.device(kind):
        model = LlamaForCausalLM(LlamaConfig(**SHAPES[task["model"]], max_position_embeddings=task["seq"],
                                             use_cache=False, tie_word_embeddings=False, attention_bias=False))
    if offload or task["kind"].endswith("checkpoint"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    ways = {"mesh": mesh, "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
    if offload:
        ways["offload_policy"] = CPUOffloadPolicy(pin_memory=on_gpu)
    for layer in model.model.layers:
        fully_shard(layer, **ways)
    fully_shard(model, **ways)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    micro_batches = task["batch"] // task["micro_batch"]
    generator = torch.Generator().manual_seed(2)
    for _ in range(task["steps"]):
        start = time.perf_counter()
        losses = []
        for number in range(micro_batches):
            tokens = torch.randint(33, 127, (task["micro_batch"], task["seq"]), generator=generator).to(kind)
            if task["kind"].endswith("accumulate"):
                model.set_requires_gradient_sync(number + 1 == micro_batches)
            loss = model(input_ids=tokens, labels=tokens).loss / micro_batches
            loss.backward()
            losses.append(loss.detach())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss = torch.stack(losses).sum().item()
        if on_gpu:
            torch.cuda.synchronize()
        print(json.dumps({"step_seconds": time.perf_counter() - start, "loss": loss, "torch": torch.__version__,
                          "device_bytes": torch.cuda.max_memory_allocated() if on_gpu else 0,
                          "reserved_bytes": torch.cuda.max_memory_reserved() if on_gpu else 0}), flush=True)


def lines_of(command, limit):
    """JSON lines of the steps that a command makes, and None or why it failed."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = process.communicate(timeout=limit)
        status = process.returncode
    except subprocess.TimeoutExpired:
        process.kill()
        out, _ = process.communicate()
        status, err = 1, f"not done after {limit} s"
    lines = []
    for line in out.splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:  # words, or a line that was cut short
            pass
    words = [line.strip() for line in err.splitlines() if line.strip()][-1:] or [f"status {status}"]
    return [line for line in lines if "step_seconds" in line], words[0][:200] if status else None


def run(arguments, kind, data, profile):
    if not kind.startswith("sluice"):
        task = {key: getattr(arguments, key) for key in ("model", "device", "seq", "batch", "micro_batch", "steps")}
        return lines_of([sys.executable, __file__, "--worker", json.dumps({"kind": kind, **task})], arguments.limit)
    budgets = ["--device-memory", arguments.device_memory] if kind == "sluice" else []
    lines, why = lines_of(
        [arguments.sluice, "train", "--model", arguments.model, "--run", "none", "--device", arguments.device, *budgets,
         "--host-memory", arguments.host_memory, "--seq", str(arguments.seq),
         "--micro-batch", str(arguments.micro_batch), "--batch", str(arguments.batch), "--clip", "1",
         "--data", data, "--steps", str(arguments.steps),
         "--eval-batches", "1", "--profile", profile, "--json"], arguments.limit)
    return [{**line, "device_bytes": line["device_peak_bytes"]} for line in lines], why


def row(arguments, kind, runs):
    timed = [line["step_seconds"] for lines, _ in runs for line in lines[1:]]
    made = [lines for lines, _ in runs if lines]
    why = next((f"fails: {why}".replace("|", "/") for _, why in runs if why), None)
    if not timed:
        first = f" (the first step took {made[0][0]['step_seconds']:.1f} s)" if made else ""
        return f"| {kind} | {why or 'no step was timed'}{first} | | | |"
    seconds, every = statistics.median(timed), [line for lines in made for line in lines]
    held = f"{max(line['device_bytes'] for line in every) / GIB:.2f}"
    if "reserved_bytes" in every[0]:
        held += f" ({max(line['reserved_bytes'] for line in every) / GIB:.2f})"
    rate = arguments.batch * arguments.seq / seconds
    return (f"| {kind} | {seconds:.3f}{f' ({why})' if why else ''} | {rate:,.0f} | {held} | "
            f"{made[0][0]['loss']:.2f}, {made[0][-1]['loss']:.2f} |")


def main():
    if sys.argv[1:2] == ["--worker"]:
        status = 1
        try:
            worker(json.loads(sys.argv[2]))
            status = 0
        except Exception:  # whatever PyTorch raises is a result
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(status)  # NCCL's threads are not waited for
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sluice", default="build/release/bin/sluice")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", default="llama-1b", choices=SHAPES)
    parser.add_argument("--device-memory", default="4GiB")
    parser.add_argument("--host-memory", default="24GiB")
    parser.add_argument("--seq", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4, help="of each in a round, the first of which is left out")
    parser.add_argument("--only", default=",".join(KINDS), help="of: " + ", ".join(KINDS))
    parser.add_argument("--limit", type=float, default=600, help="seconds that each may take in a round")
    parser.add_argument("--json", metavar="FILE", help="gets the steps of all")
    parser.add_argument("--profile", help="of the machine, for sluice (default: measured anew)")
    arguments = parser.parse_args()
    kinds = list(dict.fromkeys(arguments.only.split(",")))
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        parser.error(f"--only: '{unknown[0]}' is none of {', '.join(KINDS)}")
    if arguments.batch % arguments.micro_batch or arguments.steps < 2:
        parser.error("--batch must be a multiple of --micro-batch, and there must be two steps")
    with tempfile.TemporaryDirectory() as folder:
        data, profile = os.path.join(folder, "text"), arguments.profile or os.path.join(folder, "profile.json")
        with open(data, "wb") as text:
            text.write(bytes(33 + byte % 94 for byte in os.urandom(1 << 24)))
        runs = {kind: [] for kind in kinds}
        for number in range(arguments.rounds):
            for kind in kinds:
                start = time.monotonic()
                runs[kind].append(run(arguments, kind, data, profile))
                print(f"round {number + 1}, {kind}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({kind: [{"steps": lines, "failed": why} for lines, why in results]
                       for kind, results in runs.items()}, file)
    versions = {line["torch"] for results in runs.values() for lines, _ in results for line in lines if "torch" in line}
    print(f"{arguments.model}, {arguments.batch} x {arguments.seq} tokens a step in micro-batches of "
          f"{arguments.micro_batch}, clip 1; torch {', '.join(versions) or 'not run'}\n\n"
          "| | step s | tokens/s | device memory GiB | losses (first, last) |\n|---|---|---|---|---|")
    for kind in kinds:
        print(row(arguments, kind, runs[kind]))


if __name__ == "__main__":
    main()
