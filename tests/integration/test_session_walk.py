"""A seeded random walk of the session protocol over two daemons whose transport stalls: sessions come, join, register, put, take
memory away under their puts, fail, leave and vanish, in any order, well-behaved or not. Whatever they do, the daemons go on, a
bystander's payloads arrive whole, and in the end nothing is left of them. A failed walk is walked again with its seed, which
the failure names: WALK_SEED=17 python3 -B test_session_walk.py."""
import os
import random
import signal
import struct
import threading
import time
import unittest

import raw_client as raw
from cluster import ClusterTest, wait_until

LANES, CAPACITY, REGION_BYTES = 4, 8, 1 << 18
CANCELLED = 1


class Membership:
    """A group as one of its ranks sees it."""

    def __init__(self, client, rank, world):
        self.group, self.first_channel, self.rank, self.world = client.group, client.first_channel, rank, world
        self.memory = {}  # bytes by index


class Walker:
    """One session, which is in some groups with other walkers, or alone. `gone`: one of the two ends has closed it."""

    def __init__(self, node, chance):
        self.node, self.chance = node, chance
        self.client = raw.RawClient(node.socket)
        self.groups, self.gone = [], False
        self.ask(self.client.hello)

    def ask(self, call, *arguments, **options):
        """The answer; None when the session has ended, which is the daemon's good right here."""
        if self.gone:
            return None
        try:
            answer = call(*arguments, **options)
        except ConnectionError:
            answer = None
        if answer is None or answer[0] == raw.SESSION_ENDED:
            self.close()
            return None
        return answer

    def tell(self, call, *arguments, **options):
        """Nothing comes back, or something later."""
        self.ask(lambda: (call(*arguments, **options),))

    def close(self):
        self.gone = True
        self.client.close()

    def register(self, member):
        index = self.chance.randrange(CAPACITY + 1)  # one too high, now and then
        size = self.chance.choice((4096, 65536, REGION_BYTES))
        fd = raw.memfd(size)
        self.client.group = member.group
        answer = self.ask(self.client.register, index, fd, 0, size)
        os.close(fd)
        if answer is not None and answer[1] == 0:
            member.memory[index] = size

    def unregister(self, member):
        index = self.chance.choice(sorted(member.memory) or [0])
        member.memory.pop(index, None)
        self.ask(self.client.ask, raw.UNREGISTER, struct.pack("<II8x", member.group, index))

    def put(self, member, bad):
        """A burst, up to two batches of the daemon's. Bad: one of its slots is nonsense."""
        count = self.chance.choice((1, 2, 32, 33, 64, 64))
        lanes = self.chance.choice((1, LANES))
        targets = self.chance.choice(([self.chance.randrange(member.world)], range(member.world)))
        nonsense = self.chance.randrange(count) if bad else None
        for i in range(count):
            target = self.chance.choice(targets)
            channel = member.first_channel + target * LANES + self.chance.randrange(lanes)
            index = self.chance.choice(sorted(member.memory) or [0])
            # Signals for the most part: what is not registered at the target would be the end of the session.
            length = self.chance.choice((0, 0, 0, 8, 4096)) if index in member.memory else 0
            if i == nonsense:
                channel, length = self.chance.getrandbits(24), self.chance.getrandbits(32)
            if length > 0 and self.client.region_bytes(target, index) == 0:
                length = 0
            self.client.write_slot(channel, length, target, (index, 0), (index, 0))

    def fail(self, member):
        self.ask(self.client.ask, raw.FAIL, struct.pack("<II8x448s", member.group, CANCELLED, b"walked away"))

    def leave(self, member):
        self.ask(self.client.ask, raw.LEAVE, struct.pack("<I12x", member.group))
        self.groups.remove(member)

    def babble(self):
        """Ends the session: no kind of message looks like this."""
        self.ask(self.client.ask, self.chance.randrange(12), self.chance.randbytes(self.chance.randrange(600)))
        self.close()


class Bystander:
    """Two ranks, one on each node, that put to each other with payloads that are looked at."""

    def __init__(self, test, nodes):
        self.test, self.nodes, self.count = test, nodes, 0
        self.ranks = [raw.RawClient(node.socket) for node in nodes]
        for client in self.ranks:
            test.addCleanup(client.close)
            test.assertEqual(client.hello("bystander")[1], 0)
        for rank, client in enumerate(self.ranks):
            client.start_join("bystander", 2, rank, LANES, timeout_ms=60000)
        for client in self.ranks:
            test.assertEqual(client.finish_join()[1], 0)
        self.memory = []
        for client in self.ranks:
            fd = raw.memfd(8192)
            self.memory.append(raw.mmap.mmap(fd, 8192))
            test.assertEqual(client.register(0, fd, 0, 8192)[1], 0)
            os.close(fd)
        for rank, client in enumerate(self.ranks):
            wait_until(lambda: client.region_bytes(1 - rank) == 8192, "each rank knows the other's region")

    def transfer(self):
        self.count += 1
        for rank, client in enumerate(self.ranks):
            self.memory[rank][:4096] = self.payload(rank)
            client.write_slot(client.first_channel + (1 - rank) * LANES, 4096, 1 - rank, (0, 0), (0, 4096))
        for rank, client in enumerate(self.ranks):
            wait_until(lambda: client.arrivals(1 - rank) == self.count or not self.alive(), "the bystander's transfer arrives")
            self.test.assertTrue(self.alive(), [node.tail() for node in self.nodes])
            self.test.assertEqual(self.memory[rank][4096:], self.payload(1 - rank))

    def alive(self):
        return all(node.process.poll() is None for node in self.nodes)

    def payload(self, rank):
        return random.Random(2 * self.count + rank).randbytes(4096)


