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

PROGRAMS = ["gpu_gemm", "gpu_gemm_operations", "gpu_ag_gemm", "gpu_attention", "gpu_attention_backward", "gpu_ring_attention",
            "gpu_ring_attention_backward", "gpu_ring_varlen", "gpu_varlen_attention", "gpu_varlen_attention_backward", "gpu_grouped_gemm",
            "gpu_moe", "gpu_tile_reduce"]
SMALL = "*small enough for tools*"


def sanitizer_or_skip():
    found = shutil.which("compute-sanitizer", path=os.pathsep.join([os.environ["PATH"], "/usr/local/cuda/bin"]))
    if not found:
        print("SKIPPED: no compute-sanitizer")
        sys.exit(77)
    return found


class SanitizerGpuTest(unittest.TestCase):
    def check(self, tool):
        """All programs at once: the tools spend most of their time on the host."""
        with concurrent.futures.ThreadPoolExecutor() as pool:
            outcomes = list(pool.map(lambda name: self.run_under(tool, name), PROGRAMS))
        for name, ran in zip(PROGRAMS, outcomes):
            with self.subTest(name):
                self.assertEqual(ran.returncode, 0, ran.stdout[-4000:] + ran.stderr[-2000:])
                self.assertRegex(ran.stdout, r"test cases: +[1-9][0-9]* \|", "no case has such a name")
                summary = re.search(r"=+ \w+ SUMMARY: .*", ran.stdout).group()
                self.assertRegex(summary, r" 0 (errors|hazards)")
                print(name, summary)

    def run_under(self, tool, name):
        begin = time.monotonic()
        ran = subprocess.run([SANITIZER, "--tool", tool, "--error-exitcode", "9", program(name),
                              f"--test-case={SMALL}"], capture_output=True, text=True, timeout=240)
        print(f"{tool} {name}: {time.monotonic() - begin:.1f} s", flush=True)
        return ran

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
