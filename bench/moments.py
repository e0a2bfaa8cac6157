#!/usr/bin/env python3
"""What shorter moments and gradients cost in quality: validation loss after the same steps, for each format and seed.

    bench/moments.py --data text.txt [--model llama-25m] [--steps 1000] [--seeds 1,2,3] [--formats fp32,bf16,int8]
                     [--formats fp32,fp32/bf16,int8/bf16]

A format is that of the moments, and behind a slash the dtype of gradients that wait for their update. Every run takes
2,048 tokens a step. Runs are kept under --keep, so that what was done is not done again. Prints a
markdown table: the loss of each format, and its difference to the first one with the same seed.
"""
import argparse
import json
import os
import subprocess
import sys


def run(args, form, seed):
    moments, _, gradients = form.partition("/")
    directory = os.path.join(args.keep, f"{form.replace('/', '-')}-{seed}")
    command = [args.sluice, "train", "--model", args.model, "--data", args.data, "--run", directory,
               "--steps", str(args.steps), "--seq", "256", "--batch", "8", "--micro-batch", "8", "--lr", args.lr,
               "--warmup", str(max(1, args.steps // 10)), "--seed", str(seed), "--moments", moments,
               "--gradient-dtype", gradients or "fp32", "--eval-batches", "32",
               "--device-memory", "4GiB", "--host-memory", "2GiB", "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.splitlines()[-1])["eval_loss"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="text or token file")
    parser.add_argument("--model", default="llama-25m")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--formats", default="fp32,bf16,int8")
    parser.add_argument("--lr", default="1e-3")
    parser.add_argument("--keep", default="moments-runs", help="folder of the runs")
    parser.add_argument("--sluice", default="build/release/bin/sluice")
    args = parser.parse_args()
    forms = args.formats.split(",")
    losses = {}
    for seed in args.seeds.split(","):
        for form in forms:
            losses[form, seed] = run(args, form, seed)
            print(f"{form} seed {seed}: {losses[form, seed]:.4f}", file=sys.stderr)
    print("| seed | " + " | ".join(forms) + " |\n|---|" + "---|" * len(forms))
    for seed in args.seeds.split(","):
        base = losses[forms[0], seed]
        cells = [f"{losses[f, seed]:.4f} ({100 * (losses[f, seed] / base - 1):+.2f}%)" for f in forms]
        print(f"| {seed} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
