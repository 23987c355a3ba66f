use std::path::Path;

use tenure_tls::BindWorkerId;

use super::{Report, providers};
use crate::config::Config;
use crate::database::Driver;
use crate::limits::{RateKey, RateLimit};
use crate::net;
use crate::server::LogFormat;

pub(super) fn check(config: &Config, report: &mut Report) {
    server(config, report);
    database(config, report);
    rpc_tls(config, report);
}

fn server(config: &Config, report: &mut Report) {
    if config.server.cors_allowed_origins.iter().any(|origin| origin == "*") {
        let fix = "list the origins that need it";
        report.risk("server.cors_allowed_origins", "pages of any origin may call the API", fix);
    } else {
        let count = config.server.cors_allowed_origins.len();
        report.pass("server.cors_allowed_origins", format!("{count} origin(s)"));
    }
    rate_limit(&config.rate_limit, report);
    match config.logging.format {
        Some(LogFormat::Pretty) => {
            report.risk("logging.format", "is not json", "set logging.format: json, which is machine-readable");
        }
        Some(LogFormat::Json) | None => report.pass("logging.format", "json"),
    }
    if config.server.tls.is_some() {
        report.pass("server.tls", "is on");
    } else if net::is_loopback(&config.server.host) {
        report.pass("server.tls", "is off, on a loopback address");
    } else {
        let fix = "set server.tls.cert_file and server.tls.key_file, unless a proxy in front terminates TLS";
        report.warn("server.tls", "is off, and others can reach the server", fix);
    }
    if config.rate_limit.key_by == RateKey::Ip {
        let fix = "set rate_limit.key_by: owner";
        report.warn("rate_limit.key_by", "callers with the same address share their limit", fix);
    } else {
        report.pass("rate_limit.key_by", "callers are distinguished by identity");
    }
}

fn rate_limit(limit: &RateLimit, report: &mut Report) {
    if limit.enabled {
        report.pass("rate_limit.enabled", "is on");
    } else {
        report.risk("rate_limit.enabled", "callers have no rate limit", "set rate_limit.enabled: true");
    }
    if limit.requests_per_minute == 0 || limit.burst == 0 {
        let fix = "set rate_limit.requests_per_minute and rate_limit.burst above 0";
        report.risk("rate_limit.capacity", "requests per minute or burst is 0", fix);
    } else {
        let message = format!("{} per minute, {} at once", limit.requests_per_minute, limit.burst);
        report.pass("rate_limit.capacity", message);
    }
}

fn database(config: &Config, report: &mut Report) {
    if config.database.driver == Driver::Postgres {
        report.pass("database.path", "is not used");
        providers::defaults(config, report);
        report.pass("database.driver", "postgres");
        return;
    }
    let path = config.settings.plain("database.path").unwrap_or_default();
    if Path::new(&path).is_absolute() {
        report.pass("database.path", "is absolute");
    } else {
        let fix = "set an absolute path, such as /var/lib/tenure/tenure.db";
        report.risk("database.path", "is relative, so its location depends on the data folder", fix);
    }
    providers::defaults(config, report);
    // Workers are elsewhere when the server lets others reach it, or when calls to workers are meant to cross a network.
    if !net::is_loopback(&config.server.host) || config.worker.rpc_tls.enabled {
        let fix = "set database.driver: postgres, which several control planes can share";
        report.warn("database.driver", "sqlite, while workers are remote", fix);
    } else {
        report.pass("database.driver", "sqlite, with workers on this machine");
    }
}

fn rpc_tls(config: &Config, report: &mut Report) {
    let tls = &config.worker.rpc_tls;
    let parts = [
        (
            "worker.rpc_tls.server_cert",
            tls.server_cert_file.is_some(),
            "set worker.rpc_tls.server_cert_file and worker.rpc_tls.server_key_file",
        ),
        ("worker.rpc_tls.client_ca", tls.client_ca_file.is_some(), "set worker.rpc_tls.client_ca_file"),
        ("worker.rpc_tls.ca", tls.ca_file.is_some(), "set worker.rpc_tls.ca_file"),
        (
            "worker.rpc_tls.client_cert",
            tls.client_cert_file.is_some(),
            "set worker.rpc_tls.client_cert_file and worker.rpc_tls.client_key_file",
        ),
    ];
    for (check, is_set, fix) in parts {
        match (tls.enabled, is_set) {
            (true, true) => report.pass(check, "is set"),
            (true, false) => report.risk(check, "is missing, and TLS is on", fix),
            (false, _) => report.pass(check, "is not used: TLS is off"),
        }
    }
    if tls.insecure_skip_verify {
        let fix = "set worker.rpc_tls.insecure_skip_verify: false and worker.rpc_tls.ca_file";
        report.risk("worker.rpc_tls.insecure_skip_verify", "certificates of workers are not checked", fix);
    } else {
        report.pass("worker.rpc_tls.insecure_skip_verify", "certificates are checked");
    }
    providers::advertise_url(config, report);
    if tls.enabled {
        report.pass("worker.rpc_tls.enabled", "is on");
    } else {
        let fix = "set worker.rpc_tls.enabled: true and the certificates, unless workers are on this machine";
        report.warn("worker.rpc_tls.enabled", "calls to workers are not encrypted", fix);
    }
    let check = "worker.rpc_tls.bind_worker_id";
    match tls.bind_worker_id {
        _ if !tls.enabled => report.pass(check, "is not used: TLS is off"),
        BindWorkerId::Off => {
            let fix = "set worker.rpc_tls.bind_worker_id: require, once certificates name their worker";
            report.warn(check, "the certificate of one worker is accepted for all", fix);
        }
        BindWorkerId::Warn => report.pass(check, "a certificate that does not name its worker is only logged"),
        BindWorkerId::Require => report.pass(check, "a certificate must name its worker"),
    }
    providers::local(config, report);
}
