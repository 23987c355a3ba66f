//! The endpoint: a request in, an answer out.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::{
    ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderName, IF_MATCH, IF_MODIFIED_SINCE,
    IF_NONE_MATCH, LAST_MODIFIED, RANGE, RETRY_AFTER,
};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use tenure_core::objects::ObjectAccess;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::body::{Body, stream, whole};
use crate::checksum::Checksums;
use crate::chunked::Chunks;
use crate::error::{Result, S3Error};
use crate::folder::{Folder, Meta, Temporary};
use crate::keys::{Grant, Keys, random_u128};
use crate::operation::{self, Operation};
use crate::query::{Query, decode};
use crate::sign::{ChunkSigner, Payload, Signature};
use crate::upload::{self, Upload};
use crate::write::{self, Writer, blocking};
use crate::{limits, read, xml};

pub use crate::sign::is_signed;

/// The region that clients are told. Any other is accepted in signatures.
pub const REGION: &str = "us-east-1";

/// Serves a folder as a bucket. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Service {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    folder: Arc<Folder>,
    keys: Arc<Keys>,
    bucket: String,
    slots: Arc<Semaphore>,
    /// Requests of each organisation.
    orgs: Arc<Mutex<HashMap<String, usize>>>,
    memory: Option<Memory>,
}

/// Hands out memory to organisations, as long as what it returns is kept. `None`: there is no more at the moment.
type Take = dyn Fn(&str, usize) -> Option<Box<dyn Send + Sync>> + Send + Sync;

#[derive(Clone)]
struct Memory(Arc<Take>);

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory").finish_non_exhaustive()
    }
}

/// A request that is being served.
struct Slot {
    org: String,
    orgs: Arc<Mutex<HashMap<String, usize>>>,
    _permit: OwnedSemaphorePermit,
    _memory: Option<Box<dyn Send + Sync>>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut orgs = self.orgs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = orgs.get_mut(&self.org) {
            *count -= 1;
            if *count == 0 {
                orgs.remove(&self.org);
            }
        }
    }
}

/// A request whose signature is valid.
struct Admitted {
    parts: Parts,
    grant: Grant,
    payload: Payload,
    signer: ChunkSigner,
    slot: Slot,
}

