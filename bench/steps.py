#!/usr/bin/env python3
"""Steps of the models that people ask about, against the bounds of the machine.

    python3 bench/steps.py --sluice build/release/bin/sluice --data TEXT --nvme DIR [--runs 1b,125m,balance,3b]

1b       llama-1b, bf16, 8,192 tokens in 4 micro-batches, clipping, everything on the drive, durable, device 3 GiB, host
         1 GiB, in a memory cgroup of device + host + 300 MiB where this user may make one
125m     llama-125m, 16,384 tokens, clipping: everything on the drive, durable, and all resident, runs in turns
balance  llama-1b with as many tokens as make compute and drive take about equally long
3b       llama-3b, fp32 states, device 4 GiB, host 4 GiB, no clipping, update in the backward pass

Prints a table in Markdown and one line of JSON per run; medians leave out the first step. Needs Python 3.9 alone, and
room on the drive for two slots of all states of llama-1b (42 GB). No model is kept.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

GIB = 1 << 30
NVME_ALL = ["--states", "nvme", "--residency", "none"]
RUNS = {
    "1b": [("llama-1b, 8,192 tokens, 3 GiB + 1 GiB", 3, 4 * GIB + (300 << 20),
            ["--model", "llama-1b", "--seq", "1024", "--batch", "8", "--micro-batch", "2", "--device-memory", "3GiB",
             "--host-memory", "1GiB", "--states", "nvme", "--durable", "on"])],
    "125m": [("llama-125m, 16,384 tokens, all resident", 3, None,
              ["--model", "llama-125m", "--seq", "1024", "--batch", "16", "--micro-batch", "4"]),
             ("llama-125m, 16,384 tokens, everything on the drive", 3, None,
              ["--model", "llama-125m", "--seq", "1024", "--batch", "16", "--micro-batch", "4", *NVME_ALL,
               "--durable", "on", "--device-memory", "3GiB", "--host-memory", "1GiB"])],
    "balance": [("llama-1b, 768 tokens, 3 GiB + 1 GiB", 4, None,
                 ["--model", "llama-1b", "--seq", "256", "--batch", "3", "--micro-batch", "1", "--device-memory", "3GiB",
                  "--host-memory", "1GiB", "--states", "nvme"])],
    "3b": [("llama-3b, 1,024 tokens, 4 GiB + 4 GiB", 3, None,
            ["--model", "llama-3b", "--seq", "512", "--batch", "2", "--micro-batch", "1", "--device-memory", "4GiB",
             "--host-memory", "4GiB", "--clip", "0", "--update", "backward", "--warmup", "1", "--lr", "2e-6"])],
}


def efficiency(share):
    """Nothing beats its bound: where a run does, the profile is wrong."""
    return f"{share:.3f}" + (" (profile wrong)" if share > 1 else "")


def memory_cgroup(limit):
    """A folder to write our pid into, or None where this user may not make one (cgroup v1 or v2)."""
    for root, name in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        folder = pathlib.Path(root, "sluice-bench")
        try:
            folder.mkdir(exist_ok=True)
            (folder / name).write_text(str(limit))
            return folder
        except OSError:
            continue
    return None


def run_of(arguments, options):
    """Durable runs need a directory, which is removed behind them."""
    return str(pathlib.Path(arguments.runs_folder) / "run") if "--durable" in options else "none"


def train(arguments, options, steps, profile, limit):
    run = run_of(arguments, options)
    command = [arguments.sluice, "train", *options, "--run", run, "--data", arguments.data, "--nvme", arguments.nvme,
               "--profile", profile, "--steps", str(steps), "--eval-batches", "1", "--json"]
    folder = memory_cgroup(limit) if limit else None
    enter = (lambda: (folder / "cgroup.procs").write_text(str(os.getpid()))) if folder else None
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=enter)
    if run != "none":
        shutil.rmtree(run, ignore_errors=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}: {done.stderr.strip()}")
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    steps = [line for line in lines if "step_seconds" in line]
    seconds = ", ".join(f"{line['step_seconds']:.2f}" for line in steps)
    print(f"{' '.join(command)}: {seconds} s", file=sys.stderr, flush=True)
    return steps, folder is not None


def plan(arguments, options, profile):
    command = [arguments.sluice, "plan", *options, "--run", run_of(arguments, options), "--nvme", arguments.nvme,
               "--profile", profile, "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sluice", default="build/release/bin/sluice")
    parser.add_argument("--data", required=True)
    parser.add_argument("--nvme", required=True)
    parser.add_argument("--runs", default="1b,125m,balance,3b")
    parser.add_argument("--rounds", type=int, default=1, help="times that the runs of a group take turns")
    arguments = parser.parse_args()

    print("| run | step s | predicted s | bound s | bound / step | by passes / step | tokens/s | losses | arenas MiB "
          "(device, host, nvme) | rss MiB | drive GB a step (read, written) |")
    print("|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory(dir=arguments.nvme) as runs:
        arguments.runs_folder = runs
        profile = str(pathlib.Path(folder) / "profile.json")
        for group in arguments.runs.split(","):
            planned = [plan(arguments, options, profile) for _, _, _, options in RUNS[group]]
            seen = [[] for _ in planned]
            for _ in range(arguments.rounds):
                for i, (_, steps, limit, options) in enumerate(RUNS[group]):
                    lines, limited = train(arguments, options, steps, profile, limit)
                    seen[i].append((lines, limited))
            for (name, _, limit, _), p, rounds in zip(RUNS[group], planned, seen):
                lines = [line for r, _ in rounds for line in r]
                times = [line["step_seconds"] for r, _ in rounds for line in r[1:]]
                seconds, last = statistics.median(times), lines[-1]
                peaks = ", ".join(f"{last[tier + '_peak_bytes'] / (1 << 20):.0f}" for tier in ("device", "host", "nvme"))
                passes = p["predicted"]["pass_bound_seconds"]
                note = f" (in a cgroup of {limit / (1 << 20):.0f} MiB)" if rounds[0][1] else ""
                print(f"| {name}{note} | {seconds:.2f} | {last['predicted_seconds']:.2f} | {last['bound_seconds']:.2f} | "
                      f"{efficiency(last['bound_seconds'] / seconds)} | {passes / seconds:.3f} | {last['tokens'] / last['step'] / seconds:.0f} | "
                      f"{', '.join('%.3f' % line['loss'] for line in rounds[0][0])} | {peaks} | "
                      f"{max(line['rss_bytes'] for line in lines) / (1 << 20):.0f} | "
                      f"{last['nvme_read_bytes'] / 1e9:.1f}, {last['nvme_write_bytes'] / 1e9:.1f} |", flush=True)


if __name__ == "__main__":
    main()
