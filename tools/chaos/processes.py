"""Processes that die, stand still or fork: clients, ranks of operations, daemons."""
import os
import pathlib
import random
import signal
import subprocess
import time

import levels
import tenant
from campaign import Skip, Step
from child import Violation, become
from cluster import BIN, read_threads

RANK = ["gemm_ar", "--m", "128", "--n", "64", "--k", "64", "--iterations", "100000", "--deadline", "30", "--join-timeout", "20"]


def runs(pid):
    """Whether the process is there and has not ended."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def descendants(pid):
    """Every process below `pid`, any of which may end meanwhile."""
    found = []
    for children in read_threads(pid, "children"):
        for child in map(int, children.split()):
            found += [child, *descendants(child)]
    return found


def traffic(channel, sockets, group):
    """A tenant with a rank on each node that puts as fast as it can until it is ended."""
    clients, _ = tenant.ranks(sockets, group, "traffic")
    channel.say(ready=True)
    chooser = random.Random(group)
    while True:
        for rank, client in enumerate(clients):
            if why := client.end():
                channel.say(ended=why)
                return
            for _ in range(16):
                lane = chooser.randrange(tenant.LANES)
                if client.room(client.rings[lane % len(client.rings)]) > 1:
                    client.put((rank + 1) % len(clients), lane, chooser.choice((0, 64, 50000)), (0, 0), (0, 4096))


def short_life(channel, path, seed, rounds):
    """Session, group, region, a few puts, and an end by SIGKILL in the middle of any of them; `rounds` lives, each a process."""
    chooser = random.Random(seed)
    for life in range(rounds):
        cut = chooser.randrange(5)
        pid = os.fork()
        if pid == 0:
            try:
                client = tenant.connect(path, "short life")
                if cut > 0:
                    client.join(f"short {seed} {life}")
                if cut > 1:
                    _, answer = client.memory(0)
                    tenant.need(answer, "register")
                for _ in range(64 if cut > 2 else 0):
                    client.put(0, 0, 4096 if cut > 3 else 0, (0, 0), (0, 8192))
            except Exception:
                os._exit(1)
            os.kill(os.getpid(), signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status != -signal.SIGKILL:
            raise RuntimeError(f"life {life} of {rounds} ended with {status}: the daemon took no session or group from it")
        if life % 50 == 49:
            channel.say(lives=life + 1)
    channel.say(lives=rounds)


def kill_client(scene):
    """SIGKILL to a client in traffic between two nodes."""
    child = scene.spawn(traffic, scene.pair(), f"kill {scene.seed}", uid=scene.stranger())
    child.hear()
    scene.pause(0.0, 0.3)
    child.kill()


def kill_many(scene, lives):
    daemon = scene.daemon()
    before = levels.of(daemon.process.pid)
    child = scene.spawn(short_life, str(daemon.socket), scene.seed, lives, uid=scene.stranger())
    done = 0
    while done < lives:
        done = child.hear(60.0)["lives"]
    child.reap()
    wait_for_no_strangers(scene, daemon)
    grown = levels.of(daemon.process.pid).rss - before.rss
    if grown > 16 * levels.MIB and not before.sanitized:
        raise Violation(f"{daemon.name} grew by {grown / levels.MIB:.1f} MiB over {lives} killed clients")
    return {"lives": lives, "grown_mib": round(grown / levels.MIB, 2)}


def wait_for_no_strangers(scene, daemon, seconds=20.0):
    """Until the daemon lists no session but the bystander's."""
    until = time.monotonic() + seconds
    while sessions := [s for s in daemon.show("sessions") if s["client_name"] != "bystander"]:
        if time.monotonic() > until:
            raise Violation(f"{daemon.name} keeps {len(sessions)} sessions of dead clients after {seconds:.0f} s")
        time.sleep(0.05)


def kill_100_clients(scene):
    """SIGKILL to a hundred clients one after the other, at any point of their life."""
    return kill_many(scene, 100)


def kill_1000_clients(scene):
    """The same a thousand times: what the daemon holds stays flat."""
    return kill_many(scene, 1000)


def stop_client(scene):
    """SIGSTOP to a client in traffic, which then reads nothing; later it goes on or is killed."""
    child = scene.spawn(traffic, scene.pair(), f"stop {scene.seed}", uid=scene.stranger())
    child.hear()
    child.signal(signal.SIGSTOP)
    scene.pause(0.2, 1.0)
    if scene.random.random() < 0.5:
        child.signal(signal.SIGCONT)
        scene.pause(0.05, 0.2)


