//! What a new process does to become the first process of a sandbox: enter its groups, build its root, give up its
//! rights, and serve as its agent. It runs with one thread, in namespaces of its own, and sees the host until its root
//! is built.

mod dev;
mod privileges;
mod proc;
mod root;

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::thread::{Gid, Uid, set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use super::cgroup::CommandGroups;
use super::confinement::NamespaceConfinement;
use super::launch::{Descriptors, Launch, Report, receive, send};
use crate::agent::{AgentSettings, serve};
use crate::sys;

/// The name that a sandbox has for itself.
const HOST_NAME: &[u8] = b"sandbox";

/// The descriptors of a launch.
#[derive(Debug)]
pub(crate) struct Given {
    pub listener: OwnedFd,
    pub status: OwnedFd,
    pub start_group: Option<OwnedFd>,
    pub entries: Vec<OwnedFd>,
    pub commands: Vec<OwnedFd>,
    pub disk: Option<OwnedFd>,
    pub archive: Option<OwnedFd>,
}

impl Given {
    pub fn new(expected: &Descriptors, descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let missing = || io::Error::other("the launch lacks a descriptor");
        let mut descriptors = descriptors.into_iter();
        let listener = descriptors.next().ok_or_else(missing)?;
        let status = descriptors.next().ok_or_else(missing)?;
        let mut optional =
            |wanted: bool| if wanted { descriptors.next().ok_or_else(missing).map(Some) } else { Ok(None) };
        let start_group = optional(expected.start_group)?;
        let entries = (0..expected.entries).filter_map(|_| optional(true).transpose()).collect::<io::Result<_>>()?;
        let commands = (0..expected.commands).filter_map(|_| optional(true).transpose()).collect::<io::Result<_>>()?;
        let disk = optional(expected.disk)?;
        let archive = optional(expected.archive)?;
        Ok(Self { listener, status, start_group, entries, commands, disk, archive })
    }
}

/// Replaces the zygote's connection to the provider, which a copy of the zygote inherits as its standard input.
pub(crate) fn close_inherited(_socket: &BorrowedFd<'_>) {
    let null = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty());
    if !null.is_ok_and(|null| rustix::stdio::dup2_stdin(null).is_ok()) {
        sys::exit_process(1);
    }
}

/// Builds the sandbox and serves as its agent. A failure is reported by the status socket.
pub(crate) fn run(launch: &Launch, given: Given, zygote: OwnedFd) -> ! {
    sys::reset_signals();
    let status = given.status.try_clone();
    let failed = match build(launch, given, zygote) {
        Ok(never) => match never {},
        Err(error) => error,
    };
    if let Ok(status) = status {
        let _ = send(status.as_fd(), &Report::Failed(failed.to_string()), &[]);
    }
    sys::exit_process(1)
}

fn build(launch: &Launch, given: Given, zygote: OwnedFd) -> io::Result<std::convert::Infallible> {
    // The ids are mapped once the zygote has answered.
    let Some(((), trees)) = receive::<()>(&zygote)? else { return Err(io::Error::other("the zygote ended")) };
    drop(zygote);
    // The sandbox's view of groups begins at those of version 1 that the agent is in, and of version 2 above it.
    let (early, late) = given.entries.split_at(given.entries.len() - usize::from(launch.descriptors.late_entry));
    for entry in early {
        rustix::io::write(entry, b"0").map_err(step("enter a group"))?;
    }
    sys::new_cgroup_namespace()?;
    for entry in late {
        rustix::io::write(entry, b"0").map_err(step("enter a group"))?;
    }
    become_root_inside(launch)?;

    let writable = root::build(launch, trees, given.disk, given.archive)?;
    rustix::system::sethostname(HOST_NAME).map_err(step("set the host name"))?;
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    sys::bring_loopback_up(socket.as_fd())?;
    drop(socket);
    let proxy = launch.proxy_port.map(|port| TcpListener::bind(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)));
    let proxy = proxy.transpose()?.map(OwnedFd::from);

    let commands = CommandGroups::new(launch.commands.clone(), given.commands)?;
    privileges::drop_for_agent(launch)?;
    let descriptors: Vec<&OwnedFd> = [Some(&writable), proxy.as_ref()].into_iter().flatten().collect();
    let report =
        Report::Ready { writable_number: writable.as_raw_fd(), proxy_number: proxy.as_ref().map(AsRawFd::as_raw_fd) };
    send(given.status.as_fd(), &report, &descriptors)?;
    // The provider has noted this process when it answers. Without an answer nobody would ever end it.
    if receive::<()>(&given.status)?.is_none() {
        sys::exit_process(0);
    }
    let confinement = NamespaceConfinement::new(commands, launch)?;
    let settings = AgentSettings { root: "/".into(), parent: launch.die_with_parent.then_some(given.status) };
    // What provider calls need of the writable layer and the proxy is passed out; here they stay open to be adopted.
    let _kept = (writable, proxy);
    serve(UnixListener::from(given.listener), confinement, settings)
        .map_err(|error| io::Error::other(error.to_string()))
}

/// Files of the sandbox belong to its root at first. Without a range of ids the process keeps its own.
fn become_root_inside(launch: &Launch) -> io::Result<()> {
    if launch.ids.iter().any(|range| range.inside == 0 && range.count > 1) {
        set_thread_groups(&[]).map_err(step("drop groups"))?;
        set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT).map_err(step("become root inside"))?;
        set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).map_err(step("become root inside"))?;
    }
    Ok(())
}

/// Says which step failed.
fn step(what: &str) -> impl Fn(rustix::io::Errno) -> io::Error + '_ {
    move |errno| {
        let error = io::Error::from(errno);
        io::Error::new(error.kind(), format!("cannot {what}: {error}"))
    }
}
