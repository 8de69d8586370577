//! Activations to `q8_1`.

use std::sync::Mutex;

use crate::error::OpError;
use crate::kernels::{self, with_scratch};
use crate::ops::{Dispatch, Ran};
use crate::pool;
use crate::q8_1::{Activations, Q8_1};

/// Quantises `x`, whole columns of `k` values, into `out` (any earlier contents are replaced).
///
/// # Errors
/// [`OpError::Length`] if `x` is no whole number of columns, [`OpError::NonFinite`] with the first column and index
/// that hold a NaN or an infinity (the contents of `out` are unspecified then), and those of the dispatch.
pub fn quantize_q8_1(
    x: Activations<'_>,
    k: usize,
    out: &mut Q8_1,
    dispatch: &Dispatch,
) -> Result<Ran, OpError> {
    let columns = x.columns(k)?;
    let isa = dispatch.resolve()?;
    let parts = dispatch.parts(x.len(), 1 << 16)?;
    out.reshape(k, columns)?;
    let kernel = kernels::quantize(isa);
    let first_bad: Mutex<Option<(usize, usize)>> = Mutex::new(None);
    let ranges = pool::split(columns, parts, 1);
    let mut used = 0;
    let items = out.parts_mut(ranges.inspect(|_| used += 1));
    pool::run(items, |(range, part)| {
        let bad = with_scratch(|scratch| {
            let mut columns = range.clone().zip(part);
            columns.find_map(|(t, column)| {
                let values = match x {
                    Activations::F32(x) => &x[t * k..(t + 1) * k],
                    Activations::Bf16(_) => {
                        scratch.floats.resize(k, 0.0);
                        x.expand(t * k..(t + 1) * k, &mut scratch.floats);
                        &scratch.floats
                    }
                };
                kernel.call(values, column).err().map(|index| (t, index))
            })
        });
        if let Some(bad) = bad {
            let mut first = first_bad.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            *first = Some(first.map_or(bad, |first| first.min(bad)));
        }
    })?;
    match first_bad.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        Some((column, index)) => {
            let mut value = [0.0];
            x.expand(column * k + index..column * k + index + 1, &mut value);
            Err(OpError::NonFinite { column, index, value: format!("{}", value[0]) })
        }
        None => Ok(Ran { isa, kernel: kernel.isa, parts: used, width: None }),
    }
}
