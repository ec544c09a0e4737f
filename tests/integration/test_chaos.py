"""The campaign of tools/chaos can fail: what it watches is broken on purpose, and it says so. And what it did can be done again."""
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import types
import unittest
from unittest import mock

from cluster import BIN, PATIENCE, wait_until

CHAOS = pathlib.Path(__file__).resolve().parents[2] / "tools" / "chaos"
sys.path.insert(0, str(CHAOS))

import cluster_stage  # noqa: E402
import processes  # noqa: E402
import tenant  # noqa: E402
from campaign import Campaign, Skip, Step  # noqa: E402


class Log(io.StringIO):
    """A campaign's log in memory; `name` is where it puts the daemons' logs after a violation."""

    def __init__(self, folder):
        super().__init__()
        self.name = str(pathlib.Path(folder) / "log")

    def lines(self):
        return [json.loads(line) for line in self.getvalue().splitlines()]


def held_session(channel, path):
    client = tenant.connect(path, "held")
    channel.say(ready=client.position == 0)
    channel.hear(60.0)


def said(clock, longest_ms, over):
    """What a daemon says of its control thread, all of it short but by this clock."""
    row = {"thread": "control"} | {key: 0 for c in ("", "wall_", "asleep_") for key in (f"longest_{c}ms", f"{c}over_limit")}
    return cluster_stage.slices_of({"status": {"slices": [row | {f"longest_{clock}ms": longest_ms, f"{clock}over_limit": over}]}})


