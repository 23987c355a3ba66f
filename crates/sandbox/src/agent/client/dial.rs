use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketType, recvmsg};
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};

use super::{ANSWER_PATIENCE, Client, done, in_time, lost, parse_answer, send, unexpected};
use crate::agent::protocol::{HEADER_BYTES, Request, parse_header, wrong};
use crate::error::Result;

/// The longest answer to a dial.
const MAX_ANSWER_BYTES: usize = 8 << 10;

impl Client {
    /// Connects to a port on the sandbox's loopback address. The agent makes the connection and passes it on.
    pub(crate) async fn dial(&self, port: u16) -> Result<TcpStream> {
        let mut stream = self.connect().await?;
        send(&mut stream, &Request::Dial { port }).await?;
        let (bytes, passed) = in_time(ANSWER_PATIENCE, receive(&mut stream)).await?;
        let header = *bytes.first_chunk::<HEADER_BYTES>().ok_or_else(unexpected)?;
        let (frame, length) = parse_header(header, MAX_ANSWER_BYTES).map_err(lost)?;
        if bytes.len() != HEADER_BYTES + length {
            return Err(unexpected());
        }
        done(parse_answer(frame, &bytes[HEADER_BYTES..])?)?;
        connection(passed.ok_or_else(unexpected)?).map_err(lost)
    }
}

/// Nothing but a TCP connection is accepted from the agent.
fn connection(passed: OwnedFd) -> io::Result<TcpStream> {
    let tcp = matches!(socket_domain(&passed)?, AddressFamily::INET | AddressFamily::INET6)
        && socket_type(&passed)? == SocketType::STREAM;
    if !tcp {
        return Err(wrong("a descriptor that is not a connection"));
    }
    let connection = std::net::TcpStream::from(passed);
    connection.set_nonblocking(true)?;
    TcpStream::from_std(connection)
}

/// Receives an answer and the descriptor that came with it.
async fn receive(stream: &mut UnixStream) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
    let (mut bytes, mut passed) = (Vec::new(), None);
    loop {
        let length = stream
            .async_io(Interest::READABLE, || {
                let mut buffer = [0; 1024];
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut control = RecvAncillaryBuffer::new(&mut space);
                let mut parts = [io::IoSliceMut::new(&mut buffer)];
                let received = recvmsg(&*stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
                for message in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(fds) = message {
                        passed = fds.last().or(passed.take());
                    }
                }
                bytes.extend_from_slice(&buffer[..received.bytes]);
                Ok(received.bytes)
            })
            .await?;
        if length == 0 || bytes.len() > HEADER_BYTES + MAX_ANSWER_BYTES {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(header) = bytes.first_chunk::<HEADER_BYTES>() {
            let (_, wanted) = parse_header(*header, MAX_ANSWER_BYTES)?;
            if bytes.len() >= HEADER_BYTES + wanted {
                return Ok((bytes, passed));
            }
        }
    }
}
