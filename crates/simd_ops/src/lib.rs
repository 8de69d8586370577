//! Decoding and products of quantised weights: the same bits on every instruction set, with any number of threads.
//!
//! Inputs are [`TensorView`]s of `ninfer-formats`: borrowed payloads, checked once. The operations are
//! * [`decode_f32`], [`decode_half`], [`decode_i32`]: the exact values of weights;
//! * [`encode`], [`encode_rows`], [`nvfp4_largest`], [`encode_nvfp4_tiles`]: values to words by the methods of
//!   [`ninfer_formats::encoder`];
//! * [`row_errors`]: how far words are from the values they were made of;
//! * [`quantize_q8_1`]: activations to blocks of 8-bit codes;
//! * [`matmul`], [`matmul_in`], [`matmul_q8_1`]: `Y = W X` for any number of columns, with activations as given
//!   ([`Precision::A16`]) or quantised ([`Precision::A8`]);
//! * [`matmul_experts`]: the same with chosen experts of a bank, which is read where it lies.
//!
//! The order in which products are evaluated is a public contract, written down in [`order`]; column `t` of a batch
//! has the bits of the product of that column alone, and a row of a slice ([`TensorView::row_range`], for example one
//! expert of a bank) those of the row of the whole. [`isa`] says how an instruction set is chosen or forced. Every
//! operation returns which one ran ([`Ran`]), and fails with an [`OpError`] rather than panic.
//!
//! ```
//! use ninfer_formats::{FormatId, TensorView, pack_grouped};
//! use ninfer_simd_ops::{Activations, Dispatch, Precision, decode_f32, matmul};
//!
//! // Two rows of 64 four-bit codes with one scale each: 0.5 (binary16 0x3800) and -2 (0xc000).
//! let codes: Vec<i8> = (0..128).map(|i| (i % 16) as i8 - 8).collect();
//! let payload = pack_grouped(FormatId::Q4G64Fp16, 2, 64, &codes, &[0x3800, 0xc000])?;
//! let weights = TensorView::new(FormatId::Q4G64Fp16, &[2, 64], 1, &payload)?;
//!
//! let mut values = vec![0.0; 128];
//! decode_f32(&weights, &mut values, &Dispatch::default())?;
//! assert_eq!(values[64..67], [16.0, 14.0, 12.0]);
//!
//! // One column of ones: the sums of the rows.
//! let x = vec![1.0f32; 64];
//! let mut y = vec![0.0; 2];
//! matmul(&weights, Activations::F32(&x), Precision::A16, &mut y, &Dispatch::default())?;
//! assert_eq!(y, [-16.0, 64.0]);
//! # Ok::<(), ninfer_simd_ops::OpError>(())
//! ```

mod arch;
mod column16;
mod error;
#[cfg(target_arch = "aarch64")]
mod gemv;
pub mod isa;
mod kernels;
mod lanes;
mod ops;
pub mod order;
mod panel;
mod panel16;
mod pool;
pub mod q8_1;
mod rows16;
mod scalar;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod search;
mod tile;

pub use error::OpError;
pub use isa::Isa;
pub use kernels::Width;
pub use ninfer_formats::TensorView;
pub use ninfer_formats::codec::Half;
pub use ops::decode::{decode_f32, decode_half, decode_i32};
pub use ops::encode::{encode, encode_nvfp4_tiles, encode_rows, nvfp4_largest};
pub use ops::errors::{RowErrors, row_errors};
pub use ops::experts::matmul_experts;
pub use ops::matmul::{Precision, Workspace, matmul, matmul_in, matmul_q8_1};
pub use ops::prepare::{Prepared, Repacked};
pub use ops::quantize::quantize_q8_1;
pub use ops::{Dispatch, Ran};
pub use q8_1::{Activations, Q8_1};
