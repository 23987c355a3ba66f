mod content;
mod dial;
mod exec;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use self::content::Content;
use super::protocol::{
    Answer, Frame, HEADER_BYTES, MAX_ANSWER_BYTES, MAX_DATA_BYTES, Request, header, read_frame_async,
    write_frame_async, wrong,
};
use crate::error::{Error, Result};
use crate::files::{FileInfo, FileReader, FileWrite, failed_io};
use crate::spec::Deadlines;

/// Time for an answer. The longest work is to delete many files.
const ANSWER_PATIENCE: Duration = Duration::from_secs(60);

/// Without progress of a stream for that long the agent is given up.
const PROGRESS_PATIENCE: Duration = Duration::from_secs(60);

/// Talks to the agent of one sandbox. Each call is a connection of its own.
#[derive(Debug)]
pub(crate) struct Client {
    /// The directory of the socket: its path may be longer than an address of a socket can be.
    directory: OwnedFd,
    name: PathBuf,
}

impl Client {
    /// The socket need not exist yet.
    pub(crate) fn new(socket: &Path) -> Result<Self> {
        let failed = |error: io::Error| {
            Error::unavailable(format!("the socket {} cannot be used", socket.display())).with_source(error)
        };
        let (Some(parent), Some(name)) = (socket.parent(), socket.file_name()) else {
            return Err(failed(io::ErrorKind::InvalidInput.into()));
        };
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
        let directory = rustix::fs::open(parent, flags, rustix::fs::Mode::empty()).map_err(|e| failed(e.into()))?;
        Ok(Self { directory, name: name.into() })
    }

    /// Whether the agent answers, and whether the sandbox is frozen.
    pub(crate) async fn ping(&self) -> Result<bool> {
        match self.call(&Request::Ping).await? {
            Answer::Status { frozen } => Ok(frozen),
            _ => Err(unexpected()),
        }
    }

    pub(crate) async fn write_file(&self, mut file: FileWrite) -> Result<()> {
        let mut stream = self.connect().await?;
        let request = Request::Write { path: file.path.clone(), mode: file.mode };
        send(&mut stream, &request).await?;
        done(receive(&mut stream).await?)?;
        match send_content(&mut stream, &mut file).await {
            Ok(()) => done(receive(&mut stream).await?),
            Err(Sending::Source(error)) => Err(error),
            // The agent says why it did not read on, if it can.
            Err(Sending::Agent(error)) => receive(&mut stream).await.and_then(done).and(Err(error)),
        }
    }

    pub(crate) async fn read_file(&self, path: &str) -> Result<FileReader> {
        let mut stream = self.connect().await?;
        send(&mut stream, &Request::Read { path: path.to_owned() }).await?;
        match receive(&mut stream).await? {
            Answer::File(file) => Ok(FileReader { info: file.checked()?, content: Box::pin(Content::new(stream)) }),
            answer => Err(other(answer)),
        }
    }

    pub(crate) async fn list_files(&self, path: &str) -> Result<Vec<FileInfo>> {
        match self.call(&Request::List { path: path.to_owned() }).await? {
            Answer::Files(files) => {
                let mut files: Vec<FileInfo> = files.into_iter().map(|file| file.checked()).collect::<Result<_>>()?;
                files.sort_by(|a, b| a.path.cmp(&b.path));
                Ok(files)
            }
            answer => Err(other(answer)),
        }
    }

    pub(crate) async fn delete_file(&self, path: &str, recursive: bool) -> Result<()> {
        done(self.call(&Request::Delete { path: path.to_owned(), recursive }).await?)
    }

    pub(crate) async fn move_file(&self, from: &str, to: &str) -> Result<()> {
        done(self.call(&Request::Move { from: from.to_owned(), to: to.to_owned() }).await?)
    }

    pub(crate) async fn chmod_file(&self, path: &str, mode: u32) -> Result<()> {
        done(self.call(&Request::Chmod { path: path.to_owned(), mode }).await?)
    }

    pub(crate) async fn stat_file(&self, path: &str) -> Result<FileInfo> {
        match self.call(&Request::Stat { path: path.to_owned() }).await? {
            Answer::File(file) => file.checked(),
            answer => Err(other(answer)),
        }
    }

    pub(crate) async fn glob_files(&self, pattern: &str) -> Result<Vec<String>> {
        let mut paths = self.texts(&Request::Glob { pattern: pattern.to_owned() }).await?;
        paths.sort();
        Ok(paths)
    }

    pub(crate) async fn console_log(&self, lines: usize) -> Result<Vec<String>> {
        self.texts(&Request::Log { lines }).await
    }

