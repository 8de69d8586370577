//! Finding words that are not finite in formats whose every bit pattern is legal.

use ninfer_formats::codec::gguf::fields;
use ninfer_formats::codec::gguf::iq1_m_scale;
use ninfer_formats::{BlockKind, DirectKind};

/// Offsets of the binary16 scale words in a block (format specification, ggml block types). `iq1_m` has none: its
/// scale is spread over four words.
fn scale_offsets(kind: BlockKind) -> &'static [usize] {
    match kind {
        BlockKind::Q8_0 => &[fields::q8_0::D],
        BlockKind::Q4_0 => &[fields::q4_0::D],
        BlockKind::Q5_0 => &[fields::q5_0::D],
        BlockKind::Q2_0 => &[fields::q2_0::D],
        BlockKind::Q2K => &[fields::q2_k::D, fields::q2_k::DMIN],
        BlockKind::Q3K => &[fields::q3_k::D],
        BlockKind::Q4K => &[fields::q4_k::D, fields::q4_k::DMIN],
        BlockKind::Q5K => &[fields::q5_k::D, fields::q5_k::DMIN],
        BlockKind::Q6K => &[fields::q6_k::D],
        BlockKind::Iq2Xxs => &[fields::iq2_xxs::D],
        BlockKind::Iq2Xs => &[fields::iq2_xs::D],
        BlockKind::Iq3Xxs => &[fields::iq3_xxs::D],
        BlockKind::Iq1S => &[fields::iq1_s::D],
        BlockKind::Iq4Nl => &[fields::iq4_nl::D],
        BlockKind::Iq3S => &[fields::iq3_s::D],
        BlockKind::Iq2S => &[fields::iq2_s::D],
        BlockKind::Iq4Xs => &[fields::iq4_xs::D],
        BlockKind::Iq1M => &[],
    }
}

fn is_finite(word: u16) -> bool {
    word & 0x7c00 != 0x7c00
}

/// Number of blocks with an infinite or NaN scale, and the index of the first. `blocks` is a whole number of blocks.
pub(super) fn non_finite_blocks(kind: BlockKind, blocks: &[u8]) -> (u64, Option<u64>) {
    let offsets = scale_offsets(kind);
    let broken = |block: &[u8]| {
        if kind == BlockKind::Iq1M {
            return block[fields::iq1_m::S..].first_chunk::<8>().is_some_and(|s| !is_finite(iq1_m_scale(s)));
        }
        offsets.iter().any(|&at| !is_finite(u16::from_le_bytes([block[at], block[at + 1]])))
    };
    count(blocks.chunks_exact(kind.bytes()).map(broken))
}

/// Number of infinite or NaN words, and the index of the first; none for integers. `words` is a whole number of
/// words.
pub(super) fn non_finite_words(kind: DirectKind, words: &[u8]) -> (u64, Option<u64>) {
    match kind {
        DirectKind::Int32 => (0, None),
        DirectKind::Bf16 => {
            count(words.as_chunks::<2>().0.iter().map(|w| u16::from_le_bytes(*w) & 0x7f80 == 0x7f80))
        }
        DirectKind::Fp32 => count(
            words.as_chunks::<4>().0.iter().map(|w| u32::from_le_bytes(*w) & 0x7f80_0000 == 0x7f80_0000),
        ),
    }
}

fn count(broken: impl Iterator<Item = bool> + Clone) -> (u64, Option<u64>) {
    // Almost always there are none: count without branching, look for the first only then.
    let found = broken.clone().map(u64::from).sum();
    if found == 0 {
        return (0, None);
    }
    (found, broken.clone().position(|b| b).map(|i| i as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ninfer_formats::{FormatId, Scheme, TensorView};

    /// Every single-word corruption of a quiet block: the scan agrees with what decoding says.
    #[test]
    fn agrees_with_decoding_for_every_kind() {
        for format in FormatId::all() {
            let Scheme::Gguf(kind) = format.scheme() else { continue };
            let (values, bytes) = (kind.values(), kind.bytes());
            let mut seen = 0;
            for at in (0..bytes - 1).step_by(2) {
                for word in [0x7e00u16, 0x7c00, 0xfc00, 0x0000, 0x3c00, 0xffff] {
                    // Ones keep codes and sub-scales nonzero, so that a bad scale reaches the values.
                    let mut block = vec![0x11u8; bytes];
                    block[at..at + 2].copy_from_slice(&word.to_le_bytes());
                    let mut both = vec![0x11u8; bytes];
                    both.extend_from_slice(&block);
                    let view = TensorView::new(format, &[2, values as u64], 1, &both).unwrap();
                    let mut out = vec![0.0f32; 2 * values];
                    view.decode_f32(&mut out).unwrap();
                    assert!(
                        out[..values].iter().all(|x| x.is_finite()),
                        "{format}: the quiet block is finite"
                    );
                    let wanted = out[values..].iter().any(|x| !x.is_finite());
                    let found = non_finite_blocks(kind, &both);
                    assert_eq!(
                        found,
                        if wanted { (1, Some(1)) } else { (0, None) },
                        "{format} byte {at} {word:04x}"
                    );
                    seen += usize::from(wanted);
                }
            }
            assert!(seen >= 1 || kind == BlockKind::Iq1M, "{format}: no corruption reached the values");
        }
    }

    #[test]
    fn the_spread_scale_of_iq1_m_is_found() {
        let mut block = vec![0x11u8; BlockKind::Iq1M.bytes()];
        // 0x7c00 in the top nibbles of the four words, lowest first.
        for (i, nibble) in [0x0u8, 0x0, 0xc, 0x7].into_iter().enumerate() {
            let at = fields::iq1_m::S + 2 * i + 1;
            block[at] = (block[at] & 0x0f) | nibble << 4;
        }
        assert_eq!(non_finite_blocks(BlockKind::Iq1M, &block), (1, Some(0)));
        let mut out = [0.0f32; 256];
        TensorView::new(FormatId::GgufIq1M, &[1, 256], 1, &block).unwrap().decode_f32(&mut out).unwrap();
        assert!(out.iter().any(|x| !x.is_finite()));
    }

    #[test]
    fn words() {
        let bytes: Vec<u8> =
            [1.0f32, f32::NAN, f32::NEG_INFINITY, 0.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(non_finite_words(DirectKind::Fp32, &bytes), (2, Some(1)));
        assert_eq!(non_finite_words(DirectKind::Int32, &bytes), (0, None));
        assert_eq!(non_finite_words(DirectKind::Bf16, &[0x80, 0x3f, 0x80, 0xff, 0x7f, 0x7f]), (1, Some(1)));
    }
}
