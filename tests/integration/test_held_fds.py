"""Fds whose close() takes as long as their client likes, and fds that he does not read: no other user waits for them, and
the daemon ends in time. Sockets that linger stand for all that hangs: the last close() of one waits for its unsent bytes."""
import array
import contextlib
import os
import signal
import socket
import struct
import subprocess
import time
import unittest

import raw_client as raw
from cluster import BIN, PATIENCE, ClusterTest, Daemon, free_ports, wait_until
from test_users import NOBODY, RESOURCE_EXHAUSTED, as_user

ROOT = os.geteuid() == 0
LINGER_SECONDS = 3600  # longer than any test may take
DRAIN_MS = 500
PACKET_FDS = 253  # what the kernel lets one packet carry


class HeldFds(ClusterTest):
    def setUp(self):
        super().setUp()
        self.far_ends = []
        self.addCleanup(self.let_go)

    def let_go(self):
        """Nothing lingers any more: the far ends reset their connections."""
        while self.far_ends:
            self.far_ends.pop().close()

    def open_node(self, settings=None, prefix=()):
        self.folder.chmod(0o711)
        settings = {"node": {"socket_mode": "0666"}, "limits": {"drain_ms": DRAIN_MS}, **(settings or {})}
        self.node = Daemon(self.folder, "node", free_ports(1)[0], [], settings, prefix)
        self.node.folder.chmod(0o711)
        self.daemons.append(self.node)
        self.node.start()
        return self.node

    def attacker(self, hello=True):
        """Another user where that is possible: what hangs is his alone then."""
        with as_user(NOBODY) if ROOT else contextlib.nullcontext():
            client = raw.RawClient(self.node.socket)
        self.addCleanup(client.close)
        if hello:
            self.assertEqual(client.hello()[1], 0)
        return client

    def bystander(self):
        client = raw.RawClient(self.node.socket, timeout=PATIENCE)
        self.addCleanup(client.close)
        self.assertEqual(client.hello()[1], 0)
        self.assertEqual(client.join("bystander")[1], 0)
        return client

    def lingering(self, count=1):
        """Fds of TCP sockets with bytes that nobody takes."""
        fds = []
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            listener.bind(("127.0.0.1", 0))
            listener.listen(count)
            for _ in range(count):
                near = socket.socket()
                near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
                near.connect(listener.getsockname())
                far, _ = listener.accept()
                far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.far_ends.append(far)
                near.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    while near.send(bytes(1 << 16)):
                        pass
                near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER_SECONDS))
                fds.append(near.detach())
        return fds

    @contextlib.contextmanager
    def last_references(self, fds):
        """What is sent within is unread until the sender has closed the fds, so that the daemon's are the last. To stop the daemon
        ends a close() of it that lingers."""
        self.node.pause()
        try:
            yield fds
        finally:
            for fd in fds:
                # Not the last reference, so close() does not wait; nor would it here, where nothing lingers.
                os.close(fd)
            self.node.go_on()

    def assert_goes_on(self, client):
        """Requests, regions and connections of another user are answered."""
        memory = raw.memfd(1 << 16)
        for _ in range(3):
            self.assertEqual(client.register(7, memory, 0, 1 << 16)[1], 0)
            self.assertEqual(client.ask(raw.UNREGISTER, struct.pack("<II8x", client.group, 7))[1], 0)
        os.close(memory)
        second = raw.RawClient(self.node.socket, timeout=PATIENCE)
        self.assertEqual(second.hello()[1], 0)
        second.close()
        self.assertEqual(self.node.show("status")["healthy"], True)

    def assert_stops_in_time(self):
        begin = time.monotonic()
        self.assertEqual(self.node.stop(), 0)
        # Two seconds beyond limits.drain_ms are meant; a busy machine may take longer, what lingers takes an hour.
        self.assertLess(time.monotonic() - begin, PATIENCE / 2)

    def test_a_packet_of_lingering_sockets_stops_nobody(self):
        # The kernel closed what had no room in the control thread's buffer on that thread: it stood for an hour.
        self.open_node()
        other, attacker = self.bystander(), self.attacker()
        with self.last_references(self.lingering(60)) as fds:
            attacker.send(raw.LEAVE, bytes(16), fds)
        self.assert_goes_on(other)
        self.assertIn("packet with more than", attacker.end_of_session())
        # Memory of others comes back, and fds that do not linger are closed.
        level = self.node.resources()
        memory = raw.memfd(1 << 20)
        self.assertEqual(other.register(0, memory, 0, 1 << 20)[1], 0)
        os.close(memory)
        other.close()
        wait_until(lambda: self.node.resources()[2] < level[2], f"the bystander's mappings are gone: {self.node.resources()}")
        self.assert_stops_in_time()

    def test_lingering_sockets_as_regions_stop_nobody(self):
        # One thread opened the regions of all users, and one freed them.
        self.open_node()
        other, attacker = self.bystander(), self.attacker()
        self.assertEqual(attacker.join("attack")[1], 0)
        with self.last_references(self.lingering(8)) as fds:
            for index, fd in enumerate(fds):
                attacker.send(raw.REGISTER, struct.pack("<IIIIQQ544x", attacker.group, index, 1, 0, 0, 4096), [fd])
        self.assert_goes_on(other)
        self.assert_goes_on(other)
        self.let_go()
        for _ in range(8):
            self.assertIn("not a memfd", attacker.receive()[2])
        self.assert_stops_in_time()

    def test_connections_that_bring_lingering_sockets_stop_nobody(self):
        # Of sessions that are refused, that end with packets unread, and that nobody has accepted when the daemon stops.
        self.open_node({"users.default": {"max_connections": 3}})
        other = self.bystander()
        for _ in range(2):
            with self.last_references(self.lingering(8)) as fds:
                for fd in fds:
                    client = self.attacker(hello=False)
                    for _ in range(3):  # the first ends the session
                        client.send(raw.LEAVE, bytes(16), [fd])
                    client.close()
            self.assert_goes_on(other)
        with self.last_references(self.lingering(4)) as fds:
            for fd in fds:
                client = self.attacker(hello=False)
                client.send(raw.LEAVE, bytes(16), [fd])
                client.close()
            self.node.process.send_signal(signal.SIGTERM)
        self.assert_stops_in_time()

    @unittest.skipUnless(ROOT, "needs two users")
    def test_a_user_whose_fds_cannot_be_closed_is_refused_by_name(self):
        self.open_node()
        other, waiting = self.bystander(), self.attacker()
        fds_before = self.node.resources()[0]
        devices = [os.open("/dev/null", os.O_RDONLY)] * (PACKET_FDS - 1)
        self.addCleanup(os.close, devices[0])
        clients = [self.attacker() for _ in range(2)]
        with self.last_references(self.lingering(2)) as fds:
            for client, fd in zip(clients, fds):
                client.send(raw.LEAVE, bytes(16), [fd, *devices])
        for client in clients:
            client.end_of_session()
        refused = self.attacker(hello=False).end_of_session()
        self.assertRegex(refused, rf"user {NOBODY} has sent 50\d fds that the daemon could not close yet, at most 256 may wait")
        waiting.send(raw.LEAVE, bytes(16))  # it is not read any more
        self.assertIn("could not close yet", waiting.end_of_session())
        self.assertLess(self.node.resources()[0], fds_before + 2 * PACKET_FDS + 16)
        self.assert_goes_on(other)
        self.let_go()
        wait_until(lambda: NOBODY not in {u["uid"]: u for u in self.node.show("users") if u["fds"]}, "the fds are closed")
        self.assert_goes_on(self.bystander_of(NOBODY))
        self.assert_stops_in_time()

    def bystander_of(self, uid):
        client = self.attacker()
        self.assertEqual(client.join(f"of-{uid}")[1], 0)
        return client

    def test_replies_with_fds_wait_for_who_does_not_read_them(self):
        # Their fds were in flight, which nobody counted, until the kernel took no more of any user.
        self.open_node()
        attacker = self.attacker()
        self.assertEqual(attacker.join("unread")[1], 0)
        memory = raw.memfd(4096)
        self.assertEqual(attacker.register(0, memory, 0, 4096, shared=1)[1], 0)
        asked = 60
        for _ in range(asked):
            attacker.send(raw.MAP, struct.pack("<IIII", attacker.group, 0, 0, 0))
        other = self.bystander()
        self.assert_goes_on(other)
        # What lies there now is all that the daemon has sent.
        self.node.pause()
        answers = 0
        attacker.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.close(attacker.receive()[4].pop())
                answers += 1
        self.assertLess(answers, 10)
        self.node.go_on()
        attacker.socket.settimeout(PATIENCE)
        for _ in range(asked - answers):
            (fd,) = attacker.receive()[4]
            os.close(fd)
        # An ended session counts as long as its client keeps what it was sent.
        held = lambda: {u["uid"]: u for u in self.node.show("users")}.get(NOBODY if ROOT else os.getuid(), {"connections": 0, "fds": 0})
        connections = held()["connections"]
        attacker.send(raw.MAP, struct.pack("<IIII", attacker.group, 0, 0, 0))
        attacker.send(55, bytes(16))
        wait_until(lambda: not [s for s in self.node.show("sessions") if s["client_name"] == "raw client" and s["uid"] == NOBODY] if ROOT
                   else len(self.node.show("sessions")) == 1, "the session ends")
        self.assertEqual(held()["connections"], connections)
        attacker.close()
        wait_until(lambda: held()["connections"] == connections - 1, "the connection is given back")

    @unittest.skipUnless(ROOT, "needs the right to fill the kernel's count of fds in flight")
    def test_too_many_fds_in_flight_refuse_a_request_and_end_no_session(self):
        # "Client is gone" was said of sessions that lived, and ended them.
        self.open_node(prefix=("setpriv", "--bounding-set", "-sys_resource,-sys_admin", "prlimit", "--nofile=900:900"))
        living, second = self.bystander(), raw.RawClient(self.node.socket, timeout=PATIENCE)
        self.addCleanup(second.close)
        memory = raw.memfd(4096)
        self.assertEqual(living.register(0, memory, 0, 4096, shared=1)[1], 0)
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with near, far:
            for _ in range(4):
                near.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [memory] * PACKET_FDS))])
            for kind, body in ((raw.MAP, struct.pack("<IIII", living.group, 0, 0, 0)),
                               (raw.JOIN, struct.pack("<64sIIIII12x32s", b"more", 1, 0, 4, 8, 10000, b""))):
                answer = living.ask(kind, body)
                self.assertEqual(answer[1], RESOURCE_EXHAUSTED, answer[2])
                self.assertIn("too many fds under way", answer[2])
            answer = second.hello()
            self.assertEqual(answer[1], RESOURCE_EXHAUSTED, answer[2])
        self.assertEqual(second.hello()[1], 0)
        self.assertEqual(second.join("second")[1], 0)
        self.assertEqual(living.ask(raw.MAP, struct.pack("<IIII", living.group, 0, 0, 0))[1], 0)
        self.assert_goes_on(living)

    @unittest.skipUnless(ROOT, "needs two users")
    def test_a_refusal_arrives_and_mkrun_says_that_it_is_for_ever(self):
        # Half of them said "Broken pipe", and exit status 3: try again.
        self.open_node({"users.default": {"may_connect": False}, "users.0": {"may_connect": True}})
        (self.folder / "a.npy").write_bytes(npy_of_ones(8, 8))
        (self.folder / "a.npy").chmod(0o644)
        results = self.folder / "results"
        results.mkdir()
        results.chmod(0o777)
        for _ in range(10):
            run = subprocess.run([BIN / "mkrun", "ag_gemm", "--rank", "0", "--world-size", "1", "--group", "g", "--daemon", self.node.socket,
                                  "--a", self.folder / "a.npy", "--b", self.folder / "a.npy", "--out", results / "out.npy"],
                                 capture_output=True, text=True, timeout=PATIENCE, user=NOBODY, group=NOBODY, extra_groups=[])
            self.assertIn("users.default.may_connect = false", run.stderr)
            self.assertEqual(run.returncode, 1, run.stderr)


def npy_of_ones(rows, columns):
    """A matrix of float32 as numpy writes it, without numpy."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {columns}), }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + struct.pack("<f", 1.0) * (rows * columns)


if __name__ == "__main__":
    unittest.main()
