//! From a recipe and a source to a plan: rules in order, first match wins, every refusal at once.

mod importance;
mod outcome;

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use super::decide::decide;
use super::pattern::Captures;
use super::planned::{
    Divisors, ImportanceFile, MethodUsed, Piece, PlanOptions, PlannedResource, PlannedTensor, RecipePlan,
};
use super::recipe::{Bind, Checked, Recipe, Treatment};
use crate::container::Binding;
use crate::error::{ArtifactError, ArtifactErrorKind as K, Refusal, quoted};
use crate::source::TensorSource;

/// Plans a conversion. Reads headers only.
///
/// # Errors
/// [`ArtifactErrorKind::Unplannable`](K::Unplannable) with every tensor that its rule cannot be applied to and has no
/// fallback, and every rule that is at odds with the source: one that matches nothing (unless `optional`), a stack
/// with parts missing, rows beyond a tensor, two tensors of one name. A source without a tensor to convert.
pub fn plan_recipe(
    source: Arc<dyn TensorSource>,
    recipe: Recipe,
    importance: Option<ImportanceFile>,
    options: PlanOptions,
) -> Result<RecipePlan, ArtifactError> {
    let resolver = Resolver::new(&*source, &recipe, importance.as_ref(), &options);
    let Resolved { tensors, parts, skipped, dropped, warnings } = resolver.run()?;
    let taken: HashSet<&str> = tensors.iter().map(|t| t.name.as_str()).collect();
    let mut resources: Vec<PlannedResource> = Vec::new();
    for r in source.resources().iter().filter(|r| r.bytes > 0) {
        let mut id = r.name.clone();
        while taken.contains(id.as_str()) || resources.iter().any(|other| other.id == id) {
            id.push('_');
        }
        resources.push(PlannedResource { id, role: r.role.clone(), bytes: r.bytes });
    }
    Ok(RecipePlan {
        source,
        recipe,
        importance,
        options,
        tensors,
        parts,
        skipped,
        dropped,
        warnings,
        resources,
        divisors: Divisors::default(),
    })
}

struct Resolved {
    tensors: Vec<PlannedTensor>,
    parts: Vec<(String, Binding)>,
    skipped: Vec<Refusal>,
    dropped: Vec<(String, Option<Range<u64>>)>,
    warnings: Vec<String>,
}

/// What has become of a source tensor so far.
#[derive(Debug, Default)]
struct State {
    /// Rows that no rule has taken yet, in order.
    open: Vec<Range<u64>>,
    /// Rows taken, with the planned tensor; `None` for dropped ones.
    taken: Vec<(Range<u64>, Option<usize>)>,
    /// Rule (or default) that took the first rows, for messages.
    by: Option<String>,
}

struct Resolver<'a> {
    source: &'a dyn TensorSource,
    recipe: &'a Recipe,
    importance: Option<&'a ImportanceFile>,
    options: &'a PlanOptions,
    states: Vec<State>,
    tensors: Vec<PlannedTensor>,
    // Planned tensors that are stacks.
    stacked: HashSet<usize>,
    refusals: Vec<Refusal>,
    rules: Vec<String>,
    skipped: Vec<Refusal>,
    warnings: Vec<String>,
    used_importance: HashSet<Vec<u8>>,
}

impl<'a> Resolver<'a> {
    fn new(
        source: &'a dyn TensorSource,
        recipe: &'a Recipe,
        importance: Option<&'a ImportanceFile>,
        options: &'a PlanOptions,
    ) -> Self {
        let state = |rows| State { open: std::iter::once(0..rows).collect(), ..State::default() };
        Self {
            source,
            recipe,
            importance,
            options,
            states: source.tensors().iter().map(|t| state(t.rows())).collect(),
            tensors: Vec::new(),
            stacked: HashSet::new(),
            refusals: Vec::new(),
            rules: Vec::new(),
            skipped: Vec::new(),
            warnings: source.warnings(),
            used_importance: HashSet::new(),
        }
    }

