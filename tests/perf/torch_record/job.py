"""What a rank of record_torch.py has: its device, its process groups, mkernel, and the file that it writes its rows to."""
import contextlib
import datetime
import gc
import json
import pathlib
import sys
import time
import warnings

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm  # also defines operators in torch.ops.symm_mem

import mkernel.torch

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "python"))  # what the ranks of the GPU tests have in common

# A collective that takes longer has failed: PyTorch then ends the process, and record_torch.py says so.
LIMIT = datetime.timedelta(seconds=90)
TIMEOUT = 20.0  # seconds of every single wait of mkernel
NEEDS_GPUS = "left out: NCCL needs a GPU for each rank"


class HostEvent:
    """In place of torch.cuda.Event for tensors in host memory."""

    def record(self):
        self.seconds = time.perf_counter()

    def elapsed_time(self, end):
        return 1e3 * (end.seconds - self.seconds)


class Job:
    """One rank. `nccl` says whether the ranks have a GPU each, and so NCCL between them; `share` ranks share a GPU, or 0."""

    def __init__(self, settings):
        self.settings = settings
        self.rank, self.world, self.share, self.small = (settings[key] for key in ("rank", "world", "share", "small"))
        self.cuda = settings["device"] == "cuda"
        self.nccl = self.cuda and not self.share
        self.device = torch.device("cuda", 0 if self.share else self.rank) if self.cuda else torch.device("cpu")
        self._file = open(settings["file"], "a", buffering=1)
        self._stop_at = settings["stop_at"]
        self._symmetric = None

    def begin(self):
        self.at("torch.distributed begins")
        where = {"rank": self.rank, "world_size": self.world, "timeout": LIMIT}
        if self.cuda:
            torch.cuda.set_device(self.device)
        if self.nccl:
            dist.init_process_group("nccl", device_id=self.device, **where)
            self.host = dist.new_group(backend="gloo", timeout=LIMIT)
        else:
            dist.init_process_group("gloo", **where)
            self.host = dist.group.WORLD
        self.group = dist.group.WORLD.group_name
        self._line = torch.zeros(1, device=self.device)
        torch.manual_seed(1000 + self.rank)
        if self.cuda:
            self._begin_symmetric_memory()
        self.at("mkernel begins")
        self.begin_mkernel()

    def _begin_symmetric_memory(self):
        from torch._C._autograd import DeviceType
        from torch._C._distributed_c10d import _SymmetricMemory

        if _SymmetricMemory.has_multicast_support(DeviceType.CUDA, self.device.index):
            raise RuntimeError("PyTorch would use multicast memory: TORCH_SYMM_MEM_DISABLE_MULTICAST=1 has no effect")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer versions of PyTorch do not need it, and say so
            symm.enable_symm_mem_for_group(self.group)
        # Ranks that share a GPU have no NCCL to begin together with.
        self._barrier = symm.get_symm_mem_workspace(self.group, min_size=1 << 20)

    def begin_mkernel(self):
        """Also again: what graphs have captured stays in a group until it ends."""
        mkernel.torch.shutdown()
        mkernel.torch.init(socket=self.settings["socket"], timeout=60.0)
        mkernel.torch.set_options(timeout=TIMEOUT)
        if self.cuda and self.share:
            from torch_gpu_rank import RANKS_PER_GPU, margin

            mkernel.torch.set_options(sm_margin=margin(RANKS_PER_GPU))

    def end(self):
        self.at("ends")
        self.exchange(None)
        mkernel.torch.shutdown()
        dist.destroy_process_group()

    # ---- to record_torch.py

    def at(self, text):
        """Says what this rank is about to do: for the message when it does not come back."""
        self._file.write(json.dumps({"at": text}) + "\n")

    def row(self, **fields):
        """A row, which has the same `what` on every rank."""
        self._file.write(json.dumps({"row": fields}) + "\n")

    # ---- with the other ranks, on the host

    def exchange(self, said):
        """What every rank says, by rank."""
        answers = [None] * self.world
        dist.all_gather_object(answers, said, group=self.host)
        return answers

    def enough_time(self):
        """Whether rank 0 finds that there is time for more."""
        return self.exchange(time.time() < self._stop_at)[0]

    def agree(self, error):
        """The error of any rank, or None on all of them."""
        errors = self.exchange(error)
        found = {text: rank for rank, text in reversed(list(enumerate(errors))) if text is not None}
        if not found:
            return None
        text, rank = next(iter(found.items()))
        return text if len(found) == 1 and None not in errors else f"rank {rank}: {text}"

    # ---- on the device

    def synchronize(self):
        if self.cuda:
            torch.cuda.synchronize()

    def free(self):
        """Gives back the memory of what is no longer used."""
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()

    def event(self):
        return torch.cuda.Event(enable_timing=True) if self.cuda else HostEvent()

    def attempt(self, call):
        """(what `call` returns, None), or (None, the error by type and text). An error after which the GPU takes no more work is
        raised: nothing that follows could be measured."""
        try:
            result = call()
            self.synchronize()
            return result, None
        except Exception as error:
            text = f"{type(error).__name__}: {str(error).strip()[:400]}"
        self.synchronize()
        return None, text

    def start_line(self):
        """What is queued on the current stream from here on begins on all ranks together."""
        if self.nccl:
            dist.all_reduce(self._line)
        elif self.cuda:
            self._barrier.barrier(channel=0)
        else:
            dist.barrier()

    def timed(self, call):
        """(what `call` returns, the events around it, microseconds it took on the host). Begins on all ranks together."""
        begin, end = self.event(), self.event()
        self.start_line()
        begin.record()
        before = time.perf_counter()
        result = call()
        host_us = 1e6 * (time.perf_counter() - before)
        end.record()
        return result, (begin, end), host_us

    def symmetric(self, elements):
        """Symmetric memory of PyTorch for an all-reduce of so many bf16: one buffer, which a longer one replaces."""
        if not self.cuda:
            raise RuntimeError("PyTorch has symmetric memory on GPUs alone")
        if self._symmetric is None or self._symmetric.numel() < elements:
            self._symmetric = None
            buffer = symm.empty(elements, dtype=torch.bfloat16, device=self.device)
            symm.rendezvous(buffer, self.group)
            self._symmetric = buffer
        return self._symmetric[:elements]

    @contextlib.contextmanager
    def rehearsal(self):
        """Within it mkernel launches nothing. Where ranks share a GPU, loading a kernel may wait for one of another rank that waits for
        this rank: so whatever a call loads is loaded by a call that launches nothing of ours."""
        if self.cuda and self.share:
            from torch_gpu_rank import no_launches

            with no_launches():
                yield
        else:
            yield

    # ---- collectives that are the reference: NCCL, and through host memory in fp32 where there is none

    def gather(self, x):
        """The rows of all ranks."""
        if self.nccl:
            full = x.new_empty(self.world * x.shape[0], *x.shape[1:])
            dist.all_gather_into_tensor(full, x)
            return full
        mine = x.float().cpu()
        parts = [torch.empty_like(mine) for _ in range(self.world)]
        dist.all_gather(parts, mine)
        return torch.cat(parts).to(x.device, x.dtype)

    def all_reduce(self, x):
        """The sum over all ranks, in new memory."""
        if self.nccl:
            total = x.clone()
            dist.all_reduce(total)
            return total
        total = x.float().cpu()
        dist.all_reduce(total)
        return total.to(x.device, x.dtype)

    def reduce_scatter(self, x):
        """This rank's rows of the sum over all ranks."""
        if self.nccl:
            mine = x.new_empty(x.shape[0] // self.world, *x.shape[1:])
            dist.reduce_scatter_tensor(mine, x)
            return mine
        return self.all_reduce(x).chunk(self.world)[self.rank].clone()

    def random(self, *shape, scale=1.0):
        """Uniform between -scale and scale, other values on every rank."""
        return torch.empty(shape, dtype=torch.bfloat16, device=self.device).uniform_(-scale, scale)
