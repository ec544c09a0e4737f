"""How the package finds libmkernel and what it refuses: another version, an older C library, a file that is something else."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock
import weakref

from client_test import PACKAGE, assert_survives, own_exceptions

import mkernel
from mkernel import _calls, _library


class Library(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="mkernel-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def python(self, code, package=PACKAGE, **environment):
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("MKERNEL_", "PYTHON", "LD_"))}
        return subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, timeout=60, cwd=self.folder,
                              env={**kept, **({"PYTHONPATH": str(package)} if package else {}), **environment})

    def copy_of_package(self):
        shutil.copytree(_library.PACKAGE, self.folder / "mkernel", ignore=shutil.ignore_patterns("__pycache__", "lib", "bin"))
        return self.folder / "mkernel"

    def test_order_of_the_places(self):
        library, package = pathlib.Path(mkernel.library_path()).resolve(), self.copy_of_package()
        say = "import mkernel; print(mkernel.library_path())"
        by_environment = self.python(say, self.folder, MKERNEL_LIBRARY=str(library))
        self.assertEqual(by_environment.stdout.strip(), str(library), by_environment.stderr)
        (self.folder / "loader").mkdir()
        (self.folder / "loader" / _library.SONAME).symlink_to(library)
        by_loader = self.python(say, self.folder, LD_LIBRARY_PATH=str(self.folder / "loader"))
        self.assertEqual(by_loader.stdout.strip(), _library.SONAME, by_loader.stderr)
        empty = self.python(say, self.folder, LD_LIBRARY_PATH=str(self.folder / "loader"), MKERNEL_LIBRARY="")  # is as unset
        self.assertEqual(empty.stdout.strip(), _library.SONAME, empty.stderr)
        (package / "lib").mkdir()
        (package / "lib" / _library.SONAME).symlink_to(library)
        beside = self.python(say, self.folder, MKERNEL_LIBRARY="/nonexistent")
        self.assertEqual(beside.stdout.strip(), str(package / "lib" / _library.SONAME), beside.stderr)

    def test_what_cannot_be_loaded_is_named(self):
        self.copy_of_package()
        run = self.python("import mkernel", self.folder, MKERNEL_LIBRARY="/nonexistent/libmkernel.so")
        for word in ("ImportError", "/nonexistent/libmkernel.so", "MKERNEL_LIBRARY", _library.SONAME):
            self.assertIn(word, run.stderr)
        run = self.python("import mkernel", self.folder, MKERNEL_LIBRARY="libc.so.6")
        for word in ("ImportError", "libc.so.6 is not libmkernel", "mk_version"):
            self.assertIn(word, run.stderr)

    def test_another_version(self):
        _library.check_version("1.2.3", "1.2.9", "/lib")
        with self.assertRaisesRegex(ImportError, r"1\.2\.3.*1\.3\.0.*/lib/x"):
            _library.check_version("1.2.3", "1.3.0", "/lib/x")
        package = self.copy_of_package()
        (package / "_version.py").write_text('__version__ = "7.8.9"\n')
        run = self.python("import mkernel", self.folder, MKERNEL_LIBRARY=str(pathlib.Path(mkernel.library_path()).resolve()))
        for word in ("ImportError", "7.8.9", mkernel.library_version()):
            self.assertIn(word, run.stderr)

    def test_an_older_c_library(self):
        for found in ("glibc 2.36", "glibc 2.100", "glibc 3.0", "glibc 2.36.9000"):
            _library.check_glibc((2, 36), found)
        _library.check_glibc(None, "no glibc")
        for found in ("glibc 2.35", "glibc 2.9", "glibc 1.99", "no glibc", "musl 2.40"):
            with self.assertRaisesRegex(ImportError, f"glibc 2.36 or newer.*{found}"):
                _library.check_glibc((2, 36), found)
        package = self.copy_of_package()
        (package / "_build.py").write_text("GLIBC = (2, 900)\n")
        run = self.python("import mkernel", self.folder)
        self.assertIn("ImportError: this mkernel wheel needs glibc 2.900 or newer, and this machine has glibc 2.", run.stderr)

    def test_bad_splits_are_refused(self):
        self.assertEqual([mkernel.block_range(10, 3, part) for part in range(3)], [(0, 3), (3, 6), (6, 10)])
        for split in ((-1, 2, 0), (10, 0, 0), (10, 2, 2), (10, 2, -1)):
            with self.assertRaisesRegex(mkernel.InvalidArgument, f"total = {split[0]} .*parts = {split[1]} .*index = {split[2]} "):
                mkernel.block_range(*split)

    def test_import_brings_nothing_large(self):
        code = "import sys, mkernel; print(sorted({'numpy', 'torch', 'subprocess', 'ml_dtypes'} & set(sys.modules)))"
        run = self.python(code, MKERNEL_LIBRARY=str(pathlib.Path(mkernel.library_path()).resolve()))
        self.assertEqual(run.stdout.strip(), "[]", run.stderr)


class OfCaller(mkernel.NotFound):
    """As a caller may derive one, with parameters of its own."""

    def __init__(self, table, row):
        super().__init__(f"{table} has no {row}")
        self.row = row


class Exceptions(unittest.TestCase):
    def test_every_exception_survives_pickle_and_copy(self):
        kinds = own_exceptions(mkernel)
        self.assertGreaterEqual(set(kinds), {mkernel.Error, *mkernel.Error.__subclasses__()})
        for kind in (*kinds, OfCaller):
            with self.subTest(kind=kind):
                assert_survives(self, kind)


class Calls(unittest.TestCase):
    def test_nothing_is_left_of_a_call_whose_thread_ends_late(self):
        # What the call made is destroyed when its caller closes it, as on the other ranks: later they would not agree on the
        # number of their next region. And who exits now has no thread inside a call, so that groups are left.
        class Made:
            pass

        run = _calls._Call._run

        def run_and_stay(call):
            run(call)
            time.sleep(0.2)

        with unittest.mock.patch.object(_calls._Call, "_run", run_and_stay):
            made = weakref.ref(_calls.interruptible("make", Made))
            self.assertIsNone(made())
            self.assertEqual(threading.active_count(), 1)


class Slices(unittest.TestCase):
    """What wait_in_slices() makes of what the library says."""

    def test_what_comes_in_the_last_moment_has_come(self):
        # A put that finds room after its time is up was made: denying it would lose its number.
        said = []

        def wait(milliseconds):
            said.append(milliseconds)
            time.sleep(0.02)
            return mkernel.Code.DEADLINE_EXCEEDED if len(said) == 1 else mkernel.Code.OK

        _calls.wait_in_slices("put", wait, lambda: False, 0.01)
        self.assertEqual(len(said), 2)

    def test_the_time_limit_is_kept_and_named(self):
        begin = time.monotonic()
        with self.assertRaisesRegex(mkernel.DeadlineExceeded, "put: not within 0.15 s"):
            _calls.wait_in_slices("put", lambda ms: time.sleep(ms / 1000) or mkernel.Code.DEADLINE_EXCEEDED, lambda: False, 0.15)
        self.assertGreaterEqual(time.monotonic() - begin, 0.15)
        self.assertLess(time.monotonic() - begin, 15)


if __name__ == "__main__":
    unittest.main()
