#!/usr/bin/env python3
"""Compiles the product with what package registries have of CUDA 12.9: NVRTC and ptxas for kernels, headers for host code.

There is no nvcc among these packages. NVRTC is its device compiler as a library, without the host's standard library; so the
headers that hold the kernels are compiled and not the .cu files, and every function counts as one of the device. That
functions are marked __device__ and that launches compile is therefore left to nvcc.
  - Every kernel (tile x type x layout x cluster) goes through NVRTC and ptxas 12.9 with the flags of the build. An error, a
    spill or a serialized wgmma fails. Two kernels that must be refused show that these would be seen.
  - With --library, a kernel that nvcc has put into that library and that was not compiled here, in whichever type, fails.
  - With --compare, nvcc compiles the same files, and the table shows what its ptxas says too.
  - Every .cc of the product that sees a CUDA header is checked by g++ against the headers of CUDA 12.9.
Usage: tests/kernels/cuda_12_9.py [--folder FOLDER] [--library libmkernel_cuda.a] [--type TYPE] [--compare | --only-packages]
exit 0 all compiles, 1 findings, 77 skipped: the packages cannot be had
"""
import argparse
import concurrent.futures
import ctypes
import dataclasses
import itertools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = [f"nvidia-cuda-{name}-cu12==12.9.*" for name in ("nvrtc", "nvcc", "runtime", "cccl")]
INCLUDES = [f"-I{ROOT}", f"-I{ROOT}/kernels/include"]
PTXAS_FLAGS = ["-arch=sm_90a", "-v", "--warn-on-spills", "-Werror"]  # kernels/CMakeLists.txt, and what they use
REFUSE_SERIALIZED = str(ROOT / "kernels/cuda/refuse_serialized.sh")

# Must be refused: 64 numbers in 32 registers.
SPILLS = """
__global__ void __launch_bounds__(1024, 2) spills(float* numbers) {
  float all[64];
  for (int i = 0; i < 64; ++i) all[i] = numbers[i * 1024 + threadIdx.x];
  __syncthreads();
  for (int i = 0; i < 64; ++i) numbers[i * 1024 + threadIdx.x] = all[63 - i] + all[i];
}
"""

# Standard headers that device code includes, by the header of cuda/std that stands in; NVRTC has memcpy().
STANDARD = {name: f"cuda/std/{name}" for name in ("bit", "cstddef", "cstdint", "limits", "span", "type_traits", "utility")} | {"cstring": None}
# cuda/std's offsetof() is no constant for NVRTC; this operator of its front end is.
OFFSETOF = "#undef offsetof\n#define offsetof(type, member) __INTADDR__(&((type*)0)->member)\n"


@dataclasses.dataclass
class Kernel:
    """What ptxas says of one, by its mangled name."""
    registers: int = 0
    stack: int = 0
    spills: int = 0


@dataclasses.dataclass
class Unit:
    """One file of kernels, as small as those of the build, and what became of it."""
    family: str
    name: str
    text: str
    must_fail: bool = False
    kernels: dict = dataclasses.field(default_factory=dict)
    kernels_of_nvcc: dict = dataclasses.field(default_factory=dict)
    findings: list = dataclasses.field(default_factory=list)


TYPES = ("kBf16", "kF16")  # DataType of kernels/base/types.h


class Skipped(Exception):
    pass


def tiles():
    text = (ROOT / "kernels/plan/sm90_tile.h").read_text()
    return re.findall(r"Sm90Tile::(k\w+)", re.search(r"kSm90Tiles\[\] = \{(.*?)\};", text, re.S)[1])


def unit_of(family, tile, header, instances):
    lines = "\n".join(f"template __global__ void {instance};" for instance in instances)
    return Unit(family, f"{family}_{tile}", f'#include "{header}"\n\nnamespace mkernel::kernels {{\n{lines}\n}}\n')


