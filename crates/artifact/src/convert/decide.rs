//! What a treatment makes of some rows of the source: format, shape, method, or the reasons why it cannot.

use std::ops::Range;

use ninfer_formats::encoder::nvfp4::Nvfp4Encoder;
use ninfer_formats::encoder::{EncoderId, Params, RowEncoder};
use ninfer_formats::{FormatError, FormatId, Scheme, ShapeText, encoded_size};

use super::encode::TILE;
use super::planned::MethodUsed;
use super::recipe::{Method, Target, Treatment};
use crate::error::quoted;
use crate::source::{Content, FloatType, IntegerType, SourceTensor, TensorSource};

/// A way that can be gone.
#[derive(Clone, Debug)]
pub(super) struct Decision {
    pub(super) format: FormatId,
    pub(super) method: MethodUsed,
    pub(super) shape: Vec<u64>,
    pub(super) divisors: u64,
    pub(super) bytes: u64,
    pub(super) negative_scales: bool,
    /// Why the treatment's own target was not possible.
    pub(super) fallback: Option<String>,
}

/// Source tensors and their rows, in the order in which they are stacked.
type Pieces<'p> = &'p [(usize, Range<u64>)];

/// Tries the treatment's target and then its fallbacks.
pub(super) fn decide(
    source: &dyn TensorSource,
    treatment: &Treatment,
    pieces: Pieces<'_>,
) -> Result<Decision, String> {
    let mut reasons = Vec::new();
    match attempt(source, treatment.target, &treatment.method, treatment.negative_scales, pieces) {
        Ok(decision) => return Ok(decision),
        Err(reason) => reasons.push(reason),
    }
    for &target in &treatment.fallback {
        match attempt(source, target, &Method::Auto, false, pieces) {
            Ok(decision) => return Ok(Decision { fallback: Some(reasons.join("; ")), ..decision }),
            Err(reason) => reasons.push(format!("fallback {target}: {reason}")),
        }
    }
    Err(reasons.join("; "))
}

fn attempt(
    source: &dyn TensorSource,
    target: Target,
    method: &Method,
    negative_scales: bool,
    pieces: Pieces<'_>,
) -> Result<Decision, String> {
    let tensors: Vec<&SourceTensor> = pieces.iter().map(|(p, _)| &source.tensors()[*p]).collect();
    for t in &tensors {
        if let Content::Unsupported(reason) = &t.content {
            return Err(reason.clone());
        }
        if let Some(axis) = t.shape.iter().position(|&d| d == 0) {
            let shape = ShapeText::of(&t.shape);
            return Err(format!("dimension {axis} of {shape} is zero: an object cannot be empty"));
        }
    }
    let k = tensors[0].k();
    if let Some(t) = tensors.iter().find(|t| t.k() != k) {
        return Err(format!("its rows have {k} elements, those of {:?} {}", t.name, t.k()));
    }
    let importable = |format: FormatId| pieces.iter().all(|(p, _)| source.importable(*p).contains(&format));
    let (format, method) = match (target, method) {
        (Target::Keep, _) => keep(source, &tensors, pieces)?,
        (Target::Format(format), Method::Import) => {
            if !importable(format) {
                let able: Vec<&str> = source.importable(pieces[0].0).iter().map(|f| f.name()).collect();
                let able = if able.is_empty() { "no format".into() } else { able.join(" or ") };
                return Err(format!("its words are not importable as {format}; they are as {able}"));
            }
            (format, MethodUsed::Import)
        }
        (Target::Format(format), Method::Auto) if importable(format) => (format, MethodUsed::Import),
        (Target::Format(format), Method::Auto) => match EncoderId::default_for(format) {
            Some(encoder) => (format, MethodUsed::Encode(encoder)),
            None => return Err(format!("{format} has no default method; name one")),
        },
        (Target::Format(format), Method::Encoder(encoder)) => (format, MethodUsed::Encode(*encoder)),
        (Target::Format(format), Method::Callable(name)) => (format, MethodUsed::Callable(name.clone())),
    };
    check_values(format, &method, &tensors)?;
    let rows = pieces.iter().try_fold(0u64, |n, (_, r)| n.checked_add(r.end - r.start));
    let rows = rows.ok_or("its rows do not fit in 64 bits")?;
    let shape = match format.scheme() {
        Scheme::Direct(_) if pieces.len() == 1 && rows == tensors[0].rows() => tensors[0].shape.clone(),
        _ => vec![rows, k],
    };
    let divisors = if format == FormatId::Nvfp4 {
        tiles(pieces, method == MethodUsed::Import)?;
        pieces.len() as u64
    } else {
        1
    };
    let bytes = encoded_size(format, &shape, divisors).map_err(rule)?;
    if let MethodUsed::Encode(encoder) = method
        && encoder != EncoderId::CastDirect
    {
        let k = usize::try_from(k).map_err(|_| "its rows are too long for this machine")?;
        let params = Params { importance: None, negative_scales };
        if format == FormatId::Nvfp4 {
            Nvfp4Encoder::new(encoder, k, 1.0, params).map_err(rule)?;
        } else {
            RowEncoder::new(format, encoder, k, params).map_err(rule)?;
        }
    }
    Ok(Decision { format, method, shape, divisors, bytes, negative_scales, fallback: None })
}

