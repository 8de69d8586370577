//! Framing of entry and part files (container specification, "Files"). All integers are little-endian.

use crate::error::{ArtifactError, ArtifactErrorKind as K};

/// First eight bytes of an entry file.
pub const ENTRY_MAGIC: [u8; 8] = *b"NINFER\0\x03";
/// First eight bytes of a part file.
pub const PART_MAGIC: [u8; 8] = *b"NINPRT\0\x03";
/// Bytes before the JSON of an entry file, and the meaningful bytes at the start of a part file.
pub const PREFIX_BYTES: u64 = 32;
/// Payloads start at a multiple of this; parts hold a multiple of it.
pub const PAGE: u64 = 4096;
/// Largest directory read, in bytes. A directory entry of a tensor takes about 250 bytes with its binding, so this
/// is room for a million tensors; the cap bounds what a hostile file can make a reader allocate.
pub const MAX_JSON_BYTES: u64 = 256 << 20;

/// The first 32 bytes of an entry file, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryPrefix {
    /// Bytes of the JSON text, trailing whitespace included.
    pub json_bytes: u64,
    /// Identity of one write; the same in every file of an artifact.
    pub artifact_id: [u8; 16],
    /// Offset of the payload in the file.
    pub payload_start: u64,
}

impl EntryPrefix {
    /// Reads and checks the prefix of a file of `bytes.len()` bytes: magic, version, and that the JSON and the
    /// payload start lie inside the file.
    ///
    /// # Errors
    /// Another file type or version, a part file, a JSON length of zero, above [`MAX_JSON_BYTES`] or beyond the
    /// file, padding that is not zero.
    pub fn parse(bytes: &[u8]) -> Result<Self, ArtifactError> {
        let file_bytes = bytes.len() as u64;
        check_entry_magic(bytes)?;
        let Some(prefix) = bytes.first_chunk::<{ PREFIX_BYTES as usize }>() else {
            return Err(cut_short("the prefix", PREFIX_BYTES, file_bytes));
        };
        let json_bytes = word(prefix, 8);
        let mut artifact_id = [0; 16];
        artifact_id.copy_from_slice(&prefix[16..]);
        let refuse =
            |rule: String| Err(ArtifactError::new(K::JsonBytes { found: json_bytes, rule }).at_byte(8));
        if json_bytes == 0 {
            return refuse("a positive length".into());
        }
        let most = file_bytes - PREFIX_BYTES;
        if json_bytes > most {
            return refuse(format!("at most {most}, the bytes that follow the prefix in this file"));
        }
        if json_bytes > MAX_JSON_BYTES {
            return refuse(format!("at most {MAX_JSON_BYTES}, the limit of this reader"));
        }
        let payload_start = payload_start(json_bytes);
        let padding = bytes.get((PREFIX_BYTES + json_bytes) as usize..payload_start as usize);
        let Some(padding) = padding else {
            return Err(cut_short("the padding before the payload", payload_start, file_bytes));
        };
        check_zero(padding, PREFIX_BYTES + json_bytes)?;
        Ok(Self { json_bytes, artifact_id, payload_start })
    }

    /// The 32 bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; PREFIX_BYTES as usize] {
        prefix_bytes(ENTRY_MAGIC, self.json_bytes, self.artifact_id)
    }
}

/// Offset of the payload of an entry file with `json_bytes` (at most [`MAX_JSON_BYTES`]) bytes of JSON.
#[must_use]
pub const fn payload_start(json_bytes: u64) -> u64 {
    (PREFIX_BYTES + json_bytes).next_multiple_of(PAGE)
}

