//! Kernels of the token `avx512`.

pub(crate) mod encode;
mod search;
