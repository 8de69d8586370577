//! Speed of the portable decoders of the ggml block types: GB of binary32 output per second, one thread, for a row
//! of 4,096 values that stays in cache and for 64 MiB of output to memory.
//!
//! ```text
//! cargo run --release -p ninfer-formats --example block_speed [TYPE...]
//! ```

use std::hint::black_box;
use std::time::Instant;

use ninfer_formats::codec::gguf::decode_blocks;
use ninfer_formats::{FormatId, Scheme};

const ROW: usize = 4096;
const MEMORY: usize = 64 << 20;

/// Fewest seconds of one call over `batches` batches of `reps` calls.
fn least(mut call: impl FnMut(), reps: u32, batches: usize) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..batches {
        let start = Instant::now();
        for _ in 0..reps {
            call();
        }
        best = best.min(start.elapsed().as_secs_f64() / f64::from(reps));
    }
    best
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let mut out = vec![0.0f32; MEMORY / 4];
    println!("{:<13} {:>9} {:>9}   GB/s of output", "type", "row", "64 MiB");
    for format in FormatId::all() {
        let Scheme::Gguf(kind) = format.scheme() else { continue };
        let name = format.name().trim_start_matches("gguf_");
        if !wanted.is_empty() && !wanted.iter().any(|w| w == name) {
            continue;
        }
        // Random bytes; clearing bit 6 of every byte keeps all binary16 scales finite and codes varied.
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let row: Vec<u8> = (0..ROW / kind.values() * kind.bytes())
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 32) as u8 & 0xbf
            })
            .collect();
        let whole = row.repeat(out.len() / ROW);
        let cached = least(|| decode_blocks(kind, black_box(&row), black_box(&mut out[..ROW])), 200, 100);
        let memory = least(|| decode_blocks(kind, black_box(&whole), black_box(&mut out)), 1, 10);
        let gb = |bytes: usize, seconds: f64| bytes as f64 / seconds / 1e9;
        println!("{name:<13} {:>9.2} {:>9.2}", gb(4 * ROW, cached), gb(MEMORY, memory));
    }
}
