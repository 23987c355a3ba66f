use std::io::Write as _;

/// Reports a test that this machine cannot run. `scripts/test` prints the list at its end.
///
/// # Panics
///
/// When the list cannot be written.
#[allow(clippy::print_stderr, reason = "the person who runs the test must see it")]
pub fn skip(test: &str, reason: &str) {
    eprintln!("SKIPPED: {test}: {reason}");
    if let Some(path) = std::env::var_os("TENURE_SKIPPED") {
        let list = std::fs::OpenOptions::new().create(true).append(true).open(path);
        list.and_then(|mut list| writeln!(list, "{test}: {reason}")).expect("the list of skipped tests is writable");
    }
}
