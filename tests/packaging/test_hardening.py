"""What Hardening.cmake promises, read off the programs and the library: position independent, nothing writable that need not be,
stack protector, fortified calls, no executable stack, and the C++ library's own checks."""
import os
import pathlib
import re
import subprocess
import unittest

BIN = pathlib.Path(os.environ["MKERNEL_BIN"])
LIB = pathlib.Path(os.environ["MKERNEL_LIB"])
BUILT = [BIN / "mkerneld", BIN / "mkctl", BIN / "mkrun", BIN / "mkbench", LIB / "libmkernel.so"]


def readelf(*arguments):
    return subprocess.run(["readelf", "-W", *arguments], check=True, capture_output=True, text=True, timeout=120).stdout


def build_type():
    cache = (pathlib.Path(os.environ["MKERNEL_BUILD"]) / "CMakeCache.txt").read_text()
    return re.search(r"^CMAKE_BUILD_TYPE:\w+=(.*)$", cache, re.M)[1]


@unittest.skipIf(build_type() == "Debug", "a debug build is not fortified")
class Hardened(unittest.TestCase):
    def each(self):
        # Without OpenBLAS there is no mkrun and no mkbench.
        return [path for path in BUILT if path.exists() or path.name not in ("mkrun", "mkbench")]

    def test_position_independent(self):
        for path in self.each():
            with self.subTest(file=path.name):
                self.assertIn("DYN (", readelf("-h", path))
                if path.parent == BIN:
                    self.assertRegex(readelf("-d", path), r"FLAGS_1.*\bPIE\b")

    def test_relocations_are_read_only_from_the_start(self):
        for path in self.each():
            with self.subTest(file=path.name):
                self.assertIn("GNU_RELRO", readelf("-l", path))
                self.assertRegex(readelf("-d", path), r"\((FLAGS\).*\bBIND_NOW\b|FLAGS_1\).*\bNOW\b)")

    def test_no_executable_stack_and_no_segment_written_and_executed(self):
        for path in self.each():
            with self.subTest(file=path.name):
                segments = re.findall(r"^\s+(\w+)\s+0x\S+ 0x\S+ 0x\S+ 0x\S+ 0x\S+ ([RWE ]{3})", readelf("-l", path), re.M)
                self.assertIn("GNU_STACK", [kind for kind, _ in segments])
                self.assertEqual([s for s in segments if "W" in s[1] and "E" in s[1]], [])

    def test_stack_protector_and_fortified_calls(self):
        for path in self.each():
            with self.subTest(file=path.name):
                symbols = readelf("--dyn-syms", path)
                self.assertIn("__stack_chk_fail", symbols)
                self.assertRegex(symbols, r"UND __\w+_chk\b")

    def test_checks_of_the_standard_library(self):
        for path in self.each():
            with self.subTest(file=path.name):
                self.assertIn("__glibcxx_assert_fail", readelf("--dyn-syms", path))


if __name__ == "__main__":
    unittest.main()
