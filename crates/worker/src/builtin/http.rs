use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tenure_client::{Json, TaskContext, TaskError};
use tenure_outbound::header::{self, HeaderName, HeaderValue};
use tenure_outbound::{Bytes, Method, Outbound, OutboundError, Request};

use super::{Keep, bounded_text};

const BODY_BYTES: usize = 1 << 20;
/// Of the result for what stands around the body.
const AROUND_BODY: usize = 256;
const TIMEOUT_MS_DEFAULT: u64 = 30_000;

#[derive(Debug, Deserialize)]
struct Call {
    url: String,
    /// Default `GET`; `POST` if there is a body.
    method: Option<String>,
    /// A text is sent as it is, anything else as JSON.
    body: Option<Value>,
    timeout_ms: Option<u64>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
}

/// Methods that a payload may ask for.
const METHODS: [Method; 6] = [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];

/// Headers that say how a request is sent, and not what. A payload cannot set them.
const OF_THE_CLIENT: [HeaderName; 8] = [
    header::HOST,
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::TE,
    header::TRAILER,
    header::UPGRADE,
    header::PROXY_AUTHORIZATION,
];
const HEADERS: usize = 64;

/// Calls another system, with the fence and the task id in its headers. Where to is for the payload to say, within what the
/// configuration allows.
pub(crate) async fn http(outbound: &Outbound, task: &TaskContext) -> Result<Json, TaskError> {
    let call: Call = task.payload()?;
    let request = request(task, &call)?;
    let answer = tokio::select! {
        answer = outbound.request(request) => answer.map_err(unanswered)?,
        reason = task.cancelled() => return Err(TaskError::cancelled(reason.to_string())),
    };
    let (status, body) = (answer.status.as_u16(), String::from_utf8_lossy(&answer.body));
    match status {
        429 | 500.. => Err(refused(status, &body, true)),
        400..=499 => Err(refused(status, &body, false)),
        _ => Ok(result(status, &body, answer.truncated)),
    }
}

fn request<'a>(task: &TaskContext, call: &'a Call) -> Result<Request<'a>, TaskError> {
    let wrong = |message: String| TaskError::data_quality(message);
    let method = call.method.as_deref().unwrap_or(if call.body.is_some() { "POST" } else { "GET" });
    let method = METHODS
        .into_iter()
        .find(|known| known.as_str().eq_ignore_ascii_case(method))
        .ok_or_else(|| wrong(format!("`{method}` is not one of GET, HEAD, POST, PUT, PATCH and DELETE")))?;
    let timeout = Duration::from_millis(call.timeout_ms.unwrap_or(TIMEOUT_MS_DEFAULT));
    let mut request = Request { answer_bytes: BODY_BYTES, ..Request::new(method, &call.url, timeout) };
    if call.body.as_ref().is_some_and(|body| !body.is_string()) {
        request.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    if call.headers.len() > HEADERS {
        return Err(wrong(format!("at most {HEADERS} headers")));
    }
    // The guard comes last: a payload cannot set it.
    let given = call.headers.iter().map(|(name, value)| (name.as_str(), value.clone()));
    for (name, value) in given.chain(task.guard_headers()) {
        let header = name.parse::<HeaderName>().ok().zip(HeaderValue::from_str(&value).ok());
        let (key, value) = header.ok_or_else(|| wrong(format!("`{name}` is not a valid header")))?;
        if OF_THE_CLIENT.contains(&key) {
            return Err(wrong(format!("the header `{name}` cannot be set")));
        }
        request.headers.insert(key, value);
    }
    request.body = match &call.body {
        None => Bytes::new(),
        Some(Value::String(text)) => Bytes::copy_from_slice(text.as_bytes()),
        Some(json) => json.to_string().into(),
    };
    Ok(request)
}

