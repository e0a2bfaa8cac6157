#!/usr/bin/env python3
"""The order of writes and syncs of a durable run, as the kernel sees it: slots, fdatasync, record, fdatasync, and only then
the slots that the step before had left. Other writes (gradients, activations) may come in between.

    bench/sync_order.py --sluice build/release/bin/sluice --data TEXT --nvme DIR

Runs a few steps of llama-tiny under strace with the threads backend, prints the sequence, and exits with status 1 where it
is not that order. A place of the swap file that is written in two steps running is not one of a slot: slots take turns.
Needs Python 3.9 and strace.
"""
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile


def calls(args):
    with tempfile.TemporaryDirectory(dir=args.nvme) as folder:
        trace = pathlib.Path(folder, "trace")
        command = ["strace", "-f", "-y", "-e", "trace=pwrite64,pwritev,pwritev2,fdatasync", "-o", str(trace), args.sluice,
                   "train", "--model", "llama-tiny", "--seq", "64", "--batch", "4", "--steps", "5", "--data", args.data,
                   "--nvme", args.nvme, "--states", "nvme", "--run", folder + "/run", "--io", "threads", "--json"]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            sys.exit(done.stderr.strip().splitlines()[-1])
        for line in trace.read_text().splitlines():
            found = re.search(r"(pwrite\w*|fdatasync)\(\d+<([^>]*)>", line)
            if not found:
                continue
            name = found[2]
            what = "slots" if ".swap" in name else "record" if "/commit." in name else None
            if not what:
                continue
            if found[1] == "fdatasync":
                yield "sync " + what, None
            else:
                yield "write " + what, re.search(r", (\d+)(?:\)| <unfinished)", line)[1]


def without_others(all_calls):
    """Leaves out writes to places that are written between two commits and again before the next."""
    step, written = 0, {}
    for call, place in all_calls:
        if call == "write slots":
            written.setdefault(place, set()).add(step)
        step += call == "sync record"
    # What fills the file before the first record is another matter.
    others = {place for place, steps in written.items() if any(k > 0 and k + 1 in steps for k in steps)}
    kept = [call for call, place in all_calls if not (call == "write slots" and place in others)]
    return kept, len(all_calls) - len(kept)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in ("--data", "--nvme"):
        parser.add_argument(option, required=True)
    parser.add_argument("--sluice", default="build/release/bin/sluice")
    runs = []
    kept, others = without_others(list(calls(parser.parse_args())))
    for call in kept:
        if runs and runs[-1][0] == call:
            runs[-1][1] += 1
        else:
            runs.append([call, 1])
    print("\n".join(f"{call} x {count}" for call, count in runs))
    print(f"other writes to the drive: {others}")
    order = ["write slots", "sync slots", "write record", "sync record"]
    if len(runs) < 16 or any(call != order[i % 4] for i, (call, _) in enumerate(runs)):
        sys.exit("sync_order: not the order that makes a step durable")


if __name__ == "__main__":
    main()
