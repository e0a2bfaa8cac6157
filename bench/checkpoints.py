#!/usr/bin/env python3
"""Checkpoints beside the drive: save, verify and reshape against fio and dd on the same bytes, and torch's own ways.

    bench/checkpoints.py --sluice build/release/bin/sluice --data TEXT --dir DIR [--model llama-125m] [--rounds 5]
        [--torch PYTHON]

A run of the model whose states are all on the drive is stopped before its first step. In each round, in turns: fio writes, reads, and
reads and writes the bytes of a checkpoint (direct, 1 MiB, 32 in flight, synced at the end); `checkpoint save` copies the run's
states; `checkpoint verify` reads them; `train --save-every 1` saves states that lie in host memory and `train --restore` brings them back (times as
it tells them); `checkpoint reshape` makes tp 2 x pp 2 of one rank and then dp 3 x tp 2 of that; dd copies the same
bytes. Then a run trains with --save-every 3: steps that save and steps that do not, in turns, against what `plan` says of
both; with --second DIR, on another drive, once more with its checkpoints there. With --torch, a Python that has torch and
safetensors: torch.distributed.checkpoint and safetensors save and load as many bytes from and to host memory, and sync them. Each is a process of its own but for torch's, whose imports are not counted. Medians over rounds;
ratios are of the same round. Prints a markdown table. Needs Python 3.9 and fio.
"""
import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time

TORCH = r"""
import os, sys, time, torch, torch.distributed.checkpoint as dcp
from safetensors.torch import save_file, load_file
directory, count = sys.argv[1], int(sys.argv[2])
part = 16 << 20
tensors = {f"t{i}": torch.randn(part // 4) for i in range(max(1, count // part))}
def timed(name, work):
    begin = time.perf_counter(); work(); print(name, time.perf_counter() - begin, flush=True)
def sync(path):
    for base, _, files in os.walk(path):
        for file in files:
            fd = os.open(os.path.join(base, file), os.O_RDONLY); os.fsync(fd); os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED); os.close(fd)
os.makedirs(directory + "/st")
timed("dcp_save", lambda: (dcp.save(tensors, checkpoint_id=directory + "/dcp"), sync(directory + "/dcp")))
timed("dcp_load", lambda: dcp.load(tensors, checkpoint_id=directory + "/dcp"))
timed("safetensors_save", lambda: (save_file(tensors, directory + "/st/a.safetensors"), sync(directory + "/st")))
timed("safetensors_load", lambda: [t.sum() for t in load_file(directory + "/st/a.safetensors").values()])
"""


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines() or ["no message"]
        sys.exit(f"{' '.join(command)}: {lines[-1]}")
    return done.stdout


def seconds_of(*command):
    begin = time.perf_counter()
    run(*command)
    return time.perf_counter() - begin


def fio(directory, kind, size):
    name = os.path.join(directory, "fio.bin")
    out = run("fio", "--name=x", f"--filename={name}", f"--rw={kind}", "--bs=1M", f"--size={size}", "--direct=1",
              "--ioengine=io_uring", "--iodepth=32", "--end_fsync=1", "--fallocate=posix", "--output-format=json")
    return json.loads(out)["jobs"][0]["job_runtime"] / 1000.0


def stopped_run(args, directory):
    path = os.path.join(directory, "run")
    command = [args.sluice, "train", "--model", args.model, "--data", args.data, "--run", path, "--nvme", directory,
               "--states", "nvme", "--steps", "1000", "--seq", "128", "--batch", "1", "--device-memory", args.device_memory,
               "--host-memory", args.host_memory]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if "the weights are in place" in line:
            process.send_signal(signal.SIGTERM)
    process.wait()
    return path


def told_seconds(text, pattern):
    """What a note of the program says in seconds."""
    number, unit = re.search(pattern + r" ([0-9.]+) (us|ms|s)$", text, re.MULTILINE).groups()
    return float(number) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[unit]


