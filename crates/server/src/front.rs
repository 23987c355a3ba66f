//! What is done to the address of a request before its route is looked up: names of ports of sandboxes, and slashes.

use std::net::Ipv6Addr;

use axum::http::uri::{PathAndQuery, Uri};
use axum::http::{HeaderMap, header};

use crate::live::Live;
use crate::sandboxes::{SandboxOffer, is_sandbox_id};

/// The names below which ports of sandboxes are reached.
#[derive(Debug, Clone, Default)]
pub struct Front {
    /// `None` without sandboxes.
    offer: Option<Live<SandboxOffer>>,
}

/// In the extensions of a request that came by the name of a port of a sandbox.
#[derive(Debug, Clone, Copy)]
pub struct ByHost;

impl Front {
    pub fn new(offer: Option<Live<SandboxOffer>>) -> Self {
        Self { offer }
    }

    /// Rewrites the address; tells whether the request came by the name of a port.
    pub fn receive(&self, uri: &mut Uri, headers: &HeaderMap) -> Option<ByHost> {
        let host = uri
            .authority()
            .map(axum::http::uri::Authority::as_str)
            .or_else(|| headers.get(header::HOST).and_then(|host| host.to_str().ok()));
        let offer = self.offer.as_ref().map(Live::get);
        let named = offer.zip(host).and_then(|(offer, host)| port_of(host, &offer.preview.domain));
        if let Some((port, sandbox)) = &named {
            let rest = uri.path_and_query().map_or("/", PathAndQuery::as_str);
            replace(uri, &format!("/api/v1/sandboxes/{sandbox}/proxy/{port}{rest}"));
        }
        let path = uri.path();
        if path.starts_with("/api/v1/")
            && (!is_proxied(path) || is_root_of_port(path))
            && let Some(bare) = path.strip_suffix('/')
        {
            let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
            let bare = format!("{bare}{query}");
            replace(uri, &bare);
        }
        named.map(|_| ByHost)
    }
}

/// Whether a path goes to a port of a sandbox, which sees it as it was sent.
pub fn is_proxied(path: &str) -> bool {
    let mut parts = path.strip_prefix("/api/v1/sandboxes/").into_iter().flat_map(|rest| rest.splitn(3, '/'));
    parts.nth(1) == Some("proxy")
}

/// Whether a path ends behind the port: the port sees `/` with and without the slash.
fn is_root_of_port(path: &str) -> bool {
    path.strip_prefix("/api/v1/sandboxes/").is_some_and(|rest| rest.splitn(4, '/').nth(3) == Some(""))
}

/// The port and the sandbox that `<port>-<sandbox_id>.<domain>` names.
fn port_of(host: &str, domain: &str) -> Option<(u16, String)> {
    if domain.is_empty() {
        return None;
    }
    let host = host.to_ascii_lowercase();
    let host = if domain.contains(':') { host.as_str() } else { without_port(&host) };
    let label = host.strip_suffix(domain)?.strip_suffix('.')?;
    let (port, sandbox) = label.split_once('-')?;
    let port = port.parse().ok().filter(|port: &u16| *port > 0)?;
    is_sandbox_id(sandbox).then(|| (port, sandbox.to_owned()))
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && name.parse::<Ipv6Addr>().is_err() => {
            name
        }
        _ => host,
    }
}

fn replace(uri: &mut Uri, path_and_query: &str) {
    let Ok(path_and_query) = PathAndQuery::try_from(path_and_query) else { return };
    let mut parts = std::mem::take(uri).into_parts();
    parts.path_and_query = Some(path_and_query);
    // The parts are those of a valid address.
    *uri = Uri::from_parts(parts).unwrap_or_default();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandboxes::Preview;

    fn received(domain: Option<&str>, host: &str, target: &str) -> (String, bool) {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        let mut uri: Uri = target.parse().unwrap();
        let offer = domain.map(|domain| {
            let preview = Preview { domain: domain.to_owned(), ..Preview::default() };
            Live::new(SandboxOffer { preview, ..SandboxOffer::default() })
        });
        let by_host = Front::new(offer).receive(&mut uri, &headers).is_some();
        (uri.to_string(), by_host)
    }

    #[test]
    fn the_name_of_a_port_leads_to_the_proxy_with_the_path_as_it_was_sent() {
        let inside = |path: &str| (format!("/api/v1/sandboxes/sb-0a1b2c3d/proxy/8080{path}"), true);
        for (domain, host) in [
            ("preview.example.com", "8080-sb-0a1b2c3d.preview.example.com"),
            ("preview.example.com", "8080-SB-0A1B2C3D.Preview.example.com:443"),
            ("localhost:7423", "8080-sb-0a1b2c3d.localhost:7423"),
        ] {
            assert_eq!(received(Some(domain), host, "/a/b%2F../c/?x=1"), inside("/a/b%2F../c/?x=1"), "{host}");
            assert_eq!(received(Some(domain), host, "/"), inside(""), "{host}");
            assert_eq!(received(Some(domain), host, "/?x=1"), inside("?x=1"), "{host}");
        }
    }

    #[test]
    fn other_names_lead_to_the_api() {
        for host in [
            "preview.example.com",
            "8080-sb-0a1b2c3d.example.com",
            "8080-sb-0a1b2c3d.evil.preview.example.com",
            "8080-sb-0a1b2c3dpreview.example.com",
            "0-sb-0a1b2c3d.preview.example.com",
            "65536-sb-0a1b2c3d.preview.example.com",
            "8080-sb-0a1b2c3.preview.example.com",
            "8080-sb-0a1b2c3g.preview.example.com",
            "x-sb-0a1b2c3d.preview.example.com",
        ] {
            assert_eq!(received(Some("preview.example.com"), host, "/x"), ("/x".to_owned(), false), "{host}");
        }
        assert_eq!(received(None, "8080-sb-0a1b2c3d.localhost", "/x"), ("/x".to_owned(), false));
    }

    #[test]
    fn one_slash_at_the_end_is_dropped_except_behind_a_port() {
        let bare = |path: &str| received(None, "h", path).0;
        assert_eq!(bare("/api/v1/sandboxes/"), "/api/v1/sandboxes");
        assert_eq!(bare("/api/v1/sandboxes/sb-0a1b2c3d/?a=b/"), "/api/v1/sandboxes/sb-0a1b2c3d?a=b/");
        assert_eq!(bare("/api/v1/sandboxes//"), "/api/v1/sandboxes/");
        assert_eq!(bare("/api/v1/sandboxes/sb-0a1b2c3d/proxy/80/a/"), "/api/v1/sandboxes/sb-0a1b2c3d/proxy/80/a/");
        assert_eq!(bare("/api/v1/sandboxes/sb-0a1b2c3d/proxy/80/"), "/api/v1/sandboxes/sb-0a1b2c3d/proxy/80");
        assert_eq!(bare("/metrics/"), "/metrics/");
        assert_eq!(bare("/"), "/");
    }
}
