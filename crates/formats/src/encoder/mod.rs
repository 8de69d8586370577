//! Encoders: named methods that turn values into the words of a format.
//!
//! A method is exact: its rounding steps and their order are fixed (encoder specification), so the words are the same
//! on every machine, for any number of threads and whatever chunks rows arrive in. The code here is the portable
//! reference; faster versions elsewhere must equal it. Arithmetic is plain binary32 and binary64 in the written order:
//! no fused multiply-add, no reordered sums. Different methods may give different valid words for one format;
//! decoding never depends on the method.
//!
//! ```
//! use ninfer_formats::FormatId;
//! use ninfer_formats::encoder::{EncoderId, Params, encode};
//!
//! let x: Vec<f32> = (0..2 * 64).map(|i| i as f32 / 64.0 - 1.0).collect();
//! let payload = encode(FormatId::Q4G64Fp16, EncoderId::GroupedAbsmax, 2, 64, &x, Params::default())?;
//! assert_eq!(payload.len(), 256 + 8); // two rows padded to 128 elements: 128 code bytes, a gap, four scale words
//! # Ok::<(), ninfer_formats::FormatError>(())
//! ```

mod cast_direct;
pub mod fp8_row_maxabs;
pub mod gguf_absmax;
pub mod gguf_k;
mod gguf_runs;
pub mod gguf_search;
pub mod gguf_signed;
pub mod grouped_absmax;
pub mod grouped_search;
pub mod lanes;
pub mod nvfp4;
mod planes;
mod rows;
mod source;
pub mod ternary_fit;

pub use cast_direct::{Values, cast_direct};
pub use planes::{RowPlanes, RowSlices};
pub use rows::{Params, RowEncoder, RowFault, RowPlace, encode};
pub use source::Source;

use crate::error::FormatError;
use crate::registry::{FormatId, near_names};

/// A named method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EncoderId {
    /// `cast_direct`: word by word to a direct format ([`cast_direct()`]).
    CastDirect,
    /// `grouped_absmax`: group scales from the largest magnitude ([`grouped_absmax`]).
    GroupedAbsmax,
    /// `grouped_search`: group scales of least weighted squared error ([`grouped_search`]).
    GroupedSearch,
    /// `fp8_row_maxabs`: FP8 rows from the largest magnitude ([`fp8_row_maxabs`]).
    Fp8RowMaxabs,
    /// `gguf_search`: ggml blocks of least weighted squared error ([`gguf_search`], [`gguf_k`], [`gguf_signed`]).
    GgufSearch,
    /// `ternary_fit`: ternary codes and scale of least weighted squared error ([`ternary_fit`]).
    TernaryFit,
    /// `nvfp4_maxabs`: E2M1 groups from the largest magnitude ([`nvfp4`]).
    Nvfp4Maxabs,
    /// `nvfp4_search`: E2M1 groups of least weighted squared error ([`nvfp4`]).
    Nvfp4Search,
    /// `gguf_absmax`: ggml blocks of 32 from the value of largest magnitude ([`gguf_absmax`]).
    GgufAbsmax,
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
    /// Whether it is the method of these formats when none is named.
    pub default: bool,
    /// Whether it takes an importance vector.
    pub importance: bool,
    /// Whether it takes `negative_scales`.
    pub negative_scales: bool,
}

const GROUPED: &[FormatId] =
    &[FormatId::Q4G64Fp16, FormatId::Q5G64Fp16, FormatId::Q6G64Fp16, FormatId::Q8G32Fp16];

/// The methods, in the order of [`EncoderId`].
pub static ENCODERS: [EncoderSpec; 9] = [
    EncoderSpec {
        id: EncoderId::CastDirect,
        name: "cast_direct",
        formats: &[FormatId::Bf16, FormatId::Fp32, FormatId::Int32],
        default: true,
        importance: false,
        negative_scales: false,
    },
    EncoderSpec {
        id: EncoderId::GroupedAbsmax,
        name: "grouped_absmax",
        formats: GROUPED,
        default: true,
        importance: false,
        negative_scales: false,
    },
    EncoderSpec {
        id: EncoderId::GroupedSearch,
        name: "grouped_search",
        formats: GROUPED,
        default: false,
        importance: true,
        negative_scales: true,
    },
    EncoderSpec {
        id: EncoderId::Fp8RowMaxabs,
        name: "fp8_row_maxabs",
        formats: &[FormatId::Fp8E4m3fnRowBf16, FormatId::Fp8E4m3fnRowFp16],
        default: true,
        importance: false,
        negative_scales: false,
    },
    EncoderSpec {
        id: EncoderId::GgufSearch,
        name: "gguf_search",
        formats: &[
            FormatId::GgufQ8_0,
            FormatId::GgufQ4_0,
            FormatId::GgufQ5_0,
            FormatId::GgufIq4Nl,
            FormatId::GgufQ4K,
            FormatId::GgufQ5K,
            FormatId::GgufQ6K,
            FormatId::GgufIq4Xs,
        ],
        default: false,
        importance: true,
        negative_scales: false,
    },
    EncoderSpec {
        id: EncoderId::TernaryFit,
        name: "ternary_fit",
        formats: &[FormatId::T2G128Fp16],
        default: false,
        importance: true,
        negative_scales: false,
    },
    EncoderSpec {
        id: EncoderId::Nvfp4Maxabs,
        name: "nvfp4_maxabs",
        formats: &[FormatId::Nvfp4],
        default: false,
        importance: false,
        negative_scales: false,
    },
    EncoderSpec {
        id: EncoderId::Nvfp4Search,
        name: "nvfp4_search",
        formats: &[FormatId::Nvfp4],
        default: false,
        importance: true,
        negative_scales: false,
    },
    EncoderSpec {
        id: EncoderId::GgufAbsmax,
        name: "gguf_absmax",
        formats: &[FormatId::GgufQ8_0, FormatId::GgufQ4_0, FormatId::GgufQ5_0],
        default: false,
        importance: false,
        negative_scales: false,
    },
];

impl EncoderId {
    /// The method's row of [`ENCODERS`].
    #[must_use]
    pub fn spec(self) -> &'static EncoderSpec {
        &ENCODERS[self as usize]
    }

    /// The method's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.spec().name
    }

    /// Looks a method up by its exact name.
    ///
    /// # Errors
    /// [`FormatError::UnknownMethod`] with near names.
    pub fn from_name(name: &str) -> Result<Self, FormatError> {
        ENCODERS.iter().find(|e| e.name == name).map(|e| e.id).ok_or_else(|| FormatError::UnknownMethod {
            name: name.chars().take(80).collect(),
            near: near_names(name, ENCODERS.iter().map(|e| e.name)),
        })
    }

    /// The default method of a format, if it has one.
    #[must_use]
    pub fn default_for(format: FormatId) -> Option<Self> {
        ENCODERS.iter().find(|e| e.default && e.formats.contains(&format)).map(|e| e.id)
    }

    /// Checks that the method produces `format`.
    ///
    /// # Errors
    /// [`FormatError::Unsupported`] that lists the formats it produces.
    pub fn check(self, format: FormatId) -> Result<(), FormatError> {
        let spec = self.spec();
        if spec.formats.contains(&format) {
            return Ok(());
        }
        let list: Vec<&str> = spec.formats.iter().map(|f| f.name()).collect();
        Err(FormatError::Unsupported {
            format: format.name(),
            what: format!("{} does not produce this format; it produces {}", spec.name, list.join(", ")),
        })
    }
}
