//! Encoder speed, alone or in turns with another program.
//!
//! Without arguments: a table over instruction sets and one or all threads. With `serve`: each line of standard input,
//! `METHOD FORMAT ISA THREADS ROWS K [importance] [bf16]`, is timed once and answered by its time in seconds, so that a
//! script can take turns with another program in one run.

use std::io::{BufRead, Write};
use std::time::Instant;

use ninfer_formats::encoder::{EncoderId, Params, RowEncoder, RowPlanes, Source};
use ninfer_formats::float::bf16;
use ninfer_formats::{FormatId, encoded_size};
use ninfer_simd_ops::{Dispatch, Isa, encode_rows, isa};

type Failure = Box<dyn std::error::Error>;

/// Bell-shaped values around 0.02, from a fixed seed.
fn values(n: usize) -> Vec<f32> {
    let mut state = 1u64;
    (0..n)
        .map(|_| {
            let mut sum = 0i64;
            for _ in 0..3 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                sum += (state >> 40) as i64 - (1 << 23);
            }
            sum as f32 / (1 << 24) as f32 * 0.04
        })
        .collect()
}

/// One kind of work with its buffers.
struct Job {
    format: FormatId,
    method: EncoderId,
    rows: usize,
    k: usize,
    importance: Option<Vec<f32>>,
    x: Vec<f32>,
    words: Option<Vec<u16>>,
    payload: Vec<u8>,
}

impl Job {
    fn new(
        method: &str,
        format: &str,
        rows: usize,
        k: usize,
        importance: bool,
        bf16_source: bool,
    ) -> Result<Self, Failure> {
        let format = FormatId::from_name(format)?;
        let x = values(rows * k);
        let size = usize::try_from(encoded_size(format, &[rows as u64, k as u64], 1)?)?;
        Ok(Self {
            format,
            method: EncoderId::from_name(method)?,
            rows,
            k,
            importance: importance.then(|| values(k).iter().map(|v| v * v * 2500.0 + 0.01).collect()),
            words: bf16_source.then(|| x.iter().map(|&v| bf16::from_f32(v)).collect()),
            x,
            payload: vec![0; size],
        })
    }

    /// Seconds of one run.
    fn time(&mut self, isa: Isa, threads: usize) -> Result<f64, Failure> {
        let params = Params { importance: self.importance.as_deref(), negative_scales: false };
        let encoder = RowEncoder::new(self.format, self.method, self.k, params)?;
        let source = match &self.words {
            Some(words) => Source::Bf16(words),
            None => Source::F32(&self.x),
        };
        let dispatch = Dispatch { isa: Some(isa), threads: Some(threads) };
        let start = Instant::now();
        let planes = RowPlanes::of_payload(self.format, self.rows, self.k, &mut self.payload)?;
        encode_rows(&encoder, source, 0, planes, &dispatch)?;
        Ok(start.elapsed().as_secs_f64())
    }
}

fn serve() -> Result<(), Failure> {
    let mut jobs: Vec<(String, Job)> = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let [method, format, isa, threads, rows, k, flags @ ..] = &words[..] else {
            return Err(format!("not understood: {line}").into());
        };
        let key = format!("{method} {format} {rows} {k} {flags:?}");
        let at = match jobs.iter().position(|(name, _)| *name == key) {
            Some(at) => at,
            None => {
                let (imp, half) = (flags.contains(&"importance"), flags.contains(&"bf16"));
                jobs.push((key, Job::new(method, format, rows.parse()?, k.parse()?, imp, half)?));
                jobs.len() - 1
            }
        };
        println!("{}", jobs[at].1.time(Isa::from_name(isa)?, threads.parse()?)?);
        std::io::stdout().flush()?;
    }
    Ok(())
}

fn table() -> Result<(), Failure> {
    let cores = std::thread::available_parallelism()?.get();
    println!("million weights a second, least time of many short runs; {cores} cores");
    for (method, format, rows, importance, bf16_source) in [
        ("grouped_absmax", "q4_g64_fp16", 128, false, false),
        ("grouped_absmax", "q5_g64_fp16", 128, false, false),
        ("grouped_absmax", "q6_g64_fp16", 128, false, false),
        ("grouped_absmax", "q8_g32_fp16", 128, false, false),
        ("fp8_row_maxabs", "fp8_e4m3fn_row_bf16", 128, false, true),
        ("fp8_row_maxabs", "fp8_e4m3fn_row_bf16", 128, false, false),
        ("fp8_row_maxabs", "fp8_e4m3fn_row_fp16", 128, false, true),
        ("grouped_search", "q4_g64_fp16", 16, true, false),
        ("grouped_search", "q4_g64_fp16", 16, false, false),
        ("grouped_search", "q5_g64_fp16", 16, true, false),
        ("grouped_search", "q6_g64_fp16", 16, true, false),
        ("grouped_search", "q8_g32_fp16", 16, true, false),
        ("gguf_absmax", "gguf_q8_0", 128, false, false),
        ("gguf_absmax", "gguf_q4_0", 128, false, false),
        ("gguf_absmax", "gguf_q5_0", 128, false, false),
        ("gguf_search", "gguf_q8_0", 16, true, false),
        ("gguf_search", "gguf_q4_0", 16, true, false),
        ("gguf_search", "gguf_q4_k", 16, true, false),
        ("gguf_search", "gguf_q5_k", 16, true, false),
        ("gguf_search", "gguf_q6_k", 16, true, false),
        ("gguf_search", "gguf_iq4_nl", 16, true, false),
        ("gguf_search", "gguf_iq4_xs", 16, true, false),
        ("ternary_fit", "t2_g128_fp16", 16, true, false),
        ("ternary_fit", "t2_g128_fp16", 16, false, false),
    ] {
        let mut job = Job::new(method, format, rows, 4096, importance, bf16_source)?;
        let source = if bf16_source { "bf16" } else { "f32" };
        let weighted = if importance { " importance" } else { "" };
        print!("{method} {format} from {source}{weighted}:");
        for isa in isa::available() {
            if isa == Isa::AvxVnni || isa == Isa::Avx512Vnni {
                continue; // their encoders are those of avx2 and avx512
            }
            for threads in [1, cores] {
                let mut least = f64::INFINITY;
                let begin = Instant::now();
                let mut count = 0;
                while count < 3 || (begin.elapsed().as_secs_f64() < 0.5 && count < 1000) {
                    least = least.min(job.time(isa, threads)?);
                    count += 1;
                }
                print!("  {isa} x{threads} {:.0}", (rows * 4096) as f64 / least / 1e6);
            }
        }
        println!();
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    if std::env::args().nth(1).as_deref() == Some("serve") { serve() } else { table() }
}
