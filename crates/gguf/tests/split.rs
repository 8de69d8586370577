//! Split sets: opened from any shard or from a list, with a distinct error for each way to disagree.

mod common;

use std::path::{Path, PathBuf};

use common::Raw;
use ninfer_gguf::{GgufErrorKind as K, GgufFile, GgufSet};

/// Shard `number` (from 1) of `count` with two tensors, as it should be for a total of `2 * count`.
fn shard(number: u16, count: u16) -> Raw {
    let file = Raw::new()
        .u16("split.no", number - 1)
        .u16("split.count", count)
        .entry("split.tensors.count", 5, i32::from(2 * count).to_le_bytes())
        .tensor(format!("blk.{number}.a"), &[32], 8, 0)
        .tensor(format!("blk.{number}.b"), &[3], 24, 64)
        .data(67);
    if number == 1 { file.text("general.architecture", "llama") } else { file }
}

fn name(number: u16, count: u16) -> String {
    format!("model-{number:05}-of-{count:05}.gguf")
}

struct Set {
    dir: tempfile::TempDir,
}

impl Set {
    /// Three shards, each changed by `change`.
    fn new(change: impl Fn(u16, Raw) -> Raw) -> Self {
        let set = Self { dir: tempfile::tempdir().unwrap() };
        for n in 1..=3 {
            std::fs::write(set.path(n), change(n, shard(n, 3)).build()).unwrap();
        }
        set
    }

    fn path(&self, number: u16) -> PathBuf {
        self.dir.path().join(name(number, 3))
    }

    fn put(&self, name: &str, file: &Raw) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, file.build()).unwrap();
        path
    }
}

/// Replaces the value of an integer key.
fn set_key(mut file: Raw, key: &str, value: u64) -> Raw {
    let entry = file.entries.iter_mut().find(|(k, _, _)| k == key.as_bytes()).unwrap();
    entry.1 = 10;
    entry.2 = value.to_le_bytes().to_vec();
    file
}

fn drop_key(mut file: Raw, key: &str) -> Raw {
    file.entries.retain(|(k, _, _)| k != key.as_bytes());
    file
}

fn check(set: &GgufSet) {
    assert_eq!((set.shards().len(), set.tensor_count()), (3, 6));
    let names: Vec<String> = set.tensors().map(|(_, t)| t.name().into_owned()).collect();
    assert_eq!(names, ["blk.1.a", "blk.1.b", "blk.2.a", "blk.2.b", "blk.3.a", "blk.3.b"]);
    for n in 1..=3u16 {
        let (file, t) = set.tensor(format!("blk.{n}.b")).unwrap();
        assert!(file.path().to_str().unwrap().ends_with(&name(n, 3)));
        assert_eq!(set.data(t.name_bytes()).unwrap(), &shard(n, 3).data[64..67]);
    }
    assert_eq!(set.metadata().get_str("general.architecture").unwrap().unwrap().text(), "llama");
    let e = set.tensor("blk.4.a").unwrap_err();
    assert_error!(e, K::NoTensor { tensors: 6 }, "blk.4.a", "model-00001-of-00003.gguf");
}

#[test]
fn opens_from_any_shard() {
    let set = Set::new(|_, f| f);
    for n in 1..=3 {
        check(&GgufSet::open(set.path(n)).unwrap());
    }
    // A single shard can still be looked at as it is.
    let one = GgufFile::open(set.path(2)).unwrap();
    assert_eq!(one.tensors().len(), 2);
}

#[test]
fn opens_from_a_list_in_any_order_under_any_name() {
    let set = Set::new(|_, f| f);
    check(&GgufSet::open_files(&[set.path(3), set.path(1), set.path(2)]).unwrap());
    let other = Set::new(|_, f| f);
    let renamed: Vec<PathBuf> = (1..=3).rev().map(|n| other.put(&format!("part{n}"), &shard(n, 3))).collect();
    let opened = GgufSet::open_files(&renamed).unwrap();
    let order: Vec<&Path> = opened.shards().iter().map(GgufFile::path).collect();
    assert_eq!(order, [&renamed[2], &renamed[1], &renamed[0]]);
    assert_eq!(opened.tensor_count(), 6);
}

