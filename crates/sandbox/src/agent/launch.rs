//! Starts commands.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::sync::Arc;

use rustix::pipe::{PipeFlags, pipe_with};

use super::confinement::{CommandConfinement, Confinement};
use super::exec::{Output, Process};
use super::protocol::{ExecRequest, Frame};
use super::reaper::Reaper;
use super::server::Agent;
use crate::error::{Error, ErrorKind, Result};
use crate::files::SandboxPath;
use crate::spec::WORKSPACE;
use crate::start::{cannot_start, failed_program};
use crate::sys::supervisor;
use crate::{sys, terminal};

pub(super) enum Start {
    Running(Streams, Process),
    /// The program does not exist or is not one.
    Ended(i32, String),
}

/// The agent's ends of a command's streams.
pub(super) struct Streams {
    pub(super) input: Option<OwnedFd>,
    pub(super) terminal: Option<OwnedFd>,
    pub(super) outputs: Vec<Output>,
}

pub(super) fn start<C: Confinement>(
    agent: &Agent<C>,
    request: &ExecRequest,
    confinement: &Arc<C::Command>,
) -> Result<Start> {
    let (Some(program), false) = (request.argv.first(), request.argv.iter().any(|text| text.contains('\0'))) else {
        return Err(Error::invalid("the command is empty or contains a NUL byte"));
    };
    let path = SandboxPath::parse(request.workdir.as_deref().unwrap_or(WORKSPACE))?;
    let directory = agent.root.directory(&path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => Error::invalid(format!("the working directory {path} does not exist")),
        _ => error,
    })?;
    let (streams, theirs) = connect(agent, request).map_err(cannot_start)?;
    let started = match &agent.reaper {
        Some(reaper) if !agent.confinement.supervised() => start_here(reaper, request, theirs, &directory, confinement),
        reaper => start_supervised(reaper.as_ref(), request, theirs, directory, confinement),
    };
    match started {
        Ok(process) => Ok(Start::Running(streams, process)),
        Err(error) => failed_program(program, error).map(|(code, text)| Start::Ended(code, text)),
    }
}

/// Starts a command whose processes its groups and the first process of the namespace find again.
fn start_here(
    reaper: &Reaper,
    request: &ExecRequest,
    theirs: [OwnedFd; 3],
    directory: &OwnedFd,
    confinement: &Arc<impl CommandConfinement>,
) -> io::Result<Process> {
    let program = sys::Program::new(&request.argv, &request.env)?;
    let step = |in_group: bool| {
        sys::become_leader(directory.as_fd(), request.terminal.is_some())?;
        confinement.enter(in_group)
    };
    let streams = theirs.each_ref().map(AsFd::as_fd);
    let (leader, ended) = reaper.spawn(|| sys::spawn_program(&program, streams, confinement.start_group(), &step))?;
    Ok(Process { leader, child: None, ended: Some(ended), reports: None, orders: None })
}

/// Starts a command below a supervisor.
fn start_supervised(
    reaper: Option<&Reaper>,
    request: &ExecRequest,
    [stdin, stdout, stderr]: [OwnedFd; 3],
    directory: OwnedFd,
    confinement: &Arc<impl CommandConfinement>,
) -> io::Result<Process> {
    let mut command = Command::new(request.argv.first().map_or("", String::as_str));
    command.args(request.argv.iter().skip(1)).env_clear().envs(&request.env);
    command.stdin(stdin).stdout(stdout).stderr(stderr);
    let line = supervisor::supervise(&mut command, directory, request.terminal.is_some())?;
    let entered = Arc::clone(confinement);
    sys::in_child(&mut command, move || entered.enter(false));
    let mut child = None;
    let mut start = || {
        let started = child.insert(command.spawn()?);
        // A process id is a positive number of 22 bits at most.
        Ok(started.id().cast_signed())
    };
    let (leader, ended) = match reaper {
        Some(reaper) => reaper.spawn(start).map(|(leader, ended)| (leader, Some(ended))),
        None => start().map(|leader| (leader, None)),
    }?;
    Ok(Process { leader, child, ended, reports: Some(line.reports), orders: Some(line.orders) })
}

/// The ends of the agent, and those of the command: stdin, stdout and stderr.
fn connect<C>(agent: &Agent<C>, request: &ExecRequest) -> io::Result<(Streams, [OwnedFd; 3])> {
    let output = |frame: Frame, source: OwnedFd| -> io::Result<Output> {
        rustix::io::ioctl_fionbio(&source, true)?;
        Ok(Output { frame, source: Some(source), log: agent.console.writer(), left: 0 })
    };
    if let Some(size) = request.terminal() {
        let (ours, theirs) = terminal::open(size)?;
        let theirs = [theirs.try_clone()?, theirs.try_clone()?, theirs];
        let outputs = vec![output(Frame::Stdout, ours.try_clone()?)?];
        return Ok((Streams { input: Some(ours.try_clone()?), terminal: Some(ours), outputs }, theirs));
    }
    let (their_in, input) = if request.stdin {
        let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        (theirs, Some(ours))
    } else {
        (OwnedFd::from(std::fs::File::open("/dev/null")?), None)
    };
    let (out, their_out) = pipe_with(PipeFlags::CLOEXEC)?;
    let (err, their_err) = pipe_with(PipeFlags::CLOEXEC)?;
    let outputs = vec![output(Frame::Stdout, out)?, output(Frame::Stderr, err)?];
    Ok((Streams { input, terminal: None, outputs }, [their_in, their_out, their_err]))
}