class Chaos(unittest.TestCase):
    def run_step(self, function, busy=0):
        """The only line that a campaign of one step writes."""
        with tempfile.TemporaryDirectory() as folder:
            campaign = Campaign([Step("step", 1, function, ("tcp",))], 1, ["tcp"], Log(folder), False, say=lambda *_: None, busy=busy)
            try:
                campaign.run(campaign.plan(), 300, 1, False)
            finally:
                campaign.close()
            (line,) = campaign.log.lines()
            return line

    def assert_violated(self, function, *texts):
        line = self.run_step(function)
        self.assertEqual(line["verdict"], "violated", line)
        for text in texts:
            self.assertIn(text, line["why"])

    def test_a_step_that_harms_nobody_holds_on_a_busy_machine(self):
        """Threads that stand in line for a processor, in the middle of their work and of their own look at the clocks, do not sleep."""
        def traffic(scene):
            scene.spawn(processes.traffic, scene.cluster.sockets(), "busy").hear()
            scene.pause(1.0, 1.0)
            return {"said": scene.random.random()}
        line = self.run_step(traffic, busy=2 * os.cpu_count())
        self.assertEqual(line["verdict"], "held", line)
        self.assertGreaterEqual(line["bystander"]["transfers"], 5)

    def test_a_changed_byte_is_found(self):
        self.assert_violated(lambda scene: scene.cluster.bystander.say(do="spoil"), "wrong data", "byte 0")

    def test_a_daemon_that_ended_is_found(self):
        self.assert_violated(lambda scene: scene.cluster.daemons[0].kill(), "tcp0 ended with -9")

    def test_a_group_that_was_lost_is_found(self):
        def restart_behind_its_back(scene):
            scene.cluster.daemons[1].kill()
            scene.cluster.daemons[1].start()
        self.assert_violated(restart_behind_its_back, "lost its group")

    def test_what_is_not_given_back_is_found(self):
        patient = cluster_stage.Cluster.check_levels.__defaults__
        cluster_stage.Cluster.check_levels.__defaults__ = (1.0,)
        self.addCleanup(setattr, cluster_stage.Cluster.check_levels, "__defaults__", patient)
        leaked = []

        def leak(scene):
            leaked.append(scene.spawn(held_session, str(scene.cluster.daemons[0].socket)))
            leaked[0].hear()
            scene.children.clear()  # nobody ends it
        try:
            self.assert_violated(leak, "not back within 1 s", "tcp0: fds", "sockets")
        finally:
            leaked[0].kill()

    def long_slices(self, longest_ms, times, stolen_ticks=0):
        """A step after which the daemons say, the first `times` times that it is done, that another slice was over the limit, and the
        machine that so much was stolen."""
        done = []

        def pretend(scene):
            done.append(scene)
            scene.cluster.slices_now = lambda daemon: said("", longest_ms, 1000 + min(len(done), times))
            scene.cluster.sanitized = lambda: False  # whose slices are not judged
            stolen = mock.patch.object(cluster_stage.levels, "stolen_ticks", lambda now=scene.cluster.stolen: now + stolen_ticks)
            stolen.start()
            self.addCleanup(stolen.stop)
        return pretend

    def test_long_slices_are_found_when_they_come_again(self):
        self.assert_violated(self.long_slices(10.1, times=3), "each of 3 tries", "tcp1 control: 1 over 10 ms of processor time, the longest ever 10.1 ms")

    def test_sleep_is_judged_and_wall_time_is_not(self):
        for clock, texts in (("", ["tcp0 control: 2 over 10 ms of processor time, the longest ever 300.0 ms"]), ("wall_", []),
                             ("asleep_", ["tcp0 control: 2 over 10 ms of sleep, the longest ever 300.0 ms"])):
            cluster = cluster_stage.Cluster("tcp", None, 0)
            cluster.daemons, cluster.stolen = [types.SimpleNamespace(name="tcp0")], cluster_stage.levels.stolen_ticks()
            cluster.slices, cluster.sanitized = {"tcp0": said(clock, 4.0, 5)}, lambda: False
            cluster.slices_now = lambda daemon: said(clock, 300.0, 7)
            with mock.patch.object(cluster_stage.levels, "stolen_ticks", lambda: cluster.stolen):
                worst, over = cluster.check_slices()
            self.assertEqual(over, texts)
            self.assertEqual(max(worst.values()), 300.0)

    def test_a_kernel_that_does_not_show_sleep_is_not_taken_for_one_without(self):
        row = {"thread": "control", "longest_ms": 1, "over_limit": 0, "longest_wall_ms": 30, "wall_over_limit": 1,
               "longest_asleep_ms": None, "asleep_over_limit": None}
        seen = cluster_stage.slices_of({"status": {"slices": [row]}})
        self.assertEqual(seen, {("control", "processor time"): (1, 0), ("control", "wall time"): (30, 1)})

    def test_threads_that_sleep_in_their_work_are_found(self):
        def stop_while_it_works(scene):
            """Traffic keeps the proxies of a daemon in their rounds, and there they are stopped."""
            daemon = scene.cluster.daemons[0]
            scene.cluster.sanitized = lambda: False
            before = scene.cluster.slices_now(daemon)
            scene.spawn(processes.traffic, scene.cluster.sockets(), "stopped").hear()

            def slept():
                daemon.process.send_signal(signal.SIGSTOP)
                time.sleep(0.02)
                daemon.process.send_signal(signal.SIGCONT)
                return any(clock == "sleep" and count > before[thread, clock][1]
                           for (thread, clock), (_, count) in scene.cluster.slices_now(daemon).items())
            if not any(clock == "sleep" for _, clock in before):
                raise Skip("this kernel does not say how long threads wait for processors")
            wait_until(slept, "a proxy is stopped in a round")
        line = self.run_step(stop_while_it_works)
        if line["verdict"] == "skipped":
            self.skipTest(line["why"])
        self.assertEqual(line["verdict"], "violated", line)
        self.assertIn("each of 3 tries", line["why"])
        self.assertIn("over 10 ms of sleep", line["why"])

    def test_a_long_slice_that_does_not_come_again_is_the_machines(self):
        for times in (1, 2):
            line = self.run_step(self.long_slices(30.0, times))
            self.assertEqual((line["verdict"], len(line["long_slices"])), ("held", 2 * times))  # of two daemons

    def test_a_slice_is_not_blamed_for_what_was_stolen(self):
        line = self.run_step(self.long_slices(29.0, times=1, stolen_ticks=1))
        self.assertEqual((line["verdict"], line["long_slices"]), ("held", []))

    def test_a_slice_longer_than_what_was_stolen_is_found(self):
        self.assert_violated(self.long_slices(30.1, times=3, stolen_ticks=1), "30.1 ms", "20 ms were stolen")

    def test_stolen_time_is_read_where_the_kernel_says_it(self):
        self.assertEqual(cluster_stage.levels.stolen_ticks("cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1\n"), 8)
        self.assertEqual(cluster_stage.levels.stolen_ticks("cpu  1 2 3 4\n"), 0)

    def test_a_skip_is_no_violation(self):
        def skip(scene):
            raise Skip("not here")
        self.assertEqual(self.run_step(skip)["why"], "not here")

    def test_the_same_seed_is_the_same_plan(self):
        steps = [Step(name, weight, lambda scene: {}) for name, weight in (("a", 1), ("b", 2), ("c", 3))]
        campaigns = [Campaign(steps, seed, ["tcp", "emulated"], Log("."), False) for seed in (1, 1, 2)]
        plans = [[entry for entry, _ in zip(campaign.plan(), range(50))] for campaign in campaigns]
        for campaign in campaigns:
            campaign.close()
        self.assertEqual(plans[0], plans[1])
        self.assertNotEqual(plans[0], plans[2])
        self.assertEqual({name for _, name, _ in plans[0][:3]}, {"a", "b", "c"}, "each step once before any is repeated")


