"""Compiles the extension of mkernel.torch (short_way.cc) against the PyTorch that is installed."""

import os
import pathlib
import shlex
import shutil
import subprocess
import tempfile

import torch

from mkernel._arguments import Seconds, boolean, seconds
from mkernel.errors import FailedPrecondition, Internal
from mkernel.torch import _extension


def build(*, force: bool = False, timeout: Seconds = 600.0) -> pathlib.Path:
    """Compiles the extension in C++, which takes a few microseconds off a call like one before, and returns the path of the build.

    It takes about a quarter of a minute on one processor, and needs a C++20 compiler: $CXX, or c++, g++ or clang++ of the PATH. The
    build is kept in mkernel/ of $XDG_CACHE_HOME or ~/.cache, and fits this version of PyTorch and of mkernel alone. One that is there
    is kept, unless `force`. Processes that import mkernel.torch from then on use it; this one does not, unless it did before.
    Any thread; processes may build at the same time. `timeout`: seconds, of the compiler.

    Errors: FailedPrecondition (no compiler, or PyTorch without its headers), Internal (what the compiler said), OSError."""
    force, limit = boolean("force", force), seconds("timeout", timeout)
    path = _extension.path_of_build()
    if path.exists() and not force:
        return path
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="build-") as folder:
        made = pathlib.Path(folder) / path.name
        _compile(made, limit)
        made.chmod(0o755)
        os.replace(made, path)
    return path


def _compiler() -> "list[str]":
    named = shlex.split(os.environ.get("CXX", ""))
    for command in (named,) if named else (["c++"], ["g++"], ["clang++"]):
        if shutil.which(command[0]):
            return command
    raise FailedPrecondition(f"build: there is no C++ compiler: {named[0] if named else 'c++, g++ and clang++'} cannot be found")


def _compile(path: pathlib.Path, timeout: float) -> None:
    root = pathlib.Path(torch.__file__).resolve().parent
    headers = root / "include"
    if not (headers / "torch" / "library.h").exists():
        raise FailedPrecondition(f"build: {headers} has no torch/library.h: this PyTorch was installed without its headers")
    command = [
        *_compiler(), "-std=c++20", "-O2", "-fPIC", "-shared", f"-DMKERNEL_BUILT_FOR=\"{_extension.built_for()}\"",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}", "-iquote", str(_extension.PACKAGE.parent.parent),
        "-isystem", str(headers), "-isystem", str(headers / "torch" / "csrc" / "api" / "include"),
        str(_extension.PACKAGE / "short_way.cc"), f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu", "-o", str(path),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=timeout)
    except subprocess.TimeoutExpired:
        raise Internal(f"build: {command[0]} took more than {timeout:g} s") from None
    if done.returncode != 0:
        raise Internal(f"build: {shlex.join(command)} failed:\n{done.stderr[-4000:]}")
