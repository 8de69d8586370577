//! What belongs to one CPU architecture. The only place with `cfg(target_arch)` besides the ISA tokens.

pub(crate) mod float_mode;

use ninfer_formats::FormatId;

use crate::isa::Isa;
use crate::kernels::{Common, KernelSet};

/// The entries that one token has for one format; `None` for a token without kernels on this architecture.
pub(crate) fn kernels(isa: Isa, format: FormatId) -> Option<KernelSet> {
    match isa {
        Isa::Scalar => Some(crate::scalar::kernels(format)),
        _ => None,
    }
}

/// The entries of one token that do not depend on a format.
pub(crate) fn common(isa: Isa) -> Option<Common> {
    match isa {
        Isa::Scalar => Some(crate::scalar::COMMON),
        _ => None,
    }
}