def units(types):
    """All kernels of these types, those that take longest first."""
    layouts = ("kRowMajor", "kColumnMajor")
    all_units = []
    for op, config, parameters in (("gemm_ar", "TileReduceConfig", "GemmArParameters"),
                                   ("gemm_rs", "TileReduceConfig", "TileReduceParameters"),
                                   ("ag_gemm", "AgGemmConfig", "AgGemmParameters")):
        for tile in tiles():
            all_units.append(unit_of(op, tile, f"kernels/ops/{op}/roles.cuh", (
                f"{op}_kernel<{config}<Sm90Tile::{tile}, DataType::{dtype}, Layout::{layout}>>"
                f"(const __grid_constant__ {parameters})" for dtype, layout in itertools.product(types, layouts))))
    all_units.append(unit_of("ag_gemm", "side_by_side", "kernels/ops/ag_gemm/roles.cuh", (
        f"ag_gemm_kernel<AgGemmConfig<Sm90Tile::k128x256, DataType::{dtype}, Layout::{layout}, Sm90Cluster::kSideBySide>>"
        f"(const __grid_constant__ AgGemmParameters)" for dtype, layout in itertools.product(types, layouts))))
    for op, parameters in (("gemm_ar", "GemmArParameters"), ("gemm_rs", "TileReduceParameters")):
        for tile in ("k128x64", "k128x128", "k128x256"):
            all_units.append(unit_of(op, f"shared_{tile}", f"kernels/ops/{op}/roles.cuh", (
                f"{op}_kernel<SharedTilesConfig<Sm90Tile::{tile}, DataType::{dtype}, Layout::{layout}>>"
                f"(const __grid_constant__ {parameters})" for dtype, layout in itertools.product(types, layouts))))
    for rows in (16, 32, 64):
        all_units.append(unit_of("sm90_skinny", f"{rows}_rows", "kernels/cuda/gemm/sm90_skinny.cuh", (
            f"sm90_skinny_kernel<Sm90SkinnyConfig<{rows}, DataType::{dtype}, Layout::{layout}>>"
            f"(const __grid_constant__ Sm90SkinnyProduct)" for dtype, layout in itertools.product(types, layouts))))
    for tile in tiles():
        all_units.append(unit_of("sm90_local", tile, "kernels/cuda/gemm/sm90_local.cuh", (
            f"sm90_local_kernel<Sm90Config<Sm90Tile::{tile}, DataType::{dtype}, Layout::{layout}, "
            f"Sm90Cluster::{cluster}>>(const __grid_constant__ Sm90LocalProduct)"
            for dtype, layout, cluster in itertools.product(types, layouts, ("kStacked", "kSideBySide")))))
    for op, name, parameters in (("moe_dispatch_gemm", "moe", "MoeParameters"), ("grouped_gemm", "grouped_gemm", "GroupedGemmParameters")):
        config = {"moe": "MoeConfig", "grouped_gemm": "GroupedGemmConfig"}[name]
        for layout in layouts:
            all_units.append(unit_of(name, layout, f"kernels/ops/{op}/roles.cuh", (
                f"{name}_kernel<{config}<DataType::{dtype}, Layout::{layout}>>(const __grid_constant__ {parameters})"
                for dtype in types)))
    for head_dim, keys in ((64, 192), (128, 128), (128, 160)):
        for op, roles, parameters in (("attention", "attention/roles", "AttentionParameters"),
                                      ("varlen", "attention/varlen_roles", "VarlenParameters"),
                                      ("ring_attention", "roles", "RingAttentionParameters"),
                                      ("ring_varlen", "varlen_roles", "RingVarlenParameters")):
            all_units.append(unit_of(op, f"{head_dim}x{keys}", f"kernels/ops/ring_attention/{roles}.cuh", (
                f"{op}_kernel<AttentionConfig<{head_dim}, {keys}, DataType::{dtype}>>(const __grid_constant__ {parameters})"
                for dtype in types)))
    for head_dim, causal in itertools.product((64, 128), ("false", "true")):
        for op, roles, parameters in (("attention_backward", "attention_backward/roles", "AttentionBackwardParameters"),
                                      ("varlen_backward", "attention_backward/varlen_roles", "VarlenBackwardParameters"),
                                      ("ring_backward", "backward/roles", "RingBackwardParameters"),
                                      ("ring_backward_nodes", "backward/nodes_roles", "RingBackwardNodesParameters")):
            all_units.append(unit_of(op, f"{head_dim}_{causal}", f"kernels/ops/ring_attention/{roles}.cuh", (
                f"{op}_kernel<AttentionBackwardConfig<{head_dim}, {causal}, DataType::{dtype}>>(const __grid_constant__ {parameters})"
                for dtype in types)))
    for head_dim in (64, 128):
        all_units.append(unit_of("window_backward", str(head_dim), "kernels/ops/ring_attention/attention_backward/varlen_roles.cuh", (
            f"varlen_backward_kernel<AttentionBackwardWindowConfig<{head_dim}, DataType::{dtype}>>"
            f"(const __grid_constant__ VarlenBackwardParameters)" for dtype in types)))
    all_units.append(Unit("gpu_clock", "gpu_clock", '#include "kernels/cuda/memory/gpu_clock.cuh"\n'))
    all_units.append(Unit("gathered", "gathered", '#include "kernels/ops/ag_gemm/gathered.cuh"\n'))
    all_units.append(Unit("device API", "device_api", '#include "tests/kernels/device_api.cu"\n'))
    all_units.append(Unit("proto/abi", "abi_layout", '#include "kernels/cuda/abi_layout.cu"\n'))
    all_units.append(Unit("", "serialized", '#include "tests/kernels/serialized_wgmma.cu"\n', must_fail=True))
    all_units.append(Unit("", "spills", SPILLS, must_fail=True))
    return all_units


