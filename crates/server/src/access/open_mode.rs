//! A server without keys. Anybody on the machine is an admin there, and so would be every web page that a browser on it shows:
//! by a name that resolves to a loopback address, or by a request that browsers send to other origins without asking.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::{HeaderMap, Method, header};
use tenure_auth::worker::Anonymous;

use super::Access;
use super::rules::Rule;
use crate::contracts::Contract;
use crate::error::{Fault, Forbidden};
use crate::front::{ByHost, is_proxied};

/// Headers that a page can send to another origin only if that origin agrees.
const OF_PROGRAMS: [&str; 9] = [
    "authorization",
    "x-api-key",
    "x-admin-api-key",
    "x-worker-token",
    "x-worker-id",
    "x-trace-worker-token",
    "x-tenant-id",
    "x-user-id",
    "x-requested-with",
];

/// Content types that a page can send to another origin without asking.
const OF_PAGES: [&str; 3] = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"];

/// Refuses what a web page may have sent, where no key is needed.
pub fn check(access: &Access, rule: Rule, contract: Contract, request: &Request) -> Result<(), Fault> {
    let needs_no_key = match rule {
        Rule::User(_) => !access.users.enabled,
        Rule::Worker(_) => access.workers.anonymous == Anonymous::Everyone,
        _ => false,
    };
    // Pages of sandboxes have names of their own, and see what they are sent.
    if !needs_no_key || request.extensions().get::<ByHost>().is_some() || is_proxied(request.uri().path()) {
        return Ok(());
    }
    let host = host(request);
    if !host.is_some_and(|host| is_own(host, &access.allowed_hosts)) {
        return Err(Forbidden::Host.into());
    }
    let headers = request.headers();
    let upgrades = headers.contains_key(header::UPGRADE);
    if matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS) && !upgrades {
        return Ok(());
    }
    if is_foreign(access, headers, host) {
        return Err(Forbidden::Origin.into());
    }
    // Existing clients of sandboxes send JSON as any type. What a browser sends names its origin.
    if contract != Contract::Sandboxes && is_simple(headers) {
        return Err(Forbidden::SimpleRequest.into());
    }
    Ok(())
}

/// The name that the client used.
fn host(request: &Request) -> Option<&str> {
    let authority = request.uri().authority().map(axum::http::uri::Authority::as_str);
    authority.or_else(|| request.headers().get(header::HOST)?.to_str().ok())
}

/// A loopback name or address, or one that the configuration lists.
fn is_own(host: &str, allowed: &[String]) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    let is_loopback = name.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback());
    is_loopback
        || name == "localhost"
        || name.ends_with(".localhost")
        || allowed.iter().any(|own| own.eq_ignore_ascii_case(&name))
}

fn is_foreign(access: &Access, headers: &HeaderMap, host: Option<&str>) -> bool {
    let site = headers.get("sec-fetch-site").and_then(|site| site.to_str().ok());
    let crosses = matches!(site, Some("cross-site" | "same-site"));
    let Some(origin) = headers.get(header::ORIGIN) else { return crosses };
    let allowed = |known: &String| known == "*" || known.as_bytes() == origin.as_bytes();
    let own = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, host)| host);
    !access.cors_allowed_origins.iter().any(allowed) && (own.is_none() || own != host)
}

fn is_simple(headers: &HeaderMap) -> bool {
    let Some(kind) = headers.get(header::CONTENT_TYPE) else { return false };
    let kind = kind.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    OF_PAGES.contains(&kind.as_str()) && !OF_PROGRAMS.iter().any(|name| headers.contains_key(*name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_names_and_listed_ones_are_own() {
        let allowed = ["tenure.test".to_owned()];
        for host in [
            "localhost",
            "LOCALHOST:7423",
            "a.localhost:1",
            "127.0.0.1:7423",
            "127.9.9.9",
            "[::1]:7423",
            "Tenure.test:80",
        ] {
            assert!(is_own(host, &allowed), "{host}");
        }
        for host in
            ["", "evil.example:7423", "localhost.evil.example", "10.0.0.1", "[::2]:1", "127.0.0.1.nip.io", "[", ":7423"]
        {
            assert!(!is_own(host, &allowed), "{host}");
        }
    }
}
