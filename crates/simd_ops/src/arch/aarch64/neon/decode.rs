//! Entries of the decoders, one per format.

use super::{gguf_legacy, super_blocks};
use crate::arch::decoders::decoders;
use crate::isa::neon_entry;

decoders! {
    neon_entry, rows;
    q8_0: gguf_legacy::q8_0, 34 -> 32;
    q4_0: gguf_legacy::q4_0, 18 -> 32;
    q5_0: gguf_legacy::q5_0, 22 -> 32;
    q2_0: gguf_legacy::q2_0, 18 -> 64;
    iq4_nl: gguf_legacy::iq4_nl, 18 -> 32;
    iq4_xs: super_blocks::iq4_xs, 136 -> 256;
    q2_k: super_blocks::q2_k, 84 -> 256;
    q3_k: super_blocks::q3_k, 110 -> 256;
    q4_k: super_blocks::q4_k, 144 -> 256;
    q5_k: super_blocks::q5_k, 176 -> 256;
    q6_k: super_blocks::q6_k, 210 -> 256;
    iq2_xxs: super_blocks::iq2_xxs, 66 -> 256;
    iq2_xs: super_blocks::iq2_xs, 74 -> 256;
    iq2_s: super_blocks::iq2_s, 82 -> 256;
    iq3_xxs: super_blocks::iq3_xxs, 98 -> 256;
    iq3_s: super_blocks::iq3_s, 110 -> 256;
    iq1_s: super_blocks::iq1_s, 50 -> 256;
    iq1_m: super_blocks::iq1_m, 56 -> 256;
}
