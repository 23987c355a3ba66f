use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

use super::protocol::{
    Answer, Frame, HEADER_BYTES, MAX_DATA_BYTES, Request, encode, header, read_frame, write_frame, wrong,
};
use crate::error::{Error, Result};
use crate::files::{Root, failed_io};

/// Answers a file call. None if the answer was sent.
pub(super) fn answer(root: &Root, connection: &UnixStream, request: Request) -> Result<Option<Answer>> {
    Ok(Some(match request {
        Request::Read { path } => {
            read(root, connection, &path)?;
            return Ok(None);
        }
        Request::Write { path, mode } => {
            write(root, connection, &path, mode)?;
            Answer::Done
        }
        Request::List { path } => Answer::Files(root.list(&path)?.into_iter().map(Into::into).collect()),
        Request::Delete { path, recursive } => {
            root.delete(&path, recursive)?;
            Answer::Done
        }
        Request::Move { from, to } => {
            root.rename(&from, &to)?;
            Answer::Done
        }
        Request::Chmod { path, mode } => {
            root.chmod(&path, mode)?;
            Answer::Done
        }
        Request::Stat { path } => Answer::File(root.stat(&path)?.into()),
        Request::Glob { pattern } => Answer::Texts(root.glob(&pattern)?),
        _ => return Err(Error::invalid("not a file call")),
    }))
}

/// Sends a file in pieces. After the first a failure can only be told by ending the connection early.
fn read(root: &Root, mut connection: &UnixStream, path: &str) -> Result<()> {
    let (info, mut file) = root.read(path)?;
    let send = || -> io::Result<()> {
        write_frame(&mut connection, Frame::Answer, &encode(&Answer::File(info.into())))?;
        let mut buffer = vec![0; HEADER_BYTES + MAX_DATA_BYTES];
        loop {
            let length = match file.read(&mut buffer[HEADER_BYTES..]) {
                Ok(0) => return write_frame(&mut connection, Frame::ContentEnd, &[]),
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            buffer[..HEADER_BYTES].copy_from_slice(&header(Frame::Content, length));
            connection.write_all(&buffer[..HEADER_BYTES + length])?;
        }
    };
    // The client sees the end of the connection before the end of the content.
    let _ = send();
    Ok(())
}

/// Takes a file in pieces, after an answer that it can be sent.
fn write(root: &Root, mut connection: &UnixStream, path: &str, mode: u32) -> Result<()> {
    let mut pending = root.create(path, mode)?;
    let lost = |error: io::Error| Error::unavailable(format!("{path} was not received")).with_source(error);
    write_frame(&mut connection, Frame::Answer, &encode(&Answer::Done)).map_err(lost)?;
    loop {
        match read_frame(&mut connection, MAX_DATA_BYTES).map_err(lost)? {
            (Frame::Content, bytes) => {
                pending.write_all(&bytes).map_err(|error| failed_io("write", &path, &error))?;
            }
            (Frame::ContentEnd, _) => return pending.commit(),
            _ => return Err(lost(wrong("a frame that is not content"))),
        }
    }
}
