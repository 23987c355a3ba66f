//! What a provider finds when it starts: sandboxes of a former process that still run, which it takes over, and remains
//! of others, which it removes.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FileType, fstat};
use rustix::process::{PidfdGetfdFlags, pidfd_getfd};

use super::cgroup::remove_tree;
use super::egress::{AllowList, Proxy};
use super::provider::Inner;
use super::record::Record;
use super::sandbox::{Sandbox, end, find_process, remove_folder};
use crate::error::{Error, Result};
use crate::provider::{Runtime, RuntimeId, RuntimeState};
use crate::spec::Egress;

/// What names of sandboxes of this provider begin with.
pub(super) const ID_PREFIX: &str = "ns-";

/// Takes over what runs and removes the rest. Must run in a Tokio runtime: proxies are started.
pub(super) fn adopt(inner: &Inner) -> Result<Vec<Runtime>> {
    let failed =
        |error: io::Error| Error::internal(format!("cannot look for former sandboxes: {error}")).with_source(error);
    let mut found: Vec<Sandbox> = Vec::new();
    for entry in std::fs::read_dir(inner.folder("")).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let id = entry.file_name().to_string_lossy().into_owned();
        // Folders of sandboxes that this process makes now are not former ones.
        if inner.knows(&id) {
            continue;
        }
        match take_over(&entry.path()) {
            Some(sandbox) => found.push(sandbox),
            None => remove_remains(inner, &id, &entry.path()),
        }
    }
    // A restore that was cut off has left two: the new one was ready, so the old one goes.
    found.sort_by_key(|sandbox| sandbox.record.instance_ms);
    let mut adopted = HashMap::new();
    for sandbox in found {
        let id = RuntimeId(sandbox.record.runtime_id.clone());
        inner.use_slot(sandbox.record.slot);
        let sandbox = Arc::new(sandbox);
        adopted.insert(id.clone(), sandbox.runtime());
        let replaced = inner.sandboxes().insert(id, sandbox);
        if let Some(replaced) = replaced {
            inner.end_instance(&replaced)?;
        }
    }
    sweep_groups(inner);
    sweep_holds(inner)?;
    sweep_host_copies(inner).map_err(failed)?;
    Ok(adopted.into_values().collect())
}

/// A sandbox that still runs and was not asked to end with its creator.
fn take_over(folder: &Path) -> Option<Sandbox> {
    let record = Record::read(folder).ok()?;
    if record.spec.die_with_parent {
        return None;
    }
    let process = find_process(record.process.as_ref()?)?;
    let writable = foreign(&process, record.writable_number?)?;
    if !fstat(&writable).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory) {
        return None;
    }
    let proxy = match (&record.spec.egress, record.proxy_number) {
        (Egress::Allow(hosts), Some(number)) => {
            let hosts = record.allowed_hosts.as_ref().unwrap_or(hosts);
            let list = AllowList::parse(hosts).ok()?;
            Some(Proxy::serve(foreign(&process, number)?, list, record.spec.gateway).ok()?)
        }
        _ => None,
    };
    let sandbox = Sandbox::new(record, folder.to_owned(), process, writable, None, proxy).ok()?;
    (sandbox.state() != RuntimeState::Stopped).then_some(sandbox)
}

fn foreign(process: &OwnedFd, number: i32) -> Option<OwnedFd> {
    pidfd_getfd(process, number, PidfdGetfdFlags::empty()).ok()
}

/// Ends what is left of a sandbox. What cannot be removed now is tried again at the next start.
fn remove_remains(inner: &Inner, id: &str, folder: &Path) {
    let removed = match Record::read(folder) {
        Ok(record) => {
            let process = record.process.as_ref().and_then(find_process);
            end(&record, process.as_ref())
        }
        // The record is written before there is a process.
        Err(_) => Ok(()),
    };
    if let Err(error) = removed.and_then(|()| remove_folder(folder)) {
        tracing::warn!(sandbox = id, %error, "the remains of a sandbox cannot be removed");
        return;
    }
    let _ = inner.settings.images.release(id);
}

/// Groups without a folder: their creation was cut off before there was a process.
fn sweep_groups(inner: &Inner) {
    for hierarchy in &inner.cgroups.hierarchies {
        let Ok(entries) = std::fs::read_dir(&hierarchy.dir) else { continue };
        for entry in entries.flatten() {
            let id = entry.file_name().to_string_lossy().into_owned();
            if id.starts_with(ID_PREFIX) && !inner.knows(&id) && !inner.folder(&id).exists() {
                let _ = remove_tree(&entry.path());
            }
        }
    }
}

fn sweep_holds(inner: &Inner) -> Result<()> {
    for id in inner.settings.images.holders()? {
        if id.starts_with(ID_PREFIX) && !inner.knows(&id) && !inner.folder(&id).exists() {
            inner.settings.images.release(&id)?;
        }
    }
    Ok(())
}

/// Copies of the host's settings that no sandbox uses.
fn sweep_host_copies(inner: &Inner) -> io::Result<()> {
    let used: HashSet<String> = inner
        .sandboxes()
        .values()
        .filter_map(|sandbox| sandbox.record.host_copy.clone())
        .chain([inner.host_copy().to_owned()])
        .collect();
    for entry in std::fs::read_dir(&inner.settings.state_dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("host-") && !used.contains(&name) {
            std::fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}
