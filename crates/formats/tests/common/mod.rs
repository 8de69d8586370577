//! Golden files and small helpers shared by the integration tests.
#![allow(dead_code, reason = "each test binary uses some of the helpers")]

use serde_json::Value;

/// A golden file of `tests/data/golden`.
pub fn golden(name: &str) -> Value {
    let path = format!("{}/../../tests/data/golden/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The bytes of a hex string member.
pub fn hex(v: &Value, key: &str) -> Vec<u8> {
    let s = v[key].as_str().unwrap_or_else(|| panic!("member {key} is not a string"));
    assert_eq!(s.len() % 2, 0);
    (0..s.len()).step_by(2).map(|i| u8::from_str_radix(&s[i..i + 2], 16).expect("hex")).collect()
}

/// Little-endian 16-bit words of a hex string member.
pub fn hex16(v: &Value, key: &str) -> Vec<u16> {
    hex(v, key).as_chunks::<2>().0.iter().map(|w| u16::from_le_bytes(*w)).collect()
}

/// Little-endian 32-bit words of a hex string member.
pub fn hex32(v: &Value, key: &str) -> Vec<u32> {
    hex(v, key).as_chunks::<4>().0.iter().map(|w| u32::from_le_bytes(*w)).collect()
}

/// The two dimensions of a `shape` member.
pub fn shape2(v: &Value) -> (usize, usize) {
    let d = |i: usize| v["shape"][i].as_u64().expect("dimension") as usize;
    (d(0), d(1))
}

/// Words of binary32 values.
pub fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

/// A small deterministic generator (xorshift64*), so that failures repeat.
pub struct Rng(pub u64);

impl Rng {
    /// Next 64 random bits.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    /// `n` random bytes.
    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| (self.next() >> 56) as u8).collect()
    }
    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}
