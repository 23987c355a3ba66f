/// The longest head of a request.
pub(super) const MAX_HEAD_BYTES: usize = 16 * 1024;

/// A request to the proxy.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub host: String,
    pub port: u16,
    /// Whether bytes are passed on unseen (`CONNECT`).
    pub tunnel: bool,
    /// The head as the server gets it; empty for a tunnel.
    pub forwarded: Vec<u8>,
}

impl Request {
    pub fn parse(head: &[u8]) -> Result<Self, &'static str> {
        let head = std::str::from_utf8(head).map_err(|_| "the request is not text")?;
        let mut lines = head.split("\r\n");
        let mut words = lines.next().unwrap_or("").split(' ');
        let (Some(method), Some(target), Some(version), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err("the request line is malformed");
        };
        if !version.starts_with("HTTP/1.") || method.is_empty() {
            return Err("the request is not HTTP/1");
        }
        if method == "CONNECT" {
            let (host, port) = authority(target, None)?;
            return Ok(Self { host, port, tunnel: true, forwarded: Vec::new() });
        }
        let rest = target.strip_prefix("http://").ok_or("the target is not an http:// address")?;
        let (place, path) = match rest.find(['/', '?', '#']) {
            Some(at) => rest.split_at(at),
            None => (rest, "/"),
        };
        let (host, port) = authority(place, Some(80))?;
        let slash = if path.starts_with('/') { "" } else { "/" };
        let mut forwarded = format!("{method} {slash}{path} HTTP/1.1\r\nHost: {place}\r\nConnection: close\r\n");
        for line in lines.take_while(|line| !line.is_empty()) {
            let (name, _) = line.split_once(':').ok_or("a header line is malformed")?;
            if name.is_empty() || name.bytes().any(|byte| byte.is_ascii_whitespace() || byte.is_ascii_control()) {
                return Err("a header line is malformed");
            }
            // Those are between the client and this proxy, or set above.
            let own = ["host", "connection", "proxy-connection", "proxy-authorization", "keep-alive", "upgrade"];
            if !own.iter().any(|own| name.eq_ignore_ascii_case(own)) {
                forwarded.push_str(line);
                forwarded.push_str("\r\n");
            }
        }
        forwarded.push_str("\r\n");
        Ok(Self { host, port, tunnel: false, forwarded: forwarded.into_bytes() })
    }
}

/// Whether a request names no host: its target is a path.
pub(super) fn is_for_the_proxy(head: &[u8]) -> bool {
    head.split(|byte| *byte == b' ').nth(1).is_some_and(|target| target.starts_with(b"/"))
}

/// Splits `host:port`, `host`, `[v6]:port` and `[v6]`.
fn authority(text: &str, default_port: Option<u16>) -> Result<(String, u16), &'static str> {
    const MALFORMED: &str = "the host is malformed";
    if text.contains('@') {
        return Err("a user name in the address is not supported");
    }
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']').ok_or(MALFORMED)?;
            (host, after.strip_prefix(':'))
        }
        None => match text.rsplit_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = match port {
        Some(port) => port.parse().map_err(|_| "the port is not a number")?,
        None => default_port.ok_or("the port is missing")?,
    };
    if host.is_empty() || host.len() > 253 { Err(MALFORMED) } else { Ok((host.to_owned(), port)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tunnel_names_its_host_and_port() {
        let request =
            Request::parse(b"CONNECT example.com:443 HTTP/1.1\r\nHost: other.com\r\n\r\n").expect("a request");
        assert_eq!((request.host.as_str(), request.port, request.tunnel), ("example.com", 443, true));
        let request = Request::parse(b"CONNECT [::1]:80 HTTP/1.1\r\n\r\n").expect("a request");
        assert_eq!(request.host, "::1");
        assert!(Request::parse(b"CONNECT example.com HTTP/1.1\r\n\r\n").is_err());
    }

    #[test]
    fn a_plain_request_reaches_the_host_of_its_address_and_no_other() {
        let request = Request::parse(
            b"GET http://example.com:8080/a?b HTTP/1.1\r\nHost: other.com\r\nProxy-Authorization: x\r\nAccept: */*\r\n\r\n",
        )
        .expect("a request");
        assert_eq!((request.host.as_str(), request.port), ("example.com", 8080));
        let text = String::from_utf8(request.forwarded).expect("text");
        assert_eq!(text, "GET /a?b HTTP/1.1\r\nHost: example.com:8080\r\nConnection: close\r\nAccept: */*\r\n\r\n");
    }

    #[test]
    fn only_a_path_is_for_the_proxy_itself() {
        for (head, own) in [
            ("POST /v1/task/complete HTTP/1.1\r\n\r\n", true),
            ("GET http://example.com/ HTTP/1.1\r\n\r\n", false),
            ("CONNECT example.com:443 HTTP/1.1\r\n\r\n", false),
            ("OPTIONS * HTTP/1.1\r\n\r\n", false),
            ("\r\n\r\n", false),
        ] {
            assert_eq!(is_for_the_proxy(head.as_bytes()), own, "{head:?}");
        }
    }

    #[test]
    fn malformed_requests_are_refused() {
        for head in [
            "GET / HTTP/1.1\r\n\r\n",
            "GET http://user@example.com/ HTTP/1.1\r\n\r\n",
            "GET http://example.com/ HTTP/1.1\r\nbad header\r\n\r\n",
            "GET http://example.com/ HTTP/1.1\r\nHost : x\r\n\r\n",
            "GET  http://example.com/ HTTP/1.1\r\n\r\n",
            "\r\n\r\n",
        ] {
            assert!(Request::parse(head.as_bytes()).is_err(), "{head:?}");
        }
    }
}
