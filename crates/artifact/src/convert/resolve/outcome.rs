//! What the rules came to: order, names, parameters, and what is left out.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::Resolver;
use crate::container::{Binding, BindingPart};
use crate::convert::planned::PlannedTensor;
use crate::error::quoted;

impl Resolver<'_> {
    /// Puts the planned tensors in the order of the source.
    pub(super) fn order(&mut self) {
        let key = |t: &PlannedTensor| t.pieces.first().map(|p| (p.source, p.rows.start));
        let mut order: Vec<usize> = (0..self.tensors.len()).collect();
        order.sort_by_key(|&i| key(&self.tensors[i]));
        let mut place = vec![0; order.len()];
        for (new, &old) in order.iter().enumerate() {
            place[old] = new;
        }
        let mut old: Vec<Option<PlannedTensor>> =
            std::mem::take(&mut self.tensors).into_iter().map(Some).collect();
        self.tensors = order.iter().filter_map(|&i| old[i].take()).collect();
        self.stacked = self.stacked.iter().map(|&i| place[i]).collect();
        for state in &mut self.states {
            state.taken.sort_by_key(|(rows, _)| rows.start);
            for (_, index) in &mut state.taken {
                *index = index.map(|i| place[i]);
            }
        }
    }

    /// What every logical parameter stands for.
    pub(super) fn bindings(&mut self) -> Vec<(String, Binding)> {
        let mut out: Vec<(String, Binding)> = Vec::new();
        let part = |t: &PlannedTensor, range: &Range<u64>| BindingPart {
            object: t.name.clone(),
            begin: range.start,
            end: range.end,
        };
        for (tensor, state) in self.states.iter().enumerate() {
            let t = &self.source.tensors()[tensor];
            let kept: Vec<&PlannedTensor> =
                state.taken.iter().filter_map(|(_, i)| i.map(|i| &self.tensors[i])).collect();
            if kept.is_empty()
                || state.taken.iter().any(|(_, i)| i.is_some_and(|i| self.stacked.contains(&i)))
            {
                continue;
            }
            // A whole tensor under a new name is bound under that alone.
            let whole = kept.len() == 1 && state.taken.len() == 1;
            if whole && !kept[0].bindings.is_empty() {
                continue;
            }
            let binding = if let [only] = kept[..] {
                Binding::Object(only.name.clone())
            } else {
                Binding::Parts(kept.iter().map(|k| part(k, &(0..k.elements()))).collect())
            };
            out.push((t.name.clone(), binding));
        }
        for t in &self.tensors {
            for (name, range) in &t.bindings {
                let binding = if *range == (0..t.elements()) {
                    Binding::Object(t.name.clone())
                } else {
                    Binding::Parts(vec![part(t, range)])
                };
                out.push((name.clone(), binding));
            }
        }
        let mut seen = HashSet::new();
        for (name, _) in &out {
            if !seen.insert(name.as_str()) {
                self.rules.push(format!("two parameters would have the name {}", quoted(name)));
            }
        }
        out
    }

    /// Refuses names that cannot be, or that two tensors would have.
    pub(super) fn check_names(&mut self) {
        let mut seen: HashMap<&str, usize> = HashMap::new();
        let mut found = Vec::new();
        for (i, t) in self.tensors.iter().enumerate() {
            if t.name.is_empty() || t.name.contains('\0') {
                found.push((
                    i,
                    "its name is empty or contains U+0000, so it cannot be an object's id".to_owned(),
                ));
            }
            if let Some(&other) = seen.get(t.name.as_str()) {
                let by = &self.tensors[other].why;
                found.push((i, format!("its name {} is that of another tensor (by {by})", quoted(&t.name))));
            } else {
                seen.insert(&t.name, i);
            }
        }
        for (i, reason) in found {
            let source = self.tensors[i].pieces.first().map_or(0, |p| p.source);
            self.refuse(source, reason);
        }
    }

    /// What rules drop; with rows where not the whole tensor goes.
    pub(super) fn dropped(&self) -> Vec<(String, Option<Range<u64>>)> {
        let mut out = Vec::new();
        for (tensor, state) in self.states.iter().enumerate() {
            let t = &self.source.tensors()[tensor];
            for (rows, _) in state.taken.iter().filter(|(_, index)| index.is_none()) {
                let whole = *rows == (0..t.rows());
                out.push((t.name.clone(), (!whole).then(|| rows.clone())));
            }
        }
        out
    }
}