def host_seconds(args, directory):
    """States that lie in host memory: how long a checkpoint of them takes, and its way back there."""
    common = ["--states", "host", "--device-memory", args.device_memory, "--host-memory", args.states_memory, "--seq", "64",
              "--batch", "1", "--data", args.data, "--eval-split", "0"]
    texts = []
    for begin in (["--model", args.model, "--steps", "3", "--save-every", "1", "--keep", "1"],
                  ["--restore", os.path.join(directory, "host/checkpoints/step-3"), "--steps", "4"]):
        path = os.path.join(directory, "host" if "--save-every" in begin else "back")
        done = subprocess.run([args.sluice, "train", *begin, *common, "--run", path], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            sys.exit(f"train {' '.join(begin)}: {done.stderr.strip().splitlines()[-1]}")
        texts.append(done.stderr)
    for name in ("host", "back"):
        shutil.rmtree(os.path.join(directory, name))
    return {"save from host memory": told_seconds(texts[0], "^step 2 is saved: .* in"),
            "restore to host memory": told_seconds(texts[1], "^the states are in place after")}


def torch_seconds(args, directory, size):
    scratch = os.path.join(directory, "torch")
    shutil.rmtree(scratch, ignore_errors=True)
    out = run(args.torch, "-c", TORCH, scratch, str(size))
    shutil.rmtree(scratch)
    return {line.split()[0]: float(line.split()[1]) for line in out.splitlines() if len(line.split()) == 2}


def one_round(args, directory, run_path):
    place = lambda name: os.path.join(directory, name)
    for name in ("ck", "cut", "others", "copy"):
        shutil.rmtree(place(name), ignore_errors=True)
    seconds = {"save": seconds_of(args.sluice, "checkpoint", "save", run_path, place("ck"))}
    step = os.listdir(place("ck"))
    checkpoint = place("ck/" + next(name for name in step if name.startswith("step-")))
    size = sum(os.path.getsize(os.path.join(checkpoint, f)) for f in os.listdir(checkpoint) if f.endswith(".h5"))
    seconds["fio write"] = fio(directory, "write", size)
    seconds["verify"] = seconds_of(args.sluice, "checkpoint", "verify", checkpoint)
    seconds["fio read"] = fio(directory, "read", size)
    seconds.update(host_seconds(args, directory))
    seconds["fio read and write"] = fio(directory, "rw", 2 * size)
    os.remove(place("fio.bin"))
    seconds["reshape to tp 2 x pp 2"] = seconds_of(args.sluice, "checkpoint", "reshape", checkpoint, place("cut"), "--tp", "2",
                                                   "--pp", "2")
    cut = place("cut/" + os.path.basename(checkpoint))
    seconds["reshape of that to dp 3 x tp 2"] = seconds_of(args.sluice, "checkpoint", "reshape", cut, place("others"), "--dp",
                                                           "3", "--tp", "2")
    begin = time.perf_counter()
    os.makedirs(place("copy"))
    for name in os.listdir(cut):
        if name.startswith("rank-") and name.endswith(".h5"):
            run("dd", f"if={cut}/{name}", f"of={place('copy')}/{name}", "bs=4M", "iflag=direct", "oflag=direct",
                "conv=fsync", "status=none")
    seconds["dd"] = time.perf_counter() - begin
    for name in ("ck", "cut", "others", "copy"):
        shutil.rmtree(place(name), ignore_errors=True)
    if args.torch:
        seconds.update(torch_seconds(args, directory, size))
    return seconds, size


def saving_steps(args, directory, name, checkpoints):
    """A row of the second table: steps that save beside those that do not, of one run."""
    path = os.path.join(directory, "saving-" + name)
    options = ["--model", args.model, "--data", args.data, "--run", path, "--nvme", directory, "--states", "nvme",
               "--steps", str(args.saving_steps), "--seq", str(args.saving_seq), "--batch", str(args.saving_batch),
               "--device-memory", args.device_memory, "--host-memory", args.host_memory, "--save-every", "3", "--keep", "1",
               "--checkpoints", checkpoints]
    plan = json.loads(run(args.sluice, "plan", *options, "--json"))
    run(args.sluice, "train", *options, "--json")
    with open(os.path.join(path, "metrics.jsonl"), encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    shutil.rmtree(path, ignore_errors=True)
    shutil.rmtree(checkpoints, ignore_errors=True)
    # The first steps read what no update has left yet, and the last one has no neighbour.
    pairs = [(a["step_seconds"], b["step_seconds"]) for a, b in zip(lines[3:-1], lines[2:-2]) if "saved_step" in a]
    if not pairs or "saving_step" not in plan:
        sys.exit(f"{name}: no step saved beside its work, or its drive can not be measured; give more --saving-steps, or another --second")
    saving, plain = (statistics.median(column) for column in zip(*pairs))
    ratios = [a / b for a, b in pairs]
    told, usual = plan["saving_step"], plan["predicted"]["step_seconds"]
    print(f"| {name} | {plain:.2f} ({usual:.2f}) | {saving:.2f} ({told['step_seconds']:.2f}) | "
          f"{saving / told['step_seconds'] - 1:+.1%} | {saving / told['bound_seconds']:.3f} | "
          f"{statistics.median(ratios):.3f} [{min(ratios):.3f}, {max(ratios):.3f}] | {len(pairs)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--dir", required=True)
    parser.add_argument("--sluice", default="build/release/bin/sluice")
    parser.add_argument("--model", default="llama-125m")
    parser.add_argument("--device-memory", default="2GiB")
    parser.add_argument("--host-memory", default="512MiB")
    parser.add_argument("--states-memory", default="4GiB", help="host memory for a run whose states all lie there")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--second", help="a directory on another drive")
    parser.add_argument("--saving-steps", type=int, default=34)
    parser.add_argument("--saving-seq", type=int, default=256)
    parser.add_argument("--saving-batch", type=int, default=4)
    parser.add_argument("--torch")
    args = parser.parse_args()
    directory = os.path.join(args.dir, f"checkpoints.{os.getpid()}")
    os.makedirs(directory)
    try:
        if args.rounds > 0:
            run_path = stopped_run(args, directory)
            print_rounds(args, [one_round(args, directory, run_path) for _ in range(args.rounds)])
            shutil.rmtree(run_path)
        if args.saving_steps == 0:
            return
        print("\n| checkpoints on | a step (predicted), s | one that saves (predicted), s | off by | of its bound | of the step before |"
              " steps |\n|---|---|---|---|---|---|---|")
        saving_steps(args, directory, "the same drive", os.path.join(directory, "saved"))
        if args.second:
            saving_steps(args, directory, "a second drive", os.path.join(args.second, os.path.basename(directory)))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def print_rounds(args, rounds):
    size = rounds[0][1]
    beside = {"save": "fio read and write", "verify": "fio read", "save from host memory": "fio write",
              "restore to host memory": "fio read", "reshape to tp 2 x pp 2": "dd",
              "reshape of that to dp 3 x tp 2": "dd", "dcp_save": "fio write", "safetensors_save": "fio write",
              "dcp_load": "fio read", "safetensors_load": "fio read"}
    print(f"{size / 1e9:.2f} GB of {args.model}, {args.rounds} rounds\n")
    print("| | seconds | GB/s | share of |\n|---|---|---|---|")
    for name in rounds[0][0]:
        values = [r[0][name] for r in rounds]
        share = ""
        if name in beside:
            ratios = [r[0][beside[name]] / r[0][name] for r in rounds]
            share = f"{statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}] of {beside[name]}"
        median = statistics.median(values)
        print(f"| {name} | {median:.2f} | {size / median / 1e9:.2f} | {share} |")


if __name__ == "__main__":
    main()
