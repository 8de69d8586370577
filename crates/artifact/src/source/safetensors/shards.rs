//! Which files are a model: one file, an index with its shards, a folder with either.

use std::collections::{BTreeMap, HashMap};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use ninfer_mapped::MappedFile;

use super::fault::{MAX_HEADER, SafetensorsFault as F};
use super::header::{Header, fault};
use crate::container::Json;
use crate::error::{ArtifactError, ArtifactErrorKind as K, listed as names_listed};

const INDEX: &str = ".safetensors.index.json";
const WHOLE: &str = "model.safetensors";

/// One mapped file.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) map: MappedFile,
    pub(super) header: Header,
}

impl Shard {
    pub(super) fn open(path: &Path) -> Result<Self, ArtifactError> {
        let map = MappedFile::open(path).map_err(|e| ArtifactError::io("cannot open", e).with_path(path))?;
        let header = Header::parse(&map).map_err(|e| e.with_path(path))?;
        Ok(Self { map, header })
    }

    pub(super) fn name(&self) -> String {
        self.map.path().file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
    }
}

/// The files of a model.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) shards: Vec<Shard>,
    /// The index file and its bytes, where there is one.
    pub(super) index: Option<(PathBuf, Vec<u8>)>,
    /// The folder that configuration and tokenizer may lie in.
    pub(super) folder: PathBuf,
    pub(super) warnings: Vec<String>,
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

/// Opens a file by its path.
pub(super) fn one(path: &Path) -> Result<Files, ArtifactError> {
    let shard = Shard::open(path)?;
    let mut warnings = Vec::new();
    if let Some((_, number, count)) = shard_name(&shard.name()).filter(|&(_, _, count)| count > 1) {
        warnings.push(format!(
            "{} is file {number} of {count} by its name; open the index or the folder for the whole model",
            shard.name()
        ));
    }
    Ok(Files { shards: vec![shard], index: None, folder: folder_of(path), warnings })
}

/// Opens these files as one model.
pub(super) fn listed(paths: &[PathBuf], folder: PathBuf) -> Result<Files, ArtifactError> {
    let shards = paths.iter().map(|p| Shard::open(p)).collect::<Result<Vec<_>, _>>()?;
    let mut seen: HashMap<Arc<str>, usize> = HashMap::new();
    for (i, shard) in shards.iter().enumerate() {
        for t in &shard.header.tensors {
            if let Some(other) = seen.insert(Arc::clone(&t.name), i) {
                let kind = F::TwoShards { first: shards[other].name(), second: shard.name() };
                return Err(fault(kind).in_tensor(&t.name).with_path(shard.map.path()));
            }
        }
    }
    Ok(Files { shards, index: None, folder, warnings: Vec::new() })
}

/// Opens all shards that an index names.
pub(super) fn indexed(path: &Path) -> Result<Files, ArtifactError> {
    let bytes = small_file(path, MAX_HEADER)?;
    open_index(path, bytes).map_err(|e| e.with_path(path))
}

fn open_index(path: &Path, bytes: Vec<u8>) -> Result<Files, ArtifactError> {
    let json = Json::parse(&bytes, 0)?;
    let Some(Json::Object(members)) = json.get("weight_map") else { return Err(fault(F::NoWeightMap)) };
    let folder = folder_of(path);
    let mut places: HashMap<&str, &str> = HashMap::new();
    let mut names: BTreeMap<&str, &str> = BTreeMap::new();
    for (tensor, file) in members {
        let Json::Str(file) = file else {
            let (member, wanted) = ("a member of weight_map", "the name of a file");
            return Err(fault(F::Member { member, found: file.describe(), wanted }).in_tensor(tensor));
        };
        if !is_plain(file) {
            return Err(fault(F::ShardName { name: file.clone() }).in_tensor(tensor));
        }
        places.insert(tensor, file);
        names.insert(file, tensor);
    }
    // All files must be there before any is parsed, so that a missing one is reported as that.
    for (name, tensor) in &names {
        if let Err(e) = std::fs::metadata(folder.join(name)) {
            let kind = F::ShardMissing { name: (*name).to_owned(), reason: e.to_string() };
            return Err(fault(kind).in_tensor(tensor));
        }
    }
    let paths: Vec<PathBuf> = names.keys().map(|name| folder.join(name)).collect();
    let mut files = listed(&paths, folder)?;
    for shard in &files.shards {
        let name = shard.name();
        for t in &shard.header.tensors {
            let place = places.get(&*t.name).copied();
            if place != Some(&name) {
                let kind = F::NotInIndex { shard: name, other: place.map(str::to_owned) };
                return Err(fault(kind).in_tensor(&t.name));
            }
        }
    }
    let shards: HashMap<String, &Shard> = files.shards.iter().map(|s| (s.name(), s)).collect();
    for (tensor, file) in members {
        let Json::Str(file) = file else { continue };
        if shards.get(file).is_none_or(|s| s.header.find(tensor).is_none()) {
            return Err(fault(F::NotInShard { shard: file.clone() }).in_tensor(tensor));
        }
    }
    let total: u64 = files.shards.iter().flat_map(|s| &s.header.tensors).map(|t| t.bytes()).sum();
    let stated = json.get("metadata").and_then(|m| m.get("total_size"));
    if let Some(stated) = stated.filter(|s| s.as_u64() != Some(total)) {
        files.warnings.push(format!(
            "the index states a total size of {}; the tensors have {total} bytes",
            {
                match stated {
                    Json::Unsigned(n) => n.to_string(),
                    other => other.describe(),
                }
            }
        ));
    }
    files.index = Some((path.to_path_buf(), bytes));
    Ok(files)
}

