#!/usr/bin/env python3
"""Writes corpus/: the few inputs that every run of the fuzz targets begins with. Run it after a format has changed, and add
beside its files what a campaign found (`fuzz_x -merge=1`). Usage: tests/fuzz/make_corpus.py
"""
import pathlib
import struct

HERE = pathlib.Path(__file__).resolve().parent


def config():
    full = (HERE.parent.parent / "config" / "mkerneld.toml").read_text()
    bare = "\n".join(line for line in full.splitlines() if line and not line.startswith("#"))
    yield "every-key", bare.encode()
    yield "cluster", b"""[node]
name = "a-1.b_2"
[peers]
listen = "10.0.0.1:7600"
list = ["10.0.0.2:7600", "[fd00::7]:7600", "node-3.example:7600"]
time_scale = 0.5
insecure = true
[transport]
kind = "emulated"
[transport.emulated]
bandwidth_gbytes = 12.5
drop = 1e-3
[proxy]
threads = 4
cpus = [0, 1, 2, 3]
"""
    yield "mistakes", b"[node]\nname = 7\nnothing = 1\n[limits]\nmax_lanes = 65\nmax_groups = -1\n[log]\nlevel = \"loud\"\n"
    yield "no-toml", b"[node\nname = "
    yield "quoted", b'[node]\nname = "x"\nruntime_dir = "/tmp/\\"#\\u00e9"\n'
    yield "backslash-at-the-end", b'[node]\nname = "x"\nruntime_dir = "/tmp/\\\\"  # a remark\n'


