#!/usr/bin/env python3
"""Runs every CPU benchmark once on this machine and records the rows, beside what they are compared with in the same run.

Usage: tests/perf/record.py [--build DIR] [--before DIR] [--only iperf3,ring,post_rate,fabric,idle,gemm,op,tenants]
Writes tests/perf/results/<machine>-<date>-cpu.json. Needs iperf3 for the comparison of the tcp transport. --before: a build of
an earlier commit, whose post_rate runs in turns with the present one.
"""
import argparse
import json
import os
import pathlib
import platform
import pwd
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "integration"))


def run(*command, **environment):
    subprocess.run([str(c) for c in command], check=True, env={**os.environ, **environment}, timeout=900)


def ring(mkbench, node, path):
    run(mkbench, "ring", "--daemon", node.socket, "--json", path)


def post_rate(path, before=None, repetitions=5):
    """Medians, with the lowest and the highest, of what one proxy thread can post into queues of a fake NIC, and of what one put
    costs that is alone beside idle peers. Builds run in turns, so that a change of the machine's speed meets both."""
    from cluster import BIN
    builds = {"": BIN} | ({"before_": pathlib.Path(before, "bin")} if before else {})
    runs = [{prefix: subprocess.run([str(folder / "post_rate")], capture_output=True, text=True, check=True,
                                    timeout=600).stdout.splitlines() for prefix, folder in builds.items()}
            for _ in range(repetitions)]
    rates, alone = [], []
    for i, line in enumerate(runs[0][""]):
        what, value = line.split(":")
        transport, size = what.split()[:2]
        unit = "ns" if value.split()[1] == "ns" else "mputs_per_second"
        row = {"transport": transport, "bytes": int(size)}
        if unit == "ns":
            row["beside"] = what.split("alone, ")[1]
        for prefix in builds:
            values = [float(run[prefix][i].split(":")[1].split()[0]) for run in runs]
            row |= {prefix + unit: statistics.median(values), prefix + "lowest": min(values), prefix + "highest": max(values)}
        (alone if unit == "ns" else rates).append(row)
        print("post rate,", ", ".join(f"{name}: {value}" for name, value in row.items()))
    add(path, "post_rate", rates)
    add(path, "put_alone", alone)


def iperf(size, port, seconds=4):
    """Gigabytes per second of one stream on loopback, as its receiver saw them."""
    server = subprocess.Popen(["iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", str(port)], stdout=subprocess.DEVNULL)
    try:
        for _ in range(100):
            client = subprocess.run(["iperf3", "-c", "127.0.0.1", "-p", str(port), "-t", str(seconds), "-l", str(size), "-J"],
                                    capture_output=True, text=True, timeout=60)
            end = json.loads(client.stdout)["end"] if client.returncode == 0 else {}
            if "sum_received" in end:
                return end["sum_received"]["bits_per_second"] / 8e9
            time.sleep(0.05)  # the server is not up yet
        raise RuntimeError(client.stdout)
    finally:
        server.terminate()
        server.wait(10)


