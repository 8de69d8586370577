//! From the bytes of an entry file to a checked [`Directory`].

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use ninfer_formats::{FORMATS, FormatId, LAYOUTS, MAX_RANK};

use super::header::{self, EntryPrefix, PAGE, PREFIX_BYTES};
use super::json::{Element, Json, parse_directory};
use super::model::{
    ActivationPolicy, Binding, BindingPart, Component, FileEntry, Object, ObjectKind, Proposal, Span, Table,
    TensorRecord, Use,
};
use super::record::{At, Record};
use crate::error::{ArtifactError, ArtifactErrorKind as K, quoted};

/// Alignment of tensor objects in the logical payload, in bytes.
pub const TENSOR_ALIGNMENT: u64 = 256;

/// Everything an entry file says about its artifact, checked against the rules of the container specification.
/// It owns its data and does not refer to the file's bytes.
#[derive(Clone, Debug)]
pub struct Directory {
    prefix: EntryPrefix,
    files: Vec<FileEntry>,
    // Logical payload offset at which each file begins, and the end of the last.
    starts: Vec<u64>,
    objects: Vec<Object>,
    index: HashMap<String, usize>,
    components: Table<Component>,
    bindings: Table<Binding>,
    uses: Vec<Use>,
    metadata: Option<Json>,
    provenance: Option<Json>,
}

impl Directory {
    /// Reads the directory of an entry file. `bytes` is the whole file; `entry_name` its file name, where it has
    /// one, from which part names must differ.
    ///
    /// Only the header and the directory are looked at, never the payload.
    ///
    /// # Errors
    /// Whatever breaks a rule of the container specification, with byte offset or JSON member.
    pub fn parse(bytes: &[u8], entry_name: Option<&str>) -> Result<Self, ArtifactError> {
        let prefix = EntryPrefix::parse(bytes)?;
        // `EntryPrefix::parse` has checked that the JSON lies inside `bytes`.
        let text = &bytes[PREFIX_BYTES as usize..(PREFIX_BYTES + prefix.json_bytes) as usize];
        let directory = Self::from_text(prefix, text, entry_name)?;
        let found = bytes.len() as u64;
        match prefix.payload_start.checked_add(directory.files[0].payload_bytes) {
            Some(wanted) if wanted == found => Ok(directory),
            wanted => {
                let kind = K::FileLength { found, wanted: wanted.unwrap_or(u64::MAX) };
                Err(ArtifactError::new(kind).at_json("files[0].payload_bytes".into()))
            }
        }
    }

    /// Reads the JSON text that belongs to a prefix.
    pub(crate) fn from_text(
        prefix: EntryPrefix,
        text: &[u8],
        entry_name: Option<&str>,
    ) -> Result<Self, ArtifactError> {
        const MEMBERS: &[&str] =
            &["components", "objects", "bindings", "uses", "files", "metadata", "provenance"];
        let root = At::ROOT;
        let (objects_at, bindings_at) = (root.member("objects"), root.member("bindings"));
        let mut list = Objects::default();
        let mut bindings = Vec::new();
        let json = parse_directory(text, PREFIX_BYTES, &mut |element, json| match element {
            Element::Object(i) => list.push(json, objects_at.index(i)),
            Element::Binding(name) => {
                let at = bindings_at.member(name);
                at.check_id(name)?;
                bindings.push((name.to_owned(), binding(json, at)?));
                Ok(())
            }
        })?;
        let mut record = Record::closed(json, root, "directory", MEMBERS)?;
        // The elements are in `list` and `bindings`; these are empty if they are of the right type.
        objects_at.array(record.required("objects")?, "an array of objects")?;
        bindings_at.members(record.required("bindings")?, "an object from parameter name to binding")?;
        let (files, starts) = files(record.required("files")?, root.member("files"), entry_name)?;
        let (objects, index) = list.finish(objects_at, starts.last().copied().unwrap_or(0))?;
        let look = |id: &str| index.get(id).map(|&i| &objects[i]);
        let components = components(record.required("components")?, root.member("components"), &look)?;
        for (name, binding) in &bindings {
            resolve(binding, bindings_at.member(name), &look)?;
        }
        let bindings = Table::new(bindings);
        let uses = uses(record.required("uses")?, root.member("uses"), &look, &bindings)?;
        let metadata = match record.optional("metadata") {
            None => None,
            Some(json) => Some(metadata(json, root.member("metadata"))?),
        };
        let provenance = match record.optional("provenance") {
            None => None,
            Some(json) => Some(root.member("provenance").open_object(json)?),
        };
        Ok(Self { prefix, files, starts, objects, index, components, bindings, uses, metadata, provenance })
    }

