//! Models split over several files.
//!
//! Such a file is named `PREFIX-00002-of-00003.gguf`, counting from 1, and carries `split.no` (counting from 0),
//! `split.count` and `split.tensors.count` (tensors of the whole set). Only the first shard has the model's metadata.
//! A `split.count` of 0 or 1 marks a whole model: llama.cpp's merge tool writes 0.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{GgufError, GgufErrorKind as K};
use crate::metadata::Metadata;
use crate::reader::GgufFile;
use crate::tensor::TensorInfo;
use crate::warning::Warning;

const COUNT: &str = "split.count";
const NUMBER: &str = "split.no";
const TOTAL: &str = "split.tensors.count";

/// A whole model: one file, or all shards of a split set in order.
#[derive(Debug)]
pub struct GgufSet {
    shards: Vec<GgufFile>,
    // Shard and position of every tensor; empty for one file, whose header has its own index.
    index: HashMap<Arc<[u8]>, (u32, u32)>,
}

impl GgufSet {
    /// Opens a model by one path: a plain file, or any shard of a split set, whose other shards are found beside it
    /// by name.
    ///
    /// # Errors
    /// Those of [`GgufFile::open`] for each shard, and the `Split*` kinds of
    /// [`GgufErrorKind`](crate::GgufErrorKind), each with the path of the file that disagrees:
    /// * `SplitIncomplete`: `split.count` is above 1 and the name does not follow the pattern;
    /// * `SplitNameCount`: the name's count and `split.count` disagree;
    /// * `SplitMissing`: a shard's file is not there;
    /// * `SplitCount`, `SplitNumber`: a shard's own keys disagree with its place in the set;
    /// * `SplitTotal`: `split.tensors.count` is not the number of tensors found;
    /// * `KeyMissing`: a shard lacks one of the three keys;
    /// * `DuplicateTensor`: two shards have a tensor of the same name.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, GgufError> {
        let path = path.as_ref();
        let first = GgufFile::open(path)?;
        let count = get(&first, COUNT)?;
        let name = ShardName::parse(path);
        let Some(count) = count.filter(|&n| n > 1) else {
            return match name {
                Some(n) if n.count > 1 => {
                    let found = count.map_or_else(|| "missing".to_owned(), |c| c.to_string());
                    Err(fail(&first, K::SplitNameCount { named: n.count, found }).in_key(COUNT.as_bytes()))
                }
                _ => Ok(Self { shards: vec![first], index: HashMap::new() }),
            };
        };
        let Some(name) = name else {
            let number = match get(&first, NUMBER)? {
                Some(n) => n.saturating_add(1).to_string(),
                None => "?".to_owned(),
            };
            return Err(fail(&first, K::SplitIncomplete { number, count }));
        };
        if name.count != count {
            let kind = K::SplitNameCount { named: name.count, found: count.to_string() };
            return Err(fail(&first, kind).in_key(COUNT.as_bytes()));
        }
        // All files must be there before any is parsed, so that a missing shard is reported as that.
        for number in (1..=count).filter(|&n| n != name.number) {
            let sibling = name.path(number);
            if let Err(source) = std::fs::metadata(&sibling) {
                let kind = K::SplitMissing { number, count, source };
                return Err(GgufError::new(kind).with_path(&sibling));
            }
        }
        let mut shards = Vec::new();
        let mut first = Some(first);
        for number in 1..=count {
            let shard = match first.take_if(|_| number == name.number) {
                Some(shard) => shard,
                None => GgufFile::open(name.path(number))?,
            };
            check_count(&shard, count)?;
            let found = require(&shard, NUMBER)?;
            if found != number - 1 {
                let kind = K::SplitNumber { found, wanted: Some(number - 1), count };
                return Err(fail(&shard, kind).in_key(NUMBER.as_bytes()));
            }
            shards.push(shard);
        }
        Self::join(shards)
    }

    /// Opens a model from the list of all its files, in any order and under any names; `split.no` gives the order.
    /// A list of one plain file is that file.
    ///
    /// # Errors
    /// `NoFiles` for an empty list, `SplitListed` if the list is shorter or longer than `split.count`,
    /// `SplitRepeated` if two files claim one place, and those of [`GgufSet::open`] that do not concern names.
    pub fn open_files(paths: &[impl AsRef<Path>]) -> Result<Self, GgufError> {
        let mut files = paths.iter().map(GgufFile::open).collect::<Result<Vec<_>, _>>()?;
        let Some(first) = files.first() else { return Err(GgufError::new(K::NoFiles)) };
        let given = files.len() as u64;
        let count = get(first, COUNT)?.unwrap_or(0).max(1);
        if given == 1 && count == 1 {
            return Ok(Self { shards: files, index: HashMap::new() });
        }
        for file in &files {
            check_count(file, count)?;
        }
        if given != count {
            return Err(fail(&files[0], K::SplitListed { given, count }).in_key(COUNT.as_bytes()));
        }
        let mut numbered = Vec::new();
        for file in files.drain(..) {
            let number = require(&file, NUMBER)?;
            if number >= count {
                let kind = K::SplitNumber { found: number, wanted: None, count };
                return Err(fail(&file, kind).in_key(NUMBER.as_bytes()));
            }
            numbered.push((number, file));
        }
        numbered.sort_by_key(|&(n, _)| n);
        for pair in numbered.windows(2) {
            let [(a, one), (b, other)] = pair else { continue };
            if a == b {
                let kind = K::SplitRepeated { number: *a, other: one.path().display().to_string() };
                return Err(fail(other, kind).in_key(NUMBER.as_bytes()));
            }
        }
        Self::join(numbered.into_iter().map(|(_, f)| f).collect())
    }

    /// Checks the total and builds the index over shards in order.
    fn join(shards: Vec<GgufFile>) -> Result<Self, GgufError> {
        let sum = shards.iter().map(|s| s.tensors().len() as u64).sum();
        for shard in &shards {
            let found = require(shard, TOTAL)?;
            if found != sum {
                return Err(fail(shard, K::SplitTotal { found, sum }).in_key(TOTAL.as_bytes()));
            }
        }
        let mut index: HashMap<Arc<[u8]>, (u32, u32)> = HashMap::new();
        for (s, shard) in shards.iter().enumerate() {
            for (i, t) in shard.tensors().iter().enumerate() {
                if let Some((other, _)) = index.insert(Arc::clone(&t.name), (s as u32, i as u32)) {
                    let first = shards[other as usize].path().display().to_string();
                    let e = fail(shard, K::DuplicateTensor { first }).at(t.info_offset);
                    return Err(e.in_tensor(&t.name));
                }
            }
        }
        Ok(Self { shards, index })
    }

    /// The files in order; one for a model that is not split.
    #[must_use]
    pub fn shards(&self) -> &[GgufFile] {
        &self.shards
    }

    /// The model's metadata: that of the first shard.
    #[must_use]
    pub fn metadata(&self) -> Metadata<'_> {
        // Every constructor refuses an empty list.
        self.shards[0].metadata()
    }

    /// Number of tensors of all shards.
    #[must_use]
    pub fn tensor_count(&self) -> usize {
        self.shards.iter().map(|s| s.tensors().len()).sum()
    }

    /// All tensors, shard by shard in file order, each with its shard.
    pub fn tensors(&self) -> impl Iterator<Item = (&GgufFile, &TensorInfo)> {
        self.shards.iter().flat_map(|s| s.tensors().iter().map(move |t| (s, t)))
    }

    /// The tensor with this name and the shard that holds it, or `None`. Constant time.
    #[must_use]
    pub fn find(&self, name: impl AsRef<[u8]>) -> Option<(&GgufFile, &TensorInfo)> {
        let name = name.as_ref();
        if let [file] = &self.shards[..] {
            return file.header().find(name).map(|t| (file, t));
        }
        let &(s, i) = self.index.get(name)?;
        let shard = &self.shards[s as usize];
        Some((shard, &shard.tensors()[i as usize]))
    }

    /// The tensor with this name and the shard that holds it. Constant time.
    ///
    /// # Errors
    /// [`GgufErrorKind::NoTensor`](K::NoTensor), with the path of the first shard.
    pub fn tensor(&self, name: impl AsRef<[u8]>) -> Result<(&GgufFile, &TensorInfo), GgufError> {
        let name = name.as_ref();
        self.find(name).ok_or_else(|| {
            let kind = K::NoTensor { tensors: self.tensor_count() as u64 };
            fail(&self.shards[0], kind).in_tensor(name)
        })
    }

    /// Data of the tensor with this name, without copying.
    ///
    /// # Errors
    /// As [`GgufSet::tensor`] and [`GgufFile::data`].
    pub fn data(&self, name: impl AsRef<[u8]>) -> Result<&[u8], GgufError> {
        let (shard, tensor) = self.tensor(name)?;
        shard.data(tensor)
    }

    /// Warnings of all shards, each with its shard; see [`Header::warnings`](crate::Header::warnings).
    pub fn warnings(&self) -> impl Iterator<Item = (&GgufFile, &Warning)> {
        self.shards.iter().flat_map(|s| s.warnings().iter().map(move |w| (s, w)))
    }
}

