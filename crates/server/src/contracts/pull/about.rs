//! What is known of the workers that call. It is kept for those who look after them; nothing is decided by it.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use tenure_contract::pull::WorkerAbout;
use tenure_core::command::claim::Claimer;
use tenure_core::{Timestamp, WorkerId, limits};
use tenure_engine::WorkerCall;
use tenure_engine::store::WorkerDetails;

use crate::state::App;

const CONTRACT: &str = "pull";
const TEXT_BYTES: usize = 128;
const OPERATORS: usize = 256;

/// A worker asks for work.
pub fn note(app: &App, claimer: &Claimer, streams: Option<&[String]>, about: Option<&WorkerAbout>) {
    let Some(worker) = &claimer.worker else { return };
    let streams = streams.unwrap_or_default().iter().take(limits::CLAIM_STREAMS);
    let queues: Vec<Arc<str>> = streams.map(|stream| plain(stream)).collect();
    let details = about.map(details);
    app.engine.saw_worker(WorkerCall { worker: &worker.id, contract: CONTRACT, queues: &queues, details });
}

/// A worker calls for another reason.
pub fn seen(app: &App, worker: &WorkerId) {
    app.engine.saw_worker(WorkerCall { worker, contract: CONTRACT, queues: &[], details: None });
}

fn details(about: &WorkerAbout) -> WorkerDetails {
    let text = |text: &Option<String>| text.as_deref().filter(|text| !text.is_empty()).map(plain);
    let operators = about.operators.as_deref().unwrap_or_default().iter().take(OPERATORS);
    WorkerDetails {
        hostname: text(&about.hostname),
        version: text(&about.version),
        slots: about.slots,
        operators: operators.map(|operator| plain(operator)).collect(),
        clock_ahead_ms: about.sent_at.as_deref().and_then(|at| Timestamp::parse(at).ok()).map(ahead_ms),
    }
}

/// How far a clock that shows `at` is ahead of this machine's.
pub fn ahead_ms(at: Timestamp) -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    at.as_millis().saturating_sub(i64::try_from(now).unwrap_or(i64::MAX))
}

fn plain(text: &str) -> Arc<str> {
    let clean: String = text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    limits::cut(&clean, TEXT_BYTES).into()
}
