//! One HTTP request and the head of its answer: which connection it takes, which credential it shows, and when it is
//! sent again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use tenure_contract::worker_rpc::{REQUEST_ID_HEADER, WORKER_ID_HEADER, WORKER_TOKEN_HEADER};
use tokio::time::{Instant, timeout_at};

use crate::answer;
use crate::client::Live;
use crate::content::{Content, Held};
use crate::credentials::{Kind, kinds};
use crate::dial::{dial, is_tls_alert};
use crate::error::chain;
use crate::pool::{Connection, Lane, Permit, Worker, lock};
use crate::upload::{RequestBody, whole};
use crate::{Client, Error, Target};

/// What is read of a refusal to say why.
const REFUSAL_BYTES: usize = 16 << 10;

/// A request before its credential is chosen.
pub(crate) struct Outgoing<'a> {
    pub verb: Method,
    /// Path and query on the worker's listener.
    pub path: String,
    pub request_id: &'a str,
    /// Beside those that every request has.
    pub headers: HeaderMap,
    pub body: Payload,
    pub lane: Lane,
    /// Whether it does no harm if it arrives twice.
    pub repeatable: bool,
    /// The worker is not the only one who answers: its own answers have a mark.
    pub forwarded: bool,
}

pub(crate) enum Payload {
    Whole(Bytes),
    /// Sent once. None when it has been.
    Upload(Option<RequestBody>),
}

impl<'a> Outgoing<'a> {
    /// `POST /rpc`.
    pub(crate) fn call(request_id: &'a str, body: Bytes, repeatable: bool) -> Self {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let (lane, forwarded) = (Lane::Call, false);
        let (path, body) = ("/rpc".to_owned(), Payload::Whole(body));
        Self { verb: Method::POST, path, request_id, headers, body, lane, repeatable, forwarded }
    }

    /// A route beside it.
    pub(crate) fn session(verb: Method, path: String, request_id: &'a str) -> Self {
        let (lane, body) = (Lane::Session, Payload::Whole(Bytes::new()));
        Self { verb, path, request_id, headers: HeaderMap::new(), body, lane, repeatable: false, forwarded: false }
    }

    fn request(&mut self, worker: &Worker, token: HeaderValue) -> Result<Request<RequestBody>, Error> {
        let header = |what: &str, text: &str| {
            HeaderValue::from_str(text).map_err(|_| Error::invalid(format!("the {what} cannot be sent in a header")))
        };
        let mut headers = self.headers.clone();
        headers.insert(HOST, worker.address.authority.clone());
        headers.insert(WORKER_ID_HEADER, header("worker id", &worker.id)?);
        headers.insert(WORKER_TOKEN_HEADER, token);
        headers.insert(REQUEST_ID_HEADER, header("request id", self.request_id)?);
        let body = match &mut self.body {
            Payload::Whole(bytes) => {
                if !bytes.is_empty() {
                    headers.insert(CONTENT_LENGTH, HeaderValue::from(bytes.len()));
                }
                whole(bytes.clone())
            }
            Payload::Upload(body) => body.take().ok_or_else(|| Error::unknown("the content was sent already"))?,
        };
        let mut request = Request::new(body);
        *request.method_mut() = self.verb.clone();
        *request.uri_mut() = worker.address.path(&self.path)?;
        *request.headers_mut() = headers;
        Ok(request)
    }

    fn put_back(&mut self, body: RequestBody) {
        if let Payload::Upload(place) = &mut self.body {
            *place = Some(body);
        }
    }

    fn has_upload(&self) -> bool {
        matches!(self.body, Payload::Upload(_))
    }
}

impl Client {
    /// Sends a request and waits for the head of its answer.
    pub(crate) async fn exchange(
        &self,
        live: &Live,
        target: &Target,
        outgoing: Outgoing<'_>,
        deadline: Option<Instant>,
    ) -> Result<Response<Content>, Error> {
        let sent = AtomicBool::new(false);
        let working = self.authenticated(live, target, outgoing, &sent);
        match deadline {
            None => working.await,
            Some(deadline) => timeout_at(deadline, working).await.unwrap_or_else(|_| {
                let message = "it did not answer in time".to_owned();
                Err(Error::Unreachable { sent: sent.load(Ordering::Relaxed), message })
            }),
        }
    }