    fn run(mut self) -> Result<Resolved, ArtifactError> {
        for (i, rule) in self.recipe.rules.iter().enumerate() {
            if rule.stack {
                self.stack(i, rule);
            } else {
                self.rule(i, rule);
            }
        }
        self.rest();
        self.order();
        let parts = self.bindings();
        self.check_names();
        self.importance_warnings();
        if !self.refusals.is_empty() || !self.rules.is_empty() {
            return Err(self.refused());
        }
        if self.tensors.is_empty() {
            let e = ArtifactError::new(K::NothingToConvert);
            return Err(match self.source.files().first() {
                Some(file) => e.with_path(&file.path),
                None => e,
            });
        }
        let dropped = self.dropped();
        let Self { tensors, skipped, warnings, .. } = self;
        Ok(Resolved { tensors, parts, skipped, dropped, warnings })
    }

    fn refused(self) -> ArtifactError {
        let kind = K::Unplannable { refusals: self.refusals, rules: self.rules };
        let e = ArtifactError::new(kind);
        match self.source.files().first() {
            Some(file) => e.with_path(&file.path),
            None => e,
        }
    }

    fn refuse(&mut self, tensor: usize, reason: String) {
        let t = &self.source.tensors()[tensor];
        self.refusals.push(Refusal {
            tensor: t.name.escape_debug().to_string(),
            source_type: t.type_name.clone(),
            reason,
        });
    }

    fn nothing_matched(&mut self, number: usize, rule: &Checked, matched: usize, used: usize) {
        let label = format!("rule {number} ({})", quoted(&rule.label()));
        if matched == 0 && !rule.optional {
            self.rules.push(format!("{label} matches no tensor; correct its pattern or say optional = true"));
        } else if matched > 0 && used == 0 {
            self.warnings.push(format!(
                "{label} has no effect: earlier rules take all {matched} tensor(s) that it matches"
            ));
        }
    }

    fn rule(&mut self, i: usize, rule: &Checked) {
        let (mut matched, mut used) = (0, 0);
        let label = format!("rule {} ({})", i + 1, quoted(&rule.label()));
        for tensor in 0..self.states.len() {
            let t = &self.source.tensors()[tensor];
            let Some(captures) = rule.patterns.first().and_then(|p| p.captures(&t.name)) else { continue };
            matched += 1;
            let rows = match rule.rows {
                None => 0..t.rows(),
                Some((begin, end)) if end <= t.rows() => begin..end,
                Some((begin, end)) => {
                    let all = t.rows();
                    self.refuse(tensor, format!("{label}: rows [{begin}, {end}) are beyond its {all} rows"));
                    continue;
                }
            };
            let regions = take(&mut self.states[tensor].open, &rows);
            if !regions.is_empty() {
                used += 1;
                self.states[tensor].by.get_or_insert_with(|| label.clone());
            }
            let single = regions.len() == 1;
            for region in regions {
                let whole = region == (0..t.rows());
                let Some(treatment) = &rule.treatment else {
                    self.states[tensor].taken.push((region, None));
                    continue;
                };
                let named = rule.name.as_ref().map(|n| n.fill(&captures));
                let name = match &named {
                    Some(name) if single => name.clone(),
                    Some(name) => region_name(name, &region),
                    None if whole => t.name.clone(),
                    None => region_name(&t.name, &region),
                };
                let index = self.apply(i, &label, treatment, &[(tensor, region.clone())], name);
                if let (Some(index), Some(named), true) = (index, named, single) {
                    // A name given to rows is a parameter of its own beside the whole.
                    let elements = (region.end - region.start).saturating_mul(t.k());
                    self.tensors[index].bindings.push((named, 0..elements));
                }
                self.states[tensor].taken.push((region, index));
            }
        }
        self.nothing_matched(i + 1, rule, matched, used);
    }

