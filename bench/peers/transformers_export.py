#!/usr/bin/env python3
"""Whether transformers loads what `sluice checkpoint export` writes, and computes the same logits with it.

    python3 bench/peers/transformers_export.py [--binary build/release/bin/sluice]

Models of the kinds in tests/fixtures/golden, random and with bytes as tokens, are saved by transformers (in shards too),
imported, trained in fp32 for a step whose learning rate changes nothing, exported in one file and in shards, and loaded
again. Ends with status 1 where a logit differs by more than 1e-5. Needs torch and transformers.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "..", "..", "tests", "fixtures", "golden")
VOCABULARY = 256


def save_random_model(name, directory):
    config = AutoConfig.from_pretrained(os.path.join(GOLDEN, name))
    config.vocab_size = VOCABULARY
    config.hidden_size = 512 if name != "gpt2" else config.hidden_size  # a head of more than a megabyte with others
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(0, 0.05) if p.dim() >= 2 else p.normal_(1, 0.1)
    model.save_pretrained(directory, max_shard_size="1MB")


def logits(directory):
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    model.eval()
    torch.manual_seed(0)
    with torch.no_grad():
        return model(torch.randint(0, VOCABULARY, (2, 48))).logits, type(model).__name__


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/release/bin/sluice")
    binary = os.path.abspath(parser.parse_args().binary)
    transformers.utils.logging.disable_progress_bar()
    worst = 0.0
    with tempfile.TemporaryDirectory() as scratch:
        def run(*arguments):
            done = subprocess.run([binary, *arguments], capture_output=True, text=True)
            if done.returncode != 0:
                sys.exit(done.stderr)

        text = os.path.join(scratch, "text")
        with open(text, "w") as f:
            f.write("the quick brown fox jumps over the lazy dog; " * 400)
        for name in sorted(os.listdir(GOLDEN)):
            began, trained, out, shards = (os.path.join(scratch, name + end) for end in ("", "-run", "-out", "-shards"))
            save_random_model(name, began)
            run("train", "--model", began, "--init", began, "--dtype", "fp32", "--data", text, "--seq", "32", "--batch",
                "2", "--steps", "1", "--eval-batches", "1", "--lr", "1e-30", "--lr-end", "0", "--warmup", "0",
                "--weight-decay", "0", "--run", trained)
            run("checkpoint", "export", trained, out)
            run("checkpoint", "export", trained, shards, "--max-shard-size", "1MiB")
            expected, kind = logits(began)
            for directory in (out, shards):
                got, loaded = logits(directory)
                difference = (got - expected).abs().max().item()
                worst = max(worst, difference)
                files = sum(f.endswith(".safetensors") for f in os.listdir(directory))
                print(f"{name}: {kind} as {loaded}, {files} files: logits differ by at most {difference:.3g}")
    print(json.dumps({"logits_difference_max": worst}))
    return 0 if worst <= 1e-5 else 1


if __name__ == "__main__":
    sys.exit(main())
