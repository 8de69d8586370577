//! Converts a GGUF model, verifies the artifact and compares it with its source:
//! `cargo run --release --example convert -- MODEL.gguf OUT.ninfer`

use std::ops::ControlFlow;
use std::time::Instant;

use ninfer_artifact::container::ValueOptions;
use ninfer_artifact::{Artifact, ConvertOptions, compare_gguf, plan_gguf};
use ninfer_gguf::GgufSet;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, model, out] = arguments.as_slice() else {
        return Err("usage: convert MODEL.gguf OUT.ninfer".into());
    };

    let start = Instant::now();
    let gguf = GgufSet::open(model)?;
    let conversion = plan_gguf(&gguf, &ConvertOptions::default())?;
    println!(
        "{} tensors, {} bytes; planned in {:?}",
        conversion.tensors().len(),
        conversion.payload_bytes(),
        start.elapsed()
    );
    let start = Instant::now();
    let written = conversion.run(out, |_, _| ControlFlow::Continue(()))?;
    println!("written {} bytes in {:?}", written.bytes, start.elapsed());

    let start = Instant::now();
    let artifact = Artifact::open(out)?;
    let structure = artifact.verify_structure();
    println!("structure ok: {}, in {:?}", structure.is_ok(), start.elapsed());
    let start = Instant::now();
    let values = artifact.verify_values(&ValueOptions::default())?;
    println!("values ok: {}, {} bytes in {:?}", values.is_ok(), values.bytes, start.elapsed());
    let start = Instant::now();
    let compared = compare_gguf(&artifact, &gguf, |_, _| ControlFlow::Continue(()))?;
    println!(
        "{} tensors equal, {} differ, {} bytes in {:?}",
        compared.equal,
        compared.differences.len(),
        compared.bytes,
        start.elapsed()
    );
    for difference in &compared.differences {
        println!("  {difference}");
    }
    Ok(())
}
