//! Batches of rows and dead letters that go to the queues of their datasets.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use tenure_core::dag::PublishId;
use tenure_core::dag::buffer::{dead_letter, message};
use tenure_core::effect::EffectKind;
use tenure_core::queue::Transport;
use tenure_store::buffers::{BufferEffect, PublishRow, PublishState};
use tenure_store::{DueEffect, Store};
use tenure_transport::{TransportError, Upkeep};

use super::{Failure, Handler, Transports};

/// Sends through one transport.
#[derive(Debug)]
struct Sender {
    transport: Transport,
    service: Arc<dyn Upkeep>,
    store: Arc<dyn Store>,
}

/// One for each transport.
pub fn handlers(transports: &Transports, store: &Arc<dyn Store>) -> impl Iterator<Item = Arc<dyn Handler>> {
    transports.configured().map(|(transport, service)| {
        let (service, store) = (Arc::clone(service), Arc::clone(store));
        Arc::new(Sender { transport, service, store }) as Arc<dyn Handler>
    })
}

#[async_trait]
impl Handler for Sender {
    fn kind(&self) -> EffectKind {
        EffectKind::PublishBuffer
    }

    fn key(&self) -> &'static str {
        self.transport.as_str()
    }

    async fn perform(&self, effects: &[DueEffect]) -> Result<Vec<Result<Arc<str>, Failure>>, String> {
        let read: Vec<Option<BufferEffect>> = effects.iter().map(|effect| BufferEffect::parse(&effect.body)).collect();
        let ids: Vec<PublishId> = read.iter().flatten().map(|effect| effect.id).collect();
        let rows = self.store.publishes(&ids).await.map_err(|error| error.to_string())?;
        let rows: HashMap<PublishId, PublishRow> = rows.into_iter().map(|row| (row.id, row)).collect();
        let mut answers = Vec::with_capacity(effects.len());
        for effect in read {
            answers.push(match effect {
                None => Err(Failure::Refused("the row names no batch".to_owned())),
                Some(effect) => self.send(&effect, rows.get(&effect.id)).await?,
            });
        }
        Ok(answers)
    }
}

impl Sender {
    /// What is over need not be told.
    async fn send(&self, effect: &BufferEffect, row: Option<&PublishRow>) -> Result<Result<Arc<str>, Failure>, String> {
        let Some((row, batch)) = row.and_then(|row| Some((row, row.batch.as_ref()?))) else { return Ok(Ok("".into())) };
        let body = match (effect.is_dead, row.state, &row.error) {
            (false, PublishState::Waiting, _) => message(&row.org, row.id, batch),
            (true, PublishState::Dead(_), Some(error)) => dead_letter(&row.org, row.id, batch, row.receives, error),
            _ => return Ok(Ok("".into())),
        };
        match self.service.send(&effect.queue, &body).await {
            Ok(()) => Ok(Ok("".into())),
            Err(TransportError::Refused { reason, .. }) => Ok(Err(Failure::Refused(reason))),
            Err(error @ TransportError::Unreachable { .. }) => Err(error.to_string()),
        }
    }
}