/// `{"status", "body"}`, the body as JSON if it is some. `"truncated"` if it is not all of it.
fn result(status: u16, body: &str, mut cut: bool) -> Json {
    let limit = BODY_BYTES - AROUND_BODY;
    let whole = (!cut && body.len() <= limit).then(|| Json::parse(body).ok()).flatten();
    let body = whole.unwrap_or_else(|| {
        let text = bounded_text(body, limit, Keep::Start);
        cut |= text.decode::<String>().is_ok_and(|kept| kept.len() < body.len());
        text
    });
    let body = body.as_str();
    let truncated = if cut { r#","truncated":true"# } else { "" };
    Json::from_trusted(format!(r#"{{"status":{status},"body":{body}{truncated}}}"#))
}

fn refused(status: u16, body: &str, retryable: bool) -> TaskError {
    let (code, message) = (format!("HTTP_{status}"), format!("the server answered {status}"));
    let error = match retryable {
        true => TaskError::retryable(code, message),
        false => TaskError::permanent(code, message),
    };
    error.with_stack(body)
}

/// Messages have no address: it may carry a secret.
fn unanswered(error: OutboundError) -> TaskError {
    let sources = std::iter::successors(std::error::Error::source(&error), |source| (*source).source());
    let message = sources.fold(error.to_string(), |text, source| format!("{text}: {source}"));
    match error {
        OutboundError::Refused(_) => TaskError::data_quality(message),
        OutboundError::Timeout { .. } => TaskError::timeout(message),
        _ => TaskError::infrastructure(message),
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::Router;
    use axum::extract::Request;
    use axum::http::{HeaderMap, StatusCode};
    use axum::routing::{any, get, post};
    use serde_json::json;
    use tenure_client::TestLease;
    use tenure_outbound::{Policy, Trust};

    use super::*;

    async fn serve() -> String {
        let app = Router::new()
            .route(
                "/status/{status}",
                any(|request: Request| async move {
                    let status: u16 = request.uri().path().rsplit('/').next().unwrap().parse().unwrap();
                    (StatusCode::from_u16(status).unwrap(), [("location", "/elsewhere")], "said so")
                }),
            )
            .route(
                "/headers",
                post(|headers: HeaderMap, body: String| async move {
                    let header = |name| headers.get_all(name).iter().map(|v| v.to_str().unwrap()).collect::<Vec<_>>();
                    json!([header("tenure-fence"), header("idempotency-key"), header("content-type"), body]).to_string()
                }),
            )
            .route("/large", get(|| async { "\u{1}".repeat(BODY_BYTES + 1) }))
            .route("/never", get(|| async { std::future::pending::<()>().await }));
        let listener = tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        url
    }

    /// A client that may call this machine, as no worker does.
    async fn call(payload: Value) -> Result<Value, TaskError> {
        call_with(Policy { allow_http: true, allow_loopback: true, ..Policy::default() }, payload).await
    }

    async fn call_with(policy: Policy, payload: Value) -> Result<Value, TaskError> {
        let lease = TestLease::new("http", &payload);
        let outbound = Outbound::new(policy, &Trust::System).unwrap();
        http(&outbound, &lease.context()).await.map(|json| json.value())
    }

    #[tokio::test]
    async fn a_payload_reaches_no_address_that_was_not_allowed() {
        let url = serve().await;
        let policy = || Policy { allow_http: true, settings: "outbound", ..Policy::default() };
        for target in
            [format!("{url}/status/200"), "http://169.254.169.254/latest".to_owned(), "http://10.0.0.1/".to_owned()]
        {
            let error = call_with(policy(), json!({"url": target})).await.unwrap_err();
            assert_eq!((error.code(), error.is_retryable()), ("DATA_QUALITY", false), "{target}");
        }
        let plain = call_with(Policy::default(), json!({"url": "http://example.com/"})).await.unwrap_err();
        assert_eq!(plain.code(), "DATA_QUALITY");
    }

    #[tokio::test]
    async fn methods_and_headers_are_limited() {
        let url = format!("{}/status/200", serve().await);
        for (method, headers) in [
            ("TRACE", json!({})),
            ("CONNECT", json!({})),
            ("GET", json!({"Host": "other"})),
            ("POST", json!({"transfer-encoding": "chunked"})),
            ("GET", json!({"a b": "c"})),
        ] {
            let error = call(json!({"url": url, "method": method, "headers": headers})).await.unwrap_err();
            assert_eq!(error.code(), "DATA_QUALITY", "{method} {headers}");
        }
        assert_eq!(call(json!({"url": url, "method": "put"})).await.unwrap()["status"], 200);
    }

    #[tokio::test]
    async fn statuses_decide_whether_another_attempt_makes_sense() {
        let url = serve().await;
        for (status, retryable) in [(400, false), (404, false), (429, true), (500, true), (503, true)] {
            let error = call(json!({"url": format!("{url}/status/{status}")})).await.unwrap_err();
            assert_eq!((error.code(), error.is_retryable()), (format!("HTTP_{status}").as_str(), retryable));
            assert_eq!(error.stack(), Some("said so"));
        }
        for status in [200, 302] {
            let answer = call(json!({"url": format!("{url}/status/{status}")})).await.unwrap();
            assert_eq!(answer, json!({"status": status, "body": "said so"}));
        }
    }

    #[tokio::test]
    async fn the_guard_is_sent_and_cannot_be_forged() {
        let url = serve().await;
        let payload = json!({"url": format!("{url}/headers"), "body": {"a": 1}, "headers": {"tenure-fence": "99"}});
        let answer = call(payload).await.unwrap();
        let id = TestLease::new("http", &()).context().task_id().to_owned();
        assert_eq!(answer["body"], json!([["1"], [id], ["application/json"], "{\"a\":1}"]));
    }

    #[tokio::test]
    async fn a_large_answer_is_cut_so_that_the_result_fits() {
        let answer = call(json!({"url": format!("{}/large", serve().await)})).await.unwrap();
        assert_eq!(answer["truncated"], true);
        assert!(answer.to_string().len() <= BODY_BYTES);
    }

    #[tokio::test]
    async fn no_answer_is_a_failure_to_retry() {
        let slow = json!({"url": format!("{}/never", serve().await), "timeout_ms": 50});
        assert_eq!(call(slow).await.unwrap_err().code(), "TIMEOUT");
        let nobody = call(json!({"url": "http://127.0.0.1:1/"})).await.unwrap_err();
        assert_eq!((nobody.code(), nobody.is_retryable()), ("INFRASTRUCTURE", true));
    }

    #[tokio::test]
    async fn only_http_is_called() {
        for url in ["file:///etc/passwd", "ftp://host/", "no url"] {
            assert_eq!(call(json!({"url": url})).await.unwrap_err().code(), "DATA_QUALITY");
        }
    }
}
