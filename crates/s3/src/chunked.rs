//! Bodies in chunks of S3 (`aws-chunked`): each with its size, perhaps a signature, and trailers at the end.

use aws_lc_rs::digest::{Context, SHA256};

use crate::checksum::sha256;
use crate::error::{Result, S3Error};
use crate::limits;
use crate::sign::ChunkSigner;

enum State {
    /// Before the size of a chunk.
    Size,
    Data {
        left: u64,
        signature: Option<String>,
    },
    /// After the data of a chunk: the end of its line.
    End,
    Trailers,
    Done,
}

/// Takes the chunks apart as they come. What it passes on is not valid before [`Self::finish`].
pub struct Chunks {
    state: State,
    /// The line that is being read.
    line: Vec<u8>,
    signer: Option<ChunkSigner>,
    hash: Context,
    /// What the request says is still to come.
    left: u64,
    has_trailer: bool,
    trailers: Vec<(String, String)>,
    trailer_bytes: usize,
    trailer_signature: Option<String>,
}

impl std::fmt::Debug for Chunks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chunks").field("left", &self.left).finish_non_exhaustive()
    }
}

fn malformed() -> S3Error {
    S3Error::invalid_request("The chunks of the body are malformed.")
}

impl Chunks {
    /// `length` is what all chunks have together.
    pub fn new(length: u64, signer: Option<ChunkSigner>, has_trailer: bool) -> Self {
        Self {
            state: State::Size,
            line: Vec::new(),
            signer,
            hash: Context::new(&SHA256),
            left: length,
            has_trailer,
            trailers: Vec::new(),
            trailer_bytes: 0,
            trailer_signature: None,
        }
    }

    /// Takes what has arrived, and passes on the data in it.
    pub fn push(&mut self, mut bytes: &[u8], data: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        while !bytes.is_empty() {
            match &mut self.state {
                State::Data { left, .. } => {
                    let count = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                    let (now, later) = bytes.split_at(count);
                    if self.signer.is_some() {
                        self.hash.update(now);
                    }
                    data(now)?;
                    *left -= count as u64;
                    bytes = later;
                    if *left == 0 {
                        self.chunk_ended()?;
                    }
                }
                State::Done => return Err(malformed()),
                State::Size | State::End | State::Trailers => {
                    let end = bytes.iter().position(|byte| *byte == b'\n');
                    let count = end.map_or(bytes.len(), |end| end + 1);
                    self.line.extend_from_slice(&bytes[..count]);
                    bytes = &bytes[count..];
                    if self.line.len() > limits::CHUNK_LINE_BYTES {
                        return Err(malformed());
                    }
                    if end.is_some() {
                        self.line_ended()?;
                    }
                }
            }
        }
        Ok(())
    }

    fn line_ended(&mut self) -> Result<()> {
        let line = std::mem::take(&mut self.line);
        let line = std::str::from_utf8(&line).map_err(|_| malformed())?.trim_end_matches(['\r', '\n']);
        match &self.state {
            State::Size => self.chunk_began(line),
            State::End if line.is_empty() => {
                self.state = State::Size;
                Ok(())
            }
            State::Trailers if line.is_empty() => {
                self.state = State::Done;
                Ok(())
            }
            State::Trailers => self.trailer(line),
            _ => Err(malformed()),
        }
    }

