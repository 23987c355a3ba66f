//! After everything has healed: waits until nothing is left to do, and reads what became of every range.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;
use tokio::time::sleep;

use super::checker::{Ended, FinalTask, Place};
use super::user::Outputs;
use crate::ending::{find, get};
use crate::http::Http;

/// Between two looks that must find the same: the router looks for events of other control planes twice a second.
const STILL: Duration = Duration::from_secs(2);

/// Waits until no task waits or runs, and none comes for a while. Whether that came in time.
pub async fn wait(http: &Http, patience: Duration) -> Result<bool> {
    let until = Instant::now() + patience;
    let mut still = None;
    loop {
        let (left, all) = counts(http).await?;
        match still {
            Some((seen, since)) if left == 0 && seen == all => {
                if Instant::elapsed(&since) > STILL {
                    return Ok(true);
                }
            }
            _ => still = (left == 0).then(|| (all, Instant::now())),
        }
        if Instant::now() > until {
            return Ok(false);
        }
        sleep(Duration::from_millis(250)).await;
    }
}

/// Tasks that wait or run, and all.
async fn counts(http: &Http) -> Result<(u64, u64)> {
    let queues = get(http, "/api/v1/queues?limit=1000").await?;
    let (mut left, mut all) = (0, 0);
    for queue in queues["items"].as_array().context("a list has items")? {
        let count = |place: &str| queue["counts"][place].as_u64().unwrap_or_default();
        let open = count("scheduled") + count("ready") + count("running");
        left += open;
        all += open + count("finished");
    }
    Ok((left, all))
}

/// The datasets of the outputs that are read, by job and output.
pub async fn outputs(http: &Http) -> Result<Outputs> {
    let datasets = get(http, "/api/v1/datasets?limit=1000").await?;
    let mut outputs = Outputs::new();
    for dataset in datasets["items"].as_array().context("a list has items")? {
        let (job, output) = (dataset["producer"]["job"].as_str(), dataset["producer"]["output_index"].as_u64());
        if let (Some(job), Some(output), Some(id)) = (job, output, dataset["dataset_uuid"].as_str()) {
            outputs.insert(format!("{job}:{output}"), id.to_owned());
        }
    }
    Ok(outputs)
}

pub async fn read(http: &Http, outputs: &Outputs) -> Result<Ended> {
    let mut ended = Ended::default();
    let mut cursor = String::new();
    loop {
        let page = get(http, &format!("/api/v1/tasks?limit=1000{cursor}")).await?;
        for task in page["items"].as_array().context("a list has items")? {
            let id = task["task_id"].as_str().context("a task has an id")?;
            if let Some(task) = find(http, &format!("/api/v1/tasks/{id}")).await? {
                ended.tasks.insert(id.to_owned(), task_of(&task));
            }
        }
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    for (name, id) in outputs {
        let partitions = ended.partitions.entry(name.clone()).or_default();
        let mut cursor = String::new();
        loop {
            let page = get(http, &format!("/api/v1/datasets/{id}?limit=1000{cursor}")).await?;
            let page = &page["partitions"];
            for row in page["items"].as_array().context("a list has items")? {
                let key = row["partition_key"].as_str().unwrap_or_default().to_owned();
                let generation = row["generation"].as_u64().unwrap_or_default();
                partitions.insert(key, (generation, !row["materialized_at"].is_null()));
            }
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
    }
    Ok(ended)
}

fn task_of(task: &Value) -> FinalTask {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let inputs = task["payload"]["inputs"].as_array();
    let cause = inputs.into_iter().flatten().find(|input| !input["position"].is_null());
    let cause = cause.map(|input| {
        let position = &input["position"];
        let place = match position["partition"]["key"].as_str() {
            Some(key) => Place::Range(key.to_owned()),
            None => Place::Row(position["cursor"].as_u64().unwrap_or_default()),
        };
        (place, input["generation"].as_u64().unwrap_or_default())
    });
    let fired =
        task["payload"]["trigger"]["input"].as_str().and_then(|input| serde_json::from_str::<Value>(input).ok());
    let n = fired.and_then(|input| input["n"].as_u64());
    FinalTask { job: text(&task["operator"]), state: text(&task["state"]), cause, n }
}

/// Named parts of a run's end, for people.
pub fn by_job(ended: &Ended) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for task in ended.tasks.values() {
        *counts.entry(task.job.as_str()).or_default() += 1;
    }
    counts
}