    fn stack(&mut self, i: usize, rule: &Checked) {
        let label = format!("rule {} ({})", i + 1, quoted(&rule.label()));
        // By captures: which parts are there.
        let mut found: Vec<(Captures, Vec<Option<usize>>)> = Vec::new();
        let mut index: HashMap<Captures, usize> = HashMap::new();
        for (tensor, t) in self.source.tensors().iter().enumerate() {
            for (part, pattern) in rule.patterns.iter().enumerate() {
                let Some(mut captures) = pattern.captures(&t.name) else { continue };
                captures.sort();
                let at = *index.entry(captures.clone()).or_insert_with(|| {
                    found.push((captures, vec![None; rule.patterns.len()]));
                    found.len() - 1
                });
                if let Some(other) = found[at].1[part].replace(tensor) {
                    let both =
                        format!("{} and {}", quoted(&self.source.tensors()[other].name), quoted(&t.name));
                    self.rules.push(format!("{label}: {both} are the same part of one stack"));
                }
            }
        }
        let (matched, mut used) = (found.iter().map(|f| f.1.iter().flatten().count()).sum(), 0);
        for (captures, parts) in found {
            let there: Vec<usize> = parts.iter().copied().flatten().collect();
            let closed = |s: &State, rows| s.open.len() != 1 || s.open[0] != (0..rows);
            let taken =
                there.iter().filter(|&&p| closed(&self.states[p], self.source.tensors()[p].rows())).count();
            if taken == there.len() {
                continue;
            }
            let Some(name) = rule.name.as_ref().map(|n| n.fill(&captures)) else { continue };
            if there.len() < parts.len() {
                let missing = rule.patterns.iter().enumerate().filter(|(i, _)| parts[*i].is_none());
                let missing: Vec<String> = missing
                    .map(|(i, p)| match i.checked_sub(1).and_then(|i| rule.parts.get(i)) {
                        Some(template) => quoted(&template.fill(&captures)),
                        None => quoted(p.text()),
                    })
                    .collect();
                self.refuse(
                    there[0],
                    format!("{label}: the source lacks {} of its stack", missing.join(", ")),
                );
                continue;
            }
            if let Some(&p) =
                there.iter().find(|&&p| closed(&self.states[p], self.source.tensors()[p].rows()))
            {
                let by = self.states[p].by.clone().unwrap_or_default();
                let other = quoted(&self.source.tensors()[p].name);
                self.refuse(there[0], format!("{label}: its part {other} is taken by {by}"));
                continue;
            }
            used += there.len();
            let Some(treatment) = &rule.treatment else { continue };
            let pieces: Vec<_> = there.iter().map(|&p| (p, 0..self.source.tensors()[p].rows())).collect();
            let planned = self.apply(i, &label, treatment, &pieces, name.clone());
            if let Some(index) = planned {
                self.stacked.insert(index);
                let t = &mut self.tensors[index];
                let (k, all) = (t.k(), t.elements());
                if rule.bind != Bind::Parts {
                    t.bindings.push((name, 0..all));
                }
                if rule.bind != Bind::Parent {
                    let mut begin = 0u64;
                    for (p, rows) in &pieces {
                        let end = begin + rows.end * k;
                        t.bindings.push((self.source.tensors()[*p].name.clone(), begin..end));
                        begin = end;
                    }
                }
            }
            for (p, rows) in pieces {
                self.states[p].open.clear();
                self.states[p].by = Some(label.clone());
                self.states[p].taken.push((rows, planned));
            }
        }
        self.nothing_matched(i + 1, rule, matched, used);
    }

    /// Gives what no rule took to the default.
    fn rest(&mut self) {
        for tensor in 0..self.states.len() {
            let t = &self.source.tensors()[tensor];
            for region in std::mem::take(&mut self.states[tensor].open) {
                let whole = region == (0..t.rows());
                let Some(default) = &self.recipe.default else {
                    self.refuse(tensor, "no rule matches it, and the default is to refuse".into());
                    continue;
                };
                let name = if whole { t.name.clone() } else { region_name(&t.name, &region) };
                let before = self.refusals.len();
                let index = self.apply(usize::MAX, "default", default, &[(tensor, region.clone())], name);
                if index.is_none() && whole && self.options.skip_unsupported {
                    self.skipped.extend(self.refusals.drain(before..));
                    continue;
                }
                self.states[tensor].taken.push((region, index));
            }
        }
    }

