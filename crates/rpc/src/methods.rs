//! The methods of `POST /rpc`.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::StatusCode;
use serde::de::{DeserializeOwned, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use tenure_contract::duration;
use tenure_contract::worker_rpc::{
    ExecParams, ExecResult, FileChmodParams, FileDeleteParams, FileGlobParams, FileGlobResult, FileInfo,
    FileListResult, FileMoveParams, FilePathParams, FileStatResult, FileWriteParams, LeaseRule, LeaseToken, LogsParams,
    LogsResult, MAX_ANSWER_BYTES, MAX_BODY_BYTES, MAX_CONTENT_BYTES, MAX_OUTPUT_BYTES, MAX_SMALL_BODY_BYTES, Method,
    RenewLeaseParams, RenewLeaseResult, Request, SnapshotParams, SnapshotResult, SpawnParams, SpawnResult, StatsResult,
    StatusResult, TargetParams,
};
use tokio::time::Instant;

use crate::answer::{self, Expected};
use crate::client::Live;
use crate::exchange::Outgoing;
use crate::{Call, Client, Error, Target};

/// Larger answers and contents are decoded on a thread of their own.
const INLINE_BYTES: usize = 256 << 10;
/// An answer with little in it.
const SMALL_ANSWER_BYTES: usize = 4 << 20;
/// Both outputs of a command: escaped, a byte takes up to six, and bytes that are not text are there a second time.
pub(crate) const EXEC_ANSWER_BYTES: usize = 2 * (MAX_OUTPUT_BYTES * 6 + MAX_OUTPUT_BYTES / 3 * 4) + (1 << 20);

impl Client {
    /// `worker.spawn`. Needs the lease of the sandbox.
    pub async fn spawn(&self, target: &Target, call: Call<'_>, params: &SpawnParams) -> Result<SpawnResult, Error> {
        if !params.snapshot.is_empty() {
            // A worker that does not know the field would start an empty sandbox.
            supports(target, "snapshots")?;
        }
        let live = self.live();
        let wait = live.settings.times.spawn;
        let mut result: SpawnResult =
            self.invoke(&live, Method::Spawn, target, call, params, Some(wait), SMALL_ANSWER_BYTES).await?;
        if result.runtime_id.trim().is_empty() || result.sandbox_id != params.sandbox_id {
            return Err(Error::unknown("the result of worker.spawn names no runtime or another sandbox"));
        }
        if !params.provider.is_empty() {
            result.provider.clone_from(&params.provider);
        }
        Ok(result)
    }

    /// `worker.destroy`. Needs the lease of the sandbox; a runtime that does not exist counts as destroyed.
    pub async fn destroy(&self, target: &Target, call: Call<'_>, params: &TargetParams) -> Result<(), Error> {
        let live = self.live();
        let wait = live.settings.times.destroy;
        self.order(&live, Method::Destroy, target, call, Some(params), Some(wait)).await
    }

    /// `worker.status`.
    pub async fn status(&self, target: &Target, call: Call<'_>, params: &TargetParams) -> Result<StatusResult, Error> {
        let mut result: StatusResult = self.ask(Method::Status, target, call, params).await?;
        if !params.provider.is_empty() {
            result.provider.clone_from(&params.provider);
        }
        Ok(result)
    }

    /// `worker.exec`: a command to its end. Of each output the worker keeps the first 8 MiB.
    pub async fn exec(&self, target: &Target, call: Call<'_>, params: &ExecParams) -> Result<ExecResult, Error> {
        let live = self.live();
        let (params, wait) = bounded_exec(&live, params)?;
        self.invoke(&live, Method::Exec, target, call, &params, wait, EXEC_ANSWER_BYTES).await
    }

    /// `worker.file_write`: content up to 64 MiB. [`write_file`](Self::write_file) takes any size.
    pub async fn file_write(
        &self,
        target: &Target,
        call: Call<'_>,
        place: &FilePathParams,
        mode: &str,
        content: Bytes,
    ) -> Result<(), Error> {
        if content.len() > MAX_CONTENT_BYTES {
            return Err(Error::invalid(format!("the content is larger than {} MiB", MAX_CONTENT_BYTES >> 20)));
        }
        let live = self.live();
        let wait = live.settings.times.for_bytes(content.len());
        let FilePathParams { sandbox_id, provider, runtime_id, path } = place.clone();
        let size = content.len();
        // As content, encoded, and once more in the envelope.
        let reserved = match size > INLINE_BYTES {
            true => Some(self.reserve(&live, 4 * size).await?),
            false => None,
        };
        let encoded = off_thread(size, move || STANDARD.encode(&content)).await?;
        let params =
            FileWriteParams { sandbox_id, provider, runtime_id, path, content: encoded.into(), mode: mode.to_owned() };
        let written = self.order(&live, Method::FileWrite, target, call, Some(&params), Some(wait)).await;
        drop(reserved);
        written
    }

    /// `worker.file_read`: a file up to 64 MiB. [`read_file`](Self::read_file) takes any size.
    pub async fn file_read(&self, target: &Target, call: Call<'_>, params: &FilePathParams) -> Result<Bytes, Error> {
        let live = self.live();
        let wait = live.settings.times.for_bytes(MAX_CONTENT_BYTES);
        let result: FileContent =
            self.invoke(&live, Method::FileRead, target, call, params, Some(wait), MAX_BODY_BYTES).await?;
        if result.content.len() > MAX_CONTENT_BYTES {
            return Err(Error::unknown(format!("the file is larger than {} MiB", MAX_CONTENT_BYTES >> 20)));
        }
        Ok(result.content)
    }

    /// `worker.file_list`.
    pub async fn file_list(
        &self,
        target: &Target,
        call: Call<'_>,
        params: &FilePathParams,
    ) -> Result<Vec<FileInfo>, Error> {
        let result: FileListResult = self.ask(Method::FileList, target, call, params).await?;
        Ok(result.files)
    }

    /// `worker.file_delete`.
    pub async fn file_delete(&self, target: &Target, call: Call<'_>, params: &FileDeleteParams) -> Result<(), Error> {
        let live = self.live();
        let wait = live.settings.times.call;
        self.order(&live, Method::FileDelete, target, call, Some(params), Some(wait)).await
    }

    /// `worker.file_move`.
    pub async fn file_move(&self, target: &Target, call: Call<'_>, params: &FileMoveParams) -> Result<(), Error> {
        let live = self.live();
        let wait = live.settings.times.call;
        self.order(&live, Method::FileMove, target, call, Some(params), Some(wait)).await
    }

    /// `worker.file_chmod`.
    pub async fn file_chmod(&self, target: &Target, call: Call<'_>, params: &FileChmodParams) -> Result<(), Error> {
        let live = self.live();
        let wait = live.settings.times.call;
        self.order(&live, Method::FileChmod, target, call, Some(params), Some(wait)).await
    }

    /// `worker.file_stat`.
    pub async fn file_stat(&self, target: &Target, call: Call<'_>, params: &FilePathParams) -> Result<FileInfo, Error> {
        let result: FileStatResult = self.ask(Method::FileStat, target, call, params).await?;
        Ok(result.file)
    }

    /// `worker.file_glob`.
    pub async fn file_glob(
        &self,
        target: &Target,
        call: Call<'_>,
        params: &FileGlobParams,
    ) -> Result<Vec<String>, Error> {
        let result: FileGlobResult = self.ask(Method::FileGlob, target, call, params).await?;
        Ok(result.matches)
    }

    /// `worker.logs`.
    pub async fn logs(&self, target: &Target, call: Call<'_>, params: &LogsParams) -> Result<Vec<String>, Error> {
        let result: LogsResult = self.ask(Method::Logs, target, call, params).await?;
        Ok(result.lines)
    }

    /// `worker.renew_lease`. Only for workers with `lease_renewal`; needs the lease.
    pub async fn renew_lease(
        &self,
        target: &Target,
        call: Call<'_>,
        params: &RenewLeaseParams,
    ) -> Result<LeaseToken, Error> {
        supports(target, "lease_renewal")?;
        let live = self.live();
        let wait = live.settings.times.control;
        let result: RenewLeaseResult =
            self.invoke(&live, Method::RenewLease, target, call, params, Some(wait), SMALL_ANSWER_BYTES).await?;
        Ok(result.lease)
    }

    /// `worker.shutdown`: the worker begins to drain.
    pub async fn shutdown(&self, target: &Target, call: Call<'_>) -> Result<(), Error> {
        let live = self.live();
        let wait = live.settings.times.control;
        self.order::<()>(&live, Method::Shutdown, target, call, None, Some(wait)).await
    }

    /// `worker.undrain`: the worker ends draining. Needs the capability `undrain`.
    pub async fn undrain(&self, target: &Target, call: Call<'_>) -> Result<(), Error> {
        let live = self.live();
        let wait = live.settings.times.control;
        self.order::<()>(&live, Method::Undrain, target, call, None, Some(wait)).await
    }

    /// `worker.stats`. Needs the capability `stats`.
    pub async fn stats(&self, target: &Target, call: Call<'_>, params: &TargetParams) -> Result<StatsResult, Error> {
        self.ask(Method::Stats, target, call, params).await
    }

    /// `worker.snapshot`. Needs the capability `snapshots` and the lease of the sandbox.
    pub async fn snapshot(
        &self,
        target: &Target,
        call: Call<'_>,
        params: &SnapshotParams,
    ) -> Result<SnapshotResult, Error> {
        let live = self.live();
        let wait = live.settings.times.snapshot;
        self.invoke(&live, Method::Snapshot, target, call, params, Some(wait), SMALL_ANSWER_BYTES).await
    }

    /// `worker.restore`. Needs the capability `snapshots` and the lease of the sandbox.
    pub async fn restore(
        &self,
        target: &Target,
        call: Call<'_>,
        params: &SnapshotParams,
    ) -> Result<SnapshotResult, Error> {
        let live = self.live();
        let wait = live.settings.times.snapshot;
        self.invoke(&live, Method::Restore, target, call, params, Some(wait), SMALL_ANSWER_BYTES).await
    }

    /// A question with the limits that most have.
    async fn ask<R: DeserializeOwned + Send + 'static>(
        &self,
        method: Method,
        target: &Target,
        call: Call<'_>,
        params: &impl Serialize,
    ) -> Result<R, Error> {
        let live = self.live();
        let wait = live.settings.times.call;
        self.invoke(&live, method, target, call, params, Some(wait), MAX_ANSWER_BYTES).await
    }

    /// A call with a result.
    #[expect(clippy::too_many_arguments, reason = "a call has that many parts")]
    async fn invoke<R: DeserializeOwned + Send + 'static>(
        &self,
        live: &Live,
        method: Method,
        target: &Target,
        call: Call<'_>,
        params: &impl Serialize,
        wait: Option<Duration>,
        limit: usize,
    ) -> Result<R, Error> {
        let result = self.post(live, method, target, call, Some(params), wait, limit).await?;
        result.ok_or_else(|| Error::unknown(format!("the answer to {} has no result", method.as_str())))
    }

    /// A call without a result.
    async fn order<P: Serialize>(
        &self,
        live: &Live,
        method: Method,
        target: &Target,
        call: Call<'_>,
        params: Option<&P>,
        wait: Option<Duration>,
    ) -> Result<(), Error> {
        let ignored: Result<Option<serde::de::IgnoredAny>, Error> =
            self.post(live, method, target, call, params, wait, SMALL_ANSWER_BYTES).await;
        ignored.map(drop)
    }

    #[expect(clippy::too_many_arguments, reason = "a call has that many parts")]
    async fn post<R: DeserializeOwned + Send + 'static>(
        &self,
        live: &Live,
        method: Method,
        target: &Target,
        call: Call<'_>,
        params: Option<&impl Serialize>,
        wait: Option<Duration>,
        limit: usize,
    ) -> Result<Option<R>, Error> {
        let started = Instant::now();
        let deadline = wait.and_then(|wait| started.checked_add(wait));
        let answered = async {
            let body = encode(method, target, call, params)?;
            let outgoing = Outgoing::call(call.request_id, body, is_repeatable(method));
            let response = self.exchange(live, target, outgoing, deadline).await?;
            self.whole_answer(live, target, call, response, deadline, limit).await
        };
        let result = answered.await;
        observe(method.as_str(), target, call, started, result.as_ref().err());
        result
    }

    /// Reads an answer to its end, and its result.
    pub(crate) async fn whole_answer<R: DeserializeOwned + Send + 'static>(
        &self,
        live: &Live,
        target: &Target,
        call: Call<'_>,
        response: hyper::Response<crate::Content>,
        deadline: Option<Instant>,
        limit: usize,
    ) -> Result<Option<R>, Error> {
        let (parts, mut content) = response.into_parts();
        let reading = content.collect(limit, &self.0.budget, live.settings.times.room);
        let (body, reserved) = match deadline {
            None => reading.await?,
            Some(deadline) => tokio::time::timeout_at(deadline, reading)
                .await
                .map_err(|_| Error::unknown("its answer did not end in time"))??,
        };
        let (request_id, worker_id) = (call.request_id.to_owned(), target.worker_id.clone());
        let status: StatusCode = parts.status;
        let result = off_thread(body.len(), move || {
            answer::result(status, &body, Expected { request_id: &request_id, worker_id: &worker_id })
        });
        let result = result.await?;
        drop(reserved);
        result
    }

    /// Memory for something large.
    pub(crate) async fn reserve(&self, live: &Live, bytes: usize) -> Result<crate::budget::Reserved, Error> {
        let reserved = self.0.budget.reserve(bytes, live.settings.times.room).await;
        reserved.ok_or_else(|| Error::unsent("too many large transfers at once: no memory for this one"))
    }
}

