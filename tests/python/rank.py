"""What the ranks of the tests have in common. `python rank.py MODULE FUNCTION` is one rank; RANK, WORLD_SIZE and SOCKET say
which one."""
import importlib
import os
import sys

import mkernel

RANK, WORLD, SOCKET = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["SOCKET"]
LONG = 60.0  # seconds, above everything that should happen


def join(session=None, name="test", **options):
    return (session or mkernel.connect(SOCKET, name="python test")).join(name, WORLD, RANK, **options)


def raises(kind, *words):
    """Expects an exception of `kind` whose text has all of `words`."""
    return Expected(kind, words)


class Expected:
    def __init__(self, kind, words):
        self.kind, self.words = kind, words

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        assert error is not None, f"no {self.kind.__name__} was raised"
        if not isinstance(error, self.kind):
            return False
        missing = [word for word in self.words if word not in str(error)]
        assert not missing, f"{missing} not in: {error}"
        self.error = error
        return True


def say(line):
    """To the test, which waits for it."""
    print(line, flush=True)


def wait_for_line():
    """Until the test writes a line."""
    assert sys.stdin.readline() == "\n"


def wait_for_test():
    """Until the test closes the standard input of this rank."""
    sys.stdin.read()


if __name__ == "__main__":
    getattr(importlib.import_module(sys.argv[1]), sys.argv[2])()
