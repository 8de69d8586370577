//! What `config.json` says about quantised tensors. It types nothing: it is held against what the tensors themselves
//! say.

use regex_lite::Regex;

use crate::container::Json;
use crate::source::{Content, SourceTensor};

/// What a configuration says a tensor is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Fp8Rows,
    Fp8Blocks,
    Nvfp4,
    /// Something that no tensor of a registered format is; what.
    Other(String),
    /// FP8 without saying how it is scaled.
    Fp8,
}

impl Kind {
    fn describe(&self) -> String {
        match self {
            Self::Fp8Rows => "FP8 with row or tensor scales".into(),
            Self::Fp8Blocks => "FP8 with scales of 128 x 128 tiles".into(),
            Self::Nvfp4 => "NVFP4".into(),
            Self::Fp8 => "FP8".into(),
            Self::Other(what) => what.clone(),
        }
    }

    fn agrees(&self, t: &SourceTensor, global: bool) -> bool {
        match (self, &t.content) {
            (Self::Fp8Rows, Content::Fp8Rows)
            | (Self::Fp8Blocks, Content::Fp8Blocks)
            | (Self::Nvfp4, Content::Nvfp4)
            | (Self::Fp8, Content::Fp8Rows | Content::Fp8Blocks) => true,
            // One tile is one scale.
            (Self::Fp8Blocks, Content::Fp8Rows) => {
                global && t.shape.iter().all(|&d| d <= super::companions::TILE)
            }
            _ => false,
        }
    }
}

#[derive(Debug)]
enum Pattern {
    /// This module.
    Exact(String),
    /// This module and those inside it, and modules of this last name.
    Module(String),
    /// `*` stands for anything.
    Wildcard(Regex),
    /// A regular expression, from the start of the name.
    Expression(Regex),
    /// A class such as `Linear`: which tensors it means the file does not say.
    Class,
    /// An expression that cannot be read.
    Unreadable,
}

impl Pattern {
    /// compressed-tensors: a name, `re:` with an expression, or a class.
    fn target(text: &str) -> Self {
        match text.strip_prefix("re:") {
            Some(pattern) => {
                // Python's `match`: from the start, not to the end.
                Regex::new(&format!("^(?:{pattern})")).map_or(Self::Unreadable, Self::Expression)
            }
            None if text.starts_with(char::is_uppercase) && !text.contains('.') => Self::Class,
            None => Self::Exact(text.to_owned()),
        }
    }

    /// ModelOpt: a name with `*`.
    fn wildcard(text: &str) -> Self {
        if !text.contains('*') {
            return Self::Module(text.to_owned());
        }
        let escaped: Vec<String> = text.split('*').map(regex_lite::escape).collect();
        Regex::new(&format!("^(?s:{})$", escaped.join(".*"))).map_or(Self::Unreadable, Self::Wildcard)
    }

    fn matches(&self, module: &str) -> bool {
        match self {
            Self::Exact(name) => module == name,
            Self::Module(name) => {
                module == name
                    || module.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('.'))
                    || module.strip_suffix(name.as_str()).is_some_and(|rest| rest.ends_with('.'))
            }
            Self::Wildcard(r) | Self::Expression(r) => r.is_match(module),
            Self::Class => true,
            Self::Unreadable => false,
        }
    }
}

#[derive(Debug)]
struct Group {
    name: String,
    targets: Vec<Pattern>,
    kind: Kind,
}

/// The statement of a configuration about quantised tensors, or that there is none.
#[derive(Debug, Default)]
pub(super) struct Quantization {
    /// `quant_method`; `None`: no statement.
    method: Option<String>,
    groups: Vec<Group>,
    ignored: Vec<(String, Pattern)>,
    /// Whether groups, or patterns, could not be read: then silence about a tensor means nothing.
    partial: bool,
}

/// What a configuration says about one tensor.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// Kind and name of every group that means it.
    pub(super) kinds: Vec<(Kind, String)>,
    /// Whether a group means it by more than a class.
    named: bool,
    /// The pattern that excludes it.
    excluded: Option<String>,
}

fn strings(json: Option<&Json>) -> Vec<&str> {
    match json {
        Some(Json::Array(values)) => values.iter().filter_map(Json::as_str).collect(),
        _ => Vec::new(),
    }
}

