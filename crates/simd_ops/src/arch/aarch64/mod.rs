//! Kernels for AArch64.

/// An array of the values of an expression for 0 and 1. Loops, `map` and closures that are called twice may stay
/// functions or loops over memory, where vectors should stay in registers; what is written out does not.
macro_rules! two {
    ($i:ident => $value:expr) => {
        [
            {
                const $i: usize = 0;
                $value
            },
            {
                const $i: usize = 1;
                $value
            },
        ]
    };
}

/// As [`two`], for 0 to 3.
macro_rules! four {
    ($i:ident => $value:expr) => {
        [
            {
                const $i: usize = 0;
                $value
            },
            {
                const $i: usize = 1;
                $value
            },
            {
                const $i: usize = 2;
                $value
            },
            {
                const $i: usize = 3;
                $value
            },
        ]
    };
}

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
