"""mkerneld against its surroundings: who reads its log stops, limits are tiny, standard fds closed, files taken away or replaced
by what hangs, peers taken off the list."""
import fcntl
import os
import resource
import signal
import socket
import subprocess
import threading
import unittest

import raw_client as raw
from cluster import BIN, ClusterTest, Daemon, PATIENCE, wait_until

KIB = 1024
# A user of no other process: RLIMIT_NPROC counts all of a user's.
NOBODY_ELSE = 61234
# Each reload logs some 300 KiB about them: pipe and queue are full after a few.
MANY_MISTAKES = "\n[log]\n" + "".join(f"key{i} = {i}\n" for i in range(4000))
REFUSED_BY_NAME = "is no longer in peers.list of node node0"


# A sanitizer's own last words wait for the reader that has stopped.
@unittest.skipIf("MKERNEL_SANITIZED" in os.environ, "a sanitizer writes to standard error when the process ends")
class LogReader(ClusterTest):
    def start_with_pipe(self):
        """A daemon whose standard error is a pipe of one page, and the end of it that nobody reads yet."""
        node = Daemon(self.folder, "node0", 0, [])
        self.daemons.append(node)
        reader, writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4 * KIB)
        node.process = subprocess.Popen([BIN / "mkerneld", "--config", node.config], stderr=writer)
        os.close(writer)
        node.wait_for_answer()
        return node, reader

    def test_a_reader_that_stops_stops_nobody(self):
        node, reader = self.start_with_pipe()
        good = node.config.read_text()
        node.config.write_text(good + MANY_MISTAKES)
        status = lambda: node.show("status")

        def dropped():
            node.process.send_signal(signal.SIGHUP)
            return int(status()["log_lines_dropped_total"])

        wait_until(dropped, "lines of the log are dropped")
        client = raw.RawClient(node.socket)
        self.assertEqual(client.hello()[1], 0)
        self.assertEqual(client.join("alone")[1], 0)
        client.close()

        # Read again, the log says how much is missing, and goes on.
        text, seen = bytearray(), threading.Event()

        def read():
            while chunk := os.read(reader, 65536):
                text.extend(chunk)
                if b"lines are missing here" in text:
                    seen.set()

        thread = threading.Thread(target=read)
        thread.start()
        self.assertTrue(seen.wait(PATIENCE), "the gap in the log is named")
        self.assertEqual(node.stop(), 0)
        thread.join(PATIENCE)
        self.assertIn(b"stopped", text[-200:])  # the last line is written before the end
        os.close(reader)

    def test_a_stuck_reader_does_not_keep_the_daemon_from_ending(self):
        node, reader = self.start_with_pipe()
        node.config.write_text(MANY_MISTAKES)
        for _ in range(2):
            node.mkctl("reload", check=False)
        self.assertEqual(node.stop(), 0)
        os.close(reader)


