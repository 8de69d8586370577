//! The directory of an artifact: what the JSON says, checked (container specification, "JSON root").

use std::borrow::Cow;
use std::collections::HashMap;

use ninfer_formats::{FormatError, FormatId, LayoutId, ShapeText, encoded_size};

use super::json::Json;
use crate::error::{ArtifactError, ArtifactErrorKind as K};

/// One object of the payload.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    /// Unique id.
    pub id: String,
    /// Offset in the logical payload, in bytes.
    pub offset: u64,
    /// Length in bytes; never 0.
    pub bytes: u64,
    /// Tensor or resource.
    pub kind: ObjectKind,
}

/// What an object is.
#[derive(Clone, Debug, PartialEq)]
pub enum ObjectKind {
    /// A tensor.
    Tensor(TensorRecord),
    /// Bytes that the container does not interpret.
    Resource {
        /// Encoding name; `raw_bytes_v1` is the only one that can be read.
        encoding: Cow<'static, str>,
    },
}

/// A tensor as the directory describes it. Format and layout may be unknown to this reader; [`Object::tensor`]
/// resolves them.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorRecord {
    /// Elements per dimension; 0 to 16 positive dimensions.
    pub shape: Vec<u64>,
    /// Format name.
    pub format: Cow<'static, str>,
    /// Layout name.
    pub layout: Cow<'static, str>,
    /// Number of divisors; 1 unless `nvfp4`.
    pub divisors: u64,
}

/// A tensor object whose format, layout and size are registered and agree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TensorSpec<'a> {
    /// Format.
    pub format: FormatId,
    /// Elements per dimension.
    pub shape: &'a [u64],
    /// Number of divisors.
    pub divisors: u64,
}

impl Object {
    /// End of the object in the logical payload, in bytes.
    #[must_use]
    pub fn end(&self) -> u64 {
        // Checked when the directory was read or planned.
        self.offset.saturating_add(self.bytes)
    }

    /// The tensor's record, if the object is one.
    #[must_use]
    pub fn as_tensor(&self) -> Option<&TensorRecord> {
        match &self.kind {
            ObjectKind::Tensor(t) => Some(t),
            ObjectKind::Resource { .. } => None,
        }
    }

    /// `"tensor"` or `"resource"`.
    #[must_use]
    pub fn kind_name(&self) -> &'static str {
        match self.kind {
            ObjectKind::Tensor(_) => "tensor",
            ObjectKind::Resource { .. } => "resource",
        }
    }

    /// Resolves the tensor's format and layout and checks its size: what must hold before its bytes mean anything.
    ///
    /// # Errors
    /// A resource; an unknown format or layout, a pair that is not registered, a shape or divisor count that the
    /// layout cannot hold, `bytes` other than the encoded size.
    pub fn tensor(&self) -> Result<TensorSpec<'_>, ArtifactError> {
        let ObjectKind::Tensor(t) = &self.kind else {
            let kind = K::ObjectKind { found: "resource", wanted: "tensor" };
            return Err(ArtifactError::new(kind).in_object(&self.id));
        };
        let fail = |e: FormatError| ArtifactError::new(K::Format(e)).in_object(&self.id);
        let format = FormatId::from_name(&t.format).map_err(fail)?;
        LayoutId::from_name(&t.layout).map_err(fail)?.check(format).map_err(fail)?;
        let wanted = encoded_size(format, &t.shape, t.divisors).map_err(fail)?;
        if wanted != self.bytes {
            let shape = ShapeText::of(&t.shape);
            let kind = K::ObjectBytes { found: self.bytes, wanted, format: format.name(), shape };
            return Err(ArtifactError::new(kind).in_object(&self.id));
        }
        Ok(TensorSpec { format, shape: &t.shape, divisors: t.divisors })
    }

    /// Checks that the object's bytes may be read: a tensor as [`Object::tensor`] says, a resource of a known
    /// encoding.
    ///
    /// # Errors
    /// See [`Object::tensor`]; an unknown resource encoding.
    pub fn check(&self) -> Result<(), ArtifactError> {
        match &self.kind {
            ObjectKind::Tensor(_) => self.tensor().map(|_| ()),
            ObjectKind::Resource { encoding } => {
                let layout = LayoutId::from_name(encoding);
                match layout {
                    Ok(LayoutId::RawBytesV1) => Ok(()),
                    Ok(other) => {
                        let wanted = LayoutId::RawBytesV1.name().to_owned();
                        let kind = K::JsonValue { found: format!("encoding {:?}", other.name()), wanted };
                        Err(ArtifactError::new(kind).in_object(&self.id))
                    }
                    Err(e) => Err(ArtifactError::new(K::Format(e)).in_object(&self.id)),
                }
            }
        }
    }

    pub(crate) fn to_json(&self) -> Json {
        let mut members = vec![("id", Json::from(self.id.as_str())), ("kind", self.kind_name().into())];
        match &self.kind {
            ObjectKind::Tensor(t) => {
                members.push(("shape", Json::array(t.shape.iter().copied())));
                members.push(("format", t.format.as_ref().into()));
                members.push(("layout", t.layout.as_ref().into()));
            }
            ObjectKind::Resource { encoding } => members.push(("encoding", encoding.as_ref().into())),
        }
        members.push(("offset", self.offset.into()));
        members.push(("bytes", self.bytes.into()));
        if let ObjectKind::Tensor(TensorRecord { divisors: divisors @ 2.., .. }) = self.kind {
            members.push(("divisors", divisors.into()));
        }
        Json::object(members)
    }
}

