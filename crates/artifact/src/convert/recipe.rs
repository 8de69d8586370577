//! Recipes: ordered rules from name patterns to formats, methods and parameters, in TOML or JSON.

use std::fmt;

use ninfer_formats::encoder::EncoderId;
use ninfer_formats::{FormatId, LayoutId, import};
use serde::Deserialize;

use super::pattern::{Pattern, Template, expand};
use crate::error::{ArtifactError, ArtifactErrorKind as K, quoted};

/// Largest recipe that is read, in bytes.
const MAX_BYTES: usize = 16 << 20;
/// Begins the name of a method that the caller provides.
pub(super) const CALLABLE: &str = "callable:";

/// One string or several.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum OneOrMore {
    /// One.
    One(String),
    /// Several, in order.
    More(Vec<String>),
}

impl OneOrMore {
    fn list(&self) -> Vec<&str> {
        match self {
            Self::One(s) => vec![s],
            Self::More(v) => v.iter().map(String::as_str).collect(),
        }
    }
}

/// How a method that takes importance uses it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ImportanceUse {
    /// Where the method takes it and the matrix has the tensor.
    #[default]
    Auto,
    /// Never.
    None,
    /// Always: a tensor without it is refused.
    Required,
}

/// Under which names the parts of a stack can be found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Bind {
    /// The parent under its name, and each part under its own.
    #[default]
    Both,
    /// Only the parts.
    Parts,
    /// Only the parent.
    Parent,
}

/// One rule as written. Which members go together is checked by [`Recipe::parse_toml`] and [`Recipe::parse_json`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Pattern of the names of the tensors.
    #[serde(rename = "match")]
    pub pattern: Option<String>,
    /// Patterns of the tensors that are stacked by rows, in order, or one pattern with alternatives in braces.
    pub stack: Option<OneOrMore>,
    /// New name, with the pattern's captures.
    pub name: Option<String>,
    /// Leave the tensor, or the rows, out.
    #[serde(default)]
    pub drop: bool,
    /// The rows `[begin, end)` that the rule is for; the others are left to later rules.
    pub rows: Option<[u64; 2]>,
    /// Target format, or `keep`.
    pub format: Option<String>,
    /// Layout; must be the format's.
    pub layout: Option<String>,
    /// Method; without one, words are imported where the source holds them, else the format's default method.
    pub method: Option<String>,
    /// Whether negative scales compete.
    #[serde(default)]
    pub negative_scales: bool,
    /// How importance is used.
    #[serde(default)]
    pub importance: ImportanceUse,
    /// Formats to try, in order, where the rule cannot apply.
    pub fallback: Option<OneOrMore>,
    /// Names of the parts of a stack.
    pub bind: Option<Bind>,
    /// Whether the rule may match nothing.
    #[serde(default)]
    pub optional: bool,
}

/// What becomes of tensors that no rule matches.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DefaultRule {
    /// Target format, or `keep`; `refuse` demands a rule for every tensor.
    pub format: String,
    /// As [`Rule::method`].
    pub method: Option<String>,
    /// As [`Rule::negative_scales`].
    #[serde(default)]
    pub negative_scales: bool,
    /// As [`Rule::importance`].
    #[serde(default)]
    pub importance: ImportanceUse,
    /// As [`Rule::fallback`].
    pub fallback: Option<OneOrMore>,
}

impl Default for DefaultRule {
    fn default() -> Self {
        Self {
            format: "keep".into(),
            method: None,
            negative_scales: false,
            importance: ImportanceUse::Auto,
            fallback: None,
        }
    }
}

/// The name under which an importance matrix holds a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportanceName {
    /// Pattern of the tensor's name.
    #[serde(rename = "match")]
    pub pattern: String,
    /// Name in the matrix, with the pattern's captures.
    pub name: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: Option<u64>,
    #[serde(default)]
    rule: Vec<Rule>,
    #[serde(default)]
    default: DefaultRule,
    #[serde(default)]
    importance_name: Vec<ImportanceName>,
}

/// A checked recipe.
#[derive(Clone, Debug)]
pub struct Recipe {
    pub(super) rules: Vec<Checked>,
    /// `None` demands a rule for every tensor.
    pub(super) default: Option<Treatment>,
    pub(super) names: Vec<(Pattern, Template)>,
    text: String,
}

