"""The extension in C++ of mkernel.torch: it is built, found, and takes calls like one before; all others go on in Python."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest.mock
import warnings

from torch_test import PACKAGE, TorchTest, free_ports, main

_folder = tempfile.mkdtemp(prefix="mkernel-extension-")  # not TemporaryDirectory(), which a forked rank would clean up when it ends


def setUpModule():
    """One build for all, in a cache folder of its own. It must be there when this process imports mkernel.torch."""
    os.environ["XDG_CACHE_HOME"] = _folder
    os.environ.pop("MKERNEL_TORCH_EXTENSION", None)
    path = os.pathsep.join(filter(None, (PACKAGE, os.environ.get("PYTHONPATH"))))
    done = subprocess.run([sys.executable, "-B", "-m", "mkernel.torch", "build"], env={**os.environ, "PYTHONPATH": path},
                          capture_output=True, text=True)
    if done.returncode != 0 and "there is no C++ compiler" in done.stderr:
        raise unittest.SkipTest(done.stderr)
    assert done.returncode == 0, done.stderr


def tearDownModule():
    shutil.rmtree(_folder)


class Calls(TorchTest):
    def scenario(self, name, world=2, nodes=1, **environment):
        self.start_nodes(nodes)
        self.run_job(name if "." in name else f"torch_extension_scenarios.{name}", world, **environment)

    def test_values(self):
        self.scenario("values", OTHER_PORT=free_ports(1)[0])

    def test_queued(self):
        self.scenario("queued")

    def test_plans(self):
        self.scenario("plans")

    def test_threads(self):
        self.scenario("threads", 1)

    def test_errors(self):
        self.scenario("failing")

    def test_wrong_input(self):
        self.scenario("torch_operator_scenarios.wrong")

    def test_gradients(self):
        self.scenario("torch_operator_scenarios.gradients")

    def test_compile(self):
        self.scenario("torch_operator_scenarios.compiled")

    def test_ctrl_c(self):
        self.run_interrupted("torch_extension_scenarios.interrupted")


class Builds(unittest.TestCase):
    """What is loaded, and what is not."""

    def setUp(self):
        from mkernel.torch import _extension

        self.module = _extension
        self.path = _extension.path_of_build()

    def refused(self, words):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            self.assertIsNone(self.module._load())
        self.assertEqual([words in str(warning.message) for warning in told], [True] if words else [], told)

    def test_the_build_is_loaded(self):
        self.assertEqual(self.module._load().path, self.path)
        self.assertEqual(os.listdir(self.path.parent), [self.path.name])  # nothing of the compiler is left

    def test_a_build_that_is_there_is_kept(self):
        import mkernel.torch

        made = self.path.stat().st_mtime_ns
        self.assertEqual(mkernel.torch.build(), self.path)
        self.assertEqual(self.path.stat().st_mtime_ns, made)

    def test_switched_off(self):
        with unittest.mock.patch.dict(os.environ, {"MKERNEL_TORCH_EXTENSION": "0"}):
            self.refused("")

    def test_a_build_for_something_else(self):
        with unittest.mock.patch.object(self.module, "__version__", "0.1.1"):
            self.refused("")
            copy = pathlib.Path(shutil.copy(self.path, self.module.path_of_build()))
            self.addCleanup(copy.unlink)
            self.refused("it was built for torch-")
            copy.unlink()  # the file that was loaded stays as it is
            copy.write_bytes(b"no library")
            self.refused("is not used")

    def test_a_build_that_others_may_write_to(self):
        self.path.chmod(0o777)
        self.addCleanup(self.path.chmod, 0o755)
        self.refused("other users")

    def test_no_compiler(self):
        import mkernel
        import mkernel.torch

        with unittest.mock.patch.dict(os.environ, {"CXX": "/nowhere/c++"}):
            with self.assertRaisesRegex(mkernel.FailedPrecondition, "/nowhere/c"):
                mkernel.torch.build(force=True)
        with unittest.mock.patch.dict(os.environ, {"CXX": "false"}):
            with self.assertRaisesRegex(mkernel.Internal, "false"):
                mkernel.torch.build(force=True)


if __name__ == "__main__":
    main()
