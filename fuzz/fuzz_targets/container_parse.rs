//! Any bytes as an entry file, and any bytes as the directory of a well-framed one.
//!
//! What parses must be consistent: objects in order, disjoint, inside the payload, covered exactly by their spans,
//! and every reference must lead somewhere.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ninfer_artifact::Directory;
use ninfer_artifact::container::{Binding, header};

fn visit(directory: &Directory) {
    let mut end = 0;
    for object in directory.objects() {
        assert!(object.offset >= end && object.bytes > 0);
        end = object.end();
        assert!(end <= directory.payload_bytes());
        let spans = directory.spans(object.offset, end).expect("an object lies inside the payload");
        assert_eq!(spans.iter().map(|s| s.len).sum::<u64>(), object.bytes);
        assert!(spans.iter().all(|s| s.len > 0 && s.file < directory.files().len()));
        assert_eq!(directory.object(&object.id).expect("ids are unique"), object);
        if let Ok(tensor) = object.tensor() {
            let size = ninfer_formats::encoded_size(tensor.format, tensor.shape, tensor.divisors);
            assert_eq!(size.expect("a resolved tensor has a size"), object.bytes);
        }
        // Must not panic, whatever it says.
        let _ = object.check().map_err(|e| e.to_string());
    }
    for (_, binding) in directory.bindings().iter() {
        match binding {
            Binding::Object(id) => assert!(directory.object(id).expect("resolves").as_tensor().is_some()),
            Binding::Parts(parts) => {
                for part in parts {
                    let tensor = directory.object(&part.object).expect("resolves").as_tensor().expect("a tensor");
                    assert!(part.begin < part.end && part.end <= tensor.shape.iter().product());
                }
            }
        }
    }
    for used in directory.uses() {
        assert!(directory.bindings().get(&used.parameter).is_some());
    }
}

fuzz_target!(|bytes: &[u8]| {
    match Directory::parse(bytes, Some("x.ninfer")) {
        Ok(directory) => visit(&directory),
        Err(e) => assert!(!e.to_string().is_empty()),
    }
    // The rest of the framing right, so that the fuzzer works on the directory; the payload of the entry is empty.
    let mut file = header::ENTRY_MAGIC.to_vec();
    file.extend((bytes.len() as u64).to_le_bytes());
    file.extend([7; 16]);
    file.extend(bytes);
    file.resize(file.len().next_multiple_of(header::PAGE as usize), 0);
    if let Ok(directory) = Directory::parse(&file, None) {
        visit(&directory);
    }
});
