//! Importance matrices: how much each input channel of a tensor mattered on calibration data.
//!
//! Two file forms exist, both from llama.cpp, and are told apart by content, never by name:
//! * GGUF: per tensor `NAME.in_sum2` (F32, dimensions `[K, experts]`) and `NAME.counts` (F32, one per expert);
//! * legacy: i32 entry count, then per entry i32 name length, name, i32 call count, i32 value count, f32 sums; then
//!   optionally an i32 chunk count and the data set's name (i32 length, bytes). All little-endian.

use std::collections::HashMap;
use std::path::Path;

use ninfer_mapped::MappedFile;

use crate::cursor::Cursor;
use crate::error::{GgufError, GgufErrorKind as K};
use crate::header::Header;
use crate::limits::{MAX_NAME_BYTES, MAX_TENSORS};
use crate::meta::{MetaArray, MetaValue};
use crate::plan::GgufPlan;
use crate::tensor::TensorInfo;
use crate::text::GgufStr;
use crate::types::GgmlType;
use crate::value::Value;
use crate::writer::GgufWriter;

const SUMS: &[u8] = b".in_sum2";
const COUNTS: &[u8] = b".counts";
const DATASETS: &str = "imatrix.datasets";
const CHUNK_COUNT: &str = "imatrix.chunk_count";
const CHUNK_SIZE: &str = "imatrix.chunk_size";

/// The form a file was read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImatrixForm {
    /// Tensors `NAME.in_sum2` and `NAME.counts` in a GGUF file.
    Gguf,
    /// The older binary form, usually named `.dat`.
    Legacy,
}

/// Importance data of one tensor: per expert (one for a dense tensor) a count, and per expert and channel the sum of
/// squared activations.
#[derive(Clone, Debug, PartialEq)]
pub struct Importance {
    name: Vec<u8>,
    sums: Vec<f32>,
    // Wide enough for every count of both forms.
    counts: Vec<f64>,
}

impl Importance {
    /// Collects the data of one tensor. `sums` holds the experts one after the other, `counts` one value per expert.
    ///
    /// # Errors
    /// [`GgufErrorKind::Imatrix`](K::Imatrix) if there is no count, the sums do not divide evenly among the experts,
    /// there are no channels, or a sum or count is negative or not finite.
    pub fn new(name: impl AsRef<[u8]>, sums: Vec<f32>, counts: Vec<f64>) -> Result<Self, GgufError> {
        let name = name.as_ref();
        let fail = |rule: String| Err(GgufError::new(K::Imatrix { rule }).in_tensor(name));
        if name.is_empty() {
            return fail("the name of the tensor is empty".into());
        }
        if counts.is_empty() || sums.is_empty() || !sums.len().is_multiple_of(counts.len()) {
            return fail(format!("{} sums do not belong to {} counts", sums.len(), counts.len()));
        }
        let channels = sums.len() / counts.len();
        let legal = |x: f64| x.is_finite() && x >= 0.0;
        if let Some(i) = sums.iter().position(|&x| !legal(x.into())) {
            let (expert, channel) = (i / channels, i % channels);
            let x = sums[i];
            return fail(format!(
                "the sum of expert {expert}, channel {channel} is {x}, not finite and >= 0"
            ));
        }
        if let Some(i) = counts.iter().position(|&x| !legal(x)) {
            return fail(format!("the count of expert {i} is {}, not finite and >= 0", counts[i]));
        }
        Ok(Self { name: name.to_vec(), sums, counts })
    }

    /// Name of the weight tensor.
    #[must_use]
    pub fn name_bytes(&self) -> &[u8] {
        &self.name
    }

    /// Number of experts; 1 for a dense tensor. The legacy form does not record experts: its vectors hold them one
    /// after the other and count as one; see [`Importance::split`].
    #[must_use]
    pub fn experts(&self) -> usize {
        self.counts.len()
    }

    /// Number of input channels, K.
    #[must_use]
    pub fn channels(&self) -> usize {
        self.sums.len() / self.counts.len()
    }

    /// Sums as stored, `[experts, K]`.
    #[must_use]
    pub fn sums(&self) -> &[f32] {
        &self.sums
    }

    /// Counts as stored, `[experts]`.
    #[must_use]
    pub fn counts(&self) -> &[f64] {
        &self.counts
    }

    /// Experts that saw no calibration data. A dense tensor without data is listed as expert 0.
    pub fn unreached(&self) -> impl Iterator<Item = usize> {
        self.counts.iter().enumerate().filter(|&(_, &n)| n == 0.0).map(|(i, _)| i)
    }

    /// Normalised importance, `[experts, K]`: sum / max(count, 1), the binary64 quotient rounded once to binary32.
    /// Among several experts one without data weighs all channels alike: ones. Source: format specification,
    /// importance matrices.
    #[must_use]
    pub fn values(&self) -> Vec<f32> {
        (0..self.experts()).flat_map(|e| self.expert_values(e)).collect()
    }

