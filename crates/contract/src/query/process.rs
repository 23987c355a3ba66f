//! What a control plane and a query process say to each other.
//!
//! A request is JSON: the SQL and everything that it may read. The process has no credential of its own. Its answer is a
//! body of frames: [`Frame::Begun`] once, [`Frame::Data`] any number of times, and at the end [`Frame::Done`] or
//! [`Frame::Failed`]. A body without that end was cut off: nothing that came before it counts.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Json;

/// Where a query is sent. The body is an [`Ask`].
pub const PATH: &str = "/v1/query";
/// Answers 200 without a credential when the process can be asked.
pub const HEALTH_PATH: &str = "/health";
/// The largest request in bytes. Most of it is file names.
pub const ASK_BYTES: usize = 16 << 20;
/// The largest frame in bytes.
pub const FRAME_BYTES: usize = 4 << 20;

/// One query.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Ask {
    /// Names the query in the log of the process; the SQL is not logged.
    pub query_id: String,
    pub sql: String,
    pub views: Vec<View>,
    pub format: Format,
    pub bounds: Bounds,
}

impl fmt::Debug for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { query_id, sql: _, views, format, bounds } = self;
        f.debug_struct("Ask")
            .field("query_id", query_id)
            .field("views", &views.len())
            .field("format", format)
            .field("bounds", bounds)
            .finish_non_exhaustive()
    }
}

/// What the result is written as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Rows as arrays of JSON, separated by commas, to be put into an answer.
    Rows,
    /// One JSON object per line.
    JsonLines,
    /// With a header.
    Csv,
    Parquet,
}

/// Where the query ends. The process has limits of its own, which are not exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    /// Rows beyond it are left out and the result is marked as truncated.
    pub rows: Option<u64>,
    /// The same for bytes of the result.
    pub bytes: Option<u64>,
    pub timeout_ms: u64,
    pub memory_bytes: u64,
}

/// A dataset under the names that SQL has for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct View {
    pub names: Vec<String>,
    pub source: Source,
    /// `where` of an input as a tree: other rows do not exist for the query.
    #[serde(default, rename = "where", skip_serializing_if = "Option::is_none")]
    pub condition: Option<Json>,
}

/// Where the rows of a view are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Source {
    /// Parquet files. Nothing else in their place can be read.
    Files {
        place: Place,
        files: Vec<FileRef>,
        /// For a dataset without files.
        #[serde(default)]
        columns: Vec<Column>,
    },
    Table(Table),
    /// A query that reads the view fails with this.
    Refused(Failed),
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRef {
    pub key: String,
    pub bytes: u64,
}

impl fmt::Debug for FileRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileRef").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// Where files are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Place {
    /// Keys are paths below it.
    Folder { path: String },
    /// Keys are presigned URLs, which anyone can read for a limited time.
    Signed,
}

/// A table of the data store, up to a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    pub store: DataStore,
    pub name: String,
    pub columns: Vec<Column>,
    /// Only rows whose `org_id` is this are read.
    pub org_id: String,
    /// Rows with a greater `_seq` are not read: they came after the query began.
    pub upto: i64,
    /// Rows up to this `_seq` are not read either: an input that follows a cursor has had them.
    #[serde(default)]
    pub after: i64,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum DataStore {
    Sqlite {
        path: String,
    },
    /// `schema` has the tables.
    Postgres {
        url: String,
        schema: String,
    },
}

impl fmt::Debug for DataStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sqlite { .. } => "Sqlite",
            Self::Postgres { .. } => "Postgres",
        })
    }
}

/// A column of a dataset, as its schema declares it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    pub name: String,
    /// A word of the schema of datasets: `int64`, `decimal(10,2)`.
    #[serde(rename = "type")]
    pub kind: String,
    pub nullable: bool,
}

/// A part of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame<B> {
    Begun(Begun),
    Data(B),
    Done(Done),
    Failed(Failed),
}

/// The query is planned and its rows follow.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begun {
    pub columns: Vec<ResultColumn>,
    /// The names of the views that it reads.
    pub reads: Vec<String>,
}

/// A column of a result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ResultColumn {
    pub name: String,
    /// `int64`, `text`, `timestamptz`, …
    #[serde(rename = "type")]
    pub kind: String,
}

/// The whole result was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    pub rows: u64,
    pub bytes: u64,
    pub truncated: bool,
}

/// The query has no result. Messages hold no SQL, no path and no value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    pub error: Failure,
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    InvalidSql,
    QueryTimeout,
    QueryMemoryExceeded,
    QueryFailed,
    QueryBusy,
    ObjectStoreUnavailable,
    DataStoreUnavailable,
    DatasetNotGranted,
    PrefixNotGranted,
    InvalidManifest,
    ManifestTooLarge,
    /// The request itself is wrong: control plane and process are of different versions, say.
    MalformedRequest,
}

