//! A8 products of one column or a few: the entries.

use crate::arch::x86_64::avx2::entries::with_lanes;
use crate::arch::x86_64::avx2::turned::Avx2;
use crate::isa::avx_vnni_entry;

/// Unpacking once is worth while from two columns on, but for the simplest codes.
const fn by_one<S: Codes>() -> usize {
    match S::LAY {
        lanes::Lay::Turned => 1,
        _ if S::SPLIT || S::MINIMUM || S::RANGE > 15 => 1,
        _ => 2,
    }
}

with_lanes! { avx_vnni_entry, Avx2::<true>(()) }
