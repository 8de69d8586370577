//! Small safetensors files.
#![allow(dead_code, reason = "each test program uses some of it")]

use std::path::Path;

use ninfer_artifact::source::{OpenOptions, SafetensorsSource};
use ninfer_artifact::{ArtifactError, ArtifactErrorKind};

/// Name, type, shape, bytes.
pub type Tensor<'a> = (&'a str, &'a str, &'a [u64], Vec<u8>);

/// A file of this header and these data.
pub fn raw(header: &str, data: &[u8]) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    file
}

/// A file of these tensors, in this order.
pub fn file(tensors: &[Tensor<'_>]) -> Vec<u8> {
    let mut data = Vec::new();
    let mut entries = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        let begin = data.len();
        data.extend(bytes);
        let end = data.len();
        entries.push(format!(
            r#"{name:?}:{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#
        ));
    }
    raw(&format!("{{{}}}", entries.join(",")), &data)
}

pub fn write(path: &Path, tensors: &[Tensor<'_>]) {
    std::fs::write(path, file(tensors)).unwrap();
}

pub fn open(path: &Path) -> SafetensorsSource {
    SafetensorsSource::open(path, &OpenOptions::default()).unwrap()
}

/// The fault of an error about safetensors.
pub fn fault(e: &ArtifactError) -> &ninfer_artifact::source::SafetensorsFault {
    match e.kind() {
        ArtifactErrorKind::Safetensors(fault) => fault,
        _ => panic!("another kind of error: {e}"),
    }
}

pub fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

pub fn words(values: &[u16]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}
