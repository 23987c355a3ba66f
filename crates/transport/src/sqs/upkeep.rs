//! What a control plane can do to keep the queues in order, which is little: see the module.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_sqs::types::QueueAttributeName;

use super::SqsTransport;
use crate::{Delivery, TransportError, Upkeep};

/// Waiting, received and not settled, and published with a delay by somebody else.
const COUNTS: [QueueAttributeName; 3] = [
    QueueAttributeName::ApproximateNumberOfMessages,
    QueueAttributeName::ApproximateNumberOfMessagesNotVisible,
    QueueAttributeName::ApproximateNumberOfMessagesDelayed,
];

#[async_trait]
impl Upkeep for SqsTransport {
    async fn prepare(&self, queue: &Arc<str>) -> Result<(), TransportError> {
        self.inner.queues.url(&self.inner.client, queue).await?;
        Ok(())
    }

    async fn is_prepared(&self, queue: &Arc<str>) -> Result<bool, TransportError> {
        Ok(self.inner.queues.is_there(&self.inner.client, queue).await?)
    }

    /// Approximately, as SQS counts.
    async fn depth(&self, queue: &Arc<str>) -> Result<u64, TransportError> {
        let inner = &self.inner;
        let call = |url: String| {
            let call = inner.client.get_queue_attributes().queue_url(url);
            call.set_attribute_names(Some(COUNTS.to_vec())).send()
        };
        let answer = inner.queues.with(&inner.client, queue, call).await?;
        let counts = answer.attributes.unwrap_or_default();
        Ok(COUNTS.iter().filter_map(|name| counts.get(name)?.parse::<u64>().ok()).sum())
    }

    /// SQS cannot tell.
    async fn lost(&self, _queue: &Arc<str>, _messages: &[Arc<str>]) -> Result<Option<Vec<usize>>, TransportError> {
        Ok(None)
    }

    /// Nothing: SQS itself delivers again what was not settled in time.
    async fn take_over(&self, _: &Arc<str>, _idle: Duration, _max: usize) -> Result<Vec<Delivery>, TransportError> {
        Ok(Vec::new())
    }

    /// Nothing: SQS cannot look without taking.
    async fn peek(&self, _: &Arc<str>, _after: Option<&str>, _max: usize) -> Result<Vec<Delivery>, TransportError> {
        Ok(Vec::new())
    }

    /// Nothing: a message is removed by who received it.
    async fn remove(&self, _queue: &Arc<str>, _messages: &[Arc<str>]) -> Result<(), TransportError> {
        Ok(())
    }
}
