//! Entries of the decoders, one per format.

use super::{gguf_iq, gguf_k, gguf_legacy};
use crate::arch::decoders::decoders;
use crate::isa::avx2_entry;

decoders! {
    avx2_entry, rows;
    q8_0: gguf_legacy::q8_0, 34 -> 32;
    q4_0: gguf_legacy::q4_0, 18 -> 32;
    q5_0: gguf_legacy::q5_0, 22 -> 32;
    q2_0: gguf_legacy::q2_0, 18 -> 64;
    iq4_nl: gguf_legacy::iq4_nl, 18 -> 32;
    iq4_xs: gguf_legacy::iq4_xs, 136 -> 256;
    q2_k: gguf_k::q2_k, 84 -> 256;
    q3_k: gguf_k::q3_k, 110 -> 256;
    q4_k: gguf_k::q4_k, 144 -> 256;
    q5_k: gguf_k::q5_k, 176 -> 256;
    q6_k: gguf_k::q6_k, 210 -> 256;
    iq2_xxs: gguf_iq::iq2_xxs, 66 -> 256;
    iq2_xs: gguf_iq::iq2_xs, 74 -> 256;
    iq2_s: gguf_iq::iq2_s, 82 -> 256;
    iq3_xxs: gguf_iq::iq3_xxs, 98 -> 256;
    iq3_s: gguf_iq::iq3_s, 110 -> 256;
    iq1_s: gguf_iq::iq1_s, 50 -> 256;
    iq1_m: gguf_iq::iq1_m, 56 -> 256;
}
