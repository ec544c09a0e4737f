#!/usr/bin/env python3
"""The Python wheel: the package of client/python with the programs and libraries of a build, laid out as in the bundle.

  wheel.py make BUILD FOLDER     writes FOLDER/mkernel-VERSION-py3-none-manylinux_2_XX_ARCH.whl and removes older ones
  wheel.py tree BUILD FOLDER     puts what the package lacks into FOLDER, the package's own; scikit-build-core calls it
  wheel.py check WHEEL           the tag is the one that auditwheel finds (which must be installed), the size is within the limit

One wheel serves every Python that pyproject.toml allows, since the client is pure Python over libmkernel's C ABI. Its platform
tag comes from the symbol versions that its files need."""
import base64
import csv
import hashlib
import io
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

import bundle

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "client" / "python" / "mkernel"
PROGRAMS = ("mkerneld", "mkctl", "mkrun", "mkbench")
# The glibc of the oldest distribution whose C++ runtime has a symbol version: what manylinux says.
GLIBC_OF_RUNTIME = {"GLIBCXX_3.4.29": (2, 34), "GLIBCXX_3.4.30": (2, 35), "GLIBCXX_3.4.33": (2, 39), "CXXABI_1.3.13": (2, 34),
                    "CXXABI_1.3.14": (2, 39), "CXXABI_1.3.15": (2, 39), "GCC_12.0.0": (2, 35), "GCC_14.0.0": (2, 39)}
OLDEST = (2, 34)  # below that nothing of ours builds: C++20


def numbers(text):
    return tuple(int(part) for part in text.split("."))


def needed_glibc(folder):
    """The oldest glibc that a machine with these files may have, from the symbol versions that they need."""
    needed = OLDEST
    for path in folder.rglob("*"):
        if not path.is_file() or path.read_bytes()[:4] != b"\x7fELF":
            continue
        text = bundle.output("readelf", "--version-info", "--wide", path)
        for version in set(re.findall(r"Name: (\w+_[0-9.]+)", text.partition("Version needs section")[2])):
            name, _, number = version.partition("_")
            known = {known: glibc for known, glibc in GLIBC_OF_RUNTIME.items() if known.startswith(name + "_")}
            if name == "GLIBC":
                needed = max(needed, numbers(number))
            elif known:
                fitting = [glibc for other, glibc in known.items() if numbers(other.partition("_")[2]) >= numbers(number)]
                if not fitting:
                    raise SystemExit(f"{path.name} needs {version}: wheel.py does not know since which glibc there is one")
                needed = max(needed, min(fitting))
    return needed


def lay_out(build, package):
    """Adds programs, libraries and configuration to the folder of the package. Returns the glibc that they need."""
    with tempfile.TemporaryDirectory(prefix="mkernel-wheel-") as scratch:
        folder = pathlib.Path(scratch).resolve() / "tree"
        libraries = bundle.install(build, folder, "Unspecified")
        (package / "bin").mkdir(parents=True, exist_ok=True)
        for name in PROGRAMS:
            shutil.copy2(folder / "bin" / name, package / "bin" / name)
        # A wheel has no symbolic links: each library comes once, under the name that the loader asks for.
        to = package / libraries.relative_to(folder)
        to.mkdir(parents=True, exist_ok=True)
        for library in libraries.glob("*.so*"):
            if not library.is_symlink():
                named = re.search(r"SONAME.*\[(.+)\]", bundle.output("readelf", "--dynamic", "--wide", library))
                shutil.copy2(library, to / (named[1] if named else library.name))
        (package / "etc").mkdir(exist_ok=True)
        shutil.copy2(next(folder.rglob("mkerneld.toml")), package / "etc" / "mkerneld.toml")
    glibc = needed_glibc(package)
    (package / "_build.py").write_text(f'"""Written when the wheel was built."""\n\nGLIBC = {glibc}\n')
    return glibc


