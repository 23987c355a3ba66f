//! What a control plane can do to keep the queues in order, which is little: see the module.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_sqs::types::QueueAttributeName;

use super::SqsTransport;
use super::batch::BATCH;
use crate::{Delivery, Message, Receipt, TransportError, Upkeep};

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

    async fn send(&self, queue: &Arc<str>, body: &str) -> Result<(), TransportError> {
        let inner = &self.inner;
        let call = |url: String| inner.client.send_message().queue_url(url).message_body(body).send();
        inner.queues.with(&inner.client, queue, call).await?;
        Ok(())
    }

    async fn take(&self, queue: &Arc<str>, max: usize) -> Result<Vec<Message>, TransportError> {
        let inner = &self.inner;
        let max = i32::try_from(max.min(BATCH)).unwrap_or(1);
        let call = |url: String| {
            let call = inner.client.receive_message().queue_url(url).max_number_of_messages(max);
            call.visibility_timeout(inner.visibility).wait_time_seconds(0).send()
        };
        let answer = inner.queues.with(&inner.client, queue, call).await?;
        let message = |message: aws_sdk_sqs::types::Message| {
            let receipt = Receipt { queue: Arc::clone(queue), handle: message.receipt_handle?.into() };
            Some(Message { body: message.body.unwrap_or_default(), receipt })
        };
        Ok(answer.messages.unwrap_or_default().into_iter().filter_map(message).collect())
    }
}
