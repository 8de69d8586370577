//! A builder of raw GGUF bytes that follows no rule but the file structure, so that tests can break each rule; it
//! shares no code with the crate's writer. And helpers that several test binaries use.
#![allow(dead_code, reason = "each test binary uses a part")]

use ninfer_gguf::{GgufError, GgufPlan, GgufWriter, Header, Value};

pub fn string(s: impl AsRef<[u8]>) -> Vec<u8> {
    let s = s.as_ref();
    let mut v = (s.len() as u64).to_le_bytes().to_vec();
    v.extend_from_slice(s);
    v
}

#[derive(Clone)]
pub struct Raw {
    pub version: u32,
    pub tensor_count: Option<u64>,
    pub entry_count: Option<u64>,
    pub entries: Vec<(Vec<u8>, u32, Vec<u8>)>,
    pub tensors: Vec<(Vec<u8>, Vec<u64>, u32, u64)>,
    pub n_dims: Option<u32>,
    pub alignment: usize,
    pub data: Vec<u8>,
}

impl Default for Raw {
    fn default() -> Self {
        Self {
            version: 3,
            tensor_count: None,
            entry_count: None,
            entries: Vec::new(),
            tensors: Vec::new(),
            n_dims: None,
            alignment: 32,
            data: Vec::new(),
        }
    }
}

impl Raw {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn entry(mut self, key: impl AsRef<[u8]>, value_type: u32, value: impl AsRef<[u8]>) -> Self {
        self.entries.push((key.as_ref().to_vec(), value_type, value.as_ref().to_vec()));
        self
    }

    pub fn u32(self, key: &str, value: u32) -> Self {
        self.entry(key, 4, value.to_le_bytes())
    }

    pub fn u16(self, key: &str, value: u16) -> Self {
        self.entry(key, 2, value.to_le_bytes())
    }

    pub fn text(self, key: &str, value: impl AsRef<[u8]>) -> Self {
        self.entry(key, 8, string(value))
    }

    pub fn array(self, key: &str, element: u32, count: u64, elements: impl AsRef<[u8]>) -> Self {
        self.entry(key, 9, array(element, count, elements))
    }

    pub fn tensor(mut self, name: impl AsRef<[u8]>, dims: &[u64], ggml_type: u32, offset: u64) -> Self {
        self.tensors.push((name.as_ref().to_vec(), dims.to_vec(), ggml_type, offset));
        self
    }

    pub fn data(mut self, bytes: usize) -> Self {
        self.data = (0..bytes).map(|i| (i * 7 + 1) as u8).collect();
        self
    }

    /// Everything before the padding.
    pub fn header(&self) -> Vec<u8> {
        let mut v = b"GGUF".to_vec();
        v.extend(self.version.to_le_bytes());
        v.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        v.extend(self.entry_count.unwrap_or(self.entries.len() as u64).to_le_bytes());
        for (key, value_type, value) in &self.entries {
            v.extend(string(key));
            v.extend(value_type.to_le_bytes());
            v.extend(value);
        }
        for (name, dims, ggml_type, offset) in &self.tensors {
            v.extend(string(name));
            v.extend(self.n_dims.unwrap_or(dims.len() as u32).to_le_bytes());
            dims.iter().for_each(|d| v.extend(d.to_le_bytes()));
            v.extend(ggml_type.to_le_bytes());
            v.extend(offset.to_le_bytes());
        }
        v
    }

    pub fn build(&self) -> Vec<u8> {
        let mut v = self.header();
        v.resize(v.len().next_multiple_of(self.alignment), 0);
        v.extend(&self.data);
        v
    }

    pub fn parse(&self) -> Result<Header, GgufError> {
        Header::parse(&self.build())
    }

    /// Parses a file that must be refused.
    pub fn refused(&self) -> GgufError {
        self.parse().expect_err("the file must be refused")
    }
}

pub fn array(element: u32, count: u64, elements: impl AsRef<[u8]>) -> Vec<u8> {
    let mut v = element.to_le_bytes().to_vec();
    v.extend(count.to_le_bytes());
    v.extend_from_slice(elements.as_ref());
    v
}

/// Asserts the kind of an error and that its text has all the given parts.
#[macro_export]
macro_rules! assert_error {
    ($error:expr, $kind:pat $(if $guard:expr)?, $($part:expr),+ $(,)?) => {{
        let e: &ninfer_gguf::GgufError = &$error;
        assert!(matches!(e.kind(), $kind $(if $guard)?), "another kind: {e:?}");
        let text = e.to_string();
        $(assert!(text.contains(&*format!("{}", $part)), "{:?} lacks {:?}", text, $part);)+
    }};
}

