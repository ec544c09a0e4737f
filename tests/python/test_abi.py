"""The client's picture of the C ABI (mkernel/_abi.py) against mkernel.h: every function, struct, field and constant."""
import ctypes
import pathlib
import re
import unittest

import client_test  # noqa: F401: finds the package

from mkernel import _abi, errors, library_version

HEADER = pathlib.Path(__file__).resolve().parents[2] / "client" / "include" / "mkernel" / "mkernel.h"
SCALARS = {
    "size_t": ctypes.c_size_t,
    "int": ctypes.c_int,
    "mk_status": ctypes.c_int,
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "double": ctypes.c_double,
    "void": None,
}
# Pointers that the client passes as a struct, as an out parameter or as bytes; every other one is an address.
POINTERS = {
    "char*": ctypes.c_char_p,
    "uint64_t*": ctypes.POINTER(ctypes.c_uint64),
    "uint32_t*": ctypes.POINTER(ctypes.c_uint32),
}
STRUCTS = {
    "mk_session_options": _abi.SessionOptions,
    "mk_group_options": _abi.GroupOptions,
    "mk_rank_info": _abi.RankInfo,
    "mk_gemm_shape": _abi.GemmShape,
    "mk_gemm_arguments": _abi.GemmArguments,
    "mk_operation_options": _abi.OperationOptions,
    "mk_moe_shape": _abi.MoeShape,
    "mk_moe_arguments": _abi.MoeArguments,
    "mk_attention_shape": _abi.AttentionShape,
    "mk_attention_arguments": _abi.AttentionArguments,
    "mk_attention_backward_arguments": _abi.AttentionBackwardArguments,
    "mk_grouped_gemm_shape": _abi.GroupedGemmShape,
    "mk_grouped_gemm_arguments": _abi.GroupedGemmArguments,
    "mk_launch_options": _abi.LaunchOptions,
}


def header():
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)
    return re.sub(r"^\s*#.*$", "", text, flags=re.M)


def ctype_of(text):
    """The ctypes type of a C type."""
    text = re.sub(r"\b(const|struct)\b", "", text)
    text = re.sub(r"\s+", "", text)
    if text in SCALARS:
        return SCALARS[text]
    if text.endswith("**"):
        return ctypes.POINTER(ctypes.c_void_p)
    if text[:-1] in STRUCTS:
        return ctypes.POINTER(STRUCTS[text[:-1]])
    return POINTERS.get(text, ctypes.c_void_p)


def type_of_parameter(text):
    """Of "const char* name" or of "mk_status status"."""
    return ctype_of(re.sub(r"(\w+)\s*$", "", text.strip()))


class Abi(unittest.TestCase):
    def test_functions(self):
        declared = {}
        for result, name, parameters in re.findall(r"MK_API\s+([\w\s*]+?[\s*])(mk_\w+)\(([^)]*)\)", header()):
            types = [] if parameters.strip() == "void" else [type_of_parameter(p) for p in parameters.split(",")]
            declared[name] = (ctype_of(result), *types)
        self.assertGreater(len(declared), 50)
        self.assertEqual(set(declared), set(_abi.FUNCTIONS))
        for name, signature in declared.items():
            self.assertEqual(signature, _abi.FUNCTIONS[name], name)
        self.assertLessEqual(_abi.KEEPING_THE_LOCK, set(declared))

    def test_structs(self):
        declared = {name: body for body, name in re.findall(r"typedef struct \w+ \{([^}]*)\}\s*(\w+);", header())}
        self.assertEqual(set(declared), set(STRUCTS))
        for name, body in declared.items():
            fields = []
            for line in filter(None, (line.strip() for line in body.split(";"))):
                kind, names = re.fullmatch(r"((?:const\s+)?\w+\s*\**)\s*(.*)", line).groups()
                for field in names.split(","):
                    array = re.fullmatch(r"\s*(\w+)\[(\d+)\]", field)
                    if array:
                        element = ctypes.c_char if kind.strip() == "char" else ctype_of(kind)
                        fields.append((array[1], element * int(array[2])))
                    elif field.strip() == "secret":
                        fields.append(("secret", ctypes.c_char_p))  # 32 bytes
                    else:
                        fields.append((field.strip(), ctype_of(kind)))
            self.assertEqual([(n, t) for n, t in STRUCTS[name]._fields_], fields, name)
            self.assertEqual(STRUCTS[name]().struct_size, ctypes.sizeof(STRUCTS[name]), name)

    def test_constants(self):
        values = {name: int(value) for name, value in re.findall(r"\bMK_(\w+) = (\d+)", header())}
        for name in ("BF16", "F16", "ROW_MAJOR", "COLUMN_MAJOR", "CPU", "CUDA"):
            self.assertEqual(values.pop(name), getattr(_abi, name), name)
        self.assertEqual(values, {code.name: code.value for code in errors.Code})
        for code in list(errors.Code)[1:]:
            error = errors.error_of(code, "the text")
            self.assertEqual((error.code, error.code_name, error.text), (code, code.name, "the text"))
            self.assertEqual(str(error), f"{code.name}: the text")
        self.assertIsInstance(errors.error_of(4, ""), TimeoutError)
        self.assertIsInstance(errors.error_of(3, ""), ValueError)
        self.assertIsInstance(errors.error_of(14, ""), ConnectionError)

    def test_the_library_is_the_one_beside_the_header(self):
        version = re.search(r'"(\d+\.\d+\.\d+)"', HEADER.read_text())[1]
        self.assertEqual(library_version(), version)


if __name__ == "__main__":
    unittest.main()
