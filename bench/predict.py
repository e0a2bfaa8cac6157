#!/usr/bin/env python3
"""Predicted against measured step times, by preset and budget.

    python3 bench/predict.py --sluice build/release/bin/sluice --data TEXT --nvme DIR [--presets llama-25m,llama-125m]

First every configuration is planned, which measures what the hardware profile lacks; from then on the profile is not
changed. Then the runs are made, and the median of their steps (the first left out) is held against the prediction. On a
machine whose speed drifts (other tenants), --fresh measures a profile right before each run, which then uses it
unchanged.

Prints a table in Markdown; exit status 1 if a run fails. Needs Python 3.9 and nothing else.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

# preset: (sequence, batch, micro-batch, [budgets as (name, options)])
CONFIGURATIONS = {
    "llama-25m": (256, 8, 2, [
        ("all resident", []),
        ("states on NVMe, 512 MiB + 256 MiB", ["--device-memory", "512MiB", "--host-memory", "256MiB", "--states", "nvme"]),
        ("96 MiB + 64 MiB", ["--device-memory", "96MiB", "--host-memory", "64MiB"]),
        ("64 MiB + 16 MiB", ["--device-memory", "64MiB", "--host-memory", "16MiB"]),
    ]),
    "llama-125m": (256, 4, 1, [
        ("all resident", []),
        ("states on NVMe, 1 GiB + 512 MiB", ["--device-memory", "1GiB", "--host-memory", "512MiB", "--states", "nvme"]),
        ("512 MiB + 128 MiB", ["--device-memory", "512MiB", "--host-memory", "128MiB"]),
        ("320 MiB + 64 MiB", ["--device-memory", "320MiB", "--host-memory", "64MiB"]),
    ]),
    "llama-1b": (256, 2, 1, [
        ("3 GiB + 1 GiB", ["--device-memory", "3GiB", "--host-memory", "1GiB"]),
        ("2 GiB + 512 MiB", ["--device-memory", "2GiB", "--host-memory", "512MiB"]),
        ("1 GiB + 512 MiB", ["--device-memory", "1GiB", "--host-memory", "512MiB"]),
        ("768 MiB + 128 MiB", ["--device-memory", "768MiB", "--host-memory", "128MiB"]),
    ]),
}


def efficiency(share):
    """Nothing beats its bound: where a run does, the profile is wrong."""
    return f"{share:.3f}" + (" (profile wrong)" if share > 1 else "")


def call(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}: {done.stderr.strip()}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sluice", default="build/release/bin/sluice")
    parser.add_argument("--data", required=True)
    parser.add_argument("--nvme", required=True)
    parser.add_argument("--presets", default="llama-25m,llama-125m")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--fresh", action="store_true", help="a new profile before each run")
    arguments = parser.parse_args()

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        profile = pathlib.Path(folder) / "profile.json"
        for preset in arguments.presets.split(","):
            sequence, batch, micro_batch, budgets = CONFIGURATIONS[preset]
            for name, options in budgets:
                common = ["--run", "none", "--model", preset, "--seq", str(sequence), "--batch", str(batch),
                          "--micro-batch", str(micro_batch), "--nvme", arguments.nvme, "--profile", str(profile), "--json", *options]
                rows.append((preset, name, common, None if arguments.fresh else call([arguments.sluice, "plan", *common])[-1]))
        print("| preset | budgets | predicted s | measured s | measured / predicted | bound / measured | bottleneck |")
        print("|---|---|---|---|---|---|---|", flush=True)
        for preset, name, common, plan in rows:
            if plan is None:
                profile.unlink(missing_ok=True)
                plan = call([arguments.sluice, "plan", *common])[-1]
            steps = [line for line in call([arguments.sluice, "train", *common, "--data", arguments.data, "--steps",
                                            str(arguments.steps), "--eval-batches", "1"]) if "step_seconds" in line]
            measured = statistics.median(line["step_seconds"] for line in steps[1:])
            predicted = plan["predicted"]["step_seconds"]
            bound = plan["predicted"]["bound_seconds"]
            print(f"| {preset} | {name} | {predicted:.3f} | {measured:.3f} | {measured / predicted:.3f} | {efficiency(bound / measured)} | "
                  f"{plan['predicted']['bottleneck']} |", flush=True)


if __name__ == "__main__":
    main()
