//! What runs in a container: the agent, with a socket that it gets from outside.

use std::convert::Infallible;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

use super::{CONTAINER_ARGUMENT, RUN_TARGET};
use crate::agent::{AgentSettings, CommandConfinement, CommandUsage, Confinement, serve};
use crate::sys;

/// The socket at which a new container fetches its own socket. It is removed when that is done.
pub(super) const BOOT_SOCKET: &str = "boot.sock";

/// Passes the agent its listening socket. The container cannot write to any folder of the host for that, and cannot
/// reach the place where the socket is.
pub(super) fn pass_listener(connection: &UnixStream, listener: &OwnedFd, die_with_parent: bool) -> io::Result<()> {
    let descriptors = [listener.as_fd()];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(connection, &[IoSlice::new(&[u8::from(die_with_parent)])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn receive_listener(connection: &UnixStream) -> io::Result<(UnixListener, bool)> {
    let mut flag = [0_u8];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(connection, &mut [IoSliceMut::new(&mut flag)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let listener = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
        _ => None,
    });
    match listener {
        Some(listener) if received.bytes == 1 => Ok((UnixListener::from(listener), flag[0] == 1)),
        _ => Err(io::Error::other("the provider sent no socket")),
    }
}

/// Becomes the agent of a container if this program was started as one, and then does not return.
pub(crate) fn agent_main() {
    if std::env::args_os().nth(1).is_some_and(|argument| argument == CONTAINER_ARGUMENT) {
        // Nobody reads what it could say.
        let Err(_) = run();
        std::process::exit(1);
    }
}

fn run() -> io::Result<Infallible> {
    // Commands have the user of the agent. They must not attach to it, nor reach its descriptors.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    let connection = UnixStream::connect(format!("{RUN_TARGET}/{BOOT_SOCKET}"))?;
    let (listener, die_with_parent) = receive_listener(&connection)?;
    let parent = die_with_parent.then(|| OwnedFd::from(connection));
    serve(listener, Contained, AgentSettings { root: "/".into(), parent }).map_err(io::Error::other)
}

/// The daemon confines the container; the agent adds only what concerns single commands.
#[derive(Debug, Clone, Copy)]
struct Contained;

impl Confinement for Contained {
    type Command = Self;

    fn prepare(&self) -> io::Result<Self> {
        Ok(Self)
    }

    fn supervised(&self) -> bool {
        true
    }

    /// Not by the daemon's `pause`, which would stop the agent too, and with it the deadline.
    fn set_frozen(&self, frozen: bool) -> io::Result<()> {
        sys::signal_all_others(if frozen { rustix::process::Signal::STOP } else { rustix::process::Signal::CONT })
    }
}

impl CommandConfinement for Contained {
    fn enter(&self, _: bool) -> io::Result<()> {
        Ok(rustix::thread::set_no_new_privs(true)?)
    }

    /// The supervisor of the command does it.
    fn kill(&self) -> io::Result<()> {
        Ok(())
    }

    fn usage(&self) -> CommandUsage {
        CommandUsage::default()
    }
}
