"""Emulated machines: QEMU without KVM, two rails with a soft-RoCE device each, a shell over TCP."""
import contextlib
import json
import pathlib
import shlex
import socket
import subprocess
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
from cluster import PATIENCE, free_ports, wait_until  # noqa: E402

NETWORKS = ("control", "rail0", "rail1")


class Command:
    """A command that runs in a machine."""

    def __init__(self, port, text):
        self.text, self.received = text, b""
        self.connection = socket.create_connection(("127.0.0.1", port), timeout=10)
        # The shell reads up to the closing brace before it starts anything: the command has no part in its input.
        self.connection.sendall(f"{{ {text}\n}} </dev/null 2>&1; echo \"exit $?\"; exit\n".encode())

    def runs(self):
        """Takes what it has said so far."""
        self.connection.settimeout(0)
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while piece := self.connection.recv(65536):
                self.received += piece
            return False
        return True

    def finish(self, seconds):
        """(exit status, output); the status is None when the machine went away. TimeoutError when it takes longer."""
        end = time.monotonic() + seconds
        while True:
            self.connection.settimeout(max(end - time.monotonic(), 0.01))
            try:
                piece = self.connection.recv(65536)
            except TimeoutError:
                raise TimeoutError(f"not within {seconds:.0f} s: {self.text}\n{self.received.decode(errors='replace')}") from None
            except ConnectionError:
                piece = b""
            if not piece:
                break
            self.received += piece
        self.connection.close()
        output, _, status = self.received.decode(errors="replace").rpartition("exit ")
        return (int(status), output) if status.strip().isdigit() else (None, output + status)


class Machine:
    """Number 1 or 2. The two are joined by three networks: control, rail0, rail1."""

    def __init__(self, number, image, folder):
        self.number, self.image, self.folder = number, image, folder
        self.name = f"machine{number}"
        self.console = folder / f"{self.name}.console"
        self.process = None

    def address(self, network):
        return f"10.77.{9 if network == 'control' else network[-1]}.{self.number}"

    def boot(self):
        """Starts it; wait_for_shell() says when it is there."""
        kernel, initramfs = self.image
        (self.port,) = free_ports(1)
        monitor = self.folder / f"{self.name}.monitor"
        command = [
            "setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64",
            *("-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "1G"),
            *("-nodefaults", "-nographic", "-no-reboot", "-serial", "stdio"),
            *("-kernel", kernel, "-initrd", initramfs),
            # On a busy host the timer that the kernel looks for at boot may not come in time.
            *("-append", f"console=ttyS0 quiet panic=-1 no_timer_check machine={self.number}"),
            *("-qmp", f"unix:{monitor},server=on,wait=off"),
            *("-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap"),
            *("-netdev", f"user,id=host,restrict=on,hostfwd=tcp:127.0.0.1:{self.port}-10.0.2.15:7000"),
            *("-device", "virtio-net-pci,netdev=host,romfile=")]
        for i, network in enumerate(NETWORKS):
            # Sockets of the folder, which is where QEMU runs: the length of their names is limited.
            ends = [f"{network}.{number}" for number in (self.number, 3 - self.number)]
            (self.folder / ends[0]).unlink(missing_ok=True)
            # Without status the machine does not see what set_link() does: packets vanish, as behind a dead switch.
            command += ["-netdev", f"dgram,id={network},local.type=unix,local.path={ends[0]},remote.type=unix,remote.path={ends[1]}",
                        "-device", f"virtio-net-pci,netdev={network},status=off,romfile=,mac=52:54:00:77:{i:02}:{self.number:02}"]
        with self.console.open("wb") as console:
            self.process = subprocess.Popen([str(c) for c in command], cwd=self.folder, stdin=subprocess.DEVNULL,
                                            stdout=console, stderr=subprocess.STDOUT)
        self.monitor_path = monitor

    def runs(self):
        return self.process is not None and self.process.poll() is None

    def wait_for_shell(self):
        def answers():
            if not self.runs():
                raise AssertionError(f"{self.name} ended while booting:\n{self.console_text()}")
            try:
                return Command(self.port, "true").finish(10)[0] == 0
            except OSError:
                return False

        wait_until(answers, f"{self.name} has booted, see {self.console}", 3 * PATIENCE)

    def console_text(self):
        return self.console.read_text(errors="replace")[-4000:]

    def spawn(self, *command, **environment):
        """Starts a command, which is one text for the shell, or an argument each."""
        text = command[0] if len(command) == 1 else shlex.join(str(c) for c in command)
        settings = "".join(f"export {name}={shlex.quote(str(value))}; " for name, value in environment.items())
        return Command(self.port, settings + text)

    def run(self, *command, seconds=PATIENCE, check=True, **environment):
        """The output of a command, which must succeed; (status, output) without `check`."""
        status, output = self.spawn(*command, **environment).finish(seconds)
        if not check:
            return status, output
        if status != 0:
            raise AssertionError(f"{self.name}: {command}: exit {status}\n{output}")
        return output

    def set_link(self, network, up):
        """The cable of a network: without it packets vanish in both directions, and no device says so."""
        with socket.socket(socket.AF_UNIX) as monitor:
            monitor.settimeout(30)
            monitor.connect(str(self.monitor_path))
            stream = monitor.makefile("rw")
            stream.readline()  # the greeting
            for request in ({"execute": "qmp_capabilities"},
                            {"execute": "set_link", "arguments": {"name": network, "up": up}}):
                stream.write(json.dumps(request) + "\n")
                stream.flush()
                answer = json.loads(stream.readline())
                if "return" not in answer:
                    raise AssertionError(f"{self.name}: {request}: {answer}")

    def kill(self):
        """At once, as when the power fails."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
