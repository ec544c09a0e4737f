#!/usr/bin/env python3
"""libmkernel.so lives in processes that load other versions of the world: it must need none of the libraries that clash
and show nothing but its API. Usage: check_exports.py libmkernel.so"""
import re
import subprocess
import sys

# The C and C++ runtime, and those of sanitizers.
RUNTIME = re.compile(r"lib(stdc\+\+|gcc_s|c|m|pthread|dl|rt|[atu]b?san)\.so\.\d+$|ld-linux")
FORBIDDEN = re.compile(r"grpc|protobuf|boost|absl|spdlog|toml|CLI11|python|torch", re.I)
API = re.compile(r"mk_\w+$|mkernel::(version|Session|Group|SymmetricBuffer|HostBuffer|Activity|DeviceEndpoint|Pending|"
                 r"Planned|Launchable)\b(?!.*\bstd::function<)")


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main():
    library = sys.argv[1]
    dynamic = output("readelf", "-d", "-W", library)
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    findings = [f"needs {name}" for name in needed if not RUNTIME.match(name)]
    # What the needed libraries need counts too: they are loaded just the same.
    findings += [f"loads {line.strip()}" for line in output("ldd", library).splitlines() if FORBIDDEN.search(line)]
    soname = re.findall(r"\(SONAME\).*\[(.*)\]", dynamic)
    if soname != ["libmkernel.so.0.1"]:
        findings.append(f"soname is {soname}")
    symbols = [line.split(maxsplit=2)[2] for line in output("nm", "-D", "-C", "--defined-only", library).splitlines()]
    findings += [f"shows {symbol}" for symbol in symbols if not API.match(symbol)]
    for wanted in ("mk_connect", "mk_moe_launch", "mkernel::Session::connect(mkernel::SessionOptions const&)"):
        if wanted not in symbols:
            findings.append(f"does not show {wanted}")
    for finding in findings:
        print(f"{library}: {finding}")
    print(f"{len(symbols)} symbols, needs {' '.join(needed)}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
