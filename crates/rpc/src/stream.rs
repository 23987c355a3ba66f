//! `worker.exec_stream`: the output of a command as it is written.

use std::collections::VecDeque;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf, Bytes, BytesMut};
use futures_util::Stream;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use tenure_contract::worker_rpc::{
    Chunk, Code, ExecParams, ExecStreamResult, Method, NDJSON, STREAM_HEADER, StreamLine,
};
use tokio::time::{Instant, timeout_at};

use crate::client::Live;
use crate::error::shown;
use crate::exchange::Outgoing;
use crate::methods::{EXEC_ANSWER_BYTES, bounded_exec, encode, observe};
use crate::pool::Lane;
use crate::{Call, Client, Content, Error, Target};

/// Workers send up to half of it; readers of the contract stop here.
const MAX_LINE_BYTES: usize = 1 << 20;
/// How long the end of the body may follow the last line, so that the connection can be used again.
const TAIL: Duration = Duration::from_millis(20);

/// Something that happened to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecEvent {
    /// It wrote something: the exact bytes.
    Output { stream: OutputStream, bytes: Bytes },
    /// It ended. The last event of a stream. The exit code is unknown if the worker speaks only the contract; it is not
    /// 0 then.
    End { exit_code: Option<i32>, duration_ms: Option<u64> },
}

/// Where a command wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OutputStream {
    Stdout,
    Stderr,
}

impl OutputStream {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }

    pub(crate) fn parse(word: &str) -> Self {
        if word == "stderr" { Self::Stderr } else { Self::Stdout }
    }
}

/// A running command. Nothing is read ahead of its reader, so that a slow one slows the command down. Dropping it before
/// its end closes the connection, and the worker kills the command.
#[derive(Debug)]
pub struct ExecStream {
    source: Source,
    ended: bool,
}

#[derive(Debug)]
enum Source {
    Lines(Box<Lines>),
    /// All at once, from a worker that does not stream.
    Buffered(VecDeque<ExecEvent>),
}

impl ExecStream {
    /// The next event; none after [`ExecEvent::End`] or an error. May be canceled.
    pub async fn next(&mut self) -> Option<Result<ExecEvent, Error>> {
        if self.ended {
            return None;
        }
        let event = match &mut self.source {
            Source::Lines(lines) => lines.next().await,
            Source::Buffered(events) => Ok(events.pop_front()?),
        };
        self.ended = !matches!(event, Ok(ExecEvent::Output { .. }));
        Some(event)
    }

    /// The same as a stream.
    pub fn into_stream(self) -> impl Stream<Item = Result<ExecEvent, Error>> + Send {
        futures_util::stream::unfold(self, |mut stream| async move { Some((stream.next().await?, stream)) })
    }
}

impl Client {
    /// Starts a command and returns its output as it is written.
    pub async fn exec_stream(&self, target: &Target, call: Call<'_>, params: &ExecParams) -> Result<ExecStream, Error> {
        let started = Instant::now();
        let stream = self.start_stream(target, call, params, started).await;
        observe(Method::ExecStream.as_str(), target, call, started, stream.as_ref().err());
        stream
    }

    async fn start_stream(
        &self,
        target: &Target,
        call: Call<'_>,
        params: &ExecParams,
        started: Instant,
    ) -> Result<ExecStream, Error> {
        let live = self.live();
        let (params, wait) = bounded_exec(&live, params)?;
        let terminal = target.capabilities.has("stream_terminal");
        // A worker without terminal lines sends no keep-alives either, and perhaps not even a head before the first
        // output: the command's own time is the limit.
        let idle = match (terminal, wait) {
            (true, _) => Some(live.settings.times.stream_idle),
            (false, wait) => wait.map(|wait| wait.max(live.settings.times.stream_idle)),
        };
        let body = encode(Method::ExecStream, target, call, Some(&*params))?;
        let mut outgoing = Outgoing::call(call.request_id, body, false);
        outgoing.lane = Lane::Session;
        outgoing.headers.insert(ACCEPT, HeaderValue::from_static(NDJSON));
        outgoing.headers.insert(STREAM_HEADER, HeaderValue::from_static("ndjson"));
        let deadline = idle.and_then(|idle| started.checked_add(idle));
        let response = self.exchange(&live, target, outgoing, deadline).await?;
        if response.status() != StatusCode::OK || !is_ndjson(&response) {
            let deadline = wait.and_then(|wait| started.checked_add(wait));
            return self.buffered(&live, target, call, response, deadline).await;
        }
        let lines = Lines {
            content: response.into_body().unhurried(),
            buffer: BytesMut::new(),
            scanned: 0,
            waiting_since: None,
            idle,
            times_out_at: wait
                .and_then(|wait| started.checked_add(wait.saturating_sub(live.settings.times.exec_margin))),
            terminal,
            request_id: call.request_id.to_owned(),
            worker_id: target.worker_id.clone(),
        };
        Ok(ExecStream { source: Source::Lines(Box::new(lines)), ended: false })
    }

