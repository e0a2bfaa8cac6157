#!/usr/bin/env python3
"""Processes with a thread each beside one process with as many threads: tokens per second of the same steps.

Runs go in turns, so that what else the machine does meets all of them; the figures are medians over the runs' medians.
ZeRO's stages are measured on the same processes.

    bench/ranks.py                                    # llama-125m, 2 processes
    bench/ranks.py --model llama-25m --repeats 1 --stages
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
       "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none"}


def seconds(options, folder, command, placement):
    """Median seconds of a step, without the first two."""
    metrics = folder / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    line = command + ["train", "--model", options.model, "--data", str(folder / "text"), "--seq", str(options.seq),
                      "--batch", str(options.batch), "--lots", str(options.processes), "--steps", str(options.steps),
                      "--eval-split", "0", "--run", "none", "--metrics", str(metrics)] + placement
    done = subprocess.run(line, env=os.environ | MPI, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"ranks.py: {' '.join(line)}: {done.stderr.strip().splitlines()[-1]}")
    steps = [json.loads(text)["step_seconds"] for text in metrics.read_text().splitlines()]
    return statistics.median(steps[2:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sluice", default="build/release/bin/sluice", help="the program (default: %(default)s)")
    parser.add_argument("--model", default="llama-125m", help="preset (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=2, help="and threads of the one (default: %(default)s)")
    parser.add_argument("--seq", type=int, default=512, help="tokens (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=4, help="sequences a step (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=6, help="of a run (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="of every run (default: %(default)s)")
    parser.add_argument("--stages", action="store_true", help="ZeRO's stages too")
    parser.add_argument("--drive", default=None, help="directory of the drive (default: a temporary one)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.drive) as name:
        folder = Path(name)
        (folder / "nvme").mkdir()
        (folder / "text").write_text("the quick brown fox jumps over the lazy dog; " * 20000)
        program = str(Path(options.sluice).resolve())
        one = [program], ["--threads", str(options.processes)]
        many = ["mpirun", "-n", str(options.processes), program], ["--threads", "1"]
        drive = ["--states", "nvme", "--nvme", str(folder / "nvme"), "--durable", "off"]
        places = {"all resident": ["--states", "host", "--residency", "all"],
                  "all on the drive": drive + ["--residency", "none"]}
        runs = {}
        for place, placement in places.items():
            runs[place, "1 process"] = one, placement
            runs[place, f"{options.processes} processes"] = many, placement
        if options.stages:
            for stage in "0123":
                runs["on the drive", f"--zero {stage}"] = many, drive + ["--zero", stage]
        taken = {key: [] for key in runs}
        for _ in range(options.repeats):
            for key, ((command, threads), placement) in runs.items():
                taken[key].append(seconds(options, folder, command, placement + threads))
        tokens = options.batch * options.seq
        print(f"{options.model}, {options.batch} x {options.seq} tokens a step, median of {options.repeats} runs\n")
        print("| states | ranks | tokens/s | lowest, highest | beside 1 process |\n|---|---|---|---|---|")
        for (place, who), values in taken.items():
            base = taken.get((place, "1 process")) or taken["all on the drive", "1 process"]
            ratio = statistics.median(base) / statistics.median(values)
            print(f"| {place} | {who} | {tokens / statistics.median(values):.0f} | {tokens / max(values):.0f}, "
                  f"{tokens / min(values):.0f} | {ratio:.3f} |")


if __name__ == "__main__":
    main()
