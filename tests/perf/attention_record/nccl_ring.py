"""Ring attention of torch.distributed and cuDNN: ranks pass keys and values round while they attend to the block that they have, and
merge the blocks by their log-sum-exps."""
import torch
import torch.distributed as dist

from measure import Theirs


def takes(case):
    """Whether the ranks hold parts of equal length."""
    return case.shape.sequence % (len(case.held[0]) * case.world) == 0


class NcclRing(Theirs):
    """Of a RingCase that it takes(): zigzag where it is causal. Blocks are double-buffered, and passed on a
    stream of their own. In host memory gloo and PyTorch's attention play it."""

    name = "nccl_ring"
    roundings = 2.0  # each block's output is rounded before the sum is

    def __init__(self, case):
        self.case = case
        self.buffers = [(torch.empty_like(case.k), torch.empty_like(case.v)) for _ in range(2)]
        self.side = torch.cuda.Stream() if case.q.is_cuda else None
        self.expand = case.shape.heads != case.shape.kv_heads and not takes_shared_heads(*(x.transpose(1, 2) for x in (case.q, case.k, case.v)))
        self._rehearse()

    def _rehearse(self):
        """Without other ranks: loads every kernel that a call launches."""
        q, held, sums = self.case.q.transpose(1, 2), (self.case.k, self.case.v), Sums()
        for source in range(self.case.world):
            self._attend(q, held, source, sums)
        sums.rounded(self.case.q.dtype)

    def __call__(self):
        case, sums = self.case, Sums()
        q, held = case.q.transpose(1, 2), (case.k, case.v)
        for step in range(case.world):
            into = self.buffers[step % 2] if step + 1 < case.world else None
            passed = self._pass_on(held, into) if into else None
            self._attend(q, held, (case.rank - step) % case.world, sums)
            if passed:
                passed()
                held = into
        return sums.rounded(case.q.dtype)

    def _pass_on(self, held, into):
        """Sends what this rank holds to the next one and receives into `into`, which nothing queued so far reads on its end. Returns
        what makes the current stream wait for both."""
        after, before = (self.case.rank + 1) % self.case.world, (self.case.rank - 1) % self.case.world
        transfers = [*(dist.P2POp(dist.isend, x, after) for x in held), *(dist.P2POp(dist.irecv, x, before) for x in into)]
        if self.side is None:
            works = dist.batch_isend_irecv(transfers)
            return lambda: [work.wait() for work in works]
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            for work in dist.batch_isend_irecv(transfers):
                work.wait()
        arrived = self.side.record_event()
        return lambda: torch.cuda.current_stream().wait_event(arrived)

    def _attend(self, q, held, source, sums):
        k, v = (x.transpose(1, 2) for x in held)
        if self.expand:
            k, v = expanded(q, k, v)
        half = q.shape[2] // 2
        if not self.case.shape.causal:
            sums.add(0, *attention(q, k, v, False))
        elif source == self.case.rank:
            sums.add(0, *attention(q, k, v, True))
        elif source < self.case.rank:  # all queries see the first part of the source, none sees its last one
            sums.add(0, *attention(q, k[:, :, :half], v[:, :, :half], False))
        else:  # the queries of the last part see both, those of the first none
            sums.add(half, *attention(q[:, :, half:], k, v, False))


class Sums:
    """Outputs of queries in fp32, and the log-sum-exps of the blocks that they have seen."""

    def __init__(self):
        self.out = self.lse = None

    def add(self, first, out, lse):
        """A block that the queries from `first` on have seen."""
        if self.out is None:
            self.out, self.lse = out.float(), lse
            return
        total, seen = self.out[:, :, first:], self.lse[:, :, first:]
        total.lerp_(out.float(), (lse - seen).sigmoid())  # the weight of this block among all
        torch.logaddexp(seen, lse, out=seen)

    def rounded(self, dtype):
        return self.out.to(dtype)


def attention(q, k, v, causal):
    """(out [batch, heads, queries, head_dim], lse [batch, heads, queries, 1])."""
    if q.is_cuda:
        out, lse = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal, False)[:2]
    else:
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
    return out, lse.reshape(*out.shape[:3], 1)


def expanded(q, k, v):
    """Keys and values once for every head of queries."""
    return [x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v)]


def takes_shared_heads(q, k, v):
    """Whether attention() is right where heads share keys and values: below PyTorch's public functions nothing checks it."""
    try:
        out = attention(q, k, v, False)[0].float()
    except RuntimeError:
        return False
    wanted = attention(q, *expanded(q, k, v), False)[0].float()
    return (out - wanted).abs().max().item() <= 2**-5 * wanted.abs().max().item()  # far more than roundings; not if there is a NaN
