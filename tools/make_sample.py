"""Writes examples/sample.gguf with our own writer: all 18 ggml block types, F32, F16, BF16, one expert bank.

The bytes come from SHAKE-256, so every machine writes the same file; ``--check`` compares with the committed
one. Block scales are sane (binary16 magnitudes between 2^-7 and 2^-4, both signs), all other bytes are
random.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from pathlib import Path

import numpy as np

import ninfer_rs as nr

SAMPLE = Path(__file__).resolve().parent.parent / "examples" / "sample.gguf"
ROWS, K = 24, 512

#: Byte offsets of the binary16 scale fields of each block; iq1_m spreads its scale over the top nibbles
#: of four words.
SCALES = {
    "gguf_q2_k": (80, 82),
    "gguf_q3_k": (108,),
    "gguf_q4_k": (0, 2),
    "gguf_q5_k": (0, 2),
    "gguf_q6_k": (208,),
}


def random_bytes(label: str, n: int) -> np.ndarray:
    return np.frombuffer(hashlib.shake_256(label.encode()).digest(n), np.uint8).copy()


def scale_words(label: str, n: int) -> np.ndarray:
    words = random_bytes(label + "/scale", 2 * n).view("<u2").astype(np.uint16)
    exponent = 8 + (words >> 10) % 3
    return (words & 0x83FF) | (exponent << 10).astype(np.uint16)


def blocks(name: str, rows: int, k: int) -> np.ndarray:
    f = nr.get_format(name)
    assert f.block_values and f.block_bytes
    count = rows * k // f.block_values
    out = random_bytes(name, count * f.block_bytes).reshape(count, f.block_bytes)
    if name == "gguf_iq1_m":
        words = scale_words(name, count)
        for i in range(4):
            out[:, 49 + 2 * i] = (out[:, 49 + 2 * i] & 0x0F) | ((words >> (4 * i)) & 15).astype(np.uint8) << 4
    else:
        for at in SCALES.get(name, (0,)):
            words = scale_words(f"{name}/{at}", count).astype("<u2")
            out[:, at : at + 2] = words.view(np.uint8).reshape(count, 2)
    return out.reshape(-1)


def floats(label: str, n: int) -> np.ndarray:
    """Values with a magnitude between 2^-4 and 2, from random words."""
    words = random_bytes(label, 4 * n).view("<u4").astype(np.uint32)
    return ((words & 0x807F_FFFF) | ((123 + (words >> 23) % 5) << 23).astype(np.uint32)).view(np.float32)


def write(path: Path) -> None:
    tensors: dict[str, object] = {"token_embd.weight": floats("embd", 8 * K).reshape(8, K)}
    for f in nr.FORMATS.values():
        if f.ggml_type is not None:
            payload = blocks(f.name, ROWS, K)
            weight = nr.Tensor.from_payload(f.name, (ROWS, K), payload)
            tensors[f"blk.0.{f.name.removeprefix('gguf_')}.weight"] = weight
    q4_k = nr.get_format("gguf_q4_k")
    tensors["blk.1.ffn_gate_exps.weight"] = (q4_k.ggml_type, (4, 6, 256), blocks("gguf_q4_k", 24, 256))
    tensors["blk.1.half.weight"] = floats("half", 6 * K).reshape(6, K).astype(np.float16)
    brain = (floats("brain", 6 * K).view(np.uint32) >> 16).astype(np.uint16)
    tensors["blk.1.brain.weight"] = nr.Tensor.from_words("bf16", (6, K), words=brain.reshape(6, K))
    tensors["blk.1.attn_norm.weight"] = floats("norm", K)
    metadata = {
        "general.architecture": "sample",
        "general.name": "ninfer_rs sample",
        "general.quantization_version": np.uint32(2),
        "sample.block_count": np.uint32(2),
        "sample.embedding_length": np.uint32(K),
        "sample.rope.freq_base": np.float32(10000.0),
        "sample.tied": True,
        "tokenizer.ggml.tokens": ["<pad>", "<eos>", "<bos>", "hello", "wörld"],
        "tokenizer.ggml.scores": np.array([0.0, -1.0, -2.5, -3.0, -4.25], np.float32),
    }
    nr.gguf.write(path, metadata, tensors)


def main() -> int:
    with tempfile.TemporaryDirectory(dir=SAMPLE.parent) as folder:
        fresh = Path(folder) / "sample.gguf"
        write(fresh)
        data = fresh.read_bytes()
    if "--check" in sys.argv[1:]:
        if not SAMPLE.exists() or SAMPLE.read_bytes() != data:
            print("examples/sample.gguf is not what tools/make_sample.py writes; run `make sample`")
            return 1
        return 0
    SAMPLE.write_bytes(data)
    print(f"{SAMPLE.name}: {len(data):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
