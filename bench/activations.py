#!/usr/bin/env python3
"""What becomes of activations: schedules by name, measured in turns, and how far plans are from their bound.

    python3 bench/activations.py --sluice build/release/bin/sluice --data TEXT [--rounds 3]
    python3 bench/activations.py --sluice build/release/bin/sluice --gaps [--presets llama-125m,llama-1b,...]
        [--cluster bench/clusters/h200.json]

The first measures llama-125m on a device that has room for a part of what keeping all activations takes beside the
rest: for each part every schedule that fits is planned and run, in turns, and the median of its steps (the first of each
run left out) is held against its prediction. Host memory takes what is parked, unless --no-parking.

The second plans presets at five budgets and prints the distance of each plan's activations to the bound, with the
seconds that planning took. It measures what the profile lacks (--assume: nothing has to fit this machine), or takes
the machine's data sheets (--cluster).

Prints tables in Markdown. Needs Python 3.9 and nothing else.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

PARTS = [0.5, 0.25, 0.1]
SCHEDULES = ["auto", "optimal", "full", "revolve", "sqrt"]
GAP_PRESETS = {
    "llama-tiny": (256, 16, 4), "llama-25m": (512, 16, 4), "gpt2-124m": (1024, 16, 4), "llama-125m": (1024, 16, 4),
    "llama-1b": (2048, 16, 2), "gpt2-1.5b": (1024, 16, 2), "llama-3b": (2048, 16, 1), "llama-7b": (2048, 16, 1),
    "llama-8b": (2048, 16, 1), "llama-13b": (2048, 16, 1), "llama-70b": (2048, 16, 1),
}
GAP_PARTS = [1.0, 0.5, 0.25, 0.1, 0.05]


def call(command):
    """Lines of JSON; None where the budgets are too small."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 2 and "do not fit" in done.stderr or "does not fit" in done.stderr:
        return None
    if done.returncode not in (0, 1, 2):
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}: {done.stderr.strip()}")
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return lines or None


def arena(plan):
    return plan["device"]["arena_bytes"]


def plan(sluice, options):
    lines = call([sluice, "plan", *options, "--json"])
    return lines[-1] if lines and lines[-1].get("fits") else None


def budgets(sluice, common, parts):
    """Device bytes with a part of what activations take where all are kept; parameters stream."""
    everything = plan(sluice, [*common, "--recompute", "none", "--activations", "device"])
    nothing = plan(sluice, [*common, "--recompute", "full", "--activations", "host"])
    if everything is None or nothing is None:
        sys.exit(f"{' '.join(common)}: does not fit")
    most, least = arena(everything), arena(nothing)
    return [(part, int(least + part * (most - least))) for part in parts]


def measure(arguments):
    with tempfile.TemporaryDirectory() as folder:
        profile = pathlib.Path(folder) / "profile.json"
        common = ["--run", "none", "--model", "llama-125m", "--seq", "1024", "--batch", "4", "--micro-batch", "4",
                  "--residency", "none", "--states", "host", "--profile", str(profile)]
        if arguments.no_parking:
            common += ["--activations", "device"]
        rows = []
        parts = [float(part) for part in arguments.parts.split(",")]
        for part, device in budgets(arguments.sluice, common, parts):
            for schedule in arguments.schedules.split(","):
                options = [*common, "--device-memory", str(device), "--recompute", schedule]
                predicted = plan(arguments.sluice, options)
                rows.append((part, device, schedule, options, predicted, []))
        for _ in range(arguments.rounds):
            for part, device, schedule, options, predicted, seconds in rows:
                if predicted is None:
                    continue
                lines = call([arguments.sluice, "train", *options, "--json", "--data", arguments.data, "--steps",
                              str(arguments.steps), "--eval-batches", "1"])
                steps = [line["step_seconds"] for line in lines or [] if "step_seconds" in line]
                seconds.extend(steps[1:])
        print("| room for activations | device MiB | schedule | predicted s | measured s | measured / predicted |")
        print("|---|---|---|---|---|---|")
        for part, device, schedule, _, predicted, seconds in rows:
            head = f"| {part:.0%} | {device / 2**20:.0f} | {schedule} |"
            if predicted is None or not seconds:
                print(f"{head} does not fit | | |")
                continue
            expected, median = predicted["predicted"]["step_seconds"], statistics.median(seconds)
            print(f"{head} {expected:.3f} | {median:.3f} | {median / expected:.3f} |", flush=True)


def gaps(arguments):
    print("| preset | tokens a step | device MiB | predicted s | above the bound | planned in s |")
    print("|---|---|---|---|---|---|")
    for preset in arguments.presets.split(","):
        sequence, batch, micro_batch = GAP_PRESETS[preset]
        common = ["--model", preset, "--seq", str(sequence), "--batch", str(batch), "--micro-batch", str(micro_batch),
                  "--host-memory", "2TB",
                  *(["--cluster", arguments.cluster] if arguments.cluster else ["--assume"])]
        for _, device in budgets(arguments.sluice, [*common, "--residency", "none"], GAP_PARTS):
            begin = time.monotonic()
            found = plan(arguments.sluice, [*common, "--device-memory", str(device)])
            took = time.monotonic() - begin
            if found is None:
                print(f"| {preset} | {sequence * batch} | {device / 2**20:.0f} | does not fit | | {took:.1f} |")
                continue
            predicted = found["predicted"]
            gap = predicted.get("activations_above_bound")
            print(f"| {preset} | {sequence * batch} | {device / 2**20:.0f} | {predicted['step_seconds']:.4g} | "
                  f"{'-' if gap is None else f'{100 * gap:.1f}%'} | {took:.1f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sluice", default="build/release/bin/sluice")
    parser.add_argument("--data")
    parser.add_argument("--gaps", action="store_true")
    parser.add_argument("--presets", default=",".join(GAP_PRESETS))
    parser.add_argument("--cluster", help="with --gaps: a machine that is not there")
    parser.add_argument("--parts", default=",".join(map(str, PARTS)), help="of what keeping all activations takes")
    parser.add_argument("--schedules", default=",".join(SCHEDULES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--no-parking", action="store_true")
    arguments = parser.parse_args()
    if arguments.gaps:
        gaps(arguments)
    elif arguments.data is None:
        parser.error("give --data TEXT, or --gaps")
    else:
        measure(arguments)


if __name__ == "__main__":
    main()
