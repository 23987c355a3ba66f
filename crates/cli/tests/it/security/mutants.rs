//! The usual binary has no switches that break promises.

use std::process::Command;

use tenure_testkit::Tenure;

#[test]
fn the_usual_binary_has_no_mutants() {
    // A debug binary is large: this is fast.
    let has = |text: &str| {
        let found = Command::new("grep").args(["-q", "-a", "-F", "-e", text]).arg(Tenure::binary()).status();
        found.unwrap().success()
    };
    assert!(has("tenure listening on"), "texts of the program can be found");
    for name in ["fence-not-compared", "wake-up-not-repeated", "revocation-ignored", "commit-not-made"] {
        assert!(!has(name), "{name}");
    }
}
