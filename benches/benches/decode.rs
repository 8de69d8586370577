//! Decoding to binary32 on one thread: 64 rows of 4,096 elements, from cache to cache, in bytes of output.
#![allow(missing_docs, reason = "criterion's macros define undocumented items")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ninfer_benches::Matrix;
use ninfer_formats::FormatId;
use ninfer_simd_ops::{Dispatch, decode_f32};

fn decode(c: &mut Criterion) {
    let dispatch = Dispatch { threads: Some(1), ..Dispatch::default() };
    let mut group = c.benchmark_group("decode_f32");
    let mut out = vec![0.0f32; 64 * 4096];
    group.throughput(Throughput::Bytes(out.len() as u64 * 4));
    for format in FormatId::all().filter(|&f| f != FormatId::Int32) {
        // nvfp4 comes in tiles of 128 rows; a view of the first 64 is decoded.
        let matrix = Matrix::random(format, 128, 4096).expect("a shape every format allows");
        let view = matrix.view().and_then(|v| v.row_range(0, 64)).expect("rows");
        group.bench_function(format.name(), |b| {
            b.iter(|| decode_f32(&view, &mut out, &dispatch).expect("decode"));
        });
    }
    group.finish();
}

criterion_group!(benches, decode);
criterion_main!(benches);
