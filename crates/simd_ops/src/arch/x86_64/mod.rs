//! Kernels for x86-64.

pub(crate) mod amx_int8;
pub(crate) mod avx2;
pub(crate) mod avx512;
pub(crate) mod avx512_vnni;
mod sources;

pub(in crate::arch::x86_64) use sources::a8_sources;
