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
from pathlib import Path

SOURCE = r"""
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX512F__
#include <immintrin.h>
uint64_t read_bytes(const char *p, size_t n, int times) {
    __m512i s[8];
    for (int i = 0; i < 8; i++) s[i] = _mm512_setzero_si512();
    for (int t = 0; t < times; t++) {
        for (size_t k = 0; k + 512 <= n; k += 512)
            for (int i = 0; i < 8; i++)
                s[i] = _mm512_xor_si512(s[i], _mm512_load_si512((const void *)(p + k + 64 * i)));
        __asm__ volatile("" : "+v"(s[0]));
    }
    for (int i = 1; i < 8; i++) s[0] = _mm512_xor_si512(s[0], s[i]);
    return _mm512_reduce_add_epi64(s[0]);
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
#define PEAK(name, type, init, step)                                                                         \
    uint64_t name(char *p, size_t n, int times) {                                                            \
        type acc[12];                                                                                        \
        for (int i = 0; i < 12; i++) acc[i] = init;                                                          \
        for (int t = 0; t < times; t++) {                                                                    \
            _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++) acc[i] = step;                             \
            __asm__ volatile("" : "+v"(acc[0]), "+v"(acc[1]), "+v"(acc[2]), "+v"(acc[3]), "+v"(acc[4]),      \
                             "+v"(acc[5]), "+v"(acc[6]), "+v"(acc[7]), "+v"(acc[8]), "+v"(acc[9]),           \
                             "+v"(acc[10]), "+v"(acc[11]));                                                  \
        }                                                                                                    \
        for (int i = 0; i < 12; i++) memcpy(p, &acc[i], sizeof acc[i]);                                      \
        return n;                                                                                            \
    }
PEAK(fma512, __m512, _mm512_set1_ps(i),
     _mm512_fmadd_ps(acc[i], _mm512_set1_ps(0.5f), _mm512_set1_ps(0.25f)))
#ifdef __AVX512VNNI__
PEAK(vnni512, __m512i, _mm512_set1_epi32(i),
     _mm512_dpbusd_epi32(acc[i], _mm512_set1_epi8(3), _mm512_set1_epi8(5)))
#endif
#endif
#ifdef __AVX2__
#include <immintrin.h>
#ifndef PEAK
#define PEAK(name, type, init, step)
#endif
PEAK(maddubs256, __m256i, _mm256_set1_epi32(i),
     _mm256_add_epi32(acc[i], _mm256_madd_epi16(_mm256_maddubs_epi16(
    _mm256_xor_si256(acc[i], _mm256_set1_epi8(3)), _mm256_set1_epi8(5)), _mm256_set1_epi16(1))))
#endif
"""

MIB = 1 << 20
# Names and bytes of the buffers; peaks: function and operations of one round.
READS = {"read 1 MiB": MIB, "read 8 MiB": 8 * MIB, "read 512 MiB": 512 * MIB}
PEAKS = {
    "fma 512-bit": ("fma512", 12 * 32),
    "int8 dot 512-bit": ("vnni512", 12 * 128),
    "int8 maddubs 256-bit": ("maddubs256", 12 * 64),
}


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


def measure(threads: int = 1, seconds: float = 0.4) -> dict[str, float]:
    """The limits with so many threads."""
    with tempfile.TemporaryDirectory() as folder:
        library = _library(folder)
        if library is None:
            return {}

        def best(name: str, nbytes: int, amount: float, times: int) -> float | None:
            function = getattr(library, name, None)
            if function is None:
                return None
            function.argtypes, function.restype = (
                [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int],
                ctypes.c_uint64,
            )
            buffers = [_buffer(nbytes) for _ in range(threads)]
            rate, end = 0.0, time.perf_counter() + seconds
            while time.perf_counter() < end:
                workers = [
                    threading.Thread(target=function, args=(address, nbytes, times)) for _, address in buffers
                ]
                start = time.perf_counter()
                for w in workers[1:]:
                    w.start()
                function(buffers[0][1], nbytes, times)
                for w in workers[1:]:
                    w.join()
                rate = max(rate, threads * amount * times / (time.perf_counter() - start) * 1e-9)
            return rate

        found: dict[str, float | None] = {}
        for name, total in READS.items():
            each = total if total <= MIB else total // threads
            found[name] = best("read_bytes", each, each, max(1, 64 * MIB // each))
        for name, function in (("store 64 MiB", "store"), ("streaming store 64 MiB", "store_streaming")):
            found[name] = best(function, 64 * MIB // threads, 64 * MIB // threads, 1)
        for name, (function, operations) in PEAKS.items():
            found[name] = best(function, 64, operations, 300_000)
        return {name: rate for name, rate in found.items() if rate is not None}


if __name__ == "__main__":
    for count in (1, 2):
        print(f"{count} threads")
        for key, value in measure(count).items():
            print(f"  {key:24} {value:8.1f}")
