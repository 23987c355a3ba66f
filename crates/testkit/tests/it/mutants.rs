//! Every mutant is run by `scripts/mutants` and listed in the docs, and the other way round.

use std::collections::BTreeSet;
use std::path::Path;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The names in `mutant!("…")` of all sources below a folder.
fn in_sources(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            in_sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let names = text.split("mutant!(\"").skip(1).filter_map(|rest| rest.split('"').next());
            found.extend(names.map(ToOwned::to_owned));
        }
    }
}

#[test]
fn every_mutant_is_run_and_listed() {
    let mut sources = BTreeSet::new();
    for entry in std::fs::read_dir(root().join("crates")).unwrap() {
        let source = entry.unwrap().path().join("src");
        if source.is_dir() {
            in_sources(&source, &mut sources);
        }
    }
    let script = std::fs::read_to_string(root().join("scripts/mutants")).unwrap();
    let list = script.split("mutants=\"\n").nth(1).and_then(|rest| rest.split("\n\"").next()).unwrap();
    let run: BTreeSet<String> = list.lines().filter_map(|line| line.split(' ').next()).map(ToOwned::to_owned).collect();
    let page = std::fs::read_to_string(root().join("docs/MUTANTS.md")).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let listed: BTreeSet<String> = rows.map(ToOwned::to_owned).collect();
    assert_eq!(sources, run, "in the sources, and run by scripts/mutants");
    assert_eq!(sources, listed, "in the sources, and listed in docs/MUTANTS.md");
    assert!(sources.len() >= 25, "{}", sources.len());
}
