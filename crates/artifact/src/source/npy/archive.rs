//! `.npz` files: zip archives of `.npy` arrays.

use std::io::{Cursor, Read};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};

use ninfer_mapped::MappedFile;
use zip::{CompressionMethod, ZipArchive};

use super::header::{Header, MAX_HEADER, NpyFault, fault};
use crate::error::{ArtifactError, ArtifactErrorKind as K};

/// Where an entry's bytes are.
#[derive(Debug)]
pub(super) enum Place {
    /// In the archive as they are.
    Stored(Range<u64>),
    /// Compressed: unpacked to a temporary file when they are first read.
    Deflated(OnceLock<Unpacked>),
}

/// One array of an archive.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) place: Place,
    /// Bytes, unpacked.
    pub(super) size: u64,
    pub(super) crc: u32,
    pub(super) header: Header,
    position: usize,
    checked: OnceLock<()>,
    // One thread unpacks or checks, the others wait.
    gate: Mutex<()>,
}

/// A temporary file that goes when it is dropped; on Unix it has no name any more.
#[derive(Debug)]
pub(super) struct Unpacked {
    map: MappedFile,
    _file: Option<tempfile::TempPath>,
}

fn archive_fault(e: zip::result::ZipError) -> ArtifactError {
    match e {
        zip::result::ZipError::Io(e) => ArtifactError::io("cannot read the archive", e),
        e => fault(NpyFault::Archive { message: e.to_string() }),
    }
}

/// Lists the arrays of an archive, and the names of its other entries.
pub(super) fn list(map: &MappedFile) -> Result<(Vec<Entry>, Vec<String>), ArtifactError> {
    let mut archive = ZipArchive::new(Cursor::new(map.as_slice())).map_err(archive_fault)?;
    if archive.has_duplicate_names() {
        return Err(fault(NpyFault::Ambiguous { what: "two entries of the same name" }));
    }
    if archive.has_overlapping_entries().map_err(archive_fault)? {
        return Err(fault(NpyFault::Ambiguous { what: "entries that share bytes" }));
    }
    let mut entries = Vec::new();
    let mut others = Vec::new();
    for position in 0..archive.len() {
        let raw = archive.by_index_raw(position).map_err(archive_fault)?;
        let full = raw.name().map_err(archive_fault)?.into_owned();
        let Some(name) = full.strip_suffix(".npy") else {
            if !raw.is_dir() {
                others.push(full);
            }
            continue;
        };
        let in_entry = |e: ArtifactError| e.in_tensor(name);
        let (size, packed, crc) = (raw.size(), raw.compressed_size(), raw.crc32());
        if raw.encrypted() {
            return Err(in_entry(fault(NpyFault::Entry { what: "encrypted".into() })));
        }
        let start = raw.data_start().ok_or_else(|| {
            in_entry(fault(NpyFault::Archive { message: "the data of an entry are not found".into() }))
        })?;
        let method = raw.compression();
        drop(raw);
        let place = match method {
            CompressionMethod::Stored => {
                let range = start..start.saturating_add(packed);
                if packed != size || range.end > map.len() as u64 {
                    let (what, end, bytes) = ("the entry", range.end, map.len() as u64);
                    return Err(in_entry(fault(NpyFault::CutShort { what, end, bytes })));
                }
                Place::Stored(range)
            }
            CompressionMethod::Deflated => Place::Deflated(OnceLock::new()),
            other => return Err(in_entry(fault(NpyFault::Entry { what: format!("compressed by {other}") }))),
        };
        let mut head = Vec::new();
        let reader = archive.by_index(position).map_err(archive_fault).map_err(in_entry)?;
        // An error here shows again when the array is read; the header tells what is missing.
        let _ = reader.take(MAX_HEADER + 12).read_to_end(&mut head);
        let header = Header::parse(&head, size).map_err(in_entry)?;
        let (checked, gate) = (OnceLock::new(), Mutex::new(()));
        entries.push(Entry { name: name.to_owned(), place, size, crc, header, position, checked, gate });
    }
    if entries.is_empty() {
        return Err(fault(NpyFault::NoArrays { entries: archive.len() as u64 }));
    }
    Ok((entries, others))
}

impl Entry {
    /// The entry's bytes, checked against its checksum when they are first asked for.
    pub(super) fn bytes<'a>(&'a self, map: &'a MappedFile) -> Result<&'a [u8], ArtifactError> {
        match &self.place {
            Place::Stored(range) => {
                // Checked against the map, which never changes its length.
                let bytes = map.get(range.start as usize..range.end as usize);
                let bytes = bytes.ok_or_else(|| ArtifactError::new(K::SourceChanged))?;
                if self.checked.get().is_none() {
                    let _gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
                    if self.checked.get().is_none() {
                        self.check(crc32fast::hash(bytes))?;
                        self.checked.get_or_init(|| ());
                    }
                }
                Ok(bytes)
            }
            Place::Deflated(unpacked) => {
                if unpacked.get().is_none() {
                    let _gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
                    if unpacked.get().is_none() {
                        let done = self.unpack(map)?;
                        unpacked.get_or_init(|| done);
                    }
                }
                unpacked.get().map(|u| u.map.as_slice()).ok_or_else(|| ArtifactError::new(K::SourceChanged))
            }
        }
    }

    fn check(&self, found: u32) -> Result<(), ArtifactError> {
        if found == self.crc {
            return Ok(());
        }
        Err(fault(NpyFault::Checksum { found, wanted: self.crc }))
    }

    fn unpack(&self, map: &MappedFile) -> Result<Unpacked, ArtifactError> {
        let fail = |e| ArtifactError::io("cannot unpack the entry to a temporary file", e);
        let mut archive = ZipArchive::new(Cursor::new(map.as_slice())).map_err(archive_fault)?;
        let reader = archive.by_index(self.position).map_err(archive_fault)?;
        let mut file = tempfile::NamedTempFile::new().map_err(fail)?;
        // One byte more shows an entry that is longer than it says. The reader compares the checksum at the end.
        let written =
            std::io::copy(&mut reader.take(self.size.saturating_add(1)), file.as_file_mut()).map_err(fail)?;
        if written != self.size {
            let (what, end, bytes) = ("the entry", self.size, written);
            return Err(fault(NpyFault::CutShort { what, end, bytes }));
        }
        let path = file.into_temp_path();
        let map = MappedFile::open(&path).map_err(fail)?;
        // A map outlives the name of its file on Unix: nothing is left behind, however the process ends.
        let keep = if cfg!(unix) && std::fs::remove_file(&path).is_ok() { forget(path) } else { Some(path) };
        Ok(Unpacked { map, _file: keep })
    }
}

/// Gives a path up whose file is gone.
fn forget(path: tempfile::TempPath) -> Option<tempfile::TempPath> {
    let _: Result<PathBuf, _> = path.keep();
    None
}
