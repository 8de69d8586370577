"""A small ctypes binding over the CPU side of an installed ggml.

Two builds are understood:

* "ggml": libggml-base + libggml-cpu as the wheel `llama-cpp-python` installs them. Found through
  the package (no model is loaded, the package itself is not even imported), or in the folder that
  the environment variable NINFER_PEER_GGML names.
* "ik": the single libggml of an ik_llama.cpp build, in the file that NINFER_PEER_IK names.

Nothing of either project is copied here: only their public C functions are called.

    import ggml_peer as gp
    p = gp.load("ggml")
    w = p.random_rows("q4_K", 4096, 4096)                 # valid random blocks, uint8
    y = p.dequantize("q4_K", w, 4096 * 4096)              # float32
    s = p.vec_dot("q4_K", w[: p.row_bytes("q4_K", 4096)], x)
    o = p.matvec("q4_K", w, 4096, 4096, x, threads=2)     # (4096,)
    with p.matmul_plan("q4_K", w, 4096, 4096, n=512, threads=2, repack=True) as m:
        m.set_x(x)
        print(gp.bench(m.run))
"""

import ctypes as C
import importlib.util
import os
import shutil
import subprocess
import tempfile
import time

import numpy as np

# name -> (ggml type id, elements a block, bytes a block)
TYPES = {
    "q8_0": (8, 32, 34),
    "q4_0": (2, 32, 18),
    "q5_0": (6, 32, 22),
    "q2_0": (42, 64, 18),
    "q2_K": (10, 256, 84),
    "q3_K": (11, 256, 110),
    "q4_K": (12, 256, 144),
    "q5_K": (13, 256, 176),
    "q6_K": (14, 256, 210),
    "iq2_xxs": (16, 256, 66),
    "iq2_xs": (17, 256, 74),
    "iq3_xxs": (18, 256, 98),
    "iq1_s": (19, 256, 50),
    "iq4_nl": (20, 32, 18),
    "iq3_s": (21, 256, 110),
    "iq2_s": (22, 256, 82),
    "iq4_xs": (23, 256, 136),
    "iq1_m": (29, 256, 56),
    # not among the 18, but useful beside them
    "f32": (0, 1, 4),
    "f16": (1, 1, 2),
    "bf16": (30, 1, 2),
    "q8_1": (9, 32, 36),
    "mxfp4": (39, 32, 17),
    "nvfp4": (40, 64, 36),
}
BLOCK_TYPES = list(TYPES)[:18]

# byte offset of each fp16 field of a block; iq1_m keeps its fp16 in four nibbles
FP16_FIELDS = {
    "q8_0": (0,),
    "q4_0": (0,),
    "q5_0": (0,),
    "q2_0": (0,),
    "iq4_nl": (0,),
    "q2_K": (80, 82),
    "q3_K": (108,),
    "q4_K": (0, 2),
    "q5_K": (0, 2),
    "q6_K": (208,),
    "iq2_xxs": (0,),
    "iq2_xs": (0,),
    "iq2_s": (0,),
    "iq3_xxs": (0,),
    "iq3_s": (0,),
    "iq1_s": (0,),
    "iq1_m": (),
    "iq4_xs": (0,),
}

# ik_llama.cpp's run-time repacked layouts (`-rtr`): name -> (type id, interleaved rows)
IK_REPACKED = {
    "q4_0": (202, 8),
    "q5_0": (206, 4),
    "q8_0": (208, 8),
    "q2_K": (210, 4),
    "q3_K": (211, 4),
    "q4_K": (212, 4),
    "q5_K": (213, 4),
    "q6_K": (214, 4),
    "iq2_xxs": (216, 4),
    "iq2_xs": (217, 4),
    "iq3_xxs": (218, 4),
    "iq1_s": (219, 4),
    "iq4_nl": (220, 4),
    "iq3_s": (221, 4),
    "iq2_s": (222, 4),
    "iq4_xs": (223, 8),
    "iq1_m": (229, 4),
}

