"""Strangers and tenants that say what nobody should: to the sockets of sessions, to data ports and to peer ports."""
import contextlib
import os
import pathlib
import random
import shutil
import socket
import struct
import time

import raw_client as raw
import tenant
from campaign import Skip, Step
from child import Violation
from cluster import Daemon, free_ports, wait_until

# The first message of a tcp data connection (daemon/transport/tcp/message.h), as it was before connections had to prove anything.
DATA_MAGIC, DATA_HELLO = 0x50434B4D, struct.Struct("<IIQQII64s32s")
DATA_CHALLENGE, DATA_WELCOME = struct.Struct("<IIII32s"), struct.Struct("<II32s")


def packets(channel, path, seed, count):
    """Packets of random bytes, and requests with a few bytes changed, each to a session of its own."""
    chooser, ended = random.Random(seed), 0
    for _ in range(count):
        with contextlib.suppress(OSError, ConnectionError, struct.error):
            client = raw.RawClient(path, timeout=5)
            try:
                if chooser.random() < 0.7:
                    client.hello("packets")
                    if chooser.random() < 0.7:
                        client.join(f"packets {seed}"[:50], timeout_ms=200)
                size = chooser.choice((0, 16, 32, 80, 96, 128, 464, 528, 576, chooser.randrange(1, 1025)))
                body = bytearray(chooser.randbytes(size) if chooser.random() < 0.5 else bytes(size))
                fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(chooser.choice((0, 0, 1, 2, 40)))]
                try:
                    client.send(chooser.choice((*range(9), 55, 101, 200, 65535)), bytes(body), fds)
                finally:
                    for fd in fds:
                        os.close(fd)
                client.socket.settimeout(0.5)
                answer = client.receive()
                ended += answer is None or answer[0] == raw.SESSION_ENDED
            finally:
                client.close()
    channel.say(ended=ended)


def session_garbage(scene):
    """Packets that are no message, or one with wrong content, to a session socket."""
    child = scene.spawn(packets, str(scene.daemon().socket), scene.seed, 60, uid=scene.stranger())
    return child.hear(60.0)


