#!/usr/bin/env python3
"""Ids and speed of sluice's tokenizers beside the `tokenizers` package, on a text and on random Unicode.

    bench/peers/tokenizer_ids.py --sluice build/release/bin/sluice --data TEXT [--tokenizers FILE...] [--random 5000]

For each tokenizer.json (default: those of tests/fixtures/tokenizers): `data tokenize --threads 1` of the text (its first
--bytes, which the reference has to encode too), then documents of random Unicode as JSON lines, all ids compared. Prints a
markdown table of MB/s on one thread; exits with status 1 where an id differs. Needs tokenizers.
"""
import argparse
import array
import glob
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Tokenizer  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))


def character(rng):
    kind = rng.random()
    if kind < 0.35:
        return chr(rng.randrange(32, 127))
    if kind < 0.45:
        return rng.choice(" \t\n\r\u00a0\u2003\u3000\u0085\u180e\u200b\u2028\ufeff\x0b\x0c\x1c\x1f")
    if kind < 0.6:
        return chr(rng.randrange(0x80, 0x800))
    if kind < 0.8:
        return chr(rng.choice([rng.randrange(0x800, 0xd800), rng.randrange(0xe000, 0x10000)]))
    if kind < 0.93:
        return chr(rng.randrange(0x10000, 0x33480))
    return rng.choice(["'s", "'ll", "'RE", "<|endoftext|>", "<s>", "[L]", "[R]", " word ", "12", "½", "\u2581", "e\u0301"])


def tokenize(args, tokenizer, text, folder):
    output = os.path.join(folder, "tokens")
    done = subprocess.run([args.sluice, "data", "tokenize", "--input", text, "--output", output, "--tokenizer", tokenizer,
                           "--no-special-tokens", "--threads", "1", "--json"], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr.strip().splitlines()[-1])
    with open(output, "rb") as f:
        raw = f.read()
    version, token_bytes, _, count = struct.unpack_from("<IIQQ", raw, 8)
    begin = 64 if version < 4 else 72
    ids = array.array({1: "B", 2: "H", 4: "I"}[token_bytes])
    ids.frombytes(raw[begin:begin + count * token_bytes])
    return ids.tolist(), json.loads(done.stdout)["text_bytes_per_second"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--sluice", default="build/release/bin/sluice")
    parser.add_argument("--tokenizers", nargs="*")
    parser.add_argument("--bytes", type=int, default=4_000_000)
    parser.add_argument("--random", type=int, default=5000, help="documents of random Unicode")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    fixtures = [f for f in sorted(glob.glob(os.path.join(HERE, "../../tests/fixtures/tokenizers/*.json")))
                if not f.endswith(".cases.json")]
    rng = random.Random(args.seed)
    documents = ["".join(character(rng) for _ in range(rng.choice([1, 2, 5, 10, 40, 200]))) for _ in range(args.random)]
    with open(args.data, "rb") as f:
        text = f.read(args.bytes).decode("utf-8", errors="replace")
    different = 0
    print("| tokenizer | sluice MB/s | tokenizers MB/s | ids of the text | random documents that differ |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        plain, lines = os.path.join(folder, "text"), os.path.join(folder, "lines.jsonl")
        with open(plain, "w", encoding="utf-8", newline="") as f:
            f.write(text)
        for path in args.tokenizers or fixtures:
            reference = Tokenizer.from_file(path)
            ids, rate = tokenize(args, path, plain, folder)
            begin = time.perf_counter()
            expected = reference.encode(text, add_special_tokens=False).ids
            reference_rate = len(text.encode()) / (time.perf_counter() - begin)
            wrong = 0
            for first in range(0, len(documents), 500):
                some = documents[first:first + 500]
                wanted = [reference.encode(d, add_special_tokens=False).ids for d in some]
                # empty ones are no documents
                some, wanted = zip(*[(d, w) for d, w in zip(some, wanted) if w])
                with open(lines, "w", encoding="utf-8") as f:
                    f.writelines(json.dumps({"text": d}) + "\n" for d in some)
                got, _ = tokenize(args, path, lines, folder)
                if got != [i for w in wanted for i in w]:
                    for d, w in zip(some, wanted):
                        with open(lines, "w", encoding="utf-8") as f:
                            f.write(json.dumps({"text": d}) + "\n")
                        wrong += tokenize(args, path, lines, folder)[0] != w
            same = "the same" if ids == expected else "DIFFERENT"
            different += (ids != expected) + wrong
            name = os.path.splitext(os.path.basename(path))[0]
            print(f"| {name} | {rate / 1e6:.1f} | {reference_rate / 1e6:.2f} | {same}, {len(ids)} | "
                  f"{wrong} of {len(documents)} |", flush=True)
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