/// The body of a call, if it may be sent to this worker.
pub(crate) fn encode(
    method: Method,
    target: &Target,
    call: Call<'_>,
    params: Option<&impl Serialize>,
) -> Result<Bytes, Error> {
    if let Some(capability) = method.capability() {
        supports(target, capability)?;
    }
    let lease = match (method.lease(), call.lease) {
        (LeaseRule::Unused, _) => None,
        (LeaseRule::Required, None) => {
            return Err(Error::invalid(format!("lease is missing: {} needs one", method.as_str())));
        }
        (LeaseRule::Required | LeaseRule::Optional, lease) => lease.cloned(),
    };
    let (id, worker_id) = (call.request_id.to_owned(), target.worker_id.clone());
    let request = Request { id, method: method.as_str().to_owned(), worker_id, lease, params };
    let body = serde_json::to_vec(&request).map_err(|error| Error::invalid(format!("not JSON: {error}")))?;
    let limit = if method == Method::FileWrite { MAX_BODY_BYTES } else { MAX_SMALL_BODY_BYTES };
    if body.len() > limit {
        return Err(Error::invalid(format!("{} is larger than {} MiB", method.as_str(), limit >> 20)));
    }
    Ok(body.into())
}

pub(crate) fn supports(target: &Target, capability: &'static str) -> Result<(), Error> {
    if target.capabilities.has(capability) { Ok(()) } else { Err(Error::Unsupported { capability }) }
}

