//! The processor's floating-point mode: rounding to nearest-even, subnormal numbers kept.
//!
//! A library loaded into the same process may have switched subnormals off for a thread, and threads inherit the
//! mode of the thread that started them. Kernels run in the default mode, so that the bits do not depend on that.

/// Keeps the thread in the default mode until dropped, then restores what was there.
#[derive(Debug)]
pub(crate) struct Default {
    restore: Option<Mode>,
}

impl Default {
    /// Enters the default mode.
    #[inline]
    pub(crate) fn enter() -> Self {
        let mode = read();
        // The low bits of the x86 register are sticky exception flags: not a mode.
        if mode & MODE_BITS == DEFAULT_BITS {
            return Self { restore: None };
        }
        write((mode & !MODE_BITS) | DEFAULT_BITS);
        Self { restore: Some(mode) }
    }
}

impl Drop for Default {
    #[inline]
    fn drop(&mut self) {
        if let Some(mode) = self.restore {
            write(mode);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod register {
    /// MXCSR.
    pub(super) type Mode = u32;
    /// Flush-to-zero (15), rounding (14..13), exception masks (12..7), denormals-are-zero (6).
    pub(super) const MODE_BITS: Mode = 0xffc0;
    /// All exceptions masked, nearest-even, subnormals kept.
    pub(super) const DEFAULT_BITS: Mode = 0x1f80;

    #[inline]
    pub(super) fn read() -> Mode {
        let mut mode: Mode = 0;
        // SAFETY: stores the 32-bit register to a local variable; SSE is part of the x86-64 baseline.
        unsafe {
            std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut mode, options(nostack, preserves_flags));
        }
        mode
    }

    #[inline]
    pub(super) fn write(mode: Mode) {
        // SAFETY: the value differs from one read from the register in mode bits only, so no reserved bit is set.
        unsafe {
            std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const mode, options(nostack, preserves_flags));
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod register {
    /// FPCR.
    pub(super) type Mode = u64;
    /// Alternative half precision (26), default NaN (25), flush-to-zero (24), rounding (23..22), half-precision
    /// flush-to-zero (19).
    pub(super) const MODE_BITS: Mode = 0x07c8_0000;
    /// Nearest-even, subnormals kept.
    pub(super) const DEFAULT_BITS: Mode = 0;

    #[inline]
    pub(super) fn read() -> Mode {
        let mode: Mode;
        // SAFETY: reads the control register, which user code may always do.
        unsafe {
            std::arch::asm!("mrs {}, fpcr", out(reg) mode, options(nomem, nostack, preserves_flags));
        }
        mode
    }

    #[inline]
    pub(super) fn write(mode: Mode) {
        // SAFETY: the value differs from one read from the register in the mode bits above only.
        unsafe {
            std::arch::asm!("msr fpcr, {}", in(reg) mode, options(nostack, preserves_flags));
        }
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod register {
    /// Nothing to switch on this architecture.
    pub(super) type Mode = u8;
    pub(super) const MODE_BITS: Mode = 0;
    pub(super) const DEFAULT_BITS: Mode = 0;

    pub(super) fn read() -> Mode {
        0
    }

    pub(super) fn write(_: Mode) {}
}

use register::{DEFAULT_BITS, MODE_BITS, Mode, read, write};

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    #[test]
    fn a_foreign_mode_is_left_and_restored() {
        #[cfg(target_arch = "x86_64")]
        const FLUSH: Mode = 0x8040;
        #[cfg(target_arch = "aarch64")]
        const FLUSH: Mode = 1 << 24;
        let before = read();
        write(before | FLUSH);
        {
            let _mode = Default::enter();
            assert_eq!(read() & MODE_BITS, DEFAULT_BITS);
            let _inner = Default::enter();
        }
        assert_eq!(read() & FLUSH, FLUSH);
        write(before);
        assert_eq!(read() & MODE_BITS, DEFAULT_BITS);
    }
}
