#!/usr/bin/env python3
"""What the I/O layer reaches: beside fio, over two drives, in a training step, in system calls, and what checksums cost.

    python3 bench/drives.py --sluice build/release/bin/sluice --nvme DIR [--runs fio,stripes,swap,calls,checksums]

fio        `bench io --against fio`: io_uring and libaio, 1 MiB, 128 KiB and 4 KiB at depth 16
stripes    two loop-mounted file systems, throttled to 300 and 100 MB/s by a blkio cgroup: alone and striped, in turns
           (root, cgroup v1 or v2)
swap       a step that the drive bounds (16 tokens, parameters on the device) against `bench io --mode mixed` over as large a file,
           before and after it; needs --data TEXT
calls      system calls per request at depth 16 with io_uring and libaio, counted by strace
checksums  steps of two binaries, the second (--without BINARY) built with -DSLUICE_CHECKSUMS=OFF; needs --data TEXT

Prints tables in Markdown. Timings of a shared drive are noisy: every ratio is of measurements in turns, and is a median.
Needs Python 3.9, and fio, e2fsprogs or strace for the runs that use them.
"""
import argparse
import contextlib
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

MIB = 1 << 20


def run_json(command, **more):
    done = subprocess.run(command, capture_output=True, text=True, **more)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def bench_io(a, *options, paths=None, **more):
    where = [word for path in paths or [a.nvme] for word in ("--path", str(path))]
    return run_json([a.sluice, "bench", "io", *where, *map(str, options), "--json"], **more)[-1]


def interval(r):
    return f"{r['median']:.3f} [{r['low']:.3f}, {r['high']:.3f}]"


def fio(a):
    print("| backend | block | mode | sluice GB/s | fio GB/s | sluice / fio | fio / fio | CPU of fio's |")
    print("|---|---|---|---|---|---|---|---|")
    for backend in ("io_uring", "libaio"):
        for block in ("1MiB", "128KiB", "4KiB"):
            out = bench_io(a, "--backend", backend, "--block", block, "--depth", 16, "--against", "fio", "--pairs", a.pairs,
                           "--seconds", a.seconds)
            for r in out["results"]:
                print(f"| {backend} | {block} | {r['mode']} | {r['bytes_per_second'] / 1e9:.2f} | "
                      f"{r['peer_bytes_per_second'] / 1e9:.2f} | {interval(r['ratio'])} | "
                      f"{interval(r['peer_against_itself'])} | {interval(r['cpu_ratio'])} |", flush=True)


@contextlib.contextmanager
def loop_mounts(folder, count):
    points = []
    try:
        for i in range(count):
            image, point = pathlib.Path(folder, f"{i}.img"), pathlib.Path(folder, f"mount{i}")
            point.mkdir()
            with open(image, "wb") as f:
                f.truncate(2048 * MIB)
            subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
            subprocess.run(["mount", "-o", "loop", image, point], check=True)
            points.append(point)
        yield points
    finally:
        for point in points:
            subprocess.run(["umount", point], check=False)


@contextlib.contextmanager
def throttle(limits):
    """A cgroup in which each directory's device has so many bytes a second in either direction."""
    devices = [f"{os.major(os.stat(p).st_dev)}:{os.minor(os.stat(p).st_dev)}" for p in limits]
    old = pathlib.Path("/sys/fs/cgroup/blkio")
    folder = (old if old.is_dir() else pathlib.Path("/sys/fs/cgroup")) / "sluice-bench"
    folder.mkdir(exist_ok=True)
    try:
        for device, rate in zip(devices, limits.values()):
            if old.is_dir():
                for direction in ("read", "write"):
                    (folder / f"blkio.throttle.{direction}_bps_device").write_text(f"{device} {rate}")
            else:
                (folder / "io.max").write_text(f"{device} rbps={rate} wbps={rate}")
        yield lambda: (folder / "cgroup.procs").write_text(str(os.getpid()))
    finally:
        folder.rmdir()


def stripes(a):
    with tempfile.TemporaryDirectory(dir=a.nvme) as folder, loop_mounts(folder, 2) as (fast, slow), \
            throttle({fast: 300_000_000, slow: 100_000_000}) as enter:
        print("| mode | 300 MB/s drive | 100 MB/s drive | both, striped | both / sum |\n|---|---|---|---|---|")
        for mode in ("read", "write", "mixed"):
            rows = []
            for _ in range(5):
                rows.append([bench_io(a, "--mode", mode, "--size", "512MiB", "--seconds", 2, paths=p,
                                      preexec_fn=enter)["bytes_per_second"] for p in ([fast], [slow], [fast, slow])])
            ratio = statistics.median(both / (one + other) for one, other, both in rows)
            alone = [statistics.median(r[i] for r in rows) / 1e6 for i in range(3)]
            print(f"| {mode} | {alone[0]:.0f} MB/s | {alone[1]:.0f} MB/s | {alone[2]:.0f} MB/s | {ratio:.3f} |", flush=True)


IO_BOUND = ["--seq", "16", "--batch", "1", "--micro-batch", "1", "--states", "nvme", "--residency",
            "all", "--device-memory", "4GiB", "--host-memory", "512MiB", "--clip", "0", "--update", "backward"]


