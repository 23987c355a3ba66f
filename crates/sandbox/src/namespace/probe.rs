use super::cgroup::{Backend, Cgroups, Role};
use crate::capabilities::{Capabilities, Support};

/// What the provider enforces on this machine, from what the groups took and what a trial sandbox did.
pub(super) fn capabilities(cgroups: &Cgroups, id_mapped: bool) -> Capabilities {
    let backend = cgroups.backend();
    let advice = advice(cgroups);
    let by_group = |role: Role, weak: &str| {
        if cgroups.has(role) {
            Support::enforced(format!("{backend}"))
        } else {
            Support::best_effort(format!("{weak}: {}", reason(cgroups)), advice.clone())
        }
    };
    let net = Support::enforced("own network namespace with loopback only; allowed hosts through a proxy");
    let snapshot = if id_mapped {
        Support::enforced("archive of the writable layer")
    } else {
        Support::best_effort(
            "archive of the writable layer; files of the image that belong to others cannot be changed",
            "run the worker as root, on a kernel with mapped mounts (5.19 or newer)",
        )
    };
    Capabilities {
        memory: by_group(Role::Memory, "address space of each process"),
        cpu: if cgroups.has(Role::Cpu) {
            Support::enforced(format!("{backend}"))
        } else {
            Support::none(reason(cgroups), advice.clone())
        },
        pids: by_group(Role::Pids, "processes of the sandbox's user"),
        disk: Support::enforced("file system of fixed size in memory"),
        net,
        snapshot,
        egress_allow_list: true,
        freeze: cgroups.has(Role::Freeze),
        ports: true,
        terminal: true,
        adopt: true,
    }
}

fn reason(cgroups: &Cgroups) -> String {
    match cgroups.refusals.first() {
        Some(refusal) => refusal.clone(),
        None => "no cgroup hierarchy is mounted".to_owned(),
    }
}

fn advice(cgroups: &Cgroups) -> String {
    if cgroups.backend() == Backend::None && !rustix::process::geteuid().is_root() {
        "run the worker as root, or delegate a group to it: `systemd-run --user --scope -p Delegate=yes …`".to_owned()
    } else {
        "delegate a cgroup with memory, cpu and pids to the worker alone, for example by `Delegate=yes` in its unit"
            .to_owned()
    }
}
