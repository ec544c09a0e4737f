#!/usr/bin/env python3
"""The relocatable bundle: one folder that runs wherever it is unpacked, on distributions at least as new as the one it was
built on, without gRPC and the rest installed.

  bundle.py make BUILD OUT.tar.gz    installs BUILD into a folder, adds the shared libraries it needs, packs it
  bundle.py check OUT.tar.gz         unpacks it elsewhere: every library must come from inside, and daemon and mkctl must run

Not carried: the C library and its parts (they belong to the kernel and the loader of the machine), the C++ runtime (a process
that has loaded an older one could not load newer libraries, PyTorch's say, afterwards), and the CUDA driver."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time

LIMIT = 60 << 20  # bytes of the packed bundle
OF_THE_MACHINE = re.compile(r"(ld-linux|libc|libm|libdl|libpthread|librt|libresolv|libutil|libanl|libstdc\+\+|libgcc_s)[-.]")
DRIVER = re.compile(r"(libcuda|libnvidia)[-.]")
PATIENCE = 60


def run(*command, **options):
    return subprocess.run([str(c) for c in command], check=True, timeout=600, **options)


def output(*command, **options):
    return run(*command, capture_output=True, text=True, **options).stdout


def programs(folder):
    """What is ours and loads libraries: programs, test programs, libmkernel, the GPU module. Theirs load nothing on their own:
    they are found through the DT_RPATH of the program that needs them."""
    for path in sorted([*folder.glob("bin/*"), *folder.glob("tests/*"), *folder.rglob("libmkernel*.so*")]):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield path


def dependencies(path, **options):
    """(name, where the loader finds it or None) of everything that `path` needs, directly or not."""
    for line in output("ldd", path, **options).splitlines():
        found = re.match(r"\s*(\S+) => (\S+)", line)
        if found:
            yield pathlib.Path(found[1]).name, None if found[2] == "not" else pathlib.Path(found[2])


def add_libraries(folder, libraries):
    """Copies what the programs of `folder` need from this machine into `libraries`, stripped."""
    for program in list(programs(folder)):
        for name, source in dependencies(program):
            if source is None:
                raise SystemExit(f"{program.name} needs {name}, which this machine does not have")
            if DRIVER.match(name):
                raise SystemExit(f"{program.name} is linked with {name}: the driver belongs to the machine that runs it")
            copy = libraries / name
            if OF_THE_MACHINE.match(name) or copy.exists() or source.resolve().is_relative_to(folder):
                continue
            shutil.copyfile(source.resolve(), copy)
            copy.chmod(0o755)
            run("strip", "--strip-unneeded", copy)


def install(build, folder, *components):
    """Installs `build` into `folder` with the libraries that it needs. Returns the folder of the libraries."""
    for component in components:
        run("cmake", "--install", build, "--prefix", folder, "--strip", "--component", component, stdout=subprocess.DEVNULL)
    # Its absolute paths are those of a scratch folder; packaging/OPERATING.md says how a bundle becomes a service.
    for service in ("systemd", "sysusers.d"):
        shutil.rmtree(folder / "lib" / service)
    libraries = next(folder.rglob("libmkernel.so")).parent
    add_libraries(folder, libraries)
    return libraries


def make(build, out):
    name = out.name.removesuffix(".tar.gz")
    with tempfile.TemporaryDirectory(prefix="mkernel-bundle-") as scratch:
        folder = (pathlib.Path(scratch) / name).resolve()
        libraries = install(build, folder, "Unspecified", "bundle")
        shutil.copy(pathlib.Path(__file__).with_name("README.bundle.md"), folder / "README.md")
        out.unlink(missing_ok=True)
        with tarfile.open(out, "w:gz", compresslevel=6) as archive:
            archive.add(folder, arcname=name)
        carried = sum(1 for _ in libraries.glob("*.so*"))
    print(f"{out}: {out.stat().st_size / (1 << 20):.1f} MiB, {carried} shared libraries")


def check_loading(folder):
    """Findings: libraries that the loader does not find inside the bundle."""
    for program in programs(folder):
        for name, source in dependencies(program, env={"PATH": os.environ["PATH"]}):
            if source is None:
                yield f"{program.name} does not find {name}"
            elif not OF_THE_MACHINE.match(name) and not source.resolve().is_relative_to(folder):
                yield f"{program.name} takes {name} from {source}"


def check_running(folder):
    """The daemon starts, mkctl reaches it, both from a path that nothing was built or installed for."""
    run_folder = folder.parent / "run"
    run_folder.mkdir()
    config = run_folder / "mkerneld.toml"
    config.write_text(f'[node]\nname = "bundle"\nruntime_dir = "{run_folder}"\n[peers]\nlisten = "127.0.0.1:0"\n')
    environment = {"PATH": os.environ["PATH"]}
    daemon = subprocess.Popen([folder / "bin" / "mkerneld", "--config", config], env=environment)
    try:
        end = time.monotonic() + PATIENCE
        while True:
            status = subprocess.run([folder / "bin" / "mkctl", "--socket", run_folder / "control.sock", "status"],
                                    env=environment, capture_output=True, text=True, timeout=PATIENCE)
            if status.returncode == 0:
                break
            if daemon.poll() is not None or time.monotonic() > end:
                yield f"mkctl status: exit {status.returncode}: {status.stdout}{status.stderr}"
                return
            time.sleep(0.05)
    finally:
        daemon.terminate()
        if daemon.wait(PATIENCE) != 0:
            yield f"mkerneld ended with {daemon.returncode}"


def check(bundle):
    findings = []
    if bundle.stat().st_size > LIMIT:
        findings.append(f"{bundle.stat().st_size} bytes, the limit is {LIMIT}")
    with tempfile.TemporaryDirectory(prefix="mkernel-bundle-check-") as scratch:
        with tarfile.open(bundle) as archive:
            archive.extractall(scratch)
        folder = (pathlib.Path(scratch) / bundle.name.removesuffix(".tar.gz")).resolve()
        for wanted in ("bin/mkerneld", "bin/mkctl", "bin/mkrun", "README.md"):
            if not (folder / wanted).exists():
                findings.append(f"{wanted} is missing")
        findings += check_loading(folder)
        if not findings:
            for tool in ("mkerneld", "mkrun"):
                print(output(folder / "bin" / tool, "--version", env={"PATH": os.environ["PATH"]}).strip())
            findings += check_running(folder)
    print("\n".join(findings) if findings else f"{bundle.name}: complete")
    return 1 if findings else 0


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "make":
        return make(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]).resolve())
    if len(sys.argv) == 3 and sys.argv[1] == "check":
        return check(pathlib.Path(sys.argv[2]).resolve())
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