    /// Row `expert` of [`Importance::values`]: K values, none for an expert that does not exist.
    #[must_use]
    pub fn expert_values(&self, expert: usize) -> Vec<f32> {
        let k = self.channels();
        let (Some(row), Some(&count)) = (self.sums.chunks_exact(k).nth(expert), self.counts.get(expert))
        else {
            return Vec::new();
        };
        if self.experts() > 1 && count == 0.0 {
            return vec![1.0; k];
        }
        let n = count.max(1.0);
        row.iter().map(|&s| (f64::from(s) / n) as f32).collect()
    }

    /// The same data for a tensor of `experts` experts with `channels` channels. A legacy vector, which does not
    /// record experts, is divided evenly, each part with the one count; an expert whose sums are all zero was never
    /// reached and gets the count 0.
    ///
    /// # Errors
    /// [`GgufErrorKind::Imatrix`](K::Imatrix) if the sizes do not fit.
    pub fn split(&self, experts: usize, channels: usize) -> Result<Self, GgufError> {
        if (self.experts(), self.channels()) == (experts, channels) {
            return Ok(self.clone());
        }
        if self.experts() != 1 || experts.checked_mul(channels) != Some(self.sums.len()) || channels == 0 {
            let rule = format!(
                "importance of {} x {} does not fit a tensor of {experts} x {channels} (experts x channels)",
                self.experts(),
                self.channels()
            );
            return Err(GgufError::new(K::Imatrix { rule }).in_tensor(&self.name));
        }
        let count = |row: &[f32]| if row.iter().all(|&s| s == 0.0) { 0.0 } else { self.counts[0] };
        let counts = self.sums.chunks_exact(channels).map(count).collect();
        Ok(Self { name: self.name.clone(), sums: self.sums.clone(), counts })
    }
}

/// An importance matrix file: importance data by tensor name.
#[derive(Clone, Debug, Default)]
pub struct Imatrix {
    entries: Vec<Importance>,
    index: HashMap<Vec<u8>, usize>,
    form: Option<ImatrixForm>,
    datasets: Vec<Vec<u8>>,
    chunk_count: Option<u64>,
    chunk_size: Option<u64>,
    ignored: Vec<Vec<u8>>,
}

