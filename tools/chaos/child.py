"""Processes of a campaign: children made by fork, each under a user of its own, that talk to the campaign over a pipe of JSON
lines. A child ends with the campaign, whatever happens to it."""
import ctypes
import json
import os
import resource
import select
import signal
import socket
import time
import traceback

PATIENCE = 30.0  # seconds that the campaign waits for a word of a child
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class Violation(Exception):
    """Something that the campaign must never see."""


class Channel:
    """One end of the pipe between campaign and child."""

    def __init__(self, end):
        self.end, self.rest = end, b""

    def say(self, **words):
        self.end.sendall(json.dumps(words).encode() + b"\n")

    def hear(self, seconds):
        """The next line as a dict, or None when none came in time. EOFError when the other end is gone."""
        until = time.monotonic() + seconds
        while b"\n" not in self.rest:
            left = max(0.0, until - time.monotonic())
            if not select.select([self.end], [], [], left)[0]:
                return None
            data = self.end.recv(65536)
            if not data:
                raise EOFError
            self.rest += data
        line, self.rest = self.rest.split(b"\n", 1)
        return json.loads(line)


class Child:
    """`function(channel, *arguments)` in a process of its own. `limits`: {resource.RLIMIT_X: value}."""

    def __init__(self, function, *arguments, uid=None, limits=None):
        self.name = function.__name__
        ours, theirs = socket.socketpair()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _run(theirs, parent, function, arguments, uid, limits or {})
        theirs.close()
        self.channel, self.status = Channel(ours), None

    def say(self, **words):
        try:
            self.channel.say(**words)
        except OSError as error:
            raise Violation(f"child {self.name} is gone: {error}{self._last_words()}") from None

    def _last_words(self):
        """What it said before it ended, and how it ended."""
        said = []
        try:
            while (words := self.channel.hear(0.1)) is not None:
                said.append(json.dumps(words))
        except (EOFError, OSError):
            pass
        return f"; it said {', '.join(said) or 'nothing'}, and ended with {self.reap()}"

    def hear(self, seconds=PATIENCE):
        """What the child says next. A child that says nothing, died, or met an error it did not expect is a violation."""
        try:
            words = self.channel.hear(seconds)
        except (EOFError, OSError):
            raise Violation(f"child {self.name} ended ({self.reap()})") from None
        if words is None:
            raise Violation(f"child {self.name} says nothing for {seconds:.0f} s")
        if "failed" in words:
            raise Violation(f"child {self.name}: {words['failed']}")
        return words

    def hear_after(self, command, seconds=PATIENCE):
        self.say(do=command)
        return self.hear(seconds)

    def signal(self, number):
        if self.status is None:
            os.kill(self.pid, number)

    def reap(self, seconds=PATIENCE):
        """Waits for the end; the exit status, negative for a signal."""
        until = time.monotonic() + seconds
        while self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid == self.pid:
                self.status = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > until:
                raise Violation(f"child {self.name} does not end within {seconds:.0f} s")
            else:
                time.sleep(0.002)
        return self.status

    def kill(self):
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            self.reap()
        self.channel.end.close()


def _run(end, parent, function, arguments, uid, limits):
    """Never returns."""
    status = 1
    try:
        keep = end.fileno()
        os.closerange(3, keep)
        os.closerange(keep + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        become(uid, limits)
        if os.getppid() != parent:
            os._exit(1)
        channel = Channel(end)
        try:
            function(channel, *arguments)
            status = 0
        except Exception as error:  # the campaign reports it as its own
            where = traceback.extract_tb(error.__traceback__)[-1]
            channel.say(failed=f"{type(error).__name__}: {error} ({os.path.basename(where.filename)}:{where.lineno})")
    finally:
        os._exit(status)


def become(uid, limits=None):
    """This process becomes that user's (root alone can), with these limits, and dies with its parent."""
    for which, value in (limits or {}).items():
        resource.setrlimit(which, (value, value))
    if uid is not None and os.getuid() == 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # after the change of user, which clears it


def private_network():
    """A network namespace of its own for this process and its children, with nothing in it but loopback. Returns why not,
    or an empty text."""
    clone_newnet = 0x40000000
    if _libc.unshare(clone_newnet) != 0:
        return f"no network namespace: {os.strerror(ctypes.get_errno())}"
    import subprocess
    up = subprocess.run(["ip", "link", "set", "lo", "up"], capture_output=True, text=True, timeout=PATIENCE)
    if up.returncode != 0:
        raise RuntimeError(f"loopback of the network namespace does not come up: {up.stderr}")
    return ""
