//! What client and worker share below the API: address, connection settings, back-off.

use std::path::PathBuf;
use std::time::Duration;

use reqwest::header::{HeaderMap, RETRY_AFTER};
use reqwest::{Certificate, Response, Url};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest answer: a hundred tasks with their payloads and checkpoints fit.
const ANSWER_BYTES: usize = 256 << 20;
/// The longest explanation of a refusal.
const REFUSAL_BYTES: usize = 1 << 20;

/// Reads the address of a server. It may have a path, below which the API is mounted.
pub(crate) fn parse_server(text: &str) -> Result<Url, String> {
    match Url::parse(text) {
        Ok(url) if matches!(url.scheme(), "http" | "https") && url.host_str().is_some() => Ok(url),
        _ if !text.contains("://") && Url::parse(&format!("http://{text}")).is_ok() => {
            Err(format!("`{text}` is not a server address: write http://{text} or https://{text}"))
        }
        _ => Err(format!("`{text}` is not a server address: expected http:// or https:// and a host")),
    }
}

/// The address of a path below the server. Segments are escaped, so an id cannot leave its place.
pub(crate) fn join(server: &Url, segments: &[&str]) -> Url {
    let mut url = server.clone();
    url.set_query(None);
    url.set_fragment(None);
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(segments);
    }
    url
}

/// Whose signature makes the certificate of a server good.
#[derive(Clone, Default)]
pub(crate) enum Roots {
    #[default]
    System,
    Pem(Vec<u8>),
    File(PathBuf),
}

impl Roots {
    /// The certificates that count instead of those of the system, if there are any.
    pub(crate) fn load(&self) -> Result<Option<Vec<Certificate>>, String> {
        let (pem, what) = match self {
            Self::System => return Ok(None),
            Self::Pem(pem) => (pem.clone(), "the root certificate".to_owned()),
            Self::File(path) => {
                let pem = std::fs::read(path)
                    .map_err(|error| format!("the CA file {} could not be read: {error}", path.display()))?;
                (pem, format!("the CA file {}", path.display()))
            }
        };
        match Certificate::from_pem_bundle(&pem) {
            Ok(roots) if !roots.is_empty() => Ok(Some(roots)),
            Ok(_) | Err(_) => Err(format!("{what} contains no PEM certificate")),
        }
    }
}

/// A header that every answer to a worker has, if it comes from the server and not from something in between.
pub(crate) const CONTRACT: &str = "x-tenure-contract";

/// An HTTP client without redirects and without a proxy of the environment: either would carry keys and tokens to
/// another host.
///
/// Its connections belong to the tokio runtime that first uses it, so each runtime needs a client of its own.
pub(crate) fn new_client(roots: Option<Vec<Certificate>>) -> Result<reqwest::Client, String> {
    let mut builder = reqwest::Client::builder()
        .user_agent(concat!("tenure-rust/", env!("CARGO_PKG_VERSION")))
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        // Another crate may turn on HTTP/2, and nobody would have asked for it here.
        .http1_only()
        .connect_timeout(CONNECT_TIMEOUT);
    if let Some(roots) = roots {
        builder = builder.tls_certs_only(roots);
    }
    builder.build().map_err(|error| format!("the HTTP client could not be set up: {}", chain(&error)))
}

/// Why the body of an answer was not read to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error(transparent)]
    Broken(reqwest::Error),
    #[error("the answer is larger than {0} bytes")]
    TooLarge(usize),
}

/// The body of an answer as it arrives. Whatever is at the other end does not fill the memory.
#[derive(Debug)]
pub(crate) struct AnswerBody {
    response: Response,
    bytes: Vec<u8>,
    most: usize,
}

impl AnswerBody {
    pub(crate) fn of(response: Response) -> Self {
        let most = if response.status().is_success() { ANSWER_BYTES } else { REFUSAL_BYTES };
        Self::at_most(response, most)
    }

