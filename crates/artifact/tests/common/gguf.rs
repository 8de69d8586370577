//! Small GGUF sources.
#![allow(dead_code, reason = "each test program uses some of it")]

use std::ops::ControlFlow;
use std::path::Path;

use ninfer_gguf::{GgmlType, GgufPlan, GgufWriter, MetaValue};

use super::Random;

/// A tensor of a source: name, type, dimensions (fastest first), bytes.
pub type Source = (Vec<u8>, GgmlType, Vec<u64>, Vec<u8>);

pub fn source(random: &mut Random, name: &str, ggml_type: GgmlType, dims: &[u64]) -> Source {
    let block = ggml_type.spec().unwrap().block.unwrap();
    let bytes = dims.iter().product::<u64>() / block.values * block.bytes;
    (name.into(), ggml_type, dims.to_vec(), random.bytes(bytes as usize))
}

pub fn write_gguf(path: &Path, metadata: &[(&str, MetaValue)], tensors: &[Source]) {
    let mut plan = GgufPlan::new();
    for (key, value) in metadata {
        plan.metadata(key, value).unwrap();
    }
    for (name, ggml_type, dims, _) in tensors {
        plan.tensor(name, *ggml_type, dims).unwrap();
    }
    let mut writer = GgufWriter::create(path, plan.finish().unwrap()).unwrap();
    for (name, _, _, bytes) in tensors {
        writer.tensor(name, bytes).unwrap();
    }
    writer.publish().unwrap();
}

pub fn on(_: u64, _: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}
