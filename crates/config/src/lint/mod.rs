//! What a configuration that loads could do better, above all in production.

mod auth;
mod compat;
mod data;
mod objects;
mod providers;
mod push;
mod secrets;
mod system;
#[cfg(test)]
mod tests;
mod transport;

use std::fmt;

use serde::Serialize;
use tenure_auth::Secret;

use super::config::Config;
use super::keys;

/// Shorter secrets can be guessed.
const SECRET_BYTES: usize = 32;
/// What examples have in place of a secret.
const PLACEHOLDERS: [&str; 3] = ["change-me", "changeme", "replace-me"];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Level {
    Pass,
    Warn,
    Fail,
}

/// What one check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    pub level: Level,
    pub check: &'static str,
    pub message: String,
    /// What to do, unless it passed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Check {
    /// The keys to change: the check itself if it has the name of one, otherwise those that the fix names.
    pub fn keys(&self) -> Vec<&'static str> {
        if let Some(key) = keys::find(self.check) {
            return vec![key.path];
        }
        let word = |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.'));
        let words = self.fix.iter().flat_map(|fix| fix.split(word));
        let mut found: Vec<&str> = Vec::new();
        for key in words.filter_map(|word| keys::find(word.trim_matches('.'))) {
            if !found.contains(&key.path) {
                found.push(key.path);
            }
        }
        found
    }
}

impl fmt::Display for Check {
    /// `[WARN] check: message`, and below it what to do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Pass => "PASS",
            Level::Warn => "WARN",
            Level::Fail => "FAIL",
        };
        write!(f, "[{level}] {}: {}", self.check, self.message)?;
        match &self.fix {
            Some(fix) => write!(f, "\n      fix: {fix}"),
            None => Ok(()),
        }
    }
}

/// Checks a configuration. With `production`, what is unsafe there fails; otherwise it is a warning.
pub fn lint(config: &Config, production: bool) -> Vec<Check> {
    let mut report = Report { production, checks: Vec::new() };
    match &config.file {
        Some(path) => report.pass("config", format!("{} loads", path.display())),
        None => report.pass("config", "no file, the defaults and the environment load"),
    }
    auth::check(config, &mut report);
    system::check(config, &mut report);
    providers::check(config, &mut report);
    transport::check(config, &mut report);
    push::check(config, &mut report);
    objects::check(config, &mut report);
    data::check(config, &mut report);
    secrets::of_webhooks(config, &mut report);
    compat::check(config, &mut report);
    report.checks
}

struct Report {
    production: bool,
    checks: Vec<Check>,
}

impl Report {
    fn pass(&mut self, check: &'static str, message: impl Into<String>) {
        self.checks.push(Check { level: Level::Pass, check, message: message.into(), fix: None });
    }

    fn warn(&mut self, check: &'static str, message: impl Into<String>, fix: &str) {
        self.add(Level::Warn, check, message.into(), fix);
    }

    /// What fails in production only.
    fn risk(&mut self, check: &'static str, message: impl Into<String>, fix: &str) {
        let level = if self.production { Level::Fail } else { Level::Warn };
        self.add(level, check, message.into(), fix);
    }

    fn add(&mut self, level: Level, check: &'static str, message: String, fix: &str) {
        self.checks.push(Check { level, check, message, fix: Some(fix.to_owned()) });
    }
}

/// What is wrong with a secret, said without it.
fn weakness(secret: &Secret) -> Option<&'static str> {
    let text = secret.reveal().to_ascii_lowercase();
    if PLACEHOLDERS.iter().any(|placeholder| text.contains(placeholder)) {
        return Some("is a placeholder");
    }
    (text.len() < SECRET_BYTES).then_some("has less than 32 bytes")
}
