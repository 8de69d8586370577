//! The operations: check everything, find the kernels once, split rows over threads.

pub mod decode;
pub mod encode;
pub mod errors;
pub mod experts;
pub mod matmul;
pub mod prepare;
pub mod quantize;

use crate::error::OpError;
use crate::isa::{self, Isa};
use crate::kernels::Width;
use crate::pool;

/// How an operation is to run. The default leaves both to the process: results never depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dispatch {
    /// The token to use, instead of the process's ([`isa::active`]). The machine must have it.
    pub isa: Option<Isa>,
    /// Most threads to use; `None`: all cores, fewer where there is little to do. 1 stays on the calling thread.
    pub threads: Option<usize>,
}

impl Dispatch {
    /// All defaults, with at most `threads` threads.
    #[must_use]
    pub const fn threads(threads: usize) -> Self {
        Self { isa: None, threads: Some(threads) }
    }

    /// All defaults, with the kernels of `isa`.
    #[must_use]
    pub const fn isa(isa: Isa) -> Self {
        Self { isa: Some(isa), threads: None }
    }

    pub(crate) fn resolve(&self) -> Result<Isa, OpError> {
        match self.isa {
            Some(isa) => isa.require("the call"),
            None => isa::active(),
        }
    }

    /// Parts for `work` elementary steps, of which a thread should have `least` to be worth waking.
    pub(crate) fn parts(&self, work: usize, least: usize) -> Result<usize, OpError> {
        match self.threads {
            Some(0) => Err(OpError::ZeroThreads),
            Some(threads) => Ok(threads),
            None => Ok(pool::cores().min(work / least).max(1)),
        }
    }
}

/// What ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// The token that was in force.
    pub isa: Isa,
    /// The token whose code did the work: `isa`, or one of its fallbacks where it has no kernel of its own.
    pub kernel: Isa,
    /// Parts the work was split into, one thread each.
    pub parts: usize,
    /// Which of that token's kernels of a product ran; `None` for operations that are not products.
    pub width: Option<Width>,
}
