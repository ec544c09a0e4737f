"""The daemons of one transport, their bystander, and what must hold of them after every step."""
import json
import shutil
import time

import levels
from bystander import bystander
from child import Child, Violation
from cluster import Daemon, free_ports, wait_until

# A daemon on loopback in a campaign: time runs ten times faster for peers, waits of clients are short, and file descriptors
# run out where they would on a machine with default limits.
SETTINGS = {
    "node": {"socket_mode": "0666"},
    "peers": {"time_scale": 0.1},
    "proxy": {"threads": 2},
    "limits": {"drain_ms": 1000, "hello_timeout_ms": 2000, "join_timeout_ms": 10000},
    "log": {"level": "warn"},
}
NOFILE = 8192
NODES = {"tcp": 2, "emulated": 3}
SLICE_LIMIT_MS = 10  # of a proxy or control thread's processor time and sleep, for whatever anybody does; the daemons count by it
JUDGED = ("processor time", "sleep")
BACK_WITHIN = 30.0   # seconds until everything is back where it was
RSS_TOLERANCE, THREAD_TOLERANCE = 64 * levels.MIB, 8


def slices_of(status):
    """{(thread, clock): (its longest slice in ms, how many were over the limit)}: the daemon's own counters. Without "sleep" where
    the kernel does not say how long threads wait for processors."""
    found = {}
    for row in status["status"]["slices"]:
        for clock, longest, over in (("processor time", "longest_ms", "over_limit"), ("wall time", "longest_wall_ms", "wall_over_limit"),
                                     ("sleep", "longest_asleep_ms", "asleep_over_limit")):
            if row[longest] is not None:
                found[row["thread"], clock] = row[longest], int(row[over])
    return found