/// What a tensor is to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// The source's own words.
    Keep,
    Format(FormatId),
}

/// How it becomes that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// Imported where possible, else the format's default.
    Auto,
    Import,
    Encoder(EncoderId),
    /// The caller's own, by name.
    Callable(String),
}

/// Target, method and parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Treatment {
    pub(super) target: Target,
    pub(super) method: Method,
    pub(super) negative_scales: bool,
    pub(super) importance: ImportanceUse,
    pub(super) fallback: Vec<Target>,
}

/// A rule with its patterns compiled.
#[derive(Clone, Debug)]
pub(super) struct Checked {
    /// One pattern, or those of a stack.
    pub(super) patterns: Vec<Pattern>,
    /// Names of the other parts of a stack, from the captures of the first pattern.
    pub(super) parts: Vec<Template>,
    pub(super) name: Option<Template>,
    pub(super) rows: Option<(u64, u64)>,
    pub(super) bind: Bind,
    pub(super) optional: bool,
    /// `None` drops.
    pub(super) treatment: Option<Treatment>,
    pub(super) stack: bool,
}

impl Checked {
    /// The rule's pattern as messages and listings print it.
    pub(super) fn label(&self) -> String {
        let texts: Vec<&str> = self.patterns.iter().map(Pattern::text).collect();
        texts.join(" + ")
    }
}

impl Default for Recipe {
    /// Every tensor keeps its words.
    fn default() -> Self {
        let default = check_default(&DefaultRule::default()).ok().flatten();
        Self { rules: Vec::new(), default, names: Vec::new(), text: "{}".into() }
    }
}

impl Recipe {
    /// Reads a recipe in TOML.
    ///
    /// # Errors
    /// [`ArtifactErrorKind::Recipe`](K::Recipe): not TOML, an unknown member, and with all of them at once every rule
    /// that is wrong in itself.
    pub fn parse_toml(text: &str) -> Result<Self, ArtifactError> {
        limit(text)?;
        let document: Document = toml::from_str(text).map_err(|e| problem(e.to_string().trim_end()))?;
        Self::check(document)
    }

    /// Reads a recipe in JSON, with the same members as in TOML.
    ///
    /// # Errors
    /// As [`Recipe::parse_toml`].
    pub fn parse_json(text: &str) -> Result<Self, ArtifactError> {
        limit(text)?;
        let document: Document = serde_json::from_str(text).map_err(|e| problem(&e.to_string()))?;
        Self::check(document)
    }

    /// A recipe of these rules.
    ///
    /// # Errors
    /// As [`Recipe::parse_toml`].
    pub fn new(
        rules: Vec<Rule>,
        default: DefaultRule,
        names: Vec<ImportanceName>,
    ) -> Result<Self, ArtifactError> {
        Self::check(Document { version: None, rule: rules, default, importance_name: names })
    }

    fn check(document: Document) -> Result<Self, ArtifactError> {
        let mut problems = Vec::new();
        let mut note = |place: String, e: String| problems.push(format!("{place}: {e}"));
        if let Some(version) = document.version.filter(|&v| v != 1) {
            note("version".into(), format!("is {version}; this reader knows 1"));
        }
        let mut rules = Vec::new();
        for (i, rule) in document.rule.iter().enumerate() {
            match check_rule(rule) {
                Ok(checked) => rules.push(checked),
                Err(e) => note(format!("rule {}{}", i + 1, place(rule)), e),
            }
        }
        let default = check_default(&document.default).unwrap_or_else(|e| {
            note("default".into(), e);
            None
        });
        let mut names = Vec::new();
        for (i, n) in document.importance_name.iter().enumerate() {
            let both = Pattern::new(&n.pattern)
                .map_err(|e| format!("the pattern {e}"))
                .and_then(|p| Template::new(&n.name, p.names()).map(|t| (p, t)));
            match both {
                Ok(both) => names.push(both),
                Err(e) => note(format!("importance_name {} ({})", i + 1, quoted(&n.pattern)), e),
            }
        }
        if !problems.is_empty() {
            return Err(problem(&problems.join("\n  ")));
        }
        let text = format!("{:?} {:?} {:?}", document.rule, document.default, document.importance_name);
        Ok(Self { rules, default, names, text })
    }

