"""The campaign: chooses steps by seed, runs them on clusters that are checked after each, writes every one to a file of JSON
lines, and can run such a file again."""
import dataclasses
import itertools
import json
import os
import pathlib
import random
import shutil
import tempfile
import time
import traceback
import typing

from child import Child, Violation
from cluster_stage import Cluster

STRANGERS = (65534, 65533, 65532)  # users of the tenants that misbehave; the bystander keeps the campaign's own
# How often a step is done in which a daemon's thread had a slice over the limit. A virtual machine has such slices of its own, one in a
# thousand steps (tests/perf/notes.md); those of the code come again.
SLICE_TRIES = 3


class Skip(Exception):
    """This machine cannot run the step; the text says why."""


@dataclasses.dataclass(frozen=True)
class Step:
    """One thing that can happen. `function(scene)` does it, returns a dict for the log, raises Violation when something
    answered as it must not, and leaves the daemons running. `kinds`: the transports it makes sense on."""
    name: str
    weight: float
    function: typing.Callable
    kinds: tuple = ("tcp", "emulated")


class Scene:
    """What one step works with. Everything random comes from `random`, so that a step can be run again alone."""

    def __init__(self, cluster, seed, folder, private_network):
        self.cluster, self.random, self.folder = cluster, random.Random(seed), folder
        self.seed, self.private_network, self.children = seed, private_network, []

    def spawn(self, function, *arguments, uid=None, limits=None):
        child = Child(function, *arguments, uid=uid, limits=limits)
        self.children.append(child)
        return child

    def stranger(self):
        """A user that is not the bystander's; None where the campaign may not change users."""
        return self.random.choice(STRANGERS) if os.getuid() == 0 else None

    def daemon(self):
        return self.random.choice(self.cluster.daemons)

    def pair(self):
        """Session sockets of two different nodes."""
        return [str(d.socket) for d in self.random.sample(self.cluster.daemons, 2)]

    def pause(self, low, high):
        """Lets the things that were begun go on for a random time."""
        time.sleep(self.random.uniform(low, high))

    def restart(self, daemon):
        return self.cluster.restart(daemon)

    def close(self):
        for child in self.children:
            child.kill()
        self.children.clear()


