use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Mutex, Semaphore, mpsc};

use super::{Client, PROGRESS_PATIENCE, done, lost, receive, send, unexpected};
use crate::agent::protocol::{End, ExecRequest, Frame, Request, read_frame_async, write_frame_async};
use crate::error::{Error, Result};
use crate::execution::{
    Chunk, Control, Event, Execution, Exit, MAX_CHUNK_BYTES, MAX_WAITING_CHUNKS, OutputStream, Signal, Usage,
};
use crate::spec::{Command, Terminal};

impl Client {
    /// Starts a command. `env` has all its variables.
    pub(crate) async fn exec(&self, command: &Command, env: BTreeMap<String, String>) -> Result<Execution> {
        command.validate()?;
        let mut stream = self.connect().await?;
        let request = Request::Exec(ExecRequest {
            argv: command.argv.clone(),
            env,
            workdir: command.workdir.clone(),
            timeout_ms: command.timeout.map(|timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)),
            stdin: command.stdin,
            terminal: command.terminal.map(|size| (size.rows, size.columns)),
        });
        send(&mut stream, &request).await?;
        done(receive(&mut stream).await?)?;
        let connection = std::os::fd::AsFd::as_fd(&stream).try_clone_to_owned().map_err(lost)?;
        let (input, output) = stream.into_split();
        let (events, received) = mpsc::channel(MAX_WAITING_CHUNKS);
        let control = Arc::new(AgentControl {
            output: Mutex::new(output),
            room: Semaphore::new(1),
            connection,
            terminal: command.terminal.is_some(),
            stdin: command.stdin || command.terminal.is_some(),
        });
        tokio::spawn(pump(input, events, Arc::clone(&control)));
        Ok(Execution::new(received, control))
    }
}

/// Passes on what the agent sends. While the reader does not take events it reads nothing, and so the command blocks.
async fn pump(mut input: OwnedReadHalf, events: mpsc::Sender<Event>, control: Arc<AgentControl>) {
    loop {
        let event = match read_frame_async(&mut input, MAX_CHUNK_BYTES).await {
            Ok((Frame::Accepted, _)) => {
                // More than one would be wrong, and would do no harm to anybody but the sandbox.
                if control.room.available_permits() == 0 {
                    control.room.add_permits(1);
                }
                continue;
            }
            Ok((Frame::Stdout, bytes)) => output(OutputStream::Stdout, bytes),
            Ok((Frame::Stderr, bytes)) => output(OutputStream::Stderr, bytes),
            Ok((Frame::End, bytes)) => end(&bytes),
            Ok(_) => Event::Failed(unexpected()),
            Err(error) => Event::Failed(lost(error)),
        };
        let last = !matches!(event, Event::Output(_));
        if last {
            control.room.close();
        }
        // It fails if the reader is gone, and then the command was killed.
        if events.send(event).await.is_err() || last {
            control.room.close();
            return;
        }
    }
}

fn output(stream: OutputStream, bytes: Vec<u8>) -> Event {
    Event::Output(Chunk { stream, bytes: Bytes::from(bytes) })
}

fn end(bytes: &[u8]) -> Event {
    match serde_json::from_slice(bytes) {
        Ok(End::Exited { code, out_of_memory, wall_us, cpu_us, peak_memory_bytes }) => Event::Exited(Exit {
            code,
            out_of_memory,
            usage: Usage {
                wall: Duration::from_micros(wall_us),
                cpu: cpu_us.map(Duration::from_micros),
                peak_memory_bytes,
            },
        }),
        Ok(End::Failed(failure)) => Event::Failed(failure.into()),
        Err(_) => Event::Failed(unexpected()),
    }
}

#[derive(Debug)]
struct AgentControl {
    output: Mutex<OwnedWriteHalf>,
    /// One permit when the agent takes input; closed when the command has ended.
    room: Semaphore,
    /// Shut down to kill the command.
    connection: OwnedFd,
    terminal: bool,
    stdin: bool,
}

impl AgentControl {
    /// An agent that ended the connection is not an error here: the end of the execution says why.
    async fn send(&self, frame: Frame, payload: &[u8]) -> Result<()> {
        let mut output = self.output.lock().await;
        let sending = write_frame_async(&mut *output, frame, payload);
        match tokio::time::timeout(PROGRESS_PATIENCE, sending).await {
            Ok(_) => Ok(()),
            Err(_) => Err(lost(std::io::ErrorKind::TimedOut.into())),
        }
    }
}

#[async_trait]
impl Control for AgentControl {
    async fn write_stdin(&self, bytes: Bytes) -> Result<()> {
        if !self.stdin {
            return Ok(());
        }
        for piece in bytes.chunks(MAX_CHUNK_BYTES) {
            let Ok(room) = self.room.acquire().await else { return Ok(()) };
            room.forget();
            self.send(Frame::Stdin, piece).await?;
        }
        Ok(())
    }

    async fn close_stdin(&self) -> Result<()> {
        self.send(Frame::CloseStdin, &[]).await
    }

    async fn resize(&self, size: Terminal) -> Result<()> {
        if !self.terminal {
            return Err(Error::invalid("the command has no terminal"));
        }
        let ([r0, r1], [c0, c1]) = (size.rows.to_le_bytes(), size.columns.to_le_bytes());
        self.send(Frame::Resize, &[r0, r1, c0, c1]).await
    }

    async fn signal(&self, signal: Signal) -> Result<()> {
        let number = u8::try_from(signal as i32).unwrap_or(0);
        self.send(Frame::Signal, &[number]).await
    }

    fn kill(&self) {
        // It fails if the agent has ended the connection.
        let _ = rustix::net::shutdown(&self.connection, rustix::net::Shutdown::Both);
    }
}
