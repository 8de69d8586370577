//! Work for an emulator that counts instructions: random weights with K = 4,096 on one thread, multiplied with columns
//! of activations (`a8`, `a16`) or decoded to binary32 (`decode`, which takes no columns).
//!
//! `instruction_count WORK FORMAT TOKEN ROWS COLUMNS TIMES`; `tools/arm/count.sh` runs it and prints instructions a weight.

use std::hint::black_box;

use ninfer_formats::{FormatId, Scheme, TensorView, encoded_size};
use ninfer_simd_ops::{
    Activations, Dispatch, Isa, Precision, Q8_1, Workspace, decode_f32, matmul, matmul_q8_1, quantize_q8_1,
};

const K: usize = 4096;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [work, format, token, rows, columns, times] = arguments.as_slice() else {
        return Err("usage: instruction_count a8|a16|decode FORMAT TOKEN ROWS COLUMNS TIMES".into());
    };
    let format = FormatId::from_name(format)?;
    let (rows, columns): (usize, usize) = (rows.parse()?, columns.parse()?);
    let shape = [rows as u64, K as u64];
    let bytes = usize::try_from(encoded_size(format, &shape, 1)?)?;
    // No NaN among FP8 codes: real weights have none, and runs with one are decoded another way.
    let mask = if matches!(format.scheme(), Scheme::RowScaled(_)) { 0xfe } else { 0xff };
    let payload: Vec<u8> =
        (0..bytes as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8 & mask).collect();
    let view = TensorView::new(format, &shape, 1, &payload)?;
    let x: Vec<f32> = (0..columns * K).map(|i| (i % 97) as f32 - 48.0).collect();
    let on = Dispatch { isa: Some(Isa::from_name(token)?), threads: Some(1) };
    let mut q = Q8_1::new();
    quantize_q8_1(Activations::F32(&x), K, &mut q, &on)?;
    let mut out = vec![0.0; if work == "decode" { K } else { columns } * rows];
    for _ in 0..times.parse::<usize>()? {
        match work.as_str() {
            "a8" => matmul_q8_1(&view, &q, &mut out, &on, &mut Workspace::default())?,
            "a16" => matmul(&view, Activations::F32(&x), Precision::A16, &mut out, &on)?,
            "decode" => decode_f32(&view, &mut out, &on)?,
            _ => return Err("the work is a8, a16 or decode".into()),
        };
        black_box(&out);
    }
    Ok(())
}
