"""The systemd unit: what systemd says of it, and the daemon running as it says, with clients of two users."""
import grp
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE.parent / "integration"), str(HERE)]
import cluster  # noqa: E402  (found in the folder above)
import confined  # noqa: E402

BUILD = pathlib.Path(os.environ["MKERNEL_BUILD"])
EXPOSURE = 20  # tenths, at most; packaging/OPERATING.md says what is left


def installed(prefix):
    """What cmake --install puts in place of the service, below `prefix`."""
    subprocess.run(["cmake", f"-DCMAKE_INSTALL_PREFIX={prefix}", "-P", BUILD / "packaging" / "install_service.cmake"], check=True,
                   capture_output=True, timeout=60)
    return prefix / "lib" / "systemd" / "system" / "mkerneld.service"


class Installed(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="mkernel-service-")
        self.addCleanup(folder.cleanup)
        self.prefix = pathlib.Path(folder.name)
        self.unit = installed(self.prefix)


@unittest.skipUnless(shutil.which("systemd-analyze"), "no systemd-analyze")
class Unit(Installed):
    def analyze(self, *arguments):
        return subprocess.run(["systemd-analyze", "--no-pager", *arguments], capture_output=True, text=True, timeout=60)

    def test_exposure(self):
        run = self.analyze("security", "--offline=true", f"--threshold={EXPOSURE}", self.unit)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        overall = re.search(r"Overall exposure level for mkerneld.service: ([0-9.]+)", run.stdout)
        self.assertIsNotNone(overall, run.stdout)
        self.assertLessEqual(float(overall[1]), EXPOSURE / 10)

    def test_every_remaining_point_is_explained(self):
        explained = (HERE.parents[1] / "packaging" / "OPERATING.md").read_text()
        run = self.analyze("security", "--offline=true", self.unit)
        remaining = re.findall(r"^✗ (\S+)", run.stdout, re.M)
        self.assertNotEqual(remaining, [])
        for setting in remaining:
            self.assertIn(setting.replace("|", r"\|"), explained)

    def test_systemd_understands_every_line(self):
        # It looks for the program; the one that was built stands where the unit expects it.
        (self.prefix / "bin").mkdir()
        shutil.copy("/bin/true", self.prefix / "bin" / "mkerneld")
        run = self.analyze("verify", self.unit)
        ours = [line for line in (run.stdout + run.stderr).splitlines() if "mkerneld.service" in line]
        self.assertEqual(ours, [])

    def test_out_of_memory_ends_others_first(self):
        self.assertEqual(confined.values(self.unit, "OOMScoreAdjust"), ["-900"])

    def test_no_capability(self):
        for key in ("CapabilityBoundingSet", "AmbientCapabilities"):
            self.assertEqual(confined.values(self.unit, key), [""])


@unittest.skipUnless(shutil.which("systemd-sysusers") and os.geteuid() == 0, "no systemd-sysusers, or not root")
class Users(Installed):
    def test_user_and_groups_of_the_unit_are_made(self):
        (self.prefix / "etc").mkdir(exist_ok=True)
        run = subprocess.run(["systemd-sysusers", f"--root={self.prefix}", self.prefix / "lib" / "sysusers.d" / "mkernel.conf"],
                             capture_output=True, text=True, timeout=60)
        self.assertEqual(run.returncode, 0, run.stderr)
        users = (self.prefix / "etc" / "passwd").read_text()
        groups = (self.prefix / "etc" / "group").read_text()
        (user,) = confined.values(self.unit, "User")
        self.assertRegex(users, rf"(?m)^{user}:.*nologin$")
        for key in ("Group", "SupplementaryGroups"):
            for group in " ".join(confined.values(self.unit, key)).split():
                self.assertRegex(groups, rf"(?m)^{group}:")


def why_not_confined():
    if os.geteuid() != 0:
        return "only root can become other users"
    if not shutil.which("systemd-analyze"):
        return "no systemd-analyze to expand sets of system calls"
    try:
        confined.ctypes.CDLL("libseccomp.so.2")
    except OSError:
        return "no libseccomp"
    return None


