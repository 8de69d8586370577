//! Which importance belongs to which tensor.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use super::Resolver;
use crate::convert::decide::Decision;
use crate::convert::planned::MethodUsed;
use crate::convert::recipe::{ImportanceUse, Treatment};
use crate::error::quoted;

/// Most warnings about an importance matrix that are kept one by one.
const MAX_WARNINGS: usize = 20;

impl Resolver<'_> {
    /// The importance of each piece, where the decision's method uses it.
    pub(super) fn importance_of(
        &mut self,
        treatment: &Treatment,
        decision: &Decision,
        pieces: &[(usize, Range<u64>)],
    ) -> Result<Vec<Option<Arc<ninfer_gguf::Importance>>>, String> {
        let able = match &decision.method {
            MethodUsed::Encode(encoder) => encoder.spec().importance,
            MethodUsed::Callable(_) => true,
            MethodUsed::Import => false,
        };
        let wanted = if decision.fallback.is_some() && treatment.importance == ImportanceUse::Required {
            ImportanceUse::Auto
        } else {
            treatment.importance
        };
        if !able || wanted == ImportanceUse::None {
            return Ok(vec![None; pieces.len()]);
        }
        let required = wanted == ImportanceUse::Required;
        let Some(file) = self.importance else {
            if required {
                return Err("the rule requires importance, and no importance matrix was given".into());
            }
            return Ok(vec![None; pieces.len()]);
        };
        let mut found = Vec::new();
        for (piece, _) in pieces {
            let t = &self.source.tensors()[*piece];
            let mapped = self
                .recipe
                .names
                .iter()
                .find_map(|(pattern, name)| pattern.captures(&t.name).map(|c| name.fill(&c)))
                .unwrap_or_else(|| t.name.clone());
            let Some(entry) = file.matrix.get(&mapped) else {
                if required {
                    return Err(format!(
                        "the rule requires importance, and the matrix has no entry {}",
                        quoted(&mapped)
                    ));
                }
                found.push(None);
                continue;
            };
            self.used_importance.insert(entry.name_bytes().to_vec());
            let k = usize::try_from(t.k()).map_err(|_| "its rows are too long for importance".to_owned())?;
            // Experts are the first of three dimensions; one vector serves all rows.
            let experts = if let [experts, _, _] = t.shape[..] { experts } else { 1 };
            let experts = usize::try_from(experts).unwrap_or(usize::MAX);
            if (entry.experts(), entry.channels()) == (1, k) {
                found.push(Some(Arc::new(entry.clone())));
            } else {
                let split = entry.split(experts, k).map_err(|e| e.to_string())?;
                found.push(Some(Arc::new(split)));
            }
        }
        Ok(found)
    }

    /// What of the matrix is doubtful or not used.
    pub(super) fn importance_warnings(&mut self) {
        let Some(file) = self.importance else { return };
        let mut warnings = file.matrix.warnings();
        let known: HashSet<&[u8]> = self.used_importance.iter().map(Vec::as_slice).collect();
        let unused = file.matrix.entries().iter().filter(|e| !known.contains(e.name_bytes()));
        let unused: Vec<String> = unused.map(|e| quoted(&String::from_utf8_lossy(e.name_bytes()))).collect();
        if !unused.is_empty() {
            let shown = unused.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
            let more = if unused.len() > 5 { ", ..." } else { "" };
            warnings.push(format!("{} entries are not used: {shown}{more}", unused.len()));
        }
        let (kept, more) = (warnings.len().min(MAX_WARNINGS), warnings.len().saturating_sub(MAX_WARNINGS));
        self.warnings.extend(warnings.drain(..kept).map(|w| format!("importance matrix: {w}")));
        if more > 0 {
            self.warnings.push(format!("importance matrix: {more} more warnings"));
        }
    }
}
