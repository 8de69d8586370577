//! Laying an artifact out before the first byte is written.

use std::path::{Path, PathBuf};

use ninfer_formats::{FormatId, LayoutId, encoded_size};

use super::directory::{Directory, TENSOR_ALIGNMENT};
use super::header::{self, EntryPrefix, MAX_JSON_BYTES, PAGE, PREFIX_BYTES};
use super::json::Json;
use super::model::{Binding, Component, FileEntry, Object, ObjectKind, TensorRecord, Use};
use super::writer::ArtifactWriter;
use crate::error::{ArtifactError, ArtifactErrorKind as K};

/// Most files of one artifact that a size limit may lead to.
pub const MAX_FILES: u64 = 100_000;

/// What an artifact will hold. Objects keep the order in which they are added; offsets are computed here.
///
/// Nothing touches the disk before [`Layout::create`], so that a plan that breaks a rule leaves nothing behind.
#[derive(Clone, Debug, Default)]
pub struct ArtifactPlan {
    objects: Vec<Object>,
    end: u64,
    components: Vec<(String, Component)>,
    bindings: Vec<(String, Binding)>,
    uses: Vec<Use>,
    metadata: Option<Json>,
    provenance: Option<Json>,
    artifact_id: Option<[u8; 16]>,
    file_limit: Option<u64>,
    reserve: u64,
}

impl ArtifactPlan {
    /// An empty plan.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tensor of `shape` elements with `divisors` divisors (1 unless `nvfp4`). Its layout is the format's.
    ///
    /// # Errors
    /// A shape or divisor count that the layout cannot hold; an end of the payload that does not fit in 64 bits.
    pub fn tensor(
        &mut self,
        id: impl Into<String>,
        format: FormatId,
        shape: &[u64],
        divisors: u64,
    ) -> Result<(), ArtifactError> {
        let id = id.into();
        let bytes = encoded_size(format, shape, divisors)
            .map_err(|e| ArtifactError::new(K::Format(e)).in_object(&id))?;
        let layout = format.layout();
        let kind = ObjectKind::Tensor(TensorRecord {
            shape: shape.to_vec(),
            format: format.name().into(),
            layout: layout.name().into(),
            divisors,
        });
        self.push(id, bytes, TENSOR_ALIGNMENT.max(layout.spec().alignment), kind)
    }

    /// Adds a resource of `bytes` bytes; not 0.
    ///
    /// # Errors
    /// An empty resource; an end of the payload that does not fit in 64 bits.
    pub fn resource(&mut self, id: impl Into<String>, bytes: u64) -> Result<(), ArtifactError> {
        let id = id.into();
        let bytes = ninfer_formats::layout::raw_bytes_size(bytes)
            .map_err(|e| ArtifactError::new(K::Format(e)).in_object(&id))?;
        let spec = LayoutId::RawBytesV1.spec();
        self.push(id, bytes, spec.alignment, ObjectKind::Resource { encoding: spec.name.into() })
    }

    fn push(
        &mut self,
        id: String,
        bytes: u64,
        alignment: u64,
        kind: ObjectKind,
    ) -> Result<(), ArtifactError> {
        let offset = self.end.checked_next_multiple_of(alignment);
        let end = offset.and_then(|o| o.checked_add(bytes));
        let (Some(offset), Some(end)) = (offset, end) else {
            let kind = K::SizeOverflow { what: "the end of the payload" };
            return Err(ArtifactError::new(kind).in_object(&id));
        };
        self.end = end;
        self.objects.push(Object { id, offset, bytes, kind });
        Ok(())
    }

    /// Adds a component. An artifact needs `text`, or `ngram` if it is a stand-alone n-gram table.
    pub fn component(&mut self, id: impl Into<String>, component: Component) {
        self.components.push((id.into(), component));
    }

    /// Binds a logical parameter.
    pub fn binding(&mut self, parameter: impl Into<String>, binding: Binding) {
        self.bindings.push((parameter.into(), binding));
    }

    /// Adds a use of a parameter.
    pub fn add_use(&mut self, added: Use) {
        self.uses.push(added);
    }

    /// Sets the open `metadata` object.
    pub fn metadata(&mut self, metadata: Json) {
        self.metadata = Some(metadata);
    }

    /// Sets the open `provenance` object.
    pub fn provenance(&mut self, provenance: Json) {
        self.provenance = Some(provenance);
    }

    /// Sets the artifact id instead of taking a random one. Two different artifacts must not share an id: it is
    /// what tells that part files belong together.
    pub fn artifact_id(&mut self, id: [u8; 16]) {
        self.artifact_id = Some(id);
    }

