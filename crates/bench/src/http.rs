//! As little HTTP as a worker needs: one connection, one request at a time.
//!
//! The load shares its machine with what it measures, so it must cost little.

use std::fmt;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Where a control plane listens, and what lets a caller in.
#[derive(Clone)]
pub struct Target {
    address: String,
    worker: Option<HeaderValue>,
    user: Option<HeaderValue>,
}

impl fmt::Debug for Target {
    /// Without the secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Target {
    /// `url` is like `http://127.0.0.1:7423`.
    pub fn new(url: &str, worker_token: Option<&str>, api_key: Option<&str>) -> Result<Self> {
        let address = url.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
        let address = address.filter(|address| !address.is_empty() && !address.contains('/'));
        let Some(address) = address else { bail!("{url} is not a server address such as http://127.0.0.1:7423") };
        let address = if has_port(address) { address.to_owned() } else { format!("{address}:80") };
        let secret = |value: String| -> Result<HeaderValue> {
            let mut value = HeaderValue::from_str(&value)
                .context("a credential contains characters that are not allowed in a header")?;
            value.set_sensitive(true);
            Ok(value)
        };
        Ok(Self {
            address,
            worker: worker_token.map(|token| secret(format!("Bearer {token}"))).transpose()?,
            user: api_key.map(|key| secret(key.to_owned())).transpose()?,
        })
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub async fn connect(&self) -> Result<Connection> {
        let refused = || format!("no connection to {}", self.address);
        let stream = TcpStream::connect(&self.address).await.with_context(refused)?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.with_context(refused)?;
        tokio::spawn(connection);
        let host = HeaderValue::from_str(&self.address)?;
        Ok(Connection { sender, host, target: self.clone() })
    }

    /// A connection for each of many workers.
    pub async fn connect_many(&self, count: usize) -> Result<Vec<Connection>> {
        let mut connections = Vec::with_capacity(count);
        for _ in 0..count {
            connections.push(self.connect().await?);
        }
        Ok(connections)
    }
}

fn has_port(address: &str) -> bool {
    address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok())
}

/// A connection that is kept open.
#[derive(Debug)]
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    host: HeaderValue,
    target: Target,
}

impl Connection {
    /// Sends JSON and gives back the body of the answer, which must say success.
    pub async fn post(&mut self, path: &str, body: Vec<u8>) -> Result<Bytes> {
        let request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self.send(path, request, Full::new(body.into())).await
    }

    /// Sends JSON with a credential of its own.
    pub async fn post_as(&mut self, path: &str, token: &str, body: Vec<u8>) -> Result<Bytes> {
        let mut bearer = HeaderValue::from_str(&format!("Bearer {token}"))?;
        bearer.set_sensitive(true);
        let request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header(AUTHORIZATION, bearer)
            .header(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self.send(path, request, Full::new(body.into())).await
    }

    pub async fn put(&mut self, path: &str, body: Vec<u8>) -> Result<Bytes> {
        let request = Request::builder()
            .method(Method::PUT)
            .uri(path)
            .header(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self.send(path, request, Full::new(body.into())).await
    }

    /// Any request, with a header of the caller's.
    pub async fn call(
        &mut self,
        method: Method,
        path: &str,
        header: (&'static str, &str),
        body: Bytes,
    ) -> Result<Bytes> {
        let request = Request::builder().method(method).uri(path).header(header.0, header.1);
        let request = request.header(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self.send(path, request, Full::new(body)).await
    }

    pub async fn get(&mut self, path: &str) -> Result<Bytes> {
        self.send(path, Request::builder().uri(path), Full::default()).await
    }

    async fn send(
        &mut self,
        path: &str,
        mut request: hyper::http::request::Builder,
        body: Full<Bytes>,
    ) -> Result<Bytes> {
        request = request.header(HOST, self.host.clone());
        let user = path.starts_with("/api/");
        let own = request.headers_ref().is_some_and(|headers| headers.contains_key(AUTHORIZATION));
        if let Some(token) = self.target.worker.clone().filter(|_| !user && !own) {
            request = request.header(AUTHORIZATION, token);
        }
        if let Some(key) = self.target.user.clone().filter(|_| user) {
            request = request.header("x-api-key", key);
        }
        self.sender.ready().await.context("the server closed the connection")?;
        let answer =
            self.sender.send_request(request.body(body)?).await.with_context(|| format!("no answer to {path}"))?;
        let status = answer.status();
        let body = answer.into_body().collect().await.context("an answer ended early")?.to_bytes();
        if !status.is_success() {
            bail!("{path} was answered with {status}: {}", String::from_utf8_lossy(&body));
        }
        Ok(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_secrets_are_not_shown() {
        assert_eq!(Target::new("http://127.0.0.1:7423/", None, None).unwrap().address, "127.0.0.1:7423");
        assert_eq!(Target::new("http://tenure.example", None, None).unwrap().address, "tenure.example:80");
        for url in ["", "127.0.0.1:7423", "https://x", "http://", "http://x/api"] {
            assert!(Target::new(url, None, None).is_err(), "{url}");
        }
        let target = Target::new("http://x", Some("secret"), Some("secret")).unwrap();
        assert!(!format!("{target:?}").contains("secret"));
    }
}
