"""Ends of ranks that use the Python client: Ctrl-C in every wait, kills, time limits, fork, interpreter exit, order of handles."""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import unittest

from client_test import PACKAGE, PATIENCE, WORLD, ClientTest

WAITS = ("barrier", "exchange", "symmetric", "reserve_lanes", "operation", "wait_arrival", "wait_completed", "pending",
         "pending_with_timeout", "run", "close_operation")




def interpreters():
    """This one, and those of other minor versions from 3.10 on that this machine has."""
    found = {}
    for minor in range(10, 20):
        installed = sorted(pathlib.Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python3"))
        for path in (shutil.which(f"python3.{minor}"), *map(str, installed)):
            if path and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0:
                found[minor] = path
    return {**found, sys.version_info.minor: sys.executable}


class Life(ClientTest):
    def interrupted(self, wait, silent=True):
        """Ctrl-C for rank 0, which waits for rank 1."""
        other = self.rank("life_scenarios.joined", 1, 2) if silent else None
        process = self.rank("life_scenarios.interrupted", 0, 2, WAIT=wait)
        if other:
            self.wait_for_line(other, "joined")
        self.wait_for_line(process, "waiting")
        status, out, err = self.interrupt(process)
        self.assertEqual((status, out.strip()), (0, "interrupted"), f"{wait}:\n{out}{err}")
        if other:
            other.kill()
            other.wait(PATIENCE)

    def test_a_rank_that_ends_while_a_thread_lives_leaves_its_group(self):
        """It was left to the end of the process, which counted as the loss of the rank: the waits of all others ended."""
        self.start_nodes(2)
        for how in ("SystemExit", "end"):
            with self.subTest(how=how):
                ranks = [self.rank("life_scenarios.ends_with_a_thread", rank, 4, HOW=how) for rank in range(4)]
                self.wait_for_line(ranks[2], "joined")
                self.assertEqual(self.finish(ranks[1])[0], 0)
                self.go_on(ranks[2])
                for process in ranks[0], ranks[2], ranks[3]:
                    status, out, err = self.finish(process)
                    self.assertEqual(status, 0, out + err)

    def last_step(self, nodes, how, settings=None):
        """By os._exit, or with another thread alive, a rank once ended without leaving its group: the waits of all others ended, also
        those for ranks that were there."""
        self.start_nodes(nodes, settings)
        ranks = [self.rank("life_scenarios.last_step", rank, 4, HOW=how) for rank in range(4)]
        self.wait_for_line(ranks[2], "joined")
        self.assertEqual(self.finish(ranks[3])[0], 0)
        self.go_on(ranks[2])
        for process in ranks[:3]:
            status, out, err = self.finish(process)
            self.assertEqual(status, 0, out + err)

    def test_last_step_of_two_nodes_when_a_rank_has_exited(self):
        self.last_step(2, "_exit")

    def test_last_step_of_emulated_nodes_when_a_rank_has_exited(self):
        self.last_step(2, "_exit", {"transport": {"kind": "emulated"}})

    def test_last_step_of_one_node_when_a_rank_has_exited(self):
        self.last_step(1, "_exit")

    def test_last_step_of_two_nodes_when_a_rank_with_a_thread_has_ended(self):
        self.last_step(2, "SystemExit")

    def test_last_step_of_one_node_when_a_rank_with_a_thread_has_ended(self):
        self.last_step(1, "end")

    def test_a_late_rank_finishes_its_launch_when_the_other_has_ended(self):
        self.start_nodes(2)
        for how in ("_exit", "SystemExit"):
            with self.subTest(how=how):
                self.assertEqual([out.strip() for out in self.run_ranks("life_scenarios.last_launch", 2, HOW=how)], ["OK", "OK"])

    def test_ranks_in_different_launches_are_named(self):
        self.start_nodes(2)
        self.run_ranks("life_scenarios.crosswise", 2)
        self.run_ranks("life_scenarios.another_call", 2)

    def test_a_rank_that_rejects_a_launch_ends_those_of_the_others(self):
        self.start_nodes(2)
        self.run_ranks("life_scenarios.rejected", 4)

    def test_ctrl_c_in_every_wait(self):
        self.start_nodes(1)
        for wait in WAITS:
            with self.subTest(wait=wait):
                self.interrupted(wait)
        with self.subTest(wait="join"):
            self.interrupted("join", silent=False)

    def test_ctrl_c_while_the_daemon_hangs(self):
        daemon = self.start_nodes(1)[0]
        for wait in ("connect", "close"):
            with self.subTest(wait=wait):
                process = self.rank("life_scenarios.interrupted", WAIT=wait)
                self.wait_for_line(process, "waiting")
                daemon.pause()
                try:
                    process.stdin.write("\n")
                    process.stdin.flush()
                    self.wait_for_line(process, "stopped")
                    status, out, err = self.interrupt(process)
                finally:
                    daemon.go_on()
                self.assertEqual((status, out.strip()), (0, "interrupted"), f"{wait}:\n{out}{err}")

    def test_a_put_that_waits_for_room_ends_at_its_limit_and_by_ctrl_c(self):
        daemon = self.start_nodes(1, {"proxy": {"ring_slots": 64}})[0]
        process = self.rank("life_scenarios.full_ring")
        self.wait_for_line(process, "ready")
        daemon.pause()
        try:
            self.go_on(process)
            for _ in range(2):
                self.wait_for_line(process, "full")
                self.interrupt_wait(process, "interrupted")
                self.go_on(process)
            self.wait_for_line(process, "goes on")
            time.sleep(0.2)  # not a synchronisation: lets most runs find the put waiting
        finally:
            daemon.go_on()
        status, out, err = self.finish(process)
        self.assertEqual(status, 0, out + err)

    def test_ctrl_c_that_nobody_catches_ends_the_program(self):
        self.start_nodes(1)
        other = self.rank("life_scenarios.joined", 1, 2)
        process = self.rank("life_scenarios.unhandled", 0, 2)
        self.wait_for_line(process, "waiting")
        status, out, err = self.interrupt(process)
        self.assertEqual(status, -signal.SIGINT, out + err)
        self.assertIn("KeyboardInterrupt", err)
        other.kill()

    def test_handlers_of_the_program_run_during_waits(self):
        self.start_nodes(1)
        self.run_ranks("life_scenarios.threads_and_signals", 2)

    def test_a_killed_rank_is_named(self):
        self.start_nodes(2)
        for wait in ("barrier", "wait_arrival", "run"):
            with self.subTest(wait=wait):
                ranks = [self.rank("life_scenarios.bereaved", rank, WORLD, WAIT=wait) for rank in range(WORLD)]
                for process in ranks:
                    self.wait_for_line(process, "waiting")
                ranks[-1].kill()
                for rank, process in enumerate(ranks[:-1]):
                    status, out, err = self.finish(process)
                    self.assertEqual(status, 0, f"{wait}, rank {rank}:\n{out}{err}")

    def test_time_limits(self):
        self.start_nodes(1)
        late = self.rank("life_scenarios.late", 1, 2)
        status, out, err = self.finish(self.rank("life_scenarios.time_limits", 0, 2))
        self.assertEqual(status, 0, out + err)
        self.assertIsNone(late.poll())

    def test_fork(self):
        self.start_nodes(2)
        self.run_ranks("life_scenarios.forked")

    def test_exit_with_work_in_flight(self):
        self.start_nodes(1)
        for keep in ("nothing", "pending", "locals"):
            with self.subTest(keep=keep):
                self.run_ranks("life_scenarios.exit_with_work", 2, KEEP=keep)

    def test_exit_with_a_thread_in_a_call(self):
        self.start_nodes(1)
        other = self.rank("life_scenarios.joined", 1, 2)
        status, out, err = self.finish(self.rank("life_scenarios.exit_with_thread", 0, 2))
        self.assertEqual((status, out.strip(), err), (0, "waiting", ""))
        other.kill()

    def test_calls_of_finalizers_while_the_interpreter_ends(self):
        # Python 3.11 would wait for ever for a thread that is started then, and 3.12 raises.
        self.start_nodes(1)
        closed = "FailedPrecondition: FAILED_PRECONDITION: group 'test' is closed"
        wanted = [f"{name}: None" for name in ("wait", "operation", "buffer", "group", "session", "connect")]
        ended = [*wanted, f"barrier: {closed}", f"arrival: {closed}"]
        alive = [*wanted, "barrier: None", "arrival: None"]
        found = interpreters() if PACKAGE else {sys.version_info.minor: sys.executable}  # a wheel is installed for one alone
        print(f"Python 3.{', 3.'.join(map(str, sorted(found)))}", end=" ", flush=True)
        for minor, executable in found.items():
            for beside in ("", "a thread", "atexit"):
                with self.subTest(minor=minor, beside=beside):
                    process = self.rank("life_scenarios.finalizers", executable=executable, BESIDE=beside)
                    status, out, err = self.finish(process)
                    said = sorted(ended * 3 + (alive if beside == "atexit" else []))
                    self.assertEqual((status, sorted(out.splitlines()), err), (0, said, ""))

    def test_a_session_without_a_name_has_one_that_daemons_take(self):
        # The name of the program: other bytes than printable ASCII, too long, or nothing.
        daemon = self.start_nodes(1)[0]
        shown = ("trainer", r"train\?\?r~[0-9a-f]{8}", r"tr\?~[0-9a-f]{8}", r"a\?b~[0-9a-f]{8}", "n{63}", "n{54}~[0-9a-f]{8}",
                 "n{54}~[0-9a-f]{8}", "pid [0-9]+")
        process = self.rank("life_scenarios.nameless")
        seen = []
        for pattern in shown:
            self.wait_for_line(process, "connected")
            (row,) = daemon.show("sessions")
            self.assertRegex(row["client_name"], f"^{pattern}$")
            seen.append(row["client_name"])
            self.go_on(process)
        self.assertEqual(len(set(seen)), len(shown), "names that differ in what is cut still differ")
        status, out, err = self.finish(process)
        self.assertEqual(status, 0, out + err)

    @unittest.skipUnless(os.geteuid() == 0, "needs to become another user")
    def test_who_may_connect_is_said_to_those_who_may_not(self):
        daemon = self.start_nodes(1)[0]
        for case in ("group", "root", "folder"):
            with self.subTest(case=case):
                status, out, err = self.finish(self.rank("life_scenarios.stranger", CASE=case, FOLDER=self.folder))
                self.assertEqual(status, 0, out + err)

    def test_exit_leaves_the_group(self):
        self.start_nodes(1)
        self.run_ranks("life_scenarios.exit_idle", 2)

    def test_handles_end_in_any_order(self):
        daemon = self.start_nodes(1)[0]
        self.run_ranks("life_scenarios.any_order", 1)
        self.assertEqual(daemon.show("sessions"), [])

    def test_operands_live_until_the_launch_is_over(self):
        self.start_nodes(1)
        self.run_ranks("life_scenarios.operands_in_flight", 2)


if __name__ == "__main__":
    unittest.main()
