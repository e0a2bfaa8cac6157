#!/usr/bin/env python3
"""Losses of fine-tuning beside PyTorch's: the same weights, the same batches, AdamW, clipping, a cosine rate.

    python3 bench/peers/finetune.py [--binary build/release/bin/sluice] [--text FILE] [--steps 50]

Models of the kinds in tests/fixtures/golden are made by transformers with random weights, imported, and trained by
sluice and by PyTorch on the same windows of the text in the same order; once more with the text's paragraphs packed
whole into sequences (sluice data tokenize --pack), which PyTorch sees through block-diagonal masks and positions that
begin anew. fp32 stands for fp32 everywhere; bf16 for autocast with fp32 parameters there, and for bf16 parameters with
fp32 masters here. Prints the largest relative difference of a step's loss, and ends with status 1 where it is above 1e-4
(fp32) or 2e-2 (bf16). Needs torch and transformers.
"""
import argparse
import json
import math
import os
import struct
import subprocess
import sys
import tempfile

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "..", "..", "tests", "fixtures", "golden")
VOCABULARY, SEQUENCE, BATCH, SEED, WARMUP, RATE, CLIP = 256, 128, 8, 1, 5, 1e-3, 1.0
LIMITS = {"fp32": 1e-4, "bf16": 2e-2}


def philox(key, index, stream):
    """include/sluice/random.h"""
    word = 0xFFFFFFFF
    c = [index & word, index >> 32, stream & word, stream >> 32]
    k0, k1 = key & word, key >> 32
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k0, p1 & word, (p0 >> 32) ^ c[3] ^ k1, p0 & word]
        k0, k1 = (k0 + 0x9E3779B9) & word, (k1 + 0xBB67AE85) & word
    return c


def permuted(index, count, key):
    """src/train/data/batches.cpp"""
    half = 1
    while 1 << (2 * half) < count:
        half += 1
    mask = (1 << half) - 1
    while True:
        left, right = index >> half, index & mask
        for number in range(4):
            left, right = right, left ^ (philox(key, right, number)[0] & mask)
        index = left << half | right
        if index < count:
            return index


