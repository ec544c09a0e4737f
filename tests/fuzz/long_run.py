#!/usr/bin/env python3
"""Runs fuzz targets for long, some at a time, and records what they did.

Usage: tests/fuzz/long_run.py [--build build-fuzz] [--seconds 1200] [--jobs 2] [--only NAME,...]
Needs a build with -DMKERNEL_FUZZ=ON. Writes tests/perf/results/<machine>-<date>-fuzz.json, one row per target; a later run of
the same day replaces the rows of its targets. Inputs that end a target stay in BUILD/found. Ends with 1 when there is one.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import platform
import re
import subprocess
import time

HERE = pathlib.Path(__file__).resolve().parent
RESULTS = HERE.parent / "perf" / "results"


def fuzz(binary, seconds, workers, found):
    """One row. The corpus grows in the build folder, as in the tests; it begins with what is kept here. Workers share it."""
    subject = binary.name.removeprefix("fuzz_")
    grown, kept = found / subject, HERE / "corpus" / subject
    grown.mkdir(parents=True, exist_ok=True)
    logs = [found / f"{subject}-{worker}.log" for worker in range(workers)]
    command = [str(binary), f"-max_total_time={seconds}", "-max_len=65536", "-print_final_stats=1", "-reload=1",
               f"-artifact_prefix={found}/{subject}-", str(grown), *([str(kept)] if kept.exists() else [])]
    running = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log.open("w")) for log in logs]
    status = max(abs(worker.wait()) for worker in running)
    texts = [log.read_text(errors="replace") for log in logs]
    statistics = lambda name: [int(number) for text in texts for number in re.findall(rf"stat::{name}:\s+(\d+)", text)]
    covered = [tuple(map(int, numbers)) for text in texts for numbers in re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)", text)[-1:]]
    row = {"target": binary.name, "date": time.strftime("%Y-%m-%d", time.gmtime()), "seconds": seconds, "workers": workers,
           "status": status, "executions": sum(statistics("number_of_executed_units")),
           "peak_rss_mib": max(statistics("peak_rss_mb"), default=None),
           **dict(zip(("edges", "features", "corpus"), max(covered, default=())))}
    print(json.dumps(row), flush=True)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build-fuzz"))
    parser.add_argument("--seconds", type=int, default=1200)
    parser.add_argument("--jobs", type=int, default=2, help="targets at a time")
    parser.add_argument("--workers", type=int, default=1, help="processes of each target, which share its corpus")
    parser.add_argument("--only", default="", help="names of targets, with commas between them")
    options = parser.parse_args()
    targets = sorted(path for path in (options.build / "bin").glob("fuzz_*") if os.access(path, os.X_OK))
    if options.only:
        targets = [path for path in targets if path.name in options.only.split(",")]
    if not targets:
        parser.error(f"no such target in {options.build / 'bin'}")
    path = RESULTS / f"{os.cpu_count()}core-{platform.machine()}-{time.strftime('%Y-%m-%d', time.gmtime())}-fuzz.json"
    rows = {row["target"]: row for row in json.loads(path.read_text())["fuzz"]["rows"]} if path.exists() else {}
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        running = [pool.submit(fuzz, target, options.seconds, options.workers, options.build / "found") for target in targets]
        for done in concurrent.futures.as_completed(running):
            rows[done.result()["target"]] = done.result()
            path.write_text(json.dumps({"fuzz": {"rows": [rows[name] for name in sorted(rows)]}}, indent=1) + "\n")
    return any(done.result()["status"] for done in running)


if __name__ == "__main__":
    raise SystemExit(main())
