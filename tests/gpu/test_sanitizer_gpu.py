"""The kernels under compute-sanitizer: every access in bounds, no race in shared memory, no barrier misused. The cases that are small
enough for that say so in their names. Skipped, with the reason, where there is no GPU or no compute-sanitizer."""
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "integration"), str(HERE)]  # the latter in a bundle, where the tests lie in one folder
from cluster import gpus_or_skip, program  # noqa: E402

# Those that take longest first.
PROGRAMS = ["gpu_ring_attention_backward", "gpu_ring_attention", "gpu_varlen_attention_backward", "gpu_ag_gemm", "gpu_varlen_attention",
            "gpu_attention_backward", "gpu_tile_reduce", "gpu_attention", "gpu_gemm_operations", "gpu_ring_varlen", "gpu_grouped_gemm",
            "gpu_moe", "gpu_gemm"]
AT_ONCE = 2  # programs: more only wait for the GPU, which they have in turns
# The references of mkbench, in fp64, have most of the accesses to shared memory and are no part of the product: racecheck, which follows
# each access on the host, leaves them out. Its own threads are as many as there are cores otherwise, for every program.
TOOLS = {"racecheck": ["--kernel-name-exclude", "kns=7mkernel5bench", "--racecheck-num-workers", str(max(1, os.cpu_count() // AT_ONCE))],
         "synccheck": [], "memcheck": []}
# By tool the programs in which it held back copies, which then lie on the host: see tests/support/gpu_world.cc.
HOST_BUFFERS = {"synccheck": PROGRAMS, "memcheck": ["gpu_ring_attention", "gpu_ring_attention_backward"], "racecheck": []}
SMALL = "*small enough for tools*"
FOUND = 9  # exit status of a tool that has found something, or failed


def sanitizer_or_skip():
    found = shutil.which("compute-sanitizer", path=os.pathsep.join([os.environ["PATH"], "/usr/local/cuda/bin"]))
    if not found:
        print("SKIPPED: no compute-sanitizer")
        sys.exit(77)
    return found


def only_the_tool_failed(ran):
    """Whether all that the tool counts are errors of its own, and the cases went well."""
    own = len(re.findall(r"^=+ Internal Sanitizer Error", ran.stdout, re.MULTILINE))
    counted = re.search(r"SUMMARY: (\d+) (?:error|hazard)", ran.stdout)
    return ran.returncode == FOUND and counted is not None and own == int(counted.group(1)) > 0 and "Status: SUCCESS!" in ran.stdout


def run_under(tool, name):
    def run():
        begin = time.monotonic()
        arguments = [f"--test-case={SMALL}", *["--host-buffers"] * (name in HOST_BUFFERS[tool])]
        ran = subprocess.run([SANITIZER, "--tool", tool, *TOOLS[tool], "--error-exitcode", str(FOUND), program(name), *arguments],
                             capture_output=True, text=True, timeout=240)
        print(f"{tool} {name}: {time.monotonic() - begin:.1f} s", flush=True)
        return ran

    ran = run()
    if only_the_tool_failed(ran):
        print(f"{tool} {name} once more, for the tool failed:\n{ran.stdout}", flush=True)
        ran = run()
    return ran


class SanitizerGpuTest(unittest.TestCase):
    """All tools and programs, some beside each other: racecheck spends its time on the host, the others on the GPU."""

    @classmethod
    def setUpClass(cls):
        pool = concurrent.futures.ThreadPoolExecutor(AT_ONCE)
        cls.addClassCleanup(pool.shutdown, cancel_futures=True)
        cls.runs = {(tool, name): pool.submit(run_under, tool, name) for name in PROGRAMS for tool in TOOLS}

    def check(self, tool):
        for name in PROGRAMS:
            with self.subTest(name):
                ran = self.runs[tool, name].result()
                self.assertEqual(ran.returncode, 0, ran.stdout[-4000:] + ran.stderr[-2000:])
                self.assertRegex(ran.stdout, r"test cases: +[1-9][0-9]* \|", "no case has such a name")
                summary = re.search(r"=+ \w+ SUMMARY: .*", ran.stdout).group()
                self.assertRegex(summary, r" 0 (errors|hazards)")
                print(name, summary)

    def test_memcheck(self):
        self.check("memcheck")

    def test_racecheck(self):
        self.check("racecheck")

    def test_synccheck(self):
        self.check("synccheck")


if __name__ == "__main__":
    gpus_or_skip()
    SANITIZER = sanitizer_or_skip()
    unittest.main(verbosity=2)