def brief(text, most=300):
    """On one line of the terminal; the log has all of it."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[:most] + " ..."


def spin(channel):
    """A process that keeps a processor busy until it is ended."""
    while True:
        pass


class Campaign:
    """`busy`: how many processes beside it want a processor all the time."""

    def __init__(self, steps, seed, kinds, log, private_network, say=print, busy=0):
        self.steps, self.seed, self.kinds, self.say = {s.name: s for s in steps}, seed, kinds, say
        self.log, self.private_network = log, private_network
        self.busy = [Child(spin) for _ in range(busy)]
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="mkernel-chaos-"))
        self.folder.chmod(0o755)  # tenants of other users reach the sockets
        self.clusters, self.done, self.skipped, self.violations = {}, [], {}, []
        self.worst_slices_ms, self.bystander = {}, {"transfers": 0, "bytes": 0, "worst_ms": 0.0}

    def write(self, **line):
        self.log.write(json.dumps(line) + "\n")
        self.log.flush()

    def cluster(self, kind):
        if kind not in self.clusters:
            self.clusters[kind] = Cluster(kind, self.folder, self.seed)
            self.clusters[kind].start()
        return self.clusters[kind]

    def plan(self):
        """Endless (number, name, transport): each step once in a random order, then by weight. The same for the same seed."""
        order = random.Random(f"{self.seed}/plan")
        steps = [s for s in self.steps.values() if set(s.kinds) & set(self.kinds)]
        if not steps:
            raise ValueError("no step fits the transports that were chosen")
        pick = lambda s: (s.name, order.choice([k for k in s.kinds if k in self.kinds]))
        first = order.sample(steps, len(steps))
        for index in itertools.count():
            step = first[index] if index < len(first) else order.choices(steps, [s.weight for s in steps])[0]
            yield index, *pick(step)

    def run(self, plan, seconds, count, go_on):
        """Until time, steps or plan are at their end, or something was violated (with `go_on`, the cluster is made anew)."""
        end = time.monotonic() + seconds
        for index, name, kind in itertools.islice(plan, count):
            if time.monotonic() >= end:
                break
            if not self.run_step(index, self.steps[name], kind) and not go_on:
                break

    def run_step(self, index, step, kind):
        line = {"step": index, "name": step.name, "transport": kind, "seed": f"{self.seed}/{index}/{step.name}"}
        begin, checked = time.monotonic(), {}
        try:
            line["detail"], checked = self.do_with_short_slices(step, kind, line["seed"])
            line.update(verdict="held", **checked)
        except Skip as why:
            self.skipped[step.name] = str(why)
            line.update(verdict="skipped", why=str(why))
        except Exception as error:
            text = str(error) if isinstance(error, Violation) else f"{type(error).__name__}: {error}"
            line.update(verdict="violated", why=self.with_the_dead(text, kind))
            if not isinstance(error, Violation):
                line["trace"] = traceback.format_exc()
        line["took_s"] = round(time.monotonic() - begin, 3)
        self.write(**line)
        return self.account(line, checked, kind)

    def do_with_short_slices(self, step, kind, seed):
        """What do() returns of the first try without slices over the limit, and with those of the tries before it."""
        over = []
        for _ in range(SLICE_TRIES):
            detail, checked = self.do(step, kind, seed)
            over += checked["long_slices"]
            if not checked["long_slices"]:
                return detail, {**checked, "long_slices": over}
        raise Violation(f"slices over the limit in each of {SLICE_TRIES} tries: {'; '.join(over)}")

    def do(self, step, kind, seed):
        """What the step returns, and what its cluster's check does."""
        cluster = self.cluster(kind)
        scene = Scene(cluster, seed, self.folder, self.private_network)
        cluster.bystander.say(do="go")
        try:
            detail = step.function(scene)
        finally:
            scene.close()
        return detail, cluster.check()

    def with_the_dead(self, text, kind):
        """The text, and which daemons have ended: what a step met first is often only what came of that."""
        time.sleep(0.5)  # one that dumps its memory takes a moment
        dead = self.clusters[kind].dead() if kind in self.clusters else []
        return "; ".join([*(line for line in dead if line not in text), text])

    def account(self, line, checked, kind):
        self.say(f"{line['step']:4} {line['name']:28} {kind:9} {line['took_s']:6.2f} s  {line['verdict']}"
                 + (f": {brief(line['why'])}" if "why" in line else "")
                 + (f", with slices over the limit at first: {brief('; '.join(line['long_slices']))}" if line.get("long_slices") else ""))
        self.done.append((line["name"], line["verdict"], line["took_s"]))
        if line["verdict"] == "skipped":
            self.clusters[kind].bystander.hear_after("check", 60.0)
            return True
        if line["verdict"] == "violated":
            self.violations.append({k: line[k] for k in ("step", "name", "transport", "why")})
            self.abandon(kind)
            return False
        for key in ("transfers", "bytes"):
            self.bystander[key] += checked["bystander"][key]
        self.bystander["worst_ms"] = max(self.bystander["worst_ms"], checked["bystander"]["worst_ms"])
        for clock, longest in checked["longest_slices_ms"].items():
            self.worst_slices_ms[clock] = max(self.worst_slices_ms.get(clock, 0.0), longest)
        return True

    def abandon(self, kind):
        """Ends a cluster in which something was violated and keeps its logs; the next step on it gets a new one."""
        cluster = self.clusters.pop(kind, None)
        if cluster is None:
            return
        kept = pathlib.Path(f"{self.log.name}.logs") / f"{len(self.violations)}-{kind}"
        kept.mkdir(parents=True, exist_ok=True)
        for daemon in cluster.daemons:
            if daemon.log.exists():
                shutil.copy(daemon.log, kept / f"{daemon.name}.log")
        for problem in cluster.stop():
            self.say(f"     afterwards: {problem}")

    def close(self):
        """Ends everything; what did not end as it should is a violation too."""
        for kind, cluster in self.clusters.items():
            for problem in cluster.stop():
                self.violations.append({"step": "end", "name": "stop", "transport": kind, "why": problem})
                self.say(f" end {problem}")
        self.clusters.clear()
        for child in self.busy:
            child.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