    /// Identity of the write that made the artifact.
    #[must_use]
    pub fn artifact_id(&self) -> [u8; 16] {
        self.prefix.artifact_id
    }

    /// The checked prefix of the entry file.
    #[must_use]
    pub fn prefix(&self) -> EntryPrefix {
        self.prefix
    }

    /// The files in order; the first is the entry.
    #[must_use]
    pub fn files(&self) -> &[FileEntry] {
        &self.files
    }

    /// Length of the logical payload in bytes.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// All objects by increasing offset.
    #[must_use]
    pub fn objects(&self) -> &[Object] {
        &self.objects
    }

    /// The object with this id.
    ///
    /// # Errors
    /// No such object.
    pub fn object(&self, id: &str) -> Result<&Object, ArtifactError> {
        match self.index.get(id) {
            Some(&i) => Ok(&self.objects[i]),
            None => Err(ArtifactError::new(K::NoObject { id: id.to_owned(), objects: self.objects.len() })),
        }
    }

    /// Components by id.
    #[must_use]
    pub fn components(&self) -> &Table<Component> {
        &self.components
    }

    /// Bindings by logical parameter name.
    #[must_use]
    pub fn bindings(&self) -> &Table<Binding> {
        &self.bindings
    }

    /// Uses in order.
    #[must_use]
    pub fn uses(&self) -> &[Use] {
        &self.uses
    }

    /// The open `metadata` object, if there is one.
    #[must_use]
    pub fn metadata(&self) -> Option<&Json> {
        self.metadata.as_ref()
    }

    /// The open `provenance` object, if there is one.
    #[must_use]
    pub fn provenance(&self) -> Option<&Json> {
        self.provenance.as_ref()
    }

    /// `metadata.name`, if there is one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.metadata()?.get("name")?.as_str()
    }

    /// The bytes `begin..end` of the logical payload as runs of bytes of the files, in order.
    ///
    /// # Errors
    /// A range that is not inside the payload.
    pub fn spans(&self, begin: u64, end: u64) -> Result<Vec<Span>, ArtifactError> {
        let bytes = self.payload_bytes();
        if begin > end || end > bytes {
            return Err(ArtifactError::new(K::ByteRange { begin, end: u128::from(end), bytes }));
        }
        let mut spans = Vec::new();
        let mut at = begin;
        // The last file that begins at or before `begin`; empty files are stepped over below.
        let mut file = self.starts.partition_point(|&s| s <= begin).saturating_sub(1);
        while at < end {
            let upto = end.min(self.starts[file + 1]);
            if upto > at {
                let payload_start = if file == 0 { self.prefix.payload_start } else { PAGE };
                spans.push(Span { file, offset: payload_start + (at - self.starts[file]), len: upto - at });
                at = upto;
            }
            file += 1;
        }
        Ok(spans)
    }

    /// Checks the framing and the length of part file `index` (1 for the first part). `bytes` is the whole file.
    ///
    /// # Errors
    /// Another magic, index, artifact id or length; an index that is not a part's.
    pub fn check_part(&self, index: usize, bytes: &[u8]) -> Result<(), ArtifactError> {
        match self.files.get(index) {
            Some(entry) if index > 0 => {
                header::check_part(bytes, index as u64, self.prefix.artifact_id, entry.payload_bytes)
            }
            _ => {
                let kind = K::JsonValue {
                    found: format!("part index {index}"),
                    wanted: format!("1..{}", self.files.len()),
                };
                Err(ArtifactError::new(kind))
            }
        }
    }
}

