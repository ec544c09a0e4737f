"""Tenants whose objects keep whoever touches them waiting: sockets that linger, memory with holes, files that are locked, replies that
nobody reads, groups that always have something to tell. Each lasts some seconds at most, and what is left of it ends with its process."""
import ctypes
import os
import signal
import socket
import struct
import subprocess
import threading
import time

import levels
import raw_client as raw
import tenant
from campaign import Step
from child import Violation
from newcomer import must_get_in

LINGER_S = 8         # of each socket, when nobody reads what it has to say
LATE_S = 3.0         # that a newcomer may take longer than five times as long as before
STOPS_WITHIN_S = 1.0 + 2.0 + LATE_S  # limits.drain_ms of the clusters, what a stop may take, and a busy machine
JOINS = 60           # that a session may have under way; in a second it may begin 100 (limits.joins_per_second)
PUNCH_HOLE = 1 | 2   # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
PAGE = os.sysconf("SC_PAGE_SIZE")


def lingering(count):
    """Sockets with data that is never read, whose last close waits for LINGER_S; and their listener, which must live as long."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    listener.bind(("127.0.0.1", 0))
    listener.listen(count)
    sockets = []
    for _ in range(count):
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        s.settimeout(10)
        s.connect(listener.getsockname())
        s.setblocking(False)
        try:
            while True:
                s.send(bytes(65536))
        except BlockingIOError:
            pass
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER_S))
        sockets.append(s)
    return sockets, listener


def send_and_let_go(client, sockets, packets):
    """Sends packets of (kind, body, sockets) and closes all sockets: the references of the daemon are the last ones, then. A process that
    is killed does not wait for what lingers, so such a process sends: the daemon may have closed its own references already."""
    begin, go = os.pipe()
    sender = os.fork()
    if sender == 0:
        try:
            os.read(begin, 1)
            for kind, body, fds in packets:
                client.send(kind, body, [s.fileno() for s in fds])
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    for s in sockets:
        os.close(s.detach())
    client.sequence += len(packets)
    os.write(go, b"g")
    os.waitpid(sender, 0)
    for end in (begin, go):
        os.close(end)


def unread(client, group):
    """Has the daemon read no further for a while: what a session may ask for in a second is used up, and more is waiting."""
    for rounds in range(3):
        for i in range(JOINS):
            client.start_join(f"{group} {rounds} {i}"[:60], 2, 0, 1, 1, 1)
        for _ in range(JOINS if rounds < 2 else 0):
            if client.receive() is None:
                raise tenant.Lost("the session ended while it joined")


def linger_in_a_packet(channel, path, group, count):
    """One packet that carries sockets that linger, and is no message."""
    client = tenant.connect(path, "linger")
    sockets, listener = lingering(count)
    unread(client, group)
    send_and_let_go(client, sockets, [(55, b"", sockets)])
    channel.say(sent=count)
    channel.hear(60.0)
    listener.close()


def linger_in_regions(channel, path, group, count):
    """Registrations of sockets that linger instead of memory, of which each is refused."""
    client = tenant.connect(path, "linger")
    tenant.need(client.join(group), "join")
    sockets, listener = lingering(count)
    register = lambda index: struct.pack("<IIIIQQ544x", client.group, index % tenant.CAPACITY, 1, 0, 0, PAGE)
    for index, s in enumerate(sockets):  # one by one: the daemon soon looks at each
        send_and_let_go(client, [s], [(raw.REGISTER, register(index), [s])])
    channel.say(sent=count)
    channel.hear(60.0)
    listener.close()


def must_answer(daemon, while_what):
    """A violation when the control thread is not there for mkctl."""
    begin = time.monotonic()
    answer = daemon.mkctl("status", "-o", "json", check=False)
    took = time.monotonic() - begin
    if answer.returncode not in (0, 1) or not answer.stdout:
        raise Violation(f"{daemon.name} does not answer while {while_what}: {answer.stderr[-300:]}")
    return round(1e3 * took, 1)


def newcomer_takes(scene, while_what):
    """Seconds until another user has a session, a group, regions, and has seen its puts arrive."""
    begin = time.monotonic()
    must_get_in(scene, while_what, 60.0)
    return time.monotonic() - begin


def beside(scene, daemon, while_what, function, *arguments):
    """What others get while a tenant runs `function` and has said what it does: an answer of the daemon, and a place."""
    before = newcomer_takes(scene, "nothing has begun yet")
    child = scene.spawn(function, *arguments, uid=scene.stranger())
    said = child.hear(60.0)
    answered = must_answer(daemon, while_what)
    took = newcomer_takes(scene, while_what)
    if took > LATE_S + 5 * before:
        raise Violation(f"a newcomer takes {took:.1f} s while {while_what}, and {before:.1f} s before")
    return {**said, "answered_ms": answered, "newcomer_s": round(took, 3), "newcomer_before_s": round(before, 3)}


def lingering_packet(scene):
    """A packet with 33 to 253 sockets whose close waits for seconds: nobody else waits with it, and what others held is given back."""
    daemon, count = scene.daemon(), scene.random.choice((33, 60, 253))
    before = levels.of(daemon.process.pid).mappings
    found = beside(scene, daemon, f"{count} sockets of another user's packet linger", linger_in_a_packet, str(daemon.socket),
                   f"linger {scene.seed}"[:50], count)
    until = time.monotonic() + LATE_S
    while (now := levels.of(daemon.process.pid).mappings) > before:
        if time.monotonic() > until:
            raise Violation(f"{daemon.name} holds {now} mappings, before {before}, while {count} sockets of another user's packet linger")
        time.sleep(0.05)
    return found


def lingering_stop(scene):
    """SIGTERM while sockets linger that were in packets and registrations: the daemon ends as soon as without them."""
    daemon = scene.daemon()
    for function in (linger_in_a_packet, linger_in_regions):
        scene.spawn(function, str(daemon.socket), f"linger {function.__name__} {scene.seed}"[:50], 16, uid=scene.stranger()).hear()
    begin = time.monotonic()
    daemon.process.send_signal(signal.SIGTERM)
    try:
        status = daemon.process.wait(60.0)
    except subprocess.TimeoutExpired:
        raise Violation(f"{daemon.name} does not end within 60 s of SIGTERM while sockets of a client linger") from None
    took = time.monotonic() - begin
    if status != 0 or took > STOPS_WITHIN_S:
        raise Violation(f"{daemon.name} ended with {status}, {took:.1f} s after SIGTERM, while sockets of a client linger")
    scene.close()
    return {"daemon": daemon.name, "stopped_s": round(took, 3), **scene.restart(daemon)}


def lingering_regions(scene):
    """Sockets whose close waits for seconds are registered as memory: others register theirs."""
    daemon = scene.daemon()
    return beside(scene, daemon, "8 sockets that linger are registered by another user", linger_in_regions, str(daemon.socket),
                  f"linger {scene.seed}"[:50], 8)


def unread_maps(channel, path, group, sessions, requests):
    """Sessions that ask for the memory of another rank again and again, and read no reply."""
    owner = tenant.connect(path, "owner")
    clients = [owner, *(tenant.connect(path, "unread") for _ in range(sessions))]
    tenant.join_all(clients, group, lanes=1)
    _, answer = owner.memory(0, PAGE, shared=1)
    tenant.need(answer, "register")
    asked, ended = 0, 0
    for client in clients[1:]:
        client.socket.setblocking(False)
        try:
            for _ in range(requests):
                client.send(raw.MAP, struct.pack("<IIII", client.group, 0, 0, 0))
                asked += 1
        except BlockingIOError:
            pass
        except OSError:
            ended += 1
    channel.say(asked=asked, ended=ended)
    channel.hear(60.0)


def unread_replies(scene):
    """Replies with descriptors that nobody reads: they count against the one who asked for them, and others get theirs."""
    daemon = scene.daemon()
    return beside(scene, daemon, "another user reads no replies", unread_maps, str(daemon.socket), f"unread {scene.seed}"[:50], 6, 600)


def punch(fd, size, until, punched):
    """Takes the memory out of a file again and again; `punched` gets how often, and why not."""
    libc = ctypes.CDLL(None, use_errno=True)
    while time.monotonic() < until:
        if libc.fallocate(fd, PUNCH_HOLE, ctypes.c_int64(0), ctypes.c_int64(size)) != 0:
            punched["why"] = os.strerror(ctypes.get_errno())
            return
        punched["count"] += 1


def holes(channel, sockets, group, size, seconds):
    """Puts between registered regions whose owner punches holes into them meanwhile."""
    clients = [tenant.connect(path, "holes") for path in sockets]
    tenant.join_all(clients, group)
    fds = [raw.memfd(size) for _ in clients]
    for client, fd in zip(clients, fds):
        tenant.need(client.register(0, fd, 0, size, shared=0), "register")
    tenant.wait_for_regions(clients, size)
    until, punched, put = time.monotonic() + seconds, [{"count": 0, "why": ""} for _ in fds], 0
    threads = [threading.Thread(target=punch, args=(fd, size, until, seen)) for fd, seen in zip(fds, punched)]
    for thread in threads:
        thread.start()
    channel.say(size=size)
    while time.monotonic() < until and not clients[0].end():
        if clients[0].room(clients[0].rings[0]) > 1:
            clients[0].put(1, 0, 1 << 20, (0, put % 64 << 20), (0, put % 64 << 20))
            put += 1
        time.sleep(0.001)
    for thread in threads:
        thread.join()
    channel.say(puts=put, punched=punched, ended=clients[0].end()[:120])


def punched_holes(scene):
    """Holes punched into registered memory under puts: the daemons' memory and the neighbours' time stay what they were."""
    return beside(scene, scene.daemon(), "another user punches holes into its memory", holes, scene.pair(), f"holes {scene.seed}"[:50],
                  128 << 20, 2.0)


def write_whole(fd, size, until):
    piece = bytes(size)
    while time.monotonic() < until:
        os.pwrite(fd, piece, 0)


def locked_file(channel, path, group, size, seconds):
    """A memory file that threads write all the time, and so keep locked, while pages of it are registered."""
    client = tenant.connect(path, "locked", timeout=120)
    tenant.need(client.join(group), "join")
    fd = raw.memfd(size)
    until = time.monotonic() + seconds
    threads = [threading.Thread(target=write_whole, args=(fd, size, until)) for _ in range(32)]
    for thread in threads:
        thread.start()
    for index in range(tenant.CAPACITY):
        client.send(raw.REGISTER, struct.pack("<IIIIQQ544x", client.group, index, 1, 0, PAGE * index, PAGE), [fd])
    channel.say(asked=tenant.CAPACITY)
    for thread in threads:
        thread.join()
    channel.hear(60.0)


def locked_memory(scene):
    """Memory whose file is locked by its writers is registered: others register theirs meanwhile."""
    daemon = scene.daemon()
    return beside(scene, daemon, "another user registers memory that its own threads keep locked", locked_file, str(daemon.socket),
                  f"locked {scene.seed}"[:50], 256 << 20, 8.0)


def busy_group(channel, path, group, world, sessions, seconds):
    """All ranks of one node's group in some sessions, which exchange and register as fast as the daemon answers."""
    clients = [tenant.connect(path, "busy", timeout=60) for _ in range(sessions)]
    for rank in range(world):
        clients[rank % sessions].start_join(group, world, rank, 1, 2, 20000)
    handles = []
    for rank in range(world):
        answer = clients[rank % sessions].receive()
        if answer is None or answer[1]:
            return channel.say(ranks=rank, refused=answer[2][:120] if answer else "session closed")
        handles.append(struct.unpack_from("<I", answer[3])[0])
        for fd in answer[4]:
            os.close(fd)
    channel.say(ranks=world, refused="")
    fd, until, rounds = raw.memfd(PAGE), time.monotonic() + seconds, 0
    while time.monotonic() < until:
        rounds += 1
        for rank, handle in enumerate(handles):
            clients[rank % sessions].send(raw.EXCHANGE, struct.pack("<IIQ512x", handle, 0, rounds))
        first = clients[0]
        first.send(raw.REGISTER, struct.pack("<IIIIQQ544x", handles[0], 1, 1, 0, 0, PAGE), [fd])
        first.send(raw.UNREGISTER, struct.pack("<II8x", handles[0], 1))
        for index, client in enumerate(clients):
            for _ in range(len(range(index, world, sessions)) + (2 if index == 0 else 0)):
                answer = client.receive()
                if answer is None or answer[0] == raw.SESSION_ENDED:
                    return channel.say(rounds=rounds, ended=answer[2][:120] if answer else "closed")
    channel.say(rounds=rounds, ended="")
    channel.hear(60.0)


def busy_ranks(scene):
    """Up to 256 ranks of one node that exchange, register and unregister in a loop: others are served meanwhile."""
    daemon, world = scene.daemon(), scene.random.choice((64, 128, 256))
    return beside(scene, daemon, f"{world} ranks of another user exchange", busy_group, str(daemon.socket), f"busy {scene.seed}"[:50],
                  world, 8, 4.0)


STEPS = [
    Step("lingering_packet", 2, lingering_packet),
    Step("lingering_regions", 2, lingering_regions),
    Step("lingering_stop", 1, lingering_stop),
    Step("unread_replies", 2, unread_replies),
    Step("punched_holes", 2, punched_holes),
    Step("locked_memory", 1, locked_memory),
    Step("busy_ranks", 2, busy_ranks),
]