fn fail(file: &GgufFile, kind: K) -> GgufError {
    GgufError::new(kind).with_path(file.path())
}

fn get(file: &GgufFile, key: &str) -> Result<Option<u64>, GgufError> {
    file.metadata().get_u64(key).map_err(|e| e.with_path(file.path()))
}

fn require(file: &GgufFile, key: &str) -> Result<u64, GgufError> {
    get(file, key)?.ok_or_else(|| fail(file, K::KeyMissing).in_key(key.as_bytes()))
}

fn check_count(file: &GgufFile, count: u64) -> Result<(), GgufError> {
    let found = require(file, COUNT)?;
    if found == count {
        return Ok(());
    }
    Err(fail(file, K::SplitCount { found, count }).in_key(COUNT.as_bytes()))
}

/// A file name that ends in `-00002-of-00003.gguf`.
struct ShardName {
    directory: PathBuf,
    prefix: String,
    number: u64,
    count: u64,
}

impl ShardName {
    fn parse(path: &Path) -> Option<Self> {
        let stem = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (prefix, number) = rest.rsplit_once('-')?;
        let digits = |s: &str| -> Option<u64> {
            // Longer numbers than the five digits of the pattern appear only without leading zeros.
            let plain = s.len() >= 5
                && s.bytes().all(|b| b.is_ascii_digit())
                && (s.len() == 5 || !s.starts_with('0'));
            if plain { s.parse().ok() } else { None }
        };
        let (number, count) = (digits(number)?, digits(count)?);
        if number == 0 || number > count {
            return None;
        }
        let directory = path.parent().map(Path::to_path_buf).unwrap_or_default();
        Some(Self { directory, prefix: prefix.to_owned(), number, count })
    }

