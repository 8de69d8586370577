//! What the writer must refuse, it refuses before the first byte; files appear complete or not at all; sizes beyond
//! 32 bits.

mod common;

use std::io::{self, Read, Seek, SeekFrom, Write};

use common::{bytes, write};
use ninfer_gguf::limits::{MAX_DEPTH, MAX_NAME_BYTES};
use ninfer_gguf::{
    AtomicFile, GgmlType, GgufError, GgufErrorKind as K, GgufFile, GgufLayout, GgufPlan, GgufWriter, Header,
    MetaArray, MetaValue, TensorSink,
};

// --- refusals of the plan ------------------------------------------------------------------------------------------

#[test]
fn plans_refuse_bad_entries() {
    let mut p = GgufPlan::new();
    assert_error!(
        p.metadata("", &MetaValue::U8(1)).unwrap_err(),
        K::EmptyName { .. },
        "the metadata key is empty"
    );
    let long = "k".repeat(MAX_NAME_BYTES as usize + 1);
    assert_error!(
        p.metadata(&long, &MetaValue::U8(1)).unwrap_err(),
        K::OverLimit { .. },
        "65536",
        "at most 65535"
    );
    for value in [MetaValue::U32(0), MetaValue::U32(48), MetaValue::U64(32), MetaValue::text("32")] {
        let e = p.metadata("general.alignment", &value).unwrap_err();
        assert_error!(e, K::Alignment { .. }, "general.alignment", "a u32 that is a power of two");
    }
    let mut deep = MetaArray::U8(vec![1]);
    for _ in 1..MAX_DEPTH {
        deep = MetaArray::Array(vec![deep]);
    }
    p.metadata("deepest", &MetaValue::Array(deep.clone())).unwrap();
    let e = p.metadata("deeper", &MetaValue::Array(MetaArray::Array(vec![deep]))).unwrap_err();
    assert_error!(e, K::Depth { .. }, "metadata key \"deeper\"", "8 levels");
    p.metadata("a", &MetaValue::U8(1)).unwrap();
    let e = p.metadata("a", &MetaValue::U8(2)).unwrap_err();
    assert_error!(e, K::DuplicateKey { .. }, "metadata key \"a\"");
    // A refused entry leaves the plan as it was.
    let file = write(p, &[]);
    let header = Header::parse(&file).unwrap();
    assert_eq!(header.entries().iter().map(|e| e.key().to_string()).collect::<Vec<_>>(), ["deepest", "a"]);
    let K::DuplicateKey { first } = e.kind() else { panic!("{e}") };
    assert_eq!(*first, header.entry("a").unwrap().range().0);
    assert_eq!(header.alignment(), 32);
}

#[test]
fn plans_refuse_bad_tensors() {
    let mut p = GgufPlan::new();
    let f32 = GgmlType::F32;
    assert_error!(p.tensor("", f32, &[1]).unwrap_err(), K::EmptyName { .. }, "the tensor name is empty");
    let e = p.tensor("w", GgmlType(12), &[896, 4]).unwrap_err();
    assert_error!(e, K::RowLength { .. }, "tensor \"w\"", "row length 896 is not a multiple of 256");
    for row in [4544, 14464] {
        let e = p.tensor("w", GgmlType(12), &[row, 4096]).unwrap_err();
        assert_error!(e, K::RowLength { .. }, format!("row length {row} is not a multiple of 256"));
    }
    let e = p.tensor("w", GgmlType(9999), &[32]).unwrap_err();
    assert_error!(e, K::UnknownSpan { .. }, "tensor \"w\"", "ggml type 9999", "block size");
    let e = p.tensor("w", f32, &[1, 1, 1, 1, 1]).unwrap_err();
    assert_error!(e, K::OverLimit { .. }, "tensor \"w\"", "dimensions is 5", "at most 4");
    let e = p.tensor("w", GgmlType::I8, &[1 << 32, 1 << 31]).unwrap_err();
    assert_error!(e, K::ElementCount { .. }, "tensor \"w\"", "4294967296");
    let e = p.tensor("n".repeat(70_000), f32, &[1]).unwrap_err();
    assert_error!(e, K::OverLimit { .. }, "tensor name length", "70000");
    p.tensor("w", f32, &[4]).unwrap();
    assert_error!(
        p.tensor("w", f32, &[4]).unwrap_err(),
        K::DuplicateTensor { .. },
        "tensor \"w\"",
        "duplicate"
    );
    // Each alone can be counted, together they cannot be addressed.
    p.tensor("huge", GgmlType::I8, &[1 << 62]).unwrap();
    assert_error!(p.finish().unwrap_err(), K::SizeOverflow { .. }, "tensor \"huge\"", "the size of the file");
}