@unittest.skipIf(why_not_confined(), why_not_confined())
class Confined(cluster.ClusterTest):
    """Daemons as a user of their own, without any capability, under the unit's system calls; their clients are two others."""
    DAEMON, TENANTS = 64001, (64002, 64003)

    def setUp(self):
        super().setUp()
        self.folder.chmod(0o755)
        self.unit = installed(self.folder / "prefix")
        # Where the build is, other users may not be let in.
        self.programs = self.folder / "programs"
        self.programs.mkdir()
        libraries = pathlib.Path(os.environ["MKERNEL_LIB"]).glob("libmkernel.so*")
        for file in [cluster.BIN / "mkerneld", cluster.BIN / "mkbench", *libraries]:
            shutil.copy(file, self.programs / file.name)
        # Any group of this machine that has a name: what mkernel-jobs is where the package is installed.
        self.jobs = next(g for g in grp.getgrall() if g.gr_gid > 0)

    def start_confined(self):
        ports = cluster.free_ports(2)
        for i in range(2):
            prefix = [sys.executable, "-B", HERE / "confined.py", self.unit, str(self.DAEMON), f"{self.DAEMON},{self.jobs.gr_gid}"]
            settings = {"node": {"socket_group": self.jobs.gr_name}, "proxy": {"threads": 2, "cpus": [0, 0]}}
            daemon = cluster.Daemon(self.folder, f"node{i}", ports[i], [f"127.0.0.1:{ports[1 - i]}"], settings, prefix)
            os.chown(daemon.folder, self.DAEMON, self.DAEMON)
            self.daemons.append(daemon.start())
        for daemon in self.daemons:
            self.wait_for_peers(daemon, 1)

    def rank(self, uid, groups, rank, *arguments, group):
        daemon = self.daemons[rank]
        process = subprocess.Popen([self.programs / "mkbench", "op", "--group", group, "--daemon", daemon.socket, *arguments],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, user=uid, group=uid, extra_groups=groups,
                                   env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "LD_LIBRARY_PATH": str(self.programs)})
        self.processes.append(process)
        return process

    def test_two_users_work_and_a_third_is_not_let_in(self):
        self.start_confined()
        for daemon in self.daemons:
            status = dict(line.split(":\t", 1) for line in pathlib.Path(f"/proc/{daemon.process.pid}/status").read_text().splitlines()
                          if ":\t" in line)
            self.assertEqual(status["Uid"].split(), [str(self.DAEMON)] * 4)
            for kind in ("CapPrm", "CapEff", "CapBnd"):
                self.assertEqual(int(status[kind], 16), 0, kind)
            self.assertEqual((status["NoNewPrivs"], status["Seccomp"]), ("1", "2"))
            self.assertEqual(daemon.socket.stat().st_gid, self.jobs.gr_gid)
            self.assertNotIn("cannot stay on CPU", daemon.tail())
        shape = ("ag_gemm", "--m", "200", "--n", "64", "--k", "64", "--iterations", "50")
        ranks = [self.rank(uid, [self.jobs.gr_gid], rank, *shape, group=f"of-{uid}") for uid in self.TENANTS for rank in range(2)]
        seen = cluster.wait_until(lambda: {s["uid"] for s in self.daemons[0].show("sessions")} == set(self.TENANTS) or
                                  all(rank.poll() is not None for rank in ranks), "sessions of both users")
        self.assertTrue(seen)
        for rank in ranks:  # every element is verified there
            status, out, err = self.finish(rank, 4 * cluster.PATIENCE)
            self.assertEqual(status, 0, out + err)
        # Reaped through their pidfds, which are of other users' processes.
        cluster.wait_until(lambda: not self.daemons[0].show("sessions"), "the sessions are gone")
        stranger = self.rank(64004, [], 0, *shape, group="stranger")
        status, out, err = self.finish(stranger)
        self.assertNotEqual(status, 0, out)
        self.assertRegex(err.lower(), "permission")

    def test_a_killed_client_of_another_user_is_reaped_and_topology_is_read(self):
        self.start_confined()
        node0 = self.daemons[0]
        ranks = [self.rank(self.TENANTS[0], [self.jobs.gr_gid], rank, "ag_gemm", "--m", "200", "--n", "64", "--k", "64", "--iterations",
                           "1000000", group="killed") for rank in range(2)]
        cluster.wait_until(lambda: any(c["puts_total"] for c in node0.show("channels")), "traffic")
        for rank in ranks:
            rank.kill()
        cluster.wait_until(lambda: not node0.show("sessions"), "the sessions of killed clients are gone")
        for table in ("topo", "devices", "config", "status"):
            node0.mkctl(table)
        node0.mkctl("reload")


if __name__ == "__main__":
    unittest.main()
