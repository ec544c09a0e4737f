"""Tenants that use up what there is: rings, regions, descriptors, memory, groups."""
import os
import resource
import subprocess
import time

import raw_client as raw
import tenant
from campaign import Skip, Step
from cgroup import memory_limit
from child import Violation, become
from cluster import BIN
from newcomer import must_get_in

WINDOW, BATCH = 1024, 32  # puts of one channel under way; puts that a proxy takes at a time


def rings_filled(channel, sockets, group, overrun):
    """Every slot of every ring written at once, then, with `overrun`, half a lap more over what nobody has read."""
    clients, _ = tenant.ranks(sockets, group, "full rings")
    client = clients[0]
    channel.say(ready=True)
    for lane in range(min(tenant.LANES, len(client.rings))):
        slots = client.room(client.rings[lane])
        for _ in range(slots + (slots // 2 if overrun else 0)):
            client.put(1, lane, 4096, (0, 0), (0, 65536), bell=False)
    client.ring_all()
    channel.hear(5.0)


def fill_rings(scene):
    """Rings written full, sometimes half a lap further, in one go."""
    overrun = scene.random.random() < 0.5
    child = scene.spawn(rings_filled, scene.pair(), f"rings {scene.seed}", overrun, uid=scene.stranger())
    child.hear()
    scene.pause(0.2, 0.6)
    return {"overrun": overrun}


class Membership:
    """One of several groups of a Tenant, which itself remembers the last one."""
    NAMES = ("group", "segment", "first_channel", "rings")

    def __init__(self, client):
        self.client, self.values = client, [getattr(client, name) for name in self.NAMES]

    def use(self):
        for name, value in zip(self.NAMES, self.values):
            setattr(self.client, name, value)
        return self.client


def window_stalled(channel, sockets, name, first, second):
    """A batch that the window stops in its middle, in a group that then fails and is left, with puts of another behind it. What
    stops is the last of its group in the ring: slots of a group that was left end the session."""
    clients = [tenant.connect(path, "stalled window") for path in sockets]
    groups = {}
    for which in "ab":
        tenant.join_all(clients, f"{name} {which}")
        groups[which] = [Membership(c) for c in clients]
    groups["a"][1].use().leave()  # in peace: from now on nothing of that group is acknowledged
    order = list(enumerate("b" * first + "a" * second + "b" * 200))
    ring = clients[0].rings[0]
    for position, which in order[1:] + order[:1]:  # the first slot last: until then the proxy sees nothing of it
        client = groups[which][0].use()
        client.positions[ring] = position
        client.put(1, 0, bell=False)
    client.positions[ring] = len(order)
    client.ring_all()
    time.sleep(0.05)  # the proxy comes to the end of the window
    client = groups["a"][0].use()
    try:
        client.fail()
        client.leave()
        groups["b"][0].use()
        groups["b"][1].use()
        clients[1].wait(32, 0, 0, first + 200, 10)
        channel.say(arrived=first + 200)
    except (tenant.Lost, OSError) as why:
        channel.say(arrived=f"{why}; sender: {clients[0].end()}")


def stall_in_batch(scene):
    """A batch that is half submitted when its group fails; the puts of the other group behind it must arrive."""
    first = scene.random.randrange(BATCH)
    second = WINDOW + BATCH - first
    child = scene.spawn(window_stalled, scene.pair(), f"stall {scene.seed}"[:58], first, second, uid=scene.stranger())
    arrived = child.hear()["arrived"]
    if arrived != first + 200:
        scene.pause(0.5, 0.5)  # a daemon that is dying takes a moment
        scene.cluster.check_alive()
        raise Violation(f"{first} + 200 puts of an unharmed group beside one that failed: {arrived}")
    return {"before": first, "stalled": second}


def many_regions(channel, path, limit):
    """Regions of one page each until the daemon refuses, in as many groups as it takes."""
    client = tenant.connect(path, "many regions")
    fd = raw.memfd(4096)
    count, why = 0, ""
    while count < limit and not why:
        if count % 256 == 0:
            answer = client.join(f"regions {os.getpid()} {count}", lanes=1, capacity=256)
            why = answer[2] if answer[1] else ""
        if not why:
            answer = client.register(count % 256, fd, 0, 4096)
            why, count = (answer[2] if answer[1] else ""), count + (answer[1] == 0)
    channel.say(count=count, why=why, ended=answer[0] == raw.SESSION_ENDED)
    channel.hear(60.0)


def exhaust_regions(scene):
    """One user registers regions until it is refused; others still get in."""
    daemon, uid = scene.daemon(), scene.stranger()
    children = [scene.spawn(many_regions, str(daemon.socket), 10000, uid=uid) for _ in range(2)]
    found = [child.hear(60.0) for child in children]
    for one in found:
        if one["ended"]:
            raise Violation(f"a request that breaks no rule ended its session after {one['count']} regions: {one['why']}")
    must_get_in(scene, f"another user holds {sum(f['count'] for f in found)} regions")
    return {"regions": [f["count"] for f in found], "refused": found[0]["why"][:120]}


def sparse_put(channel, sockets, group, size, count):
    """Puts between regions whose pages nobody has touched."""
    clients, _ = tenant.ranks(sockets, group, "sparse", memory=size, populated=False)
    chunk = size // count
    for i in range(count):
        clients[0].put(1, 0, chunk, (0, i * chunk), (0, i * chunk))
    clients[1].wait(32, 0, 0, count, 30)
    channel.say(done=True)


def put_untouched_memory(scene):
    """Puts between untouched pages, while a memory cgroup lets each daemon have less than they take: nobody is ended for it."""
    if scene.cluster.sanitized():
        raise Skip("a sanitizer's own memory counts against the limit")
    pair, size = scene.pair(), 384 << 20
    limited = scene.random.choice(pair)
    daemon = next(d for d in scene.cluster.daemons if str(d.socket) == limited)
    with memory_limit(daemon.process.pid, 192 << 20):
        child = scene.spawn(sparse_put, pair, f"sparse {scene.seed}", size, 12, uid=scene.stranger())
        try:
            child.hear(60.0)
            outcome = "arrived"
        except Violation as why:
            outcome = str(why)
        child.kill()
        scene.cluster.check_alive()
    return {"outcome": outcome[:200]}


def touched(channel, path, group, size):
    """A client with memory of its own, every page of it touched."""
    client = tenant.connect(path, "touched")
    tenant.need(client.join(group), "join")
    fd = raw.memfd(size)
    os.posix_fallocate(fd, 0, size)
    tenant.need(client.register(0, fd, 0, size), "register")
    channel.say(ready=True)
    channel.hear(60.0)


def kill_with_memory(scene):
    """SIGKILL to a client with up to 1 GiB of registered memory, which the daemon frees."""
    size = scene.random.randrange(256, 1024) << 20
    child = scene.spawn(touched, str(scene.daemon().socket), f"memory {scene.seed}", size, uid=scene.stranger())
    child.hear(60.0)
    child.kill()
    return {"bytes": size}


def large_put(channel, sockets, group, size, seconds):
    """Fails and leaves its group in the middle of one large put."""
    clients, _ = tenant.ranks(sockets, group, "large put", memory=size)
    clients[0].put(1, 0, size, (0, 0), (0, 0))
    time.sleep(seconds)
    clients[0].fail()
    clients[0].leave()
    channel.say(done=True)


def leave_in_large_put(scene):
    """A group that fails and is left in the middle of a put of some hundred MiB."""
    size = scene.random.choice((64, 256, 512)) << 20
    child = scene.spawn(large_put, scene.pair(), f"large {scene.seed}", size, scene.random.uniform(0.005, 0.05), uid=scene.stranger())
    child.hear(60.0)
    return {"bytes": size}


def wide_group(channel, path, group, world, lanes, sessions):
    """All ranks of a wide group in a few sessions of one process."""
    clients = [tenant.connect(path, "wide") for _ in range(sessions)]
    for rank in range(world):
        clients[rank % sessions].start_join(group, world, rank, lanes, 1, 20000)
    refused = ""
    for rank in range(world):
        answer = clients[rank % sessions].receive()
        if answer is None or answer[1]:
            refused = answer[2] if answer else "session closed"
            break
        for fd in answer[4]:
            os.close(fd)
    channel.say(refused=refused)
    channel.hear(60.0)


def leave_wide_group(scene):
    """A group of up to 128 ranks and 64 lanes in one process, which then dies; the same twice more, in memory that was used."""
    world, daemon, uid = scene.random.choice((32, 64, 96, 128)), scene.daemon(), scene.stranger()
    for life in range(3):
        child = scene.spawn(wide_group, str(daemon.socket), f"wide {life} {scene.seed}"[:60], world, 64, 4, uid=uid)
        refused = child.hear(60.0)["refused"]
        child.kill()
        scene.pause(0.3, 0.3)
    return {"ranks": world, "refused": refused[:120]}


def poor_client(scene):
    """A rank of an operation that may have few descriptors, threads or little memory: it ends with an error, not by a signal."""
    which, value = scene.random.choice(((resource.RLIMIT_NOFILE, 8), (resource.RLIMIT_NOFILE, 14), (resource.RLIMIT_NPROC, 1),
                                        (resource.RLIMIT_AS, 256 << 20)))
    uid = scene.stranger()
    if which == resource.RLIMIT_AS and scene.cluster.sanitized():
        raise Skip("a sanitizer needs address space without limit")
    if which == resource.RLIMIT_NPROC and uid is None:
        raise Skip("RLIMIT_NPROC takes a user of its own, and the campaign is not root")
    command = [str(BIN / "mkbench"), "op", "--group", f"poor {scene.seed}"[:60], "--daemon", str(scene.daemon().socket), "gemm_ar",
               "--m", "64", "--n", "64", "--k", "64", "--iterations", "1", "--deadline", "10", "--join-timeout", "10"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, "RANK": "0", "WORLD_SIZE": "1"},
                             preexec_fn=lambda: become(uid, {which: value}))
    except PermissionError as error:
        raise Skip(f"user {uid} cannot run mkbench: {error}") from None
    if run.returncode < 0:
        raise Violation(f"mkbench ended by signal {-run.returncode} at limit {which} = {value}: {run.stderr[-300:]}")
    return {"limit": which, "value": value, "status": run.returncode, "said": run.stderr[-120:]}


def client_out_of_memory(scene):
    """A client that the kernel ends for its memory in the middle of its puts."""
    child = scene.spawn(greedy, scene.pair(), f"greedy {scene.seed}", uid=scene.stranger())
    child.hear()
    with memory_limit(child.pid, 32 << 20):
        child.say(do="go")
        status = child.reap(60.0)
    return {"status": status}


def greedy(channel, sockets, group):
    clients, mappings = tenant.ranks(sockets, group, "greedy", memory=256 << 20)
    channel.say(ready=True)
    channel.hear(60.0)
    held = []
    for at in range(0, 256 << 20, 1 << 20):
        held.append(bytes([1]) * (1 << 20))
        mappings[0][at:at + (1 << 20)] = bytes(1 << 20)
        clients[0].put(1, 0, 65536, (0, at), (0, 0))


STEPS = [
    Step("fill_rings", 4, fill_rings),
    Step("stall_in_batch", 4, stall_in_batch),
    Step("exhaust_regions", 2, exhaust_regions),
    Step("put_untouched_memory", 1, put_untouched_memory),
    Step("kill_with_memory", 2, kill_with_memory),
    Step("leave_in_large_put", 2, leave_in_large_put),
    Step("leave_wide_group", 2, leave_wide_group),
    Step("poor_client", 2, poor_client),
    Step("client_out_of_memory", 1, client_out_of_memory),
]
