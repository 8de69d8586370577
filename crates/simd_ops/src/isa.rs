//! Instruction-set tokens: which kernels this machine may run, and which it is told to run.
//!
//! A token is a named cluster of CPU features. Its feature list is written once, in the `features!` lines of this
//! file, and feeds both the run-time detection and the `target_feature` attribute of the kernels' entry functions.
//! Detection happens once per process and includes that the operating system saves the registers.
//!
//! The token in force is, in this order: the one given to a call ([`crate::Dispatch::isa`]), the one [`set`] for the
//! process, the one named by the environment variable `NINFER_SIMD`, the best that the machine has. Asking for an
//! unknown or unavailable token is an error wherever it is asked; nothing falls back silently. A kernel that a token
//! lacks comes from the next one of its [`Isa::chain`], at last from `scalar`, which has them all.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::error::OpError;

/// A cluster of CPU features that kernels are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Isa {
    /// Portable code for the target's baseline: the reference.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// `avx2` with the 256-bit integer dot products of AVX-VNNI.
    AvxVnni,
    /// x86-64 with AVX-512 F, BW, DQ and VL.
    Avx512,
    /// `avx512` with the 512-bit integer dot products.
    Avx512Vnni,
    /// `avx512_vnni` with look-ups of bytes in registers (AVX-512 VBMI).
    Avx512Vbmi,
    /// `avx512_vbmi` with tile registers and their 8-bit dot products (AMX), where the system grants their use.
    AmxInt8,
    /// AArch64 with Advanced SIMD.
    Neon,
    /// `neon` with the 8-bit dot products.
    NeonDotprod,
    /// `neon_dotprod` with the 8-bit matrix products.
    NeonI8mm,
}

/// The name of the environment variable that forces a token.
pub const ENVIRONMENT: &str = "NINFER_SIMD";

