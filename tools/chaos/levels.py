"""What a daemon holds, read from /proc: file descriptors, threads, sockets, shared mappings, memory. And the processor time that
a host of virtual machines has taken from this one."""
import dataclasses
import os
import pathlib

MIB = 1 << 20


@dataclasses.dataclass
class Levels:
    fds: int
    threads: int
    sockets: int
    mappings: int
    rss: int          # bytes that are its own; pages of memfds belong to clients and are not counted
    sanitized: bool   # a sanitizer's build: its memory says nothing

    def above(self, before, rss_tolerance, thread_tolerance):
        """What is higher than `before`, as texts."""
        found = [f"{name} {getattr(self, name)}, before {getattr(before, name)}"
                 for name in ("fds", "sockets", "mappings") if getattr(self, name) > getattr(before, name)]
        if self.threads > before.threads + thread_tolerance:
            found.append(f"threads {self.threads}, before {before.threads} (tolerance {thread_tolerance})")
        if self.rss > before.rss + rss_tolerance and not self.sanitized:
            found.append(f"RSS {self.rss / MIB:.1f} MiB, before {before.rss / MIB:.1f} (tolerance {rss_tolerance / MIB:.0f})")
        return found


def of(pid):
    proc = pathlib.Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
    kilobytes = lambda key: int(status[key].split()[0])
    links = []
    for fd in (proc / "fd").iterdir():
        try:
            links.append(str(fd.readlink()))
        except FileNotFoundError:
            pass  # closed meanwhile
    return Levels(len(links), len(list((proc / "task").iterdir())), sum(link.startswith("socket:") for link in links),
                  (proc / "maps").read_text().count("memfd:"), 1024 * (kilobytes("RssAnon") + kilobytes("RssFile")),
                  kilobytes("VmSize") > 1 << 30)


def stolen_ticks(stat=None):
    """Of all processors since the machine started, in ticks of stolen_ns(); 0 where the kernel does not say. `stat`: as /proc/stat."""
    fields = (pathlib.Path("/proc/stat").read_text() if stat is None else stat).splitlines()[0].split()
    return int(fields[8]) if len(fields) > 8 else 0


def stolen_ns(before, after):
    """The most nanoseconds that may have been stolen between two readings of stolen_ticks(). A tick is counted once it is full."""
    return (after - before + 1) * 1_000_000_000 // os.sysconf("SC_CLK_TCK") if after > before else 0


TCP_STATES = {1: "established", 2: "connecting", 4: "closing", 5: "closing", 6: "closing", 8: "other side closed", 10: "listening"}


def protocol_of(fd):
    """The kernel's name of a socket's protocol. One of TCP that is in no table was reset, and has not been closed."""
    try:
        return os.getxattr(fd, "system.sockprotoname").rstrip(b"\0").decode()
    except OSError as error:
        return f"a socket ({error.strerror})"


def sockets_of(pid):
    """What is known of each socket of the process, as texts: ends and state of TCP, the path of others."""
    proc, known = pathlib.Path(f"/proc/{pid}"), {}
    for table in ("tcp", "tcp6"):
        for row in map(str.split, (proc / "net" / table).read_text().splitlines()[1:]):
            ports = [int(end.rsplit(":", 1)[1], 16) for end in row[1:3]]
            known[row[9]] = f"tcp {ports[0]}-{ports[1]} {TCP_STATES.get(int(row[3], 16), row[3])}"
    for row in map(str.split, (proc / "net" / "unix").read_text().splitlines()[1:]):
        known[row[6]] = f"unix {row[7] if len(row) > 7 else '-'}"
    found = []
    for fd in (proc / "fd").iterdir():
        try:
            link = str(fd.readlink())
        except FileNotFoundError:
            continue  # closed meanwhile
        if link.startswith("socket:"):
            inode = link.removeprefix("socket:[").removesuffix("]")
            found.append(known[inode] if inode in known else f"{protocol_of(fd)} in no table")
    return sorted(found)


def listening_ports(pid):
    """TCP ports on which the process listens."""
    proc = pathlib.Path(f"/proc/{pid}")
    inodes = set()
    for fd in (proc / "fd").iterdir():
        try:
            inodes.add(str(fd.readlink()).removeprefix("socket:[").removesuffix("]"))
        except FileNotFoundError:
            pass
    ports = set()
    for table in ("tcp", "tcp6"):
        rows = [line.split() for line in (proc / "net" / table).read_text().splitlines()[1:]]
        ports |= {int(row[1].rsplit(":", 1)[1], 16) for row in rows if row[3] == "0A" and row[9] in inodes}
    return sorted(ports)
