//! Kernels for x86-64.

pub(crate) mod amx_int8;
pub(crate) mod avx2;
pub(crate) mod avx512;
pub(crate) mod avx512_vnni;
mod lanes;

pub(in crate::arch::x86_64) use crate::panel::a8_sources;

/// Hints that bytes will be wanted: fetches their lines into the caches.
#[inline(always)]
fn fetch_bytes(bytes: &[u8]) {
    for line in bytes.chunks(64) {
        // SAFETY: SSE is part of the x86-64 baseline; a hint reads nothing.
        unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.as_ptr().cast()) }
    }
}