/// Defines, from one feature list: the list of names, the detection function, and a macro that puts the list as
/// `target_feature` on the functions inside it. The first argument is a literal `$` for the inner macro.
macro_rules! features {
    ($d:tt, $arch:tt, $detect:ident, $names:ident, $detected:ident, $entry:ident, [$($feature:tt),+]) => {
        const $names: &[&str] = &[$($feature),+];

        #[cfg(target_arch = $arch)]
        fn $detected() -> bool {
            $(std::arch::$detect!($feature))&&+
        }

        #[cfg(not(target_arch = $arch))]
        fn $detected() -> bool {
            false
        }

        // Not every token has entries of its own yet.
        #[cfg(target_arch = $arch)]
        #[allow(unused_macros)]
        macro_rules! $entry {
            ($d($d item:item)+) => { $d(#[target_feature($(enable = $feature),+)] $d item)+ };
        }
        #[cfg(target_arch = $arch)]
        #[allow(unused_imports)]
        pub(crate) use $entry;
    };
}

features!($, "x86_64", is_x86_feature_detected, AVX2, has_avx2, avx2_entry, ["avx2", "fma", "f16c"]);
features!($, "x86_64", is_x86_feature_detected, AVX_VNNI, has_avx_vnni, avx_vnni_entry,
    ["avx2", "fma", "f16c", "avxvnni"]);
features!($, "x86_64", is_x86_feature_detected, AVX512, has_avx512, avx512_entry,
    ["avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl"]);
features!($, "x86_64", is_x86_feature_detected, AVX512_VNNI, has_avx512_vnni, avx512_vnni_entry,
    ["avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni"]);
features!($, "x86_64", is_x86_feature_detected, AVX512_VBMI, has_avx512_vbmi, avx512_vbmi_entry,
    ["avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni", "avx512vbmi"]);
features!($, "aarch64", is_aarch64_feature_detected, NEON, has_neon, neon_entry, ["neon"]);
features!($, "aarch64", is_aarch64_feature_detected, NEON_DOTPROD, has_neon_dotprod, neon_dotprod_entry,
    ["neon", "dotprod"]);
features!($, "aarch64", is_aarch64_feature_detected, NEON_I8MM, has_neon_i8mm, neon_i8mm_entry,
    ["neon", "dotprod", "i8mm"]);

/// The features of `amx_int8`. The last two are detected beside the kernels, the system's permission with them, and there
/// `amx-bf16`, which entries of some formats need.
const AMX_INT8: &[&str] = &[
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512bw",
    "avx512dq",
    "avx512vl",
    "avx512vnni",
    "avx512vbmi",
    "amx-tile",
    "amx-int8",
];

fn has_amx_int8() -> bool {
    #[cfg(target_arch = "x86_64")]
    return has_avx512_vbmi() && crate::arch::x86_64::amx_int8::available();
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

impl Isa {
    /// All tokens; of those a machine has, the last is its best.
    pub const ALL: [Self; 10] = [
        Self::Scalar,
        Self::Avx2,
        Self::AvxVnni,
        Self::Avx512,
        Self::Avx512Vnni,
        Self::Avx512Vbmi,
        Self::AmxInt8,
        Self::Neon,
        Self::NeonDotprod,
        Self::NeonI8mm,
    ];

    /// The token's name as `NINFER_SIMD` takes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::AvxVnni => "avx_vnni",
            Self::Avx512 => "avx512",
            Self::Avx512Vnni => "avx512_vnni",
            Self::Avx512Vbmi => "avx512_vbmi",
            Self::AmxInt8 => "amx_int8",
            Self::Neon => "neon",
            Self::NeonDotprod => "neon_dotprod",
            Self::NeonI8mm => "neon_i8mm",
        }
    }

    /// The CPU features the token needs, by the names of Rust's feature detection; none for `scalar`.
    #[must_use]
    pub const fn features(self) -> &'static [&'static str] {
        match self {
            Self::Scalar => &[],
            Self::Avx2 => AVX2,
            Self::AvxVnni => AVX_VNNI,
            Self::Avx512 => AVX512,
            Self::Avx512Vnni => AVX512_VNNI,
            Self::Avx512Vbmi => AVX512_VBMI,
            Self::AmxInt8 => AMX_INT8,
            Self::Neon => NEON,
            Self::NeonDotprod => NEON_DOTPROD,
            Self::NeonI8mm => NEON_I8MM,
        }
    }

    /// The token whose kernels stand in for those that this one lacks; its features are a subset.
    #[must_use]
    pub const fn fallback(self) -> Option<Self> {
        match self {
            Self::Scalar => None,
            Self::Avx2 | Self::Neon => Some(Self::Scalar),
            Self::AvxVnni | Self::Avx512 => Some(Self::Avx2),
            Self::Avx512Vnni => Some(Self::Avx512),
            Self::Avx512Vbmi => Some(Self::Avx512Vnni),
            Self::AmxInt8 => Some(Self::Avx512Vbmi),
            Self::NeonDotprod => Some(Self::Neon),
            Self::NeonI8mm => Some(Self::NeonDotprod),
        }
    }

    /// This token, then its fallbacks, down to `scalar`.
    pub fn chain(self) -> impl Iterator<Item = Self> {
        std::iter::successors(Some(self), |isa| isa.fallback())
    }

    /// Whether this machine can run the token's kernels (detected once per process).
    #[must_use]
    pub fn is_available(self) -> bool {
        static DETECTED: OnceLock<[bool; Isa::ALL.len()]> = OnceLock::new();
        DETECTED.get_or_init(|| {
            Self::ALL.map(|isa| match isa {
                Self::Scalar => true,
                Self::Avx2 => has_avx2(),
                Self::AvxVnni => has_avx_vnni(),
                Self::Avx512 => has_avx512(),
                Self::Avx512Vnni => has_avx512_vnni(),
                Self::Avx512Vbmi => has_avx512_vbmi(),
                Self::AmxInt8 => has_amx_int8(),
                Self::Neon => has_neon(),
                Self::NeonDotprod => has_neon_dotprod(),
                Self::NeonI8mm => has_neon_i8mm(),
            })
        })[self as usize]
    }

    /// Looks a token up by name; the machine must have it.
    ///
    /// # Errors
    /// [`OpError::UnknownIsa`], [`OpError::UnavailableIsa`]; both name the available tokens.
    pub fn from_name(name: &str) -> Result<Self, OpError> {
        find(name, "the call")
    }

    pub(crate) fn require(self, origin: &'static str) -> Result<Self, OpError> {
        if self.is_available() {
            return Ok(self);
        }
        Err(OpError::UnavailableIsa { name: self.name(), origin, available: available_names() })
    }
}

