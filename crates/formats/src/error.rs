//! Errors of the crate, and the record of one broken validity rule.

use crate::shape::ShapeText;

/// What went wrong, with the names and numbers that locate it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// No registered format has this name.
    #[error("unknown format {name:?}{}", near_text(near))]
    UnknownFormat {
        /// The name looked up (at most 80 characters of it).
        name: String,
        /// Up to three registered names that are close.
        near: Vec<&'static str>,
    },
    /// No registered layout has this name.
    #[error("unknown layout {name:?}{}", near_text(near))]
    UnknownLayout {
        /// The name looked up (at most 80 characters of it).
        name: String,
        /// Up to three registered names that are close.
        near: Vec<&'static str>,
    },
    /// No encoder has this name.
    #[error("unknown method {name:?}{}", near_text(near))]
    UnknownMethod {
        /// The name looked up (at most 80 characters of it).
        name: String,
        /// Up to three names that are close.
        near: Vec<&'static str>,
    },
    /// The layout is registered, but not for this format.
    #[error("layout {layout} is not registered for format {format}; its layout is {expected}")]
    LayoutMismatch {
        /// Format name.
        format: &'static str,
        /// Layout asked for.
        layout: &'static str,
        /// Layout the registry has for the format.
        expected: &'static str,
    },
    /// The shape breaks a rule of the format's layout.
    #[error("shape {shape} is not legal for {format}: {rule}")]
    Shape {
        /// Format name.
        format: &'static str,
        /// The shape.
        shape: ShapeText,
        /// The rule it breaks.
        rule: String,
    },
    /// A size computed from the shape does not fit.
    #[error("shape {shape} of {format} needs more bytes than {limit} can hold")]
    SizeOverflow {
        /// Format name.
        format: &'static str,
        /// The shape.
        shape: ShapeText,
        /// The integer type or machine limit exceeded.
        limit: &'static str,
    },
    /// The divisor count breaks a rule.
    #[error("{divisors} divisors are not legal for {format} with shape {shape}: {rule}")]
    Divisors {
        /// Format name.
        format: &'static str,
        /// The shape.
        shape: ShapeText,
        /// The count given.
        divisors: u64,
        /// The rule it breaks.
        rule: &'static str,
    },
    /// The payload has another length than the encoded size.
    #[error("payload of {format} with shape {shape} must be exactly {expected} bytes, got {actual}")]
    PayloadSize {
        /// Format name.
        format: &'static str,
        /// The shape.
        shape: ShapeText,
        /// Encoded size in bytes.
        expected: u64,
        /// Bytes given.
        actual: u64,
    },
    /// An input or output buffer has the wrong length.
    #[error("{what} must hold exactly {expected} {unit}, got {actual}")]
    BufferSize {
        /// Which buffer.
        what: &'static str,
        /// Unit of the two numbers.
        unit: &'static str,
        /// Length needed.
        expected: u64,
        /// Length given.
        actual: u64,
    },
    /// A row index or range lies outside the tensor.
    #[error("rows {begin}..{end} are outside the {rows} rows of this {format} tensor")]
    RowRange {
        /// Format name.
        format: &'static str,
        /// First row asked for.
        begin: u64,
        /// One past the last row asked for.
        end: u64,
        /// Rows of the tensor.
        rows: u64,
    },
    /// The operation exists, but not for this format or argument.
    #[error("{format}: {what}")]
    Unsupported {
        /// Format name.
        format: &'static str,
        /// What is not supported, and what to do instead.
        what: String,
    },
    /// A finite value is too large for the 16-bit type asked for.
    #[error("{format} row {row}, column {column}: {value} overflows {target}; decode to binary32 instead")]
    HalfOverflow {
        /// Format name.
        format: &'static str,
        /// Row.
        row: u64,
        /// Column.
        column: u64,
        /// The binary32 value, printed.
        value: String,
        /// Name of the target type.
        target: &'static str,
    },
    /// A source value, group or row that an encoder or import must refuse.
    #[error("{method} to {format}: {place}: {rule}")]
    Refused {
        /// Format name.
        format: &'static str,
        /// Name of the method.
        method: &'static str,
        /// Where in the source.
        place: Place,
        /// The rule, with the value that breaks it.
        rule: String,
    },
    /// An importance vector holds a value that is negative or not finite.
    #[error("importance must be finite and not negative, got {value} at column {column}")]
    Importance {
        /// Column (input channel).
        column: u64,
        /// The value, printed.
        value: String,
    },
    /// A source value that the target format cannot hold.
    #[error("{format}: element {index} is {value}: {rule}")]
    Source {
        /// Format name.
        format: &'static str,
        /// Index of the element, one number per dimension.
        index: ShapeText,
        /// The value, printed.
        value: String,
        /// The rule it breaks.
        rule: &'static str,
    },
    /// The result needs more memory than there is.
    #[error("{bytes} bytes of memory are not to be had")]
    Memory {
        /// Bytes asked for.
        bytes: u64,
    },
    /// A word breaks a validity rule of the format.
    #[error("invalid {format} tensor: {violation}")]
    Invalid {
        /// Format name.
        format: &'static str,
        /// Where and which rule.
        violation: Violation,
    },
}

fn near_text(near: &[&str]) -> String {
    if near.is_empty() { String::new() } else { format!("; did you mean {}?", near.join(", ")) }
}

/// Where in a tensor a rule is broken. Indices count from zero in logical coordinates; bytes count from the payload
/// start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// One element of a row.
    Column {
        /// Row.
        row: u64,
        /// Column (element index within the row).
        column: u64,
    },
    /// One group of a row.
    Group {
        /// Row.
        row: u64,
        /// Group index within the row.
        group: u64,
    },
    /// A whole row.
    Row {
        /// Row.
        row: u64,
    },
    /// A divisor word.
    Divisor {
        /// Index of the divisor.
        index: u64,
    },
    /// A byte of the payload that belongs to no logical word.
    Byte {
        /// Offset from the payload start.
        offset: u64,
    },
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Column { row, column } => write!(f, "row {row}, column {column}"),
            Self::Group { row, group } => write!(f, "row {row}, group {group}"),
            Self::Row { row } => write!(f, "row {row}"),
            Self::Divisor { index } => write!(f, "divisor {index}"),
            Self::Byte { offset } => write!(f, "byte {offset}"),
        }
    }
}

/// One broken validity rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The plane or field: `code`, `scale`, `divisor` or `padding`.
    pub plane: &'static str,
    /// Where.
    pub place: Place,
    /// The offending word, zero-extended.
    pub word: u32,
    /// The rule, as a sentence fragment.
    pub rule: &'static str,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} plane, {}: word {:#x}: {}", self.plane, self.place, self.word, self.rule)
    }
}
