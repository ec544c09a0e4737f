"""Base of the tests of the Python client: ranks are Python processes that run a function of *_scenarios.py against real daemons.

MKERNEL_PYTHON_PATH is where the package is found: client/python of the checkout, or empty for an installed wheel."""
import copy
import importlib
import inspect
import os
import pathlib
import pickle
import pkgutil
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "integration"))

from cluster import PATIENCE, ClusterTest, free_ports, wait_until  # noqa: E402,F401: tests take them from here

PACKAGE = os.environ.get("MKERNEL_PYTHON_PATH", str(HERE.parents[1] / "client" / "python"))
if PACKAGE:
    sys.path.insert(0, PACKAGE)
    if "MKERNEL_LIB" in os.environ:
        os.environ.setdefault("MKERNEL_LIBRARY", os.environ["MKERNEL_LIB"] + "/libmkernel.so")



def own_exceptions(package):
    """The exception classes that the modules of `package`, which is a package, define."""
    found = []
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        if not module.ispkg and not module.name.endswith("__main__"):
            named = vars(importlib.import_module(module.name)).values()
            found += [kind for kind in named if isinstance(kind, type) and issubclass(kind, BaseException)
                      and kind.__module__ == module.name]
    return found


def assert_survives(test, kind):
    """An exception of `kind` with all that it says is the same after pickle and copy."""
    fields = list(inspect.signature(kind.__init__).parameters)[1:]
    error = kind(*(f"{field} of {kind.__name__}" for field in fields if field not in ("args", "kwargs")))
    error.noticed = ["by a caller"]
    again = [pickle.loads(pickle.dumps(error, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    for other in (*again, copy.copy(error), copy.deepcopy(error)):
        test.assertIs(type(other), kind)
        test.assertEqual((str(other), repr(other), other.args, vars(other)), (str(error), repr(error), error.args, vars(error)))


WORLD = 4  # ranks of most tests, two on each of two nodes


class ClientTest(ClusterTest):
    def rank(self, scenario, rank=0, world=1, daemon=None, **environment):
        """Starts one rank, which runs `scenario`: "module.function"."""
        daemon = daemon or self.daemons[rank * len(self.daemons) // world]
        return self.spawn_rank(scenario, RANK=rank, WORLD_SIZE=world, SOCKET=daemon.socket, PYTHONPATH=PACKAGE, **environment)

    def spawn_rank(self, scenario, preexec_fn=None, executable=sys.executable, **environment):
        return self.spawn(executable, "-B", "-X", "faulthandler", HERE / "rank.py", *scenario.split("."), stdin=subprocess.PIPE,
                          preexec_fn=preexec_fn, **environment)

    def run_ranks(self, scenario, world=WORLD, **environment):
        """Runs a scenario on all ranks, spread over the daemons; every one must succeed. Returns what they print."""
        processes = [self.rank(scenario, rank, world, **environment) for rank in range(world)]
        results = [self.finish(process, 4 * PATIENCE) for process in processes]
        failed = [f"rank {rank}, exit {status}:\n{out}{err}" for rank, (status, out, err) in enumerate(results) if status != 0]
        self.assertEqual(failed, [], f"{scenario}:\n" + "\n".join(failed))  # the first to fail is rarely rank 0
        return [out for _, out, _ in results]

    def wait_for_line(self, process, line):
        """Reads the output of a rank until it prints `line`. The rank prints it before it begins to wait."""
        found = next((said for said in iter(process.stdout.readline, "") if not said.startswith("[Gloo]")), "")  # PyTorch 2.8 talks
        if not found:
            status, _, err = self.finish(process)
            self.fail(f"{process.args} ended with {status} before it printed {line!r}:\n{err}")
        self.assertEqual(found.strip(), line)

    def go_on(self, process):
        """Ends wait_for_line() of a rank."""
        process.stdin.write("\n")
        process.stdin.flush()

    def interrupt(self, process, seconds=5.0):
        """Ctrl-C. Returns (exit status, stdout, stderr); the process has to end within `seconds`, or more on a slow machine:
        an idle one takes a few tenths, the wait itself far longer than allowed here."""
        return self._interrupt(process, seconds, lambda: self.finish(process))

    def interrupt_wait(self, process, line, seconds=5.0):
        """The same for a process that then goes on, and prints `line`."""
        self._interrupt(process, seconds, lambda: self.wait_for_line(process, line))

    def _interrupt(self, process, seconds, wait):
        time.sleep(0.2)  # not a synchronisation: lets most runs interrupt the wait itself and not the way to it
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        result = wait()
        self.assertLess(time.monotonic() - begin, seconds * max(PATIENCE / 60, 1), f"{process.args}\n{result}")
        return result
