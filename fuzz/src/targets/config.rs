//! Configuration files, well meant or not.

use std::error::Error;

use tenure_config::{Config, Kind, keys};
use tenure_contract::duration;

/// Inputs plant it as a secret.
const CANARY: &str = "c4nary-hunter2";

/// The text of a file, or a duration.
pub fn yaml(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Err(error) = Config::check_text(text) {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(error) = source {
            message += &error.to_string();
            source = error.source();
        }
        assert!(message.len() < 1000, "a message of {} bytes", message.len());
        assert!(!message.contains('\n'), "a message of many lines: {message}");
        assert!(!planted(text) || !message.contains(CANARY), "a message tells a secret: {message}");
    }
    if let Some(duration) = duration::parse(text) {
        let again = duration::parse(&duration::canonical(duration));
        assert_eq!(again, Some(duration), "what is printed is read");
    }
}

/// Whether the canary stands only on lines that set a key whose value is a secret.
fn planted(text: &str) -> bool {
    let mut lines = text.split(['\n', '\r']).filter(|line| line.contains(CANARY)).peekable();
    lines.peek().is_some() && lines.all(sets_a_secret)
}

fn sets_a_secret(line: &str) -> bool {
    let Some((name, value)) = line.trim_start().split_once(": ") else { return false };
    let is_secret = |kind: Kind| matches!(kind, Kind::Secret | Kind::Dsn | Kind::Secrets | Kind::SecretMap);
    !name.contains(CANARY)
        && value.contains(CANARY)
        && keys().any(|key| is_secret(key.kind) && key.path.rsplit('.').next() == Some(name))
}
