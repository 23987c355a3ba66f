//! Pushes: what the configuration has for them, and whether the queues that push find it there.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use tenure_config::Config;
use tenure_core::queue::{Push, Queue};
use tenure_server::PushTargets;

use super::Finding;
use crate::access;

const CHECK: &str = "push";
/// Beyond these, queues that fail are only counted.
const SHOWN: usize = 10;
/// Names that are looked up at a time, and how long one may take.
const LOOKUPS: usize = 16;
const LOOKUP: Duration = Duration::from_secs(5);

pub async fn check(config: &Config, queues: &[Queue]) -> Vec<Finding> {
    let dev_mode = !config.auth.enabled;
    let own_url = format!("http://{}:{}", config.server.host, config.server.port);
    let targets = match access::push_targets(config, dev_mode, Some(&own_url)) {
        Ok(targets) => targets,
        Err(error) => {
            let fix = "fix the files of push.mtls and their permissions; `tenure serve` would not start";
            return vec![Finding::fail(CHECK, format!("{error:#}"), fix)];
        }
    };
    let pushing: Vec<_> =
        queues.iter().filter_map(|queue| Some((&*queue.name, queue.settings.push.as_deref()?))).collect();
    if pushing.is_empty() {
        return vec![Finding::ok(CHECK, "no queue pushes tasks")];
    }
    if targets.base_url.is_none() {
        let count = count(pushing.len());
        let fix = "set callback.base_url to the address where workers reach this control plane";
        let message = format!("callback.base_url is not set, and {count}: nothing is pushed");
        return vec![Finding::fail(CHECK, message, fix)];
    }
    let mut findings: Vec<_> = stream::iter(&pushing)
        .map(async |(name, push)| {
            let problem = problem(&targets, push).await?;
            let fix = format!(
                "fix the configuration, or the queue with `tenure queue set`; `tenure push test` tests its address, \
                 `tenure queue show {name}` shows it"
            );
            Some(Finding::fail(CHECK, format!("queue {name}: {problem}"), fix))
        })
        .buffered(LOOKUPS)
        .filter_map(async |finding| finding)
        .collect()
        .await;
    let more = findings.len().saturating_sub(SHOWN);
    findings.truncate(SHOWN);
    if more > 0 {
        findings.push(Finding::fail(CHECK, format!("{more} more queues"), "fix the first ones, then check again"));
    }
    if findings.is_empty() {
        let to = targets.base_url.unwrap_or_default();
        findings.push(Finding::ok(CHECK, format!("{}, and workers report to {to}", count(pushing.len()))));
    }
    findings
}

async fn problem(targets: &PushTargets, push: &Push) -> Option<String> {
    let route = match targets.route(push) {
        Ok(route) => route,
        Err(problem) => return Some(problem),
    };
    match tokio::time::timeout(LOOKUP, route.client.check_address(&push.url)).await {
        Ok(judged) => judged.err().map(|error| error.to_string()),
        Err(_) => Some(format!("the host name in its address was not resolved within {} s", LOOKUP.as_secs())),
    }
}

fn count(queues: usize) -> String {
    if queues == 1 { "1 queue pushes tasks".to_owned() } else { format!("{queues} queues push tasks") }
}
