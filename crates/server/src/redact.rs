//! Removes secrets that this server knows, and those that have the shape of its credentials, from what others print.

use tenure_auth::Secret;

use crate::state::App;

const HIDDEN: &str = "***";
/// Shorter secrets are left alone: they would be found in any text.
const SHORTEST: usize = 8;
/// Beginnings of credentials of Tenure, and how many letters follow at least.
const SHAPES: [(&str, usize); 4] = [("lt_", 20), ("tnr_", 20), ("tenure-worker-v1.", 20), ("eyJ", 40)];

/// What is removed from a text.
#[derive(Debug, Default)]
pub struct Redactor {
    secrets: Vec<Secret>,
}

impl Redactor {
    /// The secrets of the configuration of the moment.
    pub fn of(app: &App) -> Self {
        let access = app.access.get();
        let workers = &access.workers;
        let mut secrets: Vec<Secret> = workers.per_worker.values().cloned().collect();
        secrets.extend(workers.shared.clone().into_iter().chain(workers.shared_previous.clone()));
        secrets.extend(access.users.api_key.clone().into_iter().chain(access.users.admin_api_key.clone()));
        secrets.extend(app.dispatch.config.secrets.0.get().values().cloned());
        secrets.extend(app.push.iter().flat_map(|targets| targets.get().secrets.values().cloned().collect::<Vec<_>>()));
        Self::new(secrets)
    }

    fn new(mut secrets: Vec<Secret>) -> Self {
        secrets.retain(|secret| secret.reveal().len() >= SHORTEST);
        // One may be the beginning of another.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.reveal().len()));
        Self { secrets }
    }

    pub fn clean(&self, text: &str) -> String {
        let mut clean = text.to_owned();
        for secret in self.secrets.iter().map(Secret::reveal) {
            if clean.contains(secret) {
                clean = clean.replace(secret, HIDDEN);
            }
        }
        for (start, letters) in SHAPES {
            clean = without(&clean, start, letters);
        }
        clean
    }
}

/// A text without words that start like this and go on for long enough.
fn without(text: &str, start: &str, letters: usize) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(start) {
        let (before, found) = rest.split_at(at);
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        let end = found.find(|c| !is_part(c)).unwrap_or(found.len());
        clean.push_str(before);
        let begins_word = !clean.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        if begins_word && end >= start.len() + letters {
            clean.push_str(HIDDEN);
            rest = &found[end..];
        } else {
            clean.push_str(start);
            rest = &found[start.len()..];
        }
    }
    clean.push_str(rest);
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_secrets_and_credentials_of_tenure_are_removed() {
        let redactor =
            Redactor::new(vec![Secret::new("hunter2-hunter2"), Secret::new("short")].into_iter().flatten().collect());
        for (text, clean) in [
            ("password=hunter2-hunter2!", "password=***!"),
            ("a short one stays", "a short one stays"),
            ("token lt_4JFECKECQ3WXZ5HNDTEZTD423V ok", "token *** ok"),
            ("result_lt_4JFECKECQ3WXZ5HNDTEZTD423V", "result_lt_4JFECKECQ3WXZ5HNDTEZTD423V"),
            ("lt_short", "lt_short"),
            ("X-API-Key: tnr_01ABCDEFGHJKMNPQRSTV_abcdefghijk,", "X-API-Key: ***,"),
            ("nothing", "nothing"),
        ] {
            assert_eq!(redactor.clean(text), clean);
        }
    }
}
