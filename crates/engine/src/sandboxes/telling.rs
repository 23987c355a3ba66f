//! What watchers are told of commands and files. Nobody waits until it is written.

use std::time::Duration;

use tenure_core::sandbox::Sandbox;
use tenure_store::NewSandboxEvent;
use tokio::sync::mpsc::{Receiver, error::TrySendError};

use super::{Sandboxes, event};

/// Events that wait to be written.
pub(super) const WAITING: usize = 4_096;
/// Events that are written together.
const AT_ONCE: usize = 256;
/// How long the first one waits for others: a short command is over by then, and its events are written together.
const GATHER: Duration = Duration::from_millis(10);

impl Sandboxes {
    /// Tells watchers what happened to a sandbox outside of the manager: a command, a file. Events that one caller tells of
    /// are written in order.
    pub fn tell(&self, kind: &'static str, row: &Sandbox, data: serde_json::Value) {
        let event = match self.inner.told.try_send(event(kind, row, Some(data))) {
            Ok(()) => return,
            Err(TrySendError::Full(event) | TrySendError::Closed(event)) => event,
        };
        // More than can be written in order, or too late for it.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let sandboxes = self.clone();
            runtime.spawn(async move { sandboxes.record(vec![event]).await });
        }
    }

    /// Writes events until the engine stops, and then those that are left.
    pub(super) async fn keep_told(self, mut untold: Receiver<NewSandboxEvent>) {
        let stopping = &self.inner.shared.stopping;
        let mut events = Vec::new();
        while stopping.run_until_cancelled(untold.recv_many(&mut events, AT_ONCE)).await.is_some() {
            if events.len() < AT_ONCE && stopping.run_until_cancelled(tokio::time::sleep(GATHER)).await.is_some() {
                while events.len() < AT_ONCE
                    && let Ok(event) = untold.try_recv()
                {
                    events.push(event);
                }
            }
            self.record(std::mem::take(&mut events)).await;
        }
        untold.close();
        while untold.recv_many(&mut events, AT_ONCE).await > 0 {
            self.record(std::mem::take(&mut events)).await;
        }
    }
}