def metadata(version):
    """(METADATA, entry_points.txt) of pyproject.toml."""
    import tomllib  # Python 3.11; only making a wheel needs it

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {version}", f"Summary: {project['description']}",
             f"License: {project['license']['text']}", f"Requires-Python: {project['requires-python']}"]
    lines += [f"Classifier: {classifier}" for classifier in project["classifiers"]]
    lines += [f"Requires-Dist: {wanted}" for wanted in project["dependencies"]]
    for extra, wanted in project["optional-dependencies"].items():
        lines += [f"Provides-Extra: {extra}", *(f'Requires-Dist: {one}; extra == "{extra}"' for one in wanted)]
    lines += ["Description-Content-Type: text/markdown", "", (ROOT / project["readme"]).read_text()]
    scripts = [f"{name} = {place}" for name, place in project["scripts"].items()]
    return "\n".join(lines), "\n".join(["[console_scripts]", *scripts, ""])


def pack(tree, wheel):
    """Zips a folder; RECORD, which lists the hashes, comes last."""
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    name = next(tree.glob("*.dist-info")).name + "/RECORD"
    wheel.unlink(missing_ok=True)
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for path in sorted(path for path in tree.rglob("*") if path.is_file()):
            data, inner = path.read_bytes(), path.relative_to(tree).as_posix()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            rows.writerow((inner, f"sha256={digest}", len(data)))
            entry = zipfile.ZipInfo(inner, (1980, 1, 1, 0, 0, 0))  # the same bytes from the same build
            entry.external_attr = (0o100755 if path.stat().st_mode & 0o100 else 0o100644) << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
        rows.writerow((name, "", ""))
        archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), record.getvalue(), zipfile.ZIP_DEFLATED)


def make(build, out):
    version = re.search(r'"(.+)"', (PACKAGE / "_version.py").read_text().partition("__version__")[2])[1]
    with tempfile.TemporaryDirectory(prefix="mkernel-wheel-") as scratch:
        tree = pathlib.Path(scratch)
        shutil.copytree(PACKAGE, tree / "mkernel", ignore=shutil.ignore_patterns("__pycache__"))
        glibc = lay_out(build, tree / "mkernel")
        tag = f"py3-none-manylinux_{glibc[0]}_{glibc[1]}_{platform.machine()}"
        info = tree / f"mkernel-{version}.dist-info"
        info.mkdir()
        about, entry_points = metadata(version)
        (info / "METADATA").write_text(about)
        (info / "entry_points.txt").write_text(entry_points)
        (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nGenerator: mkernel wheel.py\nRoot-Is-Purelib: false\nTag: {tag}\n")
        shutil.copy(ROOT / "LICENSE", info / "LICENSE")
        wheel = out / f"mkernel-{version}-{tag}.whl"
        for older in out.glob("mkernel-*.whl"):
            older.unlink()
        pack(tree, wheel)
    print(f"{wheel}: {wheel.stat().st_size / (1 << 20):.1f} MiB")


def check(wheel):
    """Prints findings; 1 when there are any."""
    findings = []
    if wheel.stat().st_size > bundle.LIMIT:
        findings.append(f"{wheel.stat().st_size} bytes, the limit is {bundle.LIMIT}")
    run = subprocess.run([sys.executable, "-m", "auditwheel", "show", wheel], capture_output=True, text=True, timeout=300)
    shown = re.search(r'consistent\s+with\s+the\s+following\s+platform\s+tag:\s+"([^"]+)"', run.stdout)
    tag = wheel.name.removesuffix(".whl").split("-")[4]
    if shown is None:
        findings.append(f"auditwheel show: exit {run.returncode}: {run.stdout}{run.stderr}")
    elif shown[1] != tag:
        findings.append(f"the tag is {tag}, auditwheel says {shown[1]}")
    print("\n".join(findings) if findings else f"{wheel.name}: {wheel.stat().st_size / (1 << 20):.1f} MiB, auditwheel agrees")
    return 1 if findings else 0


def main():
    command, *paths = sys.argv[1:] or [""]
    paths = [pathlib.Path(path).resolve() for path in paths]
    if command == "make" and len(paths) == 2:
        return make(*paths)
    if command == "tree" and len(paths) == 2:
        lay_out(*paths)
        return 0
    if command == "check" and len(paths) == 1:
        return check(*paths)
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