/// Whether a call may be sent a second time without asking the caller, when the connection that was kept for it turned
/// out to be closed. Not a command: the answer to a first one is lost when the worker starts again in between.
fn is_repeatable(method: Method) -> bool {
    use Method::{Destroy, FileChmod, FileWrite, Shutdown, Spawn, Undrain};
    method.is_read_only() || matches!(method, Spawn | Destroy | FileWrite | FileChmod | Shutdown | Undrain)
}

/// A command with the timeout that applies to it, so that the worker ends it when nobody waits any more, and how long to
/// wait for it; none if it may run for ever.
pub(crate) fn bounded_exec<'a>(
    live: &Live,
    params: &'a ExecParams,
) -> Result<(Cow<'a, ExecParams>, Option<Duration>), Error> {
    let asked = match params.timeout.trim() {
        "" => None,
        text => {
            Some(duration::parse(text).ok_or_else(|| Error::invalid("timeout is not a duration: write 30s or 5m"))?)
        }
    };
    let Some(timeout) = live.settings.exec_timeout(asked) else { return Ok((Cow::Borrowed(params), None)) };
    let params = match asked == Some(timeout) {
        true => Cow::Borrowed(params),
        false => Cow::Owned(ExecParams { timeout: duration::canonical(timeout), ..params.clone() }),
    };
    Ok((params, Some(timeout.saturating_add(live.settings.times.exec_margin))))
}

