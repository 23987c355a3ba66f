//! Tasks that are pushed to a worker's address instead of being claimed.
//!
//! Grant and push intent are one row, committed before anything is sent. So a crash never loses a push: another control
//! plane, or this one after its restart, finds the row when its time has come and repeats it. Every delivery of one
//! attempt has the same ids, by which workers tell a repeat.

mod answer;
mod circuit;
mod dispatcher;
mod envelope;
mod exchange;
mod settings;
mod targets;
mod test;

use std::time::Instant;

use tenure_contract::Json;
use tenure_contract::user::WhyReason;
use tenure_core::queue::QueueId;

use crate::error::Fault;
use crate::state::App;

pub use answer::Verdict;
pub use circuit::Circuits;
use circuit::Name;
pub use dispatcher::start;
pub use settings::{block, shown};
pub use targets::PushTargets;
pub use test::{PushTest, PushTestReport};

/// Why nothing is granted from a queue that pushes its tasks: its target does not answer.
pub async fn target_down(app: &App, queue: QueueId) -> Result<Option<WhyReason>, Fault> {
    let Some(targets) = &app.push else { return Ok(None) };
    let view = app.engine.store().queue(queue).await.map_err(tenure_engine::EngineError::from)?;
    let Some(queue) = view.map(|view| view.queue) else { return Ok(None) };
    let Some(push) = &queue.settings.push else { return Ok(None) };
    let Ok(target) = targets.get().client.check_url(&push.url) else { return Ok(None) };
    let origin = target.to_string();
    Ok(app.circuits.open_for(&Name::of(&queue.name, push), Instant::now()).map(|open| WhyReason {
        code: "push_target_down".to_owned(),
        message: format!("the worker at {origin} does not answer: nothing is pushed until a probe succeeds"),
        since: None,
        detail: Some(Json::from(serde_json::json!({"target": origin, "open_seconds": open.as_secs()}))),
    }))
}
