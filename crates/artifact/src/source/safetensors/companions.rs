//! Which stored tensors say one tensor together: codes with their scales, by name, type and shape.
//!
//! Every tensor is typed from its own companions, wherever they are stored; a configuration file can only contradict
//! (`quantization`). A scale that no tensor uses, a companion that is not known and codes without scales make an entry
//! that cannot be read and says why: values that look right and are not come from scales left out.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use ninfer_formats::ShapeText;

use super::quantization::{Kind, Quantization};
use super::shards::Shard;
use crate::error::{listed, quoted};
use crate::source::words::{FloatType, IntegerType};
use crate::source::{Content, OpenOptions, SourceTensor, Unused};

/// Where a stored tensor is: file and position in its header.
pub(super) type At = (usize, usize);

/// How a logical tensor is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// Words of one stored tensor.
    Plain(At),
    /// Codes and multipliers; `global`: one multiplier for all rows.
    Fp8Rows { codes: At, scale: At, global: bool },
    /// Codes and one multiplier for each 128 x 128 tile.
    Fp8Blocks { codes: At, scale: At },
    /// Packed codes, group scales, global scale; `multiplier`: it multiplies instead of dividing.
    Nvfp4 { codes: At, scale: At, global: At, multiplier: bool },
    /// Not at all.
    Nothing,
}

/// The logical tensors of a model.
#[derive(Debug, Default)]
pub(super) struct Grouped {
    pub(super) tensors: Vec<SourceTensor>,
    pub(super) readings: Vec<Reading>,
    pub(super) unused: Vec<Unused>,
    pub(super) warnings: Vec<String>,
}

/// Side of the tiles of block-scaled FP8.
pub(super) const TILE: u64 = 128;

/// What comes after the name of a tensor in the names of its companions.
const SUFFIXES: [&str; 8] =
    ["_scale", "_scale_inv", "_scale_2", "_global_scale", "_zero_point", "_shape", "_g_idx", "_scales"];
/// Last parts of names that are never anything but a companion.
const COMPANIONS: [&str; 16] = [
    "weight_scale",
    "weight_scale_inv",
    "weight_scale_2",
    "weight_global_scale",
    "weight_packed",
    "weight_zero_point",
    "weight_shape",
    "weight_g_idx",
    "scale_weight",
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
    "absmax",
    "quant_map",
    "SCB",
];
/// Scales of activations that belong to a weight of the same module.
const ACTIVATIONS: [&str; 4] = ["input_scale", "input_global_scale", "scale_input", "input_scale_inv"];
/// Scales of activations and caches of a module of a quantised model.
const CACHES: [&str; 5] = ["k_scale", "v_scale", "q_scale", "output_scale", "prob_output_scale"];

/// Companions of 4-bit codes of bitsandbytes.
const BITSANDBYTES: [&str; 6] = [
    ".absmax",
    ".quant_map",
    ".nested_absmax",
    ".nested_quant_map",
    ".quant_state.bitsandbytes__nf4",
    ".quant_state.bitsandbytes__fp4",
];

struct Grouping<'a> {
    shards: &'a [Shard],
    options: &'a OpenOptions,
    quantization: &'a Quantization,
    names: BTreeMap<&'a str, At>,
    claimed: Vec<Vec<bool>>,
    out: Grouped,
}

/// Groups all stored tensors.
pub(super) fn group(shards: &[Shard], quantization: &Quantization, options: &OpenOptions) -> Grouped {
    let mut names = BTreeMap::new();
    for (s, shard) in shards.iter().enumerate() {
        for (i, t) in shard.header.tensors.iter().enumerate() {
            names.insert(&*t.name, (s, i));
        }
    }
    let claimed = shards.iter().map(|s| vec![false; s.header.tensors.len()]).collect();
    let mut grouping = Grouping { shards, options, quantization, names, claimed, out: Grouped::default() };
    grouping.run();
    grouping.out
}

