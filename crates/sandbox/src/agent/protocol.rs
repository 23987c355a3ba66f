use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::error::{Error, ErrorKind, Result};
use crate::files::FileInfo;
use crate::spec::Terminal;

/// The largest request: a command with its arguments and variables. The kernel accepts less.
pub(super) const MAX_REQUEST_BYTES: usize = 4 << 20;

/// The largest answer: a list of files.
pub(super) const MAX_ANSWER_BYTES: usize = 16 << 20;

/// The largest piece of a file or of a stream.
pub(super) const MAX_DATA_BYTES: usize = 128 << 10;

/// The longest message of an error that is passed on.
const MAX_MESSAGE_CHARS: usize = 2000;

/// A frame is this byte, the length of the rest in four bytes (little-endian), and the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Frame {
    /// The first frame of a connection: a [`Request`].
    Request = 1,
    /// An [`Answer`] or a [`Failure`].
    Answer = 2,
    Stdout = 3,
    Stderr = 4,
    /// The last frame of an execution: an [`End`].
    End = 5,
    /// Input for the command. The next one may be sent after `Accepted`.
    Stdin = 6,
    CloseStdin = 7,
    Accepted = 8,
    /// Two numbers of two bytes: rows and columns.
    Resize = 9,
    /// One byte: the number of the signal.
    Signal = 10,
    Content = 11,
    ContentEnd = 12,
}

impl Frame {
    fn parse(byte: u8) -> Option<Self> {
        const ALL: [Frame; 12] = [
            Frame::Request,
            Frame::Answer,
            Frame::Stdout,
            Frame::Stderr,
            Frame::End,
            Frame::Stdin,
            Frame::CloseStdin,
            Frame::Accepted,
            Frame::Resize,
            Frame::Signal,
            Frame::Content,
            Frame::ContentEnd,
        ];
        ALL.into_iter().find(|frame| *frame as u8 == byte)
    }
}

pub(super) const HEADER_BYTES: usize = 5;

pub(super) fn header(frame: Frame, length: usize) -> [u8; HEADER_BYTES] {
    // Nothing longer than MAX_ANSWER_BYTES is sent.
    let length = u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes();
    [frame as u8, length[0], length[1], length[2], length[3]]
}

/// Reads a header. The length is at most `limit`.
pub(super) fn parse_header(header: [u8; HEADER_BYTES], limit: usize) -> io::Result<(Frame, usize)> {
    let [frame, length @ ..] = header;
    let frame = Frame::parse(frame).ok_or_else(|| wrong("a frame of an unknown kind"))?;
    let length = u32::from_le_bytes(length) as usize;
    if length > limit { Err(wrong("a frame that is too long")) } else { Ok((frame, length)) }
}

pub(super) fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the other side sent {what}"))
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    Ping,
    Exec(ExecRequest),
    Read { path: String },
    Write { path: String, mode: u32 },
    List { path: String },
    Delete { path: String, recursive: bool },
    Move { from: String, to: String },
    Chmod { path: String, mode: u32 },
    Stat { path: String },
    Glob { pattern: String },
    Log { lines: usize },
    Dial { port: u16 },
    Deadlines { freeze_after_ms: Option<u64>, destroy_after_ms: Option<u64> },
    Freeze,
    Thaw,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ExecRequest {
    pub(super) argv: Vec<String>,
    /// All variables that the command gets.
    pub(super) env: BTreeMap<String, String>,
    pub(super) workdir: Option<String>,
    pub(super) timeout_ms: Option<u64>,
    pub(super) stdin: bool,
    /// Rows and columns.
    pub(super) terminal: Option<(u16, u16)>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Done,
    /// Of a ping.
    Status {
        frozen: bool,
    },
    File(WireFile),
    Files(Vec<WireFile>),
    Texts(Vec<String>),
    Failed(Failure),
}

/// How an execution ended.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum End {
    Exited { code: i32, out_of_memory: bool, wall_us: u64, cpu_us: Option<u64>, peak_memory_bytes: Option<u64> },
    Failed(Failure),
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WireFile {
    path: String,
    size: u64,
    mode: u32,
    is_dir: bool,
    modified_s: u64,
}

impl From<FileInfo> for WireFile {
    fn from(info: FileInfo) -> Self {
        let modified_s = info.modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        Self { path: info.path, size: info.size, mode: info.mode, is_dir: info.is_dir, modified_s }
    }
}

