//! What the provider asks of its zygote: everything that a sandbox is made of, as data and descriptors.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::cgroup::CommandPlan;

/// The largest message between the provider and its zygote.
const MAX_MESSAGE_BYTES: usize = 128 * 1024;

/// The most descriptors that a message carries.
const MAX_DESCRIPTORS: usize = 64;

/// A range of ids inside a sandbox, and the ids of this machine that they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct IdRange {
    pub inside: u32,
    pub outside: u32,
    pub count: u32,
}

/// A directory of the image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Layer {
    /// On this machine.
    pub source: PathBuf,
    /// In the sandbox: empty for its root, otherwise a name in its root.
    pub target: String,
}

/// A host directory to show in the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bind {
    pub source: PathBuf,
    /// Absolute, inside the sandbox.
    pub target: String,
    pub read_only: bool,
}

/// A sandbox to make.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Launch {
    pub ids: Vec<IdRange>,
    pub group_ids: Vec<IdRange>,
    pub layers: Vec<Layer>,
    /// Links in the root of the sandbox: name and target.
    pub links: Vec<(String, String)>,
    pub binds: Vec<Bind>,
    /// Whether the files of the image keep their owners, by a mapping on the mount.
    pub id_mapped: bool,
    pub read_only_root: bool,
    pub disk_bytes: u64,
    /// Of commands and file calls, inside.
    pub user: u32,
    /// The loopback port of the proxy, if there is one.
    pub proxy_port: Option<u16>,
    pub landlock: bool,
    pub seccomp: bool,
    pub process_limits: ProcessLimits,
    /// Whether the sandbox ends with its provider's end of the status socket.
    pub die_with_parent: bool,
    pub commands: CommandPlan,
    pub descriptors: Descriptors,
}

/// Limits of each process of a command, where no group holds them for all.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct ProcessLimits {
    pub address_space_bytes: Option<u64>,
    /// Processes of the sandbox's user.
    pub processes: Option<u64>,
}

/// The descriptors of a launch, in this order: the listening socket of the agent, its status socket, the group to start
/// in, the files to enter other groups by, the descriptors of the groups of commands, the disk, the archive to restore.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Descriptors {
    pub start_group: bool,
    pub entries: usize,
    /// Whether the last of them is entered after the view of groups was made.
    pub late_entry: bool,
    pub commands: usize,
    pub disk: bool,
    pub archive: bool,
}

/// The zygote's answer. A descriptor of the process comes with a pid.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Launched {
    Pid(i32),
    Failed(String),
}

/// What a new sandbox says about itself, once.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    /// With descriptors of the writable layer and, if it was asked for, of the proxy's listening socket. The numbers are
    /// what the sandbox has them as, for a provider that adopts it.
    Ready {
        writable_number: i32,
        proxy_number: Option<i32>,
    },
    Failed(String),
}

/// Sends one message with descriptors.
pub(crate) fn send<T: Serialize>(socket: impl AsFd, message: &T, descriptors: &[&OwnedFd]) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    if bytes.len() > MAX_MESSAGE_BYTES || descriptors.len() > MAX_DESCRIPTORS {
        return Err(io::Error::other("the description of the sandbox is too large"));
    }
    let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !borrowed.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&borrowed)) {
        return Err(io::Error::other("too many descriptors"));
    }
    let sent = sendmsg(socket, &[io::IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
    if sent == bytes.len() { Ok(()) } else { Err(io::Error::other("a message was cut")) }
}

/// Receives one message with descriptors; none at the end of the connection.
pub(crate) fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; MAX_MESSAGE_BYTES];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(&socket, &mut [io::IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other?,
        }
    };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::Error::other("a message was cut"));
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    Ok(Some((serde_json::from_slice(&bytes[..received.bytes])?, descriptors)))
}