#[test]
fn plans_count_in_64_bits() {
    let mut p = GgufPlan::new();
    p.tensor("a", GgmlType(2), &[1 << 20, 1 << 13]).unwrap();
    p.tensor("b", GgmlType::F32, &[1 << 33]).unwrap();
    p.tensor("c", GgmlType::F32, &[1]).unwrap();
    let layout = p.finish().unwrap();
    let offsets: Vec<u64> = layout.tensors().iter().map(|t| t.offset).collect();
    assert_eq!(offsets, [0, 18 << 28, (18 << 28) + (4 << 33)]);
    assert_eq!(layout.file_bytes(), layout.data_start() + (18 << 28) + (4 << 33) + 32);
}

// --- writing -------------------------------------------------------------------------------------------------------

fn two_tensors() -> GgufLayout {
    let mut plan = GgufPlan::new();
    plan.tensor("a", GgmlType::I8, &[10]).unwrap();
    plan.tensor("b", GgmlType::I8, &[40]).unwrap();
    plan.finish().unwrap()
}

#[test]
fn data_may_come_in_pieces() {
    let mut whole = GgufWriter::new(Vec::new(), two_tensors()).unwrap();
    whole.tensor("a", &bytes(10, 1)).unwrap();
    whole.tensor("b", &bytes(40, 2)).unwrap();
    let whole = whole.finish().unwrap();

    let mut w = GgufWriter::new(Vec::new(), two_tensors()).unwrap();
    assert_eq!(w.next_tensor().unwrap().name, b"a");
    w.begin("a").unwrap();
    for b in bytes(10, 1) {
        w.push(&[b]).unwrap();
    }
    w.end().unwrap();
    w.tensor_with("b", |sink| -> Result<(), GgufError> {
        bytes(40, 2).chunks(7).try_for_each(|chunk| sink.push(chunk))
    })
    .unwrap();
    assert!(w.next_tensor().is_none());
    assert!(w.finish().unwrap() == whole);
}

#[test]
fn tensors_receive_exactly_their_bytes() {
    let start = || GgufWriter::new(Vec::new(), two_tensors()).unwrap();
    for n in [0, 9, 11, 1000] {
        let e = start().tensor("a", &bytes(n, 0)).unwrap_err();
        assert_error!(
            e,
            K::WriteLength { wanted: 10, .. },
            "tensor \"a\"",
            format!("received {n} bytes"),
            "exactly 10"
        );
    }
    let mut w = start();
    w.begin("a").unwrap();
    w.push(&bytes(6, 0)).unwrap();
    assert_error!(
        w.push(&bytes(5, 0)).unwrap_err(),
        K::WriteLength { found: 11, wanted: 10 },
        "tensor \"a\""
    );
    let mut w = start();
    w.begin("a").unwrap();
    w.push(&bytes(9, 0)).unwrap();
    assert_error!(w.end().unwrap_err(), K::WriteLength { found: 9, wanted: 10 }, "tensor \"a\"");
    // After a failure nothing goes on.
    assert_error!(w.push(&[1]).unwrap_err(), K::WriterFailed, "incomplete");
    assert_error!(w.begin("b").unwrap_err(), K::WriterFailed, "incomplete");
    assert_error!(w.finish().map(drop).unwrap_err(), K::WriterFailed, "incomplete");
}