    /// Splits the artifact over files of at most `bytes` bytes each. Without a limit it is one file.
    pub fn file_limit(&mut self, bytes: u64) {
        self.file_limit = Some(bytes);
    }

    /// Keeps `bytes` bytes free in the directory, for a provenance that is known only after the payload has been
    /// written ([`ArtifactWriter::set_provenance`]).
    pub fn reserve(&mut self, bytes: u64) {
        self.reserve = bytes;
    }

    /// Computes the layout for the entry file `target` and checks the directory with the reader's own rules.
    ///
    /// # Errors
    /// Every rule of the directory that the plan breaks, with the JSON member; a size limit that leaves no room; a
    /// target that is not a file name, or whose name is not UTF-8 though parts must be named after it; no
    /// randomness for an artifact id.
    pub fn finish(self, target: impl AsRef<Path>) -> Result<Layout, ArtifactError> {
        let target = target.as_ref();
        self.lay_out(target).map_err(|e| e.with_path(target))
    }

    fn lay_out(mut self, target: &Path) -> Result<Layout, ArtifactError> {
        let Some(file_name) = target.file_name() else {
            let problem = "does not end in a file name";
            return Err(ArtifactError::new(K::TargetPath { problem }));
        };
        let artifact_id = match self.artifact_id {
            Some(id) => id,
            None => {
                let mut id = [0; 16];
                getrandom::fill(&mut id)
                    .map_err(|e| ArtifactError::new(K::NoRandomness { message: e.to_string() }))?;
                id
            }
        };
        let provenance = self.provenance.take();
        let text = Text::of(&self);
        let (end, limit, reserve) = (self.end, self.file_limit, self.reserve);
        // Only the text is needed from here on.
        drop(self);
        // The directory fills its pages with trailing spaces, so that the payload starts right after it.
        let mut json_bytes = PAGE - PREFIX_BYTES;
        loop {
            let files = split(end, limit, header::payload_start(json_bytes), file_name.to_str())?;
            let text = text.with(&files, provenance.as_ref());
            let needs = (text.len() as u64).saturating_add(reserve);
            if needs > MAX_JSON_BYTES {
                let rule = format!("at most {MAX_JSON_BYTES}, the limit of this reader");
                return Err(ArtifactError::new(K::JsonBytes { found: needs, rule }));
            }
            if needs <= json_bytes {
                return Layout::new(target.to_path_buf(), artifact_id, text, json_bytes);
            }
            json_bytes = (PREFIX_BYTES + needs).next_multiple_of(PAGE) - PREFIX_BYTES;
        }
    }
}

/// The directory's text but for the files and the provenance, which may come later. Written piece by piece: a tree of
/// values would take several times its size.
struct Text {
    before_files: String,
    after_files: String,
}

impl Text {
    fn of(plan: &ArtifactPlan) -> Self {
        let components = plan.components.iter().map(|(id, c)| (id.as_str(), c.to_json()));
        let bindings = plan.bindings.iter().map(|(name, b)| (name.as_str(), b.to_json()));
        let mut text = String::from("{\"components\":");
        list(&mut text, ['{', '}'], components.map(|(id, c)| Json::object([(id, c)])));
        text.push_str(",\"objects\":");
        list(&mut text, ['[', ']'], plan.objects.iter().map(Object::to_json));
        text.push_str(",\"bindings\":");
        list(&mut text, ['{', '}'], bindings.map(|(name, b)| Json::object([(name, b)])));
        text.push_str(",\"uses\":");
        list(&mut text, ['[', ']'], plan.uses.iter().map(Use::to_json));
        text.push_str(",\"files\":");
        let after_files = plan.metadata.as_ref().map_or_else(String::new, |m| format!(",\"metadata\":{m}"));
        Self { before_files: text, after_files }
    }

    fn with(&self, files: &[FileEntry], provenance: Option<&Json>) -> DirectoryText {
        let files = files.iter().map(|f| {
            let path = f.path.as_deref().map_or(Json::Null, Json::from);
            Json::object([("path", path), ("payload_bytes", f.payload_bytes.into())])
        });
        let mut text = self.before_files.clone();
        list(&mut text, ['[', ']'], files);
        text.push_str(&self.after_files);
        let mut text = DirectoryText { provenance_at: text.len(), text };
        text.set_provenance(provenance);
        text
    }
}