_TO_FLOAT = C.CFUNCTYPE(None, C.c_void_p, C.c_void_p, C.c_int64)
_VEC_DOT = C.CFUNCTYPE(
    None, C.c_int, C.c_void_p, C.c_size_t, C.c_void_p, C.c_size_t, C.c_void_p, C.c_size_t, C.c_int
)


class _InitParams(C.Structure):
    _fields_ = [("mem_size", C.c_size_t), ("mem_buffer", C.c_void_p), ("no_alloc", C.c_bool)]


class _CPlan(C.Structure):  # the leading fields are the same in both builds; the rest is room
    _fields_ = [
        ("work_size", C.c_size_t),
        ("work_data", C.c_void_p),
        ("n_threads", C.c_int),
        ("rest", C.c_uint8 * 108),
    ]


class _Traits(C.Structure):
    _fields_ = [
        ("type_name", C.c_char_p),
        ("blck_size", C.c_int64),
        ("interleave", C.c_int64),
        ("type_size", C.c_size_t),
        ("is_quantized", C.c_bool),
        ("to_float", C.c_void_p),
        ("from_float_ref", C.c_void_p),
    ]


class _TraitsCPU(C.Structure):
    _fields_ = [
        ("from_float", C.c_void_p),
        ("vec_dot", C.c_void_p),
        ("vec_dot_type", C.c_int),
        ("nrows", C.c_int64),
    ]


class _IkTraits(C.Structure):
    _fields_ = [
        ("type_name", C.c_char_p),
        ("blck_size", C.c_int64),
        ("interleave", C.c_int64),
        ("type_size", C.c_size_t),
        ("is_quantized", C.c_bool),
        ("to_float", C.c_void_p),
        ("from_float", C.c_void_p),
        ("from_float_ref", C.c_void_p),
        ("from_float_to_mat", C.c_void_p),
        ("vec_dot", C.c_void_p),
        ("vec_dot_type", C.c_int),
        ("nrows", C.c_int64),
        ("ncols", C.c_int64),
        ("gemv", C.c_void_p),
        ("gemm", C.c_void_p),
        ("row_meta_size", C.c_int64),
    ]


def _ptr(a):
    return a.ctypes.data


def aligned(nbytes, align=4096):
    """A uint8 array whose data is aligned (numpy asks for huge pages from 4 MiB on)."""
    raw = np.empty(nbytes + align, np.uint8)
    off = -raw.ctypes.data % align
    return raw[off : off + nbytes]


def f32(a):
    return np.ascontiguousarray(a, np.float32)


def u8(a):
    if isinstance(a, (bytes, bytearray, memoryview)):
        return np.frombuffer(a, np.uint8)
    return np.ascontiguousarray(a).view(np.uint8).reshape(-1)


def default_ggml_dir():
    d = os.environ.get("NINFER_PEER_GGML")
    if d:
        return d
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("no llama-cpp-python here; install it or set NINFER_PEER_GGML")
    return os.path.join(next(iter(spec.submodule_search_locations)), "lib")


_loaded = {}


def load(which="ggml", path=None):
    """The peer "ggml" or "ik" (once a process for each path)."""
    key = (which, path)
    if key not in _loaded:
        _loaded[key] = Peer(which, path)
    return _loaded[key]


