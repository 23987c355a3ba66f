use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::cgroup::{Cgroups, GroupLimits, SandboxGroups};
use super::disk::Disks;
use super::launch::{Descriptors, IdRange, Launch, Report, receive, send};
use super::record::{ProcessIdentity, Record, socket_path};
use super::sandbox::{end, remove_folder};
use super::zygote::Zygote;

/// How long a new sandbox may take until it is ready. It takes milliseconds on a machine with idle cores.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// Everything that is decided about a sandbox before it is made.
#[derive(Debug)]
pub(crate) struct Plan {
    pub record: Record,
    pub folder: PathBuf,
    pub limits: GroupLimits,
    pub launch: Launch,
    /// The size of a disk and who owns it, if the writable layer is not in memory.
    pub disk: Option<(u64, u32)>,
    /// An archive to fill the writable layer with.
    pub archive: Option<OwnedFd>,
}

/// A sandbox that runs.
#[derive(Debug)]
pub(crate) struct Spawned {
    pub record: Record,
    pub folder: PathBuf,
    pub process: OwnedFd,
    pub status: OwnedFd,
    pub writable: OwnedFd,
    pub proxy: Option<OwnedFd>,
}

/// Makes a sandbox and waits until it is ready. A failure leaves nothing.
pub(crate) fn spawn(
    zygote: &Zygote,
    cgroups: &Cgroups,
    disks: Option<&Disks>,
    owner: u32,
    mut plan: Plan,
) -> io::Result<Spawned> {
    make_folder(&plan.folder)?;
    let groups = match SandboxGroups::create(cgroups, &plan.record.id, &plan.limits, (owner, owner)) {
        Ok(groups) => groups,
        Err(error) => {
            let _ = remove_folder(&plan.folder);
            return Err(error);
        }
    };
    plan.record.groups = groups;
    let (folder, mut record) = (plan.folder.clone(), plan.record.clone());
    let mut process = None;
    match start(zygote, disks, plan, &mut record, &mut process) {
        Ok(spawned) => Ok(spawned),
        Err(error) => {
            let _ = end(&record, process.as_ref());
            let _ = remove_folder(&folder);
            Err(error)
        }
    }
}

fn start(
    zygote: &Zygote,
    disks: Option<&Disks>,
    plan: Plan,
    record: &mut Record,
    process: &mut Option<OwnedFd>,
) -> io::Result<Spawned> {
    // The groups are noted before there is a process in them.
    record.write(&plan.folder)?;
    let disk = match (plan.disk, disks) {
        (Some((bytes, owner)), Some(disks)) => Some(disks.make(bytes, &record.id, owner)?),
        (Some(_), None) => return Err(io::Error::other("this machine cannot make disks for sandboxes")),
        (None, _) => None,
    };
    let listener = OwnedFd::from(listen(&plan.folder)?);
    let (status, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&status, Timeout::Recv, Some(READY_TIMEOUT))?;
    let start_group = record.groups.unified()?;
    let (entries, late_entry) = record.groups.agent_entries()?;
    let (commands, command_descriptors) = record.groups.command_plan()?;
    let mut launch = plan.launch;
    launch.descriptors = Descriptors {
        start_group: start_group.is_some(),
        entries: entries.len(),
        late_entry,
        commands: command_descriptors.len(),
        disk: disk.is_some(),
        archive: plan.archive.is_some(),
    };
    launch.commands = commands;
    let mut descriptors = vec![&listener, &theirs];
    descriptors.extend(&start_group);
    descriptors.extend(&entries);
    descriptors.extend(&command_descriptors);
    descriptors.extend(&disk);
    descriptors.extend(&plan.archive);

    let (pid, pidfd) = zygote.launch(&launch, &descriptors)?;
    let process = process.insert(pidfd);
    // Only the sandbox holds its end now, so its death is seen.
    drop(theirs);
    record.process = Some(ProcessIdentity::of(pid)?);
    let (report, descriptors) = receive::<Report>(&status)
        .map_err(|error| io::Error::new(error.kind(), format!("the sandbox did not become ready: {error}")))?
        .ok_or_else(|| io::Error::other("the sandbox ended before it was ready"))?;
    match report {
        Report::Failed(reason) => return Err(io::Error::other(reason)),
        Report::Ready { writable_number, proxy_number } => {
            record.writable_number = Some(writable_number);
            record.proxy_number = proxy_number;
        }
    }
    let mut descriptors = descriptors.into_iter();
    let writable = descriptors.next().ok_or_else(|| io::Error::other("the sandbox has no writable layer"))?;
    let proxy = descriptors.next();
    record.groups.delegate()?;
    record.groups.limit_commands(&plan.limits)?;
    record.rewrite(&plan.folder)?;
    // Until now the sandbox ends by itself if this process ends.
    send(status.as_fd(), &(), &[])?;
    set_socket_timeout(&status, Timeout::Recv, None)?;
    Ok(Spawned { record: record.clone(), folder: plan.folder, process: process.try_clone()?, status, writable, proxy })
}

/// The range of ids of a slot, or the one id that an unprivileged process can give: first of users, then of groups.
pub(crate) fn ids(first_id: u32, slot: u32, user: u32) -> (Vec<IdRange>, Vec<IdRange>) {
    let euid = rustix::process::geteuid();
    if euid.is_root() {
        let range = vec![IdRange { inside: 0, outside: first_id + slot * IDS_PER_SANDBOX, count: IDS_PER_SANDBOX }];
        return (range.clone(), range);
    }
    let one = |outside| vec![IdRange { inside: user, outside, count: 1 }];
    (one(euid.as_raw()), one(rustix::process::getegid().as_raw()))
}

pub(crate) const IDS_PER_SANDBOX: u32 = 65536;

fn make_folder(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new().mode(0o700).create(folder)
}

/// The path of a socket is short; that of the folder may not be. So it is bound through a descriptor of the folder.
fn listen(folder: &Path) -> io::Result<UnixListener> {
    let dir = std::fs::File::open(folder)?;
    UnixListener::bind(through(&dir, &socket_path(folder)))
}

/// A short path for a file in a folder that is open.
pub(crate) fn through(dir: &std::fs::File, path: &Path) -> PathBuf {
    use std::os::fd::AsRawFd as _;
    let name = path.file_name().unwrap_or_default();
    Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(name)
}
