//! Reading typed records out of [`Json`] values: closed member sets, types, and errors that name the place.

use super::json::{Json, Step, render};
use crate::error::{ArtifactError, ArtifactErrorKind as K};

/// Where a value sits in the directory; kept on the stack and rendered only for an error.
#[derive(Clone, Copy)]
pub(super) struct At<'p> {
    parent: Option<&'p At<'p>>,
    step: Option<StepRef<'p>>,
}

#[derive(Clone, Copy)]
enum StepRef<'p> {
    Member(&'p str),
    Index(usize),
}

impl<'p> At<'p> {
    pub(super) const ROOT: At<'static> = At { parent: None, step: None };

    pub(super) fn member<'q>(&'q self, name: &'q str) -> At<'q> {
        At { parent: Some(self), step: Some(StepRef::Member(name)) }
    }

    pub(super) fn index(&self, index: usize) -> At<'_> {
        At { parent: Some(self), step: Some(StepRef::Index(index)) }
    }

    fn path(&self) -> String {
        let mut steps = Vec::new();
        let mut at = Some(self);
        while let Some(here) = at {
            match here.step {
                Some(StepRef::Member(name)) => steps.push(Step::Member(name.to_owned())),
                Some(StepRef::Index(i)) => steps.push(Step::Index(i)),
                None => {}
            }
            at = here.parent;
        }
        steps.reverse();
        if steps.is_empty() { "the root".into() } else { render(&steps) }
    }

    pub(super) fn error(&self, kind: K) -> ArtifactError {
        ArtifactError::new(kind).at_json(self.path())
    }

    pub(super) fn value<T>(&self, found: String, wanted: impl Into<String>) -> Result<T, ArtifactError> {
        Err(self.error(K::JsonValue { found, wanted: wanted.into() }))
    }

    pub(super) fn string(&self, json: Json, wanted: &'static str) -> Result<String, ArtifactError> {
        match json {
            Json::Str(s) => Ok(s),
            other => Err(self.wrong_type(&other, wanted)),
        }
    }

    /// An ID: a non-empty string without U+0000.
    pub(super) fn id(&self, json: Json) -> Result<String, ArtifactError> {
        let id = self.string(json, "an ID: a non-empty string without U+0000")?;
        self.check_id(&id)?;
        Ok(id)
    }

    pub(super) fn check_id(&self, id: &str) -> Result<(), ArtifactError> {
        if id.is_empty() || id.contains('\0') {
            return self.value(format!("{id:?}"), "an ID: a non-empty string without U+0000");
        }
        Ok(())
    }

    pub(super) fn u64(&self, json: &Json) -> Result<u64, ArtifactError> {
        json.as_u64().ok_or_else(|| self.wrong_type(json, "an integer from 0 to 18446744073709551615"))
    }

    pub(super) fn positive(&self, json: &Json) -> Result<u64, ArtifactError> {
        match json.as_u64() {
            Some(n) if n > 0 => Ok(n),
            _ => Err(self.wrong_type(json, "an integer from 1 to 18446744073709551615")),
        }
    }

    pub(super) fn array(&self, json: Json, wanted: &'static str) -> Result<Vec<Json>, ArtifactError> {
        match json {
            Json::Array(values) => Ok(values),
            other => Err(self.wrong_type(&other, wanted)),
        }
    }

    pub(super) fn members(
        &self,
        json: Json,
        wanted: &'static str,
    ) -> Result<Vec<(String, Json)>, ArtifactError> {
        match json {
            Json::Object(members) => Ok(members),
            other => Err(self.wrong_type(&other, wanted)),
        }
    }

    /// An object whose members are the writer's business.
    pub(super) fn open_object(&self, json: Json) -> Result<Json, ArtifactError> {
        self.members(json, "an object").map(Json::Object)
    }

    fn wrong_type(&self, json: &Json, wanted: &'static str) -> ArtifactError {
        self.error(K::JsonType { found: json.describe(), wanted })
    }
}

/// A record: an object with a closed set of members, taken out one by one.
pub(super) struct Record<'p> {
    name: &'static str,
    members: Vec<(String, Json)>,
    at: At<'p>,
}

impl<'p> Record<'p> {
    /// Checks that `json` is an object; the member set is checked by [`Record::close`].
    pub(super) fn open(json: Json, at: At<'p>, name: &'static str) -> Result<Self, ArtifactError> {
        let members = at.members(json, "an object")?;
        Ok(Self { name, members, at })
    }

    /// Checks that there is no member outside `allowed`.
    pub(super) fn close(&self, allowed: &'static [&'static str]) -> Result<(), ArtifactError> {
        match self.members.iter().find(|(name, _)| !allowed.contains(&name.as_str())) {
            None => Ok(()),
            Some((member, _)) => {
                Err(self.at.error(K::UnknownMember { record: self.name, member: member.clone(), allowed }))
            }
        }
    }

    pub(super) fn closed(
        json: Json,
        at: At<'p>,
        name: &'static str,
        allowed: &'static [&'static str],
    ) -> Result<Self, ArtifactError> {
        let record = Self::open(json, at, name)?;
        record.close(allowed)?;
        Ok(record)
    }

    /// Changes the record's name in messages once its kind is known.
    pub(super) fn rename(&mut self, name: &'static str) {
        self.name = name;
    }

    pub(super) fn optional(&mut self, member: &'static str) -> Option<Json> {
        let i = self.members.iter().position(|(name, _)| name == member)?;
        Some(self.members.swap_remove(i).1)
    }

    pub(super) fn required(&mut self, member: &'static str) -> Result<Json, ArtifactError> {
        self.optional(member).ok_or_else(|| self.at.error(K::MissingMember { record: self.name, member }))
    }
}