class Peer:
    def __init__(self, which="ggml", path=None):
        self.which = which
        if which == "ggml":
            d = path or default_ggml_dir()

            # by the name that libggml-cpu itself asks for, so one copy is mapped
            def first(stem):
                names = sorted(n for n in os.listdir(d) if n.startswith(stem + ".so"))
                if not names:
                    raise RuntimeError(f"no {stem} in {d}")
                pick = stem + ".so.0"
                return os.path.join(d, pick if pick in names else names[0])

            self.base = C.CDLL(first("libggml-base"))
            self.cpu = C.CDLL(first("libggml-cpu"))
        elif which == "ik":
            p = path or os.environ.get("NINFER_PEER_IK")
            if not p:
                raise RuntimeError("set NINFER_PEER_IK to the libggml of an ik_llama.cpp build")
            self.base = self.cpu = C.CDLL(p)
        else:
            raise ValueError(which)
        self._declare()

    # ---- declarations -------------------------------------------------------------------
    def _declare(self):
        def fn(lib, name, res, *args):
            f = getattr(lib, name)
            f.restype = res
            f.argtypes = list(args)
            return f

        vp, i64, ci, sz = C.c_void_p, C.c_int64, C.c_int, C.c_size_t
        b, c = self.base, self.cpu
        self._init = fn(b, "ggml_init", vp, _InitParams)
        self._free = fn(b, "ggml_free", None, vp)
        self._new2d = fn(b, "ggml_new_tensor_2d", vp, vp, ci, i64, i64)
        self._mul_mat = fn(b, "ggml_mul_mat", vp, vp, vp, vp)
        self._data = fn(b, "ggml_get_data", vp, vp)
        self._new_graph = fn(b, "ggml_new_graph", vp, vp)
        self._expand = fn(b, "ggml_build_forward_expand", None, vp, vp)
        self._row_size = fn(b, "ggml_row_size", sz, ci, i64)
        self._type_name = fn(b, "ggml_type_name", C.c_char_p, ci)
        self._needs_imatrix = fn(b, "ggml_quantize_requires_imatrix", C.c_bool, ci)
        # a last argument more for ik (user data); one too many is harmless to the other
        self._quantize = fn(b, "ggml_quantize_chunk", sz, ci, vp, vp, i64, i64, i64, vp, vp)
        self._plan = fn(c, "ggml_graph_plan", _CPlan, vp, ci, vp)
        self._compute = fn(c, "ggml_graph_compute", ci, vp, C.POINTER(_CPlan))
        if self.which == "ggml":
            fn(c, "ggml_cpu_init", None)()
            self._traits = fn(b, "ggml_get_type_traits", C.POINTER(_Traits), ci)
            self._traits_cpu = fn(c, "ggml_get_type_traits_cpu", C.POINTER(_TraitsCPU), ci)
            self._reg = fn(c, "ggml_backend_cpu_reg", vp)()
            self._dev = fn(b, "ggml_backend_reg_dev_get", vp, vp, sz)(self._reg, 0)
            self._supports = fn(b, "ggml_backend_dev_supports_op", C.c_bool, vp, vp)
            self._buft_name = fn(b, "ggml_backend_buft_name", C.c_char_p, vp)
            self._buft_alloc = fn(b, "ggml_backend_buft_alloc_buffer", vp, vp, sz)
            self._buft_size = fn(b, "ggml_backend_buft_get_alloc_size", sz, vp, vp)
            self._buf_base = fn(b, "ggml_backend_buffer_get_base", vp, vp)
            self._buf_free = fn(b, "ggml_backend_buffer_free", None, vp)
            self._t_alloc = fn(b, "ggml_backend_tensor_alloc", ci, vp, vp, vp)
            self._t_set = fn(b, "ggml_backend_tensor_set", None, vp, vp, sz, sz)
        else:
            self._traits_ik = fn(b, "ggml_internal_get_type_traits", _IkTraits, ci)
            # the half-precision tables are filled by the first context
            self._free(self._init(_InitParams(1 << 16, None, False)))
            self._repack = fn(b, "iqk_repack_tensor", None, vp)
            lo = C.c_long
            self._iqk = fn(b, "iqk_mul_mat", C.c_bool, lo, lo, lo, ci, vp, lo, ci, vp, lo, vp, lo, ci, ci)
            self._repacked_type = fn(b, "iqk_repacked_type", ci, vp)

    # ---- types --------------------------------------------------------------------------
    def tid(self, t):
        return t if isinstance(t, int) else TYPES[t][0]

    def has(self, t):
        """Whether this build knows the type."""
        i = self.tid(t)
        if self.which == "ik":
            tr = self._traits_ik(i)
            return bool(tr.type_name) and tr.type_name.decode() == str(t) and bool(tr.to_float)
        name = self._type_name(i)
        return bool(name) and name.decode().lower() == str(t).lower()

    def row_bytes(self, t, k):
        return self._row_size(self.tid(t), k)

    def vec_dot_type(self, t):
        i = self.tid(t)
        if self.which == "ik":
            return self._traits_ik(i).vec_dot_type
        return self._traits_cpu(i).contents.vec_dot_type

    def type_name(self, t):
        return (self._type_name(self.tid(t)) or b"?").decode()

    def addr(self, t, what):
        """Address of the C function: 'to_float', 'from_float' (SIMD), 'from_float_ref', 'vec_dot'."""
        i = self.tid(t)
        if self.which == "ik":
            return getattr(self._traits_ik(i), what)
        if what in ("to_float", "from_float_ref"):
            return getattr(self._traits(i).contents, what)
        return getattr(self._traits_cpu(i).contents, what)

    def random_rows(self, t, rows, k, seed=0, scale=0.02, full_fp16=False):
        """Valid random blocks: all code and sub-scale bytes random, fp16 fields finite.

        full_fp16 draws the fp16 fields from every finite half, else from +-[scale/2, scale).
        """
        return random_rows(t, rows, k, seed, scale, full_fp16)

    # ---- rows ---------------------------------------------------------------------------
    def quantize(self, t, x, imatrix=None):
        """Rows of x (2-d or one row) to blocks, by ggml_quantize_chunk."""
        x = f32(x)
        x2 = x.reshape(1, -1) if x.ndim == 1 else x
        rows, k = x2.shape
        if imatrix is not None:
            imatrix = f32(imatrix)
            assert imatrix.size == k
        elif self._needs_imatrix(self.tid(t)):
            raise ValueError(f"{t} needs an importance matrix")
        out = aligned(self.row_bytes(t, k) * rows)
        n = self._quantize(
            self.tid(t), _ptr(x2), _ptr(out), 0, rows, k, _ptr(imatrix) if imatrix is not None else None, None
        )
        assert n == out.size, (n, out.size)
        return out

    def dequantize(self, t, data, n, out=None):
        d = u8(data)
        assert d.size >= self.row_bytes(t, n)
        y = np.empty(n, np.float32) if out is None else out
        _TO_FLOAT(self.addr(t, "to_float"))(_ptr(d), _ptr(y), n)
        return y

    def from_float(self, t, x, ref=False):
        """One row to type t by the CPU's from_float (SIMD where there is one), or the reference."""
        x = f32(x)
        out = aligned(self.row_bytes(t, x.size))
        a = self.addr(t, "from_float_ref" if ref else "from_float")
        if not a:
            raise ValueError(f"{t} has no from_float here")
        _TO_FLOAT(a)(_ptr(x), _ptr(out), x.size)
        return out

    def quantize_activation(self, t, x):
        """x as the type that t's vec_dot wants on its right side."""
        return self.from_float(self.vec_dot_type(t), x)

    def vec_dot(self, t, w, x):
        x = f32(x)
        w = u8(w)
        y = self.quantize_activation(t, x)
        s = C.c_float()
        if self.which == "ik":  # its mul_mat never calls the table's vec_dot
            n, vt = x.size, self.vec_dot_type(t)
            ok = self._iqk(
                1,
                1,
                n,
                self.tid(t),
                _ptr(w),
                self.row_bytes(t, n),
                vt,
                _ptr(y),
                self.row_bytes(vt, n),
                C.addressof(s),
                1,
                0,
                1,
            )
            if not ok:
                raise RuntimeError(f"iqk_mul_mat refuses {t}")
            return s.value
        _VEC_DOT(self.addr(t, "vec_dot"))(x.size, C.addressof(s), 0, _ptr(w), 0, _ptr(y), 0, 1)
        return s.value

    # ---- matrices -----------------------------------------------------------------------
    def matmul_plan(self, t, w, n_rows, k, n=1, threads=1, repack=False):
        return MatMul(self, t, w, n_rows, k, n, threads, repack)

    def matvec(self, t, w, n_rows, k, x, threads=1, repack=False):
        return self.matmul(t, w, n_rows, k, f32(x).reshape(1, k), threads, repack)[0]

    def matmul(self, t, w, n_rows, k, x, threads=1, repack=False):
        """(tokens, n_rows) = x (tokens, k) times the transposed weight."""
        x = f32(x)
        with self.matmul_plan(t, w, n_rows, k, x.shape[0], threads, repack) as m:
            m.set_x(x)
            m.run()
            return m.result().copy()

    def repack_buft(self):
        """The CPU_REPACK buffer type of mainline ggml, or None."""
        if self.which != "ggml":
            return None
        gp = self.base.ggml_backend_reg_get_proc_address
        gp.restype, gp.argtypes = C.c_void_p, [C.c_void_p, C.c_char_p]
        a = gp(self._reg, b"ggml_backend_dev_get_extra_bufts")
        if not a:
            return None
        lst = C.CFUNCTYPE(C.POINTER(C.c_void_p), C.c_void_p)(a)(self._dev)
        i = 0
        while lst and lst[i]:
            if b"REPACK" in self._buft_name(lst[i]):
                return lst[i]
            i += 1
        return None