#[test]
fn plain_files_are_sets_of_one() {
    let set = Set::new(|_, f| f);
    let plain = Raw::new().tensor("w", &[4], 24, 0).data(4);
    // Without keys, with a count of one under the pattern, and with the zero that a merge leaves behind.
    let files = [
        set.put("plain.gguf", &plain),
        set.put("m-00001-of-00001.gguf", &plain),
        set.put("n-00001-of-00001.gguf", &plain.clone().u16("split.count", 1).u16("split.no", 0)),
        set.put("merged.gguf", &plain.clone().u16("split.count", 0).u16("split.no", 0)),
    ];
    for path in files {
        for opened in [GgufSet::open(&path).unwrap(), GgufSet::open_files(&[&path]).unwrap()] {
            assert_eq!((opened.shards().len(), opened.tensor_count()), (1, 1));
            assert_eq!(opened.data("w").unwrap(), &plain.data[..]);
            assert!(opened.find("v").is_none());
        }
    }
}

#[test]
fn a_first_shard_without_tensors_is_fine() {
    let set = Set::new(|n, f| {
        let mut f = set_key(f, "split.tensors.count", 4);
        if n == 1 {
            f.tensors.clear();
            f.data.clear();
        }
        f
    });
    assert_eq!(GgufSet::open(set.path(3)).unwrap().tensor_count(), 4);
}

#[test]
fn a_missing_shard_is_named() {
    for missing in 1..=3 {
        let set = Set::new(|_, f| f);
        std::fs::remove_file(set.path(missing)).unwrap();
        for present in (1..=3).filter(|&n| n != missing) {
            let e = GgufSet::open(set.path(present)).unwrap_err();
            assert_error!(
                e,
                K::SplitMissing { .. },
                name(missing, 3),
                format!("shard {missing} of 3 is missing"),
            );
            assert_eq!(e.path(), Some(&*set.path(missing)));
        }
    }
}

#[test]
fn a_broken_shard_is_named() {
    let set = Set::new(|n, f| if n == 2 { f.data(66) } else { f });
    let e = GgufSet::open(set.path(1)).unwrap_err();
    assert_error!(e, K::TensorEnd { .. }, name(2, 3), "tensor \"blk.2.b\"");
}

#[test]
fn the_name_and_the_count_disagree() {
    let set = Set::new(|_, f| set_key(f, "split.count", 4));
    let e = GgufSet::open(set.path(1)).unwrap_err();
    assert_error!(e, K::SplitNameCount { named: 3, .. }, name(1, 3), "split.count", "says 3 shards", "is 4");
    let set = Set::new(|_, f| drop_key(f, "split.count"));
    let e = GgufSet::open(set.path(1)).unwrap_err();
    assert_error!(e, K::SplitNameCount { named: 3, .. }, "says 3 shards", "is missing");
    let set = Set::new(|_, f| set_key(f, "split.count", 1));
    let e = GgufSet::open(set.path(1)).unwrap_err();
    assert_error!(e, K::SplitNameCount { named: 3, .. }, "says 3 shards", "is 1");
}

#[test]
fn shards_disagree_about_the_count() {
    let set = Set::new(|n, f| if n == 2 { set_key(f, "split.count", 5) } else { f });
    let e = GgufSet::open(set.path(1)).unwrap_err();
    assert_error!(e, K::SplitCount { found: 5, count: 3 }, name(2, 3), "split.count is 5", "expected 3");
    let e = GgufSet::open_files(&[set.path(1), set.path(2), set.path(3)]).unwrap_err();
    assert_error!(e, K::SplitCount { found: 5, count: 3 }, name(2, 3));
}

#[test]
fn a_wrong_number() {
    let set = Set::new(|n, f| if n == 3 { set_key(f, "split.no", 3) } else { f });
    let e = GgufSet::open(set.path(1)).unwrap_err();
    assert_error!(
        e,
        K::SplitNumber { found: 3, wanted: Some(2), count: 3 },
        name(3, 3),
        "split.no is 3",
        "expected 2 (shard 3 of 3"
    );
    let e = GgufSet::open_files(&[set.path(1), set.path(2), set.path(3)]).unwrap_err();
    assert_error!(e, K::SplitNumber { found: 3, wanted: None, .. }, name(3, 3), "a number below 3");
    // The shard that was named itself is checked too.
    let set = Set::new(|n, f| if n == 1 { set_key(f, "split.no", 1) } else { f });
    let e = GgufSet::open(set.path(1)).unwrap_err();
    assert_error!(e, K::SplitNumber { found: 1, wanted: Some(0), .. }, name(1, 3));
    let e = GgufSet::open_files(&[set.path(1), set.path(2), set.path(3)]).unwrap_err();
    assert_error!(e, K::SplitRepeated { number: 1, .. }, "split.no 1", name(1, 3), name(2, 3));
}