impl Service {
    /// Serves `folder` under the name `bucket`.
    pub fn new(folder: &Path, bucket: &str, keys: Arc<Keys>) -> io::Result<Self> {
        let inner = Inner {
            folder: Arc::new(Folder::open(folder)?),
            keys,
            bucket: bucket.to_owned(),
            slots: Arc::new(Semaphore::new(limits::REQUESTS)),
            orgs: Arc::default(),
            memory: None,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The same with memory that others use too: what is on its way through a request is counted there.
    pub fn with_memory(
        &self,
        take: impl Fn(&str, usize) -> Option<Box<dyn Send + Sync>> + Send + Sync + 'static,
    ) -> Self {
        let Inner { folder, keys, bucket, slots, orgs, memory: _ } = &*self.inner;
        let inner = Inner {
            folder: Arc::clone(folder),
            keys: Arc::clone(keys),
            bucket: bucket.clone(),
            slots: Arc::clone(slots),
            orgs: Arc::clone(orgs),
            memory: Some(Memory(Arc::new(take))),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Whether a path is that of the bucket, or of something in it.
    pub fn owns(&self, path: &str) -> bool {
        let rest = path.strip_prefix('/').and_then(|path| path.strip_prefix(self.inner.bucket.as_str()));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Answers a request.
    pub async fn handle<B>(&self, request: Request<B>) -> Response<Body>
    where
        B: hyper::body::Body<Data = Bytes> + Send + Unpin,
    {
        let id = random_u128().map(|id| format!("{id:032X}")).unwrap_or_default();
        let (parts, body) = request.into_parts();
        let (is_head, path) = (parts.method == Method::HEAD, parts.uri.path().to_owned());
        let mut name = "unknown";
        let answer = self.inner.answer(parts, body, &mut name).await;
        let mut response = answer.unwrap_or_else(|error| refuse(&error, is_head, &path, &id));
        metrics::counter!("tenure_s3_requests_total", "operation" => name, "status" => response.status().as_str().to_owned())
            .increment(1);
        response.headers_mut().insert("x-amz-request-id", value(&id));
        response
    }

    /// Removes what crashes and forgotten uploads have left behind.
    pub async fn sweep(&self) {
        let folder = Arc::clone(&self.inner.folder);
        let now = SystemTime::now();
        let swept = blocking(move || {
            let files = folder.sweep(now - limits::LEFTOVER)?;
            Ok(files + upload::sweep(&folder, now - limits::UPLOAD_IDLE)?)
        });
        match swept.await {
            Ok(0) => {}
            Ok(removed) => tracing::info!(removed, "removed unfinished uploads of the S3 endpoint"),
            Err(error) => tracing::warn!(error = error.code, "cannot remove unfinished uploads of the S3 endpoint"),
        }
    }
}

impl Inner {
    async fn answer<B>(&self, parts: Parts, body: B, name: &mut &'static str) -> Result<Response<Body>>
    where
        B: hyper::body::Body<Data = Bytes> + Send + Unpin,
    {
        let query = Query::parse(parts.uri.query())?;
        let now_s = seconds(SystemTime::now());
        let signature = Signature::read(&parts, &query, now_s)?;
        let (grant, secret) = self.keys.open(&signature.access_key_id, &signature.token, now_s)?;
        let signer = signature.verify(&parts, &query, &secret)?;
        let path = decode(parts.uri.path())?;
        let path = path.strip_prefix('/').unwrap_or(&path);
        let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
        if bucket != self.bucket {
            return Err(S3Error::outside_scope());
        }
        let operation = Operation::of(&parts.method, bucket, key, &query, &parts.headers)?;
        *name = operation.name();
        authorize(&operation, &grant, bucket)?;
        let slot = self.slot(&grant.holder.org, operation.memory_bytes())?;
        let admitted = Admitted { parts, grant, payload: signature.payload, signer, slot };
        self.perform(operation, admitted, body).await
    }

    /// Room for one more request.
    fn slot(&self, org: &str, bytes: usize) -> Result<Slot> {
        let full = || S3Error::slow_down("Too many requests at a time: try again.");
        let permit = Arc::clone(&self.slots).try_acquire_owned().map_err(|_| full())?;
        let memory = match &self.memory {
            Some(Memory(take)) if bytes > 0 => Some(take(org, bytes).ok_or_else(full)?),
            _ => None,
        };
        let mut orgs = self.orgs.lock().unwrap_or_else(PoisonError::into_inner);
        let count = orgs.entry(org.to_owned()).or_default();
        if *count >= limits::REQUESTS_OF_ORG {
            return Err(full());
        }
        *count += 1;
        Ok(Slot { org: org.to_owned(), orgs: Arc::clone(&self.orgs), _permit: permit, _memory: memory })
    }

    async fn perform<B>(&self, operation: Operation, admitted: Admitted, body: B) -> Result<Response<Body>>
    where
        B: hyper::body::Body<Data = Bytes> + Send + Unpin,
    {
        let folder = Arc::clone(&self.folder);
        let bucket = self.bucket.clone();
        let holder = admitted.grant.holder.clone();
        match operation {
            Operation::HeadBucket => Ok(empty(StatusCode::OK, &[("x-amz-bucket-region", REGION)])),
            Operation::Location => Ok(document(xml::location())),
            Operation::List { wanted, mut echo } => {
                if wanted.limit == 0 {
                    return Ok(document(xml::list(&echo, &Default::default())));
                }
                let listing = blocking(move || folder.list(&wanted)).await?;
                let last = listing.entries.last().filter(|_| listing.is_truncated);
                echo.next_token = last.map(|entry| operation::token(entry.name()));
                Ok(document(xml::list(&echo, &listing)))
            }
            Operation::DeleteMany => self.delete_many(admitted, body).await,
            Operation::Get { key, is_head } => {
                let (file, meta) = blocking(move || folder.read(&key)).await?;
                get(admitted, file, &meta, is_head)
            }
            Operation::Put { key } => {
                let only_new = only_new(&admitted.parts.headers)?;
                let temporary = self.receive(admitted, body).await?;
                let meta = blocking(move || folder.place(temporary, &key, only_new)).await?;
                Ok(empty(StatusCode::OK, &[(ETAG.as_str(), &meta.etag)]))
            }
            Operation::MarkDirectory { path } => {
                if body_length(&admitted)? > 0 {
                    return Err(S3Error::invalid_request("An object whose key ends with a slash must be empty."));
                }
                drop(self.receive(admitted, body).await?);
                blocking(move || folder.mark_directory(&path)).await?;
                Ok(empty(StatusCode::OK, &[(ETAG.as_str(), "\"directory\"")]))
            }
            Operation::UnmarkDirectory { path } => {
                blocking(move || folder.unmark_directory(&path)).await?;
                Ok(empty(StatusCode::NO_CONTENT, &[]))
            }
            Operation::Delete { key } => {
                blocking(move || folder.remove(&key)).await?;
                Ok(empty(StatusCode::NO_CONTENT, &[]))
            }
            Operation::BeginUpload { key } => {
                let named = key.clone();
                let upload = blocking(move || Upload::begin(&folder, &holder, &key)).await?;
                Ok(document(xml::upload_begun(&bucket, &named, upload.id())))
            }
            Operation::AddPart { key, id, number } => {
                let upload = Upload::named(&holder, &key, &id)?;
                let (open, of) = (upload.clone(), Arc::clone(&folder));
                blocking(move || open.check_open(&of)).await?;
                let part = self.receive(admitted, body).await?;
                let meta = blocking(move || upload.add(&folder, number, part)).await?;
                Ok(empty(StatusCode::OK, &[(ETAG.as_str(), &meta.etag)]))
            }
            Operation::CompleteUpload { key, id } => {
                let only_new = only_new(&admitted.parts.headers)?;
                let parts = xml::read_parts(&self.small(admitted, body).await?)?;
                let upload = Upload::named(&holder, &key, &id)?;
                let etag = blocking(move || upload.complete(&folder, &parts, only_new)).await?;
                Ok(document(xml::upload_completed(&bucket, &key, &etag)))
            }
            Operation::AbortUpload { key, id } => {
                let upload = Upload::named(&holder, &key, &id)?;
                blocking(move || upload.abort(&folder)).await?;
                Ok(empty(StatusCode::NO_CONTENT, &[]))
            }
            Operation::ListParts { key, id, after, limit } => {
                let upload = Upload::named(&holder, &key, &id)?;
                let (parts, is_truncated) = blocking(move || upload.parts(&folder, after, limit)).await?;
                Ok(document(xml::parts(&bucket, &key, &id, &parts, is_truncated)))
            }
        }
    }

    /// Writes the body of a request to a file.
    async fn receive<B>(&self, admitted: Admitted, body: B) -> Result<Temporary>
    where
        B: hyper::body::Body<Data = Bytes> + Send + Unpin,
    {
        let length = body_length(&admitted)?;
        if length > limits::PIECE_BYTES {
            return Err(S3Error::entity_too_large("An object has at most 5 GiB in one piece: upload it in parts."));
        }
        let Admitted { parts, payload, signer, slot, .. } = admitted;
        let checksums = Checksums::of(&parts.headers, payload)?;
        let chunks = match payload {
            Payload::Chunked { signed, trailer } => Some(Chunks::new(length, signed.then_some(signer), trailer)),
            _ => None,
        };
        let folder = Arc::clone(&self.folder);
        let temporary = blocking(move || folder.temporary()).await?;
        let writer = Writer { temporary, chunks, checksums, length, written: 0 };
        let received = write::receive(body, writer).await;
        drop(slot);
        received
    }

    /// A small body, whole and checked.
    async fn small<B>(&self, admitted: Admitted, body: B) -> Result<Vec<u8>>
    where
        B: hyper::body::Body<Data = Bytes> + Send + Unpin,
    {
        let length = body_length(&admitted)?;
        if length > limits::XML_BYTES as u64 {
            return Err(S3Error::entity_too_large("The body is too large."));
        }
        let Admitted { parts, payload, signer, .. } = admitted;
        let mut checksums = Checksums::of(&parts.headers, payload)?;
        let sent = write::collect(body, 2 * limits::XML_BYTES).await?;
        let (mut bytes, mut trailers) = (Vec::new(), Vec::new());
        if let Payload::Chunked { signed, trailer } = payload {
            let mut chunks = Chunks::new(length, signed.then_some(signer), trailer);
            chunks.push(&sent, &mut |data| {
                bytes.extend_from_slice(data);
                Ok(())
            })?;
            trailers = chunks.finish()?;
        } else {
            bytes = sent;
        }
        checksums.update(&bytes);
        checksums.check(&trailers)?;
        Ok(bytes)
    }

    async fn delete_many<B>(&self, admitted: Admitted, body: B) -> Result<Response<Body>>
    where
        B: hyper::body::Body<Data = Bytes> + Send + Unpin,
    {
        let (scope, folder, bucket) = (admitted.grant.scope.clone(), Arc::clone(&self.folder), self.bucket.clone());
        let (keys, is_quiet) = xml::read_deletes(&self.small(admitted, body).await?)?;
        let deleted = blocking(move || {
            let remove = |key: &str| {
                if !scope.allows(ObjectAccess::Delete, &bucket, key) {
                    return Err(S3Error::outside_scope());
                }
                match Operation::of(&Method::DELETE, &bucket, key, &Query::default(), &HeaderMap::new())? {
                    Operation::UnmarkDirectory { path } => folder.unmark_directory(&path),
                    _ => folder.remove(key),
                }
            };
            Ok(keys.into_iter().map(|key| (remove(&key), key)).map(|(outcome, key)| (key, outcome)).collect::<Vec<_>>())
        });
        Ok(document(xml::deleted(&deleted.await?, is_quiet)))
    }
}

/// Whether the scope of the keys allows it. Several keys are judged one by one.
fn authorize(operation: &Operation, grant: &Grant, bucket: &str) -> Result<()> {
    let scope = &grant.scope;
    let allows = |access, key: &str| scope.allows(access, bucket, key);
    let allowed = match operation {
        Operation::HeadBucket | Operation::Location | Operation::DeleteMany => true,
        Operation::List { wanted, .. } => scope.allows_list(bucket, &wanted.prefix),
        Operation::Get { key, .. } => allows(ObjectAccess::Get, key),
        Operation::Put { key }
        | Operation::BeginUpload { key }
        | Operation::AddPart { key, .. }
        | Operation::CompleteUpload { key, .. }
        | Operation::AbortUpload { key, .. }
        | Operation::ListParts { key, .. } => allows(ObjectAccess::Put, key),
        Operation::MarkDirectory { path } => allows(ObjectAccess::Put, &format!("{path}/")),
        Operation::UnmarkDirectory { path } => allows(ObjectAccess::Delete, &format!("{path}/")),
        Operation::Delete { key } => allows(ObjectAccess::Delete, key),
    };
    if allowed { Ok(()) } else { Err(S3Error::outside_scope()) }
}

/// What the body has, without what separates its chunks.
fn body_length(admitted: &Admitted) -> Result<u64> {
    let name = match admitted.payload {
        Payload::Chunked { .. } => HeaderName::from_static("x-amz-decoded-content-length"),
        _ => CONTENT_LENGTH,
    };
    let headers = &admitted.parts.headers;
    let length = headers.get(&name).and_then(|length| length.to_str().ok()?.parse().ok());
    // A request without a body needs to say nothing.
    let has_none = !headers.contains_key(&name) && !headers.contains_key("transfer-encoding");
    length
        .or(has_none.then_some(0))
        .ok_or_else(|| S3Error::missing_length(format!("{name} is missing or not a number.")))
}

/// Whether an object may be written only if there is none.
fn only_new(headers: &HeaderMap) -> Result<bool> {
    match headers.get(IF_NONE_MATCH).map(HeaderValue::as_bytes) {
        None if headers.contains_key(IF_MATCH) => Err(S3Error::not_implemented("If-Match is not offered for writes.")),
        None => Ok(false),
        Some(b"*") => Ok(true),
        Some(_) => Err(S3Error::not_implemented("If-None-Match must be *.")),
    }
}

fn get(admitted: Admitted, file: std::fs::File, meta: &Meta, is_head: bool) -> Result<Response<Body>> {
    let headers = &admitted.parts.headers;
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let matches = |tags: &str| tags.split(',').map(str::trim).any(|tag| tag == "*" || tag == meta.etag);
    if text(IF_MATCH).is_some_and(|tags| !matches(tags)) {
        return Err(S3Error::precondition_failed("The object has another ETag."));
    }
    let is_unchanged = match (text(IF_NONE_MATCH), text(IF_MODIFIED_SINCE)) {
        (Some(tags), _) => matches(tags),
        (None, Some(since)) => httpdate::parse_http_date(since).is_ok_and(|since| meta.modified() <= since),
        (None, None) => false,
    };
    let modified = httpdate::fmt_http_date(meta.modified());
    if is_unchanged {
        let about = [(ETAG.as_str(), meta.etag.as_str()), (LAST_MODIFIED.as_str(), &modified)];
        return Ok(empty(StatusCode::NOT_MODIFIED, &about));
    }
    let range = text(RANGE).and_then(read::wanted).map(|wanted| wanted.of(meta.bytes)).transpose()?;
    let status = if range.is_some() { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
    let shown = range.as_ref().map(|range| format!("bytes {}-{}/{}", range.start, range.end - 1, meta.bytes));
    let range = range.unwrap_or(0..meta.bytes);
    let length = range.end - range.start;
    let body = if is_head || range.is_empty() {
        whole(Bytes::new())
    } else {
        stream(read::pieces(file, range, admitted.slot))
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(ETAG, value(&meta.etag));
    headers.insert(LAST_MODIFIED, value(&modified));
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("binary/octet-stream"));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    if let Some(shown) = shown {
        headers.insert(CONTENT_RANGE, value(&shown));
    }
    Ok(response)
}

fn refuse(error: &S3Error, is_head: bool, path: &str, id: &str) -> Response<Body> {
    let resource: String = path.chars().take(2_048).collect();
    let mut response =
        if is_head { Response::new(whole(Bytes::new())) } else { document(xml::error(error, &resource, id)) };
    *response.status_mut() = error.status;
    if error.status == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

fn document(text: String) -> Response<Body> {
    let mut response = Response::new(whole(text));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    response
}

fn empty(status: StatusCode, headers: &[(&str, &str)]) -> Response<Body> {
    let mut response = Response::new(whole(Bytes::new()));
    *response.status_mut() = status;
    for (name, text) in headers {
        if let Ok(name) = HeaderName::from_bytes(name.as_bytes()) {
            response.headers_mut().insert(name, value(text));
        }
    }
    response
}

/// A header of texts that were made here.
fn value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(""))
}

fn seconds(at: SystemTime) -> i64 {
    at.duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}