/// Checks the first page and the length of a part file.
///
/// `bytes` is the file, `index` its position in `files`, `payload_bytes` what the directory says it holds.
///
/// # Errors
/// Another magic, index, artifact id or length, a first page that is cut short or not zero after the prefix.
pub fn check_part(
    bytes: &[u8],
    index: u64,
    artifact_id: [u8; 16],
    payload_bytes: u64,
) -> Result<(), ArtifactError> {
    let file_bytes = bytes.len() as u64;
    let magic = &bytes[..bytes.len().min(8)];
    if magic != PART_MAGIC {
        return Err(ArtifactError::new(K::NotPart { found: hex(magic) }).at_byte(0));
    }
    let Some(page) = bytes.first_chunk::<{ PAGE as usize }>() else {
        return Err(cut_short("the first page", PAGE, file_bytes));
    };
    let found = word(page, 8);
    if found != index {
        return Err(ArtifactError::new(K::PartIndex { found, wanted: index }).at_byte(8));
    }
    if page[16..32] != artifact_id {
        let (found, wanted) = (id_text(&page[16..32]), id_text(&artifact_id));
        return Err(ArtifactError::new(K::PartId { found, wanted }).at_byte(16));
    }
    check_zero(&page[PREFIX_BYTES as usize..], PREFIX_BYTES)?;
    match PAGE.checked_add(payload_bytes) {
        Some(wanted) if wanted == file_bytes => Ok(()),
        wanted => {
            let wanted = wanted.unwrap_or(u64::MAX);
            Err(ArtifactError::new(K::FileLength { found: file_bytes, wanted }))
        }
    }
}

/// The first 32 bytes of part `index`.
#[must_use]
pub fn part_prefix(index: u64, artifact_id: [u8; 16]) -> [u8; PREFIX_BYTES as usize] {
    prefix_bytes(PART_MAGIC, index, artifact_id)
}

/// An artifact id as 32 hexadecimal digits.
#[must_use]
pub fn id_text(id: &[u8]) -> String {
    id.iter().map(|b| format!("{b:02x}")).collect()
}

fn prefix_bytes(magic: [u8; 8], number: u64, artifact_id: [u8; 16]) -> [u8; PREFIX_BYTES as usize] {
    let mut bytes = [0; PREFIX_BYTES as usize];
    bytes[..8].copy_from_slice(&magic);
    bytes[8..16].copy_from_slice(&number.to_le_bytes());
    bytes[16..].copy_from_slice(&artifact_id);
    bytes
}

fn check_entry_magic(bytes: &[u8]) -> Result<(), ArtifactError> {
    let magic = &bytes[..bytes.len().min(8)];
    if magic == ENTRY_MAGIC {
        return Ok(());
    }
    let kind = match magic {
        [b'N', b'I', b'N', b'F', b'E', b'R', 0, found @ (1 | 2)] => K::OldVersion { found: *found },
        [b'N', b'I', b'N', b'F', b'E', b'R', high, low] => {
            K::UnknownVersion { found: u16::from_be_bytes([*high, *low]) }
        }
        m if m == PART_MAGIC => K::PartAsEntry {
            index: bytes.get(8..16).and_then(|b| b.first_chunk::<8>()).map_or(0, |b| u64::from_le_bytes(*b)),
        },
        _ => K::NotArtifact { found: hex(magic) },
    };
    Err(ArtifactError::new(kind).at_byte(0))
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

fn check_zero(padding: &[u8], at: u64) -> Result<(), ArtifactError> {
    match padding.iter().position(|&b| b != 0) {
        None => Ok(()),
        Some(i) => Err(ArtifactError::new(K::Padding { found: padding[i] }).at_byte(at + i as u64)),
    }
}

fn cut_short(what: &'static str, end: u64, file_bytes: u64) -> ArtifactError {
    ArtifactError::new(K::CutShort { what, end, file_bytes })
}

fn hex(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "nothing (it is empty)".into();
    }
    bytes.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_starts_on_a_page() {
        assert_eq!(payload_start(1), 4096);
        assert_eq!(payload_start(4064), 4096);
        assert_eq!(payload_start(4065), 8192);
    }

    #[test]
    fn prefix_round_trip() {
        let prefix = EntryPrefix { json_bytes: 5, artifact_id: *b"0123456789abcdef", payload_start: 4096 };
        let mut file = vec![0; 4096];
        file[..32].copy_from_slice(&prefix.to_bytes());
        assert_eq!(file[..16], [0x4e, 0x49, 0x4e, 0x46, 0x45, 0x52, 0, 3, 5, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(EntryPrefix::parse(&file).unwrap(), prefix);
        let part = part_prefix(0x0102, *b"0123456789abcdef");
        assert_eq!(part[..16], [0x4e, 0x49, 0x4e, 0x50, 0x52, 0x54, 0, 3, 2, 1, 0, 0, 0, 0, 0, 0]);
    }
}
