#!/usr/bin/env python3
"""Measures mkernel.torch beside torch.ops.symm_mem and beside NCCL with cuBLAS, and records the rows.

Usage: tests/perf/record_torch.py [--world W | --share-gpu R] [--parts operators,decode,training,beside] [--seconds S] [--out DIR]
                                  [--small] [--beside-seconds S] [--nccl-max-ctas C] [--device cpu] [--extension]
                                  [--operators ag_gemm,...] [--rows 2048,...]
Starts a daemon, and for each part a rank per GPU; MKERNEL_BIN and MKERNEL_LIB are the folders of programs and libraries. Needs PyTorch with
CUDA. Rows are added part by part to OUT/<machine>x<GPUs>-<date>-torch.json, also those of a part that ended early, with the reason.
--share-gpu R instead runs R ranks on one GPU at the same time, under an MPS server of this program's own: what needs NCCL between
ranks is left out by name. --device cpu tries the script in host memory, and records nothing. --extension first compiles that of
mkernel.torch, which then takes the calls that are not replayed from graphs. --operators and --rows: only these of the part `operators`.

An iteration's time is that of its slowest rank. Exit status: 1 if a part ended early, an operator's result was wrong, or a
contender of ours failed.
"""
import argparse
import contextlib
import json
import os
import pathlib
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / folder) for folder in ("integration", "gpu", "python")]
PARTS = ("operators", "decode", "training", "beside")
OPERATORS = ("ag_gemm", "gemm_rs", "gemm_ar")
# None of the contenders may use multicast.
ENVIRONMENT = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
OUR_NAME, FLOOR = "mkernel", "product"
STALL = 200  # seconds without a word of any rank, compiling included
ENDING = 15  # seconds that are kept for ending what was started


