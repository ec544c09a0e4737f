"""A mkerneld in an emulated machine, with the verbs transport over both rails."""
import json
import re

from cluster import BIN, wait_until

FOLDER = "/run/mkernel"
SOCKET = f"{FOLDER}/mkerneld.sock"
LOG = f"{FOLDER}/log"
# Processors that are emulated on a busy machine stand still for tens of milliseconds: a lost packet may be missed later,
# and a silent daemon is not a dead one so soon.
SETTINGS = {
    "transport": {"kind": "verbs", "peer_timeout_ms": 20000},
    "transport.verbs": {"timeout": 16, "retry_count": 3},
    "proxy": {"threads": 2, "spin_us": 0, "nap_us": 1000},
}


class Node:
    def __init__(self, machine, other):
        self.machine, self.other, self.name = machine, other, machine.name
        self.pid = None

    def start(self):
        sections = {
            "node": {"name": self.name, "runtime_dir": FOLDER},
            "peers": {"listen": f"{self.machine.address('control')}:7600", "insecure": True, "time_scale": 0.5,
                      "list": [f"{self.other.address('control')}:7600"]},
            **SETTINGS}
        lines = []
        for section, keys in sections.items():
            lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items())]
        config = "\n".join(lines)
        started = self.machine.run(f"mkdir -p {FOLDER}; cat > {FOLDER}/mkerneld.toml <<'END'\n{config}\nEND\n"
                                   f"setsid {BIN}/mkerneld --config {FOLDER}/mkerneld.toml >>{LOG} 2>&1 & echo $!")
        self.pid = int(started)

    def wait_until_it_answers(self):
        def answers():
            if not self.runs():
                raise AssertionError(f"{self.name} ended:\n{self.log()}")
            return self.mkctl("status", check=False)[0] in (0, 1)

        wait_until(answers, f"{self.name} answers")

    def runs(self):
        return self.pid is not None and self.machine.run(f"kill -0 {self.pid}", check=False)[0] == 0

    def log(self):
        return self.machine.run(f"tail -c 6000 {LOG}", check=False)[1]

    def threads(self):
        """What each thread of the daemon does, for a daemon that hangs."""
        return self.machine.run(f"cd /proc/{self.pid}/task && for t in *; do echo \"$(cat $t/comm): $(cut -d' ' -f3,14,15 $t/stat) "
                                "$(tr '\\n' ' ' <$t/stack)\"; done", check=False)[1]

    def mkctl(self, *arguments, check=True):
        return self.machine.run(BIN / "mkctl", "--socket", f"{FOLDER}/control.sock", *arguments, check=check)

    def show(self, table):
        """Rows of a table as dicts. A daemon that gets no processor does not answer mkctl in time: asked again."""
        def ask():
            status, output = self.mkctl(table, "-o", "json", check=False)
            return status in (0, 1) and output

        answer = json.loads(wait_until(ask, f"{self.name} answers mkctl {table}"))
        return answer[table] if isinstance(answer, dict) else answer

    def doctor(self):
        return json.loads(self.mkctl("doctor", "--json", check=False)[1])

    def moves(self, rail):
        """The devices that puts of the rail have moved to, one after the other, as the log tells."""
        log = self.machine.run(f"grep 'rail {rail} to node .* puts go over' {LOG}", check=False)[1]
        return re.findall(r"puts go over (\w+)", log)

    def kill(self):
        self.machine.run(f"kill -9 {self.pid}")
        self.pid = None

    def stop(self):
        """SIGTERM; it must end, and say goodbye in its log."""
        if self.pid is None:
            return
        pid, self.pid = self.pid, None
        self.machine.run(f"kill {pid}")
        wait_until(lambda: self.machine.run(f"kill -0 {pid}", check=False)[0] != 0, f"{self.name} stops")
        if "stopped" not in self.log().splitlines()[-1]:
            raise AssertionError(f"{self.name} did not end as it should:\n{self.log()}")

    def bench(self, rank, world, *arguments, group="test"):
        """Starts one rank of `mkbench op`."""
        return self.machine.spawn(BIN / "mkbench", "op", "--group", group, "--daemon", SOCKET, *arguments,
                                  RANK=rank, WORLD_SIZE=world)

    def sent_packets(self, rail):
        path = f"/sys/class/infiniband/rxe{rail}/ports/1/hw_counters/sent_pkts"
        return int(self.machine.run(f"cat {path}"))