    pub(crate) async fn set_deadlines(&self, deadlines: Deadlines) -> Result<()> {
        let ms = |duration: Option<Duration>| duration.map(|d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX));
        let (freeze_after_ms, destroy_after_ms) = (ms(deadlines.freeze_after), ms(deadlines.destroy_after));
        done(self.call(&Request::Deadlines { freeze_after_ms, destroy_after_ms }).await?)
    }

    pub(crate) async fn freeze(&self) -> Result<()> {
        done(self.call(&Request::Freeze).await?)
    }

    pub(crate) async fn thaw(&self) -> Result<()> {
        done(self.call(&Request::Thaw).await?)
    }

    async fn texts(&self, request: &Request) -> Result<Vec<String>> {
        match self.call(request).await? {
            Answer::Texts(texts) => Ok(texts),
            answer => Err(other(answer)),
        }
    }

    /// A call with one answer.
    async fn call(&self, request: &Request) -> Result<Answer> {
        let mut stream = self.connect().await?;
        send(&mut stream, request).await?;
        receive(&mut stream).await
    }

    async fn connect(&self) -> Result<UnixStream> {
        let path = Path::new("/proc/self/fd").join(self.directory.as_raw_fd().to_string()).join(&self.name);
        in_time(ANSWER_PATIENCE, UnixStream::connect(path)).await
    }
}

async fn send(stream: &mut UnixStream, request: &Request) -> Result<()> {
    let bytes = serde_json::to_vec(request).map_err(|error| Error::internal("no request").with_source(error))?;
    if bytes.len() > super::protocol::MAX_REQUEST_BYTES {
        return Err(Error::invalid("the request is larger than 4 MiB"));
    }
    in_time(ANSWER_PATIENCE, write_frame_async(stream, Frame::Request, &bytes)).await
}

/// The next answer; one that says that the call failed is an error.
async fn receive(stream: &mut UnixStream) -> Result<Answer> {
    let (frame, bytes) = in_time(ANSWER_PATIENCE, read_frame_async(stream, MAX_ANSWER_BYTES)).await?;
    parse_answer(frame, &bytes)
}

fn parse_answer(frame: Frame, bytes: &[u8]) -> Result<Answer> {
    let answer = match frame {
        Frame::Answer => serde_json::from_slice(bytes).map_err(io::Error::from),
        _ => Err(wrong("a frame that is not an answer")),
    };
    match answer.map_err(lost)? {
        Answer::Failed(failure) => Err(failure.into()),
        answer => Ok(answer),
    }
}

fn done(answer: Answer) -> Result<()> {
    match answer {
        Answer::Done => Ok(()),
        _ => Err(unexpected()),
    }
}

fn other(answer: Answer) -> Error {
    match answer {
        Answer::Failed(failure) => failure.into(),
        _ => unexpected(),
    }
}

fn unexpected() -> Error {
    Error::internal("the agent of the sandbox sent an unexpected answer")
}

fn lost(error: io::Error) -> Error {
    Error::unavailable("the agent of the sandbox does not answer").with_source(error)
}

async fn in_time<T>(patience: Duration, future: impl Future<Output = io::Result<T>>) -> Result<T> {
    match tokio::time::timeout(patience, future).await {
        Ok(result) => result.map_err(lost),
        Err(_) => Err(lost(io::ErrorKind::TimedOut.into())),
    }
}

enum Sending {
    Source(Error),
    Agent(Error),
}

async fn send_content(stream: &mut UnixStream, file: &mut FileWrite) -> Result<(), Sending> {
    let mut buffer = BytesMut::with_capacity(HEADER_BYTES + MAX_DATA_BYTES);
    loop {
        buffer.clear();
        buffer.extend_from_slice(&[0; HEADER_BYTES]);
        while buffer.len() < HEADER_BYTES + MAX_DATA_BYTES {
            let room = HEADER_BYTES + MAX_DATA_BYTES - buffer.len();
            let read = (&mut file.content).take(room as u64).read_buf(&mut buffer).await;
            if read.map_err(|error| Sending::Source(failed_io("receive", &file.path, &error)))? == 0 {
                break;
            }
        }
        let length = buffer.len() - HEADER_BYTES;
        let frame = if length == 0 { Frame::ContentEnd } else { Frame::Content };
        buffer[..HEADER_BYTES].copy_from_slice(&header(frame, length));
        in_time(PROGRESS_PATIENCE, stream.write_all(&buffer)).await.map_err(Sending::Agent)?;
        if length == 0 {
            return Ok(());
        }
    }
}