/// `FileReadResult`, decoded while it is read: a large file is in memory twice, not three times.
#[derive(Debug, Deserialize)]
struct FileContent {
    #[serde(deserialize_with = "decoded")]
    content: Bytes,
}

fn decoded<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
    struct Base64;
    impl Visitor<'_> for Base64 {
        type Value = Bytes;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("padded base64")
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Bytes, E> {
            STANDARD.decode(text).map(Bytes::from).map_err(|_| E::custom("the content is not padded base64"))
        }
    }
    deserializer.deserialize_str(Base64)
}

/// Runs something that takes long for many bytes where it holds up nobody.
async fn off_thread<T: Send + 'static>(bytes: usize, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Error> {
    if bytes <= INLINE_BYTES {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work).await.map_err(|_| Error::unknown("the answer could not be decoded"))
}

/// Counts a call and notes it in the log.
pub(crate) fn observe(method: &'static str, target: &Target, call: Call<'_>, started: Instant, error: Option<&Error>) {
    let outcome = error.map_or("ok", outcome);
    let elapsed = started.elapsed();
    let worker = target.worker_id.clone();
    metrics::counter!("tenure_rpc_requests_total", "side" => "control_plane", "worker" => worker.clone(), "method" => method, "code" => outcome)
        .increment(1);
    metrics::histogram!("tenure_rpc_duration_seconds", "side" => "control_plane", "worker" => worker, "method" => method)
        .record(elapsed);
    let why = error.map(ToString::to_string).unwrap_or_default();
    tracing::debug!(
        request.id = call.request_id,
        worker.id = target.worker_id,
        rpc.method = method,
        outcome,
        elapsed_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
        error = why,
        "called a worker"
    );
}

fn outcome(error: &Error) -> &'static str {
    match error {
        Error::Failed { code, .. } => code.as_str(),
        Error::Unauthorized { .. } => "unauthorized",
        Error::Unreachable { .. } => "unreachable",
        Error::Unsupported { .. } => "unsupported",
        Error::Content { .. } => "content",
    }
}