/// Visits everything a file offers: a panic anywhere is a failure of the test that calls this. Returns a checksum so
/// that nothing is optimised away.
pub fn exercise(bytes: &[u8]) -> Result<u64, GgufError> {
    let header = Header::parse(bytes)?;
    let metadata = header.metadata(bytes)?;
    let mut sum = 0;
    for entry in metadata.entries() {
        let key = entry.key_bytes();
        sum += visit(&metadata.value(entry)?)?;
        // Typed getters may refuse, but only with an error.
        sum += metadata.get_u64(key).is_ok() as u64 + metadata.get_i64(key).is_ok() as u64;
        sum += metadata.get_f64(key).is_ok() as u64 + metadata.get_bool(key).is_ok() as u64;
        sum += metadata.get_str(key).is_ok() as u64 + metadata.raw(entry)?.len() as u64;
    }
    for t in header.tensors() {
        assert_eq!(header.find(t.name_bytes()), Some(t));
        let shape: u128 = t.matrix_shape().iter().map(|&d| u128::from(d)).product();
        assert_eq!(shape, t.elements().into());
        sum += metadata.original_shape(t).is_ok() as u64 + t.escaped_name().len() as u64;
        match header.data(bytes, t) {
            Ok(data) => {
                assert_eq!(Some(data.len() as u64), t.bytes());
                sum += data.iter().map(|&b| u64::from(b)).sum::<u64>();
            }
            Err(_) => assert_eq!(t.bytes(), None),
        }
    }
    Ok(sum + header.warnings().iter().map(|w| w.to_string().len() as u64).sum::<u64>())
}

fn visit(value: &Value<'_>) -> Result<u64, GgufError> {
    Ok(match value {
        Value::Array(a) => {
            let mut n = 0;
            for item in a.iter() {
                visit(&item?)?;
                n += 1;
            }
            assert_eq!(n, a.len());
            assert_eq!(a.element_offsets()?.len() as u64, n);
            assert!(a.get(n)?.is_none());
            n
        }
        Value::String(s) => s.text().len() as u64,
        other => other.as_integer().unwrap_or(1) as u64 & 0xff,
    })
}

/// A small file with every value type, nested arrays and several tensor types, within all rules.
pub fn rich() -> Raw {
    let nested = [array(4, 2, [1, 0, 0, 0, 2, 0, 0, 0]), array(8, 1, string("in"))].concat();
    Raw::new()
        .text("general.architecture", "test")
        .u32("general.alignment", 32)
        .entry("a.u8", 0, [200])
        .entry("a.i8", 1, [0x80])
        .entry("a.u16", 2, [1, 2])
        .entry("a.i16", 3, [0xff, 0xff])
        .entry("a.i32", 5, (-7i32).to_le_bytes())
        .entry("a.f32", 6, 1.5f32.to_le_bytes())
        .entry("a.bool", 7, [1])
        .entry("a.u64", 10, u64::MAX.to_le_bytes())
        .entry("a.i64", 11, i64::MIN.to_le_bytes())
        .entry("a.f64", 12, (-0.25f64).to_le_bytes())
        .array("a.strings", 8, 3, [string("x"), string(""), string("größe")].concat())
        .array("a.bools", 7, 3, [1, 0, 1])
        .array("a.i16s", 3, 2, [1, 0, 0xff, 0xff])
        .array("a.nested", 9, 2, nested)
        .tensor("first", &[32, 2], 8, 0)
        .tensor("second", &[3], 0, 96)
        .tensor("empty", &[0, 5], 0, 128)
        .tensor("odd", &[4, 4], 9999, 128)
        .data(160)
}

/// Bytes that differ from place to place.
pub fn bytes(n: u64, seed: u8) -> Vec<u8> {
    (0..n).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

/// The file of a plan with the given data.
pub fn write(plan: GgufPlan, data: &[Vec<u8>]) -> Vec<u8> {
    let layout = plan.finish().unwrap();
    let names: Vec<Vec<u8>> = layout.tensors().iter().map(|t| t.name.clone()).collect();
    let file_bytes = layout.file_bytes();
    let mut w = GgufWriter::new(Vec::new(), layout).unwrap();
    for (name, d) in names.iter().zip(data) {
        w.tensor(name, d).unwrap();
    }
    let out = w.finish().unwrap();
    assert_eq!(out.len() as u64, file_bytes);
    out
}
