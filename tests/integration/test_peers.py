"""Who may be a peer of a daemon: other users of the machine, and daemons with the name of another one, against real
daemons. Only root can start daemons of two users; without it the first cases are skipped."""
import os
import re
import socket
import unittest

from cluster import ClusterTest, Daemon, free_ports, wait_until

NOBODY = 65534


def alive(daemon):
    return [p["node"] for p in daemon.show("peers") if p["state"] == "alive"]


class Peers(ClusterTest):
    def node(self, name, port, peers, settings=None, prefix=()):
        daemon = Daemon(self.folder, name, port, peers, settings, prefix)
        self.daemons.append(daemon)
        return daemon

    def start_as_nobody(self, daemon):
        """With a folder of its own, and without any right in those of others."""
        if os.geteuid() != 0:
            self.skipTest("only root can start a daemon as another user")
        os.chmod(self.folder, 0o711)
        for path in (daemon.folder, daemon.config):
            os.chown(path, NOBODY, NOBODY)
        daemon.prefix = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--"]
        return daemon.start()

    def logged(self, daemon, pattern):
        found = wait_until(lambda: re.search(pattern, daemon.log.read_text(errors="replace")),
                           f"{daemon.name} logs {pattern}: {daemon.tail()}")
        return found.group(0)


class OtherUsers(Peers):
    def test_a_node_without_peers_has_no_port_to_knock_at(self):
        port, other = free_ports(2)
        victim = self.node("victim", port, []).start()
        with socket.socket() as knocker, self.assertRaises(ConnectionRefusedError):
            knocker.connect(("127.0.0.1", port))
        thief = self.start_as_nobody(self.node("thief", other, [f"127.0.0.1:{port}"]))
        wait_until(lambda: thief.show("peers")[0]["reason"], "the thief finds nobody")
        self.assertEqual(victim.show("peers"), [])
        self.assertEqual(alive(thief), [])

    def test_another_user_who_dials_is_refused_by_name(self):
        port, missing, other = free_ports(3)
        victim = self.node("victim", port, [f"127.0.0.1:{missing}"]).start()
        thief = self.start_as_nobody(self.node("thief", other, [f"127.0.0.1:{port}"]))
        self.logged(victim, rf"refused a peer from 127\.0\.0\.1: uid {NOBODY} holds the connection")
        self.assertEqual(alive(victim), [])
        self.assertEqual([p["address"] for p in victim.show("peers")], [f"127.0.0.1:{missing}"])
        self.assertEqual(alive(thief), [])

    def test_another_user_at_the_port_of_a_peer_is_refused_by_name(self):
        port, taken = free_ports(2)
        thief = self.start_as_nobody(self.node("node1", taken, [f"127.0.0.1:{port}"]))
        victim = self.node("node0", port, [f"127.0.0.1:{taken}"]).start()
        reason = wait_until(lambda: victim.show("peers")[0]["reason"], "the victim says why")
        self.assertRegex(reason, rf"uid {NOBODY} holds the connection|none of the peers|has not dialled back")
        wait_until(lambda: f"uid {NOBODY}" in victim.tail(), "the log names the user")
        self.assertEqual(alive(victim), [])
        self.assertEqual(alive(thief), [])


class Namesakes(Peers):
    def test_a_copied_configuration_does_not_end_the_node_that_it_was_copied_from(self):
        node0, node1 = self.start_nodes(2)
        boot = node0.show("peers")[0]["boot_id"]
        copy = self.node("copy", free_ports(1)[0], [f"127.0.0.1:{self.port(node0)}"],
                         {"node": {"name": "node1"}, "peers": {"advertise": f"127.0.0.1:{self.port(node1)}"}}).start()
        self.logged(node0, r"refused a peer .*node1 at .* has the name of the node at .*, which lives: names must differ")
        wait_until(lambda: "names must differ" in copy.show("peers")[0]["reason"], "the copy says why it is alone")
        (peer,) = node0.show("peers")
        self.assertEqual((peer["state"], peer["boot_id"]), ("alive", boot))
        self.assertNotIn("is given up", node0.log.read_text(errors="replace"))
        self.assertEqual(alive(copy), [])

    @staticmethod
    def port(daemon):
        return daemon.sections["peers"]["listen"].rsplit(":", 1)[1]


if __name__ == "__main__":
    unittest.main()
