//! Checking a whole artifact: its structure, and the words of its tensors.

mod pieces;
mod scales;
mod values;

use std::path::PathBuf;

pub use values::{NonFinite, Progress, TensorValues, ValueOptions, ValueReport};

use super::reader::Artifact;
use crate::error::ArtifactError;

/// Result of [`Artifact::verify_structure`].
#[derive(Debug)]
pub struct StructureReport {
    /// The files with their lengths in bytes; the entry comes first. A part that could not be opened has length 0.
    pub files: Vec<(PathBuf, u64)>,
    /// Number of tensor objects.
    pub tensors: usize,
    /// Number of resource objects.
    pub resources: usize,
    /// Length of the logical payload in bytes.
    pub payload_bytes: u64,
    /// Runs of payload bytes that belong to no object and that alignment does not explain. They mean nothing; a
    /// reader ignores them.
    pub gaps: Vec<Gap>,
    /// Payload bytes that belong to no object, those for alignment included.
    pub unused_bytes: u64,
    /// What is wrong: a part that is missing or not this artifact's, an object of an unknown format or layout, or of
    /// another size than its layout's. Each error names its object or file.
    pub problems: Vec<ArtifactError>,
}

/// A run of the logical payload that belongs to no object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// First byte, in the logical payload.
    pub begin: u64,
    /// One past the last byte.
    pub end: u64,
}

impl StructureReport {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.problems.is_empty()
    }
}

impl Artifact {
    /// Checks everything that can be checked without reading the payload: opening the artifact has checked the
    /// directory; this opens every part, resolves every object's format and layout and compares its size.
    #[must_use]
    pub fn verify_structure(&self) -> StructureReport {
        let directory = self.directory();
        let mut problems = Vec::new();
        let mut files = Vec::new();
        for index in 0..directory.files().len() {
            let path = self.file_path(index).unwrap_or_default();
            match self.file(index) {
                Ok(map) => files.push((path, map.len() as u64)),
                Err(e) => {
                    files.push((path, 0));
                    problems.push(e);
                }
            }
        }
        let mut gaps = Vec::new();
        let (mut tensors, mut unused_bytes, mut end) = (0, 0u64, 0u64);
        let mut gap = |begin: u64, end: u64, alignment: u64| {
            // Objects are in order and disjoint, so begin <= end.
            unused_bytes = unused_bytes.saturating_add(end - begin);
            if end - begin >= alignment {
                gaps.push(Gap { begin, end });
            }
        };
        for object in directory.objects() {
            tensors += usize::from(object.as_tensor().is_some());
            let alignment = if object.as_tensor().is_some() { super::TENSOR_ALIGNMENT } else { 1 };
            gap(end, object.offset, alignment);
            end = object.end();
            if let Err(e) = object.check() {
                problems.push(e.with_path(self.path()));
            }
        }
        gap(end, directory.payload_bytes(), 1);
        StructureReport {
            files,
            tensors,
            resources: directory.objects().len() - tensors,
            payload_bytes: directory.payload_bytes(),
            gaps,
            unused_bytes,
            problems,
        }
    }
}