impl std::fmt::Display for Isa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

fn find(name: &str, origin: &'static str) -> Result<Isa, OpError> {
    match Isa::ALL.iter().find(|isa| isa.name() == name) {
        Some(isa) => isa.require(origin),
        None => Err(OpError::UnknownIsa {
            name: name.chars().take(40).collect(),
            origin,
            available: available_names(),
        }),
    }
}

/// The tokens that this machine can run, `scalar` first, the best last.
#[must_use]
pub fn available() -> Vec<Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.is_available()).collect()
}

fn available_names() -> String {
    available().iter().map(|isa| isa.name()).collect::<Vec<_>>().join(", ")
}

/// The best token of this machine, whatever was forced.
#[must_use]
pub fn best() -> Isa {
    Isa::ALL.into_iter().rfind(|isa| isa.is_available()).unwrap_or(Isa::Scalar)
}

/// 0: nothing set; otherwise the token's value plus one.
static FORCED: AtomicU8 = AtomicU8::new(0);

/// Forces a token for the whole process from the next call on; `None` goes back to `NINFER_SIMD` or the best token.
///
/// # Errors
/// [`OpError::UnavailableIsa`]; nothing changes then.
pub fn set(isa: Option<Isa>) -> Result<(), OpError> {
    let value = match isa {
        Some(isa) => isa.require("the call")? as u8 + 1,
        None => 0,
    };
    FORCED.store(value, Ordering::Relaxed);
    Ok(())
}

/// The token forced by [`set`], if any.
#[must_use]
pub fn forced() -> Option<Isa> {
    let value = FORCED.load(Ordering::Relaxed);
    Isa::ALL.get(usize::from(value).wrapping_sub(1)).copied()
}

/// The token in force for calls that name none.
///
/// # Errors
/// [`OpError::UnknownIsa`] or [`OpError::UnavailableIsa`] if `NINFER_SIMD`, read once, names such a token and
/// nothing was [`set`].
pub fn active() -> Result<Isa, OpError> {
    static NAMED: OnceLock<Result<Option<Isa>, OpError>> = OnceLock::new();
    if let Some(isa) = forced() {
        return Ok(isa);
    }
    NAMED
        .get_or_init(|| match std::env::var_os(ENVIRONMENT) {
            Some(name) if !name.is_empty() => find(&name.to_string_lossy(), ENVIRONMENT).map(Some),
            _ => Ok(None),
        })
        .clone()
        .map(|named| named.unwrap_or_else(best))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_in_order_and_fallbacks_need_fewer_features() {
        for (i, isa) in Isa::ALL.into_iter().enumerate() {
            assert_eq!(isa as usize, i);
            if let Some(next) = isa.fallback() {
                assert!(next < isa, "{isa} falls back to {next}");
                assert!(next.features().iter().all(|f| isa.features().contains(f)), "{isa} -> {next}");
                assert!(!isa.is_available() || next.is_available(), "{isa} is there without {next}");
            }
            assert_eq!(isa.chain().last(), Some(Isa::Scalar));
        }
    }

    #[test]
    fn names_are_found_or_refused_with_what_there_is() {
        assert_eq!(Isa::from_name("scalar"), Ok(Isa::Scalar));
        let error = Isa::from_name("sse9").unwrap_err().to_string();
        assert!(error.contains("\"sse9\"") && error.contains("scalar"), "{error}");
        let missing = Isa::ALL.into_iter().find(|isa| !isa.is_available()).expect("no machine has them all");
        let error = Isa::from_name(missing.name()).unwrap_err();
        assert!(matches!(error, OpError::UnavailableIsa { name, .. } if name == missing.name()));
        assert!(set(Some(missing)).is_err() && forced().is_none());
    }
}