    /// Shows one credential after the other until the worker accepts one.
    async fn authenticated(
        &self,
        live: &Live,
        target: &Target,
        mut outgoing: Outgoing<'_>,
        sent: &AtomicBool,
    ) -> Result<Response<Content>, Error> {
        let worker = self.worker(target, live)?;
        let permit = worker.room(outgoing.lane, live.settings.times.room).await?;
        let mut kinds = kinds(&live.auth, &worker.id, target.capabilities);
        if outgoing.has_upload() && kinds.len() > 1 && known(&worker, live).is_none() {
            // An upload cannot be sent twice: a request that changes nothing finds the credential.
            self.probe(live, &worker, &kinds, &permit).await?;
        }
        {
            let mut memory = lock(&worker.memory);
            memory.enter(live.auth_generation);
            kinds = memory.order(kinds);
        }
        let mut refusal = no_credential(&worker.id);
        for kind in kinds {
            let token = lock(&worker.memory).token(&live.auth, &worker.id, kind)?;
            let response = self.once(live, &worker, &mut outgoing, token, &permit, sent).await?;
            if !is_refused(&response, outgoing.forwarded) {
                lock(&worker.memory).accept(live.auth_generation, kind);
                return Ok(response);
            }
            lock(&worker.memory).refuse(live.auth_generation, kind);
            sent.store(false, Ordering::Relaxed);
            refusal = self.refused(live, response).await;
            if outgoing.has_upload() {
                break;
            }
        }
        Err(refusal)
    }

    /// Finds the credential that the worker accepts.
    async fn probe(&self, live: &Live, worker: &Arc<Worker>, kinds: &[Kind], permit: &Permit) -> Result<(), Error> {
        let mut refusal = no_credential(&worker.id);
        for kind in kinds {
            let token = {
                let mut memory = lock(&worker.memory);
                memory.enter(live.auth_generation);
                memory.token(&live.auth, &worker.id, *kind)?
            };
            // Refused for its blank id, after the credential was checked.
            let mut outgoing = Outgoing::call("probe", Bytes::from_static(b"{}"), true);
            let response = self.once(live, worker, &mut outgoing, token, permit, &AtomicBool::new(false)).await?;
            let accepted = !is_refused(&response, false);
            refusal = self.refused(live, response).await;
            if accepted {
                lock(&worker.memory).accept(live.auth_generation, *kind);
                return Ok(());
            }
            lock(&worker.memory).refuse(live.auth_generation, *kind);
        }
        Err(refusal)
    }

    /// Reads why a credential was refused.
    async fn refused(&self, live: &Live, response: Response<Content>) -> Error {
        let (parts, mut content) = response.into_parts();
        let body = content.collect(REFUSAL_BYTES, &self.0.budget, live.settings.times.room).await;
        let body = body.map(|(bytes, _)| bytes).unwrap_or_default();
        answer::failure(parts.status, &body, None)
    }

    /// Sends a request with one credential.
    async fn once(
        &self,
        live: &Live,
        worker: &Arc<Worker>,
        outgoing: &mut Outgoing<'_>,
        token: HeaderValue,
        permit: &Permit,
        sent: &AtomicBool,
    ) -> Result<Response<Content>, Error> {
        let mut fresh = false;
        loop {
            let kept = if fresh { None } else { worker.take(live.tls_generation, live.settings.times.pooled).await };
            let mut connection = match kept {
                Some(connection) => connection,
                None => self.open(live, worker).await?,
            };
            let request = outgoing.request(worker, token.clone())?;
            sent.store(true, Ordering::Relaxed);
            let mut error = match connection.sender.try_send_request(request).await {
                Ok(response) => {
                    let held = Held { connection, worker: Arc::clone(worker), permit: Arc::clone(permit) };
                    return Ok(response.map(|incoming| Content::new(incoming, held, live.settings.times.stalled)));
                }
                Err(error) => error,
            };
            // A connection that waited may have been closed by the worker at this moment.
            if let Some(unsent) = error.take_message() {
                sent.store(false, Ordering::Relaxed);
                outgoing.put_back(unsent.into_body());
                if connection.reused {
                    continue;
                }
                return Err(Error::unsent(chain(&error.into_error())));
            }
            let error = error.into_error();
            if is_tls_alert(&error) {
                return Err(Error::unsent(format!("the worker refused the connection: {}", chain(&error))));
            }
            // An answer that cannot be read is an answer.
            if !(connection.reused && outgoing.repeatable) || error.is_parse() {
                return Err(Error::unknown(chain(&error)));
            }
            fresh = true;
        }
    }

    async fn open(&self, live: &Live, worker: &Worker) -> Result<Connection, Error> {
        let tls = self.tls(worker, live).await?;
        let (sender, driver) = dial(&worker.address, &worker.id, tls, live.settings.times.connect).await?;
        Ok(Connection::new(sender, driver, live.tls_generation))
    }
}

fn known(worker: &Worker, live: &Live) -> Option<Kind> {
    let mut memory = lock(&worker.memory);
    memory.enter(live.auth_generation);
    memory.accepted()
}

fn is_refused(response: &Response<Content>, forwarded: bool) -> bool {
    response.status() == StatusCode::UNAUTHORIZED && (!forwarded || answer::is_marked(response.headers()))
}

fn no_credential(worker_id: &str) -> Error {
    let message = format!(
        "there is no credential for worker {worker_id}: set auth.worker_signing_key, auth.worker_private_key_file, \
         auth.worker_tokens or auth.worker_token"
    );
    Error::Unauthorized { message }
}
