"""tools/test itself, on a project of a few lines: what it builds where a build without tests was before, what it says and how
it ends when there is nothing to run, and how it sums up what was skipped."""
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# As the real one: tests are an option, and skip with 77. What the tests print is in the file beside it.
PROJECT = """cmake_minimum_required(VERSION 3.22)
project(small LANGUAGES NONE)
option(MKERNEL_TESTS "" ON)
if(MKERNEL_TESTS)
  enable_testing()
  foreach(name %s)
    add_test(NAME ${name} COMMAND sh ${CMAKE_SOURCE_DIR}/${name}.sh)
    set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77)
  endforeach()
endif()
"""


@unittest.skipUnless(all(shutil.which(tool) for tool in ("cmake", "ctest", "ninja")), "no cmake, ctest or ninja")
class TestCommand(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="mkernel-test-command-")
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "tools").mkdir()
        shutil.copy(ROOT / "tools" / "test", self.root / "tools" / "test")
        setup = self.root / "tools" / "setup"  # nothing is to be installed for this
        setup.write_text("#!/bin/sh\n")
        setup.chmod(0o755)

    def project(self, **scripts):
        (self.root / "CMakeLists.txt").write_text(PROJECT % " ".join(scripts))
        for name, text in scripts.items():
            (self.root / f"{name}.sh").write_text(text)

    def tools_test(self, *arguments):
        run = subprocess.run([self.root / "tools" / "test", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             timeout=120)
        return run.returncode, run.stdout

    def test_builds_and_runs_tests_where_the_demo_built_none(self):
        self.project(one="exit 0", two="exit 0")
        # As tools/demo configures a folder that is not there.
        subprocess.run(["cmake", "-S", self.root, "-B", self.root / "build", "-G", "Ninja", "-DMKERNEL_TESTS=OFF"],
                       check=True, capture_output=True, timeout=120)
        status, output = self.tools_test()
        self.assertEqual(status, 0, output)
        self.assertIn("100% tests passed, 0 tests failed out of 2", output)

    def test_a_run_of_no_test_fails(self):
        self.project()
        status, output = self.tools_test()
        self.assertNotEqual(status, 0, output)
        self.project(one="exit 0")
        status, output = self.tools_test("--", "-R", "no_such_test")
        self.assertNotEqual(status, 0, output)

    def test_failure_is_passed_on(self):
        self.project(good="exit 0", bad="echo the reason; exit 3")
        status, output = self.tools_test()
        self.assertNotEqual(status, 0, output)
        self.assertIn("the reason", output)

    def test_skipped_reasons_are_one_line_each_with_their_number(self):
        doctest = 'for i in 1 2 3; do echo "tests/conformance/suite.h:16: MESSAGE: SKIPPED ($i): transport tcp cannot drop"; done\n'
        self.project(gpu="for i in 1 2 3 4 5; do echo 'SKIPPED: no GPU'; done; exit 77", more="echo 'SKIPPED: no GPU'; exit 77",
                     conformance=doctest + "exit 0", python="echo \"test_a (x.T) ... skipped 'not root'\"; exit 0")
        status, output = self.tools_test()
        self.assertEqual(status, 0, output)
        summary = output.split("== 2 skipped", 1)
        self.assertEqual(len(summary), 2, output)
        lines = [re.sub(r"\s+", " ", line).strip() for line in summary[1].splitlines()[1:]]
        self.assertEqual(lines, ["6 no GPU", "3 transport tcp cannot drop", "1 not root"])


if __name__ == "__main__":
    unittest.main()