fn files(
    json: Json,
    at: At<'_>,
    entry_name: Option<&str>,
) -> Result<(Vec<FileEntry>, Vec<u64>), ArtifactError> {
    let list = at.array(json, "an array of files")?;
    if list.is_empty() {
        return at.value("an empty array".into(), "at least the entry file");
    }
    let mut files = Vec::with_capacity(list.len());
    let mut starts = vec![0u64];
    let mut names = HashSet::new();
    let mut total = 0u64;
    for (i, json) in list.into_iter().enumerate() {
        let at = at.index(i);
        let mut record = Record::closed(json, at, "file", &["path", "payload_bytes"])?;
        let path_at = at.member("path");
        let path = match (i, record.required("path")?) {
            (0, Json::Null) => None,
            (0, other) => return path_at.value(other.describe(), "null: the first file is the entry itself"),
            (_, other) => Some(path_at.string(other, "the name of a part file")?),
        };
        if let Some(name) = &path {
            let rule = if name.is_empty() || name == "." || name == ".." {
                Some("a file name")
            } else if name.contains(['/', '\\', '\0']) {
                Some("a plain file name without '/', '\\' and U+0000")
            } else if entry_name == Some(name.as_str()) {
                Some("another name than the entry file's")
            } else if !names.insert(name.clone()) {
                Some("a name that no other part has")
            } else {
                None
            };
            if let Some(rule) = rule {
                return path_at.value(quoted(name), rule);
            }
        }
        let bytes_at = at.member("payload_bytes");
        let payload_bytes = bytes_at.u64(&record.required("payload_bytes")?)?;
        total = match total.checked_add(payload_bytes) {
            Some(sum) => sum,
            None => return bytes_at.value(payload_bytes.to_string(), "a sum below 2^64"),
        };
        files.push(FileEntry { path, payload_bytes });
        starts.push(total);
    }
    Ok((files, starts))
}

/// The objects read so far.
#[derive(Default)]
struct Objects {
    list: Vec<Object>,
    index: HashMap<String, usize>,
}

impl Objects {
    /// Adds the next object, which follows the last one.
    fn push(&mut self, json: Json, at: At<'_>) -> Result<(), ArtifactError> {
        let object = object(json, at)?;
        if self.index.insert(object.id.clone(), self.list.len()).is_some() {
            let (found, wanted) = (quoted(&object.id), "an id that no other object has");
            return refuse(at, "id", &object, found, wanted);
        }
        if object.offset.checked_add(object.bytes).is_none() {
            return refuse(at, "bytes", &object, object.bytes.to_string(), "an end below 2^64");
        }
        if let Some(last) = self.list.last()
            && object.offset < last.end()
        {
            let wanted = format!("at least {}, the end of object {}", last.end(), quoted(&last.id));
            return refuse(at, "offset", &object, object.offset.to_string(), wanted);
        }
        self.list.push(object);
        Ok(())
    }

    /// Checks what needs the other members of the directory.
    fn finish(
        self,
        at: At<'_>,
        payload_bytes: u64,
    ) -> Result<(Vec<Object>, HashMap<String, usize>), ArtifactError> {
        if self.list.is_empty() {
            return at.value("an empty array".into(), "at least one object");
        }
        // In order and disjoint: where the last ends inside the payload, all do.
        if let Some((i, object)) = self.list.iter().enumerate().find(|(_, o)| o.end() > payload_bytes) {
            let found = format!("an end at byte {} of the payload", object.end());
            let wanted = format!("at most {payload_bytes}, the payload's length");
            return refuse(at.index(i), "bytes", object, found, wanted);
        }
        Ok((self.list, self.index))
    }
}

fn refuse<T>(
    at: At<'_>,
    member: &str,
    object: &Object,
    found: String,
    wanted: impl Into<String>,
) -> Result<T, ArtifactError> {
    let kind = K::JsonValue { found, wanted: wanted.into() };
    Err(at.member(member).error(kind).in_object(&object.id))
}