    /// A text that is the same for the same rules, whatever they were written in.
    pub(super) fn identity(&self) -> &str {
        &self.text
    }

    /// Names of the caller's own methods that the recipe uses.
    #[must_use]
    pub fn callables(&self) -> Vec<&str> {
        let treatments = self.rules.iter().filter_map(|r| r.treatment.as_ref()).chain(&self.default);
        let mut names: Vec<&str> = Vec::new();
        for t in treatments {
            if let Method::Callable(name) = &t.method
                && !names.contains(&name.as_str())
            {
                names.push(name);
            }
        }
        names
    }
}

fn limit(text: &str) -> Result<(), ArtifactError> {
    if text.len() > MAX_BYTES {
        return Err(problem(&format!("it has {} bytes; a recipe has at most {MAX_BYTES}", text.len())));
    }
    Ok(())
}

fn problem(message: &str) -> ArtifactError {
    ArtifactError::new(K::Recipe { message: message.to_owned() })
}

fn place(rule: &Rule) -> String {
    match (&rule.pattern, &rule.stack) {
        (Some(p), _) => format!(" ({})", quoted(p)),
        (None, Some(s)) => format!(" ({})", quoted(&s.list().join(" + "))),
        (None, None) => String::new(),
    }
}

fn check_rule(rule: &Rule) -> Result<Checked, String> {
    let (patterns, stack) = match (&rule.pattern, &rule.stack) {
        (Some(p), None) => (vec![p.clone()], false),
        (None, Some(OneOrMore::One(p))) => (expand(p).map_err(|e| format!("the stack {e}"))?, true),
        (None, Some(OneOrMore::More(list))) => (list.clone(), true),
        _ => return Err("needs either match or stack".into()),
    };
    if stack && patterns.len() < 2 {
        return Err("stack needs two patterns or more".into());
    }
    let patterns = patterns
        .iter()
        .map(|p| Pattern::new(p).map_err(|e| format!("the pattern {} {e}", quoted(p))))
        .collect::<Result<Vec<_>, _>>()?;
    let names = patterns[0].names();
    let mut parts = Vec::new();
    for p in &patterns[1..] {
        parts.push(Template::new(p.text(), names).map_err(|e| format!("the part {} {e}", quoted(p.text())))?);
        if p.names().len() != names.len() {
            return Err(format!("the part {} lacks captures of the first", quoted(p.text())));
        }
    }
    let name = rule.name.as_deref().map(|n| Template::new(n, names).map_err(|e| format!("the name {e}")));
    let name = name.transpose()?;
    let rows = match rule.rows {
        Some([begin, end]) if begin >= end => return Err(format!("the rows [{begin}, {end}) are empty")),
        rows => rows.map(|[begin, end]| (begin, end)),
    };
    if stack && name.is_none() {
        return Err("a stack needs a name for the parent".into());
    }
    if stack && (rows.is_some() || rule.drop) {
        return Err("a stack takes neither rows nor drop".into());
    }
    if !stack && rule.bind.is_some() {
        return Err("only a stack takes bind".into());
    }
    let bind = rule.bind.unwrap_or_default();
    let checked =
        |treatment| Checked { patterns, parts, name, rows, bind, optional: rule.optional, treatment, stack };
    if rule.drop {
        let other = [
            ("format", rule.format.is_some()),
            ("method", rule.method.is_some()),
            ("layout", rule.layout.is_some()),
            ("name", rule.name.is_some()),
            ("fallback", rule.fallback.is_some()),
            ("negative_scales", rule.negative_scales),
        ];
        if let Some((member, _)) = other.iter().find(|(_, given)| *given) {
            return Err(format!("drop takes no {member}"));
        }
        return Ok(checked(None));
    }
    let format =
        rule.format.as_deref().ok_or("needs a format (a registered one, or keep), or drop = true")?;
    let treatment = check_treatment(
        format,
        rule.method.as_deref(),
        rule.negative_scales,
        rule.importance,
        rule.fallback.as_ref(),
    )?;
    if let Some(layout) = &rule.layout {
        let layout = LayoutId::from_name(layout).map_err(|e| e.to_string())?;
        match treatment.target {
            Target::Keep => return Err("layout needs a named format".into()),
            Target::Format(format) => layout.check(format).map_err(|e| e.to_string())?,
        }
    }
    Ok(checked(Some(treatment)))
}

