//! Ternary ggml blocks (`PQ2_0`, `PTQ1_0`) to the planes of `t2_g128_fp16`: scales copied, codes re-packed from the
//! source's offset or base-3 digits to two's complement.

use super::{check_scale, group_fault};
use crate::encoder::RowFault;

/// `PQ2_0`: binary16 scale, then 32 bytes of four offset codes `q + 1`, lowest lane in the lowest bits.
pub(crate) const PQ2_BYTES: usize = 34;
/// `PTQ1_0`: 24 bytes of five base-3 digits, 2 bytes of four, binary16 scale.
pub(crate) const PTQ1_BYTES: usize = 28;

/// Imports a row of `PQ2_0` blocks.
pub(crate) fn pq2(blocks: &[u8], base: &mut [u8], scales: &mut [[u8; 2]]) -> Result<(), RowFault> {
    let groups = blocks.as_chunks::<PQ2_BYTES>().0.iter().zip(base.as_chunks_mut::<32>().0);
    for (g, ((block, base), scale)) in groups.zip(scales).enumerate() {
        let codes = &block[2..];
        if let Some(i) = codes.iter().position(|&b| b & (b >> 1) & 0x55 != 0) {
            let lane = (codes[i] & (codes[i] >> 1) & 0x55).trailing_zeros() as usize / 2;
            return Err(group_fault(
                g,
                format!("the code word 3 at column {} is illegal in PQ2_0", 128 * g + 4 * i + lane),
            ));
        }
        for (o, &b) in base.iter_mut().zip(codes) {
            // Per two-bit field, u - 1 modulo 4: the low bit flips, and flips the high bit when it becomes 1.
            let low = !b & 0x55;
            *o = low | ((b ^ (low << 1)) & 0xaa);
        }
        *scale = [block[0], block[1]];
        check_scale(g, u16::from_le_bytes(*scale), base.iter().all(|&b| b == 0))?;
    }
    Ok(())
}

/// Byte of the block and power of three of each of the 128 values, in order: five digits of bytes 0..16, five of
/// bytes 16..24, four of bytes 24..26 (encoder specification, PTQ1_0 trit order).
const DIGITS: [(u8, u8); 128] = {
    let mut table = [(0u8, 0u8); 128];
    let mut at = 0;
    let mut chunk = 0;
    while chunk < 3 {
        let (first, width, digits) = [(0, 16, 5), (16, 8, 5), (24, 2, 4)][chunk];
        let mut power = 1;
        let mut t = 0;
        while t < digits {
            let mut i = 0;
            while i < width {
                table[at] = (first + i, power);
                at += 1;
                i += 1;
            }
            power *= 3;
            t += 1;
        }
        chunk += 1;
    }
    assert!(at == 128);
    table
};

/// Imports a row of `PTQ1_0` blocks.
pub(crate) fn ptq1(blocks: &[u8], base: &mut [u8], scales: &mut [[u8; 2]]) -> Result<(), RowFault> {
    let groups = blocks.as_chunks::<PTQ1_BYTES>().0.iter().zip(base.as_chunks_mut::<32>().0);
    for (g, ((block, base), scale)) in groups.zip(scales).enumerate() {
        for (o, digits) in base.iter_mut().zip(DIGITS.as_chunks::<4>().0) {
            *o = digits.iter().enumerate().fold(0, |byte, (lane, &(at, power))| {
                let scaled = block[at as usize].wrapping_mul(power);
                let trit = ((u16::from(scaled) * 3) >> 8) as u8; // 0..=2
                byte | (trit.wrapping_sub(1) & 3) << (2 * lane)
            });
        }
        *scale = [block[26], block[27]];
        check_scale(g, u16::from_le_bytes(*scale), base.iter().all(|&b| b == 0))?;
    }
    Ok(())
}
