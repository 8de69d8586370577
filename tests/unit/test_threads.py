"""The GIL is released during long work, calls from many threads at once agree, and forks do not hang."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import ninfer_rs as nr
from support import random_words, same

LONG = random_words("gguf_iq1_m", (4096, 4096))
X = np.random.default_rng(0).standard_normal((32, 4096), np.float32)
MATRIX = np.random.default_rng(0).standard_normal((256, 4096), np.float32)
GROUPED = random_words("q5_g64_fp16", (4096, 8192))

CALLS: dict[str, Callable[[], Any]] = {
    "dequantize": lambda: LONG.dequantize(threads=1),
    "dequantize float16": lambda: LONG.dequantize(np.float16, threads=1),
    "matmul": lambda: LONG.matmul(X, "a8", threads=1),
    "validate": lambda: GROUPED.validate(),
    "violations": lambda: GROUPED.violations(),
    "gather": lambda: GROUPED.gather(np.arange(4095, -1, -1)),
    "words": lambda: GROUPED.words(),
    "quantize": lambda: nr.quantize(MATRIX, "q4_g64_fp16", "grouped_search", threads=1),
}


@pytest.mark.parametrize("what", CALLS)
def test_another_thread_runs_meanwhile(what: str) -> None:
    """While the call runs, another thread goes on counting.

    With the GIL held it could not take a step: threads switch between bytecodes, and the call is one.
    """
    call = CALLS[what]
    call()
    steps: list[float] = []
    stop = threading.Event()

    def tick() -> None:
        while not stop.is_set():
            steps.append(time.perf_counter())
            time.sleep(0.0002)

    thread = threading.Thread(target=tick)
    thread.start()
    shared = 0
    try:
        while not steps:
            time.sleep(0.001)
        for _ in range(60):
            started = time.perf_counter()
            call()
            ended = time.perf_counter()
            inside = [started, *(t for t in steps[-100_000:] if started < t < ended), ended]
            # With the GIL held, the other thread rests while the native part runs: nearly all of the call.
            rest = max(b - a for a, b in itertools.pairwise(inside))
            shared += rest < (ended - started) / 2
            if shared == 3:
                break
    finally:
        stop.set()
        thread.join()
    assert shared == 3


def test_many_threads_at_once() -> None:
    t = random_words("q4_g64_fp16", (512, 1024))
    x = np.random.default_rng(1).standard_normal((4, 1024), np.float32)
    values, product = t.dequantize(threads=1), t.matmul(x, "a8", threads=1)

    def work(i: int) -> bool:
        return same(t.dequantize(threads=1 + i % 3), values) and same(
            t.matmul(x, "a8", threads=1 + i % 4), product
        )

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(40)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_does_not_hang() -> None:
    t = random_words("q4_g64_fp16", (2048, 1024))
    expected = t.dequantize(threads=2)
    child = os.fork()
    if child == 0:
        os._exit(0 if same(t.dequantize(threads=2), expected) else 1)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    pytest.fail("the child hangs")


class TestSimd:
    """The choice of an instruction set."""

    def test_info(self) -> None:
        info = nr.simd.info()
        assert set(info) == {"isa", "available", "threads"}
        assert info["isa"] in info["available"] and info["available"][0] == "scalar" and info["threads"] >= 1

    def test_use_is_a_context_manager_and_a_call(self) -> None:
        best = nr.simd.info()["isa"]
        with nr.simd.use("scalar"):
            assert nr.simd.info()["isa"] == "scalar"
            with nr.simd.use(None):
                assert nr.simd.info()["isa"] == best
            assert nr.simd.info()["isa"] == "scalar"
        assert nr.simd.info()["isa"] == best
        nr.simd.use("scalar")
        assert nr.simd.info()["isa"] == "scalar"
        nr.simd.use(None)
        assert nr.simd.info()["isa"] == best

    def test_unknown_and_unavailable(self) -> None:
        before = nr.simd.info()["isa"]
        for name in ("sse9", "", "AVX2"):
            with pytest.raises(nr.UnsupportedError, match="available here: scalar"):
                nr.simd.use(name)
        foreign = "neon" if "neon" not in nr.simd.info()["available"] else "avx2"
        with pytest.raises(nr.UnsupportedError, match="not available on this machine"):
            nr.simd.use(foreign)
        assert nr.simd.info()["isa"] == before

    @pytest.mark.parametrize(("value", "code"), [("scalar", 0), ("quantum", 1)])
    def test_environment(self, value: str, code: int) -> None:
        script = (
            "import ninfer_rs as nr, sys\n"
            "try: print(nr.simd.info()['isa'])\n"
            "except nr.UnsupportedError as e: print(e); sys.exit(1)"
        )
        env = os.environ | {"NINFER_SIMD": value}
        done = subprocess.run(
            [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stderr
        assert ("scalar" if code == 0 else "quantum") in done.stdout
