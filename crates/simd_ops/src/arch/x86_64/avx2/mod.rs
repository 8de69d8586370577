//! Kernels of the token `avx2`.

pub(crate) mod encode;
mod search;
