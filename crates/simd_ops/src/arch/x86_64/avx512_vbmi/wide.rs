//! A8 products of many columns, as [`crate::arch::x86_64::avx512_vnni`] has them: unpacked with tables in registers.

use std::ops::Range;

use ninfer_formats::TensorView;

use crate::arch::x86_64::avx512_vnni::turned::VBMI;
use crate::arch::x86_64::avx512_vnni::wide::{HALVES, NONE, TERMS, WHOLE, minima, terms, wide_products};
use crate::isa::avx512_vbmi_entry;
use crate::kernels::Scratch;
use crate::lanes::many::{Ahead, Block, Chains, FOURS, Group, Steps, factors, many, unpack_chunk};
use crate::lanes::{Codes, Factors, HalfLine, Line, Vector, Wide, Words};
use crate::q8_1::Q8_1;
use crate::tile::Tile;

wide_products!(avx512_vbmi_entry, VBMI);
