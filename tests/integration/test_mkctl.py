"""mkctl where no daemon is, and its default tables during traffic."""
import contextlib
import os
import pathlib
import pwd
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import unittest

from cluster import BIN, PATIENCE, ClusterTest, wait_until

NOBODY = pwd.getpwnam("nobody")


class StandardOutput(unittest.TestCase):
    """What could not be printed is a failure, and standard error says so."""

    def test_a_full_disk_and_a_closed_descriptor(self):
        for command in (["mkctl", "--help"], ["mkrun", "--version"], ["mkbench", "--help"], ["mkerneld", "--version"],
                        ["mkerneld", "--check"]):
            if not (BIN / command[0]).exists():  # mkbench, without a BLAS
                continue
            for shell in ('"$@" >/dev/full', '"$@" >&-'):
                with self.subTest(command=command, shell=shell):
                    run = subprocess.run(["sh", "-c", shell, "sh", BIN / command[0], *command[1:]], capture_output=True, text=True,
                                         timeout=PATIENCE)
                    self.assertEqual(run.returncode, 1, run.stderr)
                    self.assertIn(f"{command[0]}: standard output cannot be written", run.stderr)


class NoDaemonThere(unittest.TestCase):
    """Exit status 3, within mkctl's two seconds, with what was found at the socket."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="mkernel-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.folder.chmod(0o755)

    def mkctl(self, path, *texts, user=None):
        command = [BIN / "mkctl", "--socket", path, "sessions"]
        identity = {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        start = time.monotonic()
        run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, **identity)
        taken = time.monotonic() - start
        self.assertEqual(run.returncode, 3, run.stderr)
        for text in (str(path), *texts):
            self.assertIn(text, run.stderr)
        # Two seconds and a start of the program; ten is what it must not be, on a machine however busy.
        self.assertLess(taken, 8)
        return run.stderr

    def listener(self, kind=socket.SOCK_STREAM, name="stranger.sock"):
        listening = socket.socket(socket.AF_UNIX, kind)
        self.addCleanup(listening.close)
        listening.bind(str(self.folder / name))
        listening.listen(8)
        return listening

    def test_nothing_there(self):
        self.mkctl(self.folder / "none.sock", "there is no such socket")

    def test_a_file_and_a_folder(self):
        file = self.folder / "file"
        file.write_text("kept")
        self.mkctl(file, "a regular file, not a socket")
        self.mkctl(self.folder, "a folder, not a socket")
        self.assertEqual(file.read_text(), "kept")

    def test_a_path_too_long_for_a_socket(self):
        self.mkctl("/tmp/" + "x" * 120, "125 bytes", "107")

    def test_nobody_listens_any_more(self):
        left = socket.socket(socket.AF_UNIX)
        left.bind(str(self.folder / "left.sock"))
        left.close()
        self.mkctl(self.folder / "left.sock", "nobody listens there any more")

    def test_a_socket_of_another_kind(self):
        self.listener(socket.SOCK_SEQPACKET)
        self.mkctl(self.folder / "stranger.sock", "a socket of another kind", "control.socket")

    def test_somebody_who_says_nothing_is_named(self):
        self.listener()
        self.mkctl(self.folder / "stranger.sock", f"process {os.getpid()} (python", "listens there", "did not answer")

    def test_somebody_who_answers_something_else(self):
        listening = self.listener()

        def answer():
            while True:
                try:
                    stranger, _ = listening.accept()
                except OSError:
                    return
                with stranger, contextlib.suppress(OSError):  # mkctl may have hung up
                    stranger.send(b"HTTP/1.1 400 Bad Request\r\n\r\n", socket.MSG_NOSIGNAL)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            self.mkctl(self.folder / "stranger.sock", f"process {os.getpid()}", "did not answer as mkerneld does")
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE)

    @unittest.skipUnless(os.geteuid() == 0, "another user can only be tried by root")
    def test_permission_denied_says_whose_it_is_and_who_asks(self):
        self.listener()
        path = self.folder / "stranger.sock"
        os.chown(path, 0, 0)
        path.chmod(0o660)
        self.mkctl(path, "permission denied", "user root, group root, mode 0660", "this is user nobody", user=NOBODY)
        self.folder.chmod(0o700)
        self.mkctl(path, "permission denied", f"the folder {self.folder} belongs to user root", user=NOBODY)


class StoppedDaemon(ClusterTest):
    def test_the_patience_is_an_option_and_a_stopped_daemon_is_named(self):
        (node,) = self.start_nodes(1)
        node.pause()
        try:
            run = subprocess.run([BIN / "mkctl", "--socket", node.control, "--timeout", "0.3", "status"], capture_output=True,
                                 text=True, timeout=PATIENCE)
        finally:
            node.go_on()
        self.assertEqual(run.returncode, 3)
        self.assertIn(f"process {node.process.pid} (mkerneld)", run.stderr)
        self.assertIn("within 0.3 s", run.stderr)


class DefaultTables(ClusterTest):
    def test_they_fit_and_show_who_moves_what(self):
        node0, _ = self.start_nodes(2)
        ranks = [self.bench(r, 4, self.daemons[r // 2], "ag_gemm", "--m", "200", "--n", "64", "--k", "64", "--iterations",
                            "100000", group="a-group-with-a-name-of-some-length") for r in range(4)]

        def rows(table):
            lines = [line for line in node0.mkctl(table).stdout.splitlines() if not line.startswith("#")]
            for line in lines:
                self.assertLessEqual(len(line), 120, line)
            return lines

        def moving(table, state):
            return [line for line in rows(table) if line.startswith(state)]

        active = wait_until(lambda: len(moving("sessions", "active")) == 2 and moving("sessions", "active"), "two active sessions")
        for line in active:
            self.assertIn(pwd.getpwuid(os.geteuid()).pw_name, line)
            self.assertIn("mkbench", line)
        wait_until(lambda: any("iB" in line for line in moving("sessions", "active")), "the rate of a session")
        wait_until(lambda: any("a-group-with-a" in line and "iB" in line for line in moving("channels", "moving")), "a channel that moves")
        wait_until(lambda: moving("peers", "alive"), "a peer that is alive")
        # mkbench launches one operation after the other, and has nothing to fall back to.
        launches = wait_until(lambda: node0.show("sessions")[0]["launches_total"], "a launch")
        wait_until(lambda: node0.show("sessions")[0]["launches_total"] > launches, "more launches")
        self.assertEqual([s["fallbacks_total"] for s in node0.show("sessions")], [0, 0])
        heading = next(line for line in rows("sessions") if line.startswith("STATE"))
        self.assertEqual(heading.split()[-2:], ["LAUNCHES", "FALLBACKS"])
        # The same session, as JSON: everything, in numbers.
        session = node0.show("sessions")[0]
        for key in ("uid", "idle_seconds", "bytes_per_second", "stall_nanoseconds_total", "requests_total"):
            self.assertIn(key, session)
        self.assertIn("STALL_NANOSECONDS", node0.mkctl("sessions", "-o", "wide").stdout)
        for rank in ranks:  # they are not meant to end by themselves
            rank.kill()
        wait_until(lambda: not node0.show("sessions"), "the sessions are gone")


if __name__ == "__main__":
    unittest.main()