def slots(channel, sockets, group, seed):
    """Slots with random fields in the ring of a member of a group: its session ends, or they lie within what it may."""
    chooser = random.Random(seed)
    clients, _ = tenant.ranks(sockets, group, "slots")
    client, written = clients[0], 0
    while written < 3000 and not client.end():
        ring = chooser.randrange(len(client.doorbells))
        if client.room(ring) < 1:
            client.ring_all()
            continue
        near = lambda limit: chooser.choice((0, 1, limit - 1, limit, chooser.randrange(1 << 24)))
        wild = chooser.random() < 0.002
        channel_number = near(client.first_channel + 2 * client.lanes) if wild else client.first_channel + client.lanes + 2 * ring
        client.fill_slot(ring, client.positions[ring], channel_number, opcode=chooser.choice((0, 1, 2)) if wild else 1,
                         length=near(1 << 20) if wild else 64, local=(near(8) if wild else 0, chooser.randrange(1 << 20) // 2),
                         remote=(0, chooser.randrange(1 << 20) // 2), peer=near(2) if wild else 1,
                         reserved=chooser.randrange(2) if wild else 0)
        client.positions[ring] += 1
        written += 1
    client.ring_all()
    time.sleep(0.1)
    channel.say(written=written, ended=client.end()[:200])


def hostile_slots(scene):
    """Slots with random fields: at the worst the session that wrote them ends."""
    child = scene.spawn(slots, scene.pair(), f"slots {scene.seed}"[:60], scene.seed, uid=scene.stranger())
    return child.hear(60.0)


def words(channel, sockets, group, seed):
    """Groups between nodes that fail with words no text is made of, which every daemon of the group hears."""
    chooser, told = random.Random(seed), []
    for i in range(8):
        clients = [tenant.connect(path, "words") for path in sockets]
        tenant.join_all(clients, f"{group} {i}")
        clients[i % 2].fail(bytes(chooser.randrange(1, 256) for _ in range(chooser.choice((1, 30, 440, 447)))))
        until = time.monotonic() + 10
        while not (told_now := clients[1 - i % 2].end()) and time.monotonic() < until:
            time.sleep(0.001)
        told.append(bool(told_now))
        for client in clients:
            client.close()
    channel.say(told=told)


def hostile_words(scene):
    """Reasons of failures that are no UTF-8, control characters and all: the other ranks hear of the failure, links stay."""
    told = scene.spawn(words, scene.pair(), f"words {scene.seed}"[:50], scene.seed, uid=scene.stranger()).hear(120.0)["told"]
    if not all(told):
        raise Violation(f"ranks on another node did not hear of {told.count(False)} of {len(told)} failures")
    return {}


def noise(channel, addresses, seed, count, opening):
    """Connections that say random bytes, some of them behind something that looks right."""
    chooser = random.Random(seed)
    for _ in range(count):
        address = chooser.choice(addresses)
        unix = isinstance(address, str)
        with contextlib.suppress(OSError):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) if unix else socket.socket() as s:
                s.settimeout(0.2)
                s.connect(address if unix else tuple(address))
                for _ in range(chooser.randrange(1, 4)):
                    begin = bytes.fromhex(opening) if chooser.random() < 0.5 else b""
                    s.sendall(begin + chooser.randbytes(chooser.choice((0, 1, 8, 96, 500, 1000))))
                if chooser.random() < 0.3:
                    s.recv(4096)
    channel.say(said=count)


def noise_at(scene, addresses, opening):
    child = scene.spawn(noise, addresses, scene.seed, 60, opening.hex(), uid=scene.stranger())
    return child.hear(120.0)


def data_garbage(scene):
    """Random bytes to the data ports."""
    return noise_at(scene, [["127.0.0.1", p] for d in scene.cluster.daemons for p in scene.cluster.data_ports(d)],
                    struct.pack("<II", DATA_MAGIC, 2))


def peer_garbage(scene):
    """Random bytes to the peer ports, some behind the preface of HTTP/2."""
    return noise_at(scene, [["127.0.0.1", p] for d in scene.cluster.daemons for p in scene.cluster.peer_ports(d)],
                    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")


def emulated_garbage(scene):
    """Random packets to the sockets of the emulated fabric, by a stranger (who is sent away) or the daemons' own user."""
    if not scene.private_network:
        raise Skip("sockets of the emulated fabric are listed by network namespace, and this campaign has none of its own")
    names = {line.split()[7] for line in pathlib.Path("/proc/net/unix").read_text().splitlines()[1:]
             if len(line.split()) > 7 and line.split()[7].startswith("@mkernel-emulated-")}
    addresses = ["\0" + name[1:] for name in sorted(names)]
    if not addresses:
        raise Skip("no socket of the emulated fabric is listed in /proc/net/unix")
    uid = scene.random.choice((None, scene.stranger()))
    child = scene.spawn(noise, addresses, scene.seed, 60, struct.pack("<I", 1).hex(), uid=uid)
    return {"sockets": len(addresses), "uid": uid, **child.hear(120.0)}


def hello_to(port, node, boot_id, expected, chooser):
    """Says hello to a data port and proves nothing: (code of the welcome, everything that was said), the code None without one."""
    said, code = b"", None
    with socket.socket() as s, contextlib.suppress(OSError):
        s.settimeout(3)
        s.connect(("127.0.0.1", port))
        s.sendall(DATA_HELLO.pack(DATA_MAGIC, 2, boot_id, expected, 0, 1, node.encode(), chooser.randbytes(32)))
        said = s.recv(DATA_CHALLENGE.size, socket.MSG_WAITALL)
        s.sendall(chooser.choice((chooser.randbytes(32), bytes(32), said[-32:])))
        welcome = s.recv(DATA_WELCOME.size, socket.MSG_WAITALL)
        said += welcome
        if len(welcome) == DATA_WELCOME.size:
            code = DATA_WELCOME.unpack(welcome)[1]
            while more := s.recv(4096):
                said += more
    return code, said


def impersonate(channel, ports, boots, seed):
    """As every node to every other's data ports, with the ids that peers go by. Reports what was accepted or given away."""
    chooser, told, accepted, challenged = random.Random(seed), [], [], 0
    for name, own in ports.items():
        for port in own:
            for other in (*ports, "nobody"):
                if other == name:
                    continue
                code, said = hello_to(port, other, boots.get(other, 1), boots[name], chooser)
                challenged += len(said) >= DATA_CHALLENGE.size
                if code == 0:
                    accepted.append(f"{name} takes a stranger for {other}")
                if struct.pack("<Q", boots[name]) in said:
                    told.append(f"{name} tells a stranger its boot id")
    channel.say(told=told, accepted=accepted, challenged=challenged)


def data_impostor(scene):
    """A stranger that knows every boot id says at the data ports that it is a peer: nobody believes it."""
    ports = {d.name: scene.cluster.data_ports(d) for d in scene.cluster.daemons}
    boots = {p["node"]: int(p["boot_id"], 16) for d in scene.cluster.daemons for p in d.show("peers")}
    found = scene.spawn(impersonate, ports, boots, scene.seed, uid=scene.stranger()).hear(120.0)
    if found["accepted"] or found["told"]:
        raise Violation("; ".join(found["accepted"] + found["told"]))
    if not found["challenged"]:
        raise Violation("no data port asks a stranger for a proof: this step tries nothing")
    return found


@contextlib.contextmanager
def strange_daemon(scene, name, peers, **node_peers):
    """A mkerneld of another user, which the cluster's configuration does not know."""
    uid = scene.stranger()
    if uid is None or not shutil.which("setpriv"):
        raise Skip("a daemon of another user takes root and setpriv")
    folder = scene.folder / f"strange {name} {scene.seed}".replace("/", "-").replace(" ", "-")
    prefix = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--pdeathsig", "KILL"]
    daemon = Daemon(folder, name, free_ports(1)[0], peers, {"transport": {"kind": scene.cluster.kind}, "peers": node_peers,
                                                            "proxy": {"threads": 2}, "log": {"level": "warn"}}, prefix)
    for path in (folder, daemon.folder, daemon.config):
        os.chown(path, uid, uid)
    try:
        try:
            daemon.start()
        except (AssertionError, PermissionError) as error:
            raise Skip(f"user {uid} cannot run mkerneld: {str(error)[-200:]}") from None
        yield daemon
    finally:
        daemon.stop()
        shutil.rmtree(folder, ignore_errors=True)


def address_of(daemon):
    return daemon.sections["peers"]["listen"]


def peer_impostor(scene):
    """A daemon of another user, named by nobody's configuration, dials: it becomes nobody's peer."""
    with strange_daemon(scene, "stranger", [address_of(d) for d in scene.cluster.daemons]):
        scene.pause(1.0, 2.0)
        for daemon in scene.cluster.daemons:
            rows = [p for p in daemon.show("peers") if p["node"] == "stranger" and p["state"] in ("alive", "warn")]
            if rows:
                raise Violation(f"{daemon.name} has a peer that its configuration does not name: {rows[0]['address']}")
    return {}


def namesake(scene):
    """A daemon of another user with a peer's name and address dials: the real one's links and groups stay."""
    victim, robbed = scene.random.sample(scene.cluster.daemons, 2)
    with strange_daemon(scene, robbed.name, [address_of(victim)], advertise=address_of(robbed)):
        scene.pause(1.0, 2.5)
        scene.cluster.check_bystander()
    return {"victim": victim.name, "name": robbed.name}


def honest_rank(channel, path, name, rank):
    client = tenant.connect(path, "honest")
    channel.say(asking=True)
    answer = client.join(name, 2, rank, timeout_ms=8000)
    channel.say(code=answer[1], why=answer[2])
    channel.hear(30.0)


def rank_thief(scene):
    """A user joins under the name of another user's group: it is another group, and the honest rank still gets in."""
    uid = scene.stranger()
    if uid is None:
        raise Skip("two users take root")
    pair, name = scene.pair(), f"wedding {scene.seed}"[:60]
    first = scene.spawn(honest_rank, pair[0], name, 0)
    first.hear()
    daemon = next(d for d in scene.cluster.daemons if str(d.socket) == pair[0])
    wait_until(lambda: any(g["name"] == name for g in daemon.show("groups")), "rank 0 waits", 10)
    thief = scene.spawn(honest_rank, pair[1], name, 1, uid=uid)
    thief.hear()
    answer = thief.channel.hear(1.5)  # it waits for a group of its own
    if answer and answer.get("code") == 0:
        raise Violation(f"user {uid} took rank 1 of user {os.getuid()}'s group")
    thief.kill()
    second = scene.spawn(honest_rank, pair[1], name, 1)
    second.hear()
    for rank, child in enumerate((first, second)):
        answer = child.hear()
        if answer["code"]:
            raise Violation(f"rank {rank} of a group that a stranger tried to enter: {answer['why']}")
    return {}


STEPS = [
    Step("session_garbage", 3, session_garbage),
    Step("hostile_slots", 3, hostile_slots),
    Step("hostile_words", 2, hostile_words),
    Step("data_garbage", 2, data_garbage, ("tcp",)),
    Step("peer_garbage", 2, peer_garbage),
    Step("emulated_garbage", 2, emulated_garbage, ("emulated",)),
    Step("data_impostor", 2, data_impostor, ("tcp",)),
    Step("peer_impostor", 1, peer_impostor),
    Step("namesake", 1, namesake),
    Step("rank_thief", 2, rank_thief),
]
