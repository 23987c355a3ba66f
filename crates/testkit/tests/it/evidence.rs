//! Every test that the documentation cites exists.

use std::fs;
use std::path::{Path, PathBuf};

/// Promises with fewer citations than this have lost some of their evidence.
const FEWEST: usize = 200;

#[test]
fn cited_tests_exist() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut pages = Vec::new();
    collect(&root.join("docs"), "md", &mut pages);
    pages.extend(["README.md", "CONTRIBUTING.md"].map(|name| root.join(name)));
    let (mut cited, mut missing) = (0, Vec::new());
    for page in &pages {
        let text = fs::read_to_string(page).unwrap();
        // A citation such as `::name` refers to the file cited before it on the same page.
        let mut file = None;
        for code in text.split('`').skip(1).step_by(2) {
            let (path, name) = code.split_once("::").map_or((code, None), |(path, name)| (path, Some(name)));
            if is_test_path(path) {
                file = Some(find(root, path));
            } else if !path.is_empty() {
                continue;
            }
            let Some(file) = &file else { continue };
            cited += 1;
            if !file.as_ref().is_some_and(|file| name.is_none_or(|name| mentions(file, name))) {
                missing.push(format!("{}: {code}", page.file_name().unwrap_or_default().display()));
            }
        }
    }
    assert!(missing.is_empty(), "cited, but not there:\n{}", missing.join("\n"));
    assert!(cited >= FEWEST, "only {cited} tests are cited");
}

/// Paths of Rust tests. They are relative to `crates/`, or to the root of the repository.
fn is_test_path(path: &str) -> bool {
    let is_path = path.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c));
    is_path
        && (path.contains("/tests/it") || path.ends_with("tests.rs") || path.contains("/src/") && path.ends_with(".rs"))
}

fn find(root: &Path, path: &str) -> Option<PathBuf> {
    [root.join("crates").join(path), root.join(path)].into_iter().find(|path| path.exists())
}

/// Whether a file, or a file below a folder, has a test of this name. Some tests are made by macros, so that only the
/// name can be looked for.
fn mentions(path: &Path, name: &str) -> bool {
    let mut files = Vec::new();
    if path.is_dir() {
        collect(path, "rs", &mut files);
    } else {
        files.push(path.to_owned());
        // The tests of `batch.rs` may be in a folder `batch`.
        collect(&path.with_extension(""), "rs", &mut files);
    }
    let name = name.rsplit("::").next().unwrap_or(name);
    files.iter().any(|file| fs::read_to_string(file).unwrap().split(|c: char| !is_word(c)).any(|word| word == name))
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

pub fn collect(folder: &Path, extension: &str, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, extension, into);
        } else if path.extension().is_some_and(|found| found == extension) {
            into.push(path);
        }
    }
}
