use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// Reads a stream that may be compressed with gzip or zstd, and fails after `max_bytes` of its content.
pub(crate) fn decompressed<'a>(stream: impl Read + 'a, max_bytes: u64) -> io::Result<Box<dyn Read + 'a>> {
    let mut stream = BufReader::with_capacity(1 << 17, stream);
    let inner: Box<dyn Read + 'a> = match magic(&mut stream)? {
        Magic::Gzip => Box::new(MultiGzDecoder::new(stream)),
        Magic::Zstd => Box::new(Zstd::new(stream)),
        Magic::Other => Box::new(stream),
    };
    Ok(Box::new(Bounded { inner, left: max_bytes }))
}

/// Whether a stream is compressed.
pub(super) fn is_compressed(stream: impl Read) -> io::Result<bool> {
    Ok(!matches!(magic(&mut BufReader::with_capacity(512, stream))?, Magic::Other))
}

enum Magic {
    Gzip,
    Zstd,
    Other,
}

fn magic(stream: &mut impl BufRead) -> io::Result<Magic> {
    Ok(match stream.fill_buf()? {
        [0x1f, 0x8b, ..] => Magic::Gzip,
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Magic::Zstd,
        _ => Magic::Other,
    })
}

struct Bounded<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.left = self
            .left
            .checked_sub(count as u64)
            .ok_or_else(|| io::Error::other("the uncompressed archive is larger than an image may be"))?;
        Ok(count)
    }
}

/// Decodes every frame of a zstd stream. The window of a frame is bounded by the decoder, to 100 MiB.
struct Zstd<R> {
    stream: R,
    decoder: FrameDecoder,
    in_frame: bool,
}

impl<R: BufRead> Zstd<R> {
    fn new(stream: R) -> Self {
        Self { stream, decoder: FrameDecoder::new(), in_frame: false }
    }

    /// Goes to the next frame with content; false at the end of the stream.
    fn next_frame(&mut self) -> io::Result<bool> {
        while !self.stream.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.stream) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    io::copy(&mut self.stream.by_ref().take(length.into()), &mut io::sink())?;
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(false)
    }
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while !buffer.is_empty() {
            if !self.in_frame {
                self.in_frame = self.next_frame()?;
                if !self.in_frame {
                    return Ok(0);
                }
            }
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                self.decoder
                    .decode_blocks(&mut self.stream, BlockDecodingStrategy::UptoBlocks(1))
                    .map_err(io::Error::other)?;
            }
            match self.decoder.read(buffer)? {
                0 => self.in_frame = false,
                count => return Ok(count),
            }
        }
        Ok(0)
    }
}
