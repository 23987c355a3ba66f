//! File calls with the content in the envelope.

use std::io::Cursor;
use std::sync::Arc;
use std::time::SystemTime;

use axum::http::StatusCode;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use jiff::Timestamp;
use tenure_contract::worker_rpc::{FileGlobResult, FileInfo, FileListResult, FileStatResult, MAX_CONTENT_BYTES};
use tenure_sandbox::{FileReader, FileWrite};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::within;
use crate::node::Held;
use crate::rpc::answer::Answer;
use crate::rpc::body::no_memory;
use crate::rpc::call::Action;
use crate::rpc::refusal::Refusal;
use crate::rpc::state::Rpc;

/// A multiple of three, so that each part is encoded without padding.
const PART_BYTES: usize = 48 << 10;

impl Rpc {
    pub(super) async fn file_call(&self, id: &str, held: Held, action: Action) -> Result<Answer, Refusal> {
        let (provider, runtime, times) = (&held.provider, &held.runtime_id, &self.settings.times);
        let sandbox_id = held.sandbox_id.clone();
        match action {
            Action::FileWrite { path, mode, content } => {
                let wait = times.for_bytes(times.call, content.len() as u64);
                let file = FileWrite { path, mode, content: Box::pin(Cursor::new(content)) };
                within(wait, "the write", provider.write_file(runtime, file)).await??;
                Ok(self.done(id))
            }
            Action::FileRead { path } => self.file_read(id, &held, &path).await,
            Action::FileList { path } => {
                let files = within(times.call, "the list", provider.list_files(runtime, &path)).await??;
                let files = files.into_iter().map(file_info).collect();
                self.bounded(id, FileListResult { sandbox_id, files })
            }
            Action::FileStat { path } => {
                let file = within(times.call, "the stat", provider.stat_file(runtime, &path)).await??;
                self.bounded(id, FileStatResult { sandbox_id, file: file_info(file) })
            }
            Action::FileGlob { pattern } => {
                let matches = within(times.call, "the glob", provider.glob_files(runtime, &pattern)).await??;
                self.bounded(id, FileGlobResult { sandbox_id, matches })
            }
            Action::FileDelete { path, recursive } => {
                within(times.call, "the delete", provider.delete_file(runtime, &path, recursive)).await??;
                Ok(self.done(id))
            }
            Action::FileMove { from, to } => {
                within(times.call, "the move", provider.move_file(runtime, &from, &to)).await??;
                Ok(self.done(id))
            }
            Action::FileChmod { path, mode } => {
                within(times.call, "the chmod", provider.chmod_file(runtime, &path, mode)).await??;
                Ok(self.done(id))
            }
            other => Err(Refusal::invalid(format!("not a file call: {other:?}"))),
        }
    }

    async fn file_read(&self, id: &str, held: &Held, path: &str) -> Result<Answer, Refusal> {
        let times = &self.settings.times;
        let FileReader { info, content } =
            within(times.call, "the read", held.provider.read_file(&held.runtime_id, path)).await??;
        let size = usize::try_from(info.size).unwrap_or(usize::MAX);
        if size > MAX_CONTENT_BYTES {
            return Err(too_large());
        }
        let room = 4 * size.div_ceil(3) + (8 << 10);
        let reserved = self.budget.reserve(room, times.call).await.ok_or_else(no_memory)?;
        let start = format!(
            r#"{{"id":{},"worker_id":{},"result":{{"sandbox_id":{},"content":""#,
            json(id),
            json(self.worker_id()),
            json(&held.sandbox_id)
        );
        let mut body = String::with_capacity(room + start.len());
        body.push_str(&start);
        let wait = times.for_bytes(times.call, info.size);
        within(wait, "the read", encode(content, size, &mut body)).await??;
        body.push_str(r#""}}"#);
        Ok(Answer {
            status: StatusCode::OK,
            outcome: "ok",
            body: Bytes::from(body),
            executed: true,
            reserved: Some(Arc::new(reserved)),
        })
    }
}

/// Appends the content of a file in base64. A file that grows while it is read is cut where it ended before.
async fn encode(content: impl AsyncRead + Send, size: usize, body: &mut String) -> Result<(), Refusal> {
    let mut content = Box::pin(content.take(size as u64));
    let mut part = Vec::with_capacity(PART_BYTES);
    loop {
        part.clear();
        while part.len() < PART_BYTES {
            let room = (PART_BYTES - part.len()) as u64;
            let mut limited = (&mut content).take(room);
            match limited.read_buf(&mut part).await {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => return Err(unread(&error)),
            }
        }
        STANDARD.encode_string(&part, body);
        if part.len() < PART_BYTES {
            return Ok(());
        }
    }
}

fn unread(error: &std::io::Error) -> Refusal {
    let message = format!("the file could not be read: {error}");
    Refusal::call(tenure_contract::worker_rpc::Code::Internal, message).executed()
}

fn too_large() -> Refusal {
    let message = format!("the file is larger than {} MiB: use GET /rpc/files", MAX_CONTENT_BYTES >> 20);
    Refusal::too_large(message).executed()
}

fn json(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_else(|error| panic!("a text is JSON: {error}"))
}

fn file_info(info: tenure_sandbox::FileInfo) -> FileInfo {
    FileInfo {
        path: info.path,
        size: i64::try_from(info.size).unwrap_or(i64::MAX),
        mode: format!("{:04o}", info.mode),
        is_dir: info.is_dir,
        mod_time: whole_seconds(info.modified),
    }
}

fn whole_seconds(time: SystemTime) -> String {
    let time = Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH);
    Timestamp::from_second(time.as_second()).unwrap_or(Timestamp::UNIX_EPOCH).to_string()
}