/// Appends values between brackets. Between braces each value is an object of one member, given without its own.
fn list(text: &mut String, [open, close]: [char; 2], values: impl Iterator<Item = Json>) {
    text.push(open);
    for (i, value) in values.enumerate() {
        if i > 0 {
            text.push(',');
        }
        let value = value.to_string();
        text.push_str(if open == '{' { &value[1..value.len() - 1] } else { &value });
    }
    text.push(close);
}

/// The whole text of a directory. The provenance is its last member.
#[derive(Clone, Debug)]
struct DirectoryText {
    text: String,
    provenance_at: usize,
}

impl DirectoryText {
    fn set_provenance(&mut self, provenance: Option<&Json>) {
        self.text.truncate(self.provenance_at);
        if let Some(provenance) = provenance {
            self.text.push_str(&format!(",\"provenance\":{provenance}"));
        }
        self.text.push('}');
    }

    fn len(&self) -> usize {
        self.text.len()
    }
}

/// Distributes `total` payload bytes over files.
fn split(
    total: u64,
    limit: Option<u64>,
    payload_start: u64,
    entry_name: Option<&str>,
) -> Result<Vec<FileEntry>, ArtifactError> {
    let Some(limit) = limit else { return Ok(vec![FileEntry { path: None, payload_bytes: total }]) };
    let capacity = |file, start: u64| match limit.saturating_sub(start) / PAGE * PAGE {
        0 => Err(ArtifactError::new(K::LimitTooSmall { limit, file, needs: start.saturating_add(PAGE) })),
        bytes => Ok(bytes),
    };
    let entry = capacity("the entry file", payload_start)?;
    let part = capacity("a part file", PAGE)?;
    let mut files = vec![FileEntry { path: None, payload_bytes: total.min(entry) }];
    let mut rest = total - files[0].payload_bytes;
    let count = rest.div_ceil(part).saturating_add(1);
    if count > MAX_FILES {
        return Err(ArtifactError::new(K::TooManyFiles { limit, files: count, most: MAX_FILES }));
    }
    while rest > 0 {
        let Some(name) = entry_name else {
            let problem = "is not UTF-8, so part files cannot be named after it";
            return Err(ArtifactError::new(K::TargetPath { problem }));
        };
        let path = Some(format!("{name}.part-{:04}", files.len()));
        files.push(FileEntry { path, payload_bytes: rest.min(part) });
        rest -= rest.min(part);
    }
    Ok(files)
}

/// A finished plan: every offset, every file and the directory's text are known and checked.
#[derive(Clone, Debug)]
pub struct Layout {
    target: PathBuf,
    directory: Directory,
    text: DirectoryText,
}

impl Layout {
    fn new(
        target: PathBuf,
        artifact_id: [u8; 16],
        text: DirectoryText,
        json_bytes: u64,
    ) -> Result<Self, ArtifactError> {
        let payload_start = header::payload_start(json_bytes);
        let prefix = EntryPrefix { json_bytes, artifact_id, payload_start };
        let directory = check(&target, prefix, &text)?;
        Ok(Self { target, directory, text })
    }

    /// Path of the entry file.
    #[must_use]
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// The directory as a reader will see it.
    #[must_use]
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// The directory's text.
    pub(crate) fn text(&self) -> &str {
        &self.text.text
    }

    /// The files with their paths and their whole lengths in bytes; the entry comes first.
    #[must_use]
    pub fn files(&self) -> Vec<(PathBuf, u64)> {
        let start = self.directory.prefix().payload_start;
        let files = self.directory.files().iter();
        files
            .map(|f| match &f.path {
                // `split` and the payload's own end keep these sums below 2^64.
                None => (self.target.clone(), start.saturating_add(f.payload_bytes)),
                Some(name) => (self.target.with_file_name(name), PAGE.saturating_add(f.payload_bytes)),
            })
            .collect()
    }

    /// Bytes of all files together.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.files().iter().fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    /// Creates the temporary files. The targets must not exist.
    ///
    /// # Errors
    /// A target that exists, or files that cannot be created.
    pub fn create(self) -> Result<ArtifactWriter, ArtifactError> {
        ArtifactWriter::new(self)
    }

    /// The first `payload_start` bytes of the entry file.
    pub(super) fn header(&self) -> Vec<u8> {
        let prefix = self.directory.prefix();
        let mut bytes = prefix.to_bytes().to_vec();
        bytes.extend_from_slice(self.text.text.as_bytes());
        bytes.resize((PREFIX_BYTES + prefix.json_bytes) as usize, b' ');
        bytes.resize(prefix.payload_start as usize, 0);
        bytes
    }