    fn path(&self, number: u64) -> PathBuf {
        self.directory.join(format!("{}-{number:05}-of-{:05}.gguf", self.prefix, self.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_recognised_whole() {
        let n = ShardName::parse(Path::new("/m/a-b-00002-of-00003.gguf")).unwrap();
        assert_eq!((n.prefix.as_str(), n.number, n.count), ("a-b", 2, 3));
        assert_eq!(n.path(3), Path::new("/m/a-b-00003-of-00003.gguf"));
        assert_eq!(n.path(n.number), Path::new("/m/a-b-00002-of-00003.gguf"));
        let n = ShardName::parse(Path::new("x-100000-of-123456.gguf")).unwrap();
        assert_eq!((n.number, n.count), (100_000, 123_456));
        for other in [
            "m.gguf",
            "m-1-of-3.gguf",
            "m-00001-of-00003.bin",
            "m-00000-of-00003.gguf",
            "m-00004-of-00003.gguf",
            "m-0000a-of-00003.gguf",
            "m-+0001-of-00003.gguf",
            "m-000001-of-00003.gguf",
            "m-99999999999999999999-of-99999999999999999999.gguf",
            "00001-of-00003.gguf",
        ] {
            assert!(ShardName::parse(Path::new(other)).is_none(), "{other}");
        }
    }
}
