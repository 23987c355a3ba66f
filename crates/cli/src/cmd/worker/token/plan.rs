//! `tenure worker token rotation-plan`

use std::time::Duration;

use serde::Serialize;
use tenure_auth::worker::LIFETIME_S_MAX;

use super::print_json;
use tenure_contract::duration::canonical;

use crate::exit::{Exit, Stop};
use crate::output;
use crate::times;

/// Between the end of the last token and the moment when nobody can believe it any more.
const MARGIN: Duration = Duration::from_secs(30);

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where the new key is: a path or a configuration key, never the key itself
    #[arg(long, value_name = "REF", default_value = "auth.worker_signing_key")]
    new_key_ref: String,
    /// Where the old key is
    #[arg(long, value_name = "REF", default_value = "auth.worker_signing_keys[0]")]
    previous_key_ref: String,
    /// Maximum lifetime of a token, up to 15m
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = times::wire)]
    ttl: Duration,
    /// Text to read, or JSON
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    Text,
    Json,
}

/// In the order in which it is printed.
#[derive(Debug, Serialize)]
struct Plan {
    new_key_ref: String,
    previous_key_ref: String,
    max_token_ttl: String,
    steps: [String; 5],
    config_snippet: String,
    validation: [String; 3],
    text: String,
}

pub fn run(args: Args) -> anyhow::Result<Exit> {
    check_reference("--new-key-ref", &args.new_key_ref)?;
    check_reference("--previous-key-ref", &args.previous_key_ref)?;
    if args.ttl.is_zero() || args.ttl > Duration::from_secs(LIFETIME_S_MAX.unsigned_abs()) {
        return Err(Stop::usage("--ttl must be above 0s and at most 15m0s").into());
    }
    let plan = plan(&args.new_key_ref, &args.previous_key_ref, args.ttl);
    match args.format {
        Format::Text => output::line(plan.text)?,
        Format::Json => print_json(&plan)?,
    }
    Ok(Exit::Ok)
}

/// A reference is printed as it is. What it is made of fits in YAML and in a shell; the message does not quote it,
/// should it be a key after all.
fn check_reference(flag: &str, text: &str) -> Result<(), Stop> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "_./:@~[]-".contains(c);
    let begins = text.starts_with(|c: char| c.is_ascii_alphanumeric() || "_./~".contains(c));
    if begins && text.chars().all(fits) {
        return Ok(());
    }
    Err(Stop::usage(format!(
        "{flag} must name a path or a configuration key, in letters, digits and _ . / : @ ~ [ ] -"
    ))
    .hint("name the location of the key, not the key"))
}

fn plan(new: &str, previous: &str, ttl: Duration) -> Plan {
    let (life, wait) = (canonical(ttl), canonical(ttl + MARGIN));
    let steps = [
        format!("Activate the new key: {new} becomes the signing key (auth.worker_signing_key or its _file)."),
        format!("Move the old key, {previous}, to the verification list (auth.worker_signing_keys)."),
        "Reload the control plane and the workers (SIGHUP, or within 5s by itself): they sign with the new key and accept both.".to_owned(),
        format!("Wait {wait}, which is {life} and 30s for clocks: by then every token of the old key has expired."),
        format!("Drop the old key: remove {previous} from auth.worker_signing_keys, and reload again."),
    ];
    let active = match is_path(new) {
        true => format!("worker_signing_key_file: \"{new}\""),
        false => format!("worker_signing_key: \"<the new key: {new}>\""),
    };
    let config_snippet = format!("auth:\n  {active}\n  worker_signing_keys:\n    - \"<the old key: {previous}>\"\n");
    let key_file = |flag: &str, reference: &str| match is_path(reference) {
        true => format!(" {flag} {reference}"),
        false => String::new(),
    };
    let signing = key_file("--signing-key-file", new);
    let both = format!("{signing}{}", key_file("--verification-key-file", previous));
    let validation = [
        "tenure config lint --production".to_owned(),
        format!("tenure worker token WORKER_ID{signing} --ttl {life} --format json"),
        format!("tenure worker token verify -{both} --worker-id WORKER_ID --audience worker:control-plane"),
    ];
    let text = text(&steps, &config_snippet, &validation);
    Plan {
        new_key_ref: new.to_owned(),
        previous_key_ref: previous.to_owned(),
        max_token_ttl: life,
        steps,
        config_snippet,
        validation,
        text,
    }
}

fn is_path(reference: &str) -> bool {
    reference.contains('/')
}

fn text(steps: &[String], config_snippet: &str, validation: &[String]) -> String {
    let mut text = "Steps:\n".to_owned();
    for (number, step) in steps.iter().enumerate() {
        text += &format!("  {}. {step}\n", number + 1);
    }
    text += "\nConfiguration until the last step:\n";
    for line in config_snippet.lines() {
        text += &format!("  {line}\n");
    }
    text += "\nCheck it with:\n";
    for command in validation {
        text += &format!("  {command}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_paths_and_names() {
        for text in ["auth.worker_signing_keys[0]", "/run/secrets/new-key", "~/keys/a_b", "vault:worker@2"] {
            assert!(check_reference("--new-key-ref", text).is_ok(), "{text}");
        }
        for text in ["", " ", "a b", "-x", "a\nb", "$(reboot)", "a;b", "a'b", "a\"b", "key+with/base64=", "ü"] {
            let message = check_reference("--new-key-ref", text).unwrap_err().to_string();
            assert!(message.starts_with("--new-key-ref must name"), "{message}");
        }
    }

    #[test]
    fn the_wait_is_the_life_of_a_token_and_half_a_minute() {
        let plan = plan("/run/new", "/run/old", Duration::from_secs(300));
        assert!(plan.steps[3].starts_with("Wait 5m30s, which is 5m0s and 30s"), "{:?}", plan.steps);
        assert!(plan.config_snippet.contains("worker_signing_key_file: \"/run/new\""));
        assert!(plan.validation[2].contains("--signing-key-file /run/new --verification-key-file /run/old"));
    }
}