class NoRepack(Exception):
    pass


class MatMul:
    """One mul_mat node, built once and computed as often as wanted."""

    def __init__(self, p, t, w, n_rows, k, n, threads, repack):
        self.p, self.n, self.n_rows, self.k = p, n, n_rows, k
        self.threads = threads
        self._bufs, self._ctxs = [], []
        tid = p.tid(t)
        w = u8(w)
        wb = p.row_bytes(t, k) * n_rows
        assert w.size >= wb
        self.weight_bytes = wb
        self.flops = 2.0 * n * n_rows * k
        mem = 4 * (n_rows * n + k * n) + (4 << 20)
        if not (repack and p.which == "ggml"):
            mem += wb
        self.mem = aligned(mem)
        self.ctx = p._init(_InitParams(mem, _ptr(self.mem), False))
        self.layout = p.type_name(t)
        if repack and p.which == "ggml":
            buft = p.repack_buft()
            if not buft:
                self.close()
                raise NoRepack("this build has no repack buffer")
            wctx = p._init(_InitParams(1 << 16, None, True))
            self._ctxs.append(wctx)
            tw = p._new2d(wctx, tid, k, n_rows)
            buf = p._buft_alloc(buft, p._buft_size(buft, tw))
            self._bufs.append(buf)
            p._t_alloc(buf, tw, p._buf_base(buf))
        else:
            tw = p._new2d(self.ctx, tid, k, n_rows)
            C.memmove(p._data(tw), _ptr(w), wb)
            if repack:
                if p._repacked_type(tw) == tid:
                    self.close()
                    raise NoRepack(f"{t} has no repacked layout")
                self.layout = p._type_name(p._repacked_type(tw)).decode()
                p._repack(tw)
        self.tx = p._new2d(self.ctx, 0, k, n)
        self.to = p._mul_mat(self.ctx, tw, self.tx)
        if repack and p.which == "ggml":
            if not p._supports(p._dev, self.to):
                self.close()
                raise NoRepack(f"{t} has no repacked kernel")
            p._t_set(tw, _ptr(w), 0, wb)
            self.layout += " repacked"
        g = p._new_graph(self.ctx)
        p._expand(g, self.to)
        self.graph = g
        self.plan = p._plan(g, threads, None)
        self.work = aligned(int(self.plan.work_size) + 64)
        self.plan.work_data = _ptr(self.work)

    def set_x(self, x):
        x = f32(x)
        assert x.size == self.n * self.k
        C.memmove(self.p._data(self.tx), _ptr(x), x.nbytes)

    def run(self):
        if self.p._compute(self.graph, C.byref(self.plan)):
            raise RuntimeError("ggml_graph_compute failed")

    def result(self):
        a = (C.c_float * (self.n * self.n_rows)).from_address(self.p._data(self.to))
        return np.frombuffer(a, np.float32).reshape(self.n, self.n_rows)

    def close(self):
        if self.ctx:
            self.p._free(self.ctx)
            self.ctx = None
        for b in self._bufs:
            self.p._buf_free(b)
        for c in self._ctxs:
            self.p._free(c)
        self._bufs, self._ctxs = [], []

    def __enter__(self):
        return self

    def __exit__(self, *a):
        self.close()