impl WireFile {
    /// As the client passes it on, whatever the agent sent.
    pub(super) fn checked(self) -> Result<FileInfo> {
        if !self.path.starts_with('/') || self.path.contains('\0') {
            return Err(Error::internal("the agent of the sandbox answered with a wrong path"));
        }
        // Later than anybody lives; the addition cannot overflow.
        let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(self.modified_s.min(1 << 36));
        Ok(FileInfo { path: self.path, size: self.size, mode: self.mode & 0o7777, is_dir: self.is_dir, modified })
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Failure {
    kind: FailureKind,
    message: String,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum FailureKind {
    NotFound,
    Frozen,
    Unavailable,
    Timeout,
    ResourceLimit,
    Invalid,
    Internal,
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        let kind = match error.kind() {
            ErrorKind::NotFound => FailureKind::NotFound,
            ErrorKind::Frozen => FailureKind::Frozen,
            ErrorKind::Unavailable => FailureKind::Unavailable,
            ErrorKind::Timeout => FailureKind::Timeout,
            ErrorKind::ResourceLimit => FailureKind::ResourceLimit,
            ErrorKind::Invalid => FailureKind::Invalid,
            ErrorKind::Destroyed | ErrorKind::Internal => FailureKind::Internal,
        };
        let mut message = error.to_string();
        if let Some(source) = std::error::Error::source(error) {
            let source = source.to_string();
            if !message.contains(source.split(" (os error").next().unwrap_or_default()) {
                message = format!("{message}: {source}");
            }
        }
        Self { kind, message }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let kind = match failure.kind {
            FailureKind::NotFound => ErrorKind::NotFound,
            FailureKind::Frozen => ErrorKind::Frozen,
            FailureKind::Unavailable => ErrorKind::Unavailable,
            FailureKind::Timeout => ErrorKind::Timeout,
            FailureKind::ResourceLimit => ErrorKind::ResourceLimit,
            FailureKind::Invalid => ErrorKind::Invalid,
            FailureKind::Internal => ErrorKind::Internal,
        };
        Error::new(kind, failure.message.chars().take(MAX_MESSAGE_CHARS).collect::<String>())
    }
}

impl ExecRequest {
    pub(super) fn terminal(&self) -> Option<Terminal> {
        self.terminal.map(|(rows, columns)| Terminal { rows, columns })
    }
}

/// Reads a frame in blocking code.
pub(super) fn read_frame(input: &mut impl Read, limit: usize) -> io::Result<(Frame, Vec<u8>)> {
    let mut bytes = [0; HEADER_BYTES];
    input.read_exact(&mut bytes)?;
    let (frame, length) = parse_header(bytes, limit)?;
    let mut payload = vec![0; length];
    input.read_exact(&mut payload)?;
    Ok((frame, payload))
}

pub(super) fn write_frame(output: &mut impl Write, frame: Frame, payload: &[u8]) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.len());
    bytes.extend_from_slice(&header(frame, payload.len()));
    bytes.extend_from_slice(payload);
    output.write_all(&bytes)
}

/// An answer as bytes; one that is too long is a failure.
pub(super) fn encode(answer: &Answer) -> Vec<u8> {
    let bytes = serde_json::to_vec(answer).unwrap_or_default();
    if !bytes.is_empty() && bytes.len() <= MAX_ANSWER_BYTES {
        return bytes;
    }
    let error = Error::new(ErrorKind::ResourceLimit, "the answer is larger than 16 MiB: ask for less");
    serde_json::to_vec(&Answer::Failed(Failure::from(&error))).unwrap_or_default()
}

pub(super) async fn read_frame_async(
    input: &mut (impl AsyncRead + Unpin),
    limit: usize,
) -> io::Result<(Frame, Vec<u8>)> {
    let mut bytes = [0; HEADER_BYTES];
    input.read_exact(&mut bytes).await?;
    let (frame, length) = parse_header(bytes, limit)?;
    let mut payload = vec![0; length];
    input.read_exact(&mut payload).await?;
    Ok((frame, payload))
}

pub(super) async fn write_frame_async(
    output: &mut (impl AsyncWrite + Unpin),
    frame: Frame,
    payload: &[u8],
) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.len());
    bytes.extend_from_slice(&header(frame, payload.len()));
    bytes.extend_from_slice(payload);
    output.write_all(&bytes).await
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn frames_are_bounded_and_known() {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, Frame::Stdout, b"hello").expect("room");
        assert_eq!(read_frame(&mut bytes.as_slice(), 5).expect("a frame"), (Frame::Stdout, b"hello".to_vec()));
        assert!(read_frame(&mut bytes.as_slice(), 4).is_err(), "too long");
        assert!(read_frame(&mut [99, 0, 0, 0, 0].as_slice(), 5).is_err(), "unknown");
        assert!(read_frame(&mut [3, 255, 255, 255, 255].as_slice(), 5).is_err(), "huge");
        assert!(read_frame(&mut [3, 5, 0, 0, 0, 1].as_slice(), 5).is_err(), "cut off");
    }

    #[test]
    fn what_an_agent_sends_is_checked() {
        let file = |path: &str| WireFile {
            path: path.to_owned(),
            size: 1,
            mode: 0o177_777,
            is_dir: false,
            modified_s: u64::MAX,
        };
        assert!(file("relative").checked().is_err());
        assert_eq!(file("/x").checked().expect("a file").mode, 0o7777);
        let failure = Failure { kind: FailureKind::Invalid, message: "x".repeat(1 << 20) };
        assert_eq!(Error::from(failure).to_string().len(), MAX_MESSAGE_CHARS);
    }

    #[test]
    fn an_answer_that_is_too_long_is_a_failure() {
        let answer = Answer::Texts(vec!["x".repeat(MAX_ANSWER_BYTES)]);
        let failed: Answer = serde_json::from_slice(&encode(&answer)).expect("an answer");
        assert!(matches!(failed, Answer::Failed(_)));
    }
}