def get_packages(folder):
    """Where the packages lie, unpacked."""
    there = folder / "packages"
    stamp = there / "complete"
    if not stamp.exists():
        shutil.rmtree(there, ignore_errors=True)
        run = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries=1",
                              "--no-deps", "--only-binary=:all:", "--target", there, *PACKAGES], capture_output=True, text=True)
        if run.returncode != 0:
            said = run.stderr.strip().splitlines() or ["it says nothing"]
            raise Skipped(f"pip cannot get the packages of CUDA 12.9: {said[-1]}")
        (there / "nvidia/cuda_nvcc/bin/ptxas").chmod(0o755)  # wheels may lose it
        stamp.touch()
    return there / "nvidia"


def write_standard_headers(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, behind in STANDARD.items():
        text = "#pragma once\n"
        if behind:
            text += f"#include <{behind}>\nnamespace std {{\nusing namespace cuda::std;\n}}\n"
        (folder / name).write_text(text + (OFFSETOF if name == "cstddef" else ""))
    return folder


def nvrtc(library, source, options):
    """The PTX of `source`. Raises RuntimeError with the compiler's words."""
    lib = ctypes.CDLL(str(library))
    program, size = ctypes.c_void_p(), ctypes.c_size_t()

    def text_of(what):
        getattr(lib, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        getattr(lib, f"nvrtcGet{what}")(program, text)
        return text.value.decode()

    if lib.nvrtcCreateProgram(ctypes.byref(program), source.read_bytes(), str(source).encode(), 0, None, None) != 0:
        raise RuntimeError("nvrtcCreateProgram failed")
    try:
        arguments = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        if lib.nvrtcCompileProgram(program, len(options), arguments) != 0:
            raise RuntimeError(text_of("ProgramLog"))
        return text_of("PTX")
    finally:
        lib.nvrtcDestroyProgram(ctypes.byref(program))


def kernels_in(log):
    """What `ptxas -v` has said, by kernel; spills of the functions that a kernel calls are its own."""
    kernels, entry, function = {}, None, None
    for line in log.splitlines():
        if match := re.search(r"Compiling entry function '(\w+)'", line):
            entry = kernels.setdefault(match[1], Kernel())
        elif match := re.search(r"Function properties for (\w+)", line):
            function = match[1]
        elif match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            entry.spills += int(match[2]) + int(match[3])
            if kernels.get(function) is entry:
                entry.stack = int(match[1])
        elif match := re.search(r"Used (\d+) registers", line):
            entry.registers = int(match[1])
    return kernels


def compile_unit(unit, folder, cuda, standard, nvcc):
    """In a process of its own: a compilation keeps NVRTC to itself."""
    source, ptx = folder / f"{unit.name}.cu", folder / f"{unit.name}.ptx"
    source.write_text(unit.text)
    options = ["--std=c++20", "--gpu-architecture=compute_90a", "--device-as-default-execution-space", f"-I{standard}",
               *INCLUDES, f"-I{cuda}/cuda_runtime/include", f"-I{cuda}/cuda_cccl/include"]
    try:
        ptx.write_text(nvrtc(cuda / "cuda_nvrtc/lib/libnvrtc.so.12", source, options))
    except RuntimeError as error:
        unit.findings.append(f"NVRTC 12.9: {error}")
        return unit
    run = subprocess.run([REFUSE_SERIALIZED, cuda / "cuda_nvcc/bin/ptxas", *PTXAS_FLAGS, ptx, "-o", ptx.with_suffix(".cubin")],
                         capture_output=True, text=True)
    unit.kernels = kernels_in(run.stderr)
    if run.returncode != 0:
        unit.findings.append(f"ptxas 12.9: {run.stderr}")
    if nvcc:
        run = subprocess.run([nvcc, "-std=c++20", "-arch=sm_90a", *INCLUDES, "-Xptxas=-v", "-cubin", "-o", "/dev/null", source],
                             capture_output=True, text=True)
        unit.kernels_of_nvcc = kernels_in(run.stderr)
        if run.returncode != 0:
            unit.findings.append(f"nvcc: {run.stderr}")
    unit.findings += [f"{kernel} spills {said.spills} bytes" for kernel, said in unit.kernels.items() if said.spills]
    if unit.must_fail:
        refused = any(words in finding for finding in unit.findings for words in ("are serialized", "Registers are spilled"))
        unit.findings = [] if refused else ["was not refused: " + " ".join(unit.findings)]
    return unit


def missing_of(library, kernels):
    """Stubs in a library that nvcc has built, which are named after their kernels, of a kernel that is none of `kernels` in
    any type: the two may have been built for different ones."""
    def of_any_type(name):
        return re.sub(r"DataTypeE\d+E", "DataTypeE_E", name)

    symbols = subprocess.run(["nm", "--format=just-symbols", "--defined-only", library], check=True, capture_output=True,
                             text=True).stdout.split()
    stubs = {of_any_type(symbol) for symbol in symbols if "__device_stub_" in symbol}
    here = {f"__device_stub_{of_any_type(kernel)}" for kernel in kernels}
    return sorted({re.sub(r".*__device_stub_", "", stub) for stub in stubs
                   if not any(kernel in stub for kernel in here)}) if stubs else ["all: there are no stubs"]


def table(all_units, nvcc_version):
    def values(kernels, field):
        found = sorted({getattr(kernel, field) for kernel in kernels})
        return "-" if not found else str(found[0]) if len(found) == 1 else f"{found[0]}..{found[-1]}"

    yield f"{'kernels':<11} {'count':>5}  {'registers 12.9 / ' + nvcc_version:>23}  {'stack':>9}  {'spilled bytes':>13}"
    shown = sorted((unit for unit in all_units if not unit.must_fail), key=lambda unit: unit.family)
    for family, group in itertools.groupby(shown, key=lambda unit: unit.family):
        group = list(group)
        ours = [kernel for unit in group for kernel in unit.kernels.values()]
        theirs = [kernel for unit in group for kernel in unit.kernels_of_nvcc.values()]
        registers, stack, spills = (f"{values(ours, f)} / {values(theirs, f)}" for f in ("registers", "stack", "spills"))
        yield f"{family:<11} {len(ours):>5}  {registers:>23}  {stack:>9}  {spills:>13}"


def host_files():
    """Those .cc of the product that see a header of CUDA, over however many headers."""
    sees = {}

    def sees_cuda(path):
        if path not in sees:
            sees[path] = False  # until its includes say otherwise; there are no circles
            text = (ROOT / path).read_text()
            sees[path] = bool(re.search(r"^\s*#\s*include\s+<cuda", text, re.M)) or any(
                sees_cuda(root + name) for name in re.findall(r'^\s*#\s*include\s+["<]([^">]+)', text, re.M)
                for root in ("", "kernels/include/", "client/include/") if (ROOT / (root + name)).is_file())
        return sees[path]

    folders = ("kernels", "client", "daemon", "tools")
    paths = (str(path.relative_to(ROOT)) for folder in folders for path in (ROOT / folder).rglob("*.cc"))
    return sorted(path for path in paths if sees_cuda(path))


def check_host(path, check, cuda):
    environment = {name: value for name, value in os.environ.items() if "CPATH" not in name and "INCLUDE_PATH" not in name}
    run = subprocess.run(["g++", "-std=c++20", "-fsyntax-only", '-DMKERNEL_VERSION=""', *INCLUDES, f"-I{ROOT}/client/include", "-isystem",
                          f"{cuda}/cuda_runtime/include", "-isystem", f"{cuda}/cuda_nvcc/include", "-include", check, path], cwd=ROOT,
                         env=environment, capture_output=True, text=True)
    return [f"{path} with the headers of CUDA 12.9: {run.stderr}"] if run.returncode != 0 else []


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build/cuda_12_9", help="for packages and what is compiled")
    parser.add_argument("--library", type=pathlib.Path, help="libmkernel_cuda.a of a build with nvcc: whether a kernel is missing here")
    parser.add_argument("--type", choices=TYPES, help="only kernels of this type: they differ in one instruction (default: all)")
    parser.add_argument("--only-packages", action="store_true", help="compile nothing: what compiles later finds the packages")
    parser.add_argument("--compare", action="store_true", help="compile the kernels with nvcc, too")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    nvcc = shutil.which("nvcc") if arguments.compare else None
    if arguments.compare and not nvcc:
        parser.error("--compare: there is no nvcc")
    try:
        cuda = get_packages(folder)
    except Skipped as reason:
        print(f"SKIPPED: {reason}")
        return 77
    if arguments.only_packages:
        return 0

    begin = time.monotonic()
    standard = write_standard_headers(folder / "standard")
    check = folder / "is_12_9.h"
    check.write_text("#include <cuda.h>\n#include <cuda_runtime_api.h>\n"
                     "static_assert(CUDA_VERSION == 12090 && CUDART_VERSION / 10 == 1209);\n")
    files = host_files()
    types = [arguments.type] if arguments.type else list(TYPES)
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as pool:
        compiled = [pool.submit(compile_unit, unit, folder, cuda, standard, nvcc) for unit in units(types)]
        checked = [pool.submit(check_host, path, check, cuda) for path in files]
        all_units = [future.result() for future in compiled]
        findings = [f"{unit.name}: {finding}" for unit in all_units for finding in unit.findings]
        findings += [finding for future in checked for finding in future.result()]
    if arguments.library:
        here = {kernel for unit in all_units for kernel in unit.kernels}
        findings += [f"{arguments.library} has a kernel that was not compiled here: {kernel}"
                     for kernel in missing_of(arguments.library, here)]

    version = "-"
    if nvcc:
        version = re.search(r"release ([\d.]+)", subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout)[1]
    print("\n".join(table(all_units, version)))
    print(f"host code: {len(files)} files against the headers of CUDA 12.9; {time.monotonic() - begin:.0f} s")
    print("\n".join(findings) if findings else
          f"CUDA 12.9: all{' of ' + arguments.type if arguments.type else ''} compiles, nothing spilled, nothing serialized")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
