"""The programs that a wheel carries: each console command becomes the program of its name."""

import os
import pathlib
import sys
from typing import NoReturn

FOLDER = pathlib.Path(__file__).resolve().parent / "bin"


def program(name: str) -> pathlib.Path:
    """Where a program is: beside the package (a wheel), else in the folder that the environment variable MKERNEL_BIN names."""
    for folder in (FOLDER, *(pathlib.Path(value) for value in [os.environ.get("MKERNEL_BIN", "")] if value)):
        if (folder / name).exists():
            return folder / name
    raise SystemExit(f"{name} is neither in {FOLDER} nor in the folder that MKERNEL_BIN names")


def _become(name: str) -> NoReturn:
    path = program(name)
    os.execv(path, [str(path), *sys.argv[1:]])


def mkerneld() -> NoReturn:
    """The daemon."""
    _become("mkerneld")


def mkctl() -> NoReturn:
    """Looks inside a running daemon."""
    _become("mkctl")


def mkrun() -> NoReturn:
    """One rank of one operation on .npy files."""
    _become("mkrun")


def mkbench() -> NoReturn:
    """Benchmarks."""
    _become("mkbench")