fn object(json: Json, at: At<'_>) -> Result<Object, ArtifactError> {
    const TENSOR: &[&str] = &["id", "kind", "shape", "format", "layout", "offset", "bytes", "divisors"];
    const RESOURCE: &[&str] = &["id", "kind", "encoding", "offset", "bytes"];
    let mut record = Record::open(json, at, "object")?;
    let kind = record.required("kind")?;
    let kind = match kind.as_str() {
        Some("tensor") => {
            record.rename("tensor object");
            record.close(TENSOR)?;
            ObjectKind::Tensor(tensor_record(&mut record, at)?)
        }
        Some("resource") => {
            record.rename("resource object");
            record.close(RESOURCE)?;
            let at = at.member("encoding");
            ObjectKind::Resource { encoding: known(at.id(record.required("encoding")?)?) }
        }
        _ => return at.member("kind").value(kind.describe(), "\"tensor\" or \"resource\""),
    };
    let id = at.member("id").id(record.required("id")?)?;
    let offset_at = at.member("offset");
    let offset = offset_at.u64(&record.required("offset")?)?;
    if matches!(kind, ObjectKind::Tensor(_)) && offset % TENSOR_ALIGNMENT != 0 {
        let wanted = format!("a multiple of {TENSOR_ALIGNMENT}");
        return offset_at.value(offset.to_string(), wanted).map_err(|e: ArtifactError| e.in_object(&id));
    }
    let bytes = at.member("bytes").positive(&record.required("bytes")?)?;
    Ok(Object { id, offset, bytes, kind })
}

fn tensor_record(record: &mut Record<'_>, at: At<'_>) -> Result<TensorRecord, ArtifactError> {
    let shape_json = record.required("shape")?;
    let shape_at = at.member("shape");
    let dims = shape_at.array(shape_json, "an array of dimensions")?;
    if dims.len() > MAX_RANK {
        return shape_at.value(format!("{} dimensions", dims.len()), format!("at most {MAX_RANK}"));
    }
    let mut shape = Vec::with_capacity(dims.len());
    for (i, dim) in dims.iter().enumerate() {
        shape.push(shape_at.index(i).positive(dim)?);
    }
    if elements(&shape).is_none() {
        return shape_at.value(format!("{shape:?}"), "fewer than 2^64 elements");
    }
    let format = known(at.member("format").id(record.required("format")?)?);
    let layout = known(at.member("layout").id(record.required("layout")?)?);
    let divisors = match record.optional("divisors") {
        None => 1,
        Some(json) => at.member("divisors").positive(&json)?,
    };
    // Of a format that this reader does not know nothing is assumed; the object is listed and cannot be read.
    if divisors > 1 && FormatId::from_name(&format).is_ok_and(|f| f != FormatId::Nvfp4) {
        let wanted = format!("1: {format} has no divisors, only nvfp4 has");
        return at.member("divisors").value(divisors.to_string(), wanted);
    }
    Ok(TensorRecord { shape, format, layout, divisors })
}

/// Product of the dimensions, or `None` if it does not fit.
pub(crate) fn elements(shape: &[u64]) -> Option<u64> {
    shape.iter().try_fold(1u64, |a, &d| a.checked_mul(d))
}

/// A name without its own allocation if it is a registered one.
pub(crate) fn known(name: String) -> Cow<'static, str> {
    let names = FORMATS.iter().map(|f| f.name).chain(LAYOUTS.iter().map(|l| l.name));
    names.into_iter().find(|known| *known == name).map_or(Cow::Owned(name), Cow::Borrowed)
}

type Look<'a> = &'a dyn Fn(&str) -> Option<&'a Object>;