    /// An answer that came as a whole.
    async fn buffered(
        &self,
        live: &Live,
        target: &Target,
        call: Call<'_>,
        response: Response<Content>,
        deadline: Option<Instant>,
    ) -> Result<ExecStream, Error> {
        let result = self.whole_answer(live, target, call, response, deadline, EXEC_ANSWER_BYTES).await?;
        let result: ExecStreamResult = result.ok_or_else(|| Error::unknown("the answer has no result"))?;
        let mut events = result.chunks.into_iter().map(output).collect::<Result<VecDeque<_>, _>>()?;
        events.push_back(ExecEvent::End { exit_code: result.exit_code, duration_ms: result.duration_ms });
        Ok(ExecStream { source: Source::Buffered(events), ended: false })
    }
}

fn is_ndjson(response: &Response<Content>) -> bool {
    let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(NDJSON)
}

/// The lines of a stream.
#[derive(Debug)]
struct Lines {
    content: Content,
    /// What has been read and not returned yet; at most a line and a piece.
    buffer: BytesMut,
    /// How much of it has no end of a line.
    scanned: usize,
    /// Since when the next line is awaited.
    waiting_since: Option<Instant>,
    idle: Option<Duration>,
    /// When the command has had its time.
    times_out_at: Option<Instant>,
    terminal: bool,
    request_id: String,
    worker_id: String,
}

impl Lines {
    async fn next(&mut self) -> Result<ExecEvent, Error> {
        loop {
            let Some(line) = self.line().await? else { return self.end_of_body() };
            if line.trim_ascii().is_empty() {
                continue;
            }
            let line: StreamLine = serde_json::from_slice(&line)
                .map_err(|error| Error::unknown(format!("a line of the stream is not of the contract: {error}")))?;
            if line.id != self.request_id || line.worker_id != self.worker_id {
                return Err(Error::unknown("a line of the stream is for another request or from another worker"));
            }
            if let Some(error) = line.error.as_deref().filter(|error| !error.is_empty()) {
                // A worker of the contract alone cannot say that it was the timeout.
                let timed_out = self.times_out_at.is_some_and(|at| at <= Instant::now());
                let code = match line.code.as_deref() {
                    None if timed_out => Code::Timeout,
                    code => Code::of(code, StatusCode::OK.as_u16()),
                };
                return Err(Error::Failed { code, message: shown(error) });
            }
            if line.done {
                // With the end of the body the connection serves the next call.
                drop(tokio::time::timeout(TAIL, self.content.next()).await);
                return Ok(ExecEvent::End { exit_code: line.exit_code, duration_ms: line.duration_ms });
            }
            if let Some(chunk) = line.result {
                return output(chunk);
            }
        }
    }

    fn end_of_body(&self) -> Result<ExecEvent, Error> {
        if self.terminal {
            metrics::counter!("tenure_stream_truncated_total").increment(1);
            return Err(Error::unknown("the stream ended without its last line"));
        }
        Ok(ExecEvent::End { exit_code: None, duration_ms: None })
    }

    /// The next line without its end; none at the end of the body.
    async fn line(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            if let Some(at) = self.buffer[self.scanned..].iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(self.scanned + at).freeze();
                self.buffer.advance(1);
                self.scanned = 0;
                self.waiting_since = None;
                return Ok(Some(line));
            }
            self.scanned = self.buffer.len();
            if self.buffer.len() > MAX_LINE_BYTES {
                return Err(Error::unknown(format!("a line of the stream is longer than {MAX_LINE_BYTES} bytes")));
            }
            match self.piece().await? {
                Some(piece) => self.buffer.extend_from_slice(&piece),
                None if self.buffer.is_empty() => return Ok(None),
                // The end of the body also ends a line.
                None => {
                    self.scanned = 0;
                    return Ok(Some(self.buffer.split().freeze()));
                }
            }
        }
    }

    /// Only lines count as signs of life, not single bytes.
    async fn piece(&mut self) -> Result<Option<Bytes>, Error> {
        let since = *self.waiting_since.get_or_insert_with(Instant::now);
        let Some(idle) = self.idle else { return self.content.next().await.transpose() };
        match timeout_at(since + idle, self.content.next()).await {
            Ok(piece) => piece.transpose(),
            Err(_) => Err(Error::unknown(format!("the stream was silent for {} s", idle.as_secs_f32()))),
        }
    }
}

/// The exact bytes of a chunk.
pub(crate) fn output(chunk: Chunk) -> Result<ExecEvent, Error> {
    let stream = OutputStream::parse(&chunk.stream);
    let bytes = match chunk.data_b64 {
        None => chunk.data.into(),
        Some(exact) => {
            STANDARD.decode(exact).map_err(|_| Error::unknown("data_b64 of a chunk is not padded base64"))?.into()
        }
    };
    Ok(ExecEvent::Output { stream, bytes })
}