/// The two sides of `weight_block_size` or `block_structure`.
fn sides(json: Option<&Json>) -> Option<[u64; 2]> {
    match json {
        Some(Json::Array(values)) => match &values[..] {
            [a, b] => Some([a.as_u64()?, b.as_u64()?]),
            _ => None,
        },
        _ => None,
    }
}

fn blocks(sides: Option<[u64; 2]>) -> Kind {
    match sides {
        Some([128, 128]) => Kind::Fp8Blocks,
        Some([a, b]) => Kind::Other(format!("FP8 with scales of {a} x {b} tiles")),
        None => Kind::Other("FP8 with scales of tiles of unknown size".into()),
    }
}

impl Quantization {
    /// Reads `quantization_config` (or `compression_config`) of a `config.json`, or `quantization` of a `hf_quant_config.json`.
    pub(super) fn of(config: Option<&Json>, modelopt: Option<&Json>) -> Self {
        let find = |json: &Json| -> Option<Json> {
            let inner =
                |j: &Json| j.get("quantization_config").or_else(|| j.get("compression_config")).cloned();
            inner(json).or_else(|| inner(json.get("text_config")?))
        };
        let statement = config.and_then(find).filter(|j| matches!(j, Json::Object(_)));
        if let Some(json) = statement {
            return Self::read(&json);
        }
        match modelopt.and_then(|j| j.get("quantization")) {
            Some(json) => Self::modelopt(json),
            None => Self::default(),
        }
    }

    fn read(json: &Json) -> Self {
        let method = json.get("quant_method").and_then(Json::as_str).unwrap_or_default();
        match method {
            "compressed-tensors" => Self::compressed(json),
            "modelopt" | "modelopt_fp4" => Self::modelopt(json.get("quantization").unwrap_or(json)),
            "fp8" => {
                let kind = match json.get("weight_block_size") {
                    None | Some(Json::Null) => Kind::Fp8,
                    size => blocks(sides(size)),
                };
                let ignored = strings(json.get("modules_to_not_convert"));
                Self {
                    method: Some(method.to_owned()),
                    groups: vec![Group {
                        name: "quant_method fp8".into(),
                        targets: vec![Pattern::Class],
                        kind,
                    }],
                    ignored: ignored
                        .into_iter()
                        .map(|i| (i.to_owned(), Pattern::Module(i.to_owned())))
                        .collect(),
                    partial: false,
                }
            }
            other => Self { method: Some(other.to_owned()), partial: true, ..Self::default() },
        }
    }

    fn compressed(json: &Json) -> Self {
        let mut out = Self { method: Some("compressed-tensors".into()), ..Self::default() };
        if let Some(Json::Object(groups)) = json.get("config_groups") {
            for (name, group) in groups {
                let targets: Vec<Pattern> =
                    strings(group.get("targets")).into_iter().map(Pattern::target).collect();
                out.partial |= targets.iter().any(|t| matches!(t, Pattern::Unreadable));
                let Some(weights @ Json::Object(_)) = group.get("weights") else { continue };
                let kind = compressed_kind(weights);
                out.groups.push(Group { name: name.clone(), targets, kind });
            }
        } else {
            out.partial = true;
        }
        out.ignored =
            strings(json.get("ignore")).into_iter().map(|i| (i.to_owned(), Pattern::target(i))).collect();
        out
    }

    fn modelopt(json: &Json) -> Self {
        let kind = |algorithm: &str| match algorithm {
            "NVFP4" | "NVFP4_AWQ" => Kind::Nvfp4,
            "FP8" | "FP8_PER_CHANNEL_PER_TOKEN" | "FP8_PB_WO" => Kind::Fp8,
            other => Kind::Other(other.to_owned()),
        };
        let mut out = Self { method: Some("modelopt".into()), ..Self::default() };
        if let Some(Json::Object(layers)) = json.get("quantized_layers") {
            for (name, layer) in layers {
                let Some(algorithm) = layer.get("quant_algo").and_then(Json::as_str) else { continue };
                let targets = vec![Pattern::Exact(name.clone())];
                out.groups.push(Group {
                    name: format!("quantized_layers of {algorithm}"),
                    targets,
                    kind: kind(algorithm),
                });
            }
        } else if let Some(algorithm) = json.get("quant_algo").and_then(Json::as_str) {
            let targets = vec![Pattern::Class];
            out.groups.push(Group {
                name: format!("quant_algo {algorithm}"),
                targets,
                kind: kind(algorithm),
            });
        } else {
            out.partial = true;
        }
        let ignored = strings(json.get("exclude_modules")).into_iter().chain(strings(json.get("ignore")));
        out.ignored = ignored.map(|i| (i.to_owned(), Pattern::wildcard(i))).collect();
        out
    }

