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


# The frames of daemon/transport/tcp/wire.h.
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


# The packets of daemon/transport/emulated/wire.h; with_fds 4: the source region's.
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


# Messages of proto/mkernel/v1/peer.proto, as far as they need numbers and texts.
def varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out) + bytes([value])


def message(body, **fields):
    """Field numbers are the names' digits: f1=7 is a varint, a text or bytes a length with content, x1=7 a fixed64."""
    content = b""
    for name, value in fields.items():
        number = int(name[1:])
        if name[0] == "x":
            content += varint(number << 3 | 1) + struct.pack("<Q", value)
        elif isinstance(value, int):
            content += varint(number << 3) + varint(value)
        else:
            value = value.encode() if isinstance(value, str) else value
            content += varint(number << 3 | 2) + varint(len(value)) + value
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
    yield "fields", b"".join(said(bytes(range(i, i + 40)), i & 1, 0) for i in range(12))


TARGETS = [config, npy, tcp_stream, emulated_packet, peer_message]


def main():
    for target in TARGETS:
        folder = HERE / "corpus" / target.__name__
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in target():
            (folder / name).write_bytes(content)


if __name__ == "__main__":
    main()