/// A component of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct Component {
    /// Open object.
    pub config: Json,
    /// Another component that this one works for.
    pub target: Option<String>,
    /// Role to id of a resource object.
    pub resources: Vec<(String, String)>,
    /// Only in component `text`.
    pub proposal: Option<Proposal>,
}

/// The `proposal` of component `text`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proposal {
    /// Domain `full`.
    Full,
    /// Domain `indexed`.
    Indexed {
        /// Number of rows; positive.
        rows: u64,
    },
}

/// Where the elements of a logical parameter are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Binding {
    /// All elements of one tensor object, by id.
    Object(String),
    /// Ranges of tensor objects, one after the other.
    Parts(Vec<BindingPart>),
}

/// A run of logical elements of a tensor object: never bytes, never padding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindingPart {
    /// Id of the tensor object.
    pub object: String,
    /// First element.
    pub begin: u64,
    /// One past the last element.
    pub end: u64,
}

/// One use of a parameter by an input.
#[derive(Clone, Debug, PartialEq)]
pub struct Use {
    /// Name of a binding.
    pub parameter: String,
    /// The input it meets.
    pub input: String,
    /// How the input's activations may be quantised.
    pub activation_policy: Option<ActivationPolicy>,
    /// Role to the binding of an auxiliary parameter.
    pub auxiliaries: Vec<(String, Binding)>,
}

/// Activation precision that a use permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivationPolicy {
    /// `A16Only`
    A16Only,
    /// `AllowA8`
    AllowA8,
    /// `AllowA4`
    AllowA4,
}

impl ActivationPolicy {
    /// All policies with their names.
    pub const ALL: [(Self, &'static str); 3] =
        [(Self::A16Only, "A16Only"), (Self::AllowA8, "AllowA8"), (Self::AllowA4, "AllowA4")];

    /// Name in the directory.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::A16Only => "A16Only",
            Self::AllowA8 => "AllowA8",
            Self::AllowA4 => "AllowA4",
        }
    }
}

impl Component {
    /// A component with this open `config` object and nothing else.
    #[must_use]
    pub fn with_config(config: Json) -> Self {
        Self { config, target: None, resources: Vec::new(), proposal: None }
    }

    pub(crate) fn to_json(&self) -> Json {
        let mut members = vec![("config", self.config.clone())];
        if let Some(target) = &self.target {
            members.push(("target", target.as_str().into()));
        }
        if !self.resources.is_empty() {
            let roles = self.resources.iter().map(|(role, id)| (role.as_str(), id.as_str().into()));
            members.push(("resources", Json::object(roles)));
        }
        match self.proposal {
            None => {}
            Some(Proposal::Full) => {
                members.push(("proposal", Json::object([("domain", "full".into())])));
            }
            Some(Proposal::Indexed { rows }) => {
                let proposal = [("domain", Json::from("indexed")), ("rows", rows.into())];
                members.push(("proposal", Json::object(proposal)));
            }
        }
        Json::object(members)
    }
}

impl Binding {
    pub(crate) fn to_json(&self) -> Json {
        match self {
            Self::Object(id) => Json::object([("object", id.as_str().into())]),
            Self::Parts(parts) => {
                let parts = parts.iter().map(|p| {
                    let range = Json::array([p.begin, p.end]);
                    Json::object([("object", p.object.as_str().into()), ("range", range)])
                });
                Json::object([("parts", Json::array(parts))])
            }
        }
    }
}

impl Use {
    pub(crate) fn to_json(&self) -> Json {
        let mut members =
            vec![("parameter", Json::from(self.parameter.as_str())), ("input", self.input.as_str().into())];
        if let Some(policy) = self.activation_policy {
            members.push(("activation_policy", policy.name().into()));
        }
        if !self.auxiliaries.is_empty() {
            let roles = self.auxiliaries.iter().map(|(role, b)| (role.as_str(), b.to_json()));
            members.push(("auxiliaries", Json::object(roles)));
        }
        Json::object(members)
    }
}

/// One file of the artifact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEntry {
    /// Name of a part file beside the entry; `None` for the entry itself.
    pub path: Option<String>,
    /// Bytes of the logical payload in this file.
    pub payload_bytes: u64,
}

/// Named entries in their order, found by name in constant time.
#[derive(Clone, Debug)]
pub struct Table<T> {
    entries: Vec<(String, T)>,
    index: HashMap<String, usize>,
}

impl<T> Table<T> {
    pub(crate) fn new(entries: Vec<(String, T)>) -> Self {
        let index = entries.iter().enumerate().map(|(i, (name, _))| (name.clone(), i)).collect();
        Self { entries, index }
    }

    /// The entry of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&T> {
        self.index.get(name).map(|&i| &self.entries[i].1)
    }

    /// All entries in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &T)> {
        self.entries.iter().map(|(name, v)| (name.as_str(), v))
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// A run of bytes of one file of the artifact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Index of the file in `files`; 0 is the entry.
    pub file: usize,
    /// Offset from the start of that file, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}
