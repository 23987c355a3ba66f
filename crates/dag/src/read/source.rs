//! `source`: what makes a job run that has no inputs.

use tenure_core::dag::definition::{Signature, Source, is_secret_name};
use tenure_core::schedule::{CatchUp, Schedule};

use super::fields::Fields;
use crate::problem::{Code, quoted};

const KEYS: [&str; 7] = ["kind", "schedule", "timezone", "catch_up", "webhook_path", "secret", "signature"];
const CRON_KEYS: [&str; 3] = ["schedule", "timezone", "catch_up"];
const WEBHOOK_KEYS: [&str; 3] = ["webhook_path", "secret", "signature"];
const PATH_BYTES: usize = 256;

#[derive(Clone, Copy)]
enum Kind {
    Cron,
    Webhook,
    Manual,
    AlwaysOn,
}

pub(super) fn read(job: &Fields<'_, '_>) -> Option<Source> {
    job.required("source")?;
    let fields = job.map("source", &KEYS)?;
    fields.required("kind")?;
    let kinds =
        [("cron", Kind::Cron), ("webhook", Kind::Webhook), ("manual", Kind::Manual), ("always_on", Kind::AlwaysOn)];
    let kind = fields.word("kind", &kinds)?;
    if !matches!(kind, Kind::Cron) {
        fields.forbid(&CRON_KEYS, "belongs to a source of kind cron");
    }
    if !matches!(kind, Kind::Webhook) {
        fields.forbid(&WEBHOOK_KEYS, "belongs to a source of kind webhook");
    }
    match kind {
        Kind::Cron => cron(&fields),
        Kind::Webhook => webhook(&fields),
        Kind::Manual => Some(Source::Manual),
        Kind::AlwaysOn => Some(Source::AlwaysOn),
    }
}

fn cron(fields: &Fields<'_, '_>) -> Option<Source> {
    let catch_ups = CatchUp::ALL.map(|catch_up| (catch_up.as_str(), catch_up));
    let catch_up = fields.word("catch_up", &catch_ups).unwrap_or_default();
    let timezone = fields.text("timezone").unwrap_or("UTC");
    let schedule = fields.required_text("schedule")?;
    if let Err(error) = Schedule::parse(schedule, timezone) {
        let key = if error.field == "time zone" { "timezone" } else { "schedule" };
        fields.error(key, Code::InvalidSchedule, error.to_string());
        return None;
    }
    Some(Source::Cron { schedule: schedule.into(), timezone: timezone.into(), catch_up })
}

fn webhook(fields: &Fields<'_, '_>) -> Option<Source> {
    let signatures = [("tenure", Signature::Tenure), ("github", Signature::Github)];
    let signature = fields.word("signature", &signatures).unwrap_or_default();
    let path = fields.required_text("webhook_path");
    let secret = fields.required_text("secret");
    let (path, secret) = (path?, secret?);
    if !is_path(path) {
        let message = format!(
            "'{}' is not a path: words of letters, digits, '.', '_' and '-' with '/' between them, at most {PATH_BYTES} bytes",
            quoted(path)
        );
        fields.error("webhook_path", Code::InvalidValue, message);
    }
    if !is_secret_name(secret) {
        let message =
            "a secret is named by a letter, then up to 127 letters, digits, _ and -; never write its value here";
        fields.error("secret", Code::InvalidName, message);
    }
    Some(Source::Webhook { path: path.into(), secret: secret.into(), signature })
}

fn is_path(path: &str) -> bool {
    let part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let word = |word: &str| !matches!(word, "" | "." | "..") && word.bytes().all(part);
    path.len() <= PATH_BYTES && path.split('/').all(word)
}
