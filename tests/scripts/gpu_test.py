#!/usr/bin/env python3
"""tools/gpu_check and tools/gpu_runs against programs that play the real ones, and fail in every way that these can."""

import json
import os
import pathlib
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"

SLUICE = r"""#!/usr/bin/env python3
import json, os, signal, sys, time
if sys.argv[1] == "--help":
    sys.exit()
if sys.argv[1:3] == ["bench", "device"]:
    print("measuring", file=sys.stderr)
    print('{"profile": "here"}')
    sys.exit()
case = os.environ.get("CASE", "")
if sys.argv[1] == "plan":
    if case == "plan crashes":
        os.kill(os.getpid(), signal.SIGSEGV)
    if case == "plan refuses":
        print("sluice plan: no such device", file=sys.stderr)
        sys.exit(2)
    if case == "one GPU":
        print("sluice plan: 2 ranks of a machine would share a GPU, and NCCL takes one of each", file=sys.stderr)
        sys.exit(2)
    if case == "plan hangs":
        time.sleep(60)
    fits = case != "does not fit"
    plan = {"fits": fits, "smallest": {"host": 1, "device": 1, "nvme": 1}}
    if fits and case != "plan lacks a key":
        plan.update(predicted={"step_seconds": 1, "bound_seconds": 1, "bottleneck": "compute"}, schedule={},
                    device={"arena_bytes": 1}, host={"arena_bytes": 1}, nvme={"arena_bytes": 0})
    print(json.dumps(plan))
    if not fits:
        print("sluice plan: does not fit", file=sys.stderr)
    sys.exit(0 if fits else 2)
with open(sys.argv[sys.argv.index("--metrics") + 1], "w") as metrics:
    for step in range(1, 5):
        metrics.write(json.dumps({"step": step, "loss": 1.0, "step_seconds": 0.1, "mfu": 0.5, "tokens_per_second": 1.0,
                                  "device_peak_bytes": 1, "host_peak_bytes": 1}) + "\n")
        metrics.flush()
        if case == "train dies" and step == 2:
            print("sluice train: the device has failed", file=sys.stderr)
            sys.exit(1)
        if case == "killed in a line" and step == 3:
            metrics.write('{"step": 4, "lo')
            metrics.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        if case == "train hangs" and step == 3:
            time.sleep(60)
        if case == "ignores signals" and step == 3:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            time.sleep(60)
"""

TEST = """#!/bin/bash
case "$1" in --gtest_list_tests) printf 'Suite.\\n  Case\\nModels/Other/0.  # TypeParam = float\\n  Case/f32\\n'; exit 0 ;; esac
suite=all
for a; do
  case $a in
    --gtest_output=json:*) echo '{"tests": 1}' >"${a#--gtest_output=json:}" ;;
    --gtest_filter=-*) ;;
    --gtest_filter=*.\\*) suite=${a#--gtest_filter=} ;;
  esac
done
skip() { printf '[ RUN      ] Suite.Case\\nfile.cpp:5: Skipped\\n%s\\n\\n[  SKIPPED ] Suite.Case (0 ms)\\n' "$1"; }
case "$CASE $suite" in
  'fails Suite.*') echo '[  FAILED  ] Suite.Case'; exit 1 ;;
  'dies '*/*) kill -SEGV $$ ;;
  'skips '*) echo 'no CUDA device: the driver knows none' ;;
  'no library '*) skip 'cannot open a library of CUDA: libcublasLt.so.13: cannot open' ;;
  'old library Suite.*') skip 'cuDNN 91000 is too old' ;;
  'old library '*) skip 'cuDNN 91000 is too old'; echo '[       OK ] Suite.Other (1 ms)' ;;
  'hangs '*) sleep 60 ;;
esac
"""
TESTS = ["test_kernels_cuda Suite", "test_kernels_cuda Models/Other/0", "test_gpu Suite", "test_gpu Models/Other/0"]
BENCH = """#!/bin/bash
[ "$1" != --help ] || exit 2
[ "$1" != --json ] || echo '{"bench": 1}' >"$2"
[ "$CASE" != 'half a JSON' ] || echo '{"bench": ' >"$2"
"""


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