class Cluster:
    def __init__(self, kind, folder, seed):
        self.kind, self.folder, self.seed = kind, folder, seed
        self.prefix = ["prlimit", f"--nofile={NOFILE}:{NOFILE}"]
        if shutil.which("setpriv"):
            self.prefix = ["setpriv", "--pdeathsig", "KILL", *self.prefix]
        self.daemons, self.before, self.slices, self.bystander, self.life = [], {}, {}, None, 0
        self.stolen = 0  # ticks, when slices were looked at last

    def start(self):
        count = NODES[self.kind]
        ports = free_ports(count)
        for i, port in enumerate(ports):
            settings = {**SETTINGS, "transport": {"kind": self.kind, "peer_timeout_ms": 5000}}
            others = [f"127.0.0.1:{p}" for p in ports if p != port]
            daemon = Daemon(self.folder, f"{self.kind}{i}", port, others, settings, self.prefix)
            self.daemons.append(daemon)
        for daemon in self.daemons:
            daemon.start()
        self.wait_for_peers()
        self.bystander = Child(bystander, self.sockets(), f"bystander {self.kind}", f"{self.seed}/{self.kind}")
        self.bystander.hear()
        self.check_bystander()
        self.measure()

    def sockets(self):
        return [str(d.socket) for d in self.daemons]

    def peer_ports(self, daemon):
        return [int(str(daemon.sections["peers"]["listen"]).rsplit(":", 1)[1])]

    def data_ports(self, daemon):
        """Of the tcp transport; the emulated one has none."""
        return [p for p in levels.listening_ports(daemon.process.pid) if p not in self.peer_ports(daemon)]

    def measure(self, daemons=None):
        """Takes what the daemons hold now as what they may hold after each step, and leaves their start out of their slices."""
        for daemon in daemons or self.daemons:
            self.before[daemon.name] = levels.of(daemon.process.pid)
            self.slices[daemon.name] = self.slices_now(daemon)
        self.stolen = levels.stolen_ticks()

    def slices_now(self, daemon):
        # Its exit status says whether peers and rails are well, too.
        return slices_of(json.loads(daemon.mkctl("status", "-o", "json", check=False).stdout))

    # --- what must hold -------------------------------------------------------------------------------------------

    def dead(self):
        """A text for each daemon that has ended."""
        return [f"{d.name} ended with {d.process.poll()}: {d.tail()[-600:]}" for d in self.daemons
                if d.process is not None and d.process.poll() is not None]

    def check_alive(self):
        if dead := self.dead():
            raise Violation("; ".join(dead))

    def wait_for_peers(self, seconds=20.0):
        """Every daemon answers and sees every other alive."""
        for daemon in self.daemons:
            def seen(d=daemon):
                self.check_alive()
                return sum(p["state"] in ("alive", "warn") for p in d.show("peers")) >= len(self.daemons) - 1
            try:
                wait_until(seen, f"{daemon.name} sees its peers alive", seconds)
            except AssertionError as error:
                peers = [(p["node"], p["state"], p["reason"]) for p in daemon.show("peers")]
                raise Violation(f"{error}: {peers}") from None

    def check_bystander(self):
        report = self.bystander.hear_after("check", 60.0)
        if report["trouble"]:
            kind, text = report["trouble"]
            raise Violation(f"bystander of {self.kind}: {'received wrong data' if kind == 'wrong' else 'lost its group'}: {text}")
        return report

    def reset_bystander(self):
        """After a step that ended a daemon, and with it the bystander's group. Data that was wrong stays a violation."""
        report = self.bystander.hear_after("check", 60.0)
        if report["trouble"] and report["trouble"][0] == "wrong":
            raise Violation(f"bystander of {self.kind} received wrong data: {report['trouble'][1]}")
        if not report["trouble"]:
            raise Violation(f"bystander of {self.kind} did not notice that a daemon of its group ended")
        self.life += 1
        self.bystander.say(do="reset", life=self.life)
        answer = self.bystander.hear(60.0)
        if not answer["ready"]:
            raise Violation(f"bystander of {self.kind} finds no group after the restart: {answer['why']}")
        return report

    def check_slices(self):
        """({clock: its longest slice in ms since they were looked at last, if it is the longest ever}, a text for each thread and clock
        with slices over the limit since then). A sanitizer's build is too slow to compare. What a host took from this virtual machine
        is in the time of the thread that ran, and may explain what is above the limit. Wall time is not judged: a busy machine makes it
        long, and what of it the daemon is to blame for is in the two other clocks."""
        ticks = levels.stolen_ticks()
        stolen, self.stolen = levels.stolen_ns(self.stolen, ticks) / 1e6, ticks
        worst, over = {}, []
        for daemon in self.daemons:
            before, self.slices[daemon.name] = self.slices[daemon.name], self.slices_now(daemon)
            for (thread, clock), (longest, count) in self.slices[daemon.name].items():
                longest_before, count_before = before.get((thread, clock), (0, 0))
                worst[clock] = max(worst.get(clock, 0.0), longest if longest > longest_before else 0.0)
                more = count - count_before
                if clock in JUDGED and more > 0 and longest > SLICE_LIMIT_MS + stolen and not self.sanitized():
                    over.append(f"{daemon.name} {thread}: {more} over {SLICE_LIMIT_MS} ms of {clock}, the longest ever {longest:.1f} ms"
                                + (f", and {stolen:.0f} ms were stolen from this machine" if stolen else ""))
        return worst, over

    def leave_out_slices(self, daemon):
        """The slices of this daemon until now are not judged: somebody stopped it."""
        self.slices[daemon.name] = self.slices_now(daemon)

    def sanitized(self):
        return self.before[self.daemons[0].name].sanitized

    def check_levels(self, seconds=BACK_WITHIN):
        until, found = time.monotonic() + seconds, []
        while True:
            found = [f"{d.name}: {text}" for d in self.daemons
                     for text in levels.of(d.process.pid).above(self.before[d.name], RSS_TOLERANCE, THREAD_TOLERANCE)]
            if not found:
                return {d.name: vars(levels.of(d.process.pid)) for d in self.daemons}
            if time.monotonic() > until:
                held = {d.name: ", ".join(levels.sockets_of(d.process.pid)) for d in self.daemons
                        if any(text.startswith(f"{d.name}:") for text in found)}
                raise Violation(f"not back within {seconds:.0f} s: " + "; ".join(found)
                                + "".join(f"; sockets of {name}: {sockets}" for name, sockets in held.items()))
            time.sleep(0.05)

    def check(self):
        """All of it; a dict for the log."""
        self.check_alive()
        self.wait_for_peers()
        report = self.check_bystander()
        self.check_alive()
        worst, long_slices = self.check_slices()
        now = self.check_levels()
        self.check_alive()
        return {"bystander": {k: report[k] for k in ("transfers", "bytes", "worst_ms")}, "levels": now,
                "longest_slices_ms": worst, "long_slices": long_slices}

    def restart(self, daemon):
        """A daemon that has ended comes back, everybody finds it, the bystander forms its group anew."""
        daemon.start()
        self.wait_for_peers()
        report = self.reset_bystander()
        self.check_bystander()  # it uses everything once, so that all of it is in the levels
        self.bystander.say(do="go")
        self.measure([daemon])
        return report

    def stop(self):
        problems = []
        if self.bystander:
            self.bystander.kill()
        for daemon in self.daemons:
            try:
                status = daemon.stop()
            except AssertionError as error:
                problems.append(str(error))
                continue
            if status not in (None, 0):
                problems.append(f"{daemon.name} ended with {status} on SIGTERM: {daemon.tail()[-600:]}")
        return problems
