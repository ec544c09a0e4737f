"""Memory cgroups (version 1 or 2) for the duration of one step."""
import contextlib
import os
import pathlib

import campaign

ROOT = pathlib.Path("/sys/fs/cgroup")


def _base():
    """(folder under which a group can be made, name of the limit's file), or Skip."""
    if (ROOT / "memory" / "memory.limit_in_bytes").exists():
        return ROOT / "memory", "memory.limit_in_bytes"
    if "memory" in (ROOT / "cgroup.subtree_control").read_text().split() if (ROOT / "cgroup.subtree_control").exists() else False:
        return ROOT, "memory.max"
    raise campaign.Skip("no memory cgroup: neither version 1 nor a version 2 whose root hands out the memory controller")


def _own(pid, base):
    """The group that a process is in now."""
    for line in pathlib.Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if ("memory" in controllers.split(",")) if base.name == "memory" else controllers == "":
            return base / path.lstrip("/")
    return base


@contextlib.contextmanager
def memory_limit(pid, limit):
    """The process may charge `limit` bytes from now on; more, and the kernel ends it."""
    base, file = _base()
    group, before = base / f"mkernel-chaos-{os.getpid()}", _own(pid, base)
    try:
        group.mkdir(exist_ok=True)
        (group / file).write_text(str(limit))
        (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        raise campaign.Skip(f"no memory cgroup can be made: {error}") from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # it is gone
            (before / "cgroup.procs").write_text(str(pid))
        with contextlib.suppress(OSError):
            group.rmdir()