# ---- data ---------------------------------------------------------------------------------
def _finite_halves(rng, n):
    h = rng.integers(0, 1 << 16, n, dtype=np.uint16)
    bad = (h & 0x7C00) == 0x7C00
    h[bad] &= 0xBFFF
    return h


def random_rows(t, rows, k, seed=0, scale=0.02, full_fp16=False):
    _, blk, size = TYPES[t]
    assert k % blk == 0
    nb = rows * k // blk
    rng = np.random.default_rng(seed)
    out = aligned(nb * size)
    out[:] = np.frombuffer(rng.bytes(nb * size), np.uint8)
    b = out.reshape(nb, size)

    def halves():
        if full_fp16:
            return _finite_halves(rng, nb)
        v = rng.uniform(scale / 2, scale, nb) * rng.choice([-1.0, 1.0], nb)
        return v.astype(np.float16).view(np.uint16)

    if t == "iq1_m":
        h = halves()
        sc = np.ascontiguousarray(b[:, 48:56]).view(np.uint16).reshape(nb, 4)
        for i in range(4):  # nibble i of the half is the top nibble of word i
            sc[:, i] = (sc[:, i] & 0x0FFF) | (((h >> (4 * i)) & 0xF) << 12)
        b[:, 48:56] = sc.view(np.uint8).reshape(nb, 8)
    elif t == "nvfp4":
        b[:, :4] = rng.integers(0, 0x7F, (nb, 4), dtype=np.uint8)
    elif t == "mxfp4":
        b[:, 0] = rng.integers(110, 130, nb, dtype=np.uint8)
    else:
        if t == "q8_0" and not full_fp16:
            c = b[:, 2:]  # no encoder writes -128, and ik's kernels count on that
            c[c == 0x80] = 0x81
        for o in FP16_FIELDS[t]:
            b[:, o : o + 2] = halves().view(np.uint8).reshape(nb, 2)
    return out