impl Imatrix {
    /// An empty matrix, to be filled with [`insert`](Self::insert) and saved.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads a file of either form.
    ///
    /// # Errors
    /// As [`Imatrix::parse`], with the path, and `Io`.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, GgufError> {
        let path = path.as_ref();
        let map = MappedFile::open(path)
            .map_err(|source| GgufError::new(K::Io { what: "cannot open", source }).with_path(path))?;
        Self::parse(&map).map_err(|e| e.with_path(path))
    }

    /// Reads a whole file of either form; the form is found from the first four bytes.
    ///
    /// # Errors
    /// Those of [`Header::parse`] for the GGUF form, [`GgufErrorKind::Imatrix`](K::Imatrix),
    /// [`GgufErrorKind::Truncated`](K::Truncated) and the like, each with the tensor or byte offset: a file that ends
    /// early or late, negative lengths or counts, duplicate names, sums without counts or the reverse, sums and
    /// counts that do not fit each other, values that are negative or not finite.
    pub fn parse(bytes: &[u8]) -> Result<Self, GgufError> {
        if bytes.starts_with(b"GGUF") { Self::parse_gguf(bytes) } else { Self::parse_legacy(bytes) }
    }

    fn parse_gguf(bytes: &[u8]) -> Result<Self, GgufError> {
        let header = Header::parse(bytes)?;
        let metadata = header.metadata(bytes)?;
        let mut out = Self { form: Some(ImatrixForm::Gguf), ..Self::default() };
        if let Some(array) = metadata.get_array(DATASETS)? {
            for value in array {
                match value? {
                    Value::String(s) => out.datasets.push(s.bytes().to_vec()),
                    other => {
                        let kind = K::KeyType { found: other.describe(), wanted: "an array of strings" };
                        return Err(GgufError::new(kind).in_key(DATASETS.as_bytes()));
                    }
                }
            }
        }
        out.chunk_count = metadata.get_u64(CHUNK_COUNT)?;
        out.chunk_size = metadata.get_u64(CHUNK_SIZE)?;
        for tensor in header.tensors() {
            let stored = tensor.name_bytes();
            if let Some(name) = stored.strip_suffix(SUMS) {
                let counts = header.find([name, COUNTS].concat()).ok_or_else(|| {
                    let rule = "the sums have no counts beside them".to_owned();
                    GgufError::new(K::Imatrix { rule }).at(tensor.info_offset()).in_tensor(stored)
                })?;
                out.insert(read_pair(&header, bytes, name, tensor, counts)?)?;
            } else if let Some(name) = stored.strip_suffix(COUNTS) {
                if header.find([name, SUMS].concat()).is_none() {
                    let rule = "the counts have no sums beside them".to_owned();
                    let e = GgufError::new(K::Imatrix { rule });
                    return Err(e.at(tensor.info_offset()).in_tensor(stored));
                }
            } else {
                out.ignored.push(stored.to_vec());
            }
        }
        if out.entries.is_empty() {
            let rule = format!("none of the {} tensors is named NAME.in_sum2", header.tensors().len());
            return Err(GgufError::new(K::Imatrix { rule }));
        }
        Ok(out)
    }

    fn parse_legacy(bytes: &[u8]) -> Result<Self, GgufError> {
        let mut c = Cursor::new(bytes, 0);
        let mut out = Self { form: Some(ImatrixForm::Legacy), ..Self::default() };
        // Name length, one byte of name, call count, value count, one value.
        let entries = int(&mut c, "the entry count", 1, 4 + 1 + 4 + 4 + 4)?;
        if entries > MAX_TENSORS {
            let kind = K::OverLimit { what: "the entry count", found: entries, limit: MAX_TENSORS };
            return Err(GgufError::new(kind).at(0));
        }
        for _ in 0..entries {
            let at = c.at();
            let len = int(&mut c, "a tensor name length", 1, 1)?;
            if len > MAX_NAME_BYTES {
                let kind = K::OverLimit { what: "a tensor name length", found: len, limit: MAX_NAME_BYTES };
                return Err(GgufError::new(kind).at(at));
            }
            let name = c.take(len, "a tensor name")?;
            let entry = legacy_entry(&mut c, name).map_err(|e| e.in_tensor(name))?;
            out.insert(entry).map_err(|e| e.at(at))?;
        }
        if c.remaining() > 0 {
            out.chunk_count = Some(int(&mut c, "the chunk count", 0, 0)?);
        }
        if c.remaining() > 0 {
            let len = int(&mut c, "the data set name length", 0, 1)?;
            out.datasets.push(c.take(len, "the data set name")?.to_vec());
        }
        if c.remaining() > 0 {
            let rule = format!("{} bytes are left over after the last field", c.remaining());
            return Err(GgufError::new(K::Imatrix { rule }).at(c.at()));
        }
        Ok(out)
    }

    /// Adds the data of one more tensor.
    ///
    /// # Errors
    /// [`GgufErrorKind::DuplicateTensor`](K::DuplicateTensor).
    pub fn insert(&mut self, entry: Importance) -> Result<(), GgufError> {
        if self.index.contains_key(&entry.name) {
            let first = "the same importance matrix".to_owned();
            return Err(GgufError::new(K::DuplicateTensor { first }).in_tensor(&entry.name));
        }
        self.index.insert(entry.name.clone(), self.entries.len());
        self.entries.push(entry);
        Ok(())
    }

    /// All tensors' data, in file order.
    #[must_use]
    pub fn entries(&self) -> &[Importance] {
        &self.entries
    }

    /// Data of the tensor with this name. Constant time.
    #[must_use]
    pub fn get(&self, name: impl AsRef<[u8]>) -> Option<&Importance> {
        self.index.get(name.as_ref()).map(|&i| &self.entries[i])
    }

    /// The form the file was read from; `None` if it was not read.
    #[must_use]
    pub fn form(&self) -> Option<ImatrixForm> {
        self.form
    }

    /// Names of the calibration data sets, as far as the file records them.
    pub fn datasets(&self) -> impl Iterator<Item = GgufStr<'_>> {
        self.datasets.iter().map(|d| GgufStr(d))
    }

    /// Number of chunks of calibration text, if recorded.
    #[must_use]
    pub fn chunk_count(&self) -> Option<u64> {
        self.chunk_count
    }

    /// Tokens of a chunk, if recorded.
    #[must_use]
    pub fn chunk_size(&self) -> Option<u64> {
        self.chunk_size
    }

    /// What the user should know: experts and tensors without calibration data, tensors of the file that belong to
    /// no importance vector. One line each.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut out = Vec::new();
        for e in &self.entries {
            let (name, unreached) = (GgufStr(&e.name), e.unreached().count());
            if unreached > 0 && e.experts() > 1 {
                let experts = e.experts();
                out.push(format!(
                    "tensor {name:?}: {unreached} of {experts} experts saw no calibration data; their channels weigh alike"
                ));
            } else if unreached > 0 {
                out.push(format!("tensor {name:?}: no calibration data was counted"));
            }
        }
        for name in &self.ignored {
            out.push(format!("tensor {:?}: neither sums nor counts of importance; ignored", GgufStr(name)));
        }
        out
    }

    /// Writes the GGUF form to a new file, sums and counts as they are. The file appears complete or not at all and
    /// nothing is overwritten.
    ///
    /// # Errors
    /// [`GgufErrorKind::Imatrix`](K::Imatrix) for a count that the form cannot hold exactly (a binary32; only a legacy
    /// file with more than 2^24 calls has one), those of [`GgufPlan`] and [`GgufWriter`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), GgufError> {
        let mut plan = GgufPlan::new();
        plan.metadata("general.type", &MetaValue::text("imatrix"))?;
        plan.metadata(DATASETS, &MetaValue::Array(MetaArray::String(self.datasets.clone())))?;
        for (key, value) in [(CHUNK_COUNT, self.chunk_count), (CHUNK_SIZE, self.chunk_size)] {
            if let Some(n) = value {
                let value_type =
                    if u32::try_from(n).is_ok() { crate::ValueType::U32 } else { crate::ValueType::U64 };
                plan.metadata(key, &MetaValue::integer(value_type, n.into())?)?;
            }
        }
        for e in &self.entries {
            let (experts, channels) = (e.experts() as u64, e.channels() as u64);
            plan.tensor([&e.name, SUMS].concat(), GgmlType::F32, &[channels, experts])?;
            plan.tensor([&e.name, COUNTS].concat(), GgmlType::F32, &[1, experts])?;
        }
        for e in &self.entries {
            if let Some(&n) = e.counts.iter().find(|&&n| f64::from(n as f32) != n) {
                let rule = format!("the count {n} is not a binary32 number, which the GGUF form needs");
                return Err(GgufError::new(K::Imatrix { rule }).in_tensor(&e.name));
            }
        }
        let mut writer = GgufWriter::create(path, plan.finish()?)?;
        for e in &self.entries {
            let sums: Vec<u8> = e.sums.iter().flat_map(|x| x.to_le_bytes()).collect();
            let counts: Vec<u8> = e.counts.iter().flat_map(|&x| (x as f32).to_le_bytes()).collect();
            writer.tensor([&e.name, SUMS].concat(), &sums)?;
            writer.tensor([&e.name, COUNTS].concat(), &counts)?;
        }
        writer.publish()
    }
}

