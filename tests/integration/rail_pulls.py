"""Rails that are pulled in the middle of operations, on the emulated fabric: real daemons, real ranks, every element of
every result verified. Used by test_rail_pulls.py (a few pulls) and tests/perf/rail_pulls.py (thousands, recorded)."""
import json
import random
import subprocess
import threading
import time

from cluster import BIN, PATIENCE

RAILS = 3
RANKS_PER_NODE = 2
# Puts on several lanes at once, in both directions, as fast as they can be verified. Over nodes it has two lanes: two ranks
# per node put over all three rails.
OPERATION = ["gemm_ar", "--m", "256", "--n", "128", "--k", "128", "--deadline", "300"]


def rail_of(channel):
    """The rail that a channel takes where nothing is pulled (proto/abi/ring_share.h)."""
    rails = range(channel["rank"] % RANKS_PER_NODE, RAILS, RANKS_PER_NODE)
    return rails[channel["lane"] % len(rails)]


class Watch:
    """Follows the channels of one daemon through one `mkctl --watch`: a look every few milliseconds."""

    INTERVAL = 0.01  # seconds; the resolution of every time measured here

    def __init__(self, daemon):
        self.process = subprocess.Popen(
            [BIN / "mkctl", "--socket", daemon.control, "channels", "-o", "json", "--watch", str(self.INTERVAL)],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.changed = threading.Condition()
        self.rows = []
        self.looks = 0
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            rows = json.loads(line).get("channels", [])
            with self.changed:
                self.rows, self.looks = rows, self.looks + 1
                self.changed.notify_all()

    def completed(self, rail, after_look=0, seconds=PATIENCE):
        """(look, completed puts over `rail` to the other node, by channel), of a look later than `after_look`."""
        with self.changed:
            if not self.changed.wait_for(lambda: self.looks > after_look, seconds):
                raise AssertionError(f"no look for {seconds:.0f} s")
            return self.looks, {(r["session"], r["peer_rank"], r["lane"]): int(r["completed_total"]) for r in self.rows
                                if rail_of(r) == rail and r["peer_node"]}

    def close(self):
        self.process.terminate()
        self.process.wait(PATIENCE)
        self.reader.join(PATIENCE)
        self.process.stdout.close()


def wait_for_traffic(watch, rail, alive, least=1):
    """Waits until `least` more puts over the rail have completed than there had when this was called. False when the
    ranks ended before."""
    look, before = watch.completed(rail)
    while alive():
        look, now = watch.completed(rail, look)
        if sum(max(0, count - before.get(channel, 0)) for channel, count in now.items()) >= least:
            return True
    return False


class Puller:
    """Pulls wires between two daemons while ranks run. One pull: a random rail's wire, on a random side, sometimes a
    second one at once, so that what replays on it is cut again; then the traffic of that rail must flow by another
    wire; then everything is plugged in, and it must flow again."""

    def __init__(self, daemons, seed):
        self.daemons = daemons
        self.random = random.Random(seed)
        self.seconds = []  # from the pull to the next completed put of that rail
        self.twice = 0     # pulls that took a second wire
        self.by_rail = [0] * RAILS

    def _link(self, side, *arguments):
        self.daemons[side].mkctl("link", "--peer", self.daemons[1 - side].name, *arguments)

    def pull(self, watch, alive):
        """False when the ranks ended in the middle: then nothing is counted."""
        side, rail = self.random.randrange(2), self.random.randrange(RAILS)
        second = self.random.random() < 0.2
        if not wait_for_traffic(watch, rail, alive, 10):
            return False
        time.sleep(self.random.random() * 0.01)
        begin = time.monotonic()
        self._link(side, "--down", "--rail", str(rail))
        if second:
            self._link(1 - side, "--down", "--rail", str((rail + 1) % RAILS))
        flows = wait_for_traffic(watch, rail, alive)
        took = time.monotonic() - begin
        self._link(side, "--up")
        if second:
            self._link(1 - side, "--up")
        if not flows or not wait_for_traffic(watch, rail, alive):
            return False
        self.seconds.append(took)
        self.twice += second
        self.by_rail[rail] += 1
        return True


def pull_while_operating(test, count, iterations, seed, progress=lambda puller: None):
    """`count` pulls while `mkbench op` runs again and again, `iterations` verified iterations each time. `test` is a
    ClusterTest with two nodes; every rank of every run must succeed. Returns (puller, iterations verified)."""
    puller = Puller(test.daemons, seed)
    verified = 0
    while len(puller.seconds) < count:
        world = RANKS_PER_NODE * len(test.daemons)
        ranks = [test.bench(r, world, test.daemons[r // RANKS_PER_NODE], *OPERATION, "--iterations", str(iterations),
                            group=f"pulls {verified}") for r in range(world)]
        alive = lambda: all(rank.poll() is None for rank in ranks)
        watch = Watch(test.daemons[puller.random.randrange(2)])
        try:
            while len(puller.seconds) < count and alive():
                puller.pull(watch, alive)
                progress(puller)
        finally:
            watch.close()
        for rank, process in enumerate(ranks):
            status, out, err = test.finish(process, 10 * PATIENCE)
            test.assertEqual(status, 0, f"rank {rank} after {len(puller.seconds)} pulls:\n{out}{err}")
        verified += iterations
    return puller, verified