class Limits(ClusterTest):
    def test_signals_that_ask_for_nothing_end_nothing(self):
        (node,) = self.start_nodes(1)
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGPOLL, signal.SIGPWR,
                       signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTTOU, signal.SIGRTMIN, signal.SIGRTMIN + 5, signal.SIGRTMAX):
            node.process.send_signal(number)
            # Answered after the signal was delivered: signals come before the next system call returns.
            self.assertEqual(node.mkctl("status").returncode, 0, f"after signal {number}")
        node.process.send_signal(signal.SIGXCPU)
        self.assertEqual(node.process.wait(PATIENCE), 0)  # stopped in order

    def test_a_session_above_the_file_size_limit_is_refused_and_the_daemon_goes_on(self):
        node = Daemon(self.folder, "node0", 0, [], prefix=("prlimit", f"--fsize={64 * KIB}:{64 * KIB}"))
        self.daemons.append(node)
        node.start()
        for _ in range(2):
            client = raw.RawClient(node.socket)
            answer = client.hello()
            self.assertNotEqual(answer[1], 0)
            self.assertIn("File too large", answer[2])
            self.assertIn("RLIMIT_FSIZE", answer[2])
            client.close()
        self.assertEqual(node.mkctl("status").returncode, 0)

    def test_a_tool_above_the_file_size_limit_says_so(self):
        (node,) = self.start_nodes(1)
        with open(self.folder / "out", "wb") as out:
            run = subprocess.run(["prlimit", "--fsize=1:1", BIN / "mkctl", "--socket", node.control, "config"], stdout=out,
                                 stderr=subprocess.PIPE, timeout=PATIENCE)
        self.assertGreater(run.returncode, 0, "an error, not a signal")

    def start_must_fail(self, daemon, prefix, *texts, **options):
        run = subprocess.run([*prefix, BIN / "mkerneld", "--config", daemon.config], capture_output=True, text=True, timeout=PATIENCE,
                             **options)
        self.assertEqual(run.returncode, 1, run.stderr)
        for text in ("mkerneld cannot start: RESOURCE_EXHAUSTED: ", *texts):
            self.assertIn(text, run.stderr)

    def test_limits_too_small_for_a_start_are_named_with_what_is_needed(self):
        node = Daemon(self.folder, "node0", 0, [])
        for files in (16, 40, 100):  # from no library to be loaded to a daemon that would serve nobody
            with self.subTest(files=files):
                self.start_must_fail(node, ("prlimit", f"--nofile={files}:{files}"), f"RLIMIT_NOFILE = {files} file descriptors, needed are")
        self.start_must_fail(node, ("prlimit", f"--stack={512 * KIB}:{512 * KIB}"), f"RLIMIT_STACK = {512 * KIB} bytes, needed are")
        memory = ("prlimit", f"--as={400 << 20}:{400 << 20}")
        if subprocess.run([*memory, BIN / "mkerneld", "--version"], stdout=subprocess.DEVNULL, timeout=PATIENCE).returncode != 0:
            self.skipTest("a sanitizer needs more address space than this by itself")
        self.start_must_fail(node, memory, f"RLIMIT_AS = {400 << 20} bytes")

    @unittest.skipUnless(os.getuid() == 0, "only root starts programs of another user")
    def test_a_user_who_may_start_few_threads(self):
        node = Daemon(self.folder, "node0", 0, [])
        for folder in (self.folder, node.folder):
            folder.chmod(0o755)
        os.chown(node.folder, NOBODY_ELSE, NOBODY_ELSE)
        for threads in (4, 12):
            with self.subTest(threads=threads):
                limit = lambda: resource.setrlimit(resource.RLIMIT_NPROC, (threads, threads))
                self.start_must_fail(node, (), "threads needed can be started", f"RLIMIT_NPROC = {threads} counts all threads of user {NOBODY_ELSE}",
                                     user=NOBODY_ELSE, group=NOBODY_ELSE, extra_groups=[], preexec_fn=limit)

    def test_closed_standard_fds_are_not_taken_by_others(self):
        node = Daemon(self.folder, "node0", 0, [])
        self.daemons.append(node)
        node.process = subprocess.Popen(["sh", "-c", 'exec "$0" --config "$1" <&- >&- 2>&-', BIN / "mkerneld", node.config])
        node.wait_for_answer()
        for fd in range(3):
            self.assertEqual(os.readlink(f"/proc/{node.process.pid}/fd/{fd}"), "/dev/null")
        client = raw.RawClient(node.socket)
        self.assertEqual(client.hello()[1], 0)
        client.close()
        run = subprocess.run(["sh", "-c", 'exec "$0" --socket "$1" status <&- >&-', BIN / "mkctl", node.control], capture_output=True, text=True,
                             timeout=PATIENCE)
        self.assertEqual(run.returncode, 1)  # it has not been able to show anything
        self.assertIn("standard output cannot be written", run.stderr)


