//! Whether a rule is right in itself, or everything that is wrong with it.

use ninfer_formats::encoder::EncoderId;
use ninfer_formats::{FormatId, LayoutId, import};

use super::pattern::{Pattern, Template, expand};
use super::recipe::{
    CALLABLE, Checked, DefaultRule, ImportanceUse, Method, OneOrMore, Rule, Target, Treatment,
};
use crate::error::quoted;

pub(super) fn rule_label(rule: &Rule) -> String {
    match (&rule.pattern, &rule.stack) {
        (Some(p), _) => p.clone(),
        (None, Some(s)) => s.list().join(" + "),
        (None, None) => String::new(),
    }
}

/// Patterns of a rule, names of the further parts of a stack, and the new name.
type Patterns = (Vec<Pattern>, Vec<Template>, Option<Template>);

fn check_patterns(rule: &Rule) -> Result<Patterns, String> {
    let patterns = match (&rule.pattern, &rule.stack) {
        (Some(p), None) => vec![p.clone()],
        (None, Some(OneOrMore::One(p))) => expand(p).map_err(|e| format!("the stack {e}"))?,
        (None, Some(OneOrMore::More(list))) => list.clone(),
        _ => return Err("needs either match or stack".into()),
    };
    if rule.stack.is_some() && patterns.len() < 2 {
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
    Ok((patterns, parts, name))
}

/// The rule, or everything that is wrong with it.
pub(super) fn check_rule(rule: &Rule) -> Result<Checked, Vec<String>> {
    let mut faults = Vec::new();
    let patterns = check_patterns(rule).map_err(|e| faults.push(e)).ok();
    let stack = rule.stack.is_some();
    if let Some([begin, end]) = rule.rows.filter(|[begin, end]| begin >= end) {
        faults.push(format!("the rows [{begin}, {end}) are empty"));
    }
    if stack && rule.name.is_none() {
        faults.push("a stack needs a name for the parent".into());
    }
    if stack && (rule.rows.is_some() || rule.drop) {
        faults.push("a stack takes neither rows nor drop".into());
    }
    if !stack && rule.bind.is_some() {
        faults.push("only a stack takes bind".into());
    }
    let treatment = if rule.drop {
        let other = [
            ("format", rule.format.is_some()),
            ("method", rule.method.is_some()),
            ("layout", rule.layout.is_some()),
            ("name", rule.name.is_some()),
            ("fallback", rule.fallback.is_some()),
            ("negative_scales", rule.negative_scales),
        ];
        let given = other.iter().filter(|(_, given)| *given);
        faults.extend(given.map(|(member, _)| format!("drop takes no {member}")));
        None
    } else {
        let checked = check_treatment(
            rule.format.as_deref(),
            rule.method.as_deref(),
            rule.negative_scales,
            rule.importance,
            rule.fallback.as_ref(),
        );
        let treatment = checked.map_err(|mut found| faults.append(&mut found)).ok();
        if let Some(layout) = &rule.layout {
            match (LayoutId::from_name(layout), treatment.as_ref().map(|t| t.target)) {
                (Err(e), _) => faults.push(e.to_string()),
                (Ok(_), Some(Target::Keep)) => faults.push("layout needs a named format".into()),
                (Ok(layout), Some(Target::Format(format))) => {
                    faults.extend(layout.check(format).err().map(|e| e.to_string()));
                }
                (Ok(_), None) => {}
            }
        }
        treatment
    };
    match patterns {
        Some((patterns, parts, name)) if faults.is_empty() => {
            let rows = rule.rows.map(|[begin, end]| (begin, end));
            let bind = rule.bind.unwrap_or_default();
            Ok(Checked { patterns, parts, name, rows, bind, optional: rule.optional, treatment, stack })
        }
        _ => Err(faults),
    }
}

pub(super) fn check_default(rule: &DefaultRule) -> Result<Option<Treatment>, Vec<String>> {
    if rule.format == "refuse" {
        return Ok(None);
    }
    check_treatment(
        Some(&rule.format),
        rule.method.as_deref(),
        rule.negative_scales,
        rule.importance,
        rule.fallback.as_ref(),
    )
    .map(Some)
}

fn check_treatment(
    format: Option<&str>,
    method: Option<&str>,
    negative_scales: bool,
    importance: ImportanceUse,
    fallback: Option<&OneOrMore>,
) -> Result<Treatment, Vec<String>> {
    let mut faults = Vec::new();
    let mut named = |name: &str| target(name).map_err(|e| faults.push(e)).ok();
    let target = format.map(&mut named);
    let fallback: Vec<_> =
        fallback.map_or_else(Vec::new, |f| f.list()).into_iter().filter_map(named).collect();
    if target.is_none() {
        faults.push("needs a format (a registered one, or keep), or drop = true".into());
    }
    let method = match method {
        None => Some(Method::Auto),
        Some(import::METHOD) => Some(Method::Import),
        Some(name) => match name.strip_prefix(CALLABLE) {
            Some("") => {
                faults.push("the callable has no name".into());
                None
            }
            Some(own) => Some(Method::Callable(own.to_owned())),
            None => {
                EncoderId::from_name(name).map_err(|e| faults.push(e.to_string())).ok().map(Method::Encoder)
            }
        },
    };
    // What follows is about both.
    let (Some(target), Some(method)) = (target.flatten(), method) else { return Err(faults) };
    let encoder = match (&method, target) {
        (Method::Encoder(_) | Method::Callable(_), Target::Keep) => {
            faults.push("keep copies words: it takes no method but import_encoded".into());
            return Err(faults);
        }
        (Method::Encoder(encoder), Target::Format(format)) => {
            faults.extend(encoder.check(format).err().map(|e| e.to_string()));
            Some(*encoder)
        }
        (Method::Auto, Target::Format(format)) => EncoderId::default_for(format),
        _ => None,
    };
    let name = encoder.map_or("keep or an import", EncoderId::name);
    if negative_scales && !encoder.is_some_and(|e| e.spec().negative_scales) {
        faults.push(format!("{name} takes no negative_scales"));
    }
    let callable = matches!(method, Method::Callable(_));
    if importance == ImportanceUse::Required && !callable && !encoder.is_some_and(|e| e.spec().importance) {
        faults.push(format!("{name} takes no importance"));
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    Ok(Treatment { target, method, negative_scales, importance, fallback })
}

fn target(name: &str) -> Result<Target, String> {
    if name == "keep" {
        return Ok(Target::Keep);
    }
    FormatId::from_name(name).map(Target::Format).map_err(|e| e.to_string())
}