fn check_default(rule: &DefaultRule) -> Result<Option<Treatment>, String> {
    if rule.format == "refuse" {
        return Ok(None);
    }
    check_treatment(
        &rule.format,
        rule.method.as_deref(),
        rule.negative_scales,
        rule.importance,
        rule.fallback.as_ref(),
    )
    .map(Some)
}

fn check_treatment(
    format: &str,
    method: Option<&str>,
    negative_scales: bool,
    importance: ImportanceUse,
    fallback: Option<&OneOrMore>,
) -> Result<Treatment, String> {
    let target = target(format)?;
    let method = match method {
        None => Method::Auto,
        Some(import::METHOD) => Method::Import,
        Some(name) => match name.strip_prefix(CALLABLE) {
            Some("") => return Err("the callable has no name".into()),
            Some(own) => Method::Callable(own.to_owned()),
            None => Method::Encoder(EncoderId::from_name(name).map_err(|e| e.to_string())?),
        },
    };
    let encoder = match (&method, target) {
        (Method::Encoder(_) | Method::Callable(_), Target::Keep) => {
            return Err("keep copies words: it takes no method but import_encoded".into());
        }
        (Method::Encoder(encoder), Target::Format(format)) => {
            encoder.check(format).map_err(|e| e.to_string())?;
            Some(*encoder)
        }
        (Method::Auto, Target::Format(format)) => EncoderId::default_for(format),
        _ => None,
    };
    let name = encoder.map_or("keep or an import", EncoderId::name);
    if negative_scales && !encoder.is_some_and(|e| e.spec().negative_scales) {
        return Err(format!("{name} takes no negative_scales"));
    }
    let callable = matches!(method, Method::Callable(_));
    if importance == ImportanceUse::Required && !callable && !encoder.is_some_and(|e| e.spec().importance) {
        return Err(format!("{name} takes no importance"));
    }
    let fallback = fallback.map_or(Ok(Vec::new()), |f| f.list().into_iter().map(self::target).collect());
    Ok(Treatment { target, method, negative_scales, importance, fallback: fallback? })
}

