//! Objects as streams of bytes.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{self, Stream};
use tokio::task::JoinHandle;

use crate::error::{Result, S3Error};
use crate::limits::BUFFER_BYTES;

/// A part of an object that a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    From(u64),
    Between(u64, u64),
    Last(u64),
}

/// Reads `Range`. What is not one range of bytes is ignored, as S3 does.
pub fn wanted(text: &str) -> Option<Wanted> {
    let (first, last) = text.trim().strip_prefix("bytes=")?.split_once('-')?;
    let number = |text: &str| text.parse::<u64>().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
    match (first.trim(), last.trim()) {
        ("", last) => number(last).map(Wanted::Last),
        (first, "") => number(first).map(Wanted::From),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then_some(Wanted::Between(first, last))
        }
    }
}

impl Wanted {
    /// The bytes of an object of this length.
    pub fn of(self, length: u64) -> Result<Range<u64>> {
        let range = match self {
            Self::From(first) => first..length,
            Self::Between(first, last) => first..length.min(last.saturating_add(1)),
            Self::Last(count) => length.saturating_sub(count)..length,
        };
        if range.is_empty() {
            return Err(S3Error::invalid_range("The range is not within the object."));
        }
        Ok(range)
    }
}

type Piece = JoinHandle<io::Result<Bytes>>;

/// Reads a piece while the one before is sent. A client that does not read holds no thread.
pub fn pieces<H: Send + 'static>(
    file: File,
    range: Range<u64>,
    held: H,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    let file = Arc::new(file);
    let ahead = next(&file, &range);
    let state = (file, range, ahead, held);
    stream::try_unfold(state, |(file, mut range, ahead, held)| async move {
        let Some(ahead) = ahead else { return Ok(None) };
        let piece = ahead.await.map_err(io::Error::other)??;
        range.start += piece.len() as u64;
        let ahead = next(&file, &range);
        Ok(Some((piece, (file, range, ahead, held))))
    })
}

fn next(file: &Arc<File>, range: &Range<u64>) -> Option<Piece> {
    if range.is_empty() {
        return None;
    }
    let (file, start) = (Arc::clone(file), range.start);
    let count = usize::try_from(range.end - range.start).unwrap_or(usize::MAX).min(BUFFER_BYTES);
    Some(tokio::task::spawn_blocking(move || {
        let mut bytes = vec![0; count];
        file.read_exact_at(&mut bytes, start)?;
        Ok(bytes.into())
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_s3_reads_them() {
        for (text, length, expected) in [
            ("bytes=0-9", 100, Some(0..10)),
            ("bytes=90-200", 100, Some(90..100)),
            ("bytes=90-", 100, Some(90..100)),
            ("bytes=-10", 100, Some(90..100)),
            ("bytes=-200", 100, Some(0..100)),
            ("bytes=100-", 100, None),
            ("bytes=100-200", 100, None),
            ("bytes=-0", 100, None),
            ("bytes=0-", 0, None),
            ("bytes=0-18446744073709551615", 100, Some(0..100)),
        ] {
            assert_eq!(wanted(text).unwrap().of(length).ok(), expected, "{text}");
        }
        for text in ["", "bytes=", "bytes=-", "bytes=5-1", "bytes=0-1,3-4", "bytes=+1-2", "lines=0-1"] {
            assert_eq!(wanted(text), None, "{text}");
        }
    }
}
