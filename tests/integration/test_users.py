"""Two users on one node and over two: whose a group is, what one may take of the node, and that the other goes on."""
import contextlib
import ctypes
import errno
import grp
import json
import os
import pathlib
import subprocess
import sys
import time
import unittest

import raw_client as raw
from cluster import BIN, ClusterTest, Daemon, free_ports, wait_until

DEADLINE_EXCEEDED, PERMISSION_DENIED, RESOURCE_EXHAUSTED = 4, 7, 8
NOBODY = 65534
SECRET = bytes(range(32))


@contextlib.contextmanager
def as_user(uid, gids=()):
    """What connects in here is that user's: the kernel tells the daemon the effective ids as of connect()."""
    groups = os.getgroups()
    os.setgroups(list(gids))
    os.setegid(uid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


class Users(ClusterTest):
    def open_nodes(self, count, settings=None, prefix=()):
        """Daemons that every user may connect to."""
        self.folder.chmod(0o711)
        ports = free_ports(count)
        settings = {"node": {"socket_mode": "0666"}, **(settings or {})}
        for i in range(count):
            peers = [f"127.0.0.1:{port}" for j, port in enumerate(ports) if j != i]
            daemon = Daemon(self.folder, f"node{i}", ports[i], peers, settings, prefix)
            daemon.folder.chmod(0o711)
            self.daemons.append(daemon)
        for daemon in self.daemons:
            daemon.start()
        for daemon in self.daemons:
            self.wait_for_peers(daemon, count - 1)
        return self.daemons

    def client(self, node, uid=0, gids=(), hello=True):
        with as_user(uid, gids):
            client = raw.RawClient(node.socket)
        self.addCleanup(client.close)
        if hello:
            self.assertEqual(client.hello()[1], 0)
        return client

    def test_two_users_have_a_group_of_one_name_each(self):
        # Whoever waited under a name first kept every other user of the cluster from it, for a day.
        here, there = self.open_nodes(2)
        squatter = self.client(here, NOBODY)
        for name in ("train", "eval"):
            squatter.start_join(name, world=2, rank=0, timeout_ms=60000)
        wait_until(lambda: len(here.show("groups")) == 2, "another user waits under both names")
        first, second = self.client(here), self.client(there)
        first.start_join("train", world=2, rank=0, timeout_ms=60000)
        self.assertEqual(second.join("train", world=2, rank=1)[1], 0)
        self.assertEqual(first.finish_join()[1], 0)
        shown = [(g["name"], g["owner"], g["state"]) for g in here.show("groups")]
        self.assertCountEqual(shown, [("train", f"user {NOBODY}", "forming"), ("eval", f"user {NOBODY}", "forming"),
                                      ("train", "user 0", "ready")])
        # Who has mistaken the user, or the secret, is told so when time is up, and not who the others are.
        late = self.client(there)
        answer = late.join("eval", world=2, rank=1, timeout_ms=1000)
        self.assertEqual(answer[1], DEADLINE_EXCEEDED)
        self.assertIn("ranks of another owner waited under the same name", answer[2])
        self.assertNotIn(str(NOBODY), answer[2])

    def test_a_secret_joins_users_of_different_nodes(self):
        here, there = self.open_nodes(2)
        owner = self.client(here)
        owner.start_join("train", world=2, rank=0, timeout_ms=60000, secret=SECRET)
        wait_until(lambda: here.show("groups"), "the owner waits")
        self.assertRegex(here.show("groups")[0]["owner"], "^secret [0-9a-f]{16}$")
        stranger = self.client(there)  # the same uid, and that is not enough
        answer = stranger.join("train", world=2, rank=1, timeout_ms=1000)
        self.assertEqual(answer[1], DEADLINE_EXCEEDED)
        self.assertIn("ranks of another owner waited under the same name", answer[2])
        neighbour = self.client(here, NOBODY)  # memory of one node is one user's, secret or not
        self.assertEqual(neighbour.join("train", world=2, rank=1, secret=SECRET)[1], PERMISSION_DENIED)
        partner = self.client(there, NOBODY)
        self.assertEqual(partner.join("train", world=2, rank=1, secret=SECRET)[1], 0)
        self.assertEqual(owner.finish_join()[1], 0)
        # And it is a group like any other: a signal arrives.
        owner.write_slot(owner.first_channel + 4, 0, peer=1)
        wait_until(lambda: partner.arrivals(source=0) == 1, "the signal arrives")

    def test_users_whom_a_user_namespace_does_not_map_are_refused(self):
        # All of them were one user to such a daemon: one joined the group of another, and read and wrote its memory.
        if subprocess.run(["unshare", "-U", "-r", "true"], capture_output=True).returncode != 0:
            self.skipTest("no user namespace can be made here")
        (node,) = self.open_nodes(1, prefix=("unshare", "-U", "-r"))
        self.assertEqual(self.client(node).join("mine")[1], 0)  # root is mapped
        for uid in (1001, 1002, NOBODY):
            refusal = self.client(node, uid, hello=False).end_of_session()
            self.assertIn(f"uid {NOBODY} stands for every user that the user namespace of this daemon does not map", refusal)
            self.assertIn("/proc/self/uid_map maps 1 of 4294967295 user ids", refusal)
        self.assertEqual({u["uid"] for u in node.show("users")}, {0})
        findings = json.loads(node.mkctl("doctor", "-o", "json", check=False).stdout)["findings"]
        said = [f["what"] for f in findings if f["check"] == "user_namespace" and f["severity"] == "warning"]
        self.assertEqual(said, ["the daemon runs in a user namespace that maps 1 user ids of 4294967295"])

    def test_a_folder_of_another_user_is_no_place_for_the_sockets(self):
        # Its owner made a daemon of root change the mode of any file, by a link in the place of the socket.
        self.folder.chmod(0o711)
        for owner, mode, what in ((NOBODY, 0o755, "belongs neither to root nor to uid 0"), (0, 0o777, "may be written by others")):
            daemon = Daemon(self.folder, f"of-{owner}", free_ports(1)[0], [])
            os.chown(daemon.folder, owner, owner)
            daemon.folder.chmod(mode)
            run = subprocess.run([BIN / "mkerneld", "--config", daemon.config], capture_output=True, text=True, timeout=60)
            self.assertNotEqual(run.returncode, 0)
            self.assertIn(f"node.runtime_dir \"{daemon.folder}\": {daemon.folder} (owner uid {owner}, mode {mode:04o}) {what}", run.stderr)
            self.assertFalse(daemon.socket.exists())

    def test_socket_mode_and_group_hold_whatever_the_umask_is(self):
        for umask, mode in (("0077", 0o666), ("0000", 0o640)):
            with self.subTest(umask=umask):
                (node,) = self.open_nodes(1, {"node": {"socket_mode": f"{mode:04o}", "socket_group": "daemon"}},
                                          prefix=("sh", "-c", f'umask {umask}; exec "$@"', "sh"))
                found = node.socket.stat()
                self.assertEqual((found.st_mode & 0o7777, found.st_gid), (mode, grp.getgrnam("daemon").gr_gid))
                node.stop()
                self.daemons.clear()

    def test_two_users_do_not_keep_out_a_third(self):
        # Each within its own limits, two users held all sessions, or all connections without a hello, and a third was turned away.
        limits = {"limits": {"max_sessions": 16, "hello_timeout_ms": 120000}, "users.default": {"max_sessions": 8, "max_connections": 40}}
        (node,) = self.open_nodes(1, limits)
        first, second = 2001, 2002
        for uid, count in ((first, 8), (second, 4)):
            for _ in range(count):
                self.client(node, uid)
        answer = self.client(node, second, hello=False).hello()
        self.assertEqual(answer[1], RESOURCE_EXHAUSTED)
        self.assertIn("node node0 has 12 sessions of 16 (by limits.max_sessions = 16), and the last 4 are for users who hold fewer than 1, "
                      "an eighth of users.default.max_sessions: user 2002 holds 4", answer[2])
        self.client(node, 2003)
        # 80 connections are there for all, of which the last 20 are for those who hold fewer than 5.
        silent = [self.client(node, first, hello=False) for _ in range(32)]
        for _ in range(60 - 8 - 5 - 1 - 32):
            self.client(node, second, hello=False)
        wait_until(lambda: sum(u["connections"] for u in node.show("users")) == 60, "three quarters are taken")
        refusal = self.client(node, second, hello=False).end_of_session()
        self.assertIn("node node0 has 60 connections of 80", refusal)
        self.assertIn("the last 20 are for users who hold fewer than 5, an eighth of users.default.max_connections", refusal)
        for uid in range(2010, 2014):
            for _ in range(5):
                self.client(node, uid, hello=False)
        wait_until(lambda: sum(u["connections"] for u in node.show("users")) == 80, "the room is full")
        self.client(node, 2020)
        self.assertIn("said no hello, its user has the most connections, and node node0 has 80 connections of 80",
                      silent[0].end_of_session())
        silent[0].close()  # it counts until its client has hung up
        held = lambda: {u["uid"]: u["connections"] for u in node.show("users")}
        wait_until(lambda: [held().get(uid) for uid in (first, second, 2020)] == [39, 19, 1], "the oldest silent connection is gone")

    def test_one_user_does_not_take_every_connection(self):
        (node,) = self.open_nodes(1, {"users.default": {"max_connections": 4, "max_sessions": 2}})
        silent = [self.client(node, NOBODY, hello=False) for _ in range(4)]
        wait_until(lambda: [u for u in node.show("users") if u["connections"] == 4], "four silent connections")
        one_more = self.client(node, NOBODY, hello=False)
        self.assertIn(f"of user {NOBODY} are above users.default.max_connections = 4", one_more.end_of_session())
        for client in silent[:2]:
            self.assertEqual(client.hello()[1], 0)
        answer = silent[2].hello()
        self.assertEqual(answer[1], RESOURCE_EXHAUSTED)
        self.assertIn("above users.default.max_sessions = 2", answer[2])
        self.assertEqual(self.client(node).join("mine")[1], 0)
        users = {u["uid"]: u for u in node.show("users")}
        self.assertEqual((users[NOBODY]["sessions"], users[NOBODY]["connections"]), (2, 4))
        self.assertEqual(users[NOBODY]["refusals_total"], 2)
        self.assertEqual((users[0]["sessions"], users[0]["groups"], users[0]["name"]), (1, 1, "root"))

    def test_fds_run_out_for_those_who_took_them(self):
        # 20,000 regions of one user were followed by the end of another's session, as a breaker of the protocol.
        settings = {"limits": {"max_regions": 1000, "max_fds": 1000}}
        (node,) = self.open_nodes(1, settings, prefix=("prlimit", "--nofile=750:750"))
        victim = self.client(node)
        self.assertEqual(victim.join("victim")[1], 0)
        memory = raw.memfd(4096)
        attacker = self.client(node, NOBODY)
        self.assertEqual(attacker.join("attacker", capacity=256)[1], 0)
        refusals = [answer for answer in (attacker.register(i, memory, 0, 4096) for i in range(256)) if answer[1] != 0]
        self.assertGreater(len(refusals), 50)
        open_fds = node.open_fds()
        for answer in refusals:
            self.assertEqual(answer[1], RESOURCE_EXHAUSTED)
            # Beside the reserve of 93, and two packets of 253, the daemon keeps what it had open itself when it started, some twenty.
            self.assertRegex(answer[2], r"of node node0 are above what RLIMIT_NOFILE = 750 leaves = 1[123]\d$", open_fds)
        # The fd of a refused request counts until it is closed, so the last refusals may have left room for a few.
        left = iter(range(256 - len(refusals), 256))
        wait_until(lambda: node.show("users") and attacker.register(next(left), memory, 0, 4096)[1] != 0, "no room is left")
        # The reserve: others are refused by name and still answered, mkctl included.
        own = raw.memfd(4096)
        answer = victim.register(0, own, 0, 4096)
        self.assertEqual(answer[1], RESOURCE_EXHAUSTED)
        self.assertIn("RLIMIT_NOFILE", answer[2])
        self.assertEqual({u["uid"] for u in node.show("users")}, {0, NOBODY})
        attacker.close()
        wait_until(lambda: victim.register(0, own, 0, 4096)[1] == 0, "the victim has what the attacker had")

    def sender_and_receiver(self, nodes, uid):
        """A group of that user with a rank on each node, and 64 KiB of each."""
        pair = [self.client(node, uid) for node in nodes]
        pair[0].start_join(f"of-{uid}", world=2, rank=0, timeout_ms=60000)
        self.assertEqual(pair[1].join(f"of-{uid}", world=2, rank=1, timeout_ms=60000)[1], 0)
        self.assertEqual(pair[0].finish_join()[1], 0)
        for client in pair:
            self.assertEqual(client.register(0, raw.memfd(1 << 16), 0, 1 << 16)[1], 0)
        wait_until(lambda: pair[0].region_bytes(1) == 1 << 16, "the sender knows where to put")
        return pair

    def test_two_users_share_a_rail_by_their_weights(self):
        # Whatever is queued behind the wire goes first come, first served: the shares hold only if little is.
        for transport in ("emulated", "tcp"):
            with self.subTest(transport=transport):
                nodes = self.open_nodes(2, {"transport": {"kind": transport}, "transport.emulated": {"bandwidth_gbytes": 0.2},
                                            f"users.{NOBODY}": {"weight": 3}})
                pairs = [self.sender_and_receiver(nodes, uid) for uid in (0, NOBODY)]

                def send(seconds):
                    """Both rings are never empty; how many puts have arrived then."""
                    end = time.monotonic() + seconds
                    while time.monotonic() < end:
                        for sender, _ in pairs:
                            for _ in range(min(sender.room() - 1, 256)):
                                sender.write_slot(sender.first_channel + 4, 1 << 16, 1)
                        time.sleep(0.002)
                    return [receiver.arrivals() for _, receiver in pairs]

                begin = send(1.0)
                one, three = (after - before for before, after in zip(begin, send(2.0)))
                self.assertGreater(one, 200)
                self.assertAlmostEqual(three / one, 3, delta=0.15, msg=f"{one} and {three} puts")
                for client in (client for pair in pairs for client in pair):
                    client.close()
                for node in nodes:
                    node.stop()
                self.daemons.clear()

    def test_a_flood_of_joins_is_read_slowly_and_leaves_the_link_alone(self):
        # 65,537 unacknowledged messages, within three seconds, were the end of the link and of everybody's groups.
        here, there = self.open_nodes(2)
        ranks = [self.client(here), self.client(there)]
        ranks[0].start_join("victim", world=2, rank=0, timeout_ms=60000)
        self.assertEqual(ranks[1].join("victim", world=2, rank=1, timeout_ms=60000)[1], 0)
        self.assertEqual(ranks[0].finish_join()[1], 0)
        attacker = self.client(here, NOBODY)
        sent_before = {p["node"]: p["sent_total"] for p in here.show("peers")}["node1"]
        begin, outstanding, joins = time.monotonic(), 0, 0
        attacker.socket.settimeout(30)
        while joins < 1400:
            while outstanding < 60:
                attacker.start_join(f"flood-{joins}", world=2, rank=0, timeout_ms=1)
                outstanding, joins = outstanding + 1, joins + 1
            self.assertIsNotNone(attacker.receive())
            outstanding -= 1
        seconds = time.monotonic() - begin
        self.assertGreater(seconds, (1400 - 60 - 1000) / 100 / 2)  # 1,000 at once, then 100 a second; some are refused at once
        sent = {p["node"]: p["sent_total"] for p in here.show("peers")}["node1"] - sent_before
        self.assertLess(sent, 5 * (1000 + 100 * (seconds + 1)))
        self.assertEqual([p["state"] for p in here.show("peers")], ["alive"])
        self.assertEqual([g["state"] for g in there.show("groups")], ["ready"])
        for number, rank in enumerate(ranks):
            rank.write_slot(rank.first_channel + 4 * (1 - number), 0, peer=1 - number)
        wait_until(lambda: ranks[1].arrivals(source=0) == 1 and ranks[0].arrivals(source=1) == 1, "signals arrive")

    def test_who_may_connect_is_the_operators_to_say_and_to_change(self):
        (node,) = self.open_nodes(1, {"users.default": {"may_connect": False}, "users.0": {"may_connect": True}})
        stranger = self.client(node, NOBODY, hello=False)
        self.assertIn("users.default.may_connect = false", stranger.end_of_session())
        self.client(node)
        node.write_config({**node.sections, 'users."@12345"': {"may_connect": True}})
        self.assertIn("users.@12345.may_connect", node.mkctl("reload").stdout)
        self.client(node, NOBODY, gids=[12345])
        self.client(node, NOBODY, hello=False).end_of_session()

    def test_memory_with_holes_is_refused(self):
        (node,) = self.open_nodes(1)
        client = self.client(node)
        self.assertEqual(client.join("g")[1], 0)
        answer = client.register(0, raw.memfd(1 << 20, populated=False), 0, 1 << 20)
        self.assertEqual(answer[1], 9)
        self.assertIn("has a hole at byte 0", answer[2])
        self.assertEqual(client.register(0, raw.memfd(1 << 20), 0, 1 << 20)[1], 0)

    @contextlib.contextmanager
    def memory_limit(self, node, limit):
        """The daemon may be charged for so many bytes more, where a memory cgroup can be made: more, and the kernel ends it."""
        group = pathlib.Path(f"/sys/fs/cgroup/memory/mkernel-users-{os.getpid()}")
        try:
            group.mkdir()
            (group / "memory.limit_in_bytes").write_text(str(limit))
            (group / "cgroup.procs").write_text(str(node.process.pid))
        except OSError:
            print("no memory cgroup: only the calls that would punch holes are tested")
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # no group was made, or the daemon is gone
                (group.parent / "cgroup.procs").write_text(str(node.process.pid))
            with contextlib.suppress(OSError):
                group.rmdir()

    def test_no_hole_is_punched_into_memory_that_has_been_registered(self):
        # Each store into a hole made a page that the daemon was charged for, until the kernel ended it.
        (node,) = self.open_nodes(1)
        size, piece = 512 << 20, 64 << 20
        client = self.client(node, NOBODY)
        self.assertEqual(client.join("holes")[1], 0)
        fd = raw.memfd(size)
        memory = raw.mmap.mmap(fd, size)
        self.assertEqual(client.register(0, fd, 0, size)[1], 0)
        with self.memory_limit(node, 200 << 20):
            punch, keep_size, remove = 2, 1, 9
            libc = ctypes.CDLL(None, use_errno=True)
            punched = libc.fallocate(fd, punch | keep_size, ctypes.c_long(0), ctypes.c_long(size)), ctypes.get_errno()
            address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
            removed = libc.madvise(address, ctypes.c_size_t(size), remove), ctypes.get_errno()
            memory[:8] = b"payload!"
            for i in range(1, size // piece):
                client.write_slot(client.first_channel, piece, local=(0, 0), remote=(0, i * piece))
                wait_until(lambda: client.arrivals() == i or node.process.poll() is not None, f"put {i} arrives")
                self.assertIsNone(node.process.poll(), "the daemon was charged for the pages")
        self.assertEqual((punched, removed), ((-1, errno.EPERM), (-1, errno.EPERM)))
        # A write holds the inode's lock for as long as it takes, and registering another part of the memfd waits for that lock.
        self.assertRaises(PermissionError, os.pwrite, fd, b"late", 0)
        self.assertEqual(client.register(1, fd, 4096, 8192)[1], 0)
        self.assertEqual([memory[i * piece:i * piece + 8] for i in range(size // piece)], [b"payload!"] * (size // piece))


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("skipped: a test of several users needs root, to act for each of them")
        sys.exit(77)
    unittest.main()