    fn at_most(response: Response, most: usize) -> Self {
        Self { response, bytes: Vec::new(), most }
    }

    /// Reads some more. Returns whether there may be more after it.
    pub(crate) async fn more(&mut self) -> Result<bool, BodyError> {
        let chunk = self.response.chunk().await.map_err(|error| BodyError::Broken(error.without_url()))?;
        let Some(chunk) = chunk else { return Ok(false) };
        if self.bytes.len() + chunk.len() > self.most {
            return Err(BodyError::TooLarge(self.most));
        }
        self.bytes.extend_from_slice(&chunk);
        Ok(true)
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    pub(crate) async fn whole(mut self) -> Result<Vec<u8>, BodyError> {
        while self.more().await? {}
        Ok(self.bytes)
    }
}

/// For logs: an error and all its sources in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(Some(error), |error| error.source());
    sources.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// `Retry-After` in seconds. The form with a date needs a clock that agrees with the server's, so it is ignored.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

/// Waits that double up to a limit. Each is cut by up to a half at random, so that many clients do not return as one.
#[derive(Debug, Clone)]
pub(crate) struct Backoff {
    next: Duration,
    max: Duration,
}

impl Backoff {
    pub(crate) fn new(first: Duration, max: Duration) -> Self {
        Self { next: first, max }
    }

    /// The next wait; at least what the server asked for.
    pub(crate) fn next(&mut self, asked: Option<Duration>) -> Duration {
        let full = self.next.min(self.max);
        self.next = (full * 2).min(self.max);
        jittered(full).max(asked.unwrap_or_default().min(self.max))
    }
}

/// Between a half and the whole of `full`.
pub(crate) fn jittered(full: Duration) -> Duration {
    let random = getrandom::u32().unwrap_or(u32::MAX);
    full.mul_f64(0.5 + 0.5 * f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_cannot_leave_their_segment() {
        let server = parse_server("http://host:1/base/").unwrap();
        let url = join(&server, &["api", "v1", "tasks", "a/../b?c"]);
        assert_eq!(url.as_str(), "http://host:1/base/api/v1/tasks/a%2F..%2Fb%3Fc");
    }

    #[tokio::test]
    async fn answers_have_a_longest_size() {
        let endless = |status: u16| {
            let body = futures_util::stream::repeat_with(|| Ok::<_, std::io::Error>(vec![b'x'; 64 << 10]));
            let response =
                axum::http::Response::builder().status(status).body(reqwest::Body::wrap_stream(body)).unwrap();
            Response::from(response)
        };
        let refused = AnswerBody::of(endless(503)).whole().await.unwrap_err();
        assert_eq!(refused.to_string(), "the answer is larger than 1048576 bytes");
        let mut answered = AnswerBody::of(endless(200));
        for _ in 0..REFUSAL_BYTES / (64 << 10) + 1 {
            assert!(answered.more().await.unwrap(), "an answer may be longer than a refusal");
        }
        let cut = AnswerBody::at_most(endless(200), 100_000).whole().await;
        assert!(matches!(cut, Err(BodyError::TooLarge(100_000))));
        let response = axum::http::Response::new(vec![b'x'; 100_000]);
        let whole = AnswerBody::at_most(Response::from(response), 100_000).whole().await.unwrap();
        assert_eq!(whole.len(), 100_000);
    }

    #[test]
    fn only_http_addresses_are_servers() {
        assert!(parse_server("ftp://host").is_err());
        assert!(parse_server("127.0.0.1:7423").is_err());
        assert!(parse_server("https://host").is_ok());
    }

    #[test]
    fn waits_double_up_to_the_limit_and_honour_the_server() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_millis(400));
        for full in [100, 200, 400, 400] {
            let wait = backoff.next(None).as_millis();
            assert!((full / 2..=full).contains(&wait), "{wait} of {full}");
        }
        assert_eq!(backoff.next(Some(Duration::from_secs(9))), Duration::from_millis(400));
    }
}
