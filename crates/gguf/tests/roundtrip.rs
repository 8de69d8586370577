//! What the writer writes, the reader reads back, and writing that again gives the same bytes.

mod common;

use common::{bytes, exercise, rich, write};
use ninfer_formats::FormatId;
use ninfer_gguf::{GgmlType, GgufErrorKind as K, GgufPlan, Header, MetaArray, MetaValue, Value, ValueType};
use proptest::prelude::*;

/// Reads a file and writes it again through owned values and through raw copies of the entries.
fn rewrite(file: &[u8]) -> [Vec<u8>; 2] {
    let header = Header::parse(file).unwrap();
    let metadata = header.metadata(file).unwrap();
    let (mut owned, mut raw) = (GgufPlan::new(), GgufPlan::new());
    for e in metadata.entries() {
        owned.metadata(e.key_bytes(), &metadata.value(e).unwrap().to_meta().unwrap()).unwrap();
        raw.copy_metadata(&metadata, e).unwrap();
    }
    let mut data = Vec::new();
    for t in header.tensors() {
        owned.copy_tensor(t).unwrap();
        raw.copy_tensor(t).unwrap();
        data.push(header.data(file, t).unwrap().to_vec());
    }
    [write(owned, &data), write(raw, &data)]
}

fn all_values() -> Vec<(&'static str, MetaValue)> {
    use MetaArray as A;
    use MetaValue as V;
    vec![
        ("u8", V::U8(255)),
        ("i8", V::I8(-128)),
        ("u16", V::U16(0xfffe)),
        ("i16", V::I16(i16::MIN)),
        ("u32", V::U32(0xdead_beef)),
        ("i32", V::I32(i32::MIN)),
        ("f32", V::F32(f32::from_bits(0x7fa0_0001))),
        ("bool", V::Bool(true)),
        ("string", V::text("größe")),
        ("bytes", V::String(vec![0, 0xff, 0xc3])),
        ("u64", V::U64(u64::MAX)),
        ("i64", V::I64(i64::MIN)),
        ("f64", V::F64(f64::from_bits(0x7ff4_0000_0000_0001))),
        ("[u8]", V::Array(A::U8(vec![1, 2, 255]))),
        ("[i8]", V::Array(A::I8(vec![-1, 2, -128]))),
        ("[u16]", V::Array(A::U16(vec![1, 0xffff]))),
        ("[i16]", V::Array(A::I16(vec![-1, i16::MAX]))),
        ("[u32]", V::Array(A::U32(vec![1, u32::MAX]))),
        ("[i32]", V::Array(A::I32(vec![-1, i32::MAX]))),
        ("[f32]", V::Array(A::F32(vec![-0.0, f32::INFINITY, f32::from_bits(0xffff_ffff)]))),
        ("[bool]", V::Array(A::Bool(vec![true, false, true]))),
        ("[string]", V::Array(A::String(vec![b"a".to_vec(), vec![], vec![0xff]]))),
        ("[u64]", V::Array(A::U64(vec![u64::MAX]))),
        ("[i64]", V::Array(A::I64(vec![i64::MIN]))),
        ("[f64]", V::Array(A::F64(vec![f64::MIN_POSITIVE / 2.0]))),
        ("[]", V::Array(A::Array(vec![]))),
        (
            "[[]]",
            V::Array(A::Array(vec![
                A::U8(vec![7]),
                A::String(vec![b"x".to_vec()]),
                A::Array(vec![A::Bool(vec![false]), A::F64(vec![])]),
            ])),
        ),
    ]
}

#[test]
fn all_value_types_survive() {
    let mut plan = GgufPlan::new();
    for (key, value) in all_values() {
        plan.metadata(key, &value).unwrap();
    }
    let file = write(plan, &[]);
    let header = Header::parse(&file).unwrap();
    let metadata = header.metadata(&file).unwrap();
    assert_eq!(metadata.len(), 27);
    let mut seen = std::collections::HashSet::new();
    for (entry, (key, value)) in metadata.entries().iter().zip(all_values()) {
        assert_eq!(entry.key_bytes(), key.as_bytes());
        assert_eq!(entry.value_type(), value.value_type());
        seen.insert(value.value_type());
        // NaNs differ from themselves, so compare what is printed: bits of floats are compared below.
        assert_eq!(format!("{:?}", metadata.value(entry).unwrap().to_meta().unwrap()), format!("{value:?}"));
    }
    assert_eq!(seen.len(), ValueType::ALL.len());
    let Some(Value::F32(x)) = metadata.get("f32").unwrap() else { panic!("not an f32") };
    assert_eq!(x.to_bits(), 0x7fa0_0001);
    let Some(Value::F64(x)) = metadata.get("f64").unwrap() else { panic!("not an f64") };
    assert_eq!(x.to_bits(), 0x7ff4_0000_0000_0001);
    let floats = metadata.get_array("[f32]").unwrap().unwrap();
    assert_eq!(floats.raw()[8..], [0xff; 4]);
    for again in rewrite(&file) {
        assert!(again == file);
    }
    exercise(&file).unwrap();
}

