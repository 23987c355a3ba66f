//! After everything has healed: waits until every task has ended, and reads how each of them stands.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::checker::{Ended, FinalAttempt, FinalTask};
use super::history::now;
use super::http::{Http, Reply};

/// How long one read may be tried again.
const PATIENCE: Duration = Duration::from_secs(60);

/// Reads at a time.
const AT_ONCE: usize = 8;

/// Waits until no task waits or runs. Whether that came in time.
///
/// Asked is for the counts of the queues: each is read at one point in time. Lists by state are not, and a task that
/// moves from one to the other can be in neither.
pub async fn wait_for_the_end(http: &Http, patience: Duration) -> Result<bool> {
    let until = Instant::now() + patience;
    loop {
        // What a redrive releases is in a queue before the redrive is done.
        let redrives = get(http, "/api/v1/redrives?limit=1000").await?;
        let redrives = redrives["items"].as_array().context("a list has items")?;
        let queues = get(http, "/api/v1/queues?limit=1000").await?;
        let queues = queues["items"].as_array().context("a list has items")?;
        let left = |queue: &Value| ["scheduled", "ready", "running"].iter().any(|place| queue["counts"][*place] != 0);
        if !queues.iter().any(left) && redrives.iter().all(|redrive| redrive["state"] == "done") {
            return Ok(true);
        }
        if Instant::now() > until {
            return Ok(false);
        }
        sleep(Duration::from_millis(250)).await;
    }
}

/// Every task there is, and every task that somebody was told of.
pub async fn read(http: &Http, told: impl IntoIterator<Item = String>, ttl_ms: u64) -> Result<Ended> {
    let at = now();
    let mut ids: BTreeMap<String, ()> = told.into_iter().map(|id| (id, ())).collect();
    let mut cursor = String::new();
    loop {
        let page = get(http, &format!("/api/v1/tasks?limit=1000{cursor}")).await?;
        for task in page["items"].as_array().context("a list has items")? {
            ids.insert(task["task_id"].as_str().context("a task has an id")?.to_owned(), ());
        }
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    let mut ended = Ended { at, ..Ended::default() };
    let mut reading = JoinSet::new();
    let mut ids = ids.into_keys();
    loop {
        while reading.len() < AT_ONCE {
            let Some(id) = ids.next() else { break };
            let http = http.clone();
            reading.spawn(async move { (id.clone(), task(&http, &id, ttl_ms).await) });
        }
        let Some(read) = reading.join_next().await else { break };
        let (id, task) = read?;
        ended.tasks.extend(task?.map(|task| (id, task)));
    }
    Ok(ended)
}

/// `None` when there is no such task.
async fn task(http: &Http, id: &str, ttl_ms: u64) -> Result<Option<FinalTask>> {
    let Some(task) = find(http, &format!("/api/v1/tasks/{id}")).await? else { return Ok(None) };
    let attempts = get(http, &format!("/api/v1/tasks/{id}/attempts")).await?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let attempts = attempts["items"].as_array().context("a list has items")?.iter().map(|attempt| FinalAttempt {
        attempt: number(&attempt["attempt"]) as u32,
        attempt_id: text(&attempt["attempt_id"]),
        fence: number(&attempt["fence"]),
        worker: text(&attempt["worker_id"]),
        reason: text(&attempt["reason"]),
    });
    Ok(Some(FinalTask {
        nonce: text(&task["payload"]["nonce"]),
        state: text(&task["state"]),
        attempt: number(&task["attempt"]) as u32,
        fence: number(&task["fence"]),
        result: task.get("result").map(Value::to_string),
        ttl_ms,
        attempts: attempts.collect(),
    }))
}

pub(crate) async fn get(http: &Http, path: &str) -> Result<Value> {
    find(http, path).await?.with_context(|| format!("{path} is not there"))
}

/// Asks all control planes in turn until one of them answers.
pub(crate) async fn find(http: &Http, path: &str) -> Result<Option<Value>> {
    let until = Instant::now() + PATIENCE;
    for turn in 0_usize.. {
        match http.get(turn % http.servers(), path).await {
            Reply::Told { status: 200, body } => return Ok(Some(body)),
            Reply::Told { status: 404, .. } => return Ok(None),
            Reply::Told { status, body } => anyhow::bail!("{path} is refused with {status}: {body}"),
            other if Instant::now() > until => anyhow::bail!("{path} gets no answer: {other:?}"),
            _ => sleep(Duration::from_millis(200)).await,
        }
    }
    Ok(None)
}
