use super::Report;
use crate::config::Config;
use crate::net;
use crate::objects::ObjectPlace;

/// Whether what is sent to an address leaves the machine unencrypted.
pub(super) fn crosses_network(url: &str) -> bool {
    let is_near = |rest: &str| net::is_loopback(net::host_of(rest.split(['/', '?', '#']).next().unwrap_or_default()));
    url.strip_prefix("http://").is_some_and(|rest| !is_near(rest))
}

pub(super) fn check(config: &Config, report: &mut Report) {
    let store = &config.objects;
    if store.endpoint_url.as_deref().is_some_and(crosses_network) {
        let fix = "use https:// in dispatch.object_store.endpoint_url, or remove it";
        report.risk("dispatch.object_store.endpoint_url", "outputs cross the network unencrypted", fix);
    } else {
        report.pass("dispatch.object_store.endpoint_url", "is encrypted, or on a loopback address");
    }
    match &store.place {
        ObjectPlace::S3(_) => report.pass("dispatch.object_store.url", "outputs are kept in S3"),
        ObjectPlace::Folder(_) if config.store.is_postgres() => report.warn(
            "dispatch.object_store.url",
            "outputs are kept in a folder, which other control planes must see as well",
            "keep outputs in S3, or put the folder on a file system that all control planes share",
        ),
        ObjectPlace::Folder(_) => report.pass("dispatch.object_store.url", "outputs are kept in a local folder"),
    }
    let shared = store.write_prefixes.iter().filter(|template| !template.names_task()).count();
    if shared > 0 {
        let fix = "put {task_id} into each of dispatch.write_prefixes";
        let message = format!(
            "{shared} prefix(es) are shared by tasks, which may overwrite each other; only jobs with `runtime: worker` get them"
        );
        report.warn("dispatch.write_prefixes", message, fix);
    } else {
        report.pass("dispatch.write_prefixes", "every task has prefixes of its own");
    }
}