def settled_fds(node):
    """How many fds the daemon has: the connection of a mkctl just before is closed a moment later, and links come up in parts."""
    readings = []
    for _ in range(10):
        readings.append(node.resources()[0])
        time.sleep(0.02)
    return max(readings)


class SessionWalk(ClusterTest):
    def walk(self, transport, seed, steps):
        chance = random.Random(seed)
        # A small window: whoever sends a burst to a daemon that stands still is refused in the middle of it. Puts to a rank
        # that has left never complete, and who takes their source away waits for drain_ms.
        nodes = self.start_nodes(2, {"transport": {"kind": transport}, "transport.tcp": {"window": 8}, "limits": {"drain_ms": 30}})
        bystander = Bystander(self, nodes)
        bystander.transfer()
        before = [settled_fds(node) for node in nodes]
        walkers, groups = [], 0
        for step in range(steps):
            if step % 20 == 0:
                bystander.transfer()
            if step % 10 == 0:
                standing = self.stop_for_a_while(chance.choice(nodes))
            walkers = [walker for walker in walkers if not walker.gone]
            while len(walkers) < 5:
                walkers.append(Walker(chance.choice(nodes), chance))
            if sum(len(walker.groups) for walker in walkers) < 8:
                groups += 1
                members = chance.sample(walkers, chance.choice((1, 2)))
                if chance.random() < 0.7:  # one on each node
                    members = [chance.choice([w for w in walkers if w.node is node] or walkers) for node in nodes]
                self.new_group(list(dict.fromkeys(members)), f"walk-{groups}")
            # While the other daemon stands still, whatever comes behind a burst finds it half sent.
            awake = [walker for walker in walkers if step % 10 >= 6 or walker.node is not standing]
            self.one_step(chance.choice(awake or walkers), chance)
        for walker in walkers:
            walker.close()
        bystander.transfer()
        for node, fds in zip(nodes, before):
            self.assertIsNone(node.process.poll(), node.tail())
            wait_until(lambda: len(node.show("sessions")) == 1 and len(node.show("groups")) == 1, "the walkers are gone")
            wait_until(lambda: len(node.show("regions")) == 1, "their memory is given back")
            wait_until(lambda: node.resources()[0] <= fds, "their fds are closed")

    @staticmethod
    def new_group(members, name):
        for rank, walker in enumerate(members):
            walker.tell(walker.client.start_join, name, len(members), rank, LANES, CAPACITY, timeout_ms=500)
        for rank, walker in enumerate(members):
            answer = walker.ask(walker.client.finish_join)
            if answer is not None and answer[1] == 0:
                walker.groups.append(Membership(walker.client, rank, len(members)))
                for _ in range(3):
                    walker.register(walker.groups[-1])

    @staticmethod
    def one_step(walker, chance):
        if not walker.groups:
            return
        member = chance.choice(walker.groups)
        doing = chance.choices(("put", "register", "unregister", "put badly", "fail", "leave", "vanish", "babble"),
                               (60, 8, 8, 2, 2, 4, 3, 1))[0]
        if doing.startswith("put"):
            walker.put(member, bad=doing == "put badly")
            doing = chance.choices(("put", "unregister", "fail", "leave", "vanish"), (10, 3, 3, 3, 1))[0]
        if doing == "vanish":
            walker.close()
        elif doing == "babble":
            walker.babble()
        elif doing != "put":
            getattr(walker, doing)(member)
        # The next burst on the same ring is another group's.
        others = [other for other in walker.groups if other is not member]
        if doing in ("fail", "leave") and others and not walker.gone:
            walker.put(chance.choice(others), bad=False)

    def stop_for_a_while(self, node):
        node.process.send_signal(signal.SIGSTOP)
        timer = threading.Timer(0.2, node.process.send_signal, (signal.SIGCONT,))
        timer.start()
        self.addCleanup(timer.join)
        return node

    def walk_seeds(self, transport):
        chosen = os.environ.get("WALK_SEED")
        for seed in [int(chosen)] if chosen else (1, 2, 3):
            with self.subTest(seed=seed):
                self.walk(transport, seed, 250)
            self.doCleanups()
            self.tearDown()
            self.setUp()

    def test_over_the_emulated_fabric(self):
        self.walk_seeds("emulated")

    def test_over_tcp(self):
        self.walk_seeds("tcp")


if __name__ == "__main__":
    unittest.main()
