//! `tenure doctor`

mod local;
mod push;
mod server;
mod store;
mod transports;

use console::style;
use serde::Serialize;

use super::connect::ClientArgs;
use super::control_plane::PlaceArgs;
use crate::exit::Exit;
use crate::output;

const DETAILS: &str = "\
Suggests a fix for each problem and changes nothing. Exits with 1 if a check fails; warnings do not count.";

#[derive(Debug, clap::Args)]
#[command(after_help = DETAILS)]
pub struct Args {
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Ok,
    Warn,
    Fail,
}

/// What one check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    check: &'static str,
    status: Status,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

impl Finding {
    pub fn ok(check: &'static str, message: impl Into<String>) -> Self {
        Self { check, status: Status::Ok, message: message.into(), fix: None }
    }

    pub fn warn(check: &'static str, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { check, status: Status::Warn, message: message.into(), fix: Some(fix.into()) }
    }

    pub fn fail(check: &'static str, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { check, status: Status::Fail, message: message.into(), fix: Some(fix.into()) }
    }
}

pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let mut findings = Vec::new();
    // Without a configuration there is no telling where the store would be.
    match args.place.load() {
        Ok(config) => {
            findings.push(local::config(&config));
            findings.extend(local::data_folder(&config.data));
            findings.push(local::worker_token(&config));
            let (found, queues) = store::check(&config).await;
            findings.extend(found);
            findings.extend(push::check(&config, &queues).await);
            findings.extend(transports::check(&config, &queues).await);
        }
        Err(error) => {
            let fix = "fix it; without a configuration, data folder, store, pushes and transports were not checked";
            findings.push(Finding::fail("config", format!("{error:#}"), fix));
        }
    }
    findings.extend(server::check(&args.client).await);

    if args.client.json {
        output::json(&findings)?;
    } else {
        for finding in &findings {
            output::line(render(finding))?;
        }
    }
    let failed = findings.iter().any(|finding| finding.status == Status::Fail);
    Ok(if failed { Exit::Failure } else { Exit::Ok })
}

fn render(finding: &Finding) -> String {
    let status = match finding.status {
        Status::Ok => style("ok").green(),
        Status::Warn => style("warn").yellow(),
        Status::Fail => style("fail").red().bold(),
    };
    let fix = finding.fix.as_ref().map_or_else(String::new, |fix| format!("\n      fix: {}", output::clean(fix)));
    format!("[{status}] {}: {}{fix}", finding.check, output::clean(&finding.message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_a_line_and_its_remedy() {
        console::set_colors_enabled(false);
        assert_eq!(render(&Finding::ok("store", "fine")), "[ok] store: fine");
        assert_eq!(render(&Finding::fail("store", "gone", "find it")), "[fail] store: gone\n      fix: find it");
        let json = serde_json::to_string(&Finding::warn("store", "odd", "look")).unwrap();
        assert_eq!(json, r#"{"check":"store","status":"warn","message":"odd","fix":"look"}"#);
    }
}
