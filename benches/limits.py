"""Limits of the machine: memory rates and arithmetic peaks, from a small C program built for this processor.

``measure()`` gives GB/s (10^9 bytes) and G operations a second, the best of many short repetitions; an entry
is missing where the processor or the compiler lacks what it needs. Threads run on buffers of their own.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SOURCE = r"""
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX512F__
#include <immintrin.h>
uint64_t read_bytes(const char *p, size_t n, int times) {
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a, e = a, f = a, g = a, h = a;
    for (int t = 0; t < times; t++) {
        for (size_t k = 0; k + 512 <= n; k += 512) {
            const __m512i *q = (const void *)(p + k);
            a ^= q[0], b ^= q[1], c ^= q[2], d ^= q[3], e ^= q[4], f ^= q[5], g ^= q[6], h ^= q[7];
        }
        __asm__ volatile("" : "+v"(a));
    }
    return _mm512_reduce_add_epi64(a ^ b ^ c ^ d ^ e ^ f ^ g ^ h);
}
uint64_t store(char *p, size_t n, int times) {
    for (int t = 0; t < times; t++) {
        __m512i v = _mm512_set1_epi32(t + 1);
        for (size_t k = 0; k + 64 <= n; k += 64) _mm512_store_si512((void *)(p + k), v);
        __asm__ volatile("" ::: "memory");
    }
    return n;
}
uint64_t store_streaming(char *p, size_t n, int times) {
    for (int t = 0; t < times; t++) {
        __m512i v = _mm512_set1_epi32(t + 1);
        for (size_t k = 0; k + 64 <= n; k += 64) _mm512_stream_si512((void *)(p + k), v);
        _mm_sfence();
    }
    return n;
}
#endif
/* Peaks: chains of one instruction (or of three) in registers, written out: compilers spill them. */
#define TWELVE(S) S(0) S(1) S(2) S(3) S(4) S(5) S(6) S(7) S(8) S(9) S(10) S(11)
#define USED "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",        \
             "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"
#define PEAK(name, step)                                                                                     \
    uint64_t name(char *p, size_t n, int times) {                                                            \
        long rounds = times;                                                                                 \
        __asm__ volatile("vzeroall\n1:\n" TWELVE(step) "dec %0\njnz 1b\n" : "+r"(rounds) : : USED, "cc");    \
        return n + (uint64_t)p;                                                                              \
    }
#ifdef __AVX512F__
#define FMA512(i) "vfmadd231ps %%zmm13, %%zmm14, %%zmm" #i "\n"
PEAK(fma512, FMA512)
#endif
#ifdef __AVX512VNNI__
#define DOT512(i) "vpdpbusd %%zmm13, %%zmm14, %%zmm" #i "\n"
PEAK(vnni512, DOT512)
#endif
#ifdef __AVX2__
/* The products of each step are new values; sums in six registers are enough for additions. */
#define ADDED(i)                                                                                             \
    "vpmaddubsw %%ymm13, %%ymm14, %%ymm12\nvpmaddwd %%ymm15, %%ymm12, %%ymm12\n"                           \
    "vpaddd %%ymm12, %%ymm" #i ", %%ymm" #i "\n"