# ---- timing -------------------------------------------------------------------------------
def bench(fn, min_time=0.3, min_reps=5, max_reps=100000, warmup=1):
    """Call fn again and again; seconds as {'min', 'median', 'reps'}."""
    for _ in range(warmup):
        fn()
    ts, total = [], 0.0
    pc = time.perf_counter
    while (total < min_time or len(ts) < min_reps) and len(ts) < max_reps:
        t0 = pc()
        fn()
        dt = pc() - t0
        ts.append(dt)
        total += dt
    return {"min": min(ts), "median": float(np.median(ts)), "reps": len(ts)}


def bench_interleaved(fns, rounds=5, min_time=0.05, min_reps=2):
    """Time several functions in turn, `rounds` times round; {name: {'min', 'median', 'reps'}}.

    What disturbs one of them for longer than a turn disturbs the others too, so the ratios of
    the minima hold better than two separate runs'.
    """
    ts = {k: [] for k in fns}
    for f in fns.values():
        f()
    pc = time.perf_counter
    for _ in range(rounds):
        for k, f in fns.items():
            total, n = 0.0, 0
            while total < min_time or n < min_reps:
                t0 = pc()
                f()
                dt = pc() - t0
                ts[k].append(dt)
                total += dt
                n += 1
    return {k: {"min": min(v), "median": float(np.median(v)), "reps": len(v)} for k, v in ts.items()}


