"""No instruction above the x86-64 baseline outside the functions marked for it: the library as installed."""

from __future__ import annotations

import platform
import re
import sys
import sysconfig
from collections.abc import Iterator

import pytest

from ninfer_rs import _native

if not (sys.platform == "linux" and platform.machine() == "x86_64"):
    pytest.skip("reads an x86-64 ELF library", allow_module_level=True)
if sysconfig.get_config_var("Py_GIL_DISABLED"):
    pytest.skip("the disassembler has no wheel for free-threaded Python", allow_module_level=True)

from elftools.elf.elffile import ELFFile
from iced_x86 import CpuidFeature, Decoder, Instruction, Mnemonic

_NAMES = {v: k for k, v in vars(CpuidFeature).items() if isinstance(v, int)}

# Every x86-64 processor has these; the last three are hints that older ones execute as no-operations.
_BASELINE = {
    "INTEL8086", "INTEL186", "INTEL286", "INTEL386", "INTEL486", "X64", "FPU", "FPU287", "FPU387", "MMX",
    "SSE", "SSE2", "CMOV", "CPUID", "CX8", "FXSR", "TSC", "SYSCALL", "MULTIBYTENOP", "PAUSE", "CET_IBT",
}  # fmt: skip
_AVX2 = {"AVX", "AVX2", "FMA", "F16C"}
_AVX512 = _AVX2 | {"AVX512F", "AVX512BW", "AVX512DQ", "AVX512VL"}
_VNNI = _AVX512 | {"AVX512_VNNI"}
_VBMI = _VNNI | {"AVX512_VBMI"}
# Module of the kernels -> what its functions may use, as documented for the tokens.
_MARKED = {
    "avx2": _AVX2,
    "avx_vnni": _AVX2 | {"AVX_VNNI"},
    "avx512": _AVX512,
    "avx512_vnni": _VNNI,
    "avx512_vbmi": _VBMI,
    "amx_int8": _VBMI | {"AMX_TILE", "AMX_INT8", "AMX_BF16"},
}
_MODULE = re.compile(r"arch6x86_64\d+(avx2|avx_vnni|avx512|avx512_vnni|avx512_vbmi|amx_int8)\d")
# Dependencies that detect features themselves, by the start of their functions' names.
_FOREIGN = {
    "_ZN6memchr4arch6x86_646memchr": {"AVX", "AVX2"},
    "_ZN4sha26sha2567x86_sha": {"SHA", "SSSE3", "SSE4_1"},
    "_ZN9crc32fast11specialized9pclmulqdq": {
        "PCLMULQDQ", "SSSE3", "SSE4_1", "AVX", "AVX2", "VPCLMULQDQ", "AVX512F", "AVX512VL",
    },
    "_ZN7zlib_rs": {"AVX", "AVX2", "BMI1", "BMI2"},
}  # fmt: skip
# Reads the operating system's register mask; guarded by the processor's OSXSAVE bit wherever it is used.
_XGETBV = "XSAVE"


def _features(instruction: Instruction) -> set[str]:
    if (
        instruction.mnemonic == Mnemonic.TZCNT
    ):  # `rep bsf` to older processors, the same result for inputs not zero
        return set()
    return {_NAMES[f] for f in instruction.cpuid_features()} - _BASELINE


def _above(name: str, code: bytes, address: int = 0) -> set[str]:
    """The features above what the function may use."""
    module = _MODULE.search(name)
    foreign = (features for start, features in _FOREIGN.items() if name.startswith(start))
    allowed = _MARKED[module[1]] if module else next(foreign, set())
    used: set[str] = set()
    for instruction in Decoder(64, code, ip=address):
        extra = _features(instruction) - allowed
        if extra == {_XGETBV} and instruction.mnemonic == Mnemonic.XGETBV:
            continue
        used |= extra
    return used


def _functions() -> Iterator[tuple[str, bytes, int]]:
    with open(_native.__file__, "rb") as file:
        elf = ELFFile(file)
        text = elf.get_section_by_name(".text")
        begin, code = text["sh_addr"], text.data()
        symbols = elf.get_section_by_name(".symtab")
        assert symbols is not None, "the library has no symbol names"
        for s in symbols.iter_symbols():
            at, size = s["st_value"] - begin, s["st_size"]
            if s["st_info"]["type"] == "STT_FUNC" and size and 0 <= at < len(code):
                yield s.name, code[at : at + size], s["st_value"]


def test_baseline_outside_marked_functions() -> None:
    covered: set[tuple[int, int]] = set()
    marked: set[str] = set()
    wrong = {}
    for name, code, address in _functions():
        covered.add((address, len(code)))
        if module := _MODULE.search(name):
            marked.add(module[1])
        if above := _above(name, code, address):
            wrong[name] = sorted(above)
    assert not wrong
    with open(_native.__file__, "rb") as file:
        size = ELFFile(file).get_section_by_name(".text")["sh_size"]
    assert sum(n for _, n in covered) > 0.99 * size  # padding between functions is the rest
    assert marked >= set(_MARKED)


@pytest.mark.parametrize(
    ("name", "code", "above"),
    [
        ("plain", "c5f458c2", {"AVX"}),  # vaddps ymm0, ymm1, ymm2
        ("_ZN4core4arch6x86_644avx2", "c5f458c2", {"AVX"}),  # the name has no kernel module's end
        ("_ZN15ninfer_simd_ops4arch6x86_644avx24gemv3rowE", "c5f458c2", set()),
        (
            "_ZN15ninfer_simd_ops4arch6x86_644avx24gemv3rowE",
            "62f1744858c2",
            {"AVX512F"},
        ),  # vaddps zmm0, zmm1, zmm2
        ("_ZN15ninfer_simd_ops4arch6x86_646avx5124gemv3rowE", "62f1744858c2", set()),
        ("_ZN15ninfer_simd_ops4arch6x86_646avx5124gemv3rowE", "62f2754850c2", {"AVX512_VNNI"}),  # vpdpbusd
        # vpdpbusd ymm0, ymm1, ymm2, as AVX-VNNI has it and as AVX-512 does
        ("_ZN15ninfer_simd_ops4arch6x86_648avx_vnni4gemm5termsE", "c4e27550c2", set()),
        ("_ZN15ninfer_simd_ops4arch6x86_644avx24gemm5termsE", "c4e27550c2", {"AVX_VNNI"}),
        (
            "_ZN15ninfer_simd_ops4arch6x86_648avx_vnni4gemm5termsE",
            "62f2752850c2",
            {"AVX512VL", "AVX512_VNNI"},
        ),
        # vpermb zmm0, zmm1, zmm2
        ("_ZN15ninfer_simd_ops4arch6x86_6411avx512_vbmi4wide6unpackE", "62f275488dc2", set()),
        ("_ZN15ninfer_simd_ops4arch6x86_6411avx512_vnni4wide6unpackE", "62f275488dc2", {"AVX512_VBMI"}),
        ("plain", "f30fbcc1", set()),  # tzcnt eax, ecx
        ("plain", "f30fb8c1", {"POPCNT"}),  # popcnt eax, ecx
        ("plain", "660f3800c1", {"SSSE3"}),  # pshufb xmm0, xmm1
        ("plain", "0f01d0", set()),  # xgetbv
        ("plain", "0fae20", {"XSAVE"}),  # xsave [rax]
        ("plain", "f20f58c1c3", set()),  # addsd; ret
    ],
)
def test_scan_sees_features(name: str, code: str, above: set[str]) -> None:
    assert _above(name, bytes.fromhex(code)) == above
