//! Constant value tables of ggml's i-quants: grids, code values and sign masks.
//!
//! The grids are stored as packed words and expanded at compile time to signed bytes in lane order, so that the
//! compiled tables have no byte order. Tests compare each with the checksum of the listing it was generated from.

mod iq1;
mod iq2;
mod iq3;
mod values;

pub use iq1::{IQ1, IQ1_FNV};
pub use iq2::{IQ2_S, IQ2_S_FNV, IQ2_XS, IQ2_XS_FNV, IQ2_XXS, IQ2_XXS_FNV};
pub use iq3::{IQ3_S, IQ3_S_FNV, IQ3_XXS, IQ3_XXS_FNV};
pub use values::{IQ4_VALUES, IQ4_VALUES_FNV};

/// Lane masks of a sign byte: entry `s` has -1 in lane `j` where bit `j` of `s` is set, else 0.
///
/// `(g ^ m) - m` negates the lanes of `g` that `m` selects.
pub static SIGN_MASKS: [[i8; 8]; 256] = sign_masks();

/// Lane masks of a seven-bit sign index: [`SIGN_MASKS`] of the index with bit 7 set to its parity, so that the
/// number of negative lanes is even.
pub static PARITY_MASKS: [[i8; 8]; 128] = parity_masks();

/// Eight times [`IQ1`]: the products' codes of `iq1_s` and `iq1_m` are these values plus or minus one.
pub static IQ1_TIMES_8: [[i8; 8]; 2048] = times_8(&IQ1);

/// Values of the low and of the high nibble of a byte: entry `q` is `[IQ4_VALUES[q & 15], IQ4_VALUES[q >> 4]]`.
pub static IQ4_PAIRS: [[i8; 2]; 256] = iq4_pairs();

/// The four two-bit fields of a byte, lowest bits first: entry `q` is `[q & 3, q >> 2 & 3, q >> 4 & 3, q >> 6]`.
pub static TWO_BIT_FIELDS: [[i8; 4]; 256] = two_bit_fields();

/// Expands packed grid words: lane `j` of an entry is `levels[field j]`, fields of `bits` bits, lane 0 lowest.
const fn expand<const L: usize, const N: usize>(packed: &[u16; N], bits: u32, levels: &[i8]) -> [[i8; L]; N] {
    assert!(levels.len() == 1 << bits);
    let mut out = [[0; L]; N];
    let mut i = 0;
    while i < N {
        let mut lane = 0;
        while lane < L {
            out[i][lane] = levels[(packed[i] >> (bits * lane as u32)) as usize & (levels.len() - 1)];
            lane += 1;
        }
        i += 1;
    }
    out
}

const fn mask_lanes(signs: usize) -> [i8; 8] {
    let mut lanes = [0; 8];
    let mut j = 0;
    while j < 8 {
        lanes[j] = -((signs >> j & 1) as i8);
        j += 1;
    }
    lanes
}

const fn sign_masks() -> [[i8; 8]; 256] {
    let mut out = [[0; 8]; 256];
    let mut s = 0;
    while s < 256 {
        out[s] = mask_lanes(s);
        s += 1;
    }
    out
}

const fn parity_masks() -> [[i8; 8]; 128] {
    let mut out = [[0; 8]; 128];
    let mut s = 0;
    while s < 128 {
        out[s] = mask_lanes(s | (s.count_ones() as usize & 1) << 7);
        s += 1;
    }
    out
}

const fn times_8(grid: &[[i8; 8]; 2048]) -> [[i8; 8]; 2048] {
    let mut out = *grid;
    let mut i = 0;
    while i < 2048 {
        let mut j = 0;
        while j < 8 {
            out[i][j] *= 8;
            j += 1;
        }
        i += 1;
    }
    out
}

const fn iq4_pairs() -> [[i8; 2]; 256] {
    let mut out = [[0; 2]; 256];
    let mut q = 0;
    while q < 256 {
        out[q] = [IQ4_VALUES[q & 15], IQ4_VALUES[q >> 4]];
        q += 1;
    }
    out
}

const fn two_bit_fields() -> [[i8; 4]; 256] {
    let mut out = [[0; 4]; 256];
    let mut q = 0;
    while q < 256 {
        out[q] = [q as i8 & 3, (q >> 2) as i8 & 3, (q >> 4) as i8 & 3, (q >> 6) as i8 & 3];
        q += 1;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fnv(bytes: impl Iterator<Item = i8>) -> u64 {
        bytes.fold(0xcbf2_9ce4_8422_2325, |h: u64, b| (h ^ u64::from(b as u8)).wrapping_mul(0x0100_0000_01b3))
    }

    #[test]
    fn grids_have_the_checksums_of_their_listing() {
        assert_eq!(fnv(IQ1.iter().flatten().copied()), IQ1_FNV);
        assert_eq!(fnv(IQ2_XXS.iter().flatten().copied()), IQ2_XXS_FNV);
        assert_eq!(fnv(IQ2_XS.iter().flatten().copied()), IQ2_XS_FNV);
        assert_eq!(fnv(IQ2_S.iter().flatten().copied()), IQ2_S_FNV);
        assert_eq!(fnv(IQ3_XXS.iter().flatten().copied()), IQ3_XXS_FNV);
        assert_eq!(fnv(IQ3_S.iter().flatten().copied()), IQ3_S_FNV);
        assert_eq!(fnv(IQ4_VALUES.iter().copied()), IQ4_VALUES_FNV);
    }

    #[test]
    fn no_grid_has_an_entry_twice() {
        fn distinct<const L: usize>(grid: &[[i8; L]]) -> bool {
            grid.iter().collect::<std::collections::BTreeSet<_>>().len() == grid.len()
        }
        assert!(distinct(&IQ1) && distinct(&IQ2_XXS) && distinct(&IQ2_XS) && distinct(&IQ2_S));
        assert!(distinct(&IQ3_XXS) && distinct(&IQ3_S));
    }

    #[test]
    fn derived_tables_follow_from_their_rule() {
        for (s, lanes) in SIGN_MASKS.iter().enumerate() {
            for (j, &mask) in lanes.iter().enumerate() {
                assert_eq!(mask, if s >> j & 1 == 1 { -1 } else { 0 });
            }
        }
        for q in 0..256 {
            assert_eq!(IQ4_PAIRS[q], [IQ4_VALUES[q % 16], IQ4_VALUES[q / 16]]);
            let fields: usize = (0..4).map(|j| (TWO_BIT_FIELDS[q][j] as usize) << (2 * j)).sum();
            assert!(fields == q && TWO_BIT_FIELDS[q].iter().all(|f| (0..4).contains(f)));
        }
        for (s, lanes) in PARITY_MASKS.iter().enumerate() {
            assert_eq!(lanes[..7], SIGN_MASKS[s][..7]);
            assert_eq!(lanes.iter().filter(|&&m| m != 0).count() % 2, 0);
        }
        for (g, t) in IQ1.iter().zip(&IQ1_TIMES_8) {
            assert!(g.iter().zip(t).all(|(&g, &t)| t == 8 * g));
        }
    }
}
