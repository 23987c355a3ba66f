//! HTTP and WebSocket to a port in a sandbox.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Body;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{HeaderMap, Request, Response, StatusCode, http};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, timeout};

use crate::address::encode;
use crate::answer::is_marked;
use crate::exchange::{Outgoing, Payload};
use crate::methods::{observe, supports};
use crate::pool::Permit;
use crate::upload::BoxError;
use crate::{Call, Client, Content, Error, Target};

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

/// A port in a sandbox.
#[derive(Debug, Clone, Copy)]
pub struct Port<'a> {
    pub runtime_id: &'a str,
    pub port: u16,
}

/// What a port answered.
#[derive(Debug)]
pub enum Forwarded {
    Answer(Response<Content>),
    /// It accepted an upgrade: the head of its answer, and the connection that follows.
    Upgraded(http::response::Parts, Upgraded),
}

/// A connection to a port, after an upgrade. Dropping it closes it.
#[derive(Debug)]
pub struct Upgraded {
    stream: TokioIo<hyper::upgrade::Upgraded>,
    _permit: Permit,
}

impl Client {
    /// Sends a request to a port in a sandbox. Its URI is the path and query that the port sees. With `Connection:
    /// upgrade` the port may take over the connection. Needs the capability `proxy`.
    ///
    /// An error is the worker's or the way's; whatever the port answers is an answer. Header fields of one connection are
    /// removed here, and credentials by the worker.
    pub async fn proxy<B>(
        &self,
        target: &Target,
        call: Call<'_>,
        port: Port<'_>,
        request: Request<B>,
    ) -> Result<Forwarded, Error>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        supports(target, "proxy")?;
        let started = Instant::now();
        let forwarded = self.forward(target, call, port, request, started).await;
        observe("/rpc/proxy", target, call, started, forwarded.as_ref().err());
        forwarded
    }

    async fn forward<B>(
        &self,
        target: &Target,
        call: Call<'_>,
        port: Port<'_>,
        request: Request<B>,
        started: Instant,
    ) -> Result<Forwarded, Error>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let live = self.live();
        let (parts, body) = request.into_parts();
        let upgrade = wanted_upgrade(&parts.headers);
        let inner = parts.uri.path_and_query().map_or("/", |inner| inner.as_str());
        let path = format!("/rpc/proxy/{}/{}{inner}", encode(port.runtime_id), port.port);
        let mut outgoing = Outgoing::session(parts.method, path, call.request_id);
        outgoing.headers = passed_on(parts.headers, upgrade.as_ref());
        outgoing.forwarded = true;
        if !body.is_end_stream() {
            outgoing.body = Payload::Upload(Some(body.map_err(Into::into).boxed_unsync()));
        }
        let deadline = started + live.settings.times.proxy_head;
        let mut response = self.exchange(&live, target, outgoing, Some(deadline)).await?;
        if is_marked(response.headers()) {
            return Err(self.marked(&live, target, call, response).await);
        }
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            strip(response.headers_mut());
            return Ok(Forwarded::Answer(response.map(Content::unhurried)));
        }
        if upgrade.is_none() {
            return Err(Error::unknown("the worker changed the protocol without being asked"));
        }
        let (parts, upgraded) = upgraded(response, live.settings.times.connect).await?;
        Ok(Forwarded::Upgraded(parts, upgraded))
    }

    /// An answer of the worker in place of the port.
    async fn marked(
        &self,
        live: &crate::client::Live,
        target: &Target,
        call: Call<'_>,
        response: Response<Content>,
    ) -> Error {
        match self.succeeded(live, target, call, response).await {
            Ok(_) => Error::unknown("a success is marked as a failure"),
            Err(error) => error,
        }
    }
}

/// The connection after an answer that changed its protocol.
pub(crate) async fn upgraded(
    mut response: Response<Content>,
    wait: Duration,
) -> Result<(http::response::Parts, Upgraded), Error> {
    let upgrading = hyper::upgrade::on(&mut response);
    let (parts, content) = response.into_parts();
    let upgraded = timeout(wait, upgrading).await;
    let (Ok(Ok(stream)), Some(held)) = (upgraded, content.into_held()) else {
        return Err(Error::unknown("the connection ended during the upgrade"));
    };
    held.connection.release();
    Ok((parts, Upgraded { stream: TokioIo::new(stream), _permit: held.permit }))
}

/// The header fields that are for the port.
fn passed_on(mut headers: HeaderMap, upgrade: Option<&HeaderValue>) -> HeaderMap {
    for name in named_by_connection(&headers) {
        headers.remove(name);
    }
    strip(&mut headers);
    if let Some(protocol) = upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, protocol.clone());
    }
    headers
}

fn strip(headers: &mut HeaderMap) {
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
}

fn wanted_upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let wants = named_by_connection(headers).contains(&header::UPGRADE);
    wants.then(|| headers.get(header::UPGRADE).cloned()).flatten()
}

fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    let values = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).filter_map(|name| name.trim().parse().ok()).collect()
}

impl AsyncRead for Upgraded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Upgraded {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
