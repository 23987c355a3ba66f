use super::{Level, Report};
use crate::config::Config;
use crate::database::Driver;
use crate::net;
use crate::sandboxes::DockerSettings;

pub(super) fn check(config: &Config, report: &mut Report) {
    providers(config, report);
    namespace(config, report);
    if config.providers.docker.enabled {
        docker(&config.providers.docker, report);
    }
}

/// Belongs to the checks of the worker.
pub(super) fn advertise_url(config: &Config, report: &mut Report) {
    let check = "worker.advertise_url";
    let listen = config.worker.listen_addr.as_deref().map(net::host_of);
    match (&config.worker.advertise_url, listen) {
        (Some(_), _) => report.pass(check, "is set"),
        (None, Some(host)) if net::is_unspecified(host) => {
            let fix = "set worker.advertise_url to an address that the control plane can connect to";
            report.risk(check, "is missing, and the worker listens on all addresses", fix);
        }
        (None, _) => report.pass(check, "follows from the listen address"),
    }
}

/// Belongs to the checks of the worker.
pub(super) fn local(config: &Config, report: &mut Report) {
    let check = "worker.local";
    if config.worker.local && config.database.driver == Driver::Postgres {
        let fix = "set worker.local: false, and run `tenure worker` beside it";
        report.warn(check, "the control plane runs sandboxes in its own process, beside a shared store", fix);
    } else if config.worker.local {
        report.pass(check, "is on, beside a store of one control plane");
    } else {
        report.pass(check, "is off");
    }
}

/// Belongs to the checks of the database and of defaults.
pub(super) fn defaults(config: &Config, report: &mut Report) {
    let defaults = &config.defaults;
    let rules = [
        (
            "defaults.sandbox_caps",
            defaults.max_sandboxes == 0 || defaults.max_sandboxes_per_owner == 0,
            "the number of sandboxes, or that of one owner, has no limit",
            "set defaults.max_sandboxes and defaults.max_sandboxes_per_owner above 0",
        ),
        (
            "defaults.max_spawn_queue",
            defaults.max_spawn_queue == 0,
            "the number of waiting requests has no limit",
            "set defaults.max_spawn_queue above 0",
        ),
        (
            "defaults.exec_timeouts",
            defaults.default_exec_timeout.is_zero() || defaults.max_exec_timeout.is_zero(),
            "commands in sandboxes have no time limit of their own",
            "set defaults.default_exec_timeout and defaults.max_exec_timeout above 0",
        ),
        (
            "defaults.max_ttl",
            defaults.max_ttl.is_zero(),
            "sandboxes may live forever",
            "set a limit, such as defaults.max_ttl: 24h",
        ),
    ];
    for (check, is_unlimited, message, fix) in rules {
        if is_unlimited {
            report.risk(check, message, fix);
        } else {
            report.pass(check, "has a limit");
        }
    }
}

fn providers(config: &Config, report: &mut Report) {
    let providers = &config.providers;
    if providers.process.enabled || providers.default == "process" {
        let fix = "set providers.process.enabled: false and providers.default: namespace";
        report.risk("providers.process", "sandboxes can run without isolation", fix);
    } else {
        report.pass("providers.process", "is off");
    }
    let enabled = match providers.default.as_str() {
        "namespace" => Some(providers.namespace.enabled),
        "docker" => Some(providers.docker.enabled),
        "process" => Some(providers.process.enabled),
        _ => None,
    };
    let check = "providers.default";
    match enabled {
        Some(true) => report.pass(check, providers.default.clone()),
        Some(false) => {
            let fix = "enable it, or set another providers.default";
            report.add(Level::Fail, check, format!("{} is not enabled", providers.default), fix);
        }
        None => {
            let fix = "set providers.default to namespace, docker or process";
            report.add(Level::Fail, check, "is not a provider that exists".to_owned(), fix);
        }
    }
}

fn namespace(config: &Config, report: &mut Report) {
    let namespace = &config.providers.namespace;
    if namespace.seccomp {
        report.pass("namespace.seccomp", "system calls are filtered");
    } else {
        report.risk("namespace.seccomp", "system calls are not filtered", "set providers.namespace.seccomp: default");
    }
    if namespace.egress_allow_list {
        let fix = "set providers.namespace.egress: deny, unless sandboxes need hosts of a list";
        report.risk("namespace.egress", "sandboxes may ask for hosts that they can reach", fix);
    } else {
        report.pass("namespace.egress", "deny");
    }
    let limits = [namespace.max_memory_mb, namespace.max_vcpus, namespace.pids_limit, namespace.disk_mb];
    if limits.contains(&0) {
        let fix = "set providers.namespace.max_memory_mb, providers.namespace.max_vcpus, providers.namespace.pids_limit and \
                   providers.namespace.disk_mb above 0";
        report.risk("namespace.resource_limits", "memory, processors, processes or disk are without limit", fix);
    } else {
        report.pass("namespace.resource_limits", "are set");
    }
    if namespace.image_aliases.contains_key("*") {
        let fix = "list the images in providers.namespace.image_aliases";
        report.warn("namespace.image_aliases", "`*` maps every unknown image", fix);
    } else {
        report.pass("namespace.image_aliases", format!("{} alias(es)", namespace.image_aliases.len()));
    }
}

fn docker(docker: &DockerSettings, report: &mut Report) {
    let rules = [
        ("docker.runtime", docker.runtime.is_empty(), "is empty", "set providers.docker.runtime: runc"),
        (
            "docker.network_mode",
            matches!(docker.network_mode.as_str(), "" | "host"),
            "containers share the network of the machine",
            "set providers.docker.network_mode: none",
        ),
        (
            "docker.seccomp_profile",
            matches!(docker.seccomp_profile.as_str(), "" | "unconfined"),
            "system calls are not filtered",
            "set providers.docker.seccomp_profile: default",
        ),
        (
            "docker.added_caps",
            !docker.added_caps.is_empty(),
            "containers have capabilities",
            "remove providers.docker.added_caps",
        ),
        (
            "docker.dropped_caps",
            !docker.dropped_caps.iter().any(|cap| cap.eq_ignore_ascii_case("ALL")),
            "containers keep capabilities",
            "set providers.docker.dropped_caps: [ALL]",
        ),
        (
            "docker.resource_limits",
            docker.memory_bytes == 0 || docker.cpus == 0.0 || docker.pids_limit == 0,
            "memory, processors or processes are without limit",
            "set providers.docker.memory, providers.docker.cpus and providers.docker.pids_limit above 0",
        ),
        (
            "docker.user",
            docker.user.is_none(),
            "containers run as the user of their image, which may be root",
            "set providers.docker.user, such as 1000:1000",
        ),
    ];
    for (check, is_wrong, message, fix) in rules {
        if is_wrong {
            report.risk(check, message, fix);
        } else {
            report.pass(check, "is safe");
        }
    }
    if docker.read_only_rootfs {
        report.pass("docker.read_only_rootfs", "is on");
    } else {
        let fix = "set providers.docker.read_only_rootfs: true, if the work allows it";
        report.warn("docker.read_only_rootfs", "containers can write anywhere in their layer", fix);
    }
}
