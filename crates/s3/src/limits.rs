//! Limits of the endpoint.

use std::time::Duration;

/// Requests at a time: of an organisation, and all together. Each has a few buffers of [`BUFFER_BYTES`].
pub const REQUESTS_OF_ORG: usize = 64;
pub const REQUESTS: usize = 256;
/// What is read or written at once.
pub const BUFFER_BYTES: usize = 512 << 10;
/// The largest object that is sent in one piece, and the largest part of one that is sent in several.
pub const PIECE_BYTES: u64 = 5 << 30;
/// Parts of one upload.
pub const PARTS: u32 = 10_000;
/// Uploads of one attempt that are open, or were completed a short while ago.
pub const UPLOADS: usize = 10_000;
/// The body of a request that is XML.
pub const XML_BYTES: usize = 2 << 20;
/// Keys of one list, and of one request that deletes several.
pub const KEYS: usize = 1_000;
/// Names that one list may look at.
pub const LISTED_NAMES: usize = 2_000_000;
/// How far the clock of a client may be away.
pub const SKEW_S: i64 = 15 * 60;
/// The longest that temporary keys live.
pub const KEYS_S: i64 = 15 * 60;
/// How long a presigned address may say that it lives. It never outlives its keys.
pub const PRESIGNED_S: i64 = 7 * 24 * 3_600;
/// What is sealed into a session token.
pub const SEALED_BYTES: usize = 6 << 10;
/// A body that pauses for this long is given up.
pub const PAUSE: Duration = Duration::from_secs(30);
/// On the whole a body arrives at this pace, after a start.
pub const PACE_BYTES_S: u64 = 16 << 10;
pub const PACE_START: Duration = Duration::from_secs(60);
/// The line before a chunk, and all trailers together.
pub const CHUNK_LINE_BYTES: usize = 512;
pub const TRAILER_BYTES: usize = 4 << 10;
/// What a crash has left behind is removed when it is this old.
pub const LEFTOVER: Duration = Duration::from_secs(3_600);
/// An upload that nothing was added to for this long is removed.
pub const UPLOAD_IDLE: Duration = Duration::from_secs(24 * 3_600);
