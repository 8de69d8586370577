//! The tile unit: whether this process may use it, its configuration, and the few instructions needed, which have no
//! stable intrinsics yet.
//!
//! The system saves tile registers only for processes that asked; Linux answers a request by
//! `arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)`. Other systems are not asked, and have no such token.

use std::marker::PhantomData;

/// Whether the machine has tiles with 8-bit dot products, and the system lets this process use them. Asks once.
pub(crate) fn available() -> bool {
    static ANSWER: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *ANSWER.get_or_init(|| has_instructions() && permitted())
}

/// Whether tiles take bfloat16 numbers too, as on every machine so far; only where [`available`] is true.
pub(crate) fn bfloat16() -> bool {
    const AMX_BF16: u32 = 1 << 22;
    std::arch::x86_64::__cpuid_count(7, 0).edx & AMX_BF16 != 0
}

fn has_instructions() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    const AMX_TILE: u32 = 1 << 24;
    const AMX_INT8: u32 = 1 << 25;
    const OSXSAVE: u32 = 1 << 27;
    // XCR0: the system saves the tile configuration (17) and data (18).
    const TILE_STATE: u64 = 3 << 17;
    if __cpuid(0).eax < 0x1d || __cpuid(1).ecx & OSXSAVE == 0 {
        return false;
    }
    let edx = __cpuid_count(7, 0).edx;
    if edx & AMX_TILE == 0 || edx & AMX_INT8 == 0 {
        return false;
    }
    let (low, high): (u32, u32);
    // SAFETY: OSXSAVE says that the instruction may be used; it only reads a register.
    unsafe {
        std::arch::asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high,
            options(nomem, nostack, preserves_flags));
    }
    if (u64::from(high) << 32 | u64::from(low)) & TILE_STATE != TILE_STATE {
        return false;
    }
    // Palette 1: eight tiles of sixteen rows of 64 bytes.
    let palette = __cpuid_count(0x1d, 1);
    palette.eax >> 16 >= 1024
        && palette.ebx & 0xffff >= 64
        && palette.ebx >> 16 >= 8
        && palette.ecx & 0xffff >= 16
}

#[cfg(target_os = "linux")]
fn permitted() -> bool {
    const SYS_ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
    const XFEATURE_XTILEDATA: i64 = 18;
    let answer: i64;
    // SAFETY: the call takes two numbers, touches no memory of ours, and either permits the feature for the process
    // or fails; the registers that the system overwrites are named.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") SYS_ARCH_PRCTL => answer,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    answer == 0
}

#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}

/// The memory form of the tile configuration, palette 1.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// This thread's tiles, configured; released when dropped. Tiles 0 and 3 hold [`Tiles::rows`] rows of `4 * depth` bytes,
/// 1 and 4 `depth` rows of 64, 2, 5, 6 and 7 as many as the first of 64.
pub(super) struct Tiles {
    rows: u8,
    _thread: PhantomData<*mut ()>,
}

impl Tiles {
    /// Configures the tiles.
    ///
    /// # Safety
    /// [`available`] is true.
    pub(super) unsafe fn new(depth: u8, rows: u8) -> Self {
        assert!((1..=16).contains(&depth) && (1..=16).contains(&rows));
        let mut config =
            Config { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        for t in 0..8 {
            (config.rows[t], config.row_bytes[t]) = match t {
                0 | 3 => (rows, 4 * u16::from(depth)),
                1 | 4 => (depth, 64),
                _ => (rows, 64),
            };
        }
        // SAFETY: the configuration is valid for palette 1, which `available` has checked; reads its 64 bytes.
        unsafe {
            std::arch::asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, readonly, preserves_flags));
        }
        Self { rows, _thread: PhantomData }
    }

    /// Rows of the tiles that are not a second factor.
    pub(super) fn rows(&self) -> usize {
        self.rows.into()
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: tiles are configured by this value's making; afterwards none are in use.
        unsafe { std::arch::asm!("tilerelease", options(nostack, nomem, preserves_flags)) }
    }
}