/// Whether a name is one plain component on every system: no separators, drives, dots alone.
fn is_plain(name: &str) -> bool {
    let mut components = Path::new(name).components();
    let single = matches!((components.next(), components.next()), (Some(Component::Normal(_)), None));
    single && !name.contains(['/', '\\', ':', '\0'])
}

/// Opens the model in a folder: its index, or `model.safetensors`, or its only safetensors file, or its only complete set of
/// numbered shards.
pub(super) fn folder(path: &Path) -> Result<Files, ArtifactError> {
    let fail = |e| ArtifactError::io("cannot list the folder", e).with_path(path);
    let mut indexes = Vec::new();
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(fail)? {
        let name = entry.map_err(fail)?.file_name();
        let Some(name) = name.to_str() else { continue };
        if name.ends_with(INDEX) {
            indexes.push(name.to_owned());
        } else if name.ends_with(".safetensors") {
            files.push(name.to_owned());
        }
    }
    indexes.sort();
    files.sort();
    let ambiguous = |problem: String| Err(fault(F::Folder { problem }).with_path(path));
    let default = format!("model{INDEX}");
    match &indexes[..] {
        _ if indexes.contains(&default) => return indexed(&path.join(default)),
        [index] => return indexed(&path.join(index)),
        [] => {}
        _ => {
            return ambiguous(format!(
                "the folder has {} index files: {}",
                indexes.len(),
                names_listed(&indexes)
            ));
        }
    }
    match &files[..] {
        [] => return ambiguous("the folder has no safetensors file".into()),
        _ if files.iter().any(|f| f == WHOLE) => return one(&path.join(WHOLE)),
        [file] if shard_name(file).is_none_or(|(_, _, count)| count == 1) => return one(&path.join(file)),
        _ => {}
    }
    // A set of shards without an index: the names must leave no doubt.
    let parsed: Vec<_> = files.iter().filter_map(|f| shard_name(f)).collect();
    let complete = parsed.len() == files.len()
        && parsed.iter().enumerate().all(|(i, &(prefix, number, count))| {
            prefix == parsed[0].0 && number == i as u64 + 1 && count == files.len() as u64
        });
    if !complete {
        return ambiguous(format!(
            "the folder has {} safetensors files, no index and no complete set of numbered shards: {}",
            files.len(),
            names_listed(&files)
        ));
    }
    let paths: Vec<PathBuf> = files.iter().map(|f| path.join(f)).collect();
    let mut found = listed(&paths, path.to_path_buf())?;
    found.warnings.push("the shards have no index; their names say that they are complete".into());
    Ok(found)
}

/// Prefix, number and count of `PREFIX-00001-of-00003.safetensors`.
fn shard_name(name: &str) -> Option<(&str, u64, u64)> {
    let (rest, count) = name.strip_suffix(".safetensors")?.rsplit_once("-of-")?;
    let (prefix, number) = rest.rsplit_once('-')?;
    let digits = |s: &str| (s.len() == 5 && s.bytes().all(|b| b.is_ascii_digit())).then(|| s.parse().ok())?;
    Some((prefix, digits(number)?, digits(count)?))
}

/// Reads a file of at most `most` bytes.
pub(super) fn small_file(path: &Path, most: u64) -> Result<Vec<u8>, ArtifactError> {
    use std::io::Read;
    let fail = |e| ArtifactError::io("cannot read", e).with_path(path);
    let mut bytes = Vec::new();
    let file = crate::source::regular_file(path).map_err(fail)?;
    file.take(most + 1).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() as u64 > most {
        return Err(ArtifactError::new(K::TooLarge { bytes: bytes.len() as u64 }).with_path(path));
    }
    Ok(bytes)
}
