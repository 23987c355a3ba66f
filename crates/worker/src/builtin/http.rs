use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Response, Url};
use serde::Deserialize;
use serde_json::Value;
use tenure_client::{Json, TaskContext, TaskError};

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

/// A client without redirects: where a call goes is what the payload says.
pub(crate) fn http_client() -> Result<reqwest::Client, reqwest::Error> {
    let agent = concat!("tenure-worker/", env!("CARGO_PKG_VERSION"));
    reqwest::Client::builder().http1_only().user_agent(agent).redirect(reqwest::redirect::Policy::none()).build()
}

/// Calls another system, with the fence and the task id in its headers.
pub(crate) async fn http(client: &reqwest::Client, task: &TaskContext) -> Result<Json, TaskError> {
    let request = request(client, task, task.payload()?)?;
    let call = async {
        let response = request.send().await.map_err(unanswered)?;
        let status = response.status().as_u16();
        Ok::<_, TaskError>((status, read(response).await?))
    };
    let (status, (body, cut)) = tokio::select! {
        answer = call => answer?,
        reason = task.cancelled() => return Err(TaskError::cancelled(reason.to_string())),
    };
    match status {
        429 | 500.. => Err(refused(status, &body, true)),
        400..=499 => Err(refused(status, &body, false)),
        _ => Ok(result(status, &body, cut)),
    }
}

fn request(client: &reqwest::Client, task: &TaskContext, call: Call) -> Result<reqwest::RequestBuilder, TaskError> {
    let wrong = |message: String| TaskError::data_quality(message);
    let url = Url::parse(&call.url).map_err(|error| wrong(format!("the url does not fit: {error}")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(wrong(format!("`{}` is neither http nor https", url.scheme())));
    }
    let method = call.method.as_deref().unwrap_or(if call.body.is_some() { "POST" } else { "GET" });
    let method = Method::from_bytes(method.to_ascii_uppercase().as_bytes())
        .map_err(|_| wrong(format!("`{method}` is not an HTTP method")))?;
    let mut headers = HeaderMap::new();
    if call.body.as_ref().is_some_and(|body| !body.is_string()) {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    // The guard comes last: a payload cannot set it.
    let given = call.headers.iter().map(|(name, value)| (name.as_str(), value.clone()));
    for (name, value) in given.chain(task.guard_headers()) {
        let header = name.parse::<HeaderName>().ok().zip(HeaderValue::from_str(&value).ok());
        let (key, value) = header.ok_or_else(|| wrong(format!("`{name}` is not a valid header")))?;
        headers.insert(key, value);
    }
    let timeout = Duration::from_millis(call.timeout_ms.unwrap_or(TIMEOUT_MS_DEFAULT));
    let request = client.request(method, url).headers(headers).timeout(timeout);
    Ok(match call.body {
        None => request,
        Some(Value::String(text)) => request.body(text),
        Some(json) => request.body(json.to_string()),
    })
}

/// Reads the body up to the limit; the flag says that there was more.
async fn read(mut response: Response) -> Result<(String, bool), TaskError> {
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(unanswered)? {
        body.extend_from_slice(&piece);
        if body.len() > BODY_BYTES {
            body.truncate(BODY_BYTES);
            return Ok((String::from_utf8_lossy(&body).into_owned(), true));
        }
    }
    Ok((String::from_utf8_lossy(&body).into_owned(), false))
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

fn unanswered(error: reqwest::Error) -> TaskError {
    let timeout = error.is_timeout();
    // Without the address: it may carry a secret.
    let error = error.without_url();
    let sources = std::iter::successors(std::error::Error::source(&error), |source| (*source).source());
    let message = sources.fold(error.to_string(), |text, source| format!("{text}: {source}"));
    if timeout { TaskError::timeout(message) } else { TaskError::infrastructure(message) }
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

    async fn call(payload: Value) -> Result<Value, TaskError> {
        let lease = TestLease::new("http", &payload);
        http(&http_client().unwrap(), &lease.context()).await.map(|json| json.value())
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
