"""A client that speaks the session protocol by hand (proto/abi/messages.h, region_map.h, work_request.h), so that a test can
say what no well-behaved client says."""
import array
import mmap
import os
import socket
import struct

MAGIC, VERSION = 0x4C4E4B4D, 9
HELLO, JOIN, LEAVE, REGISTER, UNREGISTER, MAP, EXCHANGE, FAIL, SEAL = range(1, 10)
SESSION_ENDED = 200
HEADER, REPLY = struct.Struct("<IIHHI"), struct.Struct("<II448s")
F_ADD_SEALS, F_SEAL_SHRINK = 1033, 2
MAX_RINGS = 32
FAILURE_OFFSET = 64 + 2 * 64 * MAX_RINGS  # of the session segment's FailureRecord


def text(raw):
    return raw.split(b"\0", 1)[0].decode()


def memfd(size, sealed=True, populated=True):
    fd = os.memfd_create("raw-client", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    if populated:
        piece = bytes(min(size, 1 << 20))
        for at in range(0, size, len(piece) or 1):
            os.pwrite(fd, piece[:size - at], at)
    if sealed:
        import fcntl
        fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK)
    return fd


def map_whole(fd):
    """The memory behind the descriptor, which is closed."""
    try:
        return mmap.mmap(fd, os.fstat(fd).st_size)
    finally:
        os.close(fd)


def load(memory, at):
    """The word of 64 bits at byte `at` of shared memory, as it is at one moment: struct reads the bytes one after the other."""
    return memoryview(memory).cast("Q")[at // 8]


def store(memory, at, word):
    """Writes the word at once: struct.pack_into() writes zeroes first, which others see."""
    memoryview(memory).cast("Q")[at // 8] = word


class RawClient:
    def __init__(self, path, timeout=60):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(timeout)
        self.socket.connect(str(path))
        self.sequence = 0
        self.position = 0
        self.doorbells = []

    def close(self):
        """Ends the session. Nothing of it stays open: a test may have thousands."""
        self.socket.close()
        while self.doorbells:
            os.close(self.doorbells.pop())

    def send(self, kind, body=b"", fds=(), version=VERSION, magic=MAGIC, size=None):
        self.sequence += 1
        header = HEADER.pack(magic, version, kind, size or HEADER.size + len(body), self.sequence)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.socket.sendmsg([header + body], ancillary)

    def receive(self):
        """(type, code, text, body after the status, fds); None when the daemon closed the socket."""
        receive = lambda: socket.recv_fds(self.socket, 4096, 1 + MAX_RINGS)
        try:
            data, fds, _, _ = receive()
        except ConnectionResetError:  # once, before what the daemon sent earlier
            data, fds, _, _ = receive()
        if not data:
            return None
        kind = HEADER.unpack_from(data)[2]
        code, _, message = REPLY.unpack_from(data, HEADER.size)
        return kind, code, text(message), data[HEADER.size + REPLY.size:], fds

    def ask(self, kind, body, fds=()):
        self.send(kind, body, fds)
        answer = self.receive()
        if answer is None:
            raise ConnectionError("the daemon closed the session")
        return answer

    def hello(self, name="raw client"):
        answer = self.ask(HELLO, struct.pack("<64siI8x", name.encode(), -1, 1))
        if answer[1] != 0:
            return answer
        self.session = map_whole(answer[4].pop(0))
        self.doorbells = answer[4]
        self.log2_slots, self.slots_offset = struct.unpack_from("<I", self.session, 12)[0], \
            struct.unpack_from("<Q", self.session, 16)[0]
        return answer

    def start_join(self, name, world=1, rank=0, lanes=4, capacity=8, timeout_ms=10000, secret=b""):
        self.send(JOIN, struct.pack("<64sIIIII12x32s", name.encode(), world, rank, lanes, capacity, timeout_ms, secret))

    def finish_join(self):
        answer = self.receive()
        if answer is None:
            raise ConnectionError("the daemon closed the session")
        if answer[1] == 0:
            self.group = struct.unpack_from("<I", answer[3])[0]
            self.segment = map_whole(answer[4].pop())
            self.first_channel = struct.unpack_from("<I", self.segment, 28)[0]
        return answer

    def join(self, *arguments, **options):
        self.start_join(*arguments, **options)
        return self.finish_join()

    def register(self, index, fd, offset, size, kind=1, shared=0, keep=1):
        """Host memory that is shared has to be sealed before puts may use it."""
        return self.ask(REGISTER, struct.pack("<IIIIQQ88xI452x", self.group, index, kind, shared, offset, size, keep), [fd])

    def seal(self, index):
        return self.ask(SEAL, struct.pack("<II8x", self.group, index))

    def write_slot(self, *fields, **more):
        """Writes the next slot of ring 0 of the session's threads and rings the doorbell. Arguments: fields of fill_slot()."""
        self.fill_slot(0, self.position, *fields, **more)
        self.position += 1
        self.ring_doorbell(0)

    def fill_slot(self, ring, position, channel, length, peer=0, local=(0, 0), remote=(0, 0), opcode=1, reserved=0):
        """The slot of that position, with its lap; the words that carry it last. What a field cannot hold goes into the next one."""
        lap = (((position >> self.log2_slots) & 1) ^ 1) << 63
        words = (lap | opcode << 56 | channel << 32 | length, local[0] << 48 | local[1], remote[0] << 48 | remote[1],
                 lap | peer << 32 | reserved)
        at = self.slots_offset + ring * (32 << self.log2_slots) + 32 * (position & ((1 << self.log2_slots) - 1))
        for index in (1, 2, 0, 3):
            store(self.session, at + 8 * index, words[index] & (1 << 64) - 1)

    def ring_doorbell(self, ring):
        """After close() nobody hears it; the memory of the ring can still be written."""
        if self.doorbells:
            os.eventfd_write(self.doorbells[ring], 1)

    def room(self):
        """Slots of ring 0 that may be written now."""
        return (1 << self.log2_slots) - (self.position - load(self.session, 64))

    def arrivals(self, source=0, lane=0, lanes=4):
        return load(self.segment, load(self.segment, 32) + 8 * (source * lanes + lane))

    def region_bytes(self, rank, index=0):
        """As the other ranks of the group see the region; 0 until the daemon has told this rank of it."""
        capacity = struct.unpack_from("<I", self.segment, 20)[0]
        return load(self.segment, load(self.segment, 56) + 16 * (rank * capacity + index))

    def end_of_session(self):
        """Text of the SessionEnded event, after which the daemon closes."""
        answer = self.receive()
        assert answer is not None and answer[0] == SESSION_ENDED, answer
        assert self.receive() is None, "the socket stays open after SessionEnded"
        return answer[2]
