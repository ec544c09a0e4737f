"""Wall clocks that jump, for one daemon at a time by libfaketime. The clock of the machine is never touched."""
import pathlib

from campaign import Skip, Step
from child import Violation

LIBRARIES = [pathlib.Path(folder) / "faketime" / "libfaketimeMT.so.1"
             for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib")]
STEPS_S = (3600, -3600, 86400 * 400, -86400 * 400, 1, -1)


def step_clock(scene):
    """One daemon starts under libfaketime, and its wall clock jumps to and fro while puts go on."""
    library = next((path for path in LIBRARIES if path.exists()), None)
    if library is None:
        raise Skip("libfaketime is not installed (Debian: libfaketime)")
    if scene.cluster.sanitized():
        raise Skip("a sanitizer wants to be loaded before any other library")
    daemon, file = scene.daemon(), scene.folder / "clock"
    file.write_text("+0\n")
    plain, jumps = daemon.prefix, []
    again(scene, daemon, [*plain, "env", f"LD_PRELOAD={library}", f"FAKETIME_TIMESTAMP_FILE={file}", "FAKETIME_NO_CACHE=1",
                          "FAKETIME_DONT_FAKE_MONOTONIC=1", "DONT_FAKE_MONOTONIC=1"])
    for _ in range(3):
        jumps.append(scene.random.choice(STEPS_S))
        file.write_text(f"{jumps[-1]:+d}\n")
        scene.pause(0.2, 0.6)
        scene.cluster.wait_for_peers()
    scene.cluster.check_bystander()
    scene.cluster.bystander.say(do="go")
    again(scene, daemon, plain)
    return {"daemon": daemon.name, "jumps_s": jumps}


def again(scene, daemon, prefix):
    status = daemon.stop()
    if status != 0:
        raise Violation(f"{daemon.name} ended with {status} on SIGTERM: {daemon.tail()[-600:]}")
    daemon.prefix = prefix
    scene.restart(daemon)


STEPS = [Step("step_clock", 1, step_clock)]
