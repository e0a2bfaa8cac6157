#!/usr/bin/env python3
"""Tokens per second of sluice and of PyTorch (transformers, fused AdamW) on the same Llama, interleaved.

    python3 bench/peers/torch_llama.py [--model llama-125m] [--rounds 3] [--steps 3] [--seq 512] [--batch 4]

Both train the same shape from random weights on the same bytes with the same micro-batches, clipping on, on all cores.
sluice keeps everything resident. Each round runs sluice once and each PyTorch dtype once; the result is the median over
rounds of the ratios within a round. bf16 is the comparison that counts; fp32 stands beside it because PyTorch on a CPU
without bf16 units is quicker in fp32. Needs torch and transformers.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from shapes import SHAPES


class Peer:
    """A transformers Llama and its optimizer."""

    def __init__(self, args, text, dtype):
        torch.manual_seed(1)
        config = LlamaConfig(**SHAPES[args.model], max_position_embeddings=2048, tie_word_embeddings=False,
                             attention_bias=False)
        self.model = LlamaForCausalLM(config).to(dtype)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1,
                                           fused=True)
        self.args, self.text, self.position = args, text, 0

    def micro_batch(self):
        rows = []
        for _ in range(self.args.micro_batch):
            rows.append(list(self.text[self.position:self.position + self.args.seq]))
            self.position = (self.position + self.args.seq) % (len(self.text) - self.args.seq)
        return torch.tensor(rows)

    def step(self):
        count = self.args.batch // self.args.micro_batch
        self.optimizer.zero_grad(set_to_none=True)
        for _ in range(count):
            tokens = self.micro_batch()
            (self.model(input_ids=tokens, labels=tokens).loss / count).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()

    def tokens_per_second(self):
        seconds = []
        for _ in range(self.args.steps + 1):  # the first warms up
            start = time.perf_counter()
            self.step()
            seconds.append(time.perf_counter() - start)
        return self.args.batch * self.args.seq / statistics.median(seconds[1:])


def sluice_tokens_per_second(args, text_path, dtype, folder):
    metrics = os.path.join(folder, f"metrics-{dtype}.jsonl")
    command = [args.sluice, "train", "--run", "none", "--model", args.model, "--dtype", dtype, "--data", text_path,
               "--seq", str(args.seq), "--batch", str(args.batch), "--micro-batch", str(args.micro_batch), "--steps",
               str(args.steps + 1), "--states", "host", "--residency", "all", "--eval-batches", "1", "--metrics",
               metrics, "--threads", str(args.threads)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"torch_llama.py: {done.stderr.strip().splitlines()[-1]}")
    with open(metrics) as lines:
        seconds = [json.loads(line)["step_seconds"] for line in lines]
    return args.batch * args.seq / statistics.median(seconds[1:])


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-125m", choices=SHAPES)
    parser.add_argument("--sluice", default="build/release/bin/sluice")
    parser.add_argument("--text", help="any text of some MB (default: random bytes)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--seq", type=int, default=512)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.batch % args.micro_batch:
        parser.error("--batch must be a multiple of --micro-batch")
    return args


def main():
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        text_path = args.text or os.path.join(folder, "text")
        if not args.text:
            with open(text_path, "wb") as out:
                out.write(os.urandom(4 << 20))
        with open(text_path, "rb") as source:
            text = source.read(4 << 20)
        peers = {"bf16": Peer(args, text, torch.bfloat16), "fp32": Peer(args, text, torch.float32)}
        rows = {name: [] for name in peers}
        for number in range(args.rounds):
            for name, peer in peers.items():
                ours = sluice_tokens_per_second(args, text_path, name, folder)
                theirs = peer.tokens_per_second()
                rows[name].append((ours, theirs))
                print(f"round {number + 1} {name}: sluice {ours:.1f}, torch {theirs:.1f} tokens/s", file=sys.stderr)
    result = {"model": args.model, "torch": torch.__version__, "threads": args.threads, "tokens_per_step":
              args.batch * args.seq, "rounds": args.rounds}
    for name, pairs in rows.items():
        result[name] = {"sluice": statistics.median(p[0] for p in pairs), "torch": statistics.median(p[1] for p in pairs),
                        "ratio": statistics.median(p[0] / p[1] for p in pairs)}
    result["sluice_bf16_over_torch_fp32"] = statistics.median(
        ours[0] / theirs[1] for ours, theirs in zip(rows["bf16"], rows["fp32"]))
    if args.json:
        print(json.dumps(result))
        return
    print(f"{args.model}, {result['tokens_per_step']} tokens a step, {args.threads} threads, torch {torch.__version__}")
    print("dtype   sluice tokens/s   torch tokens/s   ratio")
    for name in peers:
        print(f"{name}{result[name]['sluice']:18.1f}{result[name]['torch']:17.1f}{result[name]['ratio']:8.2f}")
    print(f"sluice bf16 / torch fp32: {result['sluice_bf16_over_torch_fp32']:.2f}")


if __name__ == "__main__":
    main()