class Files(ClusterTest):
    def test_a_path_is_no_uri(self):
        for name in ("100%25 of?this#that é", "with space"):
            with self.subTest(name=name):
                node = Daemon(self.folder, name, 0, [], {"node": {"name": "node0"}})
                self.daemons.append(node)
                node.start()
                self.assertEqual({p.name for p in node.folder.iterdir() if p.is_socket()}, {"control.sock", "mkerneld.sock"})
                client = raw.RawClient(node.socket)
                self.assertEqual(client.hello()[1], 0)
                client.close()

    def test_a_file_that_hangs_hangs_no_reload(self):
        (node,) = self.start_nodes(1)
        good = node.config.read_text()
        for make, text in ((os.mkfifo, "it is no regular file"), (lambda path: path.symlink_to("/dev/zero"), "it is no regular file"),
                           (lambda path: path.write_bytes(b"#" * (5 << 20)), "larger than")):
            node.config.unlink()
            make(node.config)
            run = node.mkctl("reload", check=False)
            self.assertEqual(run.returncode, 1)
            self.assertIn(str(node.config), run.stderr)
            self.assertIn(text, run.stderr)
            node.process.send_signal(signal.SIGHUP)
            self.assertEqual(node.mkctl("status").returncode, 0)
        node.config.unlink()
        node.config.write_text(good + '[log]\nlevel = "debug"\n')
        self.assertIn("log.level", node.mkctl("reload").stdout)

    def test_a_configuration_that_hangs_ends_a_start(self):
        fifo = self.folder / "config"
        os.mkfifo(fifo)
        run = subprocess.run([BIN / "mkerneld", "--config", fifo], capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(run.returncode, 2)
        self.assertIn("it is no regular file", run.stderr)

    def test_removed_socket_files_are_made_again_and_sessions_go_on(self):
        (node,) = self.start_nodes(1)
        client = raw.RawClient(node.socket)
        self.assertEqual(client.hello()[1], 0)
        node.socket.unlink()
        node.control.unlink()
        wait_until(lambda: node.socket.exists() and node.control.exists(), "the files are made again")
        self.assertEqual(node.mkctl("status").returncode, 0)
        late = raw.RawClient(node.socket)
        self.assertEqual(late.hello()[1], 0)
        self.assertEqual(client.join("alone")[1], 0)  # the session of before lives
        for session in client, late:
            session.close()
        wait_until(lambda: "was made again" in node.tail(), "the log says so")

    def test_a_file_of_another_daemon_is_left_alone(self):
        (node,) = self.start_nodes(1)
        others = []
        for path, kind in (node.socket, socket.SOCK_SEQPACKET), (node.control, socket.SOCK_STREAM):
            path.rename(path.with_suffix(".away"))
            other = socket.socket(socket.AF_UNIX, kind)
            self.addCleanup(other.close)
            other.bind(str(path))
            other.listen()
            others.append((path, path.stat().st_ino))
        wait_until(lambda: node.tail().count("another file has taken the place") == 2, "the log names both")
        self.assertEqual(node.stop(), 0)
        for path, inode in others:
            self.assertEqual(path.stat().st_ino, inode)


class Operators(ClusterTest):
    def test_a_peer_taken_off_the_list_is_let_go(self):
        nodes = self.start_nodes(2)
        ranks = [raw.RawClient(node.socket) for node in nodes]
        for rank in ranks:
            self.addCleanup(rank.close)
            self.assertEqual(rank.hello()[1], 0)
        for number, rank in enumerate(ranks):
            rank.start_join("pair", 2, number)
        for rank in ranks:
            self.assertEqual(rank.finish_join()[1], 0)
        nodes[0].sections["peers"]["list"] = []
        nodes[0].write_config(nodes[0].sections)
        nodes[0].mkctl("reload")
        failure = lambda node: node.mkctl("groups", "-o", "json").stdout
        wait_until(lambda: REFUSED_BY_NAME in failure(nodes[0]), "the group fails and says why")
        wait_until(lambda: "node0" in failure(nodes[1]) and '"failure": ""' not in failure(nodes[1]), "on the other node, too")
        self.assertEqual([p for p in nodes[0].show("peers") if p["state"] == "alive"], [])

    def test_a_user_who_breaks_the_protocol_fills_no_disk(self):
        (node,) = self.start_nodes(1)
        status = lambda: node.show("status")
        made = 0

        def flood():
            nonlocal made
            for _ in range(200):
                client = raw.RawClient(node.socket)
                client.send(55, bytes(16), magic=1)
                client.close()
                made += 1
            return int(status()["log_lines_left_out_total"])

        left_out = wait_until(flood, "lines are left out")
        wait_until(lambda: status()["sessions"] in (0, "0"), "all are gone")
        # Every session is accounted for: by its line, or by the number of those that were left out.
        lines = lambda: node.log.read_text().count(" ends: ")
        total = lambda: int(status()["log_lines_left_out_total"])
        wait_until(lambda: lines() + total() == made, "lines and those left out are all that there were")
        self.assertGreaterEqual(total(), left_out)
        wait_until(lambda: "more lines about the sessions of this user were left out" in node.log.read_text(), "the count is in the log")


if __name__ == "__main__":
    unittest.main()