impl<'a> Grouping<'a> {
    fn stored(&self, at: At) -> &'a super::StoredTensor {
        &self.shards[at.0].header.tensors[at.1]
    }

    fn get(&self, name: &str) -> Option<At> {
        self.names.get(name).copied()
    }

    fn claim(&mut self, at: At) {
        self.claimed[at.0][at.1] = true;
    }

    fn run(&mut self) {
        let all: Vec<At> = self
            .shards
            .iter()
            .enumerate()
            .flat_map(|(s, f)| (0..f.header.tensors.len()).map(move |i| (s, i)))
            .collect();
        // Owners first, so that what remains belongs to nobody; then everything in the order of the files.
        let mut owners: HashMap<At, Owned> = HashMap::new();
        for &at in &all {
            if let Some(owned) = self.owner(at) {
                for &(companion, _) in &owned.companions {
                    self.claim(companion);
                }
                owners.insert(at, owned);
            }
        }
        for &at in &all {
            if let Some(owned) = owners.remove(&at) {
                self.push_owned(at, owned);
            } else if !self.claimed[at.0][at.1] {
                self.push_rest(at);
            }
        }
    }

    /// The tensor that `name` would be a companion of.
    fn owner_of(&self, name: &str) -> Option<At> {
        SUFFIXES.iter().find_map(|suffix| {
            let owner = name.strip_suffix(suffix)?;
            self.get(owner).or_else(|| self.get(&format!("{owner}_packed")))
        })
    }

    /// What the tensor is together with its companions, if it has any.
    fn owner(&self, at: At) -> Option<Owned> {
        let t = self.stored(at);
        let name = &*t.name;
        if let Some(base) = name.strip_suffix("_packed") {
            return self.packed(at, base);
        }
        if let Some(base) = name.strip_suffix(".qweight") {
            return Some(self.foreign(
                at,
                &format!("{base}.weight"),
                base,
                "GPTQ or AWQ",
                &[".qzeros", ".scales", ".g_idx"],
            ));
        }
        if let Some(base) =
            name.strip_suffix("_blocks").filter(|b| self.get(&format!("{b}_scales")).is_some())
        {
            return Some(self.foreign(at, base, base, "MXFP4", &["_scales"]));
        }
        // A float companion of something else is no owner, even if it is of an FP8 type; other types have no scales.
        if !matches!(t.bits, Some(8)) || t.dtype == "BOOL" || self.owner_of(name).is_some() {
            return None;
        }
        if self.get(&format!("{name}.absmax")).is_some() {
            return Some(self.foreign(at, name, name, "bitsandbytes", &BITSANDBYTES));
        }
        let module = name.strip_suffix(".weight");
        if let Some(module) = module.filter(|m| self.get(&format!("{m}.SCB")).is_some()) {
            return Some(self.foreign(at, name, module, "bitsandbytes", &[".SCB", ".weight_format"]));
        }
        let mut found = self.companions(name);
        if let Some(other) = module.and_then(|m| self.get(&format!("{m}.scale_weight"))) {
            found.push((".scale_weight", other));
        }
        if found.is_empty() {
            return None;
        }
        let (content, reading) = match &*t.dtype {
            "F8_E4M3" => self.fp8(at, &found),
            "U8" => self.modelopt(at, &found),
            other => {
                let names: Vec<&str> = found.iter().map(|(_, c)| &*self.stored(*c).name).collect();
                let reason =
                    format!("no registered format holds {other} codes with scales ({})", listed(&names));
                (Content::Unsupported(reason), Reading::Nothing)
            }
        };
        let companions = found.iter().map(|&(_, c)| (c, true)).chain(self.activations(name)).collect();
        let shape = match reading {
            Reading::Nvfp4 { .. } => unpacked(&t.shape),
            _ => t.shape.clone(),
        };
        Some(Owned { name: name.to_owned(), shape, content, reading, companions })
    }

    /// Tensors whose names are `name` and a suffix, with the suffix. Beside a `weight` any suffix counts, so that one that is
    /// not known is not overlooked.
    fn companions(&self, name: &str) -> Vec<(&'a str, At)> {
        if !name.ends_with("weight") {
            let known = SUFFIXES.iter().filter_map(|s| Some((*s, self.get(&format!("{name}{s}"))?)));
            return known.collect();
        }
        let prefix = format!("{name}_");
        let after = self.names.range::<str, _>((Bound::Included(prefix.as_str()), Bound::Unbounded));
        after
            .take_while(|(n, _)| n.starts_with(&prefix))
            .map(|(n, &at)| (&n[name.len()..], at))
            .filter(|(suffix, _)| !suffix.contains('.'))
            .collect()
    }

    /// Scales of activations beside a quantised tensor `NAME.weight`.
    fn activations(&self, name: &str) -> Vec<(At, bool)> {
        let Some(module) = name.strip_suffix(".weight") else { return Vec::new() };
        ACTIVATIONS.iter().filter_map(|a| Some((self.get(&format!("{module}.{a}"))?, false))).collect()
    }

    fn foreign(&self, at: At, name: &str, base: &str, what: &str, suffixes: &[&str]) -> Owned {
        let companions =
            suffixes.iter().filter_map(|s| Some((self.get(&format!("{base}{s}"))?, true))).collect();
        Owned {
            name: name.to_owned(),
            shape: self.stored(at).shape.clone(),
            content: Content::Unsupported(format!(
                "it is quantised in the way of {what}, which no registered format holds"
            )),
            reading: Reading::Nothing,
            companions,
        }
    }

    /// E4M3 codes with these companions.
    fn fp8(&self, at: At, found: &[(&str, At)]) -> (Content, Reading) {
        let refuse = |reason: String| (Content::Unsupported(reason), Reading::Nothing);
        let t = self.stored(at);
        let &[(suffix, scale)] = found else {
            let names: Vec<&str> = found.iter().map(|(_, c)| &*self.stored(*c).name).collect();
            return refuse(format!("more than one tensor claims to scale it: {}", listed(&names)));
        };
        let s = self.stored(scale);
        if !["_scale", "_scale_inv", ".scale_weight"].contains(&suffix) {
            return refuse(format!("the companion {} of FP8 codes is not known", quoted(&s.name)));
        }
        let &[n, k] = &t.shape[..] else {
            return refuse(format!(
                "FP8 codes must have rank 2, [N, K]; the shape is {}",
                ShapeText::of(&t.shape)
            ));
        };
        if !["BF16", "F16", "F32"].contains(&&*s.dtype) {
            return refuse(format!(
                "the scales {} are {}; BF16, F16 or F32 are read",
                quoted(&s.name),
                s.dtype
            ));
        }
        let tiles = [n.div_ceil(TILE), k.div_ceil(TILE)];
        let rows = suffix != "_scale_inv";
        match &s.shape[..] {
            [] | [1] | [1, 1] => (Content::Fp8Rows, Reading::Fp8Rows { codes: at, scale, global: true }),
            [m] | [m, 1] if rows && suffix == "_scale" && *m == n => {
                (Content::Fp8Rows, Reading::Fp8Rows { codes: at, scale, global: false })
            }
            grid if grid == tiles && (suffix == "_scale_inv" || self.says_blocks(&t.name)) => {
                (Content::Fp8Blocks, Reading::Fp8Blocks { codes: at, scale })
            }
            other => {
                let wanted = match suffix {
                    "_scale" => format!(
                        "[], [1], [1, 1], [{n}] or [{n}, 1], or [{}, {}] where config.json says tiles of 128 x 128",
                        tiles[0], tiles[1]
                    ),
                    "_scale_inv" => {
                        format!("[], [1], [1, 1] or [{}, {}]: tiles of 128 x 128", tiles[0], tiles[1])
                    }
                    _ => "[], [1] or [1, 1]".to_owned(),
                };
                refuse(format!(
                    "the scales {} have shape {}; expected {wanted}",
                    quoted(&s.name),
                    ShapeText::of(other)
                ))
            }
        }
    }

    fn says_blocks(&self, name: &str) -> bool {
        self.quantization.claims(name).kinds.iter().any(|(kind, _)| *kind == Kind::Fp8Blocks)
    }

    /// U8 codes with these companions: ModelOpt's NVFP4, or nothing that is known.
    fn modelopt(&self, at: At, found: &[(&str, At)]) -> (Content, Reading) {
        let of = |suffix| found.iter().find(|(s, _)| *s == suffix).map(|&(_, c)| c);
        let refuse = |reason: String| (Content::Unsupported(reason), Reading::Nothing);
        if let Some((_, other)) = found.iter().find(|(s, _)| !["_scale", "_scale_2"].contains(s)) {
            return refuse(format!(
                "the companion {} of U8 codes is not known",
                quoted(&self.stored(*other).name)
            ));
        }
        let (Some(scale), Some(global)) = (of("_scale"), of("_scale_2")) else {
            let (_, other) = found[0];
            return refuse(format!(
                "U8 codes with {} alone are not known; NVFP4 codes have both _scale and _scale_2",
                quoted(&self.stored(other).name)
            ));
        };
        self.nvfp4(at, scale, global, true)
    }

    /// compressed-tensors: `BASE_packed` with its companions.
    fn packed(&self, at: At, base: &str) -> Option<Owned> {
        let of = |suffix: &str| self.get(&format!("{base}{suffix}"));
        let found: Vec<(At, bool)> = self
            .companions(base)
            .into_iter()
            .filter(|(s, _)| *s != "_packed")
            .map(|(_, c)| (c, true))
            .collect();
        if found.is_empty() && !base.ends_with("weight") {
            return None;
        }
        let t = self.stored(at);
        let mut shape = t.shape.clone();
        let refuse = |reason: String| (Content::Unsupported(reason), Reading::Nothing);
        let (content, reading) = if of("").is_some() {
            refuse(format!("there is also a tensor {}", quoted(base)))
        } else {
            match (of("_scale"), of("_global_scale"), found.len()) {
                (Some(scale), Some(global), 2) if t.dtype == "U8" => {
                    let (content, reading) = self.nvfp4(at, scale, global, false);
                    if reading != Reading::Nothing {
                        shape = unpacked(&t.shape);
                    }
                    (content, reading)
                }
                _ => {
                    let names: Vec<&str> = found.iter().map(|(c, _)| &*self.stored(*c).name).collect();
                    refuse(format!(
                        "packed {} codes with the companions [{}] are not known; NVFP4 has U8 codes with _scale and \
                         _global_scale",
                        t.dtype,
                        listed(&names)
                    ))
                }
            }
        };
        let companions = found.into_iter().chain(self.activations(base)).collect();
        Some(Owned { name: base.to_owned(), shape, content, reading, companions })
    }

    fn nvfp4(&self, codes: At, scale: At, global: At, multiplier: bool) -> (Content, Reading) {
        let refuse = |reason: String| (Content::Unsupported(reason), Reading::Nothing);
        let (t, s, g) = (self.stored(codes), self.stored(scale), self.stored(global));
        let &[n, half] = &t.shape[..] else {
            return refuse(format!(
                "NVFP4 codes must have rank 2, [N, K / 2]; the shape is {}",
                ShapeText::of(&t.shape)
            ));
        };
        let Some(k) = half.checked_mul(2) else { return refuse("K does not fit 64 bits".into()) };
        if s.dtype != "F8_E4M3" {
            return refuse(format!("the scales {} are {}; NVFP4 has F8_E4M3", quoted(&s.name), s.dtype));
        }
        if k % 16 != 0 || s.shape != [n, k / 16] {
            let hint = if s.shape.len() == 1 { "; a flat tensor may be swizzled already" } else { "" };
            return refuse(format!(
                "the scales {} have shape {}; expected [{n}, {}], one for 16 columns of K = {k}{hint}",
                quoted(&s.name),
                ShapeText::of(&s.shape),
                k / 16
            ));
        }
        if g.dtype != "F32" || g.elements() != 1 {
            return refuse(format!(
                "the global scale {} is {} with shape {}; expected one F32",
                quoted(&g.name),
                g.dtype,
                ShapeText::of(&g.shape)
            ));
        }
        (Content::Nvfp4, Reading::Nvfp4 { codes, scale, global, multiplier })
    }

    fn push_owned(&mut self, at: At, owned: Owned) {
        let t = self.stored(at);
        let mut bytes = t.bytes();
        let mut companions = Vec::new();
        for &(c, used) in &owned.companions {
            let companion = self.stored(c);
            if used {
                bytes = bytes.saturating_add(companion.bytes());
                companions.push(companion.name.to_string());
            } else {
                let reason = format!("it does not concern the values of {}", quoted(&owned.name));
                self.out.unused.push(Unused { name: companion.name.to_string(), reason });
            }
        }
        let tensor = SourceTensor {
            name: owned.name,
            type_name: t.dtype.clone(),
            shape: owned.shape,
            bytes,
            content: owned.content,
            companions,
            file: at.0,
        };
        self.push(tensor, owned.reading);
    }

    /// A tensor that has no companions and is nobody's.
    fn push_rest(&mut self, at: At) {
        let t = self.stored(at);
        let name = &*t.name;
        let last = name.rsplit('.').next().unwrap_or(name);
        let one = t.bits.is_some() && t.elements() <= 1;
        if CACHES.contains(&last) && one && self.quantization.is_some() {
            let reason = "it scales activations or a cache, not weights".to_owned();
            return self.out.unused.push(Unused { name: name.to_owned(), reason });
        }
        if last == "scaled_fp8" && t.dtype.starts_with("F8") && t.elements() <= 2 {
            let reason = "it marks a file with scaled FP8 weights".to_owned();
            return self.out.unused.push(Unused { name: name.to_owned(), reason });
        }
        let owner = self.owner_of(name).or_else(|| {
            let module = name.strip_suffix(last)?;
            (ACTIVATIONS.contains(&last) || last == "scale_weight")
                .then(|| self.get(&format!("{module}weight")))?
        });
        let lonely = COMPANIONS.contains(&last) || ACTIVATIONS.contains(&last);
        let coded = owner.is_some_and(|o| self.stored(o).bits == Some(8) && self.stored(o).dtype != "BOOL");
        let reading;
        let content = if lonely || (coded && SUFFIXES.iter().any(|s| name.ends_with(s))) {
            reading = Reading::Nothing;
            Content::Unsupported(match owner {
                Some(owner) => {
                    let o = self.stored(owner);
                    format!(
                        "by its name it belongs to {}, which is {} and does not use it",
                        quoted(&o.name),
                        o.dtype
                    )
                }
                None => "by its name it is a companion of a quantised tensor, and no such tensor is there"
                    .to_owned(),
            })
        } else {
            let content = plain(&t.dtype, self.options);
            reading = match content {
                Content::Unsupported(_) => Reading::Nothing,
                _ => Reading::Plain(at),
            };
            content
        };
        let tensor = SourceTensor {
            name: name.to_owned(),
            type_name: t.dtype.clone(),
            shape: t.shape.clone(),
            bytes: t.bytes(),
            content,
            companions: Vec::new(),
            file: at.0,
        };
        self.push(tensor, reading);
    }

    fn push(&mut self, mut tensor: SourceTensor, mut reading: Reading) {
        let global = matches!(reading, Reading::Fp8Rows { global: true, .. });
        match self.quantization.check(&tensor, global) {
            Ok(None) => {}
            Ok(Some(warning)) => {
                self.out.warnings.push(format!("tensor {}: {warning}", quoted(&tensor.name)))
            }
            Err(reason) if self.options.ignore_quantization_config => {
                self.out.warnings.push(format!("tensor {}: {reason}", quoted(&tensor.name)));
            }
            Err(reason) => {
                tensor.content = Content::Unsupported(reason);
                reading = Reading::Nothing;
            }
        }
        self.out.tensors.push(tensor);
        self.out.readings.push(reading);
    }
}