    pub(super) fn set_provenance(&mut self, provenance: &Json) -> Result<(), ArtifactError> {
        let prefix = self.directory.prefix();
        let mut text = self.text.clone();
        text.set_provenance(Some(provenance));
        let (needs, reserved) = (text.len() as u64, prefix.json_bytes);
        if needs > reserved {
            return Err(ArtifactError::new(K::DirectoryGrew { needs, reserved }).with_path(&self.target));
        }
        self.directory = check(&self.target, prefix, &text).map_err(|e| e.with_path(&self.target))?;
        self.text = text;
        Ok(())
    }
}

/// Reads the text back with the reader's rules.
fn check(target: &Path, prefix: EntryPrefix, text: &DirectoryText) -> Result<Directory, ArtifactError> {
    let name = target.file_name().and_then(|n| n.to_str());
    let directory = Directory::from_text(prefix, text.text.as_bytes(), name)?;
    for object in directory.objects() {
        object.check()?;
    }
    // The sizes of whole files must fit as well.
    let first = directory.files().first().map_or(0, |f| f.payload_bytes);
    if prefix.payload_start.checked_add(first).is_none_or(|end| i64::try_from(end).is_err()) {
        return Err(ArtifactError::new(K::SizeOverflow { what: "the size of the entry file" }));
    }
    Ok(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(total: u64, limit: u64, start: u64) -> Vec<u64> {
        split(total, Some(limit), start, Some("x")).unwrap().iter().map(|f| f.payload_bytes).collect()
    }

    #[test]
    fn every_file_but_the_last_is_filled() {
        assert_eq!(sizes(10_000, 8192, 4096), [4096, 4096, 1808]);
        assert_eq!(sizes(8192, 8192, 4096), [4096, 4096]);
        assert_eq!(sizes(4096, 8192, 4096), [4096]);
        assert_eq!(sizes(1, 8192, 4096), [1]);
        // Capacities are whole pages: 20000 - 8192 = 11808 -> 8192; 20000 - 4096 = 15904 -> 12288.
        assert_eq!(sizes(30_000, 20_000, 8192), [8192, 12_288, 9520]);
        assert_eq!(split(u64::MAX, None, 4096, None).unwrap()[0].payload_bytes, u64::MAX);
        let files = split(10_000, Some(8192), 4096, Some("m.ninfer")).unwrap();
        assert_eq!(files[0].path, None);
        assert_eq!(files[2].path.as_deref(), Some("m.ninfer.part-0002"));
        let files = split(4096 * 20_000, Some(8192), 4096, Some("m")).unwrap();
        assert_eq!(files[12_345].path.as_deref(), Some("m.part-12345"));
    }

    #[test]
    fn limits_without_room_are_refused() {
        for (limit, start, which) in
            [(8191, 4096, "the entry file"), (0, 4096, "the entry file"), (12_287, 8192, "the entry file")]
        {
            let e = split(10, Some(limit), start, Some("x")).unwrap_err();
            assert!(matches!(e.kind(), K::LimitTooSmall { file, .. } if *file == which), "{e}");
        }
        let e = split(u64::MAX, Some(8192), 4096, Some("x")).unwrap_err();
        assert!(matches!(e.kind(), K::TooManyFiles { .. }), "{e}");
        let e = split(10_000, Some(8192), 4096, None).unwrap_err();
        assert!(matches!(e.kind(), K::TargetPath { .. }), "{e}");
    }

    #[test]
    fn sizes_beyond_64_bits_are_refused() {
        let mut plan = ArtifactPlan::new();
        plan.tensor("a", FormatId::Bf16, &[1 << 62], 1).unwrap();
        let e = plan.tensor("b", FormatId::Bf16, &[1 << 62], 1).unwrap_err();
        assert!(matches!(e.kind(), K::SizeOverflow { .. }), "{e}");
        assert_eq!(e.object(), Some("b"));
        // 2^33 elements are fine, and nothing wraps to 32 bits.
        let mut plan = ArtifactPlan::new();
        plan.tensor("a", FormatId::GgufQ4_0, &[1 << 13, 1 << 20], 1).unwrap();
        plan.tensor("b", FormatId::Fp32, &[3], 1).unwrap();
        plan.component("text", Component::with_config(Json::Object(vec![])));
        let layout = plan.finish("x.ninfer").unwrap();
        assert_eq!(layout.directory().object("b").unwrap().offset, 18 << 28);
    }
}