    /// Plans one tensor of the artifact from pieces of the source, or refuses it.
    fn apply(
        &mut self,
        rule: usize,
        label: &str,
        treatment: &Treatment,
        pieces: &[(usize, Range<u64>)],
        name: String,
    ) -> Option<usize> {
        let decided = decide(self.source, treatment, pieces).and_then(|decision| {
            let importance = self.importance_of(treatment, &decision, pieces)?;
            Ok((decision, importance))
        });
        let (decision, importance) = match decided {
            Ok(both) => both,
            Err(reason) => {
                let prefix = if rule == usize::MAX { String::new() } else { format!("{label}: ") };
                self.refuse(pieces[0].0, format!("{prefix}{reason}"));
                return None;
            }
        };
        let mut warnings = Vec::new();
        if decision.method != MethodUsed::Import {
            let quantised = pieces.iter().map(|(p, _)| &self.source.tensors()[*p]);
            let mut types: Vec<&str> =
                quantised.filter(|t| t.content.is_quantized()).map(|t| t.type_name.as_str()).collect();
            types.dedup();
            let lossless = decision.format == ninfer_formats::FormatId::Fp32;
            if !types.is_empty() && !lossless {
                warnings.push(format!("the source is quantised already ({})", types.join(", ")));
            }
        }
        let pieces = pieces.iter().zip(importance);
        self.tensors.push(PlannedTensor {
            name,
            format: decision.format,
            shape: decision.shape,
            divisors: decision.divisors,
            bytes: decision.bytes,
            pieces: pieces
                .map(|((source, rows), importance)| Piece { source: *source, rows: rows.clone(), importance })
                .collect(),
            method: decision.method,
            negative_scales: decision.negative_scales,
            rule: (rule != usize::MAX).then_some(rule.wrapping_add(1)),
            why: label.to_owned(),
            fallback: decision.fallback,
            warnings,
            bindings: Vec::new(),
        });
        Some(self.tensors.len() - 1)
    }
}

fn region_name(name: &str, rows: &Range<u64>) -> String {
    format!("{name}.rows.{}-{}", rows.start, rows.end)
}

/// Takes `rows` out of the open ones; returns what of them was open. An empty tensor's only range is empty and taken
/// by a rule for all rows.
fn take(open: &mut Vec<Range<u64>>, rows: &Range<u64>) -> Vec<Range<u64>> {
    let mut taken = Vec::new();
    let mut left = Vec::new();
    for range in open.drain(..) {
        let (begin, end) = (range.start.max(rows.start), range.end.min(rows.end));
        if range == *rows || begin < end {
            taken.push(begin..end);
            if range.start < begin {
                left.push(range.start..begin);
            }
            if end < range.end {
                left.push(end..range.end);
            }
        } else {
            left.push(range);
        }
    }
    *open = left;
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(range: Range<u64>) -> Vec<Range<u64>> {
        std::iter::once(range).collect()
    }

    #[test]
    fn rows_are_taken_once() {
        let mut open = one(0..10);
        assert_eq!(take(&mut open, &(2..4)), one(2..4));
        assert_eq!(open, [0..2, 4..10]);
        assert_eq!(take(&mut open, &(3..6)), one(4..6));
        assert_eq!(take(&mut open, &(0..10)), [0..2, 6..10]);
        assert!(open.is_empty());
        assert!(take(&mut open, &(0..10)).is_empty());
        let mut empty = one(0..0);
        assert_eq!(take(&mut empty, &(0..0)), one(0..0));
        assert!(empty.is_empty());
    }
}