#[test]
fn tensors_come_in_order() {
    let start = || GgufWriter::new(Vec::new(), two_tensors()).unwrap();
    assert_error!(
        start().tensor("b", &bytes(40, 0)).unwrap_err(),
        K::WriteOrder { .. },
        "tensor \"b\"",
        "next is \"a\""
    );
    assert_error!(
        start().tensor("c", &[]).unwrap_err(),
        K::WriteOrder { .. },
        "tensor \"c\"",
        "next is \"a\""
    );
    assert_error!(start().push(&[1]).unwrap_err(), K::WriteOrder { .. }, "next is \"a\"");
    assert_error!(start().end().unwrap_err(), K::WriteOrder { .. }, "next is \"a\"");
    let mut w = start();
    w.begin("a").unwrap();
    assert_error!(w.begin("b").unwrap_err(), K::WriteOrder { .. }, "tensor \"b\"", "the rest of \"a\"");
    // Opening the same tensor again would forget the bytes it has.
    let mut w = start();
    w.begin("a").unwrap();
    w.push(&bytes(4, 0)).unwrap();
    assert_error!(w.begin("a").unwrap_err(), K::WriteOrder { .. }, "tensor \"a\"", "the rest of \"a\"");
    let mut w = start();
    w.tensor("a", &bytes(10, 0)).unwrap();
    assert_error!(
        w.tensor("a", &bytes(10, 0)).unwrap_err(),
        K::WriteOrder { .. },
        "tensor \"a\"",
        "next is \"b\""
    );
    let mut w = start();
    w.tensor("a", &bytes(10, 0)).unwrap();
    w.tensor("b", &bytes(40, 0)).unwrap();
    assert_error!(w.tensor("b", &bytes(40, 0)).unwrap_err(), K::WriteOrder { .. }, "the end");
    let mut w = start();
    w.tensor("a", &bytes(10, 0)).unwrap();
    assert_error!(
        w.finish().map(drop).unwrap_err(),
        K::WriteIncomplete { missing: 1, planned: 2 },
        "tensor \"b\""
    );
    let mut w = start();
    w.tensor("a", &bytes(10, 0)).unwrap();
    w.begin("b").unwrap();
    w.push(&bytes(40, 0)).unwrap();
    assert_error!(w.finish().map(drop).unwrap_err(), K::WriteIncomplete { .. }, "tensor \"b\"");
}

#[derive(Debug)]
enum SourceError {
    Gguf(GgufError),
    Mine,
}

impl From<GgufError> for SourceError {
    fn from(e: GgufError) -> Self {
        Self::Gguf(e)
    }
}

#[test]
fn callback_errors_are_passed_on() {
    let mut w = GgufWriter::new(Vec::new(), two_tensors()).unwrap();
    let r = w.tensor_with("a", |_: &mut TensorSink<'_, _>| Err(SourceError::Mine));
    assert!(matches!(r.unwrap_err(), SourceError::Mine));
    let r = w.tensor_with("a", |_: &mut TensorSink<'_, _>| Err(SourceError::Mine));
    let SourceError::Gguf(e) = r.unwrap_err() else { panic!("the writer must refuse") };
    assert_error!(e, K::WriterFailed, "incomplete");
}

/// Fails after a number of bytes.
struct Failing(usize);

impl Write for Failing {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        if buf.len() > self.0 {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "full"));
        }
        self.0 -= buf.len();
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_an_error_wherever_it_happens() {
    let total = two_tensors().file_bytes() as usize;
    for room in 0..=total {
        let result = (|| {
            let mut w = GgufWriter::new(Failing(room), two_tensors())?;
            w.tensor("a", &bytes(10, 0))?;
            w.tensor("b", &bytes(40, 0))?;
            w.finish().map(drop)
        })();
        match result {
            Ok(()) => assert_eq!(room, total),
            Err(e) => {
                assert!(room < total);
                assert_error!(e, K::Io { .. }, "cannot write", "full");
            }
        }
    }
}

fn names(dir: &std::path::Path) -> Vec<String> {
    let mut v: Vec<String> =
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    v.sort();
    v
}

#[test]
fn files_appear_complete_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.gguf");
    // Refused half-way, then dropped half-way: nothing stays.
    let mut w = GgufWriter::create(&path, two_tensors()).unwrap();
    w.tensor("a", &bytes(10, 1)).unwrap();
    assert_error!(w.publish().unwrap_err(), K::WriteIncomplete { .. }, "out.gguf", "tensor \"b\"");
    assert!(names(dir.path()).is_empty());
    let mut w = GgufWriter::create(&path, two_tensors()).unwrap();
    w.tensor("a", &bytes(10, 1)).unwrap();
    assert_eq!(names(dir.path()).len(), 1);
    assert!(!path.exists());
    drop(w);
    assert!(names(dir.path()).is_empty());
    // Written.
    let mut w = GgufWriter::create(&path, two_tensors()).unwrap();
    w.tensor("a", &bytes(10, 1)).unwrap();
    w.tensor("b", &bytes(40, 2)).unwrap();
    w.publish().unwrap();
    assert_eq!(names(dir.path()), ["out.gguf"]);
    let f = GgufFile::open(&path).unwrap();
    assert_eq!(f.data(f.tensor("b").unwrap()).unwrap(), bytes(40, 2));
    // Never overwritten, also if the name is taken while writing.
    assert_error!(GgufWriter::create(&path, two_tensors()).map(drop).unwrap_err(), K::Exists, "out.gguf");
    let late = dir.path().join("late.gguf");
    let mut w = GgufWriter::create(&late, two_tensors()).unwrap();
    std::fs::write(&late, "other").unwrap();
    w.tensor("a", &bytes(10, 1)).unwrap();
    w.tensor("b", &bytes(40, 2)).unwrap();
    assert_error!(w.publish().unwrap_err(), K::Exists, "late.gguf");
    assert_eq!(std::fs::read(&late).unwrap(), b"other");
    assert_eq!(names(dir.path()), ["late.gguf", "out.gguf"]);
    assert!(AtomicFile::create(dir.path()).is_err());
}

