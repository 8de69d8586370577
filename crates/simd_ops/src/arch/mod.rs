//! What belongs to one CPU architecture. The only place with `cfg(target_arch)` besides the ISA tokens.

#[cfg(target_arch = "aarch64")]
pub(crate) mod aarch64;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) mod decoders;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) mod encoders;
pub(crate) mod float_mode;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86_64;

use ninfer_formats::FormatId;

use crate::isa::Isa;
use crate::kernels::{Common, EncodeFn, KernelSet, Nvfp4Fn};

/// Hints that the line of an address will be wanted; any address will do.
#[inline(always)]
pub(crate) fn fetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of the x86-64 baseline; a hint reads nothing.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// The address, by a way that the compiler does not see through. Rows at equal distances read in a loop become a pointer
/// each otherwise, all of them in memory as they are too many; this leaves few, and the rest to addressing modes.
#[inline(always)]
#[allow(clippy::pointers_in_nomem_asm_block, reason = "nothing is read or written")]
pub(crate) fn opaque(address: *const u8) -> *const u8 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let mut out = address;
        // SAFETY: no instruction at all.
        unsafe {
            std::arch::asm!("/* {0} */", inout(reg) out, options(pure, nomem, nostack, preserves_flags));
        }
        out
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    address
}

/// As [`fetch`], to the second-level cache: for lines that will be wanted much later.
#[inline(always)]
pub(crate) fn fetch_early(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of the x86-64 baseline; a hint reads nothing.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Copies values past the caches, to memory that is not read again soon. [`streamed`] must follow the last copy of a
/// thread, before others read.
#[inline]
pub(crate) fn stream(values: &[f32], to: &mut [f32]) {
    assert_eq!(values.len(), to.len());
    #[cfg(target_arch = "x86_64")]
    x86_64::stream(values, to);
    #[cfg(not(target_arch = "x86_64"))]
    to.copy_from_slice(values);
}

/// Puts what [`stream`] has written in order before what this thread does next.
#[inline]
pub(crate) fn streamed() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of the x86-64 baseline; a fence accesses nothing.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// The entries that one token has for one format; `None` for a token without kernels on this architecture.
pub(crate) fn kernels(isa: Isa, format: FormatId) -> Option<KernelSet> {
    match isa {
        Isa::Scalar => Some(crate::scalar::kernels(format)),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => Some(x86_64::avx2::kernels(format)),
        #[cfg(target_arch = "x86_64")]
        Isa::AvxVnni => Some(x86_64::avx_vnni::kernels(format)),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => Some(x86_64::avx512::kernels(format)),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni => Some(x86_64::avx512_vnni::kernels(format)),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vbmi => Some(x86_64::avx512_vbmi::kernels(format)),
        #[cfg(target_arch = "x86_64")]
        Isa::AmxInt8 => Some(x86_64::amx_int8::kernels(format)),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => Some(aarch64::neon::kernels(format)),
        #[cfg(target_arch = "aarch64")]
        Isa::NeonDotprod => Some(aarch64::neon_dotprod::kernels(format)),
        #[cfg(target_arch = "aarch64")]
        Isa::NeonI8mm => Some(aarch64::neon_i8mm::kernels(format)),
        _ => None,
    }
}

/// The row encoder of one token.
pub(crate) fn encode(isa: Isa) -> Option<EncodeFn> {
    match isa {
        Isa::Scalar => Some(crate::scalar::encode::row),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => Some(x86_64::avx2::encode::row),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => Some(x86_64::avx512::encode::row),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => Some(aarch64::neon::encode::row),
        _ => None,
    }
}

/// The `nvfp4` row encoder of one token.
pub(crate) fn encode_nvfp4(isa: Isa) -> Option<Nvfp4Fn> {
    match isa {
        Isa::Scalar => Some(crate::scalar::encode::nvfp4),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => Some(x86_64::avx2::encode::nvfp4),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => Some(x86_64::avx512::encode::nvfp4),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => Some(aarch64::neon::encode::nvfp4),
        _ => None,
    }
}

/// The entries of one token that do not depend on a format.
pub(crate) fn common(isa: Isa) -> Option<Common> {
    match isa {
        Isa::Scalar => Some(crate::scalar::COMMON),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => Some(x86_64::avx2::COMMON),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => Some(x86_64::avx512::COMMON),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => Some(aarch64::neon::COMMON),
        _ => None,
    }
}