def forked(channel, path, group):
    """A client that forks: the child keeps socket, memory and doorbells, the parent is killed."""
    client = tenant.connect(path, "forked")
    tenant.need(client.join(group), "join")
    _, answer = client.memory(0)
    tenant.need(answer, "register")
    if os.fork() == 0:
        channel.say(child=os.getpid())
        try:
            channel.hear(60.0)  # its own end: the campaign hangs up, or says so
        finally:
            os._exit(0)
    signal.pause()


def fork_client(scene):
    """A client that forks and dies, while its child keeps every descriptor open: the session ends with the client."""
    daemon = scene.daemon()
    child = scene.spawn(forked, str(daemon.socket), f"fork {scene.seed}", uid=scene.stranger())
    child.hear()
    child.signal(signal.SIGKILL)
    child.reap()
    wait_for_no_strangers(scene, daemon)
    child.say(do="end")  # to the forked child, which holds the other end of the pipe


def start_rank(rank, world, socket, group, uid):
    return subprocess.Popen([str(BIN / "mkbench"), "op", "--group", group, "--daemon", str(socket), *RANK],
                            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world)}, preexec_fn=lambda: become(uid))


def kill_rank(scene):
    """SIGKILL to one rank of a running operation: every other rank ends with an error that says which."""
    uid = scene.stranger()
    pair, group = scene.pair(), f"rank {scene.seed}"[:60]
    try:
        ranks = [start_rank(r, 4, pair[r // 2], group, uid) for r in range(4)]
    except PermissionError as error:
        raise Skip(f"user {uid} cannot run mkbench: {error}") from None
    try:
        daemon = next(d for d in scene.cluster.daemons if str(d.socket) == pair[0])
        until = time.monotonic() + 30
        while not any(c["puts_total"] and c["group"] == group for c in daemon.show("channels")):
            if time.monotonic() > until or any(r.poll() is not None for r in ranks):
                raise Violation("ranks of an operation put nothing: " + "; ".join(r.stderr.read()[-300:] for r in ranks if r.poll() is not None))
            time.sleep(0.02)
        victim = scene.random.randrange(4)
        ranks[victim].kill()
        for rank, process in enumerate(ranks):
            _, err = process.communicate(timeout=60)
            if rank != victim and (process.returncode != 1 or f"rank {victim}" not in err):
                raise Violation(f"rank {rank} ended with {process.returncode} after rank {victim} was killed: {err[-300:]}")
    except subprocess.TimeoutExpired:
        raise Violation(f"ranks do not end within 60 s of the death of rank {victim}") from None
    finally:
        for process in ranks:
            if process.poll() is None:
                process.kill()
            process.communicate()
    return {"victim": victim}


def kill_daemon(scene):
    """SIGKILL to a daemon, and its restart: the bystander gets an error, its next group works."""
    daemon = scene.daemon()
    daemon.kill()
    scene.pause(0.0, 1.0)
    return {"daemon": daemon.name, **scene.restart(daemon)}


def end_daemon(scene):
    """SIGTERM to a daemon in traffic: it ends with 0, and comes back."""
    daemon = scene.daemon()
    status = daemon.stop()
    if status != 0:
        raise Violation(f"{daemon.name} ended with {status} on SIGTERM: {daemon.tail()[-600:]}")
    return {"daemon": daemon.name, **scene.restart(daemon)}


def stop_daemon(scene):
    """SIGSTOP to a daemon for less than its peers wait: nothing is lost."""
    daemon = scene.daemon()
    daemon.process.send_signal(signal.SIGSTOP)
    try:
        scene.pause(0.1, 1.5)
    finally:
        daemon.process.send_signal(signal.SIGCONT)
    scene.cluster.wait_for_peers()
    scene.cluster.check_bystander()  # every proxy has had a round of its own
    scene.cluster.leave_out_slices(daemon)
    scene.cluster.bystander.say(do="go")
    return {"daemon": daemon.name}


STEPS = [
    Step("kill_client", 6, kill_client),
    Step("kill_100_clients", 2, kill_100_clients),
    Step("kill_1000_clients", 0.3, kill_1000_clients),
    Step("stop_client", 4, stop_client),
    Step("fork_client", 3, fork_client),
    Step("kill_rank", 2, kill_rank),
    Step("kill_daemon", 2, kill_daemon),
    Step("end_daemon", 2, end_daemon),
    Step("stop_daemon", 3, stop_daemon),
]
