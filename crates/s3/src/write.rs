//! Bodies of requests, written to a file as they arrive.

use std::io::Write;

use bytes::Bytes;
use http_body_util::BodyExt;
use tokio::time::Instant;

use crate::checksum::Checksums;
use crate::chunked::Chunks;
use crate::error::{Result, S3Error};
use crate::folder::Temporary;
use crate::limits;

/// A file that a body is written to.
#[derive(Debug)]
pub struct Writer {
    pub temporary: Temporary,
    /// For a body that comes in chunks of its own.
    pub chunks: Option<Chunks>,
    pub checksums: Checksums,
    /// What the body has, without what separates its chunks.
    pub length: u64,
    pub written: u64,
}

impl Writer {
    fn push(&mut self, pieces: &[Bytes]) -> Result<()> {
        let Self { temporary, chunks, checksums, length, written } = self;
        let mut write = |bytes: &[u8]| {
            *written += bytes.len() as u64;
            if *written > *length {
                return Err(S3Error::incomplete_body("The body is longer than the request says."));
            }
            checksums.update(bytes);
            Ok(temporary.file.write_all(bytes)?)
        };
        for piece in pieces {
            match chunks {
                Some(chunks) => chunks.push(piece, &mut write)?,
                None => write(piece)?,
            }
        }
        Ok(())
    }

    /// Judges the whole body.
    fn finish(self) -> Result<Temporary> {
        let trailers = self.chunks.map(Chunks::finish).transpose()?.unwrap_or_default();
        if self.written != self.length {
            return Err(S3Error::incomplete_body("The body is shorter than the request says."));
        }
        self.checksums.check(&trailers)?;
        Ok(self.temporary)
    }
}

/// Writes a body to its end. What has arrived is written while more arrives; a client that sends slowly holds no thread.
pub async fn receive<B>(mut body: B, writer: Writer) -> Result<Temporary>
where
    B: hyper::body::Body<Data = Bytes> + Unpin,
{
    let until = deadline(writer.length);
    let mut writing = tokio::task::spawn_blocking(|| Ok(writer));
    loop {
        let (pieces, is_over) = batch(&mut body, until).await?;
        let mut writer = joined(writing.await)?;
        if is_over {
            return blocking(move || {
                writer.push(&pieces)?;
                writer.finish()
            })
            .await;
        }
        writing = tokio::task::spawn_blocking(move || {
            writer.push(&pieces)?;
            Ok(writer)
        });
    }
}

/// What arrives next, up to a buffer of it, and whether it is the last.
async fn batch<B>(body: &mut B, until: Instant) -> Result<(Vec<Bytes>, bool)>
where
    B: hyper::body::Body<Data = Bytes> + Unpin,
{
    let (mut pieces, mut bytes) = (Vec::new(), 0);
    while bytes < limits::BUFFER_BYTES {
        let Some(piece) = frame(body, until).await? else { return Ok((pieces, true)) };
        bytes += piece.len();
        pieces.push(piece);
    }
    Ok((pieces, false))
}

/// When a body of this length must be there.
fn deadline(length: u64) -> Instant {
    Instant::now() + limits::PACE_START + std::time::Duration::from_secs(length / limits::PACE_BYTES_S)
}

/// The next bytes of a body. A body that stands still, or is too slow on the whole, is given up.
async fn frame<B>(body: &mut B, until: Instant) -> Result<Option<Bytes>>
where
    B: hyper::body::Body<Data = Bytes> + Unpin,
{
    loop {
        let pause = until.min(Instant::now() + limits::PAUSE);
        let frame = tokio::time::timeout_at(pause, body.frame()).await;
        let frame = frame.map_err(|_| S3Error::timed_out("The body did not arrive in time."))?;
        match frame {
            None => return Ok(None),
            Some(Err(_)) => return Err(S3Error::incomplete_body("The connection ended within the body.")),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

/// A small body, whole.
pub async fn collect<B>(mut body: B, limit: usize) -> Result<Vec<u8>>
where
    B: hyper::body::Body<Data = Bytes> + Unpin,
{
    let until = deadline(0);
    let mut bytes = Vec::new();
    while let Some(piece) = frame(&mut body, until).await? {
        if bytes.len() + piece.len() > limit {
            return Err(S3Error::entity_too_large("The body is too large."));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    joined(tokio::task::spawn_blocking(work).await)
}

fn joined<T>(done: std::result::Result<Result<T>, tokio::task::JoinError>) -> Result<T> {
    done.unwrap_or_else(|_| Err(S3Error::internal("The server could not do this.")))
}
