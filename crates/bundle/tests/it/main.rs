//! Bundles: what is accepted, what is refused and why, and the inputs that fuzzing found.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod cases;
mod corpus;
mod pack;
mod zip;

use std::io::Write;

use cases::Refused;
use tenure_bundle::{Archive, BundleError};

fn judged(zip: &[u8]) -> Result<(), BundleError> {
    Archive::open(zip, zip.len() as u64)?.check()
}

#[test]
fn bundles_that_follow_the_rules_are_accepted() {
    for (name, zip) in cases::accepted() {
        assert!(judged(&zip).is_ok(), "{name}: {:?}", judged(&zip));
    }
}

#[test]
fn each_rule_has_a_file_that_breaks_it() {
    for case in cases::refused() {
        let error = judged(&case.zip).expect_err(case.name);
        let refused = match &error {
            BundleError::Invalid(_) => Refused::Invalid,
            BundleError::TooLarge(_) => Refused::TooLarge,
            BundleError::Io(error) => panic!("{}: {error}", case.name),
        };
        assert_eq!(refused, case.refused, "{}: {error}", case.name);
        assert!(error.to_string().contains(case.says), "{}: {error}", case.name);
    }
}

/// A file and a slice are the same bundle.
#[test]
fn a_bundle_is_read_from_a_file() {
    let zip = cases::good().build();
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&zip).unwrap();
    let archive = Archive::open_file(file).unwrap();
    archive.check().unwrap();
    let first = archive.file(0).unwrap().unwrap();
    assert_eq!((first.path.as_str(), first.executable), ("index.js", false));
    assert_eq!(archive.file(1).unwrap().unwrap().content, b"exports.a = 1\n");
    assert!(archive.file(2).unwrap().is_none());
}

/// The file says that an entry has 18 bytes; what is inflated is counted, and nothing beyond that is read.
#[test]
fn a_bomb_is_not_inflated() {
    let bomb = cases::good().change(|b| (b.entries[0].said, b.entries[0].content) = (Some(18), vec![0; 300 << 20]));
    let zip = bomb.build();
    assert!(zip.len() < 1 << 20);
    let error = judged(&zip).unwrap_err();
    assert!(error.to_string().contains("bytes of the manifest"), "{error}");
}

#[test]
fn a_file_that_is_too_large_is_not_opened() {
    let error = Archive::open(&b""[..], (64 << 20) + 1).unwrap_err();
    assert!(matches!(&error, BundleError::TooLarge(message) if message.contains("67108864")), "{error}");
}
