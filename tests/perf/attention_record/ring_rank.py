"""One rank of record_ring.py: ring_rank.py SETTINGS, which are JSON."""
import contextlib
import pathlib
import struct
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "moe_record"))
import cases  # noqa: E402
import measure  # noqa: E402
import mkernel  # noqa: E402
import nccl_ring  # noqa: E402
import ring_backward  # noqa: E402
import ring_cases  # noqa: E402
import ring_rows  # noqa: E402
import ring_shapes  # noqa: E402
from meeting import FEWEST, JOIN_TIMEOUT, run, sms_of_share  # noqa: E402

HEAD_START = 10_000_000  # cycles: the ring of NCCL is many calls
NEEDED = ("mkernel", "one_node", "floor")
MODULES = {"ring_attention": ring_cases, "ring_attention_backward": ring_backward}  # by the op of a shape
NOT_TAKEN = "No available kernel"  # of cuDNN for a layout
FAILURES = (mkernel.Error, measure.Wrong, RuntimeError, ValueError)


class Contest:
    """Contenders in turns, each on all ranks at once. `left_out` says by name why one does not take part; `failed`: whether one of these
    was to."""

    def __init__(self, clock, meeting, stack):
        self.clock, self.meeting, self.stack = clock, meeting, stack
        self.contenders, self.left_out, self.failed = [], {}, False

    def together(self, call):
        """What `call` returns. Error: measure.Wrong, on all ranks where it failed on one."""
        result, problem = None, ""
        try:
            result = call()
        except FAILURES as error:
            problem = f"{type(error).__name__}: {error}"
        said = [text.rstrip(b"\0").decode(errors="replace") for text in self.meeting.exchange(struct.pack("400s", problem.encode()[:400]))]
        if any(said):
            alike = len(set(said)) == 1
            raise measure.Wrong(said[0] if alike else "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(said) if text))
        return result

    def admit(self, name, make):
        """Adds what `make` returns, after calls that load what it launches. One that fails is left out, unless the row needs it.
        Error: measure.Wrong, on all ranks."""

        def made():
            contender = make()
            self.stack.callback(contender.close)
            return contender

        try:
            contender = self.together(made)
            for _ in range(2):
                self.checked(contender)
        except measure.Wrong as error:
            if name in NEEDED:
                raise measure.Wrong(f"{name}: {error}") from None
            self.left_out[name] = str(error)
            self.failed |= NOT_TAKEN not in str(error)
        else:
            self.contenders.append(contender)

    def turn(self, number):
        """By name the milliseconds of the slowest rank, and the largest error over its tolerance. Error: measure.Wrong, on all ranks."""
        found = {}
        first = number % len(self.contenders)
        for contender in self.contenders[first:] + self.contenders[:first]:
            said = self.meeting.exchange(struct.pack("2d", *self.checked(contender)))
            found[contender.name] = tuple(map(max, zip(*(struct.unpack("2d", mine) for mine in said))))
        return found

    def checked(self, contender):
        return self.together(lambda: cases.checked(contender, contender, self.clock))


class Rank:
    def __init__(self, settings, sessions, meeting, clock, device):
        self.settings, self.sessions, self.meeting, self.clock, self.device = settings, sessions, meeting, clock, device
        self.shared = bool(settings["share"]) and device.type == "cuda"
        self.sms = settings["sms"] or (sms_of_share(settings["ranks"]) if self.shared else 0)

    def measure(self, case, until):
        """(The row of a case, whether all contenders were measured that were to be); more than the fewest iterations only before `until`.
        Errors: measure.Wrong and mkernel.Error."""
        shape = next(shape for shape in ring_shapes.SHAPES if shape.name == case["shape"])
        world, rank, device = self.meeting.world, self.meeting.rank, self.device
        if device.type == "cpu":
            shape = ring_shapes.small(shape, world)
        with contextlib.ExitStack() as stack:  # a launch that fails ends its group: the next case has others
            contest = Contest(self.clock, self.meeting, stack)
            module = MODULES[shape.op]
            ring = contest.together(lambda: module.RingCase(shape, world, rank, device))
            ring.nodes = case["nodes"]
            alone = contest.together(lambda: module.ALONE.Case(shape.alone(world), device, copies=not self.shared))
            self._admit(contest, case, module, ring, alone)
            expected = contest.contenders[0].operation.expected_seconds()
            more = {"how": self.clock.how, "sms": self.sms or None, "expected_ms": None if expected is None else 1e3 * expected,
                    "left_out": contest.left_out}
            turns = []
            while len(turns) < self.settings["iterations"]:
                contest.together(lambda: (ring.renew(), alone.renew()))
                contest.together(lambda: ring.run_forward(self.clock))
                turns.append(contest.turn(len(turns)))
                if len(turns) >= FEWEST and self.meeting.now() > until:
                    break
            if module is ring_backward:
                self._check_bits(contest, ring)
                more["deterministic"] = True
        return ring_rows.row_of(case, shape, turns, self.settings, more), not contest.failed

    def _check_bits(self, contest, ring):
        """Error: measure.Wrong, on all ranks, where two launches with the same inputs give other bits."""
        found = []
        for _ in range(2):
            contest.checked(contest.contenders[0])
            found.append(ring.digests())

        def compare():
            if found[0] != found[1]:
                raise measure.Wrong("mkernel: two launches with the same inputs gave other bits")

        contest.together(compare)

    def _admit(self, contest, case, module, ring, alone):
        """Whoever takes part."""
        executor, nodes, world, rank = self.device.type, case["nodes"], self.meeting.world, self.meeting.rank
        options = {"sms": self.sms} if self.sms else {}

        def join(on_nodes, of_which, *membership):
            name = f"{case['name']} {of_which}"
            return contest.stack.enter_context(self.sessions[on_nodes].join(name, *membership, timeout=JOIN_TIMEOUT))

        group = join(nodes, "all", world, rank)
        contest.stack.enter_context(group.keep_active())  # launches that are queued and put cannot wake the daemon

        def ours():
            made = module.Ours("mkernel", ring, group, executor, **options)
            ring.run_forward(self.clock)
            return made

        contest.admit("mkernel", ours)
        if nodes > 1:
            beside = join(1, "one node", world, rank)
            contest.admit("one_node", lambda: module.Ours("one_node", ring, beside, executor, **options))
        own = join(1, f"floor {rank}", 1, 0)
        contest.admit("floor", lambda: module.Floor(alone, own, executor, **options))
        if self.shared:
            contest.left_out["cudnn"] = "it takes all multiprocessors of the GPU that ranks share"
        else:
            for name, make in module.ALONE.on_cudnn(alone).items():
                contest.admit(name, make)
        if module is ring_backward:
            contest.left_out["nccl_ring"] = "it has no backward pass"
        elif not self.settings["backend"]:
            contest.left_out["nccl_ring"] = "NCCL needs a GPU for each rank"
        elif nodes > 1:
            contest.left_out["nccl_ring"] = "NCCL would go over NVLink, where our ranks have an emulated wire"
        elif not nccl_ring.takes(ring):
            contest.left_out["nccl_ring"] = "the ranks hold parts of different lengths"
        else:
            contest.admit("nccl_ring", lambda: nccl_ring.NcclRing(ring))


if __name__ == "__main__":
    run("record_ring", Rank, ring_rows.line, head_start=HEAD_START)
