//! Takes messages from outside queues: those of this control plane, which make their batches due, and those that others
//! wrote.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::dag::PublishId;
use tenure_core::dag::buffer::{NewPublish, read_message};
use tenure_core::queue::Transport;
use tenure_transport::{Message, TransportError, Upkeep};

use super::{Buffered, Buffers, buffered};
use crate::background::Pacer;
use crate::duty::Duty;
use crate::error::EngineError;

const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Messages of a queue that are taken at once.
const MESSAGES: usize = 10;
/// How often a queue is asked before others have their turn.
const TURNS: usize = 20;

impl Buffers {
    pub(super) async fn keep_taking_in(self, transport: Transport, service: Arc<dyn Upkeep>) {
        let shared = Arc::clone(&self.inner.dags.engine().shared);
        if shared.config.default_transport != transport {
            return;
        }
        let mut pacer = Pacer::new(&shared);
        while pacer.turn(Duty::Sink, LOOK_EVERY).await {
            if let Err(error) = self.take_in_all(&service).await {
                tracing::debug!(%error, "messages wait");
            }
        }
    }

    async fn take_in_all(&self, service: &Arc<dyn Upkeep>) -> Result<(), EngineError> {
        for (org, _) in self.shared().store.deployments().await? {
            let view = self.inner.dags.recent_view(&org).await?;
            for dataset in buffered(&org, &view.deployment) {
                for _ in 0..TURNS {
                    match service.take(&dataset.queue(), MESSAGES).await {
                        Ok(messages) if messages.is_empty() => break,
                        Ok(messages) => self.take_in(service, &dataset, messages).await?,
                        Err(error @ TransportError::Unreachable { .. }) => {
                            tracing::debug!(%error, "queues of datasets cannot be read now");
                            return Ok(());
                        }
                        // The queue of one dataset may not be there.
                        Err(TransportError::Refused { reason, .. }) => {
                            tracing::warn!(dataset.id = %dataset.table.dataset, error = reason, "the queue of a dataset cannot be read");
                            break;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// A message is settled after its batch is recorded: a crash in between brings it again.
    async fn take_in(
        &self,
        service: &Arc<dyn Upkeep>,
        dataset: &Buffered,
        messages: Vec<Message>,
    ) -> Result<(), EngineError> {
        let store = &self.shared().store;
        let (mut ids, mut new, mut receipts) = (Vec::new(), Vec::new(), Vec::new());
        for message in messages {
            let (id, batch) = read_message(&dataset.org, dataset.table.dataset, &message.body);
            let publish = NewPublish::of(id, batch, None);
            if !self.has_room(&dataset.org, publish.bytes).await? {
                // It comes again.
                continue;
            }
            ids.push(id);
            new.push(publish);
            receipts.push(message.receipt);
        }
        let known: Vec<PublishId> = store.publishes(&ids).await?.into_iter().map(|row| row.id).collect();
        new.retain(|publish| !known.contains(&publish.id));
        if !new.is_empty() {
            store.publish(&dataset.org, &new).await?;
        }
        if !known.is_empty() {
            store.wake_publishes(&known).await?;
        }
        self.recorded();
        if let Err(error) = service.settle(&receipts).await {
            tracing::debug!(%error, "messages that were taken come again");
        }
        Ok(())
    }
}
