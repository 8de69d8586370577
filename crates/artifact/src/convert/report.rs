//! What a conversion did, tensor by tensor.

use std::collections::HashMap;
use std::sync::Arc;

use ninfer_simd_ops::Isa;

use super::planned::{RecipePlan, hex};
use super::session::Done;
use super::statistics::TensorStatistics;
use crate::container::{Json, Written};

/// A finished conversion.
#[derive(Debug)]
pub struct Converted {
    /// What was published.
    pub written: Written,
    pub(super) plan: Arc<RecipePlan>,
    pub(super) done: HashMap<usize, Done>,
    pub(super) isa: Isa,
    pub(super) threads: usize,
    pub(super) peak_memory: u64,
    pub(super) resumed: usize,
}

impl Converted {
    /// SHA-256 of a tensor's payload, as hexadecimal digits.
    #[must_use]
    pub fn sha256(&self, tensor: usize) -> Option<&str> {
        self.done.get(&tensor).map(|d| d.sha256.as_str())
    }

    /// Error statistics of a tensor; `None` for imported words and integers, which have no error.
    #[must_use]
    pub fn statistics(&self, tensor: usize) -> Option<TensorStatistics> {
        self.done.get(&tensor).and_then(|d| d.statistics)
    }

    /// Most bytes of buffers that were held at once.
    #[must_use]
    pub fn peak_memory(&self) -> u64 {
        self.peak_memory
    }

    /// The report: source, importance matrix, and of every tensor where it comes from, how it was made, its size,
    /// digest and errors. Member `run` (instruction set, threads, memory, artifact id) is all that differs between
    /// two runs of one plan.
    #[must_use]
    pub fn report(&self) -> Json {
        let tensors = self.plan.tensors.iter().enumerate().map(|(i, t)| {
            let mut members = vec![
                ("name", Json::from(t.name.as_str())),
                ("format", t.format.name().into()),
                ("shape", Json::array(t.shape.iter().copied())),
                ("bytes", t.bytes.into()),
                ("bits_per_weight", Json::Float(t.bits_per_weight())),
                ("rule", t.rule.map_or(Json::Null, |r| (r as u64).into())),
            ];
            members.extend(self.plan.method_record(t));
            if let Some(sha256) = self.sha256(i) {
                members.push(("sha256", sha256.into()));
            }
            if let Some(statistics) = self.statistics(i) {
                let mut error = statistics.to_json();
                if let Json::Object(members) = &mut error {
                    members.push(("snr_db".into(), Json::Float(statistics.snr_db())));
                }
                members.push(("error", error));
            }
            Json::object(members)
        });
        let tool =
            [("name", Json::from(env!("CARGO_PKG_NAME"))), ("version", env!("CARGO_PKG_VERSION").into())];
        let files =
            self.written.files.iter().map(|f| {
                Json::from(f.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default())
            });
        let run = [
            ("isa", Json::from(self.isa.to_string())),
            ("threads", (self.threads as u64).into()),
            ("buffer_bytes", self.peak_memory.into()),
            ("resumed_tensors", (self.resumed as u64).into()),
            ("artifact_id", hex(&self.written.artifact_id).into()),
        ];
        let mut members = vec![
            ("tool", Json::object(tool)),
            ("source", self.plan.source.describe()),
            ("files", Json::Array(files.collect())),
            ("bytes", self.written.bytes.into()),
        ];
        if let Some(importance) = &self.plan.importance {
            members.push(("importance", importance.to_json()));
        }
        members.push(("tensors", Json::Array(tensors.collect())));
        members.push(("skipped", Json::array(self.plan.skipped.iter().map(ToString::to_string))));
        members.push(("dropped", Json::array(self.plan.dropped.iter().map(|(name, _)| name.as_str()))));
        members.push(("warnings", Json::array(self.plan.warnings.iter().map(String::as_str))));
        members.push(("bits_per_weight", Json::Float(self.plan.bits_per_weight())));
        members.push(("run", Json::object(run)));
        Json::object(members)
    }
}
