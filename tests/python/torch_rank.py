"""What the ranks of the tests of mkernel.torch have in common."""
import torch
import torch.distributed as dist
from rank import RANK, SOCKET, WORLD

import mkernel.torch

torch.set_num_threads(1)
UNIT = {torch.bfloat16: 2.0 ** -8, torch.float16: 2.0 ** -11}  # largest relative rounding error
TIMEOUT = 40.0  # seconds, above everything that should happen


def start(**options):
    """Initializes torch.distributed and mkernel; returns the name of the process group."""
    dist.init_process_group("gloo")
    mkernel.torch.init(socket=SOCKET, timeout=TIMEOUT, **options)
    return name_of(None)


def name_of(group):
    return (group or dist.group.WORLD).group_name


def end():
    dist.barrier()
    mkernel.torch.shutdown()
    dist.destroy_process_group()


def operand(seed, rank, shape, dtype=torch.bfloat16):
    """Any rank makes any other rank's operand: never zeros."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return (2 * torch.rand(shape, generator=generator) - 1).to(dtype)


def close(out, wanted, terms=0.0, roundings=1, dtype=None):
    """Every element within its bound. `wanted` is fp64; `terms`: sum of the magnitudes that were rounded on the way."""
    unit = UNIT[dtype or out.dtype]
    bound = 1.01 * roundings * unit * (wanted.abs() + 2 * terms) + 1e-5
    assert out.shape == wanted.shape, f"shape {tuple(out.shape)}, wanted {tuple(wanted.shape)}"
    wrong = ~((out.double() - wanted).abs() <= bound)
    worst = ((out.double() - wanted).abs() / bound).max() if out.numel() else 0
    assert not wrong.any(), f"{int(wrong.sum())} of {wrong.numel()} elements are wrong, by up to {float(worst):.1f} bounds"


def every(rank_to_tensor):
    """Tensors of all ranks in fp64."""
    return [rank_to_tensor(rank).double() for rank in range(WORLD)]


def counted(call):
    """What `call` changed in the counters."""
    before = mkernel.torch.counters()
    call()
    after = mkernel.torch.counters()
    return {key: value - before.get(key, 0) for key, value in after.items()
            if isinstance(value, int) and value != before.get(key, 0)}


__all__ = ["RANK", "SOCKET", "TIMEOUT", "WORLD", "close", "counted", "dist", "end", "every", "name_of", "operand", "start", "torch"]