# A loop around one C function pointer, since a ctypes call costs about as much as a short row.
_LOOP_C = r"""
#include <stddef.h>
#include <stdint.h>
#include <time.h>
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}
typedef void (*conv_t)(const void *, void *, int64_t);
typedef void (*dot_t)(int, float *, size_t, const void *, size_t, const void *, size_t, int);
void loop_conv(conv_t f, const void *a, void *b, int64_t n, int reps, int batches, double *out) {
    for (int j = 0; j < batches; j++) {
        double t = now();
        for (int i = 0; i < reps; i++) f(a, b, n);
        out[j] = (now() - t) / reps;
    }
}
void loop_dot(dot_t f, int n, const char *w, size_t row, int rows, const void *y, int reps, int batches,
              double *out) {
    float s, sum = 0;
    for (int j = 0; j < batches; j++) {
        double t = now();
        for (int i = 0; i < reps; i++)
            for (int r = 0; r < rows; r++) { f(n, &s, 0, w + row * r, 0, y, 0, 1); sum += s; }
        out[j] = (now() - t) / ((double) reps * rows);
    }
    *(volatile float *) &s = sum;
}
"""
_loop = None


def looper():
    """The compiled loop (needs a C compiler), or None."""
    global _loop
    if _loop is None:
        cc = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if not cc:
            return None
        d = tempfile.mkdtemp(prefix="ggml_peer_")
        src, so = os.path.join(d, "loop.c"), os.path.join(d, "loop.so")
        with open(src, "w") as f:
            f.write(_LOOP_C)
        subprocess.run([cc, "-O2", "-shared", "-fPIC", "-o", so, src], check=True)
        _loop = C.CDLL(so)
        shutil.rmtree(d)
        vp, pd = C.c_void_p, C.POINTER(C.c_double)
        _loop.loop_conv.argtypes = [vp, vp, vp, C.c_int64, C.c_int, C.c_int, pd]
        _loop.loop_conv.restype = None
        _loop.loop_dot.argtypes = [vp, C.c_int, vp, C.c_size_t, C.c_int, vp, C.c_int, C.c_int, pd]
        _loop.loop_dot.restype = None
    return _loop


def _stats(out):
    a = np.array(out[:])
    return {"min": float(a.min()), "median": float(np.median(a)), "reps": len(a)}


def time_conv(addr, src, dst, n, batches=40, batch_time=0.002):
    """Seconds of one call of a to_float / from_float function."""
    lp = looper()
    if lp is None:
        f = _TO_FLOAT(addr)
        return bench(lambda: f(_ptr(src), _ptr(dst), n))
    one = (C.c_double * 1)()
    lp.loop_conv(addr, _ptr(src), _ptr(dst), n, 1, 1, one)
    lp.loop_conv(addr, _ptr(src), _ptr(dst), n, 3, 1, one)
    reps = max(1, int(batch_time / max(one[0], 1e-9)))
    out = (C.c_double * batches)()
    lp.loop_conv(addr, _ptr(src), _ptr(dst), n, reps, batches, out)
    return _stats(out)


def time_vec_dot(p, t, w, x, rows=1, batches=40, batch_time=0.002):
    """Seconds of one vec_dot of a row with an already quantized activation (mainline only)."""
    if p.which != "ggml":
        return None
    x = f32(x)
    w = u8(w)
    y = p.quantize_activation(t, x)
    a = p.addr(t, "vec_dot")
    rb = p.row_bytes(t, x.size)
    lp = looper()
    if lp is None:
        f, s = _VEC_DOT(a), C.c_float()
        return bench(lambda: f(x.size, C.addressof(s), 0, _ptr(w), 0, _ptr(y), 0, 1))
    one = (C.c_double * 1)()
    lp.loop_dot(a, x.size, _ptr(w), rb, rows, _ptr(y), 3, 1, one)
    lp.loop_dot(a, x.size, _ptr(w), rb, rows, _ptr(y), 10, 1, one)
    reps = max(1, int(batch_time / max(one[0] * rows, 1e-9)))
    out = (C.c_double * batches)()
    lp.loop_dot(a, x.size, _ptr(w), rb, rows, _ptr(y), reps, batches, out)
    return _stats(out)


# ---- the short names of the module's own default peer ---------------------------------------
def dequantize(t, data, n):
    return load().dequantize(t, data, n)


def vec_dot(t, w, x):
    return load().vec_dot(t, w, x)


def matvec(t, w, n_rows, k, x, threads=1):
    return load().matvec(t, w, n_rows, k, x, threads)
