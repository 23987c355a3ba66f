use super::{Report, secrets};
use crate::config::Config;
use crate::net;

pub(super) fn check(config: &Config, report: &mut Report) {
    base_url(config, report);
    secrets::check(config, report, "push.secrets", "push.secret_files", &config.push.secrets);
    if config.push.allow_http {
        let fix = "set push.allow_http: false, and give workers certificates";
        report.risk("push.allow_http", "task tokens and dispatch secrets may cross the network unencrypted", fix);
    } else {
        report.pass("push.allow_http", "pushes are encrypted");
    }
}

fn base_url(config: &Config, report: &mut Report) {
    let check = "callback.base_url";
    let near = |url: &str| {
        let rest = url.split_once("://").map_or("", |(_, rest)| rest);
        net::is_loopback(net::host_of(rest.split('/').next().unwrap_or_default()))
    };
    match &config.push.callback_base_url {
        None if !config.auth.enabled => {
            report.pass(check, "is not set: in dev mode it is the address that the server listens on")
        }
        None => report.warn(
            check,
            "is not set, so no queue can push its tasks",
            "set callback.base_url to the address where workers reach this control plane, unless all workers claim",
        ),
        Some(url) if url.starts_with("http://") && !near(url) => {
            let fix = "use https:// in callback.base_url";
            report.risk(check, "task tokens cross the network unencrypted", fix);
        }
        Some(_) => report.pass(check, "is encrypted, or on a loopback address"),
    }
}
