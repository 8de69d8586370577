//! Any bytes as a GGUF file: parsing, every metadata value, every getter, every tensor's data.
//!
//! What parses must also survive being written again: its metadata entries and tensors of known span, laid out by
//! the planner, read back equal.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ninfer_gguf::{GgufError, GgufPlan, GgufWriter, Header, Value};

fn visit(value: &Value<'_>) -> Result<u64, GgufError> {
    let Value::Array(array) = value else { return Ok(1) };
    let mut n = 0;
    for item in array.iter() {
        n += visit(&item?)?;
    }
    Ok(n)
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(header) = Header::parse(bytes) else { return };
    let metadata = header.metadata(bytes).expect("these are the bytes that were parsed");
    let mut plan = GgufPlan::new();
    let mut copied = Vec::new();
    for entry in metadata.entries() {
        let key = entry.key_bytes();
        let value = metadata.value(entry).expect("a parsed entry is readable");
        visit(&value).expect("a parsed array is readable");
        let owned = value.to_meta().expect("a parsed value can be owned");
        assert_eq!(owned.value_type(), entry.value_type());
        let _ = (metadata.get_u64(key), metadata.get_i64(key), metadata.get_f64(key));
        let _ = (metadata.get_bool(key), metadata.get_str(key).map(|s| s.map(|s| s.escaped())));
        // Empty keys are legal to read and refused in writing.
        if plan.copy_metadata(&metadata, entry).is_ok() {
            copied.push(entry);
        } else {
            assert!(key.is_empty());
        }
    }
    let mut data = Vec::new();
    for tensor in header.tensors() {
        let _ = metadata.original_shape(tensor);
        match header.data(bytes, tensor) {
            Ok(d) if !tensor.name_bytes().is_empty() => {
                plan.copy_tensor(tensor).expect("a parsed tensor can be planned");
                data.push((tensor, d));
            }
            Ok(_) => {}
            Err(_) => assert!(tensor.bytes().is_none()),
        }
    }
    // An alignment of gigabytes is legal; writing its padding is not worth the time.
    if header.alignment() > 4096 {
        return;
    }
    let layout = plan.finish().expect("what fits in a file fits in another");
    let mut writer = GgufWriter::new(Vec::new(), layout).expect("memory does not fail");
    for (tensor, d) in &data {
        writer.tensor(tensor.name_bytes(), d).expect("the data has the planned length");
    }
    let again = writer.finish().expect("all tensors were written");
    let read = Header::parse(&again).expect("what was written is readable");
    let reread = read.metadata(&again).expect("these are the bytes that were parsed");
    assert_eq!(read.entries().len(), copied.len());
    for (old, new) in copied.iter().zip(read.entries()) {
        assert_eq!(metadata.raw(old).ok(), reread.raw(new).ok());
    }
    assert_eq!(read.tensors().len(), data.len());
    for ((old, d), new) in data.iter().zip(read.tensors()) {
        assert_eq!(
            (old.name_bytes(), old.dims(), old.ggml_type()),
            (new.name_bytes(), new.dims(), new.ggml_type())
        );
        assert_eq!(read.data(&again, new).ok(), Some(*d));
    }
});