class Processes(unittest.TestCase):
    def test_descendants_may_end_while_they_are_looked_for(self):
        tree = subprocess.Popen(["sh", "-c", "sleep 1000 & echo $!; while :; do sh -c 'sleep 0.001 & wait'; done"],
                                stdout=subprocess.PIPE, text=True, start_new_session=True)
        self.addCleanup(tree.communicate)
        self.addCleanup(os.killpg, tree.pid, signal.SIGKILL)
        stays = int(tree.stdout.readline())
        for _ in range(500):
            self.assertIn(stays, processes.descendants(tree.pid))

    def test_a_process_that_ended_has_no_descendants(self):
        ended = subprocess.Popen(["true"])
        ended.wait()
        self.assertEqual(processes.descendants(ended.pid), [])


class Program(unittest.TestCase):
    def start(self, log, *arguments):
        """Its folders are beside the log, so that they go with it however it ends; users of other uids come there as well."""
        log.parent.chmod(0o755)
        return subprocess.Popen([sys.executable, "-B", CHAOS / "run", "--build", BIN, "--log", log, *arguments], text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, "TMPDIR": str(log.parent)})

    def test_replay_repeats_steps_and_choices(self):
        with tempfile.TemporaryDirectory() as folder:
            logs = [pathlib.Path(folder) / name for name in ("first", "again")]
            steps = ["--steps", "2", "--only", "fault_links,pull_rail", "--transports", "emulated"]
            for log, arguments in zip(logs, (["--seed", "5", *steps], ["--replay", str(logs[0])])):
                process = self.start(log, *arguments)
                out = process.communicate(timeout=4 * PATIENCE)[0]
                self.assertIn(process.returncode, (0, 1), out)
            said = [[{k: line.get(k) for k in ("step", "name", "transport", "seed", "detail")} for line in
                     map(json.loads, log.read_text().splitlines()) if "name" in line] for log in logs]
            self.assertEqual(len(said[0]), 2)
            self.assertEqual(said[0], said[1])

    def test_nothing_outlives_a_campaign_that_was_killed(self):
        with tempfile.TemporaryDirectory() as folder:
            process = self.start(pathlib.Path(folder) / "log", "--seed", "1", "--only", "stop_client", "--transports", "tcp")
            self.addCleanup(process.wait)
            self.addCleanup(process.kill)

            def children_run():  # two daemons, the bystander, and the client of a step
                if process.poll() is not None:
                    self.fail(f"the campaign ended with {process.returncode} before it was killed:\n{process.stdout.read()}")
                found = processes.descendants(process.pid)
                return len(found) >= 4 and found

            children = wait_until(children_run, "daemons and bystander run")
            process.send_signal(signal.SIGKILL)
            process.communicate()
            wait_until(lambda: not any(processes.runs(pid) for pid in children), "its processes are gone")


if __name__ == "__main__":
    unittest.main()
