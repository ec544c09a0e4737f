"""What a broken or hostile client can say: its session ends with a precise error, a second session goes on verified."""
import os
import struct
import tempfile
import unittest

import raw_client as raw
from cluster import ClusterTest, PATIENCE, wait_until


class BadMessages(ClusterTest):
    def setUp(self):
        super().setUp()
        (self.node,) = self.start_nodes(1)

    def client(self, hello=True):
        client = raw.RawClient(self.node.socket)
        self.addCleanup(client.close)
        if hello:
            self.assertEqual(client.hello()[1], 0)
        return client

    def assert_refused(self, client, *texts):
        """The daemon says why, in a reply or an event, and closes; then a new session works."""
        answer = client.receive()
        self.assertIsNotNone(answer, "closed without a word")
        self.assertNotEqual(answer[1], 0)
        for expected in texts:
            self.assertIn(expected, answer[2])
        if answer[0] != raw.SESSION_ENDED:
            client.receive()
        self.client().close()

    def test_wrong_version_names_both(self):
        client = self.client(hello=False)
        client.send(raw.HELLO, struct.pack("<64siI8x", b"old", -1, 1), version=77)
        self.assert_refused(client, "77", str(raw.VERSION))

    def test_wrong_magic(self):
        client = self.client(hello=False)
        client.send(raw.HELLO, bytes(80), magic=0x12345678)
        self.assert_refused(client, "magic")

    def test_unknown_message(self):
        client = self.client()
        client.send(55, bytes(16))
        self.assert_refused(client, "55")

    def test_truncated_message(self):
        client = self.client()
        client.send(raw.JOIN, bytes(20))
        self.assert_refused(client, "bytes")

    def test_tiny_packet(self):
        client = self.client()
        client.socket.send(b"\1\2\3")
        self.assert_refused(client, "3")

    def test_message_before_hello(self):
        client = self.client(hello=False)
        client.send(raw.LEAVE, bytes(16))
        self.assert_refused(client, "ello")

    def test_too_many_fds(self):
        fds_before = self.node.resources()[0]
        client = self.client()
        fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(raw.MAX_RINGS + 2)]
        client.send(raw.LEAVE, bytes(16), fds)
        for fd in fds:
            os.close(fd)
        self.assert_refused(client, "fd")
        client.close()
        wait_until(lambda: self.node.resources()[0] <= fds_before, "the daemon closed every fd it was sent")

    def test_regions(self):
        client = self.client()
        self.assertEqual(client.join("regions")[1], 0)
        good = raw.memfd(8192)
        with tempfile.TemporaryFile() as file:
            file.truncate(8192)
            cases = [
                (good, 0, 8193, "8192"),             # longer than its fd
                (good, 4096, 8192, "8192"),          # ends outside
                (good, 1 << 62, 4096, "8192"),       # begins outside
                (good, 100, 4096, "page"),           # not on a page
                (good, 0, 0, "0"),                   # empty
                (file.fileno(), 0, 4096, "memfd"),   # a regular file
                (os.eventfd(0), 0, 4096, "memfd"),   # no memory at all
                (raw.memfd(8192, sealed=False), 0, 4096, "seal"),
            ]
            for fd, offset, size, expected in cases:
                with self.subTest(offset=offset, size=size, expected=expected):
                    _, code, why, _, _ = client.register(0, fd, offset, size)
                    self.assertNotEqual(code, 0)
                    self.assertIn(expected, why)
        self.assertEqual(client.register(0, good, 0, 8192)[1], 0)
        _, code, why, _, _ = client.register(0, good, 0, 8192)  # the index is taken
        self.assertNotEqual(code, 0)
        _, code, why, _, _ = client.register(8, good, 0, 8192)  # outside the region map
        self.assertIn("8", why)

    def test_signal_to_itself_arrives(self):
        """The raw client's own ring works, so the refusals below mean something."""
        client = self.client()
        self.assertEqual(client.join("signals")[1], 0)
        for _ in range(3):
            client.write_slot(client.first_channel, 0)
        wait_until(lambda: client.arrivals() == 3, "three arrivals")


class HostileSlots(ClusterTest):
    def test_foreign_slots_end_one_session_and_harm_no_other(self):
        node0, _ = self.start_nodes(2)
        # A second tenant on the same daemons, verified element by element while the first misbehaves.
        tenant = [self.bench(r, 4, self.daemons[r // 2], "ag_gemm", "--m", "200", "--n", "64", "--k", "64",
                             "--iterations", "150", group="tenant") for r in range(4)]
        wait_until(lambda: any(c["puts_total"] for c in node0.show("channels")), "the tenant's puts")
        good = {"length": 64, "local": (0, 0), "remote": (0, 4096)}
        cases = {
            "channel": dict(good, channel=4000),
            "opcode": dict(good, opcode=9),
            "peer": dict(good, peer=7),
            "region 5": dict(good, local=(5, 0)),
            "region 6": dict(good, remote=(6, 0)),
            "8192": dict(good, length=8192, local=(0, 4096)),
            "281474976710655": dict(good, remote=(0, (1 << 48) - 1)),
            "reserved": dict(good, reserved=1),
        }
        for expected, slot in cases.items():
            with self.subTest(expected=expected):
                client = raw.RawClient(node0.socket)
                self.addCleanup(client.close)
                client.hello()
                client.join("hostile")
                client.register(0, raw.memfd(8192), 0, 8192)
                client.write_slot(**{"channel": client.first_channel, **slot})
                why = client.end_of_session()
                self.assertIn(expected, why)
                # The same words are in the shared segment, for those who wait there.
                self.assertIn(why[:100], raw.text(client.session[raw.FAILURE_OFFSET + 72:][:440]))
        for process in tenant:
            status, out, err = self.finish(process, 4 * PATIENCE)
            self.assertEqual(status, 0, out + err)


if __name__ == "__main__":
    unittest.main()
