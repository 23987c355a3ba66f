use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::UnixStream;

use crate::agent::protocol::{Frame, HEADER_BYTES, MAX_DATA_BYTES, parse_header, wrong};

/// The content of a file as it comes from the agent. An agent that goes away before its end is an error.
#[derive(Debug)]
pub(super) struct Content {
    stream: UnixStream,
    header: [u8; HEADER_BYTES],
    /// Bytes of the header that are there.
    filled: usize,
    /// Bytes of the piece that are missing.
    left: usize,
    ended: bool,
}

impl Content {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self { stream, header: [0; HEADER_BYTES], filled: 0, left: 0, ended: false }
    }
}

impl AsyncRead for Content {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if this.ended || buffer.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            if this.left > 0 {
                let most = this.left.min(buffer.remaining());
                let mut piece = ReadBuf::new(buffer.initialize_unfilled_to(most));
                ready!(Pin::new(&mut this.stream).poll_read(context, &mut piece))?;
                let length = piece.filled().len();
                if length == 0 {
                    return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                }
                buffer.advance(length);
                this.left -= length;
                return Poll::Ready(Ok(()));
            }
            let mut header = ReadBuf::new(&mut this.header[this.filled..]);
            ready!(Pin::new(&mut this.stream).poll_read(context, &mut header))?;
            match header.filled().len() {
                0 => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                length => this.filled += length,
            }
            if this.filled == HEADER_BYTES {
                this.filled = 0;
                match parse_header(this.header, MAX_DATA_BYTES)? {
                    (Frame::Content, length) => this.left = length,
                    (Frame::ContentEnd, _) => this.ended = true,
                    _ => return Poll::Ready(Err(wrong("a frame that is not content"))),
                }
            }
        }
    }
}