impl Failure {
    /// The word for it on the wire.
    pub const fn code(self) -> &'static str {
        match self {
            Self::InvalidSql => "invalid_sql",
            Self::QueryTimeout => "query_timeout",
            Self::QueryMemoryExceeded => "query_memory_exceeded",
            Self::QueryFailed => "query_failed",
            Self::QueryBusy => "query_busy",
            Self::ObjectStoreUnavailable => "object_store_unavailable",
            Self::DataStoreUnavailable => "data_store_unavailable",
            Self::DatasetNotGranted => "dataset_not_granted",
            Self::PrefixNotGranted => "prefix_not_granted",
            Self::InvalidManifest => "invalid_manifest",
            Self::ManifestTooLarge => "manifest_too_large",
            Self::MalformedRequest => "malformed_request",
        }
    }
}

/// Why bytes are not a valid frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadFrame;

impl fmt::Display for BadFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the query process sent an invalid frame")
    }
}

impl std::error::Error for BadFrame {}

/// Kind and length.
const HEAD: usize = 5;

impl<B: AsRef<[u8]>> Frame<B> {
    /// One byte for the kind, four for the length, and the content.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, content) = match self {
            Self::Begun(begun) => (b'B', json(begun)),
            Self::Data(data) => return framed(b'D', data.as_ref()),
            Self::Done(done) => (b'E', json(done)),
            Self::Failed(failed) => (b'F', json(failed)),
        };
        framed(kind, &content)
    }
}

fn json(value: &impl Serialize) -> Vec<u8> {
    // These types have nothing that cannot be written.
    serde_json::to_vec(value).unwrap_or_default()
}

fn framed(kind: u8, content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::with_capacity(HEAD + content.len());
    bytes.push(kind);
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(content);
    bytes
}

/// Reads frames from the pieces of a body.
#[derive(Debug, Default)]
pub struct Frames {
    bytes: Vec<u8>,
    read: usize,
}

impl Frames {
    pub fn push(&mut self, piece: &[u8]) {
        self.bytes.drain(..self.read);
        self.read = 0;
        self.bytes.extend_from_slice(piece);
    }

    /// The next frame that is whole.
    pub fn take(&mut self) -> Result<Option<Frame<Vec<u8>>>, BadFrame> {
        let rest = &self.bytes[self.read..];
        let Some((head, rest)) = rest.split_first_chunk::<HEAD>() else { return Ok(None) };
        let [kind, length @ ..] = *head;
        let length = u32::from_be_bytes(length) as usize;
        if length > FRAME_BYTES {
            return Err(BadFrame);
        }
        let Some(content) = rest.get(..length) else { return Ok(None) };
        let frame = match kind {
            b'B' => Frame::Begun(parse(content)?),
            b'D' => Frame::Data(content.to_vec()),
            b'E' => Frame::Done(parse(content)?),
            b'F' => Frame::Failed(parse(content)?),
            _ => return Err(BadFrame),
        };
        self.read += HEAD + length;
        Ok(Some(frame))
    }
}

fn parse<'a, T: Deserialize<'a>>(content: &'a [u8]) -> Result<T, BadFrame> {
    serde_json::from_slice(content).map_err(|_| BadFrame)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<Frame<Vec<u8>>> {
        vec![
            Frame::Begun(Begun {
                columns: vec![ResultColumn { name: "n".into(), kind: "int64".into() }],
                reads: vec!["logs".into()],
            }),
            Frame::Data(b"[1],[2]".to_vec()),
            Frame::Data(Vec::new()),
            Frame::Done(Done { rows: 2, bytes: 7, truncated: false }),
            Frame::Failed(Failed { error: Failure::QueryTimeout, message: "late".into() }),
        ]
    }

    #[test]
    fn frames_are_read_from_pieces_of_any_size() {
        let bytes: Vec<u8> = sample().iter().flat_map(Frame::encode).collect();
        for size in [1, 2, 5, 7, bytes.len()] {
            let (mut frames, mut read) = (Frames::default(), Vec::new());
            for piece in bytes.chunks(size) {
                frames.push(piece);
                while let Some(frame) = frames.take().unwrap() {
                    read.push(frame);
                }
            }
            assert_eq!(read, sample(), "pieces of {size}");
        }
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        let huge = [b'D', 0xff, 0xff, 0xff, 0xff];
        for bytes in [&b"X\0\0\0\0"[..], b"E\0\0\0\x02{}", &huge] {
            let mut frames = Frames::default();
            frames.push(bytes);
            assert_eq!(frames.take(), Err(BadFrame), "{bytes:?}");
        }
    }

    #[test]
    fn nothing_secret_is_printed() {
        let file = FileRef { key: "https://b.example/k?X-Amz-Signature=sesame".into(), bytes: 1 };
        let ask = Ask {
            query_id: "q".into(),
            sql: "SELECT 'sesame'".into(),
            views: Vec::new(),
            format: Format::Rows,
            bounds: Bounds { rows: None, bytes: None, timeout_ms: 1, memory_bytes: 1 },
        };
        let store = DataStore::Postgres { url: "postgres://u:sesame@h/d".into(), schema: "s".into() };
        assert!(!format!("{file:?} {ask:?} {store:?}").contains("sesame"));
    }
}
