//! Limits of the HTTP side.

use std::time::Duration;

pub const MAX_CONNECTIONS_DEFAULT: usize = 10_000;
/// Half of all: one address cannot take the places of everybody.
pub const MAX_CONNECTIONS_PER_ADDRESS_DEFAULT: usize = 5_000;
/// From the first byte of a request, or from the end of the last one, to the end of its head.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// A body must arrive at this pace on the whole, and within the time below at any size.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// What is read and dropped of a body over its limit, and for how long, before its connection is closed.
pub const DISCARDED_BYTES: usize = 64 << 20;
pub const DISCARD_TIMEOUT: Duration = Duration::from_secs(10);
pub const DRAIN_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);
/// Watchers of events at a time.
pub const EVENT_STREAMS: usize = 256;
/// Between two signs of life on an event stream.
pub const EVENT_KEEP_ALIVE: Duration = Duration::from_secs(15);
/// A request id longer than this is replaced.
pub const REQUEST_ID_BYTES: usize = 128;
/// Names whose calls are counted at a time; a bucket takes about a hundred bytes.
pub const RATE_BUCKETS: usize = 50_000;
/// How often buckets that nobody uses are looked for.
pub const RATE_CLEANUP: Duration = Duration::from_secs(60);
/// How often unfinished uploads to the S3 endpoint are looked for.
pub const UPLOAD_SWEEP: Duration = Duration::from_secs(600);
pub const TLS_HANDSHAKE: Duration = Duration::from_secs(10);
/// HTTP/2: a connection that does not answer a ping in time is gone.
pub const PING_EVERY: Duration = Duration::from_secs(20);
pub const PING_TIMEOUT: Duration = Duration::from_secs(20);
pub const HTTP2_STREAMS: u32 = 128;
/// Requests of an HTTP/2 connection that are served at a time until one of them shows a valid credential. More wait.
pub const HTTP2_STREAMS_OF_STRANGERS: usize = 8;
pub const HTTP2_HEAD_BYTES: u32 = 16 * 1024;
/// What HTTP/2 keeps of a body that is not read, for a stream and for a connection.
pub const HTTP2_STREAM_WINDOW: u32 = 64 * 1024;
pub const HTTP2_CONNECTION_WINDOW: u32 = 256 * 1024;
/// What HTTP/2 keeps of an answer that is not sent, for a stream.
pub const HTTP2_SEND_BYTES: usize = 64 * 1024;
/// What HTTP/1.1 keeps of a head, a body that is not read, or an answer that is not sent.
pub const HTTP1_BUFFER_BYTES: usize = 64 * 1024;
/// A client that takes nothing for this long is gone.
pub const WRITE_STALL: Duration = Duration::from_secs(60);
/// Bodies and pages that are whole in memory, all together. A tenant gets half at most, which is enough for a body of 32 MiB
/// and what is made of it.
pub const REQUEST_MEMORY_BYTES: usize = 128 << 20;
/// Bodies and answers of sandboxes that are whole in memory, all together.
pub const SANDBOX_MEMORY_BYTES: usize = 512 << 20;
/// Streams, transfers and sockets of sandboxes at a time: of a tenant, and all together.
pub const SANDBOX_STREAMS_OF_TENANT: usize = 512;
pub const SANDBOX_STREAMS: usize = 4096;
