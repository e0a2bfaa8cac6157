#!/usr/bin/env python3
"""What `--schedule auto` finds, against the best of an exhaustive measured search.

    python3 bench/search.py --sluice build/release/bin/sluice --data TEXT --nvme DIR

For six configurations every group of micro-batches is run with and without recompute, and `auto` beside them, in turns,
`--rounds` times; a run's figure is the median of its steps without the first. Prints a table in Markdown. Choices that
do not fit their budgets are left out. Needs Python 3.9 alone.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

CONFIGURATIONS = [
    ("llama-25m all resident", 4, ["--model", "llama-25m", "--seq", "256", "--batch", "4"]),
    ("llama-25m 512 MiB + 256 MiB", 4,
     ["--model", "llama-25m", "--seq", "256", "--batch", "4", "--device-memory", "512MiB", "--host-memory", "256MiB"]),
    ("llama-25m 128 MiB + 64 MiB", 4,
     ["--model", "llama-25m", "--seq", "256", "--batch", "4", "--device-memory", "128MiB", "--host-memory", "64MiB"]),
    ("llama-25m 64 MiB + 32 MiB", 4,
     ["--model", "llama-25m", "--seq", "256", "--batch", "4", "--device-memory", "64MiB", "--host-memory", "32MiB"]),
    ("gpt2-124m 768 MiB + 256 MiB", 4,
     ["--model", "gpt2-124m", "--seq", "128", "--batch", "4", "--device-memory", "768MiB", "--host-memory", "256MiB"]),
    ("llama-125m 512 MiB + 128 MiB", 4,
     ["--model", "llama-125m", "--seq", "128", "--batch", "4", "--device-memory", "512MiB", "--host-memory", "128MiB"]),
]


def call(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 2):
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}: {done.stderr.strip()}")
    return done


def seconds_of(command):
    lines = [json.loads(line) for line in call(command).stdout.splitlines() if line.startswith("{")]
    steps = [line["step_seconds"] for line in lines if "step_seconds" in line]
    return statistics.median(steps[1:]) if len(steps) > 1 else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sluice", default="build/release/bin/sluice")
    parser.add_argument("--data", required=True)
    parser.add_argument("--nvme", required=True)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    arguments = parser.parse_args()

    print("| configuration | auto s | auto is | best s | best is | auto / best | choices measured |")
    print("|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        common = ["--run", "none", "--nvme", arguments.nvme, "--profile", str(pathlib.Path(folder) / "profile.json"),
                  "--json"]
        for name, micro_batches, options in CONFIGURATIONS:
            chosen = json.loads(call([arguments.sluice, "plan", *options, *common]).stdout.splitlines()[-1])["schedule"]
            choices = {"auto": []}
            for group in range(1, micro_batches + 1):
                for recompute in ("full", "none"):
                    wish = ["--group", str(group), "--recompute", recompute]
                    if call([arguments.sluice, "plan", *options, *common, *wish]).returncode == 0:
                        choices[f"group {group}, recompute {recompute}"] = wish
            seen = {choice: [] for choice in choices}
            for _ in range(arguments.rounds):
                for choice, wish in choices.items():
                    seconds = seconds_of([arguments.sluice, "train", *options, *common, *wish, "--data", arguments.data,
                                          "--steps", str(arguments.steps), "--eval-batches", "1"])
                    if seconds is not None:
                        seen[choice].append(seconds)
            medians = {choice: statistics.median(times) for choice, times in seen.items() if times}
            best = min(medians, key=medians.get)
            print(f"| {name} | {medians['auto']:.3f} | group {chosen['group']} | {medians[best]:.3f} | {best} | "
                  f"{medians['auto'] / medians[best]:.3f} | {len(medians)} |", flush=True)


if __name__ == "__main__":
    main()
