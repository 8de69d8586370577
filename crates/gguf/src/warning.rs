//! What a legal file has that other readers refuse.

use std::fmt;

use crate::header::Header;
use crate::limits::{GGML_NAME_BYTES, MAX_WARNINGS};
use crate::text::GgufStr;

/// Something that this reader accepts and llama.cpp's own reader refuses, or that a user should know.
/// Names are escaped for display, offsets are relative to the data start in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are named after what the messages print")]
pub enum Warning {
    /// Bytes that belong to no tensor lie before this one.
    Gap { tensor: String, offset: u64, contiguous: u64 },
    /// The tensor lies before its predecessor in the list.
    Disorder { tensor: String, offset: u64, contiguous: u64 },
    /// The name has 64 bytes or more.
    LongName { tensor: String, bytes: u64 },
    /// A tensor has an empty name.
    EmptyName { index: u64 },
    /// A metadata key is empty.
    EmptyKey { index: u64 },
    /// The type number is retired or unknown: the tensor is listed, its data cannot be located.
    UnknownType { tensor: String, type_id: u32, retired: bool },
    /// More warnings than are kept.
    More { count: u64 },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gap { tensor, offset, contiguous } => write!(
                f,
                "tensor \"{tensor}\": data offset {offset} leaves a gap after {contiguous}; llama.cpp refuses gaps"
            ),
            Self::Disorder { tensor, offset, contiguous } => write!(
                f,
                "tensor \"{tensor}\": data offset {offset} comes before {contiguous}, where the tensors listed \
                 before it end; llama.cpp wants data in list order"
            ),
            Self::LongName { tensor, bytes } => write!(
                f,
                "tensor \"{tensor}\": the name has {bytes} bytes; llama.cpp refuses names of {GGML_NAME_BYTES} or more"
            ),
            Self::EmptyName { index } => write!(f, "tensor {index} of the list has an empty name"),
            Self::EmptyKey { index } => {
                write!(f, "metadata entry {index} has an empty key; llama.cpp refuses empty keys")
            }
            Self::UnknownType { tensor, type_id, retired } => write!(
                f,
                "tensor \"{tensor}\": ggml type {type_id} is {}; its data cannot be located",
                if *retired { "retired" } else { "unknown" }
            ),
            Self::More { count } => write!(f, "{count} more warnings are not shown"),
        }
    }
}

/// All warnings of a parsed header, at most [`MAX_WARNINGS`] and a count of the rest.
pub(crate) fn collect(header: &Header) -> Vec<Warning> {
    let mut list = Vec::new();
    let mut more = 0u64;
    let mut add = |w: &dyn Fn() -> Warning| {
        if list.len() < MAX_WARNINGS {
            list.push(w());
        } else {
            more += 1;
        }
    };
    for (i, e) in header.entries().iter().enumerate() {
        if e.key_bytes().is_empty() {
            add(&|| Warning::EmptyKey { index: i as u64 });
        }
    }
    // Where the data of the next tensor would begin in a file written front to back; unknown after a tensor of
    // unknown span.
    let mut next = Some(0u64);
    for (i, t) in header.tensors().iter().enumerate() {
        let name = || GgufStr(t.name_bytes()).escaped();
        let bytes = t.name_bytes().len() as u64;
        if bytes == 0 {
            add(&|| Warning::EmptyName { index: i as u64 });
        }
        if bytes >= GGML_NAME_BYTES {
            add(&|| Warning::LongName { tensor: name(), bytes });
        }
        if t.bytes().is_none() {
            let (type_id, retired) = (t.ggml_type().0, t.ggml_type().is_retired());
            add(&|| Warning::UnknownType { tensor: name(), type_id, retired });
        }
        if let Some(contiguous) = next {
            let offset = t.offset();
            if offset > contiguous {
                add(&|| Warning::Gap { tensor: name(), offset, contiguous });
            } else if offset < contiguous {
                add(&|| Warning::Disorder { tensor: name(), offset, contiguous });
            }
        }
        next = t
            .bytes()
            .and_then(|n| t.offset().checked_add(n)?.checked_next_multiple_of(header.alignment().into()));
    }
    if more > 0 {
        list.push(Warning::More { count: more });
    }
    list
}