fn target(name: &str) -> Result<Target, String> {
    if name == "keep" {
        return Ok(Target::Keep);
    }
    FormatId::from_name(name).map(Target::Format).map_err(|e| e.to_string())
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keep => f.write_str("keep"),
            Self::Format(format) => f.write_str(format.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: &str = r#"
version = 1
[default]
format = "fp32"
fallback = "keep"
[[rule]]
match = "blk.{n}.ffn_*.weight"
format = "q4_g64_fp16"
method = "grouped_search"
negative_scales = true
importance = "required"
layout = "row_split_k128_v1"
fallback = ["q8_g32_fp16", "keep"]
[[rule]]
stack = "blk.{n}.attn_{q,k,v}.weight"
name = "blk.{n}.attn_qkv.weight"
bind = "parts"
format = "keep"
[[rule]]
match = "token_embd.weight"
rows = [0, 100]
format = "bf16"
method = "callable:mine"
optional = true
[[rule]]
match = "rope*"
drop = true
[[importance_name]]
match = "model.{n}"
name = "blk.{n}"
"#;

    #[test]
    fn toml_and_json_give_the_same_recipe() {
        let recipe = Recipe::parse_toml(FULL).unwrap();
        assert_eq!(recipe.rules.len(), 4);
        let first = recipe.rules[0].treatment.as_ref().unwrap();
        assert_eq!(first.target, Target::Format(FormatId::Q4G64Fp16));
        assert_eq!(first.method, Method::Encoder(EncoderId::GroupedSearch));
        assert_eq!(first.fallback, [Target::Format(FormatId::Q8G32Fp16), Target::Keep]);
        assert_eq!(recipe.rules[1].patterns.len(), 3);
        assert_eq!(recipe.rules[1].bind, Bind::Parts);
        assert_eq!(recipe.rules[2].rows, Some((0, 100)));
        assert!(recipe.rules[3].treatment.is_none());
        assert_eq!(recipe.callables(), ["mine"]);
        let value: serde_json::Value = toml::from_str(FULL).unwrap();
        let json = Recipe::parse_json(&value.to_string()).unwrap();
        assert_eq!(json.identity(), recipe.identity());
        assert_ne!(Recipe::default().identity(), recipe.identity());
    }

    #[test]
    fn wrong_rules_are_all_named_at_once() {
        let text = r#"
[[rule]]
match = "a"
[[rule]]
match = "b"
format = "q4_g64"
[[rule]]
match = "c"
format = "q2_g64_fp16"
method = "grouped_absmax"
"#;
        let e = Recipe::parse_toml(text).unwrap_err().to_string();
        for part in ["rule 1 (\"a\"): needs a format", "rule 2 (\"b\")", "rule 3 (\"c\"): ", "grouped_absmax"]
        {
            assert!(e.contains(part), "{part} in {e}");
        }
    }

    #[test]
    fn every_rule_has_its_refusal() {
        for (text, why) in [
            ("x = 1", "unknown field"),
            ("version = 2", "this reader knows 1"),
            ("[[rule]]\nmatch = 'a'\nformat = 'keep'\nformats = 'keep'", "unknown field"),
            ("[[rule]]\nformat = 'keep'", "either match or stack"),
            ("[[rule]]\nmatch = 'a'\nstack = ['a', 'b']\nformat = 'keep'", "either match or stack"),
            ("[[rule]]\nstack = ['a']\nname = 'n'\nformat = 'keep'", "two patterns"),
            ("[[rule]]\nstack = ['a', 'b']\nformat = 'keep'", "needs a name"),
            ("[[rule]]\nstack = ['a.{n}', 'b']\nname = 'x'\nformat = 'keep'", "lacks captures"),
            ("[[rule]]\nstack = ['a.{n}', 'b.*']\nname = 'x'\nformat = 'keep'", "may only hold captures"),
            ("[[rule]]\nmatch = 'a'\nrows = [3, 3]\nformat = 'keep'", "are empty"),
            ("[[rule]]\nmatch = 'a'\nrows = [3]\nformat = 'keep'", "rows"),
            ("[[rule]]\nmatch = 'a'\ndrop = true\nformat = 'keep'", "drop takes no format"),
            ("[[rule]]\nmatch = 'a'\nbind = 'parts'\nformat = 'keep'", "only a stack"),
            ("[[rule]]\nmatch = 'a['\nformat = 'keep'", "without its ]"),
            ("[[rule]]\nmatch = 'a'\nname = '{n}'\nformat = 'keep'", "does not capture"),
            ("[[rule]]\nmatch = 'a'\nformat = 'keep'\nmethod = 'grouped_absmax'", "keep copies"),
            ("[[rule]]\nmatch = 'a'\nformat = 'bf16'\nmethod = 'grouped_absmax'", "does not produce"),
            ("[[rule]]\nmatch = 'a'\nformat = 'bf16'\nmethod = 'magic'", "magic"),
            ("[[rule]]\nmatch = 'a'\nformat = 'bf16'\nmethod = 'callable:'", "no name"),
            ("[[rule]]\nmatch = 'a'\nformat = 'bf16'\nnegative_scales = true", "takes no negative_scales"),
            ("[[rule]]\nmatch = 'a'\nformat = 'bf16'\nimportance = 'required'", "takes no importance"),
            ("[[rule]]\nmatch = 'a'\nformat = 'bf16'\nimportance = 'yes'", "unknown variant"),
            ("[[rule]]\nmatch = 'a'\nformat = 'bf16'\nlayout = 'row_scale_v1'", "row_scale_v1"),
            ("[[rule]]\nmatch = 'a'\nformat = 'bf16'\nfallback = 'q9'", "q9"),
            ("[default]\nformat = 'x'", "default: "),
            ("[[importance_name]]\nmatch = 'a'\nname = '{n}'", "importance_name 1"),
            ("[[rule]", "rule"),
        ] {
            let e = Recipe::parse_toml(text).unwrap_err();
            assert!(matches!(e.kind(), K::Recipe { .. }), "{text}");
            assert!(e.to_string().contains(why), "{text}: {e}");
        }
        assert!(Recipe::parse_toml("[default]\nformat = 'refuse'").unwrap().default.is_none());
    }
}
