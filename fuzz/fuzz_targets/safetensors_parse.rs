//! Any bytes as a safetensors file, and any text as the header of a well-framed one.
//!
//! What parses must be consistent: tensors in the order of their data, without gap or overlap, each as long as its type
//! and shape say.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ninfer_artifact::source::safetensors::Header;

fn visit(bytes: &[u8]) {
    let header = match Header::parse(bytes) {
        Ok(header) => header,
        Err(e) => return assert!(!e.to_string().is_empty()),
    };
    let mut end = header.data_start;
    for (i, t) in header.tensors.iter().enumerate() {
        assert_eq!(t.range.start, end);
        end = t.range.end;
        assert_eq!(header.find(&t.name), Some(i));
        if let Some(bits) = t.bits {
            assert_eq!(t.elements() * bits, t.bytes() * 8);
        }
    }
    assert_eq!(end, bytes.len() as u64);
}

fuzz_target!(|bytes: &[u8]| {
    visit(bytes);
    // The framing right, so that the fuzzer works on the header; the last bytes are the data.
    let (header, data) = bytes.split_at(bytes.len() - bytes.len().min(8));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.extend(data);
    visit(&file);
});
