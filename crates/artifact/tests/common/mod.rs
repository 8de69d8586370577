//! What the tests share: a small artifact as text, and random bytes with a fixed seed.
#![allow(dead_code, reason = "each test program uses some of it")]

pub mod gguf;
pub mod recipe;
pub mod safetensors;

use std::path::Path;

use ninfer_formats::FormatId;

/// xorshift64*: enough to fill payloads.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| (self.next() >> 32) as u8).collect()
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// The directory of a small artifact that uses every kind of record.
pub const DIRECTORY: &str = r#"{"components":{"text":{"config":{"layers":2},"resources":{"tokenizer":"tok"},"proposal":{"domain":"indexed","rows":7}},"mtp":{"config":{},"target":"text"}},"objects":[{"id":"w","kind":"tensor","shape":[2,32],"format":"gguf_q8_0","layout":"gguf_blocks_v1","offset":0,"bytes":68},{"id":"b","kind":"tensor","shape":[3],"format":"fp32","layout":"contiguous_le_v1","offset":256,"bytes":12},{"id":"tok","kind":"resource","encoding":"raw_bytes_v1","offset":268,"bytes":5}],"bindings":{"w":{"object":"w"},"some":{"parts":[{"object":"w","range":[0,64]},{"object":"b","range":[1,3]}]}},"uses":[{"parameter":"w","input":"x","activation_policy":"AllowA8","auxiliaries":{"bias":{"object":"b"}}}],"files":[{"path":null,"payload_bytes":273}],"metadata":{"name":"m"},"provenance":{"from":[1,2.5,true]}}"#;

/// Payload bytes of [`DIRECTORY`].
pub const PAYLOAD: usize = 273;

pub const ID: [u8; 16] = *b"\x00\x11\x22\x33\x44\x55\x66\x77\x88\x99\xaa\xbb\xcc\xdd\xee\xff";

/// An entry file with this directory and payload.
pub fn entry(json: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut file = b"NINFER\0\x03".to_vec();
    file.extend((json.len() as u64).to_le_bytes());
    file.extend(ID);
    file.extend(json);
    file.resize(file.len().next_multiple_of(4096), 0);
    file.extend(payload);
    file
}

/// The small artifact.
pub fn small() -> Vec<u8> {
    entry(DIRECTORY.as_bytes(), &Random(7).bytes(PAYLOAD))
}

/// A part file.
pub fn part(index: u64, payload: &[u8]) -> Vec<u8> {
    let mut file = b"NINPRT\0\x03".to_vec();
    file.extend(index.to_le_bytes());
    file.extend(ID);
    file.resize(4096, 0);
    file.extend(payload);
    file
}

/// Names in a directory, sorted.
pub fn names(dir: &Path) -> Vec<String> {
    let mut v: Vec<String> =
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    v.sort();
    v
}

/// A shape that the format's layout can hold, with a K that leaves partial groups where that is legal.
pub fn shape_of(format: FormatId) -> (Vec<u64>, u64) {
    use ninfer_formats::Scheme;
    match format.scheme() {
        Scheme::Direct(_) => (vec![3, 5, 7], 1),
        Scheme::Grouped(_) => (vec![5, 300], 1),
        Scheme::Nvfp4 => (vec![384, 192], 3),
        Scheme::RowScaled(_) => (vec![7, 161], 1),
        Scheme::Gguf(kind) => (vec![6, 3 * kind.values() as u64], 1),
    }
}
