"""What the ranks of the tests on CUDA tensors have in common. Ranks may share a GPU at the same time: each takes its part of the
multiprocessors, and rehearses what it calls, because loading a kernel there may wait for a kernel of another rank that waits for this
one."""
import contextlib
import os
import unittest.mock

from torch_rank import RANK, WORLD, dist, operand, start, torch

import mkernel.operations
import mkernel.torch
from mkernel.torch import _extension, _short

GPU = torch.device("cuda", int(os.environ.get("LOCAL_RANK", RANK)) % torch.cuda.device_count())
RANKS_PER_GPU = -(-WORLD // torch.cuda.device_count())


COPIES = 4  # multiprocessors for the daemons of emulated nodes: copies from a GPU to itself are kernels


def begin(**options):
    """start() for ranks that leave room for the others of their GPU."""
    torch.cuda.set_device(GPU)
    name = start(**options)
    mkernel.torch.set_options(sm_margin=margin(RANKS_PER_GPU, COPIES))
    return name


def margin(launches, leave=0):
    """What each of `launches` at the same time leaves free, with `leave` multiprocessors for others."""
    sms = torch.cuda.get_device_properties(GPU).multi_processor_count
    return sms - (sms - leave) // launches // 2 * 2


def on_gpu(*arguments, **keywords):
    return operand(*arguments, **keywords).to(GPU)


def meet():
    torch.cuda.synchronize()
    dist.barrier()


@contextlib.contextmanager
def without_extension():
    """Nothing is taken by the extension in C++, which goes on to remember calls."""
    pause = _extension.extension.functions.pause if _extension.extension is not None else lambda _: None
    pause(1)
    try:
        yield
    finally:
        pause(0)


@contextlib.contextmanager
def no_launches():
    with (without_extension(), unittest.mock.patch.object(mkernel.operations.Launch, "enqueue", lambda *_: None),
          unittest.mock.patch.object(_short, "call", lambda *_: None)):
        yield


def call(function, *arguments, **keywords):
    """Once without launches, which makes the plans and loads whatever runs, then for real."""
    with no_launches():
        function(*arguments, **keywords)
    meet()
    result = function(*arguments, **keywords)
    torch.cuda.synchronize()
    mkernel.torch.synchronize()
    return result
