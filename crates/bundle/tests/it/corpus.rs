//! Replays what the fuzz target was given and has found.

use std::path::Path;

use proptest::prelude::*;

use super::cases;

#[path = "../../../../fuzz/src/targets/bundle.rs"]
mod bundle;
#[path = "../../../../fuzz/src/replay.rs"]
mod replay;

#[test]
fn the_corpus_of_bundles_holds() {
    replay::corpus("bundle_zip", bundle::bundle);
}

/// The corpus has a file for each rule that needs no large one.
#[test]
fn the_corpus_has_the_cases_of_the_rules() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/bundle_zip");
    let all = cases::refused().into_iter().map(|case| (case.name, case.zip)).chain(cases::accepted());
    for (name, zip) in all.filter(|(_, zip)| zip.len() < 4096) {
        let path = folder.join(name.replace(' ', "-"));
        if std::env::var_os("TENURE_BLESS").is_some() {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&path, &zip).unwrap();
        }
        assert!(path.exists(), "{} is missing: run this test with TENURE_BLESS=1", path.display());
    }
}

proptest! {
    /// Near enough to a bundle that every rule is reached.
    #[test]
    fn no_change_of_a_bundle_is_accepted_as_something_else(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
        after in any::<bool>(),
    ) {
        let mut zip = cases::good().change(|b| b.entries[1].described_after = after).build();
        for (at, byte) in edits {
            let at = at.index(zip.len());
            zip[at] = byte;
        }
        if let Some(cut) = cut {
            zip.truncate(cut.index(zip.len()));
        }
        bundle::bundle(&zip);
    }
}
