"""Shapes of ring attention, and what is asked of them."""
import dataclasses
import math
from typing import Optional

import backward
import cases

PARTS = {False: 1, True: 2}  # of the sequence that a rank holds, by `causal`


@dataclasses.dataclass(frozen=True)
class RingShape:
    """`sequence`: positions of all ranks together. What is asked of ranks with a GPU each: a part of cuDNN's rate on one GPU, times the
    rate of the ring of NCCL, TFLOP/s of a rank; None: nothing."""

    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    sequence: int
    causal: bool
    of_cudnn: Optional[float] = None
    over_nccl_ring: Optional[float] = None
    tflops: Optional[float] = None
    op = "ring_attention"

    @property
    def name(self):
        return self._square(self.sequence).name

    def flops(self):
        """Of all ranks, without what the mask hides."""
        return self._square(self.sequence).flops()

    def alone(self, world):
        """As much work of a rank alone. Full: the most queries that a rank has, and all keys. Causal: as many FLOPs in one triangle,
        which is half of the sequence at four ranks."""
        if self.causal:
            return self._square(round(self.sequence / math.sqrt(world)))
        return dataclasses.replace(self._square(-(-self.sequence // world)), keys=self.sequence)

    def _square(self, sequence):
        return cases.Shape(self.batch, self.heads, self.kv_heads, self.head_dim, sequence, self.causal, None)


class RingBackwardShape(RingShape):
    """Of the backward pass."""

    op = "ring_attention_backward"

    def _square(self, sequence):
        return backward.Shape(self.batch, self.heads, self.kv_heads, self.head_dim, sequence, self.causal, None)


FORWARD = [
    *(RingShape(4, 16, 16, 128, sequence, False, of_cudnn, over)
      for sequence, of_cudnn, over in ((12288, 0.92, 2.0), (24576, 0.95, 1.4), (49152, 0.95, 1.1), (98304, 0.95, 1.05))),
    *(RingShape(4, 16, 16, 128, sequence, True, 0.93) for sequence in (49152, 98304)),
    RingShape(1, 64, 8, 128, 32768, False, tflops=620),
    RingShape(1, 64, 8, 128, 32768, True, tflops=560),
    RingShape(1, 40, 40, 128, 75600, False, 0.95),  # video models
    RingShape(1, 16, 16, 128, 100003, True),        # no parts of equal length
]
BACKWARD = [
    *(RingBackwardShape(4, 16, 16, 128, 24576, causal) for causal in (False, True)),
    *(RingBackwardShape(4, 16, 16, 128, 49152, causal, 0.85) for causal in (False, True)),
    RingBackwardShape(1, 64, 8, 128, 32768, True),
]
SHAPES = FORWARD + BACKWARD
# On shares of a GPU with 80 GB the longer backward passes do not fit beside those of one node.
SEVERAL_NODES = [shape for shape in SHAPES if (shape.batch, shape.sequence) == (4, 49152)] + BACKWARD[:2]


def small(shape, world):
    """For a try in host memory; what is a multiple of the parts stays one."""
    parts = PARTS[shape.causal] * world
    return dataclasses.replace(shape, batch=min(shape.batch, 2), heads=shape.heads // shape.kv_heads * 2, kv_heads=2,
                               sequence=24 * parts + shape.sequence % parts)
