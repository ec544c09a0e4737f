"""The network between the daemons: what the emulated fabric loses, delays and reorders, rails that are pulled, and the loopback
of the campaign's own network namespace, cut or made slow."""
import contextlib
import subprocess

from campaign import Skip, Step
from child import PATIENCE, Violation


def link(daemon, peer, *options):
    answer = daemon.mkctl("link", "--peer", peer.name, *map(str, options), check=False)
    if answer.returncode != 0:
        raise Violation(f"mkctl link {options} on {daemon.name}: {answer.stderr}")


def fault_links(scene):
    """Loss, duplicates, reordering and delay on the links between two nodes of the emulated fabric."""
    one, other = scene.random.sample(scene.cluster.daemons, 2)
    faults = {"--drop": scene.random.choice((0, 0.01, 0.1)), "--duplicate": scene.random.choice((0, 0.01, 0.1)),
              "--reorder": scene.random.choice((0, 0.05, 0.3)), "--latency-us": scene.random.choice((0, 50, 2000))}
    try:
        for a, b in ((one, other), (other, one)):
            link(a, b, *[x for pair in faults.items() for x in pair])
        scene.pause(0.3, 1.0)
    finally:
        for a, b in ((one, other), (other, one)):
            link(a, b, *[x for name in faults for x in (name, 0)])
    return {"between": [one.name, other.name], **faults}


def pull_rail(scene):
    """One rail's wire pulled, sometimes the other's a moment later: its traffic takes another one, and comes back."""
    one, other = scene.random.sample(scene.cluster.daemons, 2)
    rails = scene.random.sample((0, 1), scene.random.choice((1, 1, 2)))
    try:
        for rail in rails:
            link(one, other, "--down", "--rail", rail)
            scene.pause(0.05, 0.5)
    finally:
        link(one, other, "--up")
    return {"between": [one.name, other.name], "rails": rails}


def pull_link(scene):
    """Every wire between two nodes pulled, for less than a peer may be out of reach."""
    one, other = scene.random.sample(scene.cluster.daemons, 2)
    link(one, other, "--down")
    try:
        scene.pause(0.1, 2.0)
    finally:
        link(one, other, "--up")
    return {"between": [one.name, other.name]}


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    return done.stderr.strip() if done.returncode else ""


def own_network(scene):
    if not scene.private_network:
        raise Skip("the loopback that everybody uses is left alone, and a network namespace takes root")


def cut_loopback(scene):
    """The interface that carries everything between the daemons goes down for a moment."""
    own_network(scene)
    if why := run("ip", "link", "set", "lo", "down"):
        raise Skip(f"lo cannot be set down: {why}")
    try:
        scene.pause(0.05, 1.0)
    finally:
        if why := run("ip", "link", "set", "lo", "up"):
            raise RuntimeError(f"lo does not come up again: {why}")
    return {}


@contextlib.contextmanager
def netem(scene, *options):
    own_network(scene)
    if why := run("tc", "qdisc", "add", "dev", "lo", "root", "netem", *options):
        raise Skip(f"tc has no netem here: {why}")
    try:
        yield
    finally:
        if why := run("tc", "qdisc", "del", "dev", "lo", "root"):
            raise RuntimeError(f"the qdisc of lo cannot be removed: {why}")


def slow_network(scene):
    """Delay with jitter, loss, duplicates and reordering of the packets between the daemons, by the kernel."""
    options = scene.random.choice((
        ["delay", "5ms", "3ms"], ["loss", "1%"], ["loss", "5%"], ["delay", "2ms", "reorder", "25%", "50%"],
                                   ["duplicate", "5%"], ["delay", "40ms"], ["corrupt", "0.5%"]))
    with netem(scene, *options):
        scene.pause(0.5, 2.0)
    return {"netem": options}


STEPS = [
    Step("fault_links", 4, fault_links, ("emulated",)),
    Step("pull_rail", 4, pull_rail, ("emulated",)),
    Step("pull_link", 2, pull_link, ("emulated",)),
    Step("cut_loopback", 2, cut_loopback),
    Step("slow_network", 3, slow_network),
]
