//! What watchers are told of commands and files. Nobody waits until it is written.

use std::time::Duration;

use tenure_core::sandbox::Sandbox;
use tenure_store::NewSandboxEvent;
use tokio::sync::mpsc::{Receiver, error::TrySendError};
use tokio::sync::oneshot;

use super::{Sandboxes, event};

/// Events that wait to be written.
pub(super) const WAITING: usize = 4_096;
/// Events that are written together.
const AT_ONCE: usize = 256;
/// How long the first one waits for others: a short command is over by then, and its events are written together.
const GATHER: Duration = Duration::from_millis(10);

/// How long the end of a sandbox waits for what was told before it.
const BEFORE_THE_END: Duration = Duration::from_secs(1);

/// What is written in order.
pub(super) enum Told {
    Event(NewSandboxEvent),
    /// Somebody wants to know when everything before this is written.
    Mark(oneshot::Sender<()>),
}

impl Sandboxes {
    /// Tells watchers what happened to a sandbox outside of the manager: a command, a file. Events that one caller tells of
    /// are written in order.
    pub fn tell(&self, kind: &'static str, row: &Sandbox, data: serde_json::Value) {
        let untold = match self.inner.told.try_send(Told::Event(event(kind, row, Some(data)))) {
            Ok(()) => return,
            Err(TrySendError::Full(untold) | TrySendError::Closed(untold)) => untold,
        };
        // More than can be written in order, or too late for it.
        if let (Told::Event(event), Ok(runtime)) = (untold, tokio::runtime::Handle::try_current()) {
            let sandboxes = self.clone();
            runtime.spawn(async move { sandboxes.record(vec![event]).await });
        }
    }

    /// Waits until what was told so far is written: the end of a sandbox is its last event.
    pub(super) async fn all_told(&self) {
        let (mark, passed) = oneshot::channel();
        let telling = async {
            if self.inner.told.send(Told::Mark(mark)).await.is_ok() {
                let _ = passed.await;
            }
        };
        let _ = tokio::time::timeout(BEFORE_THE_END, telling).await;
    }

    /// Writes events until the engine stops, and then those that are left.
    pub(super) async fn keep_told(self, mut untold: Receiver<Told>) {
        let stopping = &self.inner.shared.stopping;
        let mut told = Vec::new();
        while stopping.run_until_cancelled(untold.recv_many(&mut told, AT_ONCE)).await.is_some() {
            let is_awaited = told.iter().any(|told| matches!(told, Told::Mark(_)));
            if !is_awaited
                && told.len() < AT_ONCE
                && stopping.run_until_cancelled(tokio::time::sleep(GATHER)).await.is_some()
            {
                while told.len() < AT_ONCE
                    && let Ok(more) = untold.try_recv()
                {
                    told.push(more);
                }
            }
            self.write_told(std::mem::take(&mut told)).await;
        }
        untold.close();
        while untold.recv_many(&mut told, AT_ONCE).await > 0 {
            self.write_told(std::mem::take(&mut told)).await;
        }
    }

    async fn write_told(&self, told: Vec<Told>) {
        let (mut events, mut marks) = (Vec::new(), Vec::new());
        for told in told {
            match told {
                Told::Event(event) => events.push(event),
                Told::Mark(mark) => marks.push(mark),
            }
        }
        if !events.is_empty() {
            self.record(events).await;
        }
        for mark in marks {
            let _ = mark.send(());
        }
    }
}