#[test]
fn missing_keys() {
    for key in ["split.count", "split.no", "split.tensors.count"] {
        let set = Set::new(|n, f| if n == 2 { drop_key(f, key) } else { f });
        let e = GgufSet::open(set.path(1)).unwrap_err();
        assert_error!(e, K::KeyMissing, name(2, 3), format!("metadata key \"{key}\""), "missing");
    }
}

#[test]
fn keys_of_another_type() {
    let set = Set::new(|n, f| if n == 2 { drop_key(f, "split.no").text("split.no", "1") } else { f });
    let e = GgufSet::open(set.path(1)).unwrap_err();
    assert_error!(
        e,
        K::KeyType { .. },
        name(2, 3),
        "metadata key \"split.no\"",
        "of type string",
        "an integer"
    );
}

#[test]
fn a_wrong_total() {
    let set = Set::new(|n, f| if n == 3 { set_key(f, "split.tensors.count", 7) } else { f });
    for n in 1..=3 {
        let e = GgufSet::open(set.path(n)).unwrap_err();
        assert_error!(e, K::SplitTotal { found: 7, sum: 6 }, name(3, 3), "is 7", "hold 6 tensors");
    }
}

#[test]
fn a_renamed_shard_is_incomplete() {
    let set = Set::new(|_, f| f);
    let path = set.put("renamed.gguf", &shard(2, 3));
    let e = GgufSet::open(&path).unwrap_err();
    assert_error!(
        e,
        K::SplitIncomplete { count: 3, .. },
        "renamed.gguf",
        "shard 2 of 3",
        "-00001-of-00003.gguf",
        "list of all 3 files",
    );
}

#[test]
fn lists_must_be_whole() {
    let set = Set::new(|_, f| f);
    let e = GgufSet::open_files(&[set.path(1), set.path(3)]).unwrap_err();
    assert_error!(e, K::SplitListed { given: 2, count: 3 }, "2 files were given", "expected all 3 files");
    let e = GgufSet::open_files(&[set.path(1)]).unwrap_err();
    assert_error!(e, K::SplitListed { given: 1, count: 3 }, "1 files were given");
    let e = GgufSet::open_files(&[set.path(1), set.path(2), set.path(2)]).unwrap_err();
    assert_error!(e, K::SplitRepeated { number: 1, .. }, "split.no 1 is also that of", name(2, 3));
    let none: [&Path; 0] = [];
    assert_error!(GgufSet::open_files(&none).unwrap_err(), K::NoFiles, "no file");
    // Plain files do not make a set.
    let plain = set.put("plain.gguf", &Raw::new());
    let e = GgufSet::open_files(&[&plain, &plain]).unwrap_err();
    assert_error!(e, K::KeyMissing, "plain.gguf", "split.count");
}

#[test]
fn the_same_tensor_in_two_shards() {
    let set = Set::new(|n, mut f| {
        if n == 3 {
            f.tensors[1].0 = b"blk.1.a".to_vec();
        }
        f
    });
    let e = GgufSet::open(set.path(1)).unwrap_err();
    assert_error!(e, K::DuplicateTensor { .. }, name(3, 3), "tensor \"blk.1.a\"", "duplicate", name(1, 3));
}

#[test]
fn warnings_name_their_shard() {
    let set = Set::new(|n, f| if n == 2 { f.tensor("gap", &[1], 24, 1024).data(1025) } else { f });
    let e = GgufSet::open(set.path(1)).unwrap_err();
    assert_error!(e, K::SplitTotal { found: 6, sum: 7 }, "hold 7 tensors");
    let set = Set::new(|n, f| {
        let f = set_key(f, "split.tensors.count", 7);
        if n == 2 { f.tensor("gap", &[1], 24, 1024).data(1025) } else { f }
    });
    let opened = GgufSet::open(set.path(1)).unwrap();
    let warnings: Vec<_> = opened.warnings().map(|(f, w)| (f.path().to_path_buf(), w.to_string())).collect();
    assert_eq!(warnings.len(), 1);
    assert_eq!(warnings[0].0, set.path(2));
    assert!(warnings[0].1.contains("gap"));
}