class Scripts(unittest.TestCase):
    def setUp(self):
        made = tempfile.TemporaryDirectory(prefix="gpu test ")  # a path with spaces
        self.addCleanup(made.cleanup)
        self.folder = pathlib.Path(made.name)
        self.bin = self.folder / "build" / "bin"
        program(self.bin / "sluice", SLUICE)
        for name in ("test_kernels_cuda", "test_gpu"):
            program(self.bin / name, TEST)
        for name in ("kernels", "matmul", "attention"):
            program(self.bin / f"bench_cuda_{name}", BENCH)
        program(self.folder / "path" / "nvidia-smi", "#!/bin/sh\necho GPU\n")
        self.environment = {"PATH": f"{self.folder}/path:{os.environ['PATH']}", "TMPDIR": str(self.folder)}

    def call(self, tool, *arguments, case="", **more):
        command = [str(TOOLS / tool), *map(str, arguments)]
        return subprocess.run(command, env=dict(self.environment, CASE=case), stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, universal_newlines=True, timeout=120, **more)

    def refused(self, done, words):
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn(words, done.stderr)


class Runs(Scripts):
    def runs(self, *more, case="", names=("7b-24g-2048", "1b-4g")):
        """Exit status and results."""
        results = self.folder / "new" / "a folder" / "runs.jsonl"
        done = self.call("gpu_runs", results, "--sluice", self.bin / "sluice", "--only", *names, *more, case=case)
        return done, [json.loads(line) for line in results.read_text().splitlines()]

    def test_complete(self):
        done, results = self.runs("--clip", "1", "--", "--moments", "bf16")
        self.assertEqual((done.returncode, [r["ended"] for r in results]), (0, ["complete"] * 2), done.stderr)
        self.assertEqual(results[0]["steps"], 4)
        self.assertTrue(results[0]["arguments"].endswith("--clip 1 --moments bf16"))
        self.assertNotIn("--clip 0", results[0]["arguments"])
        kept = (self.folder / "new" / "a folder" / "runs.metrics.jsonl").read_text().splitlines()
        self.assertEqual([json.loads(line)["run"] for line in kept], ["7b-24g-2048"] * 4 + ["1b-4g"] * 4)
        # Nothing else stays, here or among temporary files.
        self.assertEqual(sorted(os.listdir(self.folder / "new" / "a folder")),
                         ["runs.jsonl", "runs.log", "runs.metrics.jsonl"])
        self.assertEqual(sorted(os.listdir(self.folder)), ["build", "new", "path"])

    def test_what_does_not_fit_is_skipped(self):
        done, results = self.runs(case="does not fit")
        self.assertEqual((done.returncode, [r["skipped"] for r in results]), (0, ["sluice plan: does not fit"] * 2))
        done, results = self.runs(case="one GPU", names=("7b-2gpu-nccl",))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("NCCL takes one of each", results[-1]["skipped"])

    def test_failures_are_failures_and_end_no_other_run(self):
        for case, words, steps in (("plan crashes", "plan: status -11", None), ("plan refuses", "no such device", None),
                                   ("plan lacks a key", "predicted", 4), ("train dies", "the device has failed", 2),
                                   ("killed in a line", "train: status -9", 3)):
            with self.subTest(case):
                self.setUp()
                done, results = self.runs(case=case)
                self.assertEqual(done.returncode, 1)
                self.assertEqual(len(results), 2)
                for result in results:
                    self.assertIn(words, result["failed"])
                    if steps and case != "plan lacks a key":
                        self.assertEqual(result["steps"], steps)

    def test_time(self):
        done, results = self.runs("--limit", "26", case="train hangs", names=["1b-4g"])
        self.assertEqual((done.returncode, results[0]["steps"]), (0, 3), results)
        self.assertIn("stopped when", results[0]["ended"])
        done, results = self.runs("--total", "20", names=["1b-4g"])
        self.assertEqual((done.returncode, results[-1]["not_started"]), (1, "no time left"))
        done, results = self.runs("--limit", "3", case="plan hangs", names=["1b-4g"])
        self.assertEqual(done.returncode, 1)
        self.assertIn("plan: stopped", results[-1]["failed"])

    def test_who_ends_it_ends_what_it_started(self):
        results = self.folder / "runs.jsonl"
        process = subprocess.Popen([str(TOOLS / "gpu_runs"), str(results), "--sluice", str(self.bin / "sluice"), "--only",
                                    "1b-4g"], env=dict(self.environment, CASE="train hangs"), stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        metrics = self.folder / "runs.1b-4g.jsonl"
        for _ in range(1000):
            if metrics.exists() and metrics.read_text().count("\n") == 3:
                break
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=60), 1)
        self.assertEqual(metrics.read_text().count("\n"), 3)

    def test_refusals(self):
        results = self.folder / "runs.jsonl"
        self.refused(self.call("gpu_runs", results, "--sluice", self.folder / "no such"), "is no program")
        sluice = ("--sluice", self.bin / "sluice")
        self.refused(self.call("gpu_runs", results, *sluice, "--only", "9b"), "9b is none of")
        self.refused(self.call("gpu_runs", results, *sluice, "--steps", "1"), "--steps")
        self.refused(self.call("gpu_runs", results, *sluice, "--nvme", self.folder / "none"), "no directory")
        self.refused(self.call("gpu_runs", "/proc/none/runs.jsonl", *sluice), "/proc/none")

    @unittest.skipUnless(os.access("/dev/shm", os.W_OK), "/dev/shm cannot be written")
    def test_memory_is_no_drive(self):
        done, results = self.runs("--nvme", "/dev/shm", names=["7b-24g-nvme", "1b-4g"])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("is memory and no drive", results[0]["skipped"])
        self.assertEqual(results[1]["ended"], "complete")