    /// Whether there is a statement at all.
    pub(super) fn is_some(&self) -> bool {
        self.method.is_some()
    }

    /// `quant_method`.
    pub(super) fn method(&self) -> Option<&str> {
        self.method.as_deref()
    }

    /// What is said about a tensor.
    pub(super) fn claims(&self, tensor: &str) -> Claims {
        let module = tensor.strip_suffix(".weight").unwrap_or(tensor);
        let mut claims = Claims::default();
        for group in &self.groups {
            if group.targets.iter().any(|t| t.matches(module)) {
                claims.kinds.push((group.kind.clone(), group.name.clone()));
                claims.named |=
                    group.targets.iter().any(|t| !matches!(t, Pattern::Class) && t.matches(module));
            }
        }
        let excluding = |(_, p): &&(String, Pattern)| !matches!(p, Pattern::Class) && p.matches(module);
        claims.excluded = self.ignored.iter().find(excluding).map(|(text, _)| text.clone());
        claims
    }

    /// Holds a tensor against the configuration. `global`: its FP8 codes have a single scale.
    ///
    /// # Errors
    /// The disagreement. A warning where groups overlap and one of them agrees.
    pub(super) fn check(&self, t: &SourceTensor, global: bool) -> Result<Option<String>, String> {
        if self.method.is_none() {
            return Ok(None);
        }
        let found = match t.content {
            Content::Fp8Rows => "FP8 codes with row or tensor scales",
            Content::Fp8Blocks => "FP8 codes with scales of 128 x 128 tiles",
            Content::Nvfp4 => "NVFP4 codes and scales",
            Content::Values(_) if t.shape.len() == 2 && t.name.ends_with(".weight") => {
                let claims = self.claims(&t.name);
                return match claims.kinds.first() {
                    Some((kind, group)) if claims.named && claims.excluded.is_none() => Err(format!(
                        "config.json says {} ({group}), but it is {} without scales",
                        kind.describe(),
                        t.type_name
                    )),
                    _ => Ok(None),
                };
            }
            _ => return Ok(None),
        };
        let claims = self.claims(&t.name);
        if let Some(pattern) = claims.excluded {
            return Err(format!("config.json leaves it unquantised ({pattern:?}), but it has {found}"));
        }
        if claims.kinds.is_empty() {
            return if self.partial {
                Ok(None)
            } else {
                Err(format!("no group of config.json means it, but it has {found}"))
            };
        }
        let (agree, differ): (Vec<_>, Vec<_>) = claims.kinds.iter().partition(|(k, _)| k.agrees(t, global));
        match (agree.is_empty(), differ.first()) {
            (_, None) => Ok(None),
            (false, Some((kind, group))) => Ok(Some(format!(
                "it has {found}, as one group of config.json says; {group} says {} of it as well",
                kind.describe()
            ))),
            (true, Some((kind, group))) => {
                Err(format!("config.json says {} ({group}), but it has {found}", kind.describe()))
            }
        }
    }
}

/// The kind that `weights` of a group of compressed-tensors describes.
fn compressed_kind(weights: &Json) -> Kind {
    let text = |name| weights.get(name).and_then(Json::as_str).unwrap_or_default();
    let number = |name| weights.get(name).and_then(Json::as_u64);
    match (text("type"), number("num_bits"), text("strategy")) {
        ("float", Some(8), "channel" | "tensor") => Kind::Fp8Rows,
        ("float", Some(8), "block") => blocks(sides(weights.get("block_structure"))),
        ("float", Some(4), "tensor_group" | "group") if number("group_size") == Some(16) => Kind::Nvfp4,
        (kind, bits, strategy) => {
            let bits = bits.map_or("?".to_owned(), |b| b.to_string());
            Kind::Other(format!("{kind} codes of {bits} bits by {strategy}"))
        }
    }
}
