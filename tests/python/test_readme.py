"""The examples of the READMEs, as printed, in a fresh folder with the commands around them."""
import os
import pathlib
import re
import sys
import tempfile
import unittest

import readme_examples
from client_test import PACKAGE, PATIENCE, ClientTest

ROOT = pathlib.Path(__file__).resolve().parents[2]
WHEEL = "a wheel has no headers"
BUILD = pathlib.Path(os.environ.get("MKERNEL_BUILD", ROOT / "build"))


@unittest.skipIf(readme_examples.can_run(), f"no mount namespace: {readme_examples.can_run()}")
class Readme(ClientTest):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="mkernel-")
        cls.addClassCleanup(folder.cleanup)
        prefix, python = pathlib.Path(folder.name, "usr"), pathlib.Path(folder.name, "python3")
        # The interpreter that has numpy, which a link would not be: one of an environment looks beside its own name.
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        python.chmod(0o755)
        cls.environment = {"PYTHONPATH": PACKAGE, **(readme_examples.install(BUILD, prefix) if PACKAGE else {})}
        cls.programs = [folder.name, prefix / "bin" if PACKAGE else os.environ["MKERNEL_BIN"]]

    def run_page(self, page):
        return readme_examples.run(self, ROOT / page, self.folder, self.programs, 6 * PATIENCE, **self.environment)

    @unittest.skipUnless(PACKAGE, WHEEL)
    def test_first_page(self):
        out = self.run_page("README.md")
        for rank in range(2):
            self.assertIn(f"rank {rank} has all 4096 rows\n", out)
        self.assertEqual(re.findall("^OK$", out, re.M), ["OK"] * 4, out)  # four ranks of the program in C++

    @unittest.skipUnless(PACKAGE, WHEEL)
    def test_guide(self):
        self.run_page("client/GUIDE.md")

    def test_tools(self):
        out = self.run_page("tools/README.md")
        for rank in range(2):
            self.assertRegex(out, rf"rank {rank} of 2: ag_gemm m=256 n=256 k=512 .*, wrote c.{rank}.npy\n")

    def test_python(self):
        out = self.run_page("client/python/README.md")
        for rank in range(2):
            # fp16 results of about 20: an element is rounded by at most 2^-11 of the largest, which is below 128.
            self.assertLess(float(re.search(rf"^rank {rank}: largest difference ([0-9.]+)$", out, re.M)[1]), 0.07)
            self.assertIn(f"rank {rank}: received {1 - rank} from rank {1 - rank}\n", out)


if __name__ == "__main__":
    unittest.main()