    fn chunk_began(&mut self, line: &str) -> Result<()> {
        let (size, rest) = line.split_once(';').map_or((line, None), |(size, rest)| (size, Some(rest)));
        if size.is_empty() || !size.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(malformed());
        }
        let size = u64::from_str_radix(size, 16).map_err(|_| malformed())?;
        let signature = rest.and_then(|rest| rest.strip_prefix("chunk-signature=")).map(str::to_owned);
        if self.signer.is_some() != signature.is_some() {
            return Err(malformed());
        }
        self.left = self.left.checked_sub(size).ok_or_else(|| {
            S3Error::incomplete_body("The chunks have more bytes than x-amz-decoded-content-length says.")
        })?;
        if size == 0 {
            // The last one: the trailers follow at once.
            self.check_chunk(signature.as_deref())?;
            self.state = State::Trailers;
        } else {
            self.state = State::Data { left: size, signature };
        }
        Ok(())
    }

    fn chunk_ended(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.state, State::End) {
            State::Data { signature, .. } => self.check_chunk(signature.as_deref()),
            _ => Ok(()),
        }
    }

    fn check_chunk(&mut self, signature: Option<&str>) -> Result<()> {
        let Some(signer) = &mut self.signer else { return Ok(()) };
        let hash = std::mem::replace(&mut self.hash, Context::new(&SHA256));
        if signer.is_chunk(&sha256(hash), signature.unwrap_or_default()) {
            return Ok(());
        }
        Err(S3Error::signature_mismatch("The signature of a chunk does not match."))
    }

    fn trailer(&mut self, line: &str) -> Result<()> {
        let (name, value) = line.split_once(':').filter(|_| self.has_trailer).ok_or_else(malformed)?;
        let (name, value) = (name.trim().to_ascii_lowercase(), value.trim().to_owned());
        self.trailer_bytes += line.len();
        if self.trailer_bytes > limits::TRAILER_BYTES || self.trailer_signature.is_some() {
            return Err(malformed());
        }
        if name == "x-amz-trailer-signature" {
            self.trailer_signature = Some(value);
        } else {
            self.trailers.push((name, value));
        }
        Ok(())
    }

    /// Judges the end of the body. Returns the trailers.
    pub fn finish(mut self) -> Result<Vec<(String, String)>> {
        // The empty line at the end may be missing; the last chunk may not.
        let is_over = match self.state {
            State::Done => true,
            State::Trailers => self.line.iter().all(|byte| *byte == b'\r'),
            _ => false,
        };
        if !is_over || self.left > 0 {
            return Err(S3Error::incomplete_body("The body ended before its last chunk."));
        }
        if let Some(signer) = self.signer.as_mut().filter(|_| self.has_trailer) {
            let text: String = self.trailers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
            let signature = self.trailer_signature.as_deref().unwrap_or_default();
            if !signer.is_trailer(&text, signature) {
                return Err(S3Error::signature_mismatch("The signature of the trailers does not match."));
            }
        }
        Ok(self.trailers)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What was sent, and the trailers.
    type Received = (Vec<u8>, Vec<(String, String)>);

    fn read(length: u64, body: &[u8], step: usize, trailer: bool) -> Result<Received> {
        let (mut chunks, mut data) = (Chunks::new(length, None, trailer), Vec::new());
        for piece in body.chunks(step.max(1)) {
            chunks.push(piece, &mut |bytes| {
                data.extend_from_slice(bytes);
                Ok(())
            })?;
        }
        Ok((data, chunks.finish()?))
    }

    #[test]
    fn chunks_come_apart_however_they_arrive() {
        let body = b"4\r\nabcd\r\n2\r\nef\r\n0\r\nx-amz-checksum-crc32:AAAA\r\n\r\n";
        for step in 1..body.len() {
            let (data, trailers) = read(6, body, step, true).unwrap();
            assert_eq!(data, b"abcdef", "{step}");
            assert_eq!(trailers, [("x-amz-checksum-crc32".to_owned(), "AAAA".to_owned())]);
        }
        assert!(read(0, b"0\r\n\r\n", 3, false).is_ok());
        assert!(read(0, b"0\r\n", 3, false).is_ok());
    }

    #[test]
    fn bodies_that_are_wrong_are_refused() {
        let long = [b"1".repeat(600), b"\r\n".to_vec()].concat();
        for (length, body) in [
            (6, &b"4\r\nabcd\r\n0\r\n\r\n"[..]),
            (3, b"4\r\nabcd\r\n0\r\n\r\n"),
            (4, b"4\r\nabcd\r\n"),
            (4, b"4\r\nabcdX\r\n0\r\n\r\n"),
            (4, b"-4\r\nabcd\r\n0\r\n\r\n"),
            (4, b"+4\r\nabcd\r\n0\r\n\r\n"),
            (4, b"\r\nabcd\r\n0\r\n\r\n"),
            (4, b"4;chunk-signature=0\r\nabcd\r\n0\r\n\r\n"),
            (4, b"ffffffffffffffffff\r\nabcd"),
            (4, b"4\r\nabcd\r\n0\r\n\r\nmore"),
            (4, b"4\r\nabcd\r\n0\r\nunannounced:1\r\n\r\n"),
            (0, b""),
            (0, &long),
        ] {
            assert!(read(length, body, 7, false).is_err(), "{}", String::from_utf8_lossy(body));
        }
        let many = ["0\r\n", &"x-amz-a: 1\r\n".repeat(1_000)].concat();
        assert!(read(0, many.as_bytes(), 100, true).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_end_without_a_panic(body in proptest::collection::vec(any::<u8>(), 0..200), length in 0_u64..50) {
            if let Ok((data, _)) = read(length, &body, 5, true) {
                prop_assert_eq!(data.len() as u64, length);
            }
        }
    }
}
