#!/usr/bin/env python3
"""Thousands of rails pulled in the middle of operations on the emulated fabric, every result verified, and how long the
traffic of a pulled rail stood still. Writes its own record.

Usage: tests/perf/rail_pulls.py [--build DIR] [--pulls 2000] [--seed N]
Writes tests/perf/results/<machine>-<date>-rail_pulls.json.
"""
import argparse
import os
import pathlib
import platform
import statistics
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "integration"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build")
    parser.add_argument("--pulls", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    os.environ["MKERNEL_BIN"] = str(pathlib.Path(arguments.build, "bin").resolve())
    import rail_pulls
    import record
    from cluster import ClusterTest

    test = ClusterTest()
    test.setUp()
    said = 0

    def progress(puller):
        nonlocal said
        if len(puller.seconds) // 100 > said:
            said = len(puller.seconds) // 100
            print(f"{len(puller.seconds)} pulls, median {1e3 * statistics.median(puller.seconds):.0f} ms", flush=True)

    try:
        test.start_nodes(2, {"transport": {"kind": "emulated"}, "proxy": {"threads": rail_pulls.RAILS}})
        begin = time.monotonic()
        puller, iterations = rail_pulls.pull_while_operating(test, arguments.pulls, 4000, arguments.seed, progress)
        took = time.monotonic() - begin
    finally:
        test.tearDown()
    times = sorted(puller.seconds)
    row = {"transport": "emulated", "rails": rail_pulls.RAILS, "pulls": len(times), "pulls_by_rail": puller.by_rail, "pulls_of_two_wires": puller.twice,
           "operation": " ".join(rail_pulls.OPERATION), "iterations_verified": iterations,
           "ranks": 2 * rail_pulls.RANKS_PER_NODE, "nodes": 2,
           "lost_puts": 0, "duplicated_puts": 0, "wrong_results": 0,  # any of them would have ended the run
           "resumed_ms": {"median": 1e3 * statistics.median(times), "p99": 1e3 * times[int(0.99 * (len(times) - 1))],
                          "largest": 1e3 * times[-1], "resolution": 1e3 * rail_pulls.Watch.INTERVAL},
           "seconds": took, "seed": arguments.seed}
    path = HERE / "results" / (f"{os.cpu_count()}core-{platform.machine()}-{time.strftime('%Y-%m-%d', time.gmtime())}"
                               "-rail_pulls.json")
    record.add(path, "rail_pulls", [row])
    print(f"{len(times)} pulls, median {row['resumed_ms']['median']:.0f} ms to resumed traffic; recorded in {path}")


if __name__ == "__main__":
    main()
