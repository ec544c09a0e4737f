"""Who reaches a daemon's TCP data port without being the peer that its peer link leads to: no session, no certificate, only
sockets. It may not write into a rank's memory, not move a count, not take a put away, not drop the peer's connections, and it
learns nothing."""
import json
import pathlib
import socket
import struct
import threading
import time
import unittest

import raw_client as raw
from cluster import ClusterTest, wait_until

MAGIC = 0x50434B4D
OPEN, HELD, PUT = 1, 2, 3
FRAME_BYTES = {OPEN: 16, HELD: 24, PUT: 32, 4: 464}
WORD, LANES, REGION_BYTES = (1 << 64) - 1, 4, 8192
FACTOR = 0xD6E8FEB86659FD93
MARK = b"written by nobody"


def unspread(x):
    """The inverse of spread() in daemon/dataplane/ports.cc: whoever sees one key of a group knows them all."""
    inverse = pow(FACTOR, -1, 1 << 64)
    x = (x ^ (x >> 32)) * inverse & WORD
    x = (x ^ (x >> 32)) * inverse & WORD
    return x ^ (x >> 32)


def spread(x):
    x = (x ^ (x >> 32)) * FACTOR & WORD
    x = (x ^ (x >> 32)) * FACTOR & WORD
    return x ^ (x >> 32)


def place(source, target, lane):
    return source << 40 | target << 16 | lane


