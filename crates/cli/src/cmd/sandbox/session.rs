//! A command in a sandbox of the server, with its output and perhaps its input here.

use std::io::{self, Write};

use anyhow::Context;
use bytes::Bytes;
use tenure_client::sandboxes::{ExecEvent, ExecInput, ExecOutput};
use tenure_client::{ClientError, Sandbox};
use tenure_contract::sandboxes::{ExecRequest, ExecStart};
use tenure_sandbox::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::run::{BROKEN_PIPE, OWN_FAILURE, Signals, TIMED_OUT, by_signal, read_input};
use super::terminal::{self, RawTerminal};
use crate::exit::Exit;

/// In the sandbox: the best shell that it has.
const SHELL: &str = "if command -v bash >/dev/null 2>&1; then exec bash; else exec sh; fi";

/// A shell with this terminal, or with standard input as its script.
pub async fn shell(sandbox: &Sandbox) -> Exit {
    let tty = terminal::is_interactive();
    let request = ExecRequest { command: SHELL.to_owned(), ..ExecRequest::default() };
    super::exec::own_failure(interactive(sandbox, request, tty).await)
}

/// The code of the process for that of a command.
pub fn code(exit_code: i32) -> u8 {
    u8::try_from(exit_code & 0xff).unwrap_or(u8::MAX)
}

/// The code for a command that could not be followed to its end.
pub fn code_of(error: &anyhow::Error) -> u8 {
    let timed_out =
        error.chain().any(|cause| matches!(cause.downcast_ref(), Some(ClientError::Api { status: 408, .. })));
    if timed_out { TIMED_OUT } else { OWN_FAILURE }
}

/// Output alone. A signal ends the command, because the server ends a command that nobody reads.
pub async fn follow(sandbox: &Sandbox, request: &ExecRequest) -> anyhow::Result<u8> {
    let mut signals = Signals::listen()?;
    let mut stream = tokio::select! {
        stream = sandbox.stream(request) => stream?,
        signal = signals.next() => return Ok(by_signal(signal)),
    };
    loop {
        let event = tokio::select! {
            event = stream.next() => event.context("the stream ended")??,
            signal = signals.next() => return Ok(by_signal(signal)),
        };
        if let Some(code) = show(&event)? {
            return Ok(code);
        }
    }
}

/// Input, output, signals, and with `tty` a terminal.
pub async fn interactive(sandbox: &Sandbox, mut exec: ExecRequest, tty: bool) -> anyhow::Result<u8> {
    let raw = tty && terminal::is_interactive();
    if raw && let Ok(term) = std::env::var("TERM") {
        exec.env.entry("TERM".to_owned()).or_insert(term);
    }
    let size = terminal::size();
    let start = ExecStart {
        exec,
        tty,
        rows: tty.then_some(size.rows),
        cols: tty.then_some(size.columns),
        ..ExecStart::default()
    };
    let mut signals = Signals::listen()?;
    let (input, mut output) = sandbox.open(&start).await?;
    // Restored when this returns: before anything else is said.
    let _raw = if raw { Some(RawTerminal::enter().context("the terminal cannot be used")?) } else { None };
    let passing = tokio::spawn(pass_input(read_input()?, input.clone()));
    let ended = until_end(&mut output, &input, &mut signals, raw).await;
    passing.abort();
    ended
}

async fn until_end(output: &mut ExecOutput, input: &ExecInput, signals: &mut Signals, raw: bool) -> anyhow::Result<u8> {
    let mut resized = signal(SignalKind::window_change())?;
    // Signals and sizes go out beside the output: a command that does not read its input must not hold them up for ever.
    let (controls, mut waiting) = mpsc::channel::<Control>(8);
    let sender = input.clone();
    let sending = tokio::spawn(async move {
        while let Some(control) = waiting.recv().await {
            let sent = match control {
                Control::Signal(signal) => sender.signal(name(signal)).await,
                Control::Resize => {
                    let size = terminal::size();
                    sender.resize(size.rows, size.columns).await
                }
            };
            if sent.is_err() {
                return;
            }
        }
    });
    let ended = loop {
        tokio::select! {
            event = output.next() => {
                let event = match event {
                    Some(Ok(event)) => event,
                    Some(Err(error)) => break Err(error.into()),
                    None => break Err(anyhow::anyhow!("the connection ended")),
                };
                match show(&event) {
                    Ok(None) => {}
                    Ok(Some(code)) => break Ok(code),
                    Err(error) => break Err(error),
                }
            }
            signal = signals.next() => {
                if controls.try_send(Control::Signal(signal)).is_err() {
                    break Ok(by_signal(signal));
                }
            }
            _ = resized.recv(), if raw => {
                let _ = controls.try_send(Control::Resize);
            }
        }
    };
    sending.abort();
    ended
}

enum Control {
    Signal(Signal),
    Resize,
}

fn name(signal: Signal) -> &'static str {
    match signal {
        Signal::Hup => "HUP",
        Signal::Int => "INT",
        Signal::Quit => "QUIT",
        Signal::Usr1 => "USR1",
        Signal::Usr2 => "USR2",
        Signal::Kill => "KILL",
        _ => "TERM",
    }
}

async fn pass_input(mut chunks: mpsc::Receiver<Bytes>, input: ExecInput) {
    while let Some(bytes) = chunks.recv().await {
        // A command that has ended reads no more.
        if input.write(&bytes).await.is_err() {
            return;
        }
    }
    let _ = input.close().await;
}

/// Writes output here. Returns the code of this process when that was the last of it.
fn show(event: &ExecEvent) -> anyhow::Result<Option<u8>> {
    // A slow reader must not hold up signals.
    let written = tokio::task::block_in_place(|| match event {
        ExecEvent::Stdout(bytes) => {
            let mut stdout = io::stdout().lock();
            stdout.write_all(bytes).and_then(|()| stdout.flush())
        }
        ExecEvent::Stderr(bytes) => io::stderr().write_all(bytes),
        ExecEvent::Exited { .. } => Ok(()),
    });
    match (written, event) {
        (Ok(()), ExecEvent::Exited { exit_code: Some(exit_code), .. }) => Ok(Some(code(*exit_code))),
        (Ok(()), ExecEvent::Exited { exit_code: None, .. }) => {
            anyhow::bail!("the command ended, but its worker does not report exit codes of streams: use --json")
        }
        (Ok(()), _) => Ok(None),
        (Err(error), _) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Some(BROKEN_PIPE)),
        (Err(error), _) => Err(error).context("the output could not be written"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_command_and_an_unknown_one_is_no_success() {
        assert_eq!((code(0), code(7), code(137), code(256 + 3)), (0, 7, 137, 3));
        let late = anyhow::Error::new(ClientError::Api {
            status: 408,
            code: tenure_client::ErrorClass::Timeout,
            error: "timeout".into(),
            message: "too long".into(),
            field: None,
            request_id: None,
        });
        assert_eq!(code_of(&late.context("exec")), TIMED_OUT);
        assert_eq!(code_of(&anyhow::anyhow!("lost")), OWN_FAILURE);
    }
}
