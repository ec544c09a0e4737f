#!/usr/bin/env python3
"""Runs the tests of mkernel.torch on tensors in host memory with a PyTorch from PyPI, in an environment of its own.

Usage: tests/python/with_torch.py [--version 2.15.0] [--build build] [--venv build/torch] [--seconds 240] [--only-install]
Needs what the test command has built. PyTorch brings about 4 GB of libraries; an environment that has it already is used again.
Exit status: 0 or 1 by the tests; 77 when PyTorch could not be had within the time."""
import argparse
import concurrent.futures
import os
import pathlib
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
TESTS = ("operators", "moe", "grouped", "attention", "rendezvous", "groups", "patches", "nn", "extension", "readme")


def install(venv, version, seconds):
    """The interpreter of an environment that can import PyTorch, or None."""
    python = venv / "bin/python"
    wanted = f"torch=={version}" if version else "torch"
    commands = ([sys.executable, "-m", "venv", venv],
                [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-cache-dir", wanted, "numpy"])
    end = time.monotonic() + seconds
    for command in commands:
        try:
            subprocess.run([str(word) for word in command], check=True, timeout=max(1.0, end - time.monotonic()))
        except (subprocess.SubprocessError, OSError) as error:
            print(f"with_torch: {error}")
            return None
    return python


def run(python, subject, build):
    environment = {**os.environ, "MKERNEL_BIN": str(build / "bin"), "MKERNEL_LIB": str(build / "lib"), "OMP_NUM_THREADS": "1"}
    begin = time.monotonic()
    done = subprocess.run([str(python), "-B", str(HERE / f"test_torch_{subject}.py"), "-v"], env=environment, capture_output=True, text=True)
    return subject, done.returncode, time.monotonic() - begin, done.stdout + done.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--version", help="of PyTorch; default: the newest")
    parser.add_argument("--build", type=pathlib.Path, default=HERE.parents[1] / "build", help="folder with bin and lib")
    parser.add_argument("--venv", type=pathlib.Path, help="default: torch in the build folder")
    parser.add_argument("--seconds", type=float, default=240, help="for the packages")
    parser.add_argument("--only-install", action="store_true", help="run no test: what runs them later finds the environment")
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    begin = time.monotonic()
    python = install((arguments.venv or build / "torch").resolve(), arguments.version, arguments.seconds)
    if python is None:
        return 77
    told = subprocess.run([str(python), "-c", "import sys, torch; print('PyTorch', torch.__version__, 'Python', sys.version.split()[0])"],
                          check=True, capture_output=True, text=True)
    print(f"{told.stdout.strip()}, installed in {time.monotonic() - begin:.0f} s", flush=True)
    if arguments.only_install:
        return 0
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for subject, status, seconds, output in pool.map(lambda subject: run(python, subject, build), TESTS):
            print(f"test_torch_{subject}: exit {status}, {seconds:.0f} s", flush=True)
            if status != 0:
                failed += 1
                print(output)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
