//! Kernels for AArch64.

pub(crate) mod neon;
pub(crate) mod neon_dotprod;
pub(crate) mod neon_i8mm;

/// Hints that bytes will be wanted: fetches their lines into the caches.
#[inline(always)]
fn fetch_bytes(bytes: &[u8]) {
    for line in bytes.chunks(64) {
        // SAFETY: a hint reads nothing and changes no register.
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{}]", in(reg) line.as_ptr(), options(nostack, preserves_flags, readonly));
        }
    }
}
