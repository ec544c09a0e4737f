"""One rank with a PyTorch tensor, registered through the C ABI: a process of its own, against a real daemon.

    torch_rank.py LIBRARY SOCKET GROUP WORLD RANK DEVICE

Registers a slice of a tensor that lies somewhere in PyTorch's caching allocator, writes random bytes into its part of every
rank's slice with a copy from another tensor, verifies its own and what lies around it. Status 0: as expected; 1: wrong data;
3: mkernel refused, its error is on stdout; 77: there is no PyTorch here."""
import ctypes
import sys

try:
    import torch
except ImportError as missing:
    print(f"SKIPPED: {missing}")
    sys.exit(77)

MARGIN, BYTES, POISON = 777, 3_000_001, 0xA5
COPY_DEFAULT = 4  # cudaMemcpyDefault


class SessionOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("socket", ctypes.c_char_p), ("name", ctypes.c_char_p), ("device", ctypes.c_int32),
                ("weight", ctypes.c_uint32), ("timeout_ms", ctypes.c_uint32)]


class GroupOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("name", ctypes.c_char_p)]
    _fields_ += [(field, ctypes.c_uint32) for field in
                 ("world_size", "rank", "lanes", "region_capacity", "timeout_ms")]
    _fields_ += [("secret", ctypes.c_char_p)]


def part(seed, owner, writer, world):
    """What `writer` writes into the slice of `owner`, and where."""
    begin, end = BYTES * writer // world, BYTES * (writer + 1) // world
    generator = torch.Generator().manual_seed(1000 * seed + 10 * owner + writer)
    return begin, torch.randint(0, 256, (end - begin,), dtype=torch.uint8, generator=generator)


def main(library, socket, name, world, rank, device):
    mk = ctypes.CDLL(library)
    for function in ("mk_last_error", "mk_symmetric_peer", "mk_symmetric_data"):
        getattr(mk, function).restype = ctypes.c_void_p
    mk.mk_last_error.restype = ctypes.c_char_p
    cudart = ctypes.CDLL(f"libcudart.so.{torch.version.cuda.split('.')[0]}")

    def need(status):
        if status != 0:
            print(mk.mk_last_error().decode())
            sys.exit(3)

    torch.cuda.set_device(device)
    tensors = [torch.empty(123_457, dtype=torch.uint8, device="cuda") for _ in range(3)]  # neighbours in the same segment
    tensor = torch.full((BYTES + 2 * MARGIN,), POISON, dtype=torch.uint8, device="cuda")
    mine = tensor[MARGIN:MARGIN + BYTES]
    session, group, buffer = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    need(mk.mk_connect(ctypes.byref(SessionOptions(ctypes.sizeof(SessionOptions), socket.encode(), b"torch_rank", device, 0, 0)), ctypes.byref(session)))
    need(mk.mk_join(session, ctypes.byref(GroupOptions(ctypes.sizeof(GroupOptions), name.encode(), world, rank, 0, 0, 0)), ctypes.byref(group)))
    torch.cuda.synchronize()
    need(mk.mk_symmetric_gpu_register(group, ctypes.c_void_p(mine.data_ptr()), ctypes.c_uint64(BYTES), ctypes.byref(buffer)))
    assert mk.mk_symmetric_data(buffer) == mine.data_ptr()
    for seed in (1, 2):
        need(mk.mk_barrier(group))
        for owner in range(world):
            begin, data = part(seed, owner, rank, world)
            source = data.cuda()
            peer = mk.mk_symmetric_peer(buffer, owner)
            error = cudart.cudaMemcpy(ctypes.c_void_p(peer + begin), ctypes.c_void_p(source.data_ptr()),
                                      ctypes.c_size_t(len(data)), COPY_DEFAULT)
            assert error == 0, error
        torch.cuda.synchronize()
        need(mk.mk_barrier(group))
        wanted = torch.cat([part(seed, rank, writer, world)[1] for writer in range(world)])
        wrong = int((mine.cpu() != wanted).sum())
        spoiled = sum(int((edge != POISON).sum()) for edge in (tensor[:MARGIN], tensor[MARGIN + BYTES:]))
        print(f"rank {rank}: {wrong} of {BYTES} bytes wrong, {spoiled} around them")
        if wrong + spoiled:
            sys.exit(1)
    mk.mk_symmetric_destroy(buffer)
    need(mk.mk_barrier(group))  # from here on the tensor may go
    del tensor, mine, tensors
    torch.cuda.empty_cache()
    mk.mk_group_destroy(group)
    mk.mk_session_destroy(session)


main(sys.argv[1], sys.argv[2], sys.argv[3], *map(int, sys.argv[4:7]))