def data_port(daemon):
    """Where the daemon's transport listens: its only listening port that the configuration does not name."""
    inodes = set()
    for fd in pathlib.Path(f"/proc/{daemon.process.pid}/fd").iterdir():
        try:
            inodes.add(str(fd.readlink()).removeprefix("socket:[").removesuffix("]"))
        except FileNotFoundError:
            pass
    ports = set()
    for line in pathlib.Path(f"/proc/{daemon.process.pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in inodes:
            ports.add(int(fields[1].split(":")[1], 16))
    ports.discard(int(daemon.sections["peers"]["listen"].rsplit(":", 1)[1]))
    assert len(ports) == 1, ports
    return ports.pop()


def dial(daemon):
    found = socket.create_connection(("127.0.0.1", data_port(daemon)), timeout=20)
    found.settimeout(5)
    return found


def read_all(connection):
    """Whatever comes until the daemon closes, or says no more for two seconds."""
    connection.settimeout(2)
    data = b""
    try:
        while chunk := connection.recv(4096):
            data += chunk
    except (TimeoutError, ConnectionResetError):
        pass
    return data


def hello(version, boot_id, expected, node, connections=1, nonce=bytes(32)):
    said = struct.pack("<IIQQII64s", MAGIC, version, boot_id, expected, 0, connections, node.encode())
    return said + (nonce if version > 1 else b"")


def frames(connection, wanted, seconds=3):
    """Frames of these types that come within that time: (type, key, the rest)."""
    data, found, end = b"", [], time.monotonic() + seconds
    connection.settimeout(0.2)
    while time.monotonic() < end:
        try:
            chunk = connection.recv(65536)
            if not chunk:
                break
            data += chunk
        except TimeoutError:
            pass
        except ConnectionResetError:
            break
        while data and len(data) >= FRAME_BYTES.get(data[0], 1 << 20):
            size = FRAME_BYTES[data[0]]
            if data[0] in wanted:
                found.append((data[0], struct.unpack_from("<Q", data, 8)[0], data[16:size]))
            data = data[size:]
        if len(found) >= LANES:
            break
    return found


class Impostor(ClusterTest):
    def setUp(self):
        super().setUp()
        self.start_nodes(2, {"transport.tcp": {"connections_per_peer": 1}})
        self.boot = [self.boot_of(daemon) for daemon in self.daemons]
        self.ranks = [raw.RawClient(d.socket) for d in self.daemons]
        for rank in self.ranks:
            self.addCleanup(rank.close)
            self.assertEqual(rank.hello()[1], 0)
        joins = [threading.Thread(target=rank.join, args=("train", 2, i, LANES)) for i, rank in enumerate(self.ranks)]
        for join in joins:
            join.start()
        for join in joins:
            join.join()
        self.memory = []
        for rank in self.ranks:
            fd = raw.memfd(REGION_BYTES)
            self.memory.append(raw.mmap.mmap(fd, REGION_BYTES))
            self.assertEqual(rank.register(0, fd, 0, REGION_BYTES)[1], 0)
        for i, rank in enumerate(self.ranks):
            wait_until(lambda: rank.region_bytes(1 - i) == REGION_BYTES, "each rank knows the other's region")
        # The listener is the end with the larger boot id; the impostor plays the other.
        self.victim = 0 if self.boot[0] > self.boot[1] else 1
        self.peer = 1 - self.victim
        self.transfers = self.sent_back = 0
        self.transfer()

    @staticmethod
    def boot_of(daemon):
        return int(json.loads(daemon.mkctl("status", "-o", "json").stdout)["daemon"]["boot_id"], 16)

    def transfer(self):
        """A put of the real peer's rank arrives at the victim's, in its place."""
        self.transfers += 1
        payload = struct.pack("<Q", 7700 + self.transfers)
        self.memory[self.peer][4096:4104] = payload
        sender, receiver = self.ranks[self.peer], self.ranks[self.victim]
        sender.write_slot(sender.first_channel + self.victim * LANES, 8, self.victim, (0, 4096), (0, 4096))
        wait_until(lambda: receiver.arrivals(source=self.peer, lanes=LANES) == self.transfers, "the put arrives")
        self.assertEqual(self.memory[self.victim][4096:4104], payload)

    def send_back(self):
        """The victim's rank sends one to the peer's."""
        self.sent_back += 1
        victim = self.ranks[self.victim]
        victim.write_slot(victim.first_channel + self.peer * LANES, 24, self.peer, (0, 2048), (0, 2048))

    def unharmed(self):
        victim = self.ranks[self.victim]
        self.assertEqual(self.memory[self.victim][:64], bytes(64))
        counts = [victim.arrivals(source=self.peer, lane=lane, lanes=LANES) for lane in range(LANES)]
        self.assertEqual(counts, [self.transfers, 0, 0, 0])
        self.transfer()
        wait_until(lambda: self.ranks[self.peer].arrivals(source=self.victim, lanes=LANES) == self.sent_back,
                   "the victim's puts arrive at the peer")
        for daemon in self.daemons:
            self.assertNotIn("DATA_LOSS", daemon.tail())
            self.assertNotIn("lost", daemon.tail().split("is ready")[-1])

    def write_and_steal(self, connection):
        """What an impostor does once it is in: learns the keys, writes into the rank's memory, takes its puts. Returns the
        keys that it learned and whether a put of the victim came to it."""
        opened = [key for _, key, _ in frames(connection, {OPEN})]
        victim, peer = self.victim, self.peer
        for lane, key in enumerate(opened):
            reverse = spread(unspread(key) ^ place(victim, peer, lane) ^ place(peer, victim, lane))
            connection.sendall(struct.pack("<B7xQ", OPEN, reverse))
        for _, reverse, held in frames(connection, {HELD}):
            number = struct.unpack("<Q", held)[0] + 1
            connection.sendall(struct.pack("<BxHIQQH6x", PUT, number, len(MARK), reverse, 0, 0) + MARK)
        for key in opened:
            connection.sendall(struct.pack("<B7xQQ", HELD, key, 0))
        self.send_back()
        return opened, len(frames(connection, {PUT}, seconds=1)) > 0

    def test_a_port_tells_nothing(self):
        for version in (1, 2, 3):
            for boot, expected in ((1, 2), (self.boot[self.peer], self.boot[self.victim])):
                connection = dial(self.daemons[self.victim])
                connection.sendall(hello(version, boot, expected, f"node{self.peer}") + bytes(32))
                answer = read_all(connection)
                connection.close()
                self.assertNotIn(struct.pack("<Q", self.boot[self.victim]), answer)
                self.assertNotIn(b"node", answer)
                self.assertNotIn(b"boot", answer)
        self.unharmed()

    def test_a_stranger_with_both_boot_ids_gets_no_channel(self):
        for version in (1, 2):
            connection = dial(self.daemons[self.victim])
            connection.sendall(hello(version, self.boot[self.peer], self.boot[self.victim], f"node{self.peer}"))
            connection.settimeout(2)
            try:
                answer = connection.recv(536 if version == 1 else 48, socket.MSG_WAITALL)
                if version == 2:
                    connection.sendall(answer[-32:])  # any 32 bytes for a proof
                    answer = connection.recv(40, socket.MSG_WAITALL)
            except (TimeoutError, ConnectionResetError):
                answer = b""
            try:
                gained = self.write_and_steal(connection)
            except (BrokenPipeError, ConnectionResetError):
                gained = ([], False)
            connection.close()
            self.unharmed()
            self.assertEqual(gained, ([], False))

    def test_an_overheard_handshake_is_worth_nothing(self):
        """What the real peer said, byte for byte, again and from another socket."""
        victim = self.daemons[self.victim]
        said = hello(2, self.boot[self.peer], self.boot[self.victim], f"node{self.peer}", nonce=bytes(range(32)))
        first = dial(victim)
        first.sendall(said)
        challenge = first.recv(48, socket.MSG_WAITALL)
        for proof in (challenge[16:], bytes(32), said[-32:]):
            connection = dial(victim)
            connection.sendall(said + proof)
            answer = read_all(connection)
            connection.close()
            self.assertEqual(len(answer), 48 + 40, "a challenge, a refusal, and nothing behind it")
            self.assertNotEqual(answer[16:48], challenge[16:], "a nonce is used once")
            self.assertEqual(answer[48:], struct.pack("<II32x", 0x57434B4D, 14))
        first.close()
        self.unharmed()


if __name__ == "__main__":
    unittest.main()