fn refer<'a>(
    at: At<'_>,
    id: &str,
    wanted: &'static str,
    look: Look<'a>,
) -> Result<&'a Object, ArtifactError> {
    let fail = |problem| Err(at.error(K::Reference { what: "object", id: id.to_owned(), problem }));
    match look(id) {
        None => fail("does not exist"),
        Some(o) if o.kind_name() == wanted => Ok(o),
        Some(_) if wanted == "tensor" => fail("is a resource where a tensor is wanted"),
        Some(_) => fail("is a tensor where a resource is wanted"),
    }
}

fn components(json: Json, at: At<'_>, look: Look<'_>) -> Result<Table<Component>, ArtifactError> {
    let members = at.members(json, "an object of components")?;
    let mut entries = Vec::with_capacity(members.len());
    for (id, json) in members {
        at.member(&id).check_id(&id)?;
        let component = component(json, at.member(&id), id == "text", look)?;
        entries.push((id, component));
    }
    let table = Table::new(entries);
    if table.get("text").is_none() && table.get("ngram").is_none() {
        return at
            .value("no component \"text\"".into(), "\"text\", or \"ngram\" in a stand-alone n-gram table");
    }
    for (id, component) in table.iter() {
        if let Some(target) = &component.target
            && table.get(target).is_none()
        {
            let kind = K::Reference { what: "component", id: target.clone(), problem: "does not exist" };
            return Err(at.member(id).member("target").error(kind));
        }
    }
    Ok(table)
}

fn component(json: Json, at: At<'_>, is_text: bool, look: Look<'_>) -> Result<Component, ArtifactError> {
    const TEXT: &[&str] = &["config", "target", "resources", "proposal"];
    const OTHER: &[&str] = &["config", "target", "resources"];
    let name = if is_text { "component" } else { "component other than text" };
    let mut record = Record::closed(json, at, name, if is_text { TEXT } else { OTHER })?;
    let config = at.member("config").open_object(record.required("config")?)?;
    let target = match record.optional("target") {
        None => None,
        Some(json) => Some(at.member("target").id(json)?),
    };
    let mut resources = Vec::new();
    if let Some(json) = record.optional("resources") {
        let at = at.member("resources");
        for (role, json) in at.members(json, "an object from role to resource id")? {
            let at = at.member(&role);
            at.check_id(&role)?;
            let id = at.id(json)?;
            refer(at, &id, "resource", look)?;
            resources.push((role, id));
        }
    }
    let proposal = match record.optional("proposal") {
        None => None,
        Some(json) => Some(proposal(json, at.member("proposal"))?),
    };
    Ok(Component { config, target, resources, proposal })
}

fn proposal(json: Json, at: At<'_>) -> Result<Proposal, ArtifactError> {
    let mut record = Record::closed(json, at, "proposal", &["domain", "rows"])?;
    let domain = record.required("domain")?;
    match domain.as_str() {
        Some("full") => {
            record.rename("proposal of domain full");
            record.close(&["domain"])?;
            Ok(Proposal::Full)
        }
        Some("indexed") => {
            let rows = record.required("rows")?;
            Ok(Proposal::Indexed { rows: at.member("rows").positive(&rows)? })
        }
        _ => at.member("domain").value(domain.describe(), "\"full\" or \"indexed\""),
    }
}

/// The form of a binding; [`resolve`] follows its references.
fn binding(json: Json, at: At<'_>) -> Result<Binding, ArtifactError> {
    let mut record = Record::closed(json, at, "binding", &["object", "parts"])?;
    match (record.optional("object"), record.optional("parts")) {
        (Some(id), None) => Ok(Binding::Object(at.member("object").id(id)?)),
        (None, Some(parts)) => {
            let at = at.member("parts");
            let list = at.array(parts, "an array of parts")?;
            if list.is_empty() {
                return at.value("an empty array".into(), "at least one part");
            }
            let mut parts = Vec::with_capacity(list.len());
            for (i, json) in list.into_iter().enumerate() {
                parts.push(binding_part(json, at.index(i))?);
            }
            Ok(Binding::Parts(parts))
        }
        (both, _) => {
            let found = if both.is_some() { "both members" } else { "neither member" };
            at.value(found.into(), "either \"object\" or \"parts\"")
        }
    }
}