def steps_of(a, binary, options, count):
    lines = run_json([binary, "train", *options, "--run", "none", "--data", a.data, "--nvme", a.nvme, "--steps",
                      str(count), "--eval-batches", "1", "--profile", a.profile, "--json"])
    return [line for line in lines if "step" in line]


def swap(a):
    # As large as the step's swap file and for about as long: what a drive or its host caches or saves up helps neither.
    large = a.model == "llama-1b"
    same = ["--mode", "mixed", "--size", "15GiB" if large else "2GiB", "--seconds", 8 if large else 2]
    ratios, rates = [], []
    for _ in range(a.rounds):
        mixed = [bench_io(a, *same)["bytes_per_second"]]
        steps = steps_of(a, a.sluice, ["--model", a.model, *IO_BOUND], 2 if large else 5)[1:]
        step = sorted(steps, key=lambda s: s["step_seconds"])[len(steps) // 2]
        mixed.append(bench_io(a, *same)["bytes_per_second"])
        rate = (step["nvme_read_bytes"] + step["nvme_write_bytes"]) / step["step_seconds"]
        ratios.append(rate / statistics.mean(mixed))
        rates.append((rate, statistics.mean(mixed)))
        print(f"round: step {rate / 1e9:.2f} GB/s, bench {mixed[0] / 1e9:.2f} and {mixed[1] / 1e9:.2f} GB/s", file=sys.stderr)
    print("| step's swap traffic | bench io, mixed | ratio, median | least, most |\n|---|---|---|---|")
    print(f"| {statistics.median(r for r, _ in rates) / 1e9:.2f} GB/s | {statistics.median(m for _, m in rates) / 1e9:.2f} GB/s | "
          f"{statistics.median(ratios):.3f} | {min(ratios):.3f}, {max(ratios):.3f} |")


def calls(a):
    print("| backend | mode | block | requests | system calls | requests per call |\n|---|---|---|---|---|---|")
    for backend in ("io_uring", "libaio"):
        for mode in ("read", "write", "mixed"):
            for block in ("4KiB", "512KiB"):
                counts = []
                # Setting up and ending costs the same in both: the difference is the steady state.
                for seconds in (1, 3):
                    with tempfile.NamedTemporaryFile("r") as log:
                        r = run_json(["strace", "-f", "-c", "-o", log.name, a.sluice, "bench", "io", "--path", a.nvme, "--mode",
                                      mode, "--block", block, "--depth", "16", "--backend", backend, "--seconds", str(seconds),
                                      "--size", "256MiB", "--json"])[-1]
                        total = sum(int(m.group(1)) for m in re.finditer(
                            r"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s.*(?:io_uring_enter|io_submit|io_getevents)$", log.read(), re.M))
                    counts.append((r["iops"] * seconds, total))
                requests, made = counts[1][0] - counts[0][0], counts[1][1] - counts[0][1]
                print(f"| {backend} | {mode} | {block} | {requests:.0f} | {made} | {requests / max(1, made):.1f} |", flush=True)


def checksums(a):
    configurations = {
        "llama-1b, 16 tokens (the drive bounds it)": (["--model", "llama-1b", *IO_BOUND], 2),
        "llama-125m, 4,096 tokens, everything on the drive": (
            ["--model", "llama-125m", "--seq", "1024", "--batch", "4", "--micro-batch", "2", "--states", "nvme",
             "--residency", "none", "--device-memory", "2GiB", "--host-memory", "512MiB"], 4)}
    print("| step | with | without | with / without |\n|---|---|---|---|")
    for name, (options, count) in configurations.items():
        pairs = []
        for turn in range(a.rounds):
            order = [a.sluice, a.without] if turn % 2 == 0 else [a.without, a.sluice]
            seconds = {b: statistics.median(s["step_seconds"] for s in steps_of(a, b, options, count)[1:]) for b in order}
            pairs.append((seconds[a.sluice], seconds[a.without]))
        print(f"| {name} | {statistics.median(p[0] for p in pairs):.2f} s | {statistics.median(p[1] for p in pairs):.2f} s | "
              f"{statistics.median(p[0] / p[1] for p in pairs):.3f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sluice", required=True)
    parser.add_argument("--without", help="binary built with -DSLUICE_CHECKSUMS=OFF")
    parser.add_argument("--nvme", required=True, help="directory on the drive")
    parser.add_argument("--data", help="text for the runs that train")
    parser.add_argument("--model", default="llama-1b", help="of the run `swap`: llama-1b, or llama-125m for shorter turns")
    parser.add_argument("--profile", help="hardware profile (default: a new one beside the swap file)")
    parser.add_argument("--runs", default="fio,stripes,calls")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1)
    a = parser.parse_args()
    a.profile = a.profile or str(pathlib.Path(a.nvme, "sluice-profile.json"))
    for name in a.runs.split(","):
        print(f"\n### {name}\n", flush=True)
        {"fio": fio, "stripes": stripes, "swap": swap, "calls": calls, "checksums": checksums}[name](a)


if __name__ == "__main__":
    main()