#[test]
fn arrays_are_indexed_and_iterated() {
    let mut plan = GgufPlan::new();
    for (key, value) in all_values() {
        plan.metadata(key, &value).unwrap();
    }
    let file = write(plan, &[]);
    let header = Header::parse(&file).unwrap();
    let metadata = header.metadata(&file).unwrap();
    for (key, value) in all_values() {
        let MetaValue::Array(owned) = value else { continue };
        let array = metadata.get_array(key).unwrap().unwrap();
        assert_eq!((array.len(), array.element()), (owned.len() as u64, owned.element()));
        assert_eq!(header.entry(key).unwrap().array(), Some((array.element(), array.len())));
        let offsets = array.element_offsets().unwrap();
        for (i, item) in array.iter().enumerate() {
            let item = format!("{:?}", item.unwrap());
            assert_eq!(item, format!("{:?}", array.get(i as u64).unwrap().unwrap()));
            assert_eq!(item, format!("{:?}", array.get_at(offsets[i]).unwrap()));
        }
        assert!(array.get(array.len()).unwrap().is_none());
        assert!(array.get(u64::MAX).unwrap().is_none());
        assert!(array.get_at(u64::MAX).is_err());
    }
}

#[test]
fn offsets_and_padding() {
    // Three tensors of 18, 34 and 66 bytes.
    for alignment in [None, Some(32), Some(64), Some(1), Some(8), Some(4096)] {
        let plan = |note: &str| {
            let mut plan = GgufPlan::new();
            plan.metadata("note", &MetaValue::text(note)).unwrap();
            if let Some(a) = alignment {
                plan.metadata("general.alignment", &MetaValue::U32(a)).unwrap();
            }
            plan.tensor("q4_0", GgmlType(2), &[32]).unwrap();
            plan.tensor("q8_0", GgmlType(8), &[32]).unwrap();
            plan.tensor("iq2_xxs", GgmlType(16), &[256]).unwrap();
            plan
        };
        let data = [bytes(18, 1), bytes(34, 2), bytes(66, 3)];
        let file = write(plan("x"), &data);
        let header = Header::parse(&file).unwrap();
        let a = u64::from(alignment.unwrap_or(32));
        let ends = [0, 18u64.next_multiple_of(a), 18u64.next_multiple_of(a) + 34u64.next_multiple_of(a)];
        assert_eq!(header.data_start() % a, 0);
        for ((t, d), offset) in header.tensors().iter().zip(&data).zip(ends) {
            assert_eq!(t.offset(), offset);
            assert_eq!(t.file_offset(), header.data_start() + offset);
            assert_eq!(header.data(&file, t).unwrap(), d);
        }
        assert_eq!(file.len() as u64, header.data_start() + ends[2] + 66u64.next_multiple_of(a));
        assert!(header.warnings().is_empty());
        for again in rewrite(&file) {
            assert!(again == file);
        }
        // A longer string moves the data start and nothing else.
        let other = write(plan(&"y".repeat(5000)), &data);
        let moved = Header::parse(&other).unwrap();
        assert!(moved.data_start() > header.data_start());
        for (x, y) in header.tensors().iter().zip(moved.tensors()) {
            assert_eq!(x.offset(), y.offset());
        }
        assert_eq!(file[header.data_start() as usize..], other[moved.data_start() as usize..]);
        // All padding is zero.
        let padding = &file[plan("x").finish().unwrap().header().len()..header.data_start() as usize];
        assert!(padding.iter().all(|&b| b == 0));
    }
}

#[test]
fn a_file_of_another_writer_is_kept() {
    // Everything but the tensor of unknown type can be written again.
    let mut raw = rich();
    raw.tensors.pop();
    let file = raw.build();
    for again in rewrite(&file) {
        let (a, b) = (Header::parse(&file).unwrap(), Header::parse(&again).unwrap());
        assert_eq!(file[..a.data_start() as usize], again[..b.data_start() as usize]);
        for (x, y) in a.tensors().iter().zip(b.tensors()) {
            assert_eq!(a.data(&file, x).unwrap(), b.data(&again, y).unwrap());
        }
    }
}