def npy():
    def file(version, header, data=b""):
        size = 10 if version == 1 else 12
        text = header.encode().ljust(-(-(len(header) + size + 1) // 64) * 64 - size - 1) + b"\n"
        return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(text)) + text + data

    head = "{{'descr': '{}', 'fortran_order': {}, 'shape': {}, }}".format
    yield "matrix", file(1, head("<f4", False, "(2, 3)"), struct.pack("<6f", *range(6)))
    yield "half", file(2, head("<f2", False, "(5,)"), bytes(10))
    yield "indices", file(1, head("<i8", False, "()"), bytes(8))
    yield "empty", file(1, head("<i4", False, "(4, 0, 7)"))
    yield "fortran", file(1, head("<f4", True, "(2, 2)"), bytes(16))
    yield "large", file(1, head("<f4", False, "(4294967296, 4294967296, 2)"))
    yield "short", file(1, head("<f4", False, "(1000,)"), bytes(16))


# The frames of daemon/transport/tcp/message.h.
def opening(key):
    return struct.pack("<B7xQ", 1, key)


def held(key, count):
    return struct.pack("<B7xQQ", 2, key, count)


def put(key, offset, payload, sequence=1, region=0, length=None):
    return struct.pack("<BxHIQQH6x", 3, sequence, len(payload) if length is None else length, key, offset, region) + payload


def refused(key, why):
    return struct.pack("<B3xIQ448s", 4, 13, key, why)


def tcp_stream():
    small = opening(2) + held(2, 0) + b"".join(put(2, 64 * i, bytes([i]) * i, i) for i in range(8)) + refused(4, b"no such region")
    yield "small", b"\xff\xff" + small
    yield "byte-by-byte", b"\0\0" + small
    yield "large", b"\x40\x20" + put(2, 100, bytes(range(256)) * 80) + put(2, 0, b"tail") + \
        put(3, 0, b"discarded" * 500) + held(2, 3)
    yield "outside", b"\x10\x10" + put(2, 1 << 40, b"x" * 40) + put(2, 0, b"y" * 30, length=0xffffffff)
    yield "refused", b"\x10\x10" + put(2**64 - 1, 0, b"") + opening(1)
    yield "malformed", b"\x10\x10" + opening(1) + b"\x09rubbish"


def record(content, with_fds=0):
    return struct.pack("<HB", len(content), with_fds) + content


# The packets of daemon/transport/emulated/message.h; with_fds 4: the source region's.
def announce(region=1, size=4096, kind=1, offset=0):
    return record(struct.pack("<HHIQQQII80x", 3, 0, 0, region, offset, size, kind, 0), 4)


def puts(*entries):
    return record(struct.pack("<HHIQ", 5, len(entries), 0, 0) + b"".join(
        struct.pack("<QQQQIHHq", 99, 1, source, target, length, 0, sequence, 0) for sequence, source, target, length in entries))


def counts(kind, *entries):
    return record(struct.pack("<HHI", kind, len(entries), 0) + b"".join(struct.pack("<QQ", *entry) for entry in entries))


def emulated_packet():
    yield "puts", b"\2" + announce() + puts((1, 0, 64, 16), (2, 4000, 0, 96), (3, 0, 0, 0)) + \
        record(struct.pack("<HHIQ", 4, 0, 0, 1))
    yield "out-of-order", b"\2" + announce() + puts((2, 0, 0, 8), (1, 8, 8, 8)) + puts((2, 0, 0, 8), (3, 0, 0, 8))
    yield "outside", b"\2" + announce() + puts((1, 4090, 0, 16)) + puts((2, 0, 4090, 16))
    yield "acknowledged", b"\2" + counts(7, (100, 0)) + counts(6, (100, 1)) + counts(6, (100, 3))
    yield "refused", b"\2" + record(struct.pack("<HHIQII448s", 8, 0, 0, 100, 11, 0, b"no"))
    yield "regions", b"\2" + announce(1, 8192) + announce(2, 4096, 3) + announce(3, 4096, 9)
    yield "no-hello", b"\3" + announce() + counts(6, (100, 1))


# The slots of proto/abi/work_request.h behind eight bytes that make the tables: the session's first channel, the sizes of
# four regions of the other rank, the shift of all sizes, which regions this rank has, and which of those are GPU memory.
def slot(opcode=1, channel=3, peer=1, length=64, local=(0, 0), remote=(0, 0), reserved=0):
    return struct.pack("<4Q", opcode << 56 | channel << 32 | length, local[0] << 48 | local[1], remote[0] << 48 | remote[1],
                       peer << 32 | reserved)


def ring_slot():
    tables = bytes([0, 16, 16, 16, 0, 12, 0b0111, 0b0100])
    last = 16 * 4096 - 64
    yield "puts", tables + slot() + slot(channel=5, local=(1, 128), remote=(2, last)) + slot(local=(0, last))
    yield "signals", tables + slot(length=0) + slot(length=0, local=(9, 1), remote=(9, 1))
    yield "outside", tables + slot(local=(0, last + 1)) + slot(remote=(0, last + 1)) + slot(remote=(0, (1 << 48) - 1))
    yield "not-registered", tables + slot(local=(3, 0)) + slot(remote=(3, 0)) + slot(local=(4, 0)) + slot(remote=(4, 0))
    yield "gpu-memory", tables + slot(local=(2, 0))
    yield "too-long", tables + slot(length=1 << 16) + slot(length=(1 << 16) + 1)
    yield "other-ring", tables + slot(channel=4) + slot(channel=6) + slot(peer=0)
    yield "malformed", tables + slot(opcode=0) + slot(reserved=1) + slot(opcode=2) + slot()[:31]
    yield "late-channels", bytes([7]) + tables[1:] + slot(channel=10) + slot(channel=6)


# The requests of proto/abi/messages.h behind one byte: how many fds came, 0x40 for a packet that was cut, 0x80 for fds that were.
ABI_VERSION = 9
GROUPS_VERSION = 1


def request(kind, body, fds=0, sequence=1, magic=0x4c4e4b4d, version=ABI_VERSION, size=None):
    whole = 16 + len(body) if size is None else size
    return bytes([fds]) + struct.pack("<IIHHI", magic, version, kind, whole, sequence) + body


def register(kind, dma_buf=0, ipc=bytes(80), keep=0, reserved=bytes(4), no_dma_buf=b""):
    return struct.pack("<IIIIQQ80sQI4s448s", 1, 0, kind, 1, 0, 4096, ipc, dma_buf, keep, reserved, no_dma_buf)


def session_message():
    hello = struct.pack("<64siIQ", b"train.py", -1, 1, 0)
    join = struct.pack("<64sIIIII12s32s", b"job-7", 8, 3, 2, 16, 1000, bytes(12), b"secret")
    yield "hello", request(1, hello)
    yield "hello-of-other-version", request(1, hello, version=ABI_VERSION + 1)
    yield "name-without-end", request(1, b"n" * 64 + hello[64:])
    yield "join", request(2, join)
    yield "reserved", request(2, join[:84] + b"\1" + join[85:])
    yield "leave", request(3, struct.pack("<I12s", 1, bytes(12)))
    yield "register-host-memory", request(4, register(1), fds=1)
    yield "register-again", request(4, register(1, keep=1), fds=1)
    yield "register-gpu-memory", request(4, register(2, ipc=bytes(range(80)), dma_buf=4096), fds=1)
    yield "register-vmm", request(4, register(3, no_dma_buf=b"no peer memory"), fds=1)
    yield "register-mixed", request(4, register(1, dma_buf=4096, ipc=bytes(80)), fds=1)
    yield "register-without-fd", request(4, register(1))
    yield "unregister", request(5, struct.pack("<II8s", 1, 0, bytes(8)))
    yield "map", request(6, struct.pack("<IIII", 1, 2, 0, 0))
    yield "exchange", request(7, struct.pack("<IIQ512s", 1, 0, 1, bytes(range(256)) * 2))
    yield "fail", request(8, struct.pack("<II8s448s", 1, 4, bytes(8), b"rank 3 timed out"))
    yield "seal", request(9, struct.pack("<II8s", 1, 0, bytes(8)))
    yield "reject", request(10, struct.pack("<IIQ448s", 1, 3, 1, b"c has 7 bytes of 128"))
    yield "unknown-type", request(11, bytes(16))
    yield "wrong-size", request(3, bytes(16), size=48)
    yield "event", request(3, bytes(16), sequence=0)
    yield "cut", request(3, bytes(16), fds=0x40)
    yield "fds-cut", request(3, bytes(16), fds=0x80)


# The messages of daemon/transport/rdma/message.h, and those of verbs and of EFA beside it.
RDMA_VERSION = 4


def rdma(kind, body=b"", slot=0, count=0, version=RDMA_VERSION):
    return struct.pack("<HHIII", version, kind, slot, 7, count) + body


def rdma_refusal(kind, code, text, key=100, final=0):
    return rdma(kind, struct.pack("<QII448s", key, code, final, text))


def rdma_resolved(size, chunk, count, region=1):
    return rdma(33, struct.pack("<QIIQQ", 100, region, 1, size, chunk) + struct.pack("<QII", 1 << 40, 17, 0) * count, count=count)


def rdma_message():
    """What both transports take and refuse."""
    yield "detach", rdma(17, struct.pack("<Q", 100))
    yield "resolve", rdma(18, struct.pack("<QII", 100, 255, 0))
    yield "resolved", rdma_resolved(4096, 1 << 20, 1)
    yield "refused", rdma_refusal(35, 5, b"no such\nregion")
    yield "given-up", rdma_refusal(1, 14, b"\xc2\x9b[2J\xff", key=0)
    yield "chunks-of-nothing", rdma(17, struct.pack("<Q", 100), count=1)
    yield "chunk-missing", rdma_resolved(5000, 4096, 1)
    yield "chunk-not-power-of-two", rdma_resolved(5000, 4095, 2)
    yield "region-too-high", rdma_resolved(4096, 4096, 1, region=256)
    yield "code-ok", rdma_refusal(1, 0, b"fine", key=0)
    yield "text-without-end", rdma_refusal(35, 14, b"x" * 448)
    yield "other-version", rdma(17, struct.pack("<Q", 100), version=RDMA_VERSION + 1)


def verbs_port(mtu=5, layer=2, lid=0, device=b"mlx5_0"):
    gid = bytes(10) + b"\xff\xff\x0a\0\0\1"
    return struct.pack("<16sIBBBB32s", gid, lid, mtu, layer, 1, 0, device)


def verbs_message():
    def opened(port, qpn=0x1234):
        return rdma(64, port + struct.pack("<II", qpn, 99), slot=2)

    yield from rdma_message()
    yield "open", rdma(48, struct.pack("<QQ", 7, 8) + verbs_port() + struct.pack("<IIII", 0x1234, 99, 0, 0), slot=2)
    yield "opened", opened(verbs_port())
    yield "infiniband", opened(verbs_port(layer=1, lid=0xbeef))
    yield "close", rdma(49)
    yield "attach", rdma(16, struct.pack("<Q", 100))
    yield "held", rdma(32, struct.pack("<QQQII", 100, 5, 1 << 40, 17, 0))
    yield "two-chunks", rdma_resolved(5000, 4096, 2)
    yield "not-opened", rdma_refusal(65, 14, b"no path", key=0, final=1)
    yield "device-without-end", opened(verbs_port(device=b"m" * 32))
    yield "device-escape", opened(verbs_port(device=b"\x1b[2J"))
    yield "odd-port", opened(verbs_port(mtu=6, layer=3, lid=1 << 16))
    yield "odd-queue", opened(verbs_port(), qpn=1 << 24)


def efa_end(qpn=17, credit=512, window=128, path=0, device=b"rdmap79s0"):
    gid = b"\xfe\x80" + bytes(13) + b"\1"
    return struct.pack("<QQ16sIIIIII64s", 7, 8, gid, qpn, 0x1111, credit, window, path, 0, device)


def efa_message():
    yield from rdma_message()
    yield "hello", rdma(80, efa_end())
    yield "welcome", rdma(81, efa_end(device=b"rdmap\x1b[2J"))
    yield "ready", rdma(82)
    yield "tried", rdma(85, efa_end(qpn=0, path=63))
    yield "attach", rdma(16, struct.pack("<QII", 100, 1, 0))
    yield "held", rdma(32, struct.pack("<QQII", 100, 5, (1 << 15) - 2, 1))
    yield "two-chunks", rdma_resolved(5000, 4096, 2)
    yield "taken", rdma(38, struct.pack("<II", 3, 0))
    yield "lost", rdma_refusal(83, 14, b"\xc2\x9b[2J\xff", key=0)
    yield "number-too-high", rdma(21, struct.pack("<II", (1 << 15) - 1, 0))
    yield "odd-queue", rdma(80, efa_end(qpn=1 << 24))
    yield "odd-path", rdma(80, efa_end(path=64))
    yield "no-window", rdma(80, efa_end(window=0))
    yield "no-credit", rdma(80, efa_end(credit=0))
    yield "device-without-end", rdma(84, efa_end(device=b"d" * 64))


# Messages of proto/mkernel/v1/peer.proto, as far as they need numbers and texts.
def varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out) + bytes([value])


