//! Reads every tensor of a model once, a few MiB of values at a time on one thread, and prints what that took by
//! type: `cargo run --release --example source_speed -- MODEL`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ninfer_artifact::source::{self, OpenOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: source_speed MODEL")?;
    let start = Instant::now();
    let model = source::open(path, &OpenOptions::default())?;
    println!("opened {} tensors in {:?}", model.tensors().len(), start.elapsed());
    let mut types: BTreeMap<String, (u64, Duration)> = BTreeMap::new();
    let mut values = vec![0.0; 1 << 20];
    for pass in ["first", "second"] {
        types.clear();
        for (i, t) in model.tensors().iter().enumerate() {
            if !t.content.has_values() || t.k() == 0 || t.k() > values.len() as u64 {
                continue;
            }
            let step = values.len() as u64 / t.k();
            let start = Instant::now();
            let mut row = 0;
            while row < t.rows() {
                let end = t.rows().min(row + step);
                model.read_values(i, row..end, &mut values[..((end - row) * t.k()) as usize])?;
                row = end;
            }
            let sum = types.entry(format!("{:?}", t.content)).or_default();
            *sum = (sum.0 + t.elements(), sum.1 + start.elapsed());
        }
        for (name, (elements, time)) in &types {
            println!("{pass} pass, {name}: {:.2} G values/s", *elements as f64 / time.as_secs_f64() / 1e9);
        }
    }
    Ok(())
}
