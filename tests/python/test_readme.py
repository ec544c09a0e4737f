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
BUILD = pathlib.Path(os.environ.get("MKERNEL_BUILD", ROOT / "build"))


@unittest.skipIf(readme_examples.can_run(), f"no mount namespace: {readme_examples.can_run()}")
class Readme(ClientTest):
    @classmethod
    def setUpClass(cls):
        installed = tempfile.TemporaryDirectory(prefix="mkernel-")
        cls.addClassCleanup(installed.cleanup)
        cls.prefix = pathlib.Path(installed.name)
        cls.environment = readme_examples.install(BUILD, cls.prefix)
        (cls.prefix / "bin/python3").symlink_to(sys.executable)  # the interpreter that has numpy

    def run_page(self, page):
        return readme_examples.run(self, ROOT / page, self.folder, [self.prefix / "bin"], 6 * PATIENCE, PYTHONPATH=PACKAGE,
                                   **self.environment)

    def test_first_page(self):
        out = self.run_page("README.md")
        for rank in range(2):
            self.assertIn(f"rank {rank} has all 4096 rows\n", out)
        self.assertEqual(re.findall("^OK$", out, re.M), ["OK"] * 4, out)  # four ranks of the program in C++

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
