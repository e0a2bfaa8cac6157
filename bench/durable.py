#!/usr/bin/env python3
"""What durable steps cost: steps with --durable on against off, in turns, also with 5 ms added to every fdatasync.

    bench/durable.py --sluice build/release/bin/sluice --data TEXT --nvme DIR [--models llama-25m,llama-125m] [--rounds 7]

Every state is on the drive. A round is a run of each kind; of its steps the median without the first three counts. A row
gives the median over rounds of on / off of the same round; with 5 ms both go through the layer that delays. Prints a markdown table. Needs Python 3.9 alone.
"""
import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile

# Options, and steps of a run: some seconds each.
MODELS = {"llama-25m": (["--seq", "256", "--batch", "8", "--device-memory", "512MiB", "--host-memory", "192MiB"], 10),
          "llama-125m": (["--seq", "512", "--batch", "16", "--device-memory", "2GiB", "--host-memory", "512MiB"], 8)}


def step_seconds(args, model, options):
    shape, steps = MODELS[model]
    run = tempfile.mkdtemp(dir=args.nvme)
    command = [args.sluice, "train", "--model", model, "--data", args.data, "--run", run, "--nvme", args.nvme, "--states",
               "nvme", "--residency", "none", "--steps", str(steps), "--warmup", "2", "--eval-batches", "1", "--json",
               *shape, *options]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}: {done.stderr.strip().splitlines()[-1]}")
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        return statistics.median(line["step_seconds"] for line in lines if "step_seconds" in line and line["step"] > 3)
    finally:
        shutil.rmtree(run)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--nvme", required=True)
    parser.add_argument("--sluice", default="build/release/bin/sluice")
    parser.add_argument("--models", default="llama-25m,llama-125m")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    slow = ["--sync-delay", "5"]
    print("| model | step off | on / off | on / off, both with 5 ms | off / off |\n|---|---|---|---|---|")
    for model in args.models.split(","):
        ratios, off = {"on": [], "slow": [], "off": []}, []
        for _ in range(args.rounds):
            before = step_seconds(args, model, ["--durable", "off"])
            on = step_seconds(args, model, ["--durable", "on"])
            after = step_seconds(args, model, ["--durable", "off"])
            slow_off = step_seconds(args, model, ["--durable", "off", *slow])
            slow_on = step_seconds(args, model, ["--durable", "on", *slow])
            off.append((before + after) / 2)
            ratios["on"].append(on / off[-1])
            ratios["slow"].append(slow_on / slow_off)
            ratios["off"].append(after / before)
        cells = [f"{statistics.median(r):.3f} [{min(r):.3f}, {max(r):.3f}]" for r in ratios.values()]
        print(f"| {model} | {statistics.median(off):.3f} s | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