/// The rule of a format's refusal without the parts that the plan's message has already.
fn rule(e: FormatError) -> String {
    match e {
        FormatError::Shape { format, rule, .. } => format!("{format}: {rule}"),
        other => other.to_string(),
    }
}

/// The format that keeps the source's words or, where the registry has none, its values.
fn keep(
    source: &dyn TensorSource,
    tensors: &[&SourceTensor],
    pieces: Pieces<'_>,
) -> Result<(FormatId, MethodUsed), String> {
    let mut found: Option<(FormatId, MethodUsed)> = None;
    for (t, (p, _)) in tensors.iter().zip(pieces) {
        let cast = MethodUsed::Encode(EncoderId::CastDirect);
        let way = match source.importable(*p).first() {
            Some(&format) => (format, MethodUsed::Import),
            None => match &t.content {
                Content::Values(FloatType::F16 | FloatType::E4m3) => (FormatId::Fp32, cast.clone()),
                Content::Integers(
                    IntegerType::Bool
                    | IntegerType::I8
                    | IntegerType::U8
                    | IntegerType::I16
                    | IntegerType::U16,
                ) => (FormatId::Int32, cast.clone()),
                Content::Values(_) | Content::Integers(_) => {
                    return Err(format!(
                        "no registered format holds the words of {}; name a format to convert them to",
                        t.type_name
                    ));
                }
                _ => {
                    return Err(format!(
                        "no registered format holds the words of {}; name a format and a method",
                        t.type_name
                    ));
                }
            },
        };
        match &mut found {
            None => found = Some(way),
            // What one part needs to be widened is exact for all of that format.
            Some(first) if first.0 == way.0 => {
                if way.1 == cast {
                    first.1 = way.1;
                }
            }
            Some(first) => {
                return Err(format!(
                    "the parts of a stack must have one format: {} becomes {}, {} {}",
                    quoted(&tensors[0].name),
                    first.0,
                    quoted(&t.name),
                    way.0
                ));
            }
        }
    }
    found.ok_or_else(|| "it has no parts".into())
}

/// Whether the source has what the method takes.
fn check_values(format: FormatId, method: &MethodUsed, tensors: &[&SourceTensor]) -> Result<(), String> {
    let name = method.name();
    let direct = matches!(format.scheme(), Scheme::Direct(_));
    for t in tensors {
        match (method, &t.content) {
            (MethodUsed::Import, _) => continue,
            (_, Content::Integers(_)) if format == FormatId::Int32 => {}
            (_, Content::Integers(_)) => {
                return Err(format!("it holds integers ({}), and {format} takes no integers", t.type_name));
            }
            _ if !t.content.has_values() => return Err(format!("{} has no values", t.type_name)),
            _ => {}
        }
        if !direct && t.shape.len() < 2 {
            let rank = t.shape.len();
            return Err(format!("it has rank {rank}, and {format} by {name} takes matrices"));
        }
    }
    Ok(())
}

/// Rows of `nvfp4` come in whole tiles, as many for each divisor; words are imported in the source's own tiles.
fn tiles(pieces: Pieces<'_>, import: bool) -> Result<(), String> {
    let count = |rows: &Range<u64>| rows.end - rows.start;
    for (_, rows) in pieces {
        if import && (!rows.start.is_multiple_of(TILE) || !rows.end.is_multiple_of(TILE)) {
            return Err(format!(
                "nvfp4: rows come in tiles of {TILE}, and rows {}..{} cut one",
                rows.start, rows.end
            ));
        }
        if pieces.len() > 1 && (count(rows) != count(&pieces[0].1) || !count(rows).is_multiple_of(TILE)) {
            return Err(format!(
                "nvfp4: the parts of a stack must have equal numbers of rows, multiples of {TILE}"
            ));
        }
    }
    Ok(())
}