class Check(Scripts):
    def check(self, *more, case=""):
        out = self.folder / "new" / "out"
        done = self.call("gpu_check", "--build", self.folder / "build", out, *more, case=case)
        found = json.loads((out / "summary.json").read_text())
        return done, found, out

    def test_complete(self):
        done, found, out = self.check("--quick")
        self.assertEqual((done.returncode, found["ok"], found["complete"]), (0, True, True), done.stdout + done.stderr)
        self.assertEqual(set(found["steps"].values()), {"ok"})
        self.assertEqual(json.loads((out / "tests.json").read_text()), [{"tests": 1}] * 4)
        self.assertEqual([step for step in found["steps"] if step.startswith("test_")], TESTS)
        self.assertEqual(json.loads((out / "bench.json").read_text()), [{"bench": 1}] * 3)
        self.assertEqual(json.loads((out / "device.json").read_text()), {"profile": "here"})
        self.assertIn("cores:", (out / "gpu.txt").read_text())
        self.assertEqual(sorted(os.listdir(self.folder)), ["build", "new", "path"])

    def test_failures(self):
        # What ends one suite leaves the others to pass.
        for case, suite, other in (("fails", "failed (1)", "ok"), ("dies", "ok", "failed (139)"),
                                   ("skips", *["failed: no CUDA device"] * 2),
                                   ("no library", *["failed: cannot open a library of CUDA: libcublasLt.so.13: cannot open"] * 2)):
            with self.subTest(case):
                done, found, _ = self.check("--quick", "--only", "tests", case=case)
                self.assertEqual((done.returncode, found["ok"]), (1, False))
                self.assertEqual(found["steps"], dict(zip(TESTS, [suite, other] * 2)))

    def test_what_is_skipped_has_not_passed(self):
        done, found, _ = self.check("--quick", case="old library")
        self.assertEqual((done.returncode, found["ok"]), (0, True), done.stdout)
        self.assertEqual(found["steps"]["test_gpu Suite"], "skipped: cuDNN 91000 is too old")
        self.assertEqual(found["steps"]["test_gpu Models/Other/0"], "ok, 1 of 2 skipped: cuDNN 91000 is too old")

    def test_half_a_json(self):
        done, found, out = self.check("--quick", case="half a JSON")
        self.assertEqual(json.loads((out / "bench.json").read_text()), [])

    def test_time(self):
        done, found, _ = self.check("--quick", "--total", "17", case="hangs")
        # However slow this machine is: every step is accounted for, and none passed that hung.
        self.assertEqual((done.returncode, found["ok"], found["complete"]), (1, False, True))
        for name in TESTS:
            self.assertIn(found["steps"][name], ("timed out", "not run: no time left"))
        self.assertIn("sluice bench device", found["steps"])

    def test_no_part_takes_the_time_of_the_next(self):
        done, found, out = self.check("--quick", "--total", "40", case="hangs")
        self.assertEqual(done.returncode, 1)
        # The slowest machine may need it all; on others what comes after suites that hang has its share.
        self.assertIn(found["steps"]["bench_cuda_kernels"], ("ok", "not run: no time left"))
        self.assertLess(found["seconds"], 40 + 20)
        self.assertEqual(found["steps"]["test_kernels_cuda Suite"], "timed out")

    def test_a_part_alone(self):
        program(self.folder / "path" / "compute-sanitizer", "#!/bin/bash\n")
        for only, steps in (("tests", TESTS),
                            ("benches", [f"bench_cuda_{name}" for name in ("kernels", "matmul", "attention")] +
                             ["sluice bench device"]),
                            ("sanitizer", ["test_gpu.memcheck"] + [f"test_kernels_cuda.{tool}" for tool in (
                                "memcheck", "initcheck", "synccheck", "racecheck")])):
            done, found, _ = self.check("--only", only)
            self.assertEqual((done.returncode, found["steps"]), (0, dict.fromkeys(steps, "ok")), done.stderr)

    def test_a_program_that_does_not_start_is_said(self):
        (self.bin / "sluice").write_text("#!/bin/sh\necho 'libx.so: cannot open' >&2\nexit 127\n")
        done, found, _ = self.check("--quick")
        self.assertEqual(found["steps"]["sluice bench device"], "does not start: status 127: libx.so: cannot open")
        self.assertEqual((done.returncode, found["steps"]["test_gpu Suite"]), (1, "ok"))

    def test_the_loader_of_the_bundle(self):
        for name in sorted(os.listdir(self.bin)):
            text = (self.bin / name).read_text()
            first, rest = text.split("\n", 1)
            check = ('import os, sys\nif "LOADED" not in os.environ: sys.exit("GLIBC_2.36 not found")\n'
                     if "python" in first else "[ -n \"$LOADED\" ] || { echo 'GLIBC_2.36 not found'; exit 1; }\n")
            (self.bin / name).write_text(first + "\n" + check + rest)
        program(self.folder / "build" / "glibc" / "ld-linux-x86-64.so.2",
                '#!/bin/bash\n[ "$1" = --library-path ] || exit 9\nshift 2\nLOADED=1 exec "$@"\n')
        (self.folder / "build" / "lib").mkdir()
        (self.folder / "build" / "version").write_text("abc\n")
        bundle = self.folder / "a bundle.tar.gz"
        subprocess.run(["tar", "-C", self.folder / "build", "-czf", bundle, "bin", "lib", "glibc", "version"], check=True)
        done = self.call("gpu_check", "--quick", "--from", bundle, self.folder / "out")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("test_gpu runs with the bundle's C library: status 1: GLIBC_2.36 not found", done.stdout)
        self.assertEqual(json.loads((self.folder / "out" / "summary.json").read_text())["version"], "abc")
        done = self.call("gpu_check", "--runs", "1b-4g", "--from", bundle, self.folder / "out")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_sanitizer(self):
        program(self.folder / "path" / "compute-sanitizer", '#!/bin/bash\necho "--kernel-name --report-api-errors $* $SLUICE_SHORT"\n'
                '[ "$2" != racecheck ] || exit 9\n')
        done, found, out = self.check()
        self.assertEqual((done.returncode, found["steps"]["test_kernels_cuda.racecheck"]), (1, "failed (9)"))
        self.assertEqual(found["steps"]["test_gpu.memcheck"], "ok")
        said = (out / "sanitizer.log").read_text()
        self.assertRegex(said, "--tool racecheck --kernel-name kernel_substring=sluice .*test_kernels_cuda .* 1\n")
        self.assertRegex(said, "--tool initcheck --error-exitcode")
        self.assertRegex(said, "--tool memcheck --report-api-errors no .*test_gpu .* 1\n")

    def test_runs(self):
        out = self.folder / "runs out"
        done = self.call("gpu_check", "--build", self.folder / "build", "--runs", "1b-4g 3b-8g", out, "--", "--steps", "3",
                         "--", "--seed", "2")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        results = [json.loads(line) for line in (out / "runs.jsonl").read_text().splitlines()]
        self.assertEqual([(r["run"], r["ended"]) for r in results], [("1b-4g", "complete"), ("3b-8g", "complete")])
        self.assertTrue(results[0]["arguments"].endswith("--seed 2"))

    def test_refusals(self):
        self.refused(self.call("gpu_check"), "OUTDIR is missing")
        self.refused(self.call("gpu_check", "--from", self.folder / "none", self.folder / "out"), "cannot unpack")
        self.refused(self.call("gpu_check", "/proc/none/out"), "cannot write")
        self.refused(self.call("gpu_check", "--total", "soon", "out"), "--total")
        self.refused(self.call("gpu_check", "--only", "kernels", "out"), "--only")
        self.refused(self.call("gpu_check", "--only", "sanitizer", "--quick", "out"), "--quick")
        self.refused(self.call("gpu_check", "--only", "tests", "--runs", "all", "out"), "--runs")
        (self.folder / "path" / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
        self.refused(self.call("gpu_check", self.folder / "out"), "no GPU")


if __name__ == "__main__":
    unittest.main()
