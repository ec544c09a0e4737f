#!/usr/bin/env python3
"""Runs a program as a unit file says, as far as that needs no systemd: another user, no capabilities, and the unit's system
calls only. Needs root and libseccomp; systemd-analyze expands the sets of system calls.

  confined.py UNIT UID GID[,GID...] PROGRAM [ARGUMENT...]

A system call that the unit does not allow ends the program here (SIGSYS), where under systemd it would only get an error: a test
is to see it."""
import ctypes
import os
import re
import socket
import subprocess
import sys

ALLOW, KILL_PROCESS = 0x7FFF0000, 0x80000000
EQUAL, MASKED_EQUAL = 4, 7  # of libseccomp's comparisons
PROT_WRITE, PROT_EXEC = 2, 4
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38


class Comparison(ctypes.Structure):
    _fields_ = [("argument", ctypes.c_uint), ("operation", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]


def settings(unit):
    """Every "Key=value" of the unit, in order."""
    with open(unit, encoding="utf-8") as file:
        return [tuple(line.strip().split("=", 1)) for line in file if re.match(r"[A-Za-z]+=", line)]


def values(unit, key):
    return [value for found, value in settings(unit) if found == key]


def expand(name):
    """The system calls of a set, or the one of that name."""
    if not name.startswith("@"):
        return {name}
    out = subprocess.run(["systemd-analyze", "syscall-filter", "--no-pager", name], check=True, capture_output=True, text=True).stdout
    calls = set()
    for word in (line.strip() for line in out.splitlines()[1:]):
        if word and not word.startswith("#"):
            calls |= expand(word)
    return calls


def allowed(unit):
    """As systemd reads SystemCallFilter=: the first line makes a list of what is allowed, later ones add or, with ~, remove."""
    calls = set()
    for line in values(unit, "SystemCallFilter"):
        names = line.removeprefix("~").split()
        for name in names:
            calls = calls - expand(name) if line.startswith("~") else calls | expand(name)
    return calls


class Filter:
    def __init__(self, unit):
        self.library = ctypes.CDLL("libseccomp.so.2")
        self.library.seccomp_init.restype = ctypes.c_void_p
        self.context = ctypes.c_void_p(self.library.seccomp_init(ctypes.c_uint32(KILL_PROCESS)))
        calls = allowed(unit)
        if "yes" in values(unit, "MemoryDenyWriteExecute"):  # no memory that is written and then executed
            calls -= {"mmap", "mprotect", "pkey_mprotect", "shmat"}
            self.add("mmap", Comparison(2, MASKED_EQUAL, PROT_WRITE | PROT_EXEC, 0))
            self.add("mmap", Comparison(2, MASKED_EQUAL, PROT_WRITE | PROT_EXEC, PROT_WRITE))
            self.add("mmap", Comparison(2, MASKED_EQUAL, PROT_WRITE | PROT_EXEC, PROT_EXEC))
            self.add("mprotect", Comparison(2, MASKED_EQUAL, PROT_EXEC, 0))
        for line in values(unit, "RestrictAddressFamilies"):
            calls -= {"socket"}
            for family in line.split():
                self.add("socket", Comparison(0, EQUAL, int(getattr(socket, family)), 0))
        for call in calls:
            self.add(call)

    def add(self, call, *comparisons):
        number = self.library.seccomp_syscall_resolve_name(call.encode())
        if number == -1:  # of another architecture, or newer than this libseccomp
            return
        array = (Comparison * max(len(comparisons), 1))(*comparisons)
        error = self.library.seccomp_rule_add_array(self.context, ctypes.c_uint32(ALLOW), number, len(comparisons), array)
        if error:
            raise OSError(-error, f"seccomp rule of {call}")

    def load(self):
        error = self.library.seccomp_load(self.context)
        if error:
            raise OSError(-error, "loading the filter")


def prctl(*arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(*(ctypes.c_ulong(a) for a in arguments)) != 0:
        raise OSError(ctypes.get_errno(), f"prctl{arguments}")


def give_up_capabilities():
    with open("/proc/sys/kernel/cap_last_cap", encoding="ascii") as file:
        last = int(file.read())
    for capability in range(last + 1):
        prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


def main():
    unit, uid, gids, *program = sys.argv[1:]
    groups = [int(gid) for gid in gids.split(",")]
    if values(unit, "CapabilityBoundingSet") != [""] or values(unit, "NoNewPrivileges") != ["yes"]:
        raise SystemExit("confined.py knows units without capabilities only")
    confinement = Filter(unit)
    os.umask(int(values(unit, "UMask")[0], 8))
    give_up_capabilities()
    os.setgroups(groups[1:])
    os.setresgid(*(groups[0],) * 3)
    os.setresuid(*(int(uid),) * 3)
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    confinement.load()
    os.execv(program[0], program)


if __name__ == "__main__":
    main()
