//! What a worker process says about itself.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tenure_contract::pull::WorkerAbout;

/// The server keeps it; it is repeated because the clock drifts and the server may be another one.
const REPEAT: Duration = Duration::from_secs(30);
/// The server keeps no more.
const OPERATORS: usize = 256;

#[derive(Debug)]
pub(crate) struct About {
    slots: u32,
    operators: Vec<String>,
    hostname: String,
    sent: Mutex<Option<Instant>>,
}

impl About {
    pub(crate) fn new(concurrency: usize, operators: impl Iterator<Item = String>) -> Self {
        let mut operators: Vec<String> = operators.collect();
        operators.sort_unstable();
        operators.truncate(OPERATORS);
        let hostname = gethostname::gethostname().to_string_lossy().into_owned();
        Self { slots: u32::try_from(concurrency).unwrap_or(u32::MAX), operators, hostname, sent: Mutex::default() }
    }

    /// What the next claim says, if it is time.
    pub(crate) fn due(&self) -> Option<WorkerAbout> {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        if sent.is_some_and(|sent| sent.elapsed() < REPEAT) {
            return None;
        }
        *sent = Some(Instant::now());
        Some(WorkerAbout {
            hostname: Some(self.hostname.clone()),
            version: Some(concat!("tenure-rust/", env!("CARGO_PKG_VERSION")).to_owned()),
            slots: Some(self.slots),
            operators: Some(self.operators.clone()),
            sent_at: Some(Timestamp::now().to_string()),
        })
    }
}

/// Says when an operator drains this worker, and when that is taken back.
pub(crate) fn note_drained(known: &mut bool, drained: bool) {
    match (*known, drained) {
        (false, true) => tracing::info!("this worker was drained: it gets no new work until it is undrained"),
        (true, false) => tracing::info!("this worker gets work again"),
        _ => {}
    }
    *known = drained;
}