/// A tensor with its companions; `true` for those that its values need.
struct Owned {
    name: String,
    shape: Vec<u64>,
    content: Content,
    reading: Reading,
    companions: Vec<(At, bool)>,
}

/// `[N, K / 2]` bytes as `[N, K]` elements.
fn unpacked(shape: &[u64]) -> Vec<u64> {
    let mut shape = shape.to_vec();
    if let Some(last) = shape.last_mut() {
        *last = last.saturating_mul(2);
    }
    shape
}

/// What a stored tensor without companions holds.
fn plain(dtype: &str, options: &OpenOptions) -> Content {
    use FloatType as F;
    use IntegerType as I;
    match dtype {
        "BF16" => Content::Values(F::Bf16),
        "F16" => Content::Values(F::F16),
        "F32" => Content::Values(F::F32),
        "F64" => Content::Values(F::F64),
        "F8_E4M3" if options.fp8_without_scale => Content::Values(F::E4m3),
        "F8_E4M3" => Content::Unsupported(
            "its FP8 codes have no scale tensor (NAME_scale, NAME_scale_inv); if they are the values themselves, say \
             so when opening (fp8_without_scale)"
                .into(),
        ),
        "BOOL" => Content::Integers(I::Bool),
        "U8" => Content::Integers(I::U8),
        "I8" => Content::Integers(I::I8),
        "U16" => Content::Integers(I::U16),
        "I16" => Content::Integers(I::I16),
        "U32" => Content::Integers(I::U32),
        "I32" => Content::Integers(I::I32),
        "U64" => Content::Integers(I::U64),
        "I64" => Content::Integers(I::I64),
        other => Content::Unsupported(format!("the type {other} is not read")),
    }
}
