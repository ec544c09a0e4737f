"""Runs the examples of a README as they are printed: in a fresh folder, with the commands around them.

A block of code after "Save as `NAME`" becomes that file. Each block of `sh` is run by bash, the blocks of a page one after the other in
one shell, so that a daemon which one of them starts is there for the next. The lines of a `text` block must be among what was printed."""
import os
import pathlib
import re
import shutil
import subprocess

FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.S | re.M)
# What the page starts in the background ends with it. /run is the page's own, since examples use the places of an installed daemon.
RUNNER = """mount -t tmpfs none /run
trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT
. ./commands.sh"""


class Page:
    def __init__(self, path):
        self.files, self.commands, self.printed = {}, [], []
        text, end = path.read_text(), 0
        for block in FENCED.finditer(text):
            before, end = text[end:block.start()], block.end()
            name = re.search(r"Save as `([^`]+)`", before.rsplit("\n\n", 1)[-1], re.I)
            if name:
                self.files[name[1]] = block[2]
            elif block[1] == "sh":
                self.commands.append(block[2])
            elif block[1] == "text":
                self.printed += block[2].splitlines()


def can_run():
    """Why not, or nothing: the examples want a daemon in its usual place, which takes a mount namespace."""
    probe = subprocess.run(["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/run"], capture_output=True, text=True)
    return probe.stderr.strip() if probe.returncode != 0 else ""


def run(test, path, folder, programs, seconds, **environment):
    """`programs`: folders of the programs that a user would have installed."""
    page = Page(path)
    test.assertTrue(page.files and page.commands, f"{path.name} has no example")
    for name, text in page.files.items():
        (folder / name).write_text(text)
    (folder / "commands.sh").write_text("set -e\n" + "".join(page.commands))
    # Where the test already has what sudo would give, there may be no sudo.
    tools = folder / "tools"
    tools.mkdir()
    (tools / "sudo").write_text('#!/bin/sh\nexec "$@"\n')
    (tools / "sudo").chmod(0o755)
    search = os.pathsep.join([str(tools), *map(str, programs), os.environ["PATH"]])
    process = subprocess.Popen(["unshare", "--mount", "bash", "-c", RUNNER], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, env={**os.environ, "PATH": search, **environment})
    test.processes.append(process)
    try:
        out = process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        process.terminate()  # bash ends what it started
        test.fail(f"{path.name}: not done within {seconds} s:\n{process.communicate(timeout=60)[0]}")
    test.assertEqual(process.returncode, 0, out)
    for line in page.printed:
        test.assertIn(line.strip(), [printed.strip() for printed in out.splitlines()], out)
    return out


def install(build, prefix):
    """What `cmake --install` puts in place: programs, headers, libraries, pkg-config."""
    done = subprocess.run(["cmake", "--install", str(build), "--prefix", str(prefix)], capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(done.stdout + done.stderr)
    library = next(prefix.rglob("libmkernel.so")).parent
    return {"PKG_CONFIG_PATH": str(library / "pkgconfig"), "LD_LIBRARY_PATH": str(library)}
