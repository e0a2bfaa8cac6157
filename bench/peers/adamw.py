#!/usr/bin/env python3
"""AdamW of sluice beside PyTorch's fused one and DeepSpeed's CPUAdam, in turns, on one machine.

    python3 bench/peers/adamw.py --sluice build/release/bin/sluice [--numel 134217728] [--threads 2] [--rounds 5]

All do the same work: read gradients, update an fp32 master with its moments, and leave a bf16 copy of the parameter.
    sluice      one pass; the master is the bf16 parameter and a 16-bit remainder (formats bf16/*/*) or fp32
    torch       AdamW(fused=True) on the fp32 master, then bf16.copy_(master)
    deepspeed   CPUAdam in AdamW mode on the fp32 master, then bf16.copy_(master)
Peers get fp32 gradients, which is what they take; sluice's bf16/f32/f32 reads the same. A round runs each peer several
times and sluice's own bench; figures are medians over rounds, in million parameters per second. Needs torch and
deepspeed (with ninja); a peer that cannot be had is left out with a line that says why.
"""
import argparse
import json
import os
import statistics
import subprocess
import time

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import torch

FORMATS = ["bf16/f32/f32", "bf16/f32/bf16", "bf16/bf16/bf16", "bf16/int8/bf16"]


def torch_step(master, copy):
    optimizer = torch.optim.AdamW([master], lr=1e-6, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def step():
        optimizer.step()
        copy.copy_(master.detach())

    return step


def deepspeed_step(master, copy):
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    optimizer = DeepSpeedCPUAdam([master], lr=1e-6, betas=(0.9, 0.95), weight_decay=0.1, adamw_mode=True)

    def step():
        optimizer.step()
        copy.copy_(master.detach())

    return step


def sluice_rates(binary, numel, threads):
    out = subprocess.run([binary, "bench", "adamw", "--json", "--where", "memory", "--seconds", "0.4", "--numel",
                          str(numel), "--threads", str(threads), "--formats", ",".join(FORMATS)],
                         check=True, capture_output=True, text=True).stdout
    return {r["format"]: r for r in json.loads(out)["results"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sluice", required=True)
    parser.add_argument("--numel", type=int, default=1 << 27)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5, help="of each peer per round")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    master = torch.nn.Parameter(torch.randn(arguments.numel) * 0.02)
    master.grad = torch.randn(arguments.numel) * 1e-3
    copy = master.detach().bfloat16()
    peers = {}
    for name, make in [("torch", torch_step), ("deepspeed", deepspeed_step)]:
        try:
            peers[name] = make(master, copy)
            peers[name]()
        except Exception as error:
            peers.pop(name, None)
            print(f"{name}: left out: {error}")
    rates = {name: [] for name in list(peers) + FORMATS}
    ratios = {name: [] for name in FORMATS}
    for _ in range(arguments.rounds):
        for name, step in peers.items():
            seconds = []
            for _ in range(arguments.steps):
                start = time.perf_counter()
                step()
                seconds.append(time.perf_counter() - start)
            rates[name].append(arguments.numel / statistics.median(seconds) / 1e6)
        for name, row in sluice_rates(arguments.sluice, arguments.numel, arguments.threads).items():
            rates[name].append(row["parameters_per_second"] / 1e6)
            ratios[name].append(row["ratio"])

    print(f"{arguments.numel} parameters, {arguments.threads} threads, medians of {arguments.rounds} rounds")
    print(f"{'':24}{'Mparam/s':>10}{'of stream':>11}" + "".join(f"{'over ' + p:>16}" for p in peers))
    for name, values in rates.items():
        rate = statistics.median(values)
        stream = f"{statistics.median(ratios[name]):11.3f}" if name in ratios else " " * 11
        over = "".join(f"{rate / statistics.median(rates[p]):16.2f}" for p in peers) if name in ratios else ""
        print(f"{name:24}{rate:10.0f}{stream}{over}")


if __name__ == "__main__":
    main()
