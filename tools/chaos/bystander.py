"""The tenant that does everything right: one rank on each node of a cluster, random payload to the next rank, verified byte for
byte with all counts, for as long as the campaign lasts. What it meets says whether the others could harm it."""
import random
import time

import tenant
from tenant import Lost, Wrong

LATE = 20.0  # seconds after which a put that did not arrive counts as lost


class Ring:
    """One life of the bystander: sessions, a group, regions."""

    def __init__(self, sockets, group, seed):
        self.random = random.Random(seed)
        self.clients, self.memory = tenant.ranks(sockets, group, "bystander")
        self.shadow = [bytearray(tenant.REGION_BYTES) for _ in self.clients]
        self.sent = [[0] * tenant.LANES for _ in self.clients]

        for lane in range(tenant.LANES):  # whatever daemons make at a first put is there from now on
            self.transfer(lane, 4096)

    def transfer(self, lane=None, length=None):
        """One put of every rank to the next; (bytes, seconds of the slowest)."""
        world, total, slowest = len(self.clients), 0, 0.0
        lanes = lambda: self.random.randrange(tenant.LANES) if lane is None else lane
        lengths = lambda: self.random.choice((0, 1, 24, 4096, 65536, 200001)) if length is None else length
        for source in range(world):
            size, slow = self.put(source, (source + 1) % world, lanes(), lengths())
            total, slowest = total + size, max(slowest, slow)
        return total, slowest

    def put(self, source, target, lane, length):
        """One put, verified; (bytes, seconds until it was there)."""
        half = tenant.REGION_BYTES // 2
        local, remote = self.random.randrange(half - length), half + self.random.randrange(half - length)
        payload = self.random.randbytes(length)
        self.memory[source][local:local + length] = payload
        self.shadow[source][local:local + length] = payload
        self.shadow[target][remote:remote + length] = payload
        begin = time.monotonic()
        self.clients[source].put(target, lane, length, (0, local), (0, remote))
        self.sent[source][lane] += 1
        self.clients[target].wait(32, source, lane, self.sent[source][lane], LATE)
        seconds = time.monotonic() - begin
        self.clients[source].wait(40, target, lane, self.sent[source][lane], LATE)
        self.verify(target)
        return length, seconds

    def verify(self, rank):
        """The whole region: what was put is there, and nothing else has changed."""
        found = self.memory[rank][:]
        if found == self.shadow[rank]:
            return
        at = next(i for i, (a, b) in enumerate(zip(found, self.shadow[rank])) if a != b)
        raise Wrong(f"rank {rank} byte {at}: {found[at]:#04x} instead of {self.shadow[rank][at]:#04x}")

    def close(self):
        for client in self.clients:
            client.close()


def bystander(channel, sockets, group, seed):
    """Commands: {"do": "check"} answers with what was transferred since the last one, {"do": "reset", "life": n} begins
    anew, {"do": "rest"} stops until the next command, {"do": "spoil"} harms its own memory (the self-test)."""
    ring = Ring(sockets, f"{group} 0", f"{seed}/0")
    channel.say(ready=True)
    done, trouble, resting = {"transfers": 0, "bytes": 0, "worst_ms": 0.0}, None, True

    def step(count=1):
        nonlocal trouble
        try:
            for _ in range(count):
                size, seconds = ring.transfer()
                done["transfers"] += 1
                done["bytes"] += size
                done["worst_ms"] = max(done["worst_ms"], round(1e3 * seconds, 3))
        except Wrong as error:
            trouble = ("wrong", str(error))
        except (Lost, OSError) as error:
            trouble = ("lost", str(error))

    while True:
        command = channel.hear(60.0 if resting or trouble else 0.003)  # the pause is its pace
        if command is None:
            if not resting and trouble is None:
                step()
            continue
        if command["do"] == "check":
            if trouble is None:
                step(5)
            channel.say(**done, trouble=trouble)
            done = {"transfers": 0, "bytes": 0, "worst_ms": 0.0}
            resting = True
        elif command["do"] == "go":
            resting = False
        elif command["do"] == "spoil":
            ring.memory[-1][0] ^= 0xff
        elif command["do"] == "reset":
            ring.close()
            trouble = None
            try:
                ring = Ring(sockets, f"{group} {command['life']}", f"{seed}/{command['life']}")
                channel.say(ready=True)
            except (Lost, OSError) as error:
                channel.say(ready=False, why=str(error))
