//! `tenure sandbox check`

use comfy_table::{Cell, Color};
use serde::Serialize;
use tenure_config::Config;
use tenure_sandbox::{Capabilities, Enforcement, Support};

use super::providers::{Name, Place};
use crate::exit::Exit;
use crate::output::{self, cell};

const DETAILS: &str = "\
Finds out by trying: makes a namespace, a control group, a mount, and removes them. A sandbox that asks for a limit \
that is not enforced is refused; nothing falls back silently. `best effort` stops code that cooperates, but not hostile \
code.

Exits with 1 if a provider named with --provider, or else the default one, cannot work here.";

#[derive(Debug, clap::Args)]
#[command(after_help = DETAILS)]
pub struct Args {
    #[command(flatten)]
    place: Place,
    /// Check only this provider; repeatable [default: all]
    #[arg(long = "provider", value_name = "NAME", value_enum)]
    providers: Vec<Name>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// What was found about one provider.
#[derive(Debug, Serialize)]
struct Finding {
    provider: &'static str,
    available: bool,
    /// Why it is not available, and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    capabilities: Option<Capabilities>,
}

pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let config = args.place.load()?;
    let all = args.providers.is_empty();
    let names = if all { Name::ALL.to_vec() } else { args.providers };
    let mut findings = Vec::new();
    for name in names {
        findings.push(find(name, &config).await);
    }
    if args.json {
        output::json(&findings)?;
    } else {
        output::line(render(&findings))?;
    }
    let needed = |finding: &&Finding| !all || finding.provider == Name::default().text();
    let works = findings.iter().filter(needed).all(|finding| finding.available);
    Ok(if works { Exit::Ok } else { Exit::Failure })
}

async fn find(name: Name, config: &Config) -> Finding {
    let provider = name.text();
    let opened = name.open(config).await;
    let healthy = match &opened {
        Ok(opened) => opened.provider().healthy().await.map_err(anyhow::Error::new),
        Err(_) => Ok(()),
    };
    match opened.and_then(|opened| healthy.map(|()| opened.provider().capabilities().clone())) {
        Ok(capabilities) => Finding { provider, available: true, error: None, capabilities: Some(capabilities) },
        Err(error) => Finding { provider, available: false, error: Some(format!("{error:#}")), capabilities: None },
    }
}

fn render(findings: &[Finding]) -> String {
    let mut rows = Vec::new();
    for finding in findings {
        let provider = || cell(finding.provider);
        let Some(capabilities) = &finding.capabilities else {
            let error = finding.error.as_deref().unwrap_or("not available");
            rows.push(vec![provider(), cell("-"), Cell::new("not available").fg(Color::Red), cell(error)]);
            continue;
        };
        for (limit, support) in limits(capabilities) {
            rows.push(vec![provider(), cell(limit), status(support.enforcement), cell(explanation(support))]);
        }
        for (feature, there, meaning) in features(capabilities) {
            let answer = if there { Cell::new("yes").fg(Color::Green) } else { Cell::new("no").fg(Color::Yellow) };
            rows.push(vec![provider(), cell(feature), answer, cell(meaning)]);
        }
    }
    output::table(&["PROVIDER", "WHAT", "STATUS", "HOW, OR WHY NOT AND WHAT TO DO"], rows)
}

fn limits(found: &Capabilities) -> [(&'static str, &Support); 6] {
    [
        ("memory", &found.memory),
        ("cpu", &found.cpu),
        ("pids", &found.pids),
        ("disk", &found.disk),
        ("net", &found.net),
        ("snapshot", &found.snapshot),
    ]
}

fn features(found: &Capabilities) -> [(&'static str, bool, &'static str); 5] {
    [
        ("allow list", found.egress_allow_list, "connections to listed hosts only"),
        ("freeze", found.freeze, "a sandbox can be stopped and continued"),
        ("ports", found.ports, "ports in a sandbox can be reached from outside"),
        ("terminal", found.terminal, "commands can have a terminal"),
        ("adopt", found.adopt, "sandboxes survive a restart of their worker"),
    ]
}

fn status(enforcement: Enforcement) -> Cell {
    match enforcement {
        Enforcement::Enforced => Cell::new("enforced").fg(Color::Green),
        Enforcement::BestEffort => Cell::new("best effort").fg(Color::Yellow),
        Enforcement::None => Cell::new("none").fg(Color::Red),
    }
}

fn explanation(support: &Support) -> String {
    match support.advice.as_str() {
        "" => support.reason.clone(),
        advice => format!("{}. To do: {advice}", support.reason.trim_end_matches('.')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_is_not_enforced_is_shown_with_the_reason_and_what_to_do() {
        console::set_colors_enabled(false);
        let none = || Support::none("no control groups", "mount cgroup2");
        let capabilities = Capabilities {
            memory: Support::enforced("cgroup v2"),
            cpu: Support::best_effort("nice", "mount cgroup2"),
            pids: none(),
            disk: none(),
            net: none(),
            snapshot: none(),
            egress_allow_list: true,
            freeze: false,
            ports: false,
            terminal: true,
            adopt: false,
        };
        let text = render(&[
            Finding { provider: "namespace", available: true, error: None, capabilities: Some(capabilities) },
            Finding { provider: "docker", available: false, error: Some("no daemon".to_owned()), capabilities: None },
        ]);
        let has = |parts: &[&str]| text.lines().any(|line| parts.iter().all(|part| line.contains(part)));
        assert!(has(&["namespace", "memory", "enforced", "cgroup v2"]), "{text}");
        assert!(has(&["cpu", "best effort", "nice. To do: mount cgroup2"]), "{text}");
        assert!(has(&["pids", "none", "no control groups. To do: mount cgroup2"]), "{text}");
        assert!(has(&["freeze", "no"]) && has(&["allow list", "yes"]), "{text}");
        assert!(has(&["docker", "not available", "no daemon"]), "{text}");
    }
}
