//! Entries of the decoders, one per format.

use ninfer_formats::codec::gguf::{
    Block, Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs, Q2K, Q3K, Q4K, Q5K, Q6K,
};

use super::gguf_legacy;
use crate::arch::decoders::decoders;
use crate::isa::neon_entry;

decoders! {
    neon_entry, block;
    q8_0: gguf_legacy::q8_0, 34 -> 32;
    q4_0: gguf_legacy::q4_0, 18 -> 32;
    q5_0: gguf_legacy::q5_0, 22 -> 32;
    q2_0: gguf_legacy::q2_0, 18 -> 64;
    iq4_nl: gguf_legacy::iq4_nl, 18 -> 32;
    iq4_xs: gguf_legacy::iq4_xs, 136 -> 256;
    // The portable source, compiled for this token: the compiler finds what there is to gain.
    q2_k: Q2K::decode, 84 -> 256;
    q3_k: Q3K::decode, 110 -> 256;
    q4_k: Q4K::decode, 144 -> 256;
    q5_k: Q5K::decode, 176 -> 256;
    q6_k: Q6K::decode, 210 -> 256;
    iq2_xxs: Iq2Xxs::decode, 66 -> 256;
    iq2_xs: Iq2Xs::decode, 74 -> 256;
    iq2_s: Iq2S::decode, 82 -> 256;
    iq3_xxs: Iq3Xxs::decode, 98 -> 256;
    iq3_s: Iq3S::decode, 110 -> 256;
    iq1_s: Iq1S::decode, 50 -> 256;
    iq1_m: Iq1M::decode, 56 -> 256;
}