def fields_of(**fields):
    """Field numbers are the names' digits: f1=7 is a varint, a text or bytes a length with content, x1=7 a fixed64. A list
    is a field that comes again and again."""
    content = b""
    for name, value in ((name, value) for name, values in fields.items()
                        for value in (values if isinstance(values, list) else [values])):
        number = int(name[1:])
        if name[0] == "x":
            content += varint(number << 3 | 1) + struct.pack("<Q", value)
        elif isinstance(value, int):
            content += varint(number << 3) + varint(value)
        else:
            value = value.encode() if isinstance(value, str) else value
            content += varint(number << 3 | 2) + varint(len(value)) + value
    return content


def message(body, **fields):
    content = fields_of(**fields)
    return varint(body << 3 | 2) + varint(len(content)) + content


def said(serialized, peer=0, how=2):
    return struct.pack("<BH", how | peer, len(serialized)) + serialized


def peer_message():
    joined = dict(f1=1, f2=1, f3="g", f4=2, f5=1, f6=2, f7=8, f8=4711, f9="client", f10=1000000)
    accepted = [said(message(11, f1=session, f2=1), peer) for session in (1, 2) for peer in (0, 1)]
    forms = b"".join(accepted) + said(message(10, **joined)) + said(message(13, f1=1, f2=1))
    yield "forms", forms
    yield "leaves", forms + said(message(14, f1=1, f2=1, f3=1, f4="done"))
    yield "gives-up", said(message(10, **joined)) + said(message(14, f1=1, f2=1, f4="timed out"))
    yield "refused", said(message(12, f1=1, f2=1, f3=6, f4="rank 0 is taken"))
    yield "same-rank", said(message(10, **{**joined, "f5": 0, "f10": 1})) + said(message(10, **{**joined, "f4": 3}), 1)
    yield "early", said(message(15, x1=77, f2=1)) + said(message(16, x1=77, f2=1, f3=0, f4=4096, f5=1)) + \
        said(message(17, x1=77, f2=1, f3=1, f4=bytes(512)))
    yield "fails", forms + said(message(18, x1=77, f2=1, f3="node1", f4=10, f5="broken", f6=b"\x08\x01\x10\x01"))
    yield "loses-a-rank", forms + said(message(18, x1=77, f2=1, f3="node1", f4=10, f5="exited", f6=b"\x08\x01\x10\x01", f7=1,
                                               f8=[fields_of(f1=1, f2=2, f3=9, f4="gemm_rs"), fields_of(f1=7, f2=99)]))
    yield "rejects", forms + said(message(20, x1=77, f2=1, f3=1, f4=3, f5="c has 7 bytes of 128"))
    yield "fields", b"".join(said(bytes(range(i, i + 40)), i & 1, 0) for i in range(12))


