//! For the tests that replay a corpus.

use std::fs;
use std::panic::catch_unwind;
use std::path::Path;

/// Fewer inputs than this are no corpus.
const FEWEST: usize = 20;

/// Gives every input of a corpus to its target. All are tried, then the ones that failed are named.
pub fn corpus(target: &str, run: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() >= FEWEST, "{} has only {} inputs", folder.display(), paths.len());
    let fails = |path: &&std::path::PathBuf| {
        let data = fs::read(path).unwrap();
        catch_unwind(|| run(&data)).is_err()
    };
    let failed: Vec<_> = paths.iter().filter(fails).collect();
    assert!(failed.is_empty(), "{failed:?}");
}
