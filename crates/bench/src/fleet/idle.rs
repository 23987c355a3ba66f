//! What sandboxes cost the control plane while nobody uses them: heartbeats, renewals of leases, reconciliation.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::task::JoinSet;

use super::api::Api;
use super::workers::WorkerProcess;
use super::{Options, PATIENCE};
use crate::load;
use crate::progress::Watch;
use crate::report::{count, percent};
use crate::stand::{Place, Stand, Usage};

/// Many sandboxes that do nothing take little with this provider, and the control plane sees no difference.
const PROVIDER: &str = "process";
const IMAGE: &str = "host";
/// Clients that create them.
const CLIENTS: usize = 4;
/// How long the control plane alone is looked at.
const ALONE: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_secs(1);

/// The cost of known sandboxes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct IdleCost {
    pub sandboxes: usize,
    pub workers: usize,
    pub seconds: f64,
    /// Of one core, used by the control plane.
    pub processor: Option<f64>,
    /// Of one core, used by a Postgres that was started here.
    pub store_processor: Option<f64>,
    /// What the control plane used of one core before it had a worker.
    pub alone_processor: Option<f64>,
    /// In RAM, with the sandboxes.
    pub memory_bytes: Option<u64>,
}

impl IdleCost {
    pub fn line(&self) -> String {
        let share = |value: Option<f64>| value.map_or_else(|| "an unknown share".to_owned(), tenths);
        let store = self.store_processor.map(|share| format!(", and Postgres {}", tenths(share))).unwrap_or_default();
        format!(
            "{} sandboxes that nobody uses on {} workers cost the control plane {} of a core{store} (without them: {})",
            count(self.sandboxes as f64),
            self.workers,
            share(self.processor),
            share(self.alone_processor)
        )
    }
}

/// Small shares need a digit more.
fn tenths(share: f64) -> String {
    if share < 0.1 { format!("{:.1} %", share * 100.0) } else { percent(share) }
}

pub async fn measure(
    tenure: &Path,
    place: &Place,
    stand: &Stand,
    options: &Options,
    progress: &Watch,
) -> Result<IdleCost> {
    let alone = Usage::begin(stand, Some(place));
    tokio::time::sleep(ALONE).await;
    let (alone_processor, _) = alone.end();
    let mut workers = Vec::new();
    for number in 0..options.workers {
        workers.push(WorkerProcess::start(tenure, place, stand, &format!("bench-idle-{number}"), PROVIDER)?);
    }
    let api = Api::new(&stand.target, PROVIDER, IMAGE);
    api.wait_for_workers(options.workers, PATIENCE).await.with_context(|| workers[0].said())?;
    progress.begin("sandboxes that nobody uses", options.known as u64);
    let mut creating = JoinSet::new();
    for number in 0..CLIENTS {
        let share = options.known / CLIENTS + usize::from(number < options.known % CLIENTS);
        let (api, progress) = (api.clone(), Arc::clone(progress));
        creating.spawn(async move {
            for _ in 0..share {
                api.create(json!({})).await?;
                progress.advance(1);
            }
            Ok(())
        });
    }
    load::all(creating).await?;
    progress.begin("nobody uses them", options.seconds as u64);
    let (usage, begun) = (Usage::begin(stand, Some(place)), Instant::now());
    while begun.elapsed().as_secs_f64() < options.seconds {
        tokio::time::sleep(STEP).await;
        progress.advance(1);
    }
    let (processor, store_processor) = usage.end();
    Ok(IdleCost {
        sandboxes: options.known,
        workers: options.workers,
        seconds: options.seconds,
        processor,
        store_processor,
        alone_processor,
        memory_bytes: stand.memory(),
    })
}
