"""Floods: connections that say nothing, sessions, joins, regions, failures and puts, as many as a tenant or stranger can make."""
import os
import resource
import select
import socket
import struct
import time

import raw_client as raw
import tenant
from campaign import Step
from child import Violation
from newcomer import must_get_in

MANY = {resource.RLIMIT_NOFILE: 16384 if os.getuid() == 0 else resource.getrlimit(resource.RLIMIT_NOFILE)[1]}


def silent(channel, addresses, count):
    """`count` connections to each address that say nothing, opened again whenever one is closed. An address is a path of a
    Unix socket or [host, port]."""
    poll, open_now, owed, refused = select.poll(), {}, [a for a in addresses for _ in range(count)], 0

    def connect(address):
        unix = isinstance(address, str)
        try:
            s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) if unix else socket.socket()
        except OSError:
            return None  # its own descriptors have run out
        s.setblocking(False)
        try:
            s.connect(address if unix else tuple(address))
        except BlockingIOError:
            if unix:  # its backlog is full
                s.close()
                return None
        except OSError:
            s.close()
            return None
        return s

    said = False
    while True:
        again, begin = [], time.monotonic()
        for address in owed:
            s = connect(address)
            if s is None:
                refused += 1
                again.append(address)
                continue
            open_now[s.fileno()] = (s, address)
            poll.register(s, select.POLLIN | select.POLLHUP)
        owed = again
        for fd, _ in poll.poll(20):
            s, address = open_now[fd]
            try:
                alive = s.recv(4096)
            except BlockingIOError:
                continue
            except OSError:
                alive = b""
            if not alive:
                poll.unregister(fd)
                del open_now[fd]
                s.close()
                owed.append(address)
        if not said:
            channel.say(open=len(open_now), refused=refused)
            said = True
        if channel.hear(max(0.0, 0.02 - (time.monotonic() - begin))):
            return


def flood_session_socket(scene):
    """400 silent connections of one user to each session socket, renewed when they are closed: another user gets in."""
    child = scene.spawn(silent, scene.cluster.sockets(), 400, uid=scene.stranger(), limits=MANY)
    found = child.hear()
    must_get_in(scene, "another user holds 400 connections that say nothing")
    return found


def many_sessions(channel, path, count):
    """Sessions of one user, each asking for the largest weight."""
    clients, why = [], ""
    for i in range(count):
        client = raw.RawClient(path)
        answer = client.ask(raw.HELLO, struct.pack("<64siI8x", f"many {i}".encode(), -1, 64))
        for fd in answer[4]:
            os.close(fd)
        if answer[1]:
            why = answer[2]
            break
        clients.append(client)
    channel.say(count=len(clients), why=why)
    channel.hear(60.0)


def flood_sessions(scene):
    """One user opens sessions until it is refused: another user gets one."""
    child = scene.spawn(many_sessions, str(scene.daemon().socket), 400, uid=scene.stranger(), limits=MANY)
    found = child.hear(60.0)
    must_get_in(scene, f"another user holds {found['count']} sessions")
    return {"sessions": found["count"], "refused": found["why"][:120]}


def flood_control_socket(scene):
    """300 silent connections to a control socket: mkctl answers."""
    daemon, begin = scene.daemon(), time.monotonic()
    child = scene.spawn(silent_streams, str(daemon.control), 300, limits=MANY)
    opened = child.hear()["open"]
    answer = daemon.mkctl("status", check=False)
    if answer.returncode not in (0, 1):
        raise Violation(f"mkctl status beside 300 silent connections: {answer.returncode} {answer.stderr[-300:]}")
    return {"open": opened, "answered_s": round(time.monotonic() - begin, 3)}


def silent_streams(channel, path, count):
    held = []
    for _ in range(count):
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(0.2)
        try:
            s.connect(path)
        except OSError:
            s.close()
            break
        held.append(s)
    channel.say(open=len(held))
    channel.hear(60.0)


def flood_and_restart(scene, ports_of, count):
    """Silent connections to ports of every daemon but one; that one is restarted, and must find the others meanwhile."""
    victim = scene.daemon()
    addresses = [["127.0.0.1", p] for d in scene.cluster.daemons if d is not victim for p in ports_of(d)]
    child = scene.spawn(silent, addresses, count, uid=scene.stranger(), limits=MANY)
    found = child.hear()
    victim.kill()
    scene.restart(victim)
    must_get_in(scene, f"{found['open']} silent connections hold the ports between daemons")
    child.kill()
    return {"restarted": victim.name, **found}


