#!/usr/bin/env python3
"""Import and export of weights beside the drive: seconds, gigabytes a second, and the part of what `bench io` reaches.

    bench/weights.py --sluice build/release/bin/sluice --nvme DIR [--layers 24] [--rounds 3] [--runs drive,memory,slots,complete]

drive     `train --init`: the bf16 file is read, parameters and their remainders are written to the swap file: n in, 2n out
memory    the same with every state in host memory: n in (a third of the layers)
slots     `checkpoint export` of a stopped durable run: its parameters are read, verified and written as a file: n in, n out
complete  `checkpoint export` of a complete run: n in, n out

The model is a Llama of 2,560 x 20 heads with random weights, made in DIR (4.1 GB with 24 layers; the runs need up to 50 GB
there). Every round measures `bench io` (read, write, mixed) before and after each run and takes their means. The bound is
what the drive needs at those rates: as much as is read and written in equal parts at mixed's, the rest at read's or write's.
Page caches are dropped before each run where that is allowed (root); before an export the program itself is read again.
"memory" is the most that a run has beyond its arenas (import) or at all (export). Prints rounds, and medians [least, most]
in Markdown. Needs Python 3.9.
"""
import argparse
import array
import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import time

HIDDEN, HEADS, FFN, VOCABULARY = 2560, 20, 6912, 32000


def tensors(layers):
    """Names and shapes in the order in which transformers writes them."""
    square = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"]
    all_of = {"lm_head.weight": (VOCABULARY, HIDDEN), "model.embed_tokens.weight": (VOCABULARY, HIDDEN),
              "model.norm.weight": (HIDDEN,)}
    for layer in range(layers):
        block = f"model.layers.{layer}."
        all_of.update({f"{block}{name}.weight": (HIDDEN, HIDDEN) for name in square})
        all_of.update({f"{block}mlp.{name}_proj.weight": (FFN, HIDDEN) for name in ("gate", "up")})
        all_of[f"{block}mlp.down_proj.weight"] = (HIDDEN, FFN)
        all_of.update({f"{block}{name}.weight": (HIDDEN,) for name in ("input_layernorm", "post_attention_layernorm")})
    return dict(sorted(all_of.items()))


