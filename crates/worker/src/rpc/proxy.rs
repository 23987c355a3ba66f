//! `ANY /rpc/proxy/{runtime_id}/{port}/{path}`: HTTP and WebSocket to a port in a sandbox.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::header::{self, HeaderName};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, Version};
use axum::response::Response;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tenure_contract::worker_rpc::{Code, ERROR_HEADER};
use tenure_sandbox::ErrorKind;
use tokio::io::copy_bidirectional;

use super::methods::within;
use super::refusal::Refusal;
use super::state::Rpc;
use crate::node::Target;

/// What a port may buffer for one request.
const BUFFER_BYTES: usize = 256 << 10;

/// They concern one connection, not the request.
const HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// They say who calls the worker or the control plane. Code in a sandbox must never see them.
const CREDENTIALS: [HeaderName; 8] = [
    header::AUTHORIZATION,
    header::COOKIE,
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("x-admin-api-key"),
    HeaderName::from_static("x-worker-id"),
    HeaderName::from_static("x-worker-token"),
    HeaderName::from_static("x-worker-bootstrap-key"),
    HeaderName::from_static("x-trace-worker-token"),
];

pub(super) async fn forward(
    State(rpc): State<Arc<Rpc>>,
    Path(params): Path<Vec<(String, String)>>,
    request: Request,
) -> Response {
    let headers = request.headers().clone();
    let of = |name: &str| params.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
    let (runtime_id, port) = (of("runtime_id").unwrap_or_default(), of("port").unwrap_or_default());
    match rpc.forward(runtime_id, port, request).await {
        Ok(response) => response,
        Err(refusal) => rpc.route_refusal(&headers, &refusal),
    }
}

impl Rpc {
    async fn forward(&self, runtime_id: &str, port: &str, mut request: Request) -> Result<Response, Refusal> {
        self.route_caller(request.headers(), "worker:exec")?;
        let port = port.parse::<u16>().ok().filter(|port| *port > 0);
        let port = port.ok_or_else(|| Refusal::invalid("the port is not a number from 1 to 65535"))?;
        let target = Target { runtime_id: runtime_id.to_owned(), ..Target::default() };
        self.thawed(&target).await?;
        let held = self.held(None, &target).await?;
        let dialing = held.provider.dial(&held.runtime_id, port);
        let connection = match within(self.settings.times.call, "the connection", dialing).await? {
            Ok(connection) => connection,
            // It says so itself.
            Err(error) if error.kind() == ErrorKind::Unavailable => return Err(no_answer(&error.to_string())),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Internal) => {
                return Err(no_answer(&format!("nothing answers on port {port}: {error}")));
            }
            Err(error) => return Err(error.into()),
        };
        let handshake = http1::Builder::new().max_buf_size(BUFFER_BYTES).handshake(TokioIo::new(connection)).await;
        let (mut sender, driver) = handshake.map_err(|error| no_answer(&format!("port {port}: {error}")))?;
        tokio::spawn(async move { drop(driver.with_upgrades().await) });

        let upgrade = wanted_upgrade(request.headers());
        let session = upgrade.is_some().then(|| self.session()).transpose()?;
        let upgrading = upgrade.is_some().then(|| hyper::upgrade::on(&mut request));
        rewrite(&mut request, upgrade, port)?;
        let answer = sender.send_request(request).await;
        let mut answer = answer.map_err(|error| no_answer(&format!("port {port} did not answer: {error}")))?;
        let accepted = answer.status() == StatusCode::SWITCHING_PROTOCOLS;
        let switched = answer.headers().get(header::UPGRADE).cloned();
        if accepted && let Some(upgrading) = upgrading {
            let inside = hyper::upgrade::on(&mut answer);
            tokio::spawn(async move {
                let (Ok(outside), Ok(inside)) = tokio::join!(upgrading, inside) else { return };
                let (mut outside, mut inside) = (TokioIo::new(outside), TokioIo::new(inside));
                drop(copy_bidirectional(&mut outside, &mut inside).await);
                drop(session);
            });
        }
        strip(answer.headers_mut(), &HOP_BY_HOP);
        // It marks answers of the worker itself: code in a sandbox must not speak for it.
        answer.headers_mut().remove(ERROR_HEADER);
        if let (true, Some(protocol)) = (accepted, switched) {
            answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
            answer.headers_mut().insert(header::UPGRADE, protocol);
        }
        Ok(answer.map(Body::new))
    }
}