def put(mkbench, nodes, size, buffer, path):
    """Gigabytes per second of puts between a rank on each node out of and into `buffer` bytes, one proxy thread per daemon,
    every byte verified."""
    path.unlink(missing_ok=True)
    ranks = [subprocess.Popen([str(mkbench), "put", "--rank", str(r), "--daemon", str(nodes[r].socket), "--bytes", str(size),
                               "--slots", str(buffer // size), "--seconds", "8", *(["--json", str(path)] if r == 0 else [])]) for r in range(2)]
    if any(r.wait(120) for r in ranks):
        raise RuntimeError("mkbench put failed")
    (row,) = json.loads(path.read_text())["put"]["rows"]
    path.unlink()
    return row["gbytes_per_second"]


def against_iperf3(mkbench, nodes, path, port, repetitions=5):
    """Daemons and iperf3 in turns, so that a change of the machine's speed meets both; medians. iperf3 sends one block of
    memory over and over, so the like of it is a buffer of 1 MiB; 64 MiB is what puts of a large tensor meet: no cache
    of a core holds it at either end."""
    rows = []
    for size in (65536, 1 << 20):
        runs = [{"iperf3": iperf(size, port), **{b: put(mkbench, nodes, size, b, path.with_suffix(".once"))
                                                 for b in (1 << 20, 64 << 20)}} for _ in range(repetitions)]
        theirs = statistics.median(r["iperf3"] for r in runs)
        for buffer in (1 << 20, 64 << 20):
            mine = statistics.median(r[buffer] for r in runs)
            rows.append({"transport": "tcp", "bytes": size, "buffer_bytes": buffer, "gbytes_per_second": mine,
                         "iperf3_gbytes_per_second": theirs, "ratio": mine / theirs, "verified": True,
                         "repetitions": [{"mkernel": r[buffer], "iperf3": r["iperf3"]} for r in runs]})
            print(f"tcp {size} B of {buffer >> 20} MiB through the daemons: {mine:.2f} GB/s, iperf3 {theirs:.2f} GB/s, "
                  f"ratio {mine / theirs:.2f}")
    add(path, "tcp_against_iperf3", rows)


def idle(node, path, seconds=30):
    """Processor time of a daemon with four idle sessions."""
    import raw_client
    clients = [raw_client.RawClient(node.socket) for _ in range(4)]
    for i, client in enumerate(clients):
        client.hello(f"idle {i}")
        client.join(f"idle {i}")
    ticks = lambda: sum(int(x) for x in
                        pathlib.Path(f"/proc/{node.process.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13])
    time.sleep(2)
    before = ticks()
    time.sleep(seconds)
    share = (ticks() - before) / os.sysconf("SC_CLK_TCK") / seconds
    for client in clients:
        client.close()
    print(f"idle daemon, four sessions: {100 * share:.2f} % of a core over {seconds} s")
    add(path, "idle", [{"sessions": 4, "seconds": seconds, "core_share": share}])


def op(mkbench, nodes, path):
    ranks = [subprocess.Popen([str(mkbench), "op", "--preset", "demo", "--daemon", str(nodes[r // 2].socket),
                               *(["--json", str(path)] if r == 0 else [])],
                              env={**os.environ, "RANK": str(r), "WORLD_SIZE": "4"}) for r in range(4)]
    if any(r.wait(600) for r in ranks):
        raise RuntimeError("mkbench op failed")


def tenants(mkbench, nodes, path):
    """A bystander beside every attacker, which is another user where this is run by root."""
    other = ["--uid", pwd.getpwnam("nobody").pw_uid] if os.geteuid() == 0 else []
    run(mkbench, "tenants", "--daemon", nodes[0].socket, "--peer-daemon", nodes[1].socket, *other, "--json", path)


def add(path, what, rows):
    """As mkbench's own record: same file, same form."""
    file = json.loads(path.read_text()) if path.exists() else {}
    cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown")
    file[what] = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "rows": rows,
                  "machine": {"processor": cpu, "cores": os.cpu_count(), "kernel": platform.release(),
                              "load_before": os.getloadavg()[0]}}
    path.write_text(json.dumps(file, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build")
    parser.add_argument("--before")
    parser.add_argument("--only", default="iperf3,ring,post_rate,fabric,idle,gemm,op,tenants")
    arguments = parser.parse_args()
    os.environ["MKERNEL_BIN"] = str(pathlib.Path(arguments.build, "bin").resolve())
    import cluster
    mkbench = cluster.BIN / "mkbench"
    name = f"{os.cpu_count()}core-{platform.machine()}-{time.strftime('%Y-%m-%d', time.gmtime())}-cpu.json"
    path = HERE / "results" / name
    path.parent.mkdir(exist_ok=True)
    chosen = arguments.only.split(",")

    folder = pathlib.Path(tempfile.mkdtemp(prefix="mkernel-"))
    ports = cluster.free_ports(3)
    folder.chmod(0o755)  # the attacker of `tenants` is a stranger
    nodes = [cluster.Daemon(folder, f"node{i}", ports[i], [f"127.0.0.1:{ports[1 - i]}"], {"node": {"socket_mode": "0666"}})
             for i in range(2)]
    try:
        if "fabric" in chosen:  # before the daemons are there: two cores are all it has
            for transport in ("tcp", "emulated"):
                run(mkbench, "fabric", "--transport", transport, "--json", path)
        if "post_rate" in chosen:
            post_rate(path, arguments.before)
        if "gemm" in chosen:
            run(mkbench, "gemm", "--json", path)
        for node in nodes:
            node.start()
        for node in nodes:
            cluster.wait_until(lambda n=node: any(p["state"] == "alive" for p in n.show("peers")), "the nodes see each other")
        if "iperf3" in chosen:
            against_iperf3(mkbench, nodes, path, ports[2])
        if "ring" in chosen:
            ring(mkbench, nodes[0], path)
        if "idle" in chosen:
            idle(nodes[0], path)
        if "op" in chosen:
            op(mkbench, nodes, path)
        if "tenants" in chosen:
            tenants(mkbench, nodes, path)
    finally:
        for node in nodes:
            node.stop()
        shutil.rmtree(folder, ignore_errors=True)
    print(f"recorded in {path}")


if __name__ == "__main__":
    main()
