//! Tasks that are pushed to workers over HTTP: one way in which the engine delivers tasks.

mod answer;
mod courier;
mod envelope;
mod settings;
mod targets;
mod test;

use tenure_contract::Json;
use tenure_contract::user::WhyReason;
use tenure_core::queue::QueueId;

use crate::state::App;

pub use answer::Verdict;
pub use courier::HttpCourier;
pub use settings::{block, shown};
pub use targets::PushTargets;
pub use test::{PushTest, PushTestReport, is_of_test};

/// Why nothing is granted from a queue that pushes its tasks: its target does not answer.
pub fn target_down(app: &App, queue: QueueId) -> Option<WhyReason> {
    let down = app.delivery.target_down(queue)?;
    let origin = app.push.as_ref()?.get().client.check_url(&down.push.url).ok()?.to_string();
    Some(WhyReason {
        code: "push_target_down".to_owned(),
        message: format!("the worker at {origin} does not answer: nothing is pushed until a probe succeeds"),
        since: None,
        detail: Some(Json::from(serde_json::json!({"target": origin, "open_seconds": down.since.as_secs()}))),
    })
}
