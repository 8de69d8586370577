//! Named methods that turn values into the words of a format.
//!
//! A method is exact: its rounding steps and their order are fixed, so every implementation gives the same words.
//! Different methods may give different valid words for one format; decoding never depends on the method.

mod cast_direct;

pub use cast_direct::{Values, cast_direct};

use crate::registry::FormatId;

/// A named method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncoderId {
    /// `cast_direct`: word by word to a direct format.
    CastDirect,
}

/// One row of the method table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncoderSpec {
    /// The method.
    pub id: EncoderId,
    /// Name.
    pub name: &'static str,
    /// The formats it produces.
    pub formats: &'static [FormatId],
}

/// The methods. The first one that produces a format is that format's default.
pub static ENCODERS: [EncoderSpec; 1] = [EncoderSpec {
    id: EncoderId::CastDirect,
    name: "cast_direct",
    formats: &[FormatId::Bf16, FormatId::Fp32, FormatId::Int32],
}];
