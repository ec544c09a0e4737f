"""What the emulated machines boot: Debian's kernel, and a first file system with its modules and busybox."""
import pathlib
import re
import shutil
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
PROGRAMS = {  # and the packages that bring them
    "qemu-system-x86_64": "qemu-system-x86", "busybox": "busybox-static", "cpio": "cpio", "modprobe": "kmod",
    "rdma": "iproute2", "apt-get": "apt", "dpkg-deb": "dpkg", "setpriv": "util-linux"}
# rdma_rxe needs the crc32 hash, which its own list of dependencies does not have.
MODULES = ("virtio_pci", "virtio_net", "9p", "9pnet_virtio", "crc32_generic", "rdma_rxe", "ib_uverbs")


class Unavailable(Exception):
    """Why there can be no emulated machine here."""


def output_of(*command, cwd=None):
    try:
        run = subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired as late:
        raise Unavailable(str(late)) from None
    if run.returncode != 0:
        raise Unavailable(f"{' '.join(map(str, command))}: {run.stderr.strip() or run.returncode}")
    return run.stdout


def fetch_kernel(folder):
    """Unpacks the distribution's current kernel package, once."""
    if (folder / "complete").exists():
        return
    packages = re.findall(r"Depends: (linux-image-\d\S+)", output_of("apt-cache", "depends", "linux-image-amd64"))
    if not packages:
        raise Unavailable("no package linux-image-amd64: the machines run Debian's kernel")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    output_of("apt-get", "download", packages[0], cwd=folder)
    (package,) = folder.glob("*.deb")
    output_of("dpkg-deb", "-x", package, folder)
    package.unlink()
    output_of("depmod", "-b", folder, version_of(folder))
    (folder / "complete").touch()


def version_of(kernel):
    (modules,) = (kernel / "lib/modules").iterdir()
    return modules.name


def modules_of(kernel):
    """Files of the modules, each behind those that it needs."""
    files = {}
    for module in MODULES:
        shown = output_of("modprobe", "-d", kernel, "-S", version_of(kernel), "--show-depends", module)
        files.update(dict.fromkeys(re.findall(r"^insmod (\S+)", shown, re.MULTILINE)))
    return [pathlib.Path(file) for file in files]


def build(folder):
    """(kernel, initramfs) in `folder`, which keeps what was fetched. Raises Unavailable."""
    missing = [package for program, package in PROGRAMS.items() if shutil.which(program) is None]
    if missing:
        raise Unavailable(f"not installed: {' '.join(missing)}")
    version = re.search(r"version (\d+)\.(\d+)", output_of("qemu-system-x86_64", "--version"))
    if tuple(map(int, version.groups())) < (7, 2):
        raise Unavailable(f"QEMU {'.'.join(version.groups())}: the networks need 7.2")
    kernel, root, initramfs = folder / "kernel", folder / "root", folder / "initramfs"
    fetch_kernel(kernel)
    shutil.rmtree(root, ignore_errors=True)
    for name in ("bin", "modules"):
        (root / name).mkdir(parents=True)
    shutil.copy2(HERE / "init", root / "init")
    shutil.copy2(shutil.which("busybox"), root / "bin/busybox")
    for i, module in enumerate(modules_of(kernel)):
        shutil.copy2(module, root / "modules" / f"{i:02}-{module.name}")
    files = "\n".join(str(file.relative_to(root)) for file in sorted(root.rglob("*")))
    with initramfs.open("wb") as out:
        subprocess.run(["cpio", "-o", "-H", "newc", "--quiet"], cwd=root, input=files.encode(), stdout=out, check=True)
    return next((kernel / "boot").glob("vmlinuz-*")), initramfs