/// Makes the request that the port sees: its own path, its own host, and no credentials of others.
fn rewrite(request: &mut Request, upgrade: Option<HeaderValue>, port: u16) -> Result<(), Refusal> {
    *request.version_mut() = Version::HTTP_11;
    *request.uri_mut() = inner_uri(request.uri())?;
    let headers = request.headers_mut();
    let named = named_by_connection(headers);
    strip(headers, &named);
    strip(headers, &HOP_BY_HOP);
    strip(headers, &CREDENTIALS);
    if let Some(protocol) = upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, protocol);
    }
    if let Ok(host) = HeaderValue::from_str(&format!("localhost:{port}")) {
        headers.insert(header::HOST, host);
    }
    Ok(())
}

/// The part after `/rpc/proxy/{runtime_id}/{port}`, as it was sent.
fn inner_uri(uri: &Uri) -> Result<Uri, Refusal> {
    let whole = uri.path_and_query().map_or("/", |whole| whole.as_str());
    let (path, query) = whole.split_once('?').map_or((whole, None), |(path, query)| (path, Some(query)));
    // "", "rpc", "proxy", runtime, port, and then the path.
    let inner = path.splitn(6, '/').nth(5).unwrap_or_default();
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    format!("/{inner}{query}").parse().map_err(|_| Refusal::invalid("the path cannot be passed on"))
}

fn wanted_upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let wants = named_by_connection(headers).contains(&header::UPGRADE);
    wants.then(|| headers.get(header::UPGRADE).cloned()).flatten()
}

fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    let values = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).filter_map(|name| name.trim().parse().ok()).collect()
}

fn strip(headers: &mut HeaderMap, names: &[HeaderName]) {
    for name in names {
        headers.remove(name);
    }
}

fn no_answer(message: &str) -> Refusal {
    Refusal::call(Code::ProviderUnavailable, message).with_status(StatusCode::BAD_GATEWAY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_sees_its_own_path_as_it_was_sent() {
        for (sent, inner) in [
            ("/rpc/proxy/rt-1/8080", "/"),
            ("/rpc/proxy/rt-1/8080/", "/"),
            ("/rpc/proxy/rt-1/8080/a/b%2Fc?x=1&y=%20", "/a/b%2Fc?x=1&y=%20"),
            ("/rpc/proxy/rt-1/8080//a", "//a"),
            ("/rpc/proxy/rt-1/8080?q", "/?q"),
        ] {
            assert_eq!(inner_uri(&sent.parse().expect(sent)).expect(sent).to_string(), inner);
        }
    }

    #[test]
    fn credentials_and_hop_by_hop_headers_stay_outside() {
        let request = Request::builder()
            .uri("/rpc/proxy/rt-1/80/x")
            .header("x-worker-token", "secret")
            .header("x-worker-id", "w")
            .header("authorization", "Bearer secret")
            .header("cookie", "session=secret")
            .header("x-api-key", "secret")
            .header("connection", "keep-alive, x-hop")
            .header("x-hop", "1")
            .header("te", "trailers")
            .header("accept", "text/html")
            .body(Body::empty());
        let mut request = request.expect("a request");
        rewrite(&mut request, None, 80).expect("rewritten");
        let names: Vec<&str> = request.headers().keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["accept", "host"]);
        assert_eq!(request.headers()["host"], "localhost:80");
    }
}