fn binding_part(json: Json, at: At<'_>) -> Result<BindingPart, ArtifactError> {
    let mut record = Record::closed(json, at, "binding part", &["object", "range"])?;
    let object = at.member("object").id(record.required("object")?)?;
    let range_at = at.member("range");
    let range = range_at.array(record.required("range")?, "an array [begin, end]")?;
    let [begin, end] = range.as_slice() else {
        return range_at.value(format!("{} values", range.len()), "two: [begin, end]");
    };
    Ok(BindingPart { object, begin: range_at.index(0).u64(begin)?, end: range_at.index(1).u64(end)? })
}

/// Checks that every object of the binding is a tensor that has the elements.
fn resolve(binding: &Binding, at: At<'_>, look: Look<'_>) -> Result<(), ArtifactError> {
    let parts = match binding {
        Binding::Object(id) => return refer(at.member("object"), id, "tensor", look).map(|_| ()),
        Binding::Parts(parts) => parts,
    };
    let at = at.member("parts");
    for (i, BindingPart { object, begin, end }) in parts.iter().enumerate() {
        let at = at.index(i);
        let tensor = refer(at.member("object"), object, "tensor", look)?;
        let most = tensor.as_tensor().and_then(|t| elements(&t.shape)).unwrap_or(0);
        if begin >= end || *end > most {
            let wanted = format!("0 <= begin < end <= {most}, the elements of object {}", quoted(object));
            return at.member("range").value(format!("[{begin}, {end}]"), wanted);
        }
    }
    Ok(())
}

fn uses(
    json: Json,
    at: At<'_>,
    look: Look<'_>,
    bindings: &Table<Binding>,
) -> Result<Vec<Use>, ArtifactError> {
    const MEMBERS: &[&str] = &["parameter", "input", "activation_policy", "auxiliaries"];
    let list = at.array(json, "an array of uses")?;
    let mut uses = Vec::with_capacity(list.len());
    let mut seen = HashSet::with_capacity(list.len());
    for (i, json) in list.into_iter().enumerate() {
        let at = at.index(i);
        let mut record = Record::closed(json, at, "use", MEMBERS)?;
        let parameter_at = at.member("parameter");
        let parameter = parameter_at.id(record.required("parameter")?)?;
        if bindings.get(&parameter).is_none() {
            let kind = K::Reference { what: "parameter", id: parameter, problem: "has no binding" };
            return Err(parameter_at.error(kind));
        }
        let input = at.member("input").id(record.required("input")?)?;
        if !seen.insert((parameter.clone(), input.clone())) {
            let found = format!("parameter {} with input {} again", quoted(&parameter), quoted(&input));
            return at.value(found, "each pair of parameter and input once");
        }
        let activation_policy = match record.optional("activation_policy") {
            None => None,
            Some(json) => {
                let policy = ActivationPolicy::ALL.iter().find(|(_, name)| json.as_str() == Some(name));
                let Some((policy, _)) = policy else {
                    let at = at.member("activation_policy");
                    return at.value(json.describe(), "\"A16Only\", \"AllowA8\" or \"AllowA4\"");
                };
                Some(*policy)
            }
        };
        let mut auxiliaries = Vec::new();
        if let Some(json) = record.optional("auxiliaries") {
            let at = at.member("auxiliaries");
            for (role, json) in at.members(json, "an object from role to binding")? {
                let at = at.member(&role);
                at.check_id(&role)?;
                let binding = binding(json, at)?;
                resolve(&binding, at, look)?;
                auxiliaries.push((role, binding));
            }
        }
        uses.push(Use { parameter, input, activation_policy, auxiliaries });
    }
    Ok(uses)
}

fn metadata(json: Json, at: At<'_>) -> Result<Json, ArtifactError> {
    let metadata = at.open_object(json)?;
    match metadata.get("name") {
        Some(name) if name.as_str().is_none_or(str::is_empty) => {
            at.member("name").value(name.describe(), "a non-empty string")
        }
        _ => Ok(metadata),
    }
}
