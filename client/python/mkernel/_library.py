"""Finds libmkernel, loads it and refuses one that does not fit this package."""

import os
import pathlib

from mkernel._abi import Library
from mkernel._version import __version__

PACKAGE = pathlib.Path(__file__).resolve().parent
SONAME = "libmkernel.so." + ".".join(__version__.split(".")[:2])


def _built_with() -> "tuple[int, int] | None":
    """The oldest glibc that the programs of this wheel run with; None outside of a wheel."""
    try:
        from mkernel._build import GLIBC  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return None
    return (int(GLIBC[0]), int(GLIBC[1]))


def _c_library() -> str:
    """The C library of this process, for example "glibc 2.36"; platform.libc_ver() would read the whole interpreter for it."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or "no glibc"
    except (AttributeError, OSError, ValueError):
        return "no glibc"


def check_glibc(needed: "tuple[int, int] | None", found: str) -> None:
    """Raises ImportError when this machine's C library is older than `needed`, or another one."""
    if needed is None:
        return
    wanted = f"this mkernel wheel needs glibc {needed[0]}.{needed[1]} or newer, and this machine has {found}"
    name, _, version = found.partition(" ")
    numbers = version.split(".")[:2]
    if name != "glibc" or len(numbers) != 2 or tuple(int(number) for number in numbers) < needed:
        raise ImportError(wanted)


def _path() -> str:
    """Beside the package (a wheel), else the file that MKERNEL_LIBRARY names, else the loader's own search by soname."""
    for folder in ("lib", "lib64"):
        carried = PACKAGE / folder / SONAME
        if carried.exists():
            return str(carried)
    return os.environ.get("MKERNEL_LIBRARY") or SONAME


def check_version(package: str, library: str, path: str) -> None:
    """Raises ImportError unless both have the same major and minor version."""
    if package.split(".")[:2] != library.split(".")[:2]:
        raise ImportError(f"the package mkernel {package} does not fit libmkernel {library} ({path}): install the same version")


def load() -> Library:
    """The library. Raises ImportError that names what does not fit, or where the library was looked for."""
    check_glibc(_built_with(), _c_library())
    path = _path()
    try:
        found = Library(path)
    except OSError as error:
        raise ImportError(
            f"libmkernel cannot be loaded: {error}. It is looked for in {PACKAGE}/lib, then where the environment variable "
            f"MKERNEL_LIBRARY says, then where the loader finds {SONAME}"
        ) from error
    except AttributeError as error:
        raise ImportError(f"{path} is not libmkernel {__version__}: {error}") from error
    check_version(__version__, found.mk_version().decode(), path)
    return found


lib = load()