/// The data of `NAME.in_sum2` and `NAME.counts`.
fn read_pair(
    header: &Header,
    bytes: &[u8],
    name: &[u8],
    sums: &TensorInfo,
    counts: &TensorInfo,
) -> Result<Importance, GgufError> {
    let floats = |t: &TensorInfo| {
        if t.ggml_type() != GgmlType::F32 {
            let rule = format!("the type is {}, importance data is F32", t.ggml_type());
            return Err(GgufError::new(K::Imatrix { rule }).at(t.info_offset()).in_tensor(t.name_bytes()));
        }
        let data = header.data(bytes, t)?;
        Ok(data.as_chunks::<4>().0.iter().map(|&w| f32::from_le_bytes(w)).collect::<Vec<f32>>())
    };
    let experts = sums.matrix_shape()[0];
    if counts.elements() != experts || sums.elements() == 0 {
        let rule =
            format!("sums of shape {:?} do not go with counts of shape {:?}", sums.shape(), counts.shape());
        return Err(GgufError::new(K::Imatrix { rule }).at(sums.info_offset()).in_tensor(name));
    }
    let wide = floats(counts)?.into_iter().map(f64::from).collect();
    Importance::new(name, floats(sums)?, wide).map_err(|e| e.at(sums.file_offset()))
}

fn legacy_entry(c: &mut Cursor<'_>, name: &[u8]) -> Result<Importance, GgufError> {
    let calls = int(c, "the call count", 0, 0)?;
    let values = int(c, "the value count", 1, 4)?;
    let at = c.at();
    let words = c.take(values * 4, "the values")?;
    let sums = words.as_chunks::<4>().0.iter().map(|&w| f32::from_le_bytes(w)).collect();
    Importance::new(name, sums, vec![calls as f64]).map_err(|e| e.at(at))
}

/// A legacy i32 that is at least `least` and, if it counts things of `each` bytes (0 if it counts none), at most what
/// the rest of the file can hold.
fn int(c: &mut Cursor<'_>, what: &'static str, least: i32, each: u64) -> Result<u64, GgufError> {
    let at = c.at();
    let n = c.u32(what)?.cast_signed();
    if n < least {
        let rule = format!("{what} is {n}, it must be at least {least} (not a legacy importance file?)");
        return Err(GgufError::new(K::Imatrix { rule }).at(at));
    }
    let found = u64::from(n.unsigned_abs());
    if let Some(most) = c.remaining().checked_div(each).filter(|&m| found > m) {
        return Err(GgufError::new(K::TooMany { what, found, most, remaining: c.remaining() }).at(at));
    }
    Ok(found)
}