#[test]
fn formats_have_types() {
    let mut plan = GgufPlan::new();
    let mut data = Vec::new();
    for (i, t) in GgmlType::all().enumerate() {
        let result = plan.tensor(format!("t{i}"), t, &[256, 3]);
        match t.block() {
            Some(block) => {
                result.unwrap();
                data.push(bytes(256 / block.values * block.bytes * 3, i as u8));
            }
            None => assert_error!(
                result.unwrap_err(),
                K::UnknownSpan { .. },
                format!("ggml type {} ", t.0),
                "block"
            ),
        }
    }
    let file = write(plan, &data);
    let header = Header::parse(&file).unwrap();
    assert_eq!(header.tensors().len(), 37);
    let mut formats = 0;
    for t in header.tensors() {
        let Some(format) = t.format() else { continue };
        let size = ninfer_formats::encoded_size(format, &t.matrix_shape(), 1).unwrap();
        assert_eq!(Some(size), t.bytes(), "{format}");
        formats += 1;
    }
    assert_eq!(formats, 20);
    assert_eq!(FormatId::all().filter(|&f| GgmlType::of_format(f).is_some()).count(), 20);
}

// --- properties ----------------------------------------------------------------------------------------------------

fn array_strategy() -> impl Strategy<Value = MetaArray> {
    use proptest::collection::vec;
    let flat = prop_oneof![
        vec(any::<u8>(), 0..9).prop_map(MetaArray::U8),
        vec(any::<i8>(), 0..9).prop_map(MetaArray::I8),
        vec(any::<u16>(), 0..9).prop_map(MetaArray::U16),
        vec(any::<i16>(), 0..9).prop_map(MetaArray::I16),
        vec(any::<u32>(), 0..9).prop_map(MetaArray::U32),
        vec(any::<i32>(), 0..9).prop_map(MetaArray::I32),
        vec(any::<u32>().prop_map(f32::from_bits), 0..9).prop_map(MetaArray::F32),
        vec(any::<bool>(), 0..9).prop_map(MetaArray::Bool),
        vec(vec(any::<u8>(), 0..20), 0..9).prop_map(MetaArray::String),
        vec(any::<u64>(), 0..9).prop_map(MetaArray::U64),
        vec(any::<i64>(), 0..9).prop_map(MetaArray::I64),
        vec(any::<u64>().prop_map(f64::from_bits), 0..9).prop_map(MetaArray::F64),
    ];
    flat.prop_recursive(3, 20, 4, |inner| vec(inner, 0..4).prop_map(MetaArray::Array))
}

fn value_strategy() -> impl Strategy<Value = MetaValue> {
    prop_oneof![
        any::<u8>().prop_map(MetaValue::U8),
        any::<i16>().prop_map(MetaValue::I16),
        any::<u32>().prop_map(|x| MetaValue::F32(f32::from_bits(x))),
        any::<u64>().prop_map(MetaValue::U64),
        any::<bool>().prop_map(MetaValue::Bool),
        proptest::collection::vec(any::<u8>(), 0..40).prop_map(MetaValue::String),
        array_strategy().prop_map(MetaValue::Array),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn any_plan_reads_back_and_rewrites_to_the_same_bytes(
        entries in proptest::collection::btree_map("[a-z.]{1,12}", value_strategy(), 0..8),
        tensors in proptest::collection::btree_map(
            "[a-z.0-9]{1,20}",
            (0usize..45, proptest::collection::vec(0u64..4, 0..4)),
            0..8,
        ),
        alignment in proptest::option::of(0u32..10),
    ) {
        let mut plan = GgufPlan::new();
        if let Some(a) = alignment {
            plan.metadata("general.alignment", &MetaValue::U32(1 << a)).unwrap();
        }
        for (key, value) in &entries {
            plan.metadata(key, value).unwrap();
        }
        let mut data = Vec::new();
        let mut planned = Vec::new();
        for (name, (t, dims)) in &tensors {
            let t = GgmlType::all().nth(*t).unwrap();
            let Some(block) = t.block() else { continue };
            // Whole blocks in a row; a scalar cannot have them.
            let mut dims = if block.values > 1 && dims.is_empty() { vec![1] } else { dims.clone() };
            if let Some(k) = dims.first_mut() {
                *k *= block.values;
            }
            plan.tensor(name, t, &dims).unwrap();
            data.push(bytes(dims.iter().product::<u64>() / block.values * block.bytes, data.len() as u8));
            planned.push((name, t, dims));
        }
        let file = write(plan, &data);
        let header = Header::parse(&file).unwrap();
        prop_assert_eq!(header.warnings().len(), 0);
        let metadata = header.metadata(&file).unwrap();
        for (key, value) in &entries {
            let read = metadata.get(key).unwrap().unwrap().to_meta().unwrap();
            prop_assert_eq!(format!("{read:?}"), format!("{value:?}"));
        }
        for ((t, (name, ggml_type, dims)), d) in header.tensors().iter().zip(&planned).zip(&data) {
            prop_assert_eq!(t.name_bytes(), name.as_bytes());
            prop_assert_eq!((t.ggml_type(), t.dims()), (*ggml_type, &dims[..]));
            prop_assert_eq!(header.data(&file, t).unwrap(), &d[..]);
        }
        for again in rewrite(&file) {
            prop_assert!(again == file);
        }
        exercise(&file).unwrap();
    }
}