// --- beyond four gigabytes -----------------------------------------------------------------------------------------

fn five_gigabytes() -> GgufLayout {
    let mut plan = GgufPlan::new();
    plan.tensor("first", GgmlType(8), &[32]).unwrap();
    plan.tensor("large", GgmlType::I8, &[1 << 20, 5 << 10]).unwrap();
    plan.tensor("last", GgmlType(8), &[64, 4]).unwrap();
    plan.finish().unwrap()
}

#[cfg(target_pointer_width = "64")]
#[test]
fn a_sparse_file_past_four_gigabytes_is_read() {
    let layout = five_gigabytes();
    let last = layout.tensors()[2].clone();
    assert!(last.offset > 5 << 30);
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(layout.header()).unwrap();
    file.as_file().set_len(layout.file_bytes()).unwrap();
    file.seek(SeekFrom::Start(layout.data_start() + last.offset)).unwrap();
    file.write_all(&bytes(272, 9)).unwrap();
    let f = GgufFile::open(file.path()).unwrap();
    let t = f.tensor("last").unwrap();
    assert_eq!(t.file_offset(), layout.data_start() + last.offset);
    assert_eq!(f.data(t).unwrap(), bytes(272, 9));
    assert_eq!(f.data(f.tensor("large").unwrap()).unwrap().len(), 5 << 30);
    // Cut within the last tensor: both numbers are beyond 32 bits.
    let end = t.file_offset() + 272;
    drop(f);
    file.as_file().set_len(end - 1).unwrap();
    let e = GgufFile::open(file.path()).unwrap_err();
    assert_error!(e, K::TensorEnd { .. }, "tensor \"last\"", end, end - 1);
}

/// Keeps the last bytes and counts all.
#[derive(Default)]
struct Tail {
    count: u64,
    last: Vec<u8>,
}

impl Write for Tail {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.count += buf.len() as u64;
        self.last.extend_from_slice(&buf[buf.len().saturating_sub(512)..]);
        self.last.drain(..self.last.len().saturating_sub(512));
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_file_past_four_gigabytes_is_streamed() {
    let layout = five_gigabytes();
    let total = layout.file_bytes();
    let mut w = GgufWriter::new(Tail::default(), layout).unwrap();
    w.tensor("first", &bytes(34, 0)).unwrap();
    let zeros = vec![0; 1 << 20];
    w.tensor_with("large", |sink| (0..5 << 10).try_for_each(|_| sink.push(&zeros))).unwrap();
    w.tensor("last", &bytes(272, 9)).unwrap();
    let tail = w.finish().unwrap();
    assert_eq!(tail.count, total);
    let mut wanted = bytes(272, 9);
    wanted.resize(288, 0);
    assert_eq!(tail.last[512 - 288..], wanted);
}

#[test]
fn a_written_file_reads_back_from_disk_as_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let mut w = GgufWriter::create(&path, two_tensors()).unwrap();
    w.tensor("a", &bytes(10, 1)).unwrap();
    w.tensor("b", &bytes(40, 2)).unwrap();
    w.publish().unwrap();
    let mut on_disk = Vec::new();
    std::fs::File::open(&path).unwrap().read_to_end(&mut on_disk).unwrap();
    let mut w = GgufWriter::new(Vec::new(), two_tensors()).unwrap();
    w.tensor("a", &bytes(10, 1)).unwrap();
    w.tensor("b", &bytes(40, 2)).unwrap();
    assert!(w.finish().unwrap() == on_disk);
}
