"""A client of the session protocol that puts over every ring, and a group of them with one rank on each node."""
import mmap
import os
import select
import socket
import struct
import threading
import time

import raw_client as raw

LANES, CAPACITY = 4, 8
REGION_BYTES = 1 << 20


class Lost(Exception):
    """The session or its group ended; the text says why."""


class Wrong(Exception):
    """Something arrived that was not sent, or not as it was sent."""


class Tenant(raw.RawClient):
    """RawClient writes ring 0 alone; this one writes the ring that a lane goes over (proto/abi/ring_share.h)."""

    def hello(self, name="chaos"):
        answer = super().hello(name)
        if answer[1] == 0:
            self.positions = [0] * len(self.doorbells)
        return answer

    def join(self, name, world=1, rank=0, lanes=LANES, capacity=CAPACITY, timeout_ms=10000):
        answer = super().join(name, world, rank, lanes, capacity, timeout_ms)
        if answer[1] == 0:
            self.world, self.rank, self.lanes = world, rank, lanes
            self.rings = self._rings()
        return answer

    def _rings(self):
        (chosen,) = struct.unpack_from("<I", self.segment, 92)
        count = len(self.doorbells)
        if chosen:
            return [r for r in range(count) if chosen >> r & 1]
        members = raw.load(self.segment, 48)
        nodes = [struct.unpack_from("<II", self.segment, members + 64 * r) for r in range(self.world)]
        node, local = nodes[self.rank]
        return list(range(local % count, count, sum(n == node for n, _ in nodes)))

    def memory(self, index, size=REGION_BYTES, shared=0, populated=True):
        """A registered region of this client as (mapping, answer of the daemon)."""
        fd = raw.memfd(size, populated=populated)
        try:
            return mmap.mmap(fd, size), self.register(index, fd, 0, size, shared=shared)
        finally:
            os.close(fd)

    def room(self, ring):
        """Slots of the ring that may be written now."""
        return (1 << self.log2_slots) - (self.positions[ring] - raw.load(self.session, 64 + 64 * ring))

    def put(self, peer, lane, length=0, local=(0, 0), remote=(0, 0), bell=True):
        ring = self.rings[lane % len(self.rings)]
        channel = self.first_channel + peer * self.lanes + lane
        self.fill_slot(ring, self.positions[ring], channel, length, peer, local, remote)
        self.positions[ring] += 1
        if bell:
            self.ring_doorbell(ring)

    def ring_all(self):
        for bell in self.doorbells:
            os.eventfd_write(bell, 1)

    def count(self, which, rank, lane):
        """`which`: 32 for arrivals, 40 for completed puts (proto/abi/region_map.h)."""
        return raw.load(self.segment, raw.load(self.segment, which) + 8 * (rank * self.lanes + lane))

    def end(self):
        """Why session or group ended, or an empty text."""
        if struct.unpack_from("<I", self.session, 36)[0]:
            return raw.text(self.session[raw.FAILURE_OFFSET + 72:][:440])
        if struct.unpack_from("<I", self.segment, 88)[0]:
            return raw.text(self.segment[128 + 72:][:440])
        return ""

    def hung_up(self):
        """Whether the daemon is gone, which no shared word says."""
        if not select.select([self.socket], [], [], 0)[0]:
            return False
        try:
            return not self.socket.recv(1, socket.MSG_PEEK)
        except ConnectionError:
            return True

    def wait(self, which, rank, lane, expected, seconds):
        """Until the count is `expected`; more than that is wrong, an end is Lost."""
        until, look = time.monotonic() + seconds, 0
        while (now := self.count(which, rank, lane)) < expected:
            look += 1
            if why := self.end() or (look % 100 == 0 and self.hung_up() and "the daemon is gone"):
                raise Lost(why)
            if time.monotonic() > until:
                raise Lost(f"count {now} of {expected} after {seconds:.0f} s, rank {rank}, lane {lane}")
            time.sleep(0.0001)
        if now > expected:
            raise Wrong(f"count {now}, but only {expected} were sent, rank {rank}, lane {lane}")

    def leave(self):
        return self.ask(raw.LEAVE, struct.pack("<I12x", self.group))

    def fail(self, why=b"chaos"):
        return self.ask(raw.FAIL, struct.pack("<II8x448s", self.group, 10, why))


def need(answer, what):
    """The answer, which must be OK; else Lost with the daemon's words."""
    if answer is None:
        raise Lost(f"{what}: the daemon closed the session")
    if answer[1] != 0:
        raise Lost(f"{what}: {answer[2]}")
    return answer


def join_all(clients, name, **options):
    """One rank each, at the same time; every one must come in."""
    answers = [None] * len(clients)

    def join(rank):
        try:
            answers[rank] = clients[rank].join(name, len(clients), rank, **options)
        except (OSError, ConnectionError) as error:
            answers[rank] = (0, -1, f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=join, args=(r,)) for r in range(len(clients))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rank, answer in enumerate(answers):
        need(answer, f"rank {rank} joins {name}")


def connect(path, name, timeout=30):
    """A session, or Lost with the reason."""
    try:
        client = Tenant(path, timeout)
        need(client.hello(name), f"hello of {name}")
    except (OSError, ConnectionError) as error:
        raise Lost(f"session {name}: {type(error).__name__}: {error}") from None
    return client


def ranks(sockets, group, name="chaos", memory=REGION_BYTES, populated=True):
    """A tenant with one rank behind each socket, regions 0 registered: (clients, mappings)."""
    clients = [connect(path, name) for path in sockets]
    join_all(clients, group)
    mappings = []
    for client in clients:
        mapping, answer = client.memory(0, memory, populated=populated)
        need(answer, "register")
        mappings.append(mapping)
    # A region is usable when its entry is in every rank's map; the daemon tells peers before it answers, but the peers'
    # own daemons take a moment.
    wait_for_regions(clients, memory)
    return clients, mappings


def wait_for_regions(clients, memory, seconds=10):
    until = time.monotonic() + seconds
    for client in clients:
        regions = raw.load(client.segment, 56)
        for rank in range(client.world):
            at = regions + 16 * (rank * CAPACITY)
            while raw.load(client.segment, at) != memory:
                if why := client.end():
                    raise Lost(why)
                if time.monotonic() > until:
                    raise Lost(f"region of rank {rank} is not in the map after {seconds} s")
                time.sleep(0.001)
