//! Requests that are refused before their route is looked up: without one `Host`, or with an address that is not text.

use axum::http::{HeaderValue, Request, StatusCode, Uri, Version, header};
use axum::response::{IntoResponse, Response};

use crate::front::is_proxied;

/// The answer to a request that no client should send.
pub fn refusal<B>(request: &Request<B>) -> Option<Response> {
    wrong_host(request).or_else(|| wrong_path(request.uri()))
}

/// HTTP/1.1 demands exactly one `Host`. Without it, or with two, a proxy before the server may have meant another one.
fn wrong_host<B>(request: &Request<B>) -> Option<Response> {
    let hosts = request.headers().get_all(header::HOST).iter().count();
    let message = match hosts {
        0 if request.version() == Version::HTTP_11 => "the request has no Host header: send one",
        0 | 1 => return None,
        _ => "the request has more than one Host header: send one",
    };
    let mut refusal = malformed(message);
    refusal.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    Some(refusal)
}

/// Names in paths and queries are text. Ports of sandboxes see what was sent.
fn wrong_path(uri: &Uri) -> Option<Response> {
    let sent = uri.path_and_query().filter(|_| !is_proxied(uri.path()))?.as_str().as_bytes();
    let digit = |at: usize| char::from(*sent.get(at)?).to_digit(16);
    let (mut bytes, mut at) = (Vec::with_capacity(sent.len()), 0);
    while let Some(byte) = sent.get(at) {
        match (byte, digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((high * 16 + low) as u8);
                at += 3;
            }
            _ => {
                bytes.push(*byte);
                at += 1;
            }
        }
    }
    std::str::from_utf8(&bytes).is_err().then(|| malformed("the address is not valid UTF-8: encode names as UTF-8"))
}

fn malformed(message: &str) -> Response {
    let body = serde_json::json!({"error": "malformed_request", "message": message});
    (StatusCode::BAD_REQUEST, axum::Json(body)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_one_host() {
        let status = |version, hosts: &[&str]| {
            let request = Request::builder().version(version);
            let request = hosts.iter().fold(request, |request, host| request.header(header::HOST, *host));
            wrong_host(&request.body(()).unwrap()).map(|refusal| refusal.status().as_u16())
        };
        assert_eq!(status(Version::HTTP_11, &["a"]), None);
        assert_eq!(status(Version::HTTP_11, &[]), Some(400));
        assert_eq!(status(Version::HTTP_11, &["a", "b"]), Some(400));
        assert_eq!(status(Version::HTTP_10, &[]), None, "it came with HTTP/1.1");
        assert_eq!(status(Version::HTTP_2, &[]), None, "there it is in the address");
        assert_eq!(status(Version::HTTP_2, &["a", "a"]), Some(400));
    }

    #[test]
    fn an_address_is_text() {
        let is_wrong = |path: &str| wrong_path(&path.parse().unwrap()).is_some();
        for path in ["/", "/api/v1/queues/gr%C3%B6%C3%9fe", "/a%2fb", "/a%", "/a%zz", "/a?q=%e2%82%ac"] {
            assert!(!is_wrong(path), "{path}");
        }
        for path in ["/%ff", "/api/v1/queues/%c3%28", "/a?q=%ff", "/%c3"] {
            assert!(is_wrong(path), "{path}");
        }
        assert!(!is_wrong("/api/v1/sandboxes/sb-1/proxy/80/%ff"));
    }
}
