//! Kernels for x86-64.

pub(crate) mod amx_int8;
pub(crate) mod avx2;
pub(crate) mod avx512;
pub(crate) mod avx512_vbmi;
pub(crate) mod avx512_vnni;
pub(crate) mod avx_vnni;
mod lanes;

pub(in crate::arch::x86_64) use crate::panel::a8_sources;

/// How many values ahead of those being written the lines of an output are fetched: 512 bytes. An output that lies in the
/// second-level cache is written at the rate of stores that way; without, each store waits for its line while decoding
/// waits for the store. Other distances, up to 2 KiB, are as good.
const AHEAD: usize = 128;

/// Hints that bytes will be wanted: fetches their lines into the caches.
#[inline(always)]
fn fetch_bytes(bytes: &[u8]) {
    for line in bytes.chunks(64) {
        // SAFETY: SSE is part of the x86-64 baseline; a hint reads nothing.
        unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.as_ptr().cast()) }
    }
}

/// See [`crate::arch::stream`].
pub(in crate::arch) fn stream(values: &[f32], to: &mut [f32]) {
    use std::arch::x86_64::{_mm_loadu_ps, _mm_stream_ps};
    // Whole lines are written at once if they begin at their addresses.
    let head = to.as_ptr().align_offset(64).min(to.len());
    let ((first, values), (to_first, to)) = (values.split_at(head), to.split_at_mut(head));
    to_first.copy_from_slice(first);
    let ((lines, tail), (to_lines, to_tail)) = (values.as_chunks::<16>(), to.as_chunks_mut::<16>());
    for (line, to) in lines.iter().zip(to_lines) {
        for (four, to) in line.as_chunks::<4>().0.iter().zip(to.as_chunks_mut::<4>().0) {
            // SAFETY: SSE is part of the x86-64 baseline; reads and writes the four values, and the lines of `to` begin
            // at multiples of 64 bytes.
            unsafe { _mm_stream_ps(to.as_mut_ptr(), _mm_loadu_ps(four.as_ptr())) }
        }
    }
    to_tail.copy_from_slice(tail);
}