def make_model(folder, layers):
    """config.json and model.safetensors of bf16 values around 0.01; returns the bytes of data."""
    folder.mkdir(parents=True)
    config = dict(model_type="llama", vocab_size=VOCABULARY, hidden_size=HIDDEN, num_hidden_layers=layers,
                  num_attention_heads=HEADS, intermediate_size=FFN, max_position_embeddings=2048, rms_norm_eps=1e-5)
    (folder / "config.json").write_text(json.dumps(config))
    header, end = {}, 0
    for name, shape in tensors(layers).items():
        begin, end = end, end + 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = dict(dtype="BF16", shape=shape, data_offsets=[begin, end])
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = random.Random(7)
    block = array.array("H", (rng.getrandbits(1) << 15 | 0x3C00 | rng.getrandbits(7) for _ in range(1 << 20))).tobytes()
    with open(folder / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        left, turn = end, 0
        while left > 0:
            at = turn * 131_070 % len(block)  # no two megabytes are the same
            f.write((block[at:] + block[:at])[:left])
            left, turn = left - len(block), turn + 1
        f.flush()
        os.fsync(f.fileno())
    return end


def drop_caches():
    subprocess.run(["sync"], check=True)
    with contextlib.suppress(PermissionError, FileNotFoundError):
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")


def memory_of(pid, field):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return 0


class Bench:
    def __init__(self, a):
        self.a, self.folder = a, pathlib.Path(a.nvme, "sluice-weights")
        if self.folder.exists():
            sys.exit(f"{self.folder} is there: remove it, or give another directory")
        self.folder.mkdir(parents=True)
        self.text = self.folder / "text"
        self.text.write_text("the quick brown fox jumps over the lazy dog; " * 4000)
        self.bytes = {}

    def model(self, layers):
        path = self.folder / f"model-{layers}"
        if layers not in self.bytes:
            self.bytes[layers] = make_model(path, layers)
        return path

    def io(self):
        """GB/s of read, write and mixed."""
        out = json.loads(subprocess.run(
            [self.a.sluice, "bench", "io", "--path", self.folder, "--size", self.a.size, "--seconds", str(self.a.seconds),
             "--json"], capture_output=True, text=True, check=True).stdout)
        return {r["mode"]: r["bytes_per_second"] for r in out["results"]}

    def train(self, layers, *options):
        model = self.model(layers)
        return [self.a.sluice, "train", "--model", model, "--init", model, "--data", self.text, "--seq", "16", "--batch", "1",
                "--eval-batches", "1", "--dtype", "bf16", "--moments", "int8",
                *map(str, options)]

    def on_drive(self):
        return ["--states", "nvme", "--nvme", self.folder, "--device-memory", "2GiB", "--host-memory", "1GiB"]

    def timed_import(self, layers, *options):
        """Seconds from the note that reading begins to the one that all is there, and memory beyond what was there."""
        command = self.train(layers, "--steps", 3, "--run", "none", *options)
        with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
            said, began, before = [], None, 0
            for line in process.stderr:
                said.append(line)
                if "reading weights from" in line and began is None:
                    began, before = time.monotonic(), memory_of(process.pid, "VmRSS")
                if "weights are in place" in line:
                    seconds, memory = time.monotonic() - began, memory_of(process.pid, "VmHWM") - before
                    process.send_signal(signal.SIGTERM)
                    process.stderr.read()
                    return seconds, memory
        sys.exit("".join(said))

    def timed_export(self, run):
        out = self.folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        drop_caches()
        subprocess.run([self.a.sluice, "--version"], check=True, stdout=subprocess.DEVNULL)
        began = time.monotonic()
        process = subprocess.Popen([self.a.sluice, "checkpoint", "export", run, out, "--json"], stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.monotonic() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            sys.exit("the export failed")
        return seconds, used.ru_maxrss * 1024

    def stopped_run(self):
        """A durable run that was stopped after its first steps."""
        run = self.folder / "stopped"
        process = subprocess.Popen(self.train(self.a.layers, "--steps", 1000, *self.on_drive(), "--run", run),
                                   stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        metrics = run / "metrics.jsonl"
        while process.poll() is None and not (metrics.exists() and metrics.stat().st_size > 0):
            time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        if process.wait() != 1:
            sys.exit("the run that is to be exported failed")
        return run

    def complete_run(self):
        run = self.folder / "complete"
        subprocess.run(self.train(self.a.layers, "--steps", 1, "--durable", "off", *self.on_drive(), "--run", run), check=True,
                       capture_output=True)
        return run


# Each returns a function that measures once: seconds, memory, and bytes read alone, written alone and both ways.

def drive(bench):
    bench.model(bench.a.layers)
    n = bench.bytes[bench.a.layers]

    def once():
        drop_caches()
        return *bench.timed_import(bench.a.layers, *bench.on_drive()), 0, n, 2 * n
    return once


def memory(bench):
    layers = max(1, bench.a.layers // 3)
    bench.model(layers)
    n = bench.bytes[layers]

    def once():
        drop_caches()
        return *bench.timed_import(layers, "--states", "host", "--device-memory", "2GiB", "--host-memory", "12GiB"), n, 0, 0
    return once


def slots(bench):
    run = bench.stopped_run()
    n = bench.bytes[bench.a.layers]
    return lambda: (*bench.timed_export(run), 0, 0, 2 * n)


def complete(bench):
    run = bench.complete_run()
    n = bench.bytes[bench.a.layers]
    return lambda: (*bench.timed_export(run), 0, 0, 2 * n)


def interval(values, digits):
    return f"{statistics.median(values):.{digits}f} [{min(values):.{digits}f}, {max(values):.{digits}f}]"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sluice", required=True)
    parser.add_argument("--nvme", required=True, help="directory on the drive")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runs", default="drive,memory,slots,complete")
    parser.add_argument("--size", default="4GiB", help="of the file of bench io")
    parser.add_argument("--seconds", type=float, default=2, help="of each mode of bench io")
    a = parser.parse_args()
    runs = {"drive": drive, "memory": memory, "slots": slots, "complete": complete}
    bench = Bench(a)
    try:
        measure = {name: runs[name](bench) for name in a.runs.split(",")}
        rows = {name: [] for name in measure}
        rates = bench.io()
        for number in range(1, a.rounds + 1):
            for name, once in measure.items():
                seconds, memory_bytes, read, written, both = once()
                after = bench.io()
                mean = {mode: (rates[mode] + after[mode]) / 2 for mode in rates}
                rates = after
                bound = read / mean["read"] + written / mean["write"] + both / mean["mixed"]
                moved = read + written + both
                rows[name].append((seconds, moved / seconds / 1e9, moved / bound / 1e9, bound / seconds, memory_bytes / (1 << 20)))
                print(f"round {number}, {name}: {seconds:.2f} s for {moved / 1e9:.2f} GB, the drive needs {bound:.2f} s "
                      f"(read {mean['read'] / 1e9:.2f}, write {mean['write'] / 1e9:.2f}, mixed {mean['mixed'] / 1e9:.2f} GB/s)",
                      file=sys.stderr, flush=True)
        print("| | s | GB/s | of the drive, GB/s | ratio | memory, MiB |\n|---|---|---|---|---|---|")
        for name, row in rows.items():
            columns = list(zip(*row))
            print(f"| {name} | " + " | ".join(interval(c, d) for c, d in zip(columns, (2, 2, 2, 3, 0))) + " |")
    finally:
        shutil.rmtree(bench.folder, ignore_errors=True)


if __name__ == "__main__":
    main()
