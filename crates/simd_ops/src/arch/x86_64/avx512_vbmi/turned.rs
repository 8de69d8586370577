//! A8 products of one or a few columns: the entries of [`crate::arch::x86_64::avx512_vnni`], with tables in registers.

use std::arch::x86_64::__m512;
use std::ops::Range;

use ninfer_formats::TensorView;

use crate::arch::x86_64::avx512_vnni::turned::{VBMI, products};
use crate::isa::avx512_vbmi_entry;
use crate::kernels::Scratch;
use crate::lanes::{self, Activation, Chains, Codes, HalfLine, Line, Turned, Words};
use crate::q8_1::Q8_1;
use crate::tile::Tile;

products!(avx512_vbmi_entry, VBMI);
