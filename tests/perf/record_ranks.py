"""What the scripts that record rows of several ranks have in common: their arguments, and the course of a measurement. The ranks have a GPU
each or share one under MPS; they are Python processes, and play one node or two."""
import contextlib
import os
import pathlib
import signal
import sys
import time

import record_gpu
import record_moe

HERE = pathlib.Path(__file__).resolve().parent


def parse(parser, default):
    """The arguments of the command line, checked: those that `parser` has, and those of several ranks. `default`: (argument, ranks), used when
    neither --world nor --share-gpu is given. Without defaults of `parser`'s own, `iterations` and `seconds` are None unless they are given."""
    parser.add_argument("--world", type=int, default=0, metavar="W", help="ranks with a GPU each; even" + _default_help(default, "world"))
    parser.add_argument("--share-gpu", type=int, default=0, metavar="R",
                        help="R ranks on one GPU at the same time, under MPS; even" + _default_help(default, "share_gpu"))
    parser.add_argument("--only", action="append", metavar="NAME", help="cases whose name holds it; several times: any of them")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--iterations", type=int)
    parser.add_argument("--seconds", type=float, help="what is not measured by then is cut short or left out")
    parser.add_argument("--row-seconds", type=float, default=75, help="of one case, after which its ranks are ended")
    parser.add_argument("--sms", type=int, default=0, help="multiprocessors of a rank; 0: all, or where ranks share a GPU an R-th of all but "
                        "four, which the daemons' copies need")
    parser.add_argument("--nic-gbytes", type=float, default=50.0, help="of a GPU that is not shared")
    parser.add_argument("--latency-us", type=int, default=5)
    parser.add_argument("--spin-us", type=int, default=1000000, help="proxy.spin_us of the daemons of several nodes")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", default=HERE / "results", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.world and arguments.share_gpu:
        parser.error(f"--world {arguments.world} and --share-gpu {arguments.share_gpu}: ranks either have a GPU each or share one")
    if not arguments.world and not arguments.share_gpu:
        setattr(arguments, *default)
    for option, ranks in (("--world", arguments.world), ("--share-gpu", arguments.share_gpu)):
        if ranks < 0 or ranks % 2:
            parser.error(f"{option} {ranks}, must be even: two nodes have half of the ranks each")
    if arguments.iterations is not None and arguments.iterations < 1:
        parser.error(f"--iterations {arguments.iterations}, must be at least 1")
    if arguments.share_gpu:
        arguments.nic_gbytes /= arguments.share_gpu
    return arguments


def _default_help(default, argument):
    return f"; default {default[1]}" if default[0] == argument else ""


def run(parser, arguments, program, what, cases, backend):
    """Measures the cases and ends the script, or with --list prints their names.

    `program`: of the ranks, as processes.run() has it. `what`: the end of the results' file name. `cases`: dictionaries with `name` and
    `nodes`. `backend`: of torch.distributed, between the ranks; None: there is none."""
    if arguments.list:
        print(*dict.fromkeys(case["name"] for case in cases), sep="\n")
        return
    if not cases:
        parser.error(f"no case's name holds {' or '.join(arguments.only)}; --list prints them" if arguments.only else "there are no such cases")
    record_moe.find_library()
    # Ended by a signal, too, it ends what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    with contextlib.ExitStack() as stack:  # whatever happens, what was started is ended, the last first
        status = _record(arguments, program, what, cases, backend, stack)
    sys.exit(status)


def _record(arguments, program, what, cases, backend, stack):
    stop = time.monotonic() + arguments.seconds
    import processes  # beside the ranks' program; record_moe has said where

    cuda, ranks = arguments.device == "cuda", arguments.world or arguments.share_gpu
    machine, path = {"gpu": None}, None
    if cuda and arguments.world > processes.gpus():
        raise SystemExit(f"--world {arguments.world}: this machine has {processes.gpus()} GPUs")
    if cuda:
        machine = record_moe.gpu()
        path = arguments.out / f"{record_gpu.prefix(arguments)}{what}.json"
    if cuda and arguments.share_gpu:
        import mps

        server = stack.enter_context(mps.Mps())
        os.environ.update(server.environment)  # of daemons and ranks
    print(", ".join(f"{key} {value}" for key, value in machine.items()), flush=True)
    sockets = processes.sockets(stack, {1, *(case["nodes"] for case in cases)}, ranks, arguments)
    settings = {"ranks": ranks, "share": arguments.share_gpu, "sms": arguments.sms, "device": arguments.device,
                "iterations": arguments.iterations, "row_seconds": arguments.row_seconds, "nic_gbytes": arguments.nic_gbytes, "machine": machine,
                "backend": backend, "path": None if path is None else str(path), "stop_at": time.time() + stop - time.monotonic()}
    status = processes.run(program, cases, settings, sockets, stop)
    print(f"recorded in {path}" if path is not None else "nothing is recorded of a run in host memory", flush=True)
    return status
