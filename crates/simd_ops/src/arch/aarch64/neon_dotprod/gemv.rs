//! A8 products of one or a few columns: the driver of `neon` with dot products.

use super::dot::Dotprod;
use crate::arch::aarch64::neon::gemv::a8_columns;
use crate::isa::neon_dotprod_entry;

a8_columns!(neon_dotprod_entry, Dotprod);
