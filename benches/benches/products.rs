//! Products of a 1024 x 4096 matrix with 1, 8 and 64 columns on one thread, in weights times columns per second.
#![allow(missing_docs, reason = "criterion's macros define undocumented items")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ninfer_benches::Matrix;
use ninfer_formats::FormatId;
use ninfer_simd_ops::{Activations, Dispatch, Precision, matmul};

const ROWS: u64 = 1024;
const K: u64 = 4096;

fn products(c: &mut Criterion) {
    let dispatch = Dispatch { threads: Some(1), ..Dispatch::default() };
    for (name, precision) in [("a8", Precision::A8), ("a16", Precision::A16)] {
        let mut group = c.benchmark_group(name);
        for format in FormatId::all().filter(|&f| f != FormatId::Int32) {
            let matrix = Matrix::random(format, ROWS, K).expect("a shape every format allows");
            let view = matrix.view().expect("view");
            for columns in [1u64, 8, 64] {
                let x: Vec<f32> = (0..columns * K).map(|i| ((i * 37 % 101) as f32 - 50.0) / 16.0).collect();
                let mut y = vec![0.0f32; (columns * ROWS) as usize];
                group.throughput(Throughput::Elements(ROWS * K * columns));
                group.bench_function(BenchmarkId::new(format.name(), columns), |b| {
                    b.iter(|| {
                        matmul(&view, Activations::F32(&x), precision, &mut y, &dispatch).expect("product");
                    });
                });
            }
        }
        group.finish();
    }
}

criterion_group!(benches, products);
criterion_main!(benches);