# Three bytes choose this node's rails, the other end of the stream, and how much of the hello is put right; then it comes.
def peer_hello():
    def rail(kind="tcp", address="10.0.0.2:7601", **version):
        return fields_of(f1=kind, f2=address, **version)

    def hello(node="b", rails=(rail(), rail()), address="10.0.0.2:7600", choices=(1, 1, 0), token=b"of b, 16 bytes..", **other):
        fields = dict(f1=node, x2=2, f3=ABI_VERSION, f4="1.2.3", f5=address, f6=list(rails), f9=token, f10=GROUPS_VERSION)
        return bytes(choices) + fields_of(**{**fields, **other})

    yield "fits", hello()
    yield "fits-version-3", hello(rails=[rail(f3=3)], choices=(0x30, 1, 0))
    yield "answer", hello(rails=[rail(address="")] * 2, token=b"", f7=1, f8=5)
    yield "put-right", hello(rails=[rail("verbs")], choices=(2, 1, 0x1f), f3=99, x2=0)
    yield "certified", hello(choices=(1, 0x3d, 0))
    yield "certified-for-others", hello("gpu-node-7", choices=(1, 0x1d, 0))
    yield "other-user", hello(choices=(1, 0x43, 0))
    yield "every-address", hello(address="0.0.0.0:7600")
    yield "every-address-of-ipv6", hello(address="[::]:7600", choices=(1, 2, 0))
    yield "no-host", hello(address=":7600")
    yield "no-port", hello(address="0.0.0.0")
    yield "other-abi", hello(f3=99)
    yield "our-name", hello("a")
    yield "no-name", hello("")
    yield "no-boot-id", hello(x2=0)
    yield "escape-in-name", hello("b\x1b[2J")
    yield "long-texts", hello("n" * 63, address="h" * 275 + ":7600", f4="1" * 64)
    yield "longer-texts", hello("n" * 64)
    yield "one-rail-less", hello(rails=[rail()])
    yield "second-rail-of-other-kind", hello(rails=[rail(), rail("verbs")])
    yield "second-rail-of-other-version", hello(rails=[rail(), rail(f3=7)])
    yield "escape-in-rail", hello(rails=[rail(), rail(address="\x1b[2J")])
    yield "long-token", hello(token=bytes(range(256)))


TARGETS = [config, efa_message, emulated_packet, npy, peer_hello, peer_message, ring_slot, session_message, tcp_stream,
           verbs_message]


def main():
    for target in TARGETS:
        folder = HERE / "corpus" / target.__name__
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in target():
            (folder / name).write_bytes(content)


if __name__ == "__main__":
    main()