class Ranks:
    """The ranks of one part. Each writes to a file of its own what it is about to do, and its rows."""

    def __init__(self, part, folder, settings, environment):
        self.part, self.merged, self.problem = part, [], None
        self.files = [folder / f"{part}-{rank}.json" for rank in range(settings["world"])]
        self.logs = [path.with_suffix(".log") for path in self.files]
        self.rows = [[] for _ in self.files]
        self.last = ["began"] * len(self.files)
        self._read = [0] * len(self.files)
        self.processes = []
        for rank, (path, log) in enumerate(zip(self.files, self.logs)):
            path.touch()
            command = [sys.executable, "-B", str(HERE / "torch_record/run_part.py"), part,
                       json.dumps({**settings, "rank": rank, "file": str(path)})]
            of_rank = {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            with log.open("wb") as output:
                self.processes.append(subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True, env=of_rank))

    def follow(self, until, show):
        """Until all ranks have ended. `problem` says why if that was too early; `show` is called with each row that all have written."""
        heard = time.monotonic()
        while self.problem is None:
            states = [process.poll() for process in self.processes]
            if self._hear(show):
                heard = time.monotonic()
            failed = [rank for rank, state in enumerate(states) if state not in (None, 0)]
            if failed:
                self.problem = f"rank {failed[0]} ended with {states[failed[0]]} when it was at: {self.last[failed[0]]}"
            elif None not in states:
                break
            elif time.monotonic() > until:
                self.problem = "the time was over: " + self._whereabouts()
            elif time.monotonic() > heard + STALL:
                self.problem = f"no rank has said anything for {STALL} s: " + self._whereabouts()
            else:
                time.sleep(0.1)
        if self.problem is not None:
            self._dump()
        lengths = {len(rows) for rows in self.rows}
        if self.problem is None and len(lengths) != 1:
            self.problem = f"the ranks have written different numbers of rows: {sorted(lengths)}"

    def _whereabouts(self):
        return "; ".join(f"rank {rank} at: {text}" for rank, text in enumerate(self.last))

    def _hear(self, show):
        """Whether a rank has written something."""
        heard = False
        for rank, path in enumerate(self.files):
            with path.open() as file:
                file.seek(self._read[rank])
                text = file.read()
            whole = text[: text.rfind("\n") + 1]
            self._read[rank] += len(whole)
            for line in whole.splitlines():
                said = json.loads(line)
                heard = True
                if "row" in said:
                    self.rows[rank].append(said["row"])
                self.last[rank] = said.get("at", self.last[rank])
        for rows in list(zip(*self.rows))[len(self.merged):]:
            self.merged.append(merged(rows))
            show(self.merged[-1])
        return heard

    def _dump(self):
        """Prints where the ranks are, and the ends of what they wrote."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGUSR1)
        time.sleep(1)
        for rank, log in enumerate(self.logs):
            print(f"---- {self.part}, rank {rank}, last at: {self.last[rank]}\n{log.read_text(errors='replace')[-5000:]}", flush=True)

    def end(self):
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):  # with the processes that compile for it
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


# ---- rows


def merged(rows):
    """One row of the rows that all ranks wrote."""
    first = rows[0]
    if any(row["what"] != first["what"] for row in rows):
        raise SystemExit(f"the ranks have measured different things: {[row['what'] for row in rows]}")
    if "contenders" not in first:  # numbers alone: the largest counts
        numbers = {key: max(row[key] for row in rows) if isinstance(value, (int, float)) else value for key, value in first.items()}
        return {**first["what"], **{key: value for key, value in numbers.items() if key != "what"}}
    contenders = {}
    for name in first["contenders"]:
        answers = [row["contenders"][name] for row in rows]
        if not answers[0]["ms"]:
            continue
        contenders[name] = {**spread("ms", [max(times) for times in zip(*(answer["ms"] for answer in answers))]),
                            "host_us": statistics.median(max(times) for times in zip(*(answer["host_us"] for answer in answers)))}
        if "layers" in first["what"]:
            contenders[name]["ms_per_layer"] = contenders[name]["ms"] / first["what"]["layers"]
        if name != FLOOR:
            worst = max(answer["worst"] for answer in answers)
            contenders[name] |= {"worst_of_tolerance": min(worst, 1e9), "verified": worst <= 1}
    others = {name: answer["ms"] for name, answer in contenders.items() if name not in (OUR_NAME, FLOOR) and answer["verified"]}
    best = min(others, key=others.get, default=None)
    ours = contenders.get(OUR_NAME)
    ratio = ours["ms"] / others[best] if ours and best else None
    fell_back = any(row["fell_back"] for row in rows)
    rest = {key: first[key] for key in first if key not in ("what", "how", "contenders", "errors", "fell_back")}
    return {**first["what"], "how": first["how"], "iterations": max((len(a["ms"]) for a in first["contenders"].values()), default=0),
            "contenders": contenders, "best_other": best, "ratio": ratio, "fell_back": fell_back,
            "won": bool(ratio is not None and ratio < 1 and ours["verified"] and not fell_back), "errors": first["errors"], **rest}


def spread(name, values):
    tenths = statistics.quantiles(values, n=10, method="inclusive") if len(values) > 1 else values * 9
    return {name: statistics.median(values), f"p10_{name}": tenths[0], f"p90_{name}": tenths[8]}


def crossover(rows):
    """Of each layer and way: the smallest m from which on ours won at every larger one; None: it did not at the largest."""
    found = {}
    for row in rows:
        if "contenders" in row:
            key = tuple(row[field] for field in ("model", "layer", "op", "how"))
            found.setdefault(key, []).append((row["m"], row["won"]))
    answer = []
    for key, results in found.items():
        results.sort(reverse=True)
        wins = next((results[:i] for i, (_, won) in enumerate(results) if not won), results)
        answer.append({**dict(zip(("model", "layer", "op", "how"), key)), "wins_from_m": wins[-1][0] if wins else None,
                       "won": sum(won for _, won in results), "of": len(results)})
    return answer


def line(part, row):
    """A row as a line of the table."""
    if "left_out" in row:
        return f"{part}: {row['left_out']}"
    if "contenders" not in row:
        return f"{part}: " + ", ".join(f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items())
    if part == "operators":
        shape = f"{row['m']:6} x {'+'.join(map(str, row['n'])):14} x {row['k']:5}"
        what = f"{row['model']:13} {row['layer']:13} {row['op']:7} {shape} {row['how']:5}"
    else:
        what = " ".join(str(row[key]) for key in ("model", "batch", "hidden", "how") if key in row)
    times = ", ".join(f"{name} {answer.get('ms_per_layer', answer['ms']):.4f}" + ("" if answer.get("verified", True) else " WRONG")
                      for name, answer in row["contenders"].items())
    verdict = "fell back" if row["fell_back"] else "-" if row["ratio"] is None else f"{row['ratio']:.2f}" + (" won" if row["won"] else "")
    notes = {name: text.splitlines()[0][:150] for name, text in row["errors"].items()}
    for name, losses in row.get("losses", {}).items():
        notes[name] = f"loss {losses[0]:.5g} to {losses[-1]:.5g}"
    if "launches_of_a_step" in row:
        notes[OUR_NAME] = notes.get(OUR_NAME, "") + f", {row['launches_of_a_step']} launches a step"
    return f"{what} | {verdict:9} | {times}" + "".join(f"\n    {name}: {text}" for name, text in notes.items())


def is_bad(row):
    """Whether something is wrong with ours."""
    if "left_out" in row:
        return False
    if "contenders" not in row:
        return row["wrong_words"] > 0 or not row["worst"] <= 1
    return not row["contenders"].get(OUR_NAME, {}).get("verified", False)


# ---- the run


def gpu():
    """What the driver says about the GPU."""
    asked = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "-i", "0"], capture_output=True,
                           text=True, check=True).stdout.strip()
    return dict(zip(("gpu", "driver"), asked.split(", ")))


def versions(environment):
    code = "import torch; print(torch.__version__, torch.version.cuda, '.'.join(map(str, torch.cuda.nccl.version())))"
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    if said.returncode != 0:
        raise SystemExit(f"{sys.executable} cannot import PyTorch: {said.stderr[-1000:]}")
    return dict(zip(("torch", "cuda", "nccl"), said.stdout.split()))


def build_extension(environment):
    """That of mkernel.torch, for the ranks that have this environment."""
    built = subprocess.run([sys.executable, "-m", "mkernel.torch", "build"], env=environment, capture_output=True, text=True, timeout=300)
    if built.returncode != 0:
        raise SystemExit(f"the extension of mkernel.torch: {built.stderr[-1000:]}")


def add(path, part, section):
    """To the file, which has a section for each part."""
    file = json.loads(path.read_text()) if path.exists() else {}
    file[part] = section
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(file, indent=1) + "\n")


def record(arguments, stack):
    end = time.monotonic() + arguments.seconds - ENDING
    import record_gpu
    from client_test import PACKAGE, free_ports  # which also says where the library is
    from cluster import Daemon

    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": PACKAGE, "WORLD_SIZE": str(arguments.world), "MASTER_ADDR": "127.0.0.1",
                   "GLOO_SOCKET_IFNAME": "lo"}
    if arguments.share_gpu:
        import mps

        server = stack.enter_context(mps.Mps())
        os.environ.update(server.environment)  # of the daemon
        environment |= {**server.environment, "CUDA_VISIBLE_DEVICES": "0", "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1"}
    path = None
    machine = {"processor": platform.machine(), "cores": os.cpu_count(), "kernel": platform.release()}
    if arguments.device == "cuda":
        path = arguments.out / f"{record_gpu.prefix(arguments)}torch.json"
        machine |= {**gpu(), **versions(environment)}
    folder = pathlib.Path(tempfile.mkdtemp(prefix="mkernel-"))
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    environment |= {"MKERNEL_TORCH_EXTENSION": str(int(arguments.extension)), "XDG_CACHE_HOME": str(folder / "cache")}
    if arguments.extension:
        build_extension(environment)
    machine["extension"] = arguments.extension
    print(", ".join(f"{key} {value}" for key, value in machine.items()), flush=True)

    daemon = Daemon(folder, "node0", free_ports(1)[0], [])
    stack.callback(daemon.stop)
    daemon.start()
    bad = False
    for part in arguments.parts:
        if end - time.monotonic() < 30:
            print(f"{part}: left out, there is no time for it", flush=True)
            bad = True
            continue
        settings = {"world": arguments.world, "share": arguments.share_gpu, "device": arguments.device, "small": arguments.small,
                    "socket": str(daemon.socket), "stop_at": time.time() + end - time.monotonic() - 20,
                    "beside_seconds": arguments.beside_seconds, "nccl_max_ctas": arguments.nccl_max_ctas, "operators": arguments.operators,
                    "rows": arguments.rows}
        ranks_environment = {**environment, "MASTER_PORT": str(free_ports(1)[0]), "SOCKET": str(daemon.socket),
                             "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
        if part == "beside":
            ranks_environment["NCCL_MAX_CTAS"] = str(arguments.nccl_max_ctas)
        load = os.getloadavg()[0]
        began = time.monotonic()
        ranks = Ranks(part, folder, settings, ranks_environment)
        try:
            ranks.follow(end, lambda row, part=part: print(line(part, row), flush=True))
        finally:
            ranks.end()
            section = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "machine": {**machine, "load_before": load},
                       "world": arguments.world, "share": arguments.share_gpu or None, "problem": ranks.problem, "rows": ranks.merged}
            if part == "operators":
                section["crossover"] = crossover(ranks.merged)
            if path is not None and ranks.merged:
                add(path, part, section)
        for found in section.get("crossover", ()):
            since = "not at the largest m" if found["wins_from_m"] is None else f"always from m = {found['wins_from_m']} on"
            print(f"{found['model']}, {found['layer']}, {found['op']}, {found['how']}: won {found['won']} of {found['of']}, {since}")
        took = time.monotonic() - began
        print(f"{part}: {len(ranks.merged)} rows in {took:.0f} s" + (f"; {ranks.problem}" if ranks.problem else ""), flush=True)
        bad = bad or ranks.problem is not None or any(map(is_bad, ranks.merged))
    print(f"recorded in {path}" if path is not None else "nothing is recorded of a run in host memory", flush=True)
    return 1 if bad else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--world", type=int, default=2, help="ranks, each with a GPU")
    parser.add_argument("--share-gpu", type=int, default=0, metavar="R", help="R ranks on one GPU at the same time, under MPS")
    parser.add_argument("--parts", default=",".join(PARTS), type=lambda text: text.split(","))
    parser.add_argument("--seconds", type=float, default=570, help="bound of the whole")
    parser.add_argument("--beside-seconds", type=float, default=60)
    parser.add_argument("--nccl-max-ctas", type=int, default=8, help="of the collectives of the part `beside`")
    parser.add_argument("--small", action="store_true", help="a few little shapes, to try the script")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--extension", action="store_true", help="with the extension of mkernel.torch in C++, which is compiled first")
    parser.add_argument("--operators", default=OPERATORS, type=lambda text: text.split(","), help="of the part `operators`")
    parser.add_argument("--rows", default=None, type=lambda text: [int(m) for m in text.split(",")], help="m of the part `operators`")
    parser.add_argument("--out", default=HERE / "results", type=pathlib.Path)
    arguments = parser.parse_args()
    unknown = [part for part in arguments.parts if part not in PARTS]
    if unknown:
        parser.error(f"there is no part {unknown[0]}; known are {', '.join(PARTS)}")
    unknown = [op for op in arguments.operators if op not in OPERATORS]
    if unknown:
        parser.error(f"there is no operator {unknown[0]}; known are {', '.join(OPERATORS)}")
    if arguments.share_gpu:
        arguments.world = arguments.share_gpu
    # Ended by a signal, too, it ends what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    with contextlib.ExitStack() as stack:  # whatever happens, what was started is ended, the last first
        status = record(arguments, stack)
    sys.exit(status)


if __name__ == "__main__":
    main()
