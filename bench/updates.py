#!/usr/bin/env python3
"""Orders of updates against each other: durable steps of one model, in turns.

    python3 bench/updates.py --sluice build/release/bin/sluice --data TEXT --nvme DIR [--rounds 3] [--steps 8] [-- OPTIONS]

ahead        --update ahead, clip 1.0 of norms that are never above: updates wait for the norm
speculative  --update speculative, the same
clipping     --update speculative, and every step clips
backward     --update backward --clip 0: what steps take for which no norm is needed

OPTIONS are those of `sluice train`; without any: llama-1b of 768 tokens, states on the drive, device 3 GiB, host 1 GiB.
Each run begins anew, every second round the other way round, and its first three steps are left out. Prints a table in
Markdown: medians of steps, and the median of the rounds' ratios to `ahead`. Needs Python 3.9 alone, and room on the
drive for two slots of all states.
"""
import argparse
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

DEFAULT = ["--model", "llama-1b", "--seq", "256", "--batch", "3", "--micro-batch", "1", "--device-memory", "3GiB",
           "--host-memory", "1GiB", "--states", "nvme"]
ORDERS = {
    "ahead": ["--update", "ahead", "--clip", "1e6"],
    "speculative": ["--update", "speculative", "--clip", "1e6"],
    "clipping": ["--update", "speculative", "--clip", "1e-3"],
    "backward": ["--update", "backward", "--clip", "0"],
}
LEFT_OUT = 3


def sluice(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}: {done.stderr.strip()}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sluice", default="build/release/bin/sluice")
    parser.add_argument("--data", required=True)
    parser.add_argument("--nvme", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--orders", default=",".join(ORDERS))
    parser.add_argument("options", nargs="*", default=[])
    arguments = parser.parse_args()
    options = arguments.options or DEFAULT
    orders = arguments.orders.split(",")
    common = [*options, "--nvme", arguments.nvme, "--data", arguments.data, "--json", "--durable", "on"]
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory(dir=arguments.nvme) as runs:
        profile = ["--profile", str(pathlib.Path(folder) / "profile.json")]
        plans = {}
        for order in orders:
            run = ["--run", str(pathlib.Path(runs) / "plan")]
            plans[order] = sluice([arguments.sluice, "plan", *common, *profile, *run, *ORDERS[order]])[-1]
        rounds = {order: [] for order in orders}
        lasts = {}
        for number in range(arguments.rounds):
            for order in orders if number % 2 == 0 else reversed(orders):
                run = pathlib.Path(runs) / f"{order}{number}"
                lines = sluice([arguments.sluice, "train", *common, *profile, "--run", str(run), "--steps",
                                str(arguments.steps), "--eval-batches", "1", *ORDERS[order]])
                steps = [line for line in lines if "step_seconds" in line]
                rounds[order].append([line["step_seconds"] for line in steps[LEFT_OUT:]])
                lasts[order] = (steps, lines[-1])
                shutil.rmtree(run, ignore_errors=True)
                print(f"round {number + 1}, {order}: {rounds[order][-1]}", file=sys.stderr, flush=True)
        print("| updates | step s | speed by ahead's | predicted s | bound s | repaired steps | host, nvme MiB | drive GB a "
              "step (read, written) |")
        print("|---|---|---|---|---|---|---|---|")
        for order in orders:
            seconds = statistics.median(s for r in rounds[order] for s in r)
            ratios = [statistics.median(a) / statistics.median(b) for a, b in zip(rounds[orders[0]], rounds[order])]
            steps, result = lasts[order]
            last, p = steps[-1], plans[order]["predicted"]
            print(f"| {order} | {seconds:.2f} | {statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}] | "
                  f"{last['predicted_seconds']:.2f} | {p['bound_seconds']:.2f} | "
                  f"{sum(1 for s in steps if 'repaired' in s)} of {len(steps)} | {last['host_peak_bytes'] / (1 << 20):.0f}, "
                  f"{last['nvme_peak_bytes'] / (1 << 20):.0f} | {last['nvme_read_bytes'] / 1e9:.1f}, "
                  f"{last['nvme_write_bytes'] / 1e9:.1f} |", flush=True)


if __name__ == "__main__":
    main()