PEAK(maddubs256, ADDED)
#endif
"""

MIB = 1 << 20
# Names and bytes of the buffers; peaks: function and operations of one round.
READS = {"read 1 MiB": MIB, "read 8 MiB": 8 * MIB, "read 1 GiB": 1024 * MIB}
PEAKS = {
    "fma 512-bit": ("fma512", 12 * 32),
    "int8 dot 512-bit": ("vnni512", 12 * 128),
    "int8 maddubs 256-bit": ("maddubs256", 12 * 64),
}

# Rounds of a peak that is taken in turns with others: about a millisecond.
PEAK_ROUNDS = 100_000


def _library(folder: str) -> ctypes.CDLL | None:
    source, library = Path(folder) / "limits.c", Path(folder) / "limits.so"
    source.write_text(SOURCE)
    command = ["cc", "-O2", "-march=native", "-shared", "-fPIC", "-o", str(library), str(source)]
    if subprocess.run(command, capture_output=True).returncode:
        return None
    return ctypes.CDLL(str(library))


def _buffer(nbytes: int) -> tuple[object, int]:
    raw = ctypes.create_string_buffer(nbytes + 64)
    address = (ctypes.addressof(raw) + 63) & ~63
    ctypes.memset(address, 1, nbytes)
    return raw, address


class Limits:
    """The functions, compiled once, as runs that may be timed in turns with others."""

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            # Once loaded, a library does not need its file.
            self.library = _library(folder)

    def run(self, name: str, places: list[tuple[int, int]], times: int) -> Callable[[], object] | None:
        """Calls ``name`` on each place (address, bytes) at once, a thread each; None if it is not there."""
        function = getattr(self.library, name, None) if self.library else None
        if function is None:
            return None
        function.argtypes, function.restype = (
            [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int],
            ctypes.c_uint64,
        )

        def all_at_once() -> None:
            (address, nbytes), *others = places
            workers = [threading.Thread(target=function, args=(*place, times)) for place in others]
            for w in workers:
                w.start()
            function(address, nbytes, times)
            for w in workers:
                w.join()

        return all_at_once

    def reading(self, data: Any, count: int, times: int) -> tuple[Callable[[], object], float] | None:
        """Reads a NumPy array so many times, a part a thread; and the bytes of a run."""
        part = data.nbytes // count // 512 * 512
        places = [(data.ctypes.data + i * part, part) for i in range(count)]
        run = self.run("read_bytes", places, times)
        return None if run is None else (run, float(count * part * times))

    def storing(self, data: Any, times: int) -> tuple[Callable[[], object], float] | None:
        """Plain stores to the aligned lines of a NumPy array; and the bytes of a run."""
        address = (data.ctypes.data + 63) & ~63
        nbytes = (data.nbytes - 64) // 64 * 64
        run = self.run("store", [(address, nbytes)], times)
        return None if run is None else (run, float(nbytes * times))

    def peak(self, name: str, count: int) -> tuple[Callable[[], object], float] | None:
        """An arithmetic peak; and the operations of a run."""
        function, operations = PEAKS[name]
        run = self.run(function, [(0, 0)] * count, PEAK_ROUNDS)
        return None if run is None else (run, float(count * operations * PEAK_ROUNDS))


def measure(threads: int = 1, seconds: float = 0.4) -> dict[str, float]:
    """The limits with so many threads."""
    functions = Limits()

    def best(name: str, nbytes: int, amount: float, times: int) -> float | None:
        buffers = [_buffer(nbytes) for _ in range(threads)]
        run = functions.run(name, [(address, nbytes) for _, address in buffers], times)
        if run is None:
            return None
        rate, end = 0.0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            start = time.perf_counter()
            run()
            rate = max(rate, threads * amount * times / (time.perf_counter() - start) * 1e-9)
        return rate

    found: dict[str, float | None] = {}
    for name, total in READS.items():
        each = total if total <= MIB else total // threads
        found[name] = best("read_bytes", each, each, max(1, 64 * MIB // each))
    found["store 1 MiB"] = best("store", MIB, MIB, 64)
    for name, function in (("store 64 MiB", "store"), ("streaming store 64 MiB", "store_streaming")):
        found[name] = best(function, 64 * MIB, 64 * MIB, 1)
    for name, (function, operations) in PEAKS.items():
        found[name] = best(function, 64, operations, 300_000)
    return {name: rate for name, rate in found.items() if rate is not None}


if __name__ == "__main__":
    for count in (1, 2):
        print(f"{count} threads")
        for key, value in measure(count).items():
            print(f"  {key:24} {value:8.1f}")
