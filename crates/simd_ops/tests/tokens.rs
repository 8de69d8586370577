//! The tokens that detection finds, per architecture and, under an emulator, per CPU model.

use ninfer_simd_ops::isa::{available, best};

/// Names of the tokens of the architecture these tests were built for, `scalar` first.
const OF_THIS_ARCHITECTURE: &[&str] = if cfg!(target_arch = "x86_64") {
    &["scalar", "avx2", "avx_vnni", "avx512", "avx512_vnni", "avx512_vbmi", "amx_int8"]
} else if cfg!(target_arch = "aarch64") {
    &["scalar", "neon", "neon_dotprod", "neon_i8mm"]
} else {
    &["scalar"]
};

/// An emulated CPU model has known features, so the whole list can be demanded: `NINFER_EXPECT_ISA=scalar,neon`.
/// A token too many would run instructions that the model lacks, one too few would leave its kernels untested.
#[test]
fn detection_finds_the_tokens_of_the_machine() {
    let found: Vec<&str> = available().iter().map(|isa| isa.name()).collect();
    assert_eq!(found[0], "scalar");
    assert!(found.iter().all(|name| OF_THIS_ARCHITECTURE.contains(name)), "{found:?}");
    assert_eq!(best().name(), *found.last().unwrap());
    // Advanced SIMD is part of the target's baseline.
    assert!(!cfg!(target_arch = "aarch64") || found.contains(&"neon"), "{found:?}");
    if let Ok(expected) = std::env::var("NINFER_EXPECT_ISA") {
        assert_eq!(found.join(","), expected, "NINFER_EXPECT_ISA");
    }
}