def flood_data_ports(scene):
    """3,500 silent connections to each data port, while a peer comes back that needs those ports."""
    return flood_and_restart(scene, scene.cluster.data_ports, 3500)


def flood_peer_ports(scene):
    """4,300 silent connections to the peer ports, while a peer comes back that needs them."""
    peers = len(scene.cluster.daemons) - 1
    return flood_and_restart(scene, scene.cluster.peer_ports, 4300 // max(1, peers - 1))


def joins(channel, path, group, seconds):
    """60 joins outstanding at any time, each with a timeout of 1 ms, which nobody else takes part in."""
    client, number, begun, until = tenant.connect(path, "joins"), 0, 0, time.monotonic() + seconds
    while time.monotonic() < until:
        while number - begun < 60:
            client.start_join(f"{group} {number % 100000}", 2, 0, 1, 1, 1)
            number += 1
        answer = client.receive()
        if answer is None or answer[0] == raw.SESSION_ENDED:
            channel.say(joins=number, ended=answer[2] if answer else "closed")
            return
        begun += 1
    channel.say(joins=number, ended="")


def flood_joins(scene):
    """Joins as fast as a session can ask, each a message to every peer: links and other groups stay."""
    seconds = scene.random.uniform(2.0, 5.0)
    child = scene.spawn(joins, str(scene.daemon().socket), f"j {scene.seed}"[:50], seconds, uid=scene.stranger())
    return child.hear(60.0)


def regions(channel, sockets, group, seconds):
    """A region that is registered and unregistered as fast as the daemon answers: announcements to every peer."""
    clients, _ = tenant.ranks(sockets, group, "regions")
    fd, rounds, until = raw.memfd(4096), 0, time.monotonic() + seconds
    while time.monotonic() < until:
        if clients[0].register(1, fd, 0, 4096)[1] or \
                clients[0].ask(raw.UNREGISTER, struct.pack("<II8x", clients[0].group, 1))[1]:
            break  # a limit of the rate is an answer
        rounds += 1
    channel.say(rounds=rounds)


def flood_regions(scene):
    """Regions registered and unregistered as fast as the daemon answers, in a group between nodes."""
    child = scene.spawn(regions, scene.pair(), f"regions {scene.seed}"[:60], 2.0, uid=scene.stranger())
    return child.hear(60.0)


def failures(channel, sockets, group, seconds):
    """Groups between nodes that form, fail and are left."""
    rounds, until = 0, time.monotonic() + seconds
    clients = [tenant.connect(path, "failures") for path in sockets]
    why = ""
    while time.monotonic() < until and not why:
        try:
            tenant.join_all(clients, f"{group} {rounds}")
            clients[rounds % 2].fail(b"chaos " * 60)
            for client in clients:
                client.leave()
            rounds += 1
        except tenant.Lost as refused:
            why = str(refused)
    channel.say(rounds=rounds, why=why)


def flood_failures(scene):
    """Groups that form, fail and are left, as fast as it goes."""
    child = scene.spawn(failures, scene.pair(), f"fail {scene.seed}"[:50], 2.0, uid=scene.stranger())
    return child.hear(60.0)


def tiny_puts(channel, sockets, group):
    """Signals on every ring as fast as the rings take them, until it is ended."""
    clients, _ = tenant.ranks(sockets, group, "tiny")
    channel.say(ready=True)
    client = clients[0]
    while True:
        for lane in range(min(tenant.LANES, len(client.rings))):
            for _ in range(client.room(client.rings[lane])):
                client.put(1, lane, bell=False)
        client.ring_all()
        if why := client.end():
            return channel.say(ended=why)


def flood_puts(scene):
    """Four tenants of one user that put signals as fast as their rings take them."""
    pair, uid = scene.pair(), scene.stranger()
    children = [scene.spawn(tiny_puts, pair, f"tiny {i} {scene.seed}"[:60], uid=uid) for i in range(4)]
    for child in children:
        child.hear()
    scene.pause(0.5, 2.0)


STEPS = [
    Step("flood_session_socket", 2, flood_session_socket),
    Step("flood_sessions", 2, flood_sessions),
    Step("flood_control_socket", 1, flood_control_socket),
    Step("flood_data_ports", 1, flood_data_ports, ("tcp",)),
    Step("flood_peer_ports", 1, flood_peer_ports),
    Step("flood_joins", 2, flood_joins),
    Step("flood_regions", 2, flood_regions),
    Step("flood_failures", 2, flood_failures),
    Step("flood_puts", 3, flood_puts),
]