class TokenFile:
    """io/tokens/token_file.h: bytes as tokens."""

    def __init__(self, path):
        with open(path, "rb") as source:
            data = source.read()
        _, version, size, _, count, documents, flags, self.packed = struct.unpack("<8sIIQQQQQ", data[:56])
        assert size == 1
        first = 64 if version < 4 else 72
        self.tokens = list(data[first:first + count])
        self.ends, self.mask = [count], [1] * count
        if version in (2, 3) or version == 4 and (documents or flags or self.packed):
            at = (first + count + 7) // 8 * 8
            self.ends = list(struct.unpack(f"<{documents}Q", data[at:at + 8 * documents]))
            if flags & 1:
                bits = data[at + 8 * documents:]
                self.mask = [bits[t // 8] >> (t % 8) & 1 for t in range(count)]
        self.begins = [0] * count
        begin = 0
        for end in self.ends:
            self.begins[begin:end] = [begin] * (end - begin)
            begin = end

    def windows(self):
        return len(self.tokens) // SEQUENCE if self.packed else (len(self.tokens) - 1) // SEQUENCE

    def window(self, number):
        """Inputs, targets (-100: do not count), positions, first visible column."""
        start = number * SEQUENCE
        places = range(start, start + SEQUENCE)
        first = [max(self.begins[t], start) if self.packed else start for t in places]
        targets = []
        for t in places:
            counts = t + 1 < len(self.tokens) and self.mask[t + 1] and not (self.packed and self.begins[t + 1] == t + 1)
            targets.append(self.tokens[t + 1] if counts else -100)
        return (self.tokens[start:start + SEQUENCE], targets, [t - f for t, f in zip(places, first)],
                [f - start for f in first])

    def batch(self, step):
        windows = self.windows()
        training = windows - max(1, windows // 20)
        rows = []
        for sample in range((step - 1) * BATCH, step * BATCH):
            key = (SEED * 0x9E3779B97F4A7C15 + sample // training) & 0xFFFFFFFFFFFFFFFF
            rows.append(self.window(permuted(sample % training, training, key)))
        return [torch.tensor(plane) for plane in zip(*rows)]


def rate_of(step, steps):
    if step <= WARMUP:
        return RATE * step / WARMUP
    return 0.1 * RATE + 0.9 * RATE * 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (steps - WARMUP)))


def visible(first, window):
    """[batch, 1, sequence, sequence], added to the scores."""
    column = torch.arange(SEQUENCE)
    seen = (column[None, None, :] >= first[:, :, None]) & (column[None, None, :] <= column[None, :, None])
    if window:
        seen &= column[None, None, :] > column[None, :, None] - window
    return torch.where(seen, 0.0, torch.finfo(torch.float32).min)[:, None]


def torch_losses(directory, tokens, dtype, steps):
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    model.train()
    groups = [{"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)
    used = getattr(model.config, "use_sliding_window", True)
    window = getattr(model.config, "sliding_window", None) if used else None
    losses = []
    for step in range(1, steps + 1):
        inputs, targets, positions, first = tokens.batch(step)
        for group in optimizer.param_groups:
            group["lr"] = rate_of(step, steps)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
            logits = model(input_ids=inputs, position_ids=positions, attention_mask=visible(first, window)).logits
        loss = torch.nn.functional.cross_entropy(logits.float().reshape(-1, VOCABULARY), targets.reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        losses.append(loss.item())
    return losses


def make_model(name, directory):
    config = AutoConfig.from_pretrained(os.path.join(GOLDEN, name))
    config.vocab_size = VOCABULARY
    config.max_position_embeddings = max(SEQUENCE, getattr(config, "max_position_embeddings", SEQUENCE))
    for dropout in ("attn_pdrop", "embd_pdrop", "resid_pdrop"):
        if hasattr(config, dropout):
            setattr(config, dropout, 0.0)
    torch.manual_seed(11)
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/release/bin/sluice")
    parser.add_argument("--text", required=True, help="any text with paragraphs, some 100 kB of it are used")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--models", nargs="*", default=sorted(
        n for n in os.listdir(GOLDEN) if os.path.exists(os.path.join(GOLDEN, n, "config.json"))))
    args = parser.parse_args()
    binary = os.path.abspath(args.binary)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        def run(*arguments):
            done = subprocess.run([binary, *arguments], capture_output=True, text=True)
            if done.returncode != 0:
                sys.exit(done.stderr)

        with open(args.text, encoding="utf-8", errors="replace") as source:
            text = source.read(200_000)
        paragraphs = [p.strip() for p in text.split("\n\n") if p.strip()]
        lines, plain = os.path.join(scratch, "text.jsonl"), os.path.join(scratch, "text.txt")
        with open(lines, "w") as out:
            out.writelines(json.dumps({"text": p}) + "\n" for p in paragraphs)
        with open(plain, "w") as out:
            out.write(text)
        data = {"windows": os.path.join(scratch, "plain.tokens"), "packed": os.path.join(scratch, "packed.tokens")}
        run("data", "tokenize", "--input", plain, "--output", data["windows"])
        run("data", "tokenize", "--input", lines, "--output", data["packed"], "--pack", str(SEQUENCE))
        tokens = {kind: TokenFile(path) for kind, path in data.items()}
        print(f"{args.steps} steps of {BATCH} x {SEQUENCE} tokens, rate {RATE}, transformers "
              f"{transformers.__version__}, torch {torch.__version__}")
        print("model            data     dtype   first loss  last loss  largest difference  limit")
        for name in args.models:
            directory = os.path.join(scratch, name)
            make_model(name, directory)
            for kind in data:
                for dtype in ("fp32", "bf16"):
                    metrics = os.path.join(scratch, f"{name}-{kind}-{dtype}.jsonl")
                    run("train", "--run", "none", "--model", directory, "--init", directory, "--data", data[kind],
                        "--dtype", dtype, "--seq", str(SEQUENCE), "--batch", str(BATCH), "--micro-batch", "2", "--steps",
                        str(args.steps), "--warmup", str(WARMUP), "--lr", str(RATE), "--clip", str(CLIP), "--seed",
                        str(SEED), "--eval-batches", "1", "--metrics", metrics, "--states", "host")
                    with open(metrics) as source:
                        ours = [json.loads(line)["loss"] for line in source]
                    theirs = torch_losses(directory, tokens[kind], dtype, args.steps)
                    worst = max(abs(a - b) / b for a, b in zip(ours, theirs))
                    bad = len(ours) != len(theirs) or not worst <= LIMITS[dtype]
                    failed |= bad
                    print(f"{name:16} {kind:8} {dtype:6} {theirs[0]:11.4f} {theirs[-1]:10.4f} {worst:19.2e}  "
                          f"{LIMITS[dtype]:.0e}{'  above' if bad else ''}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
