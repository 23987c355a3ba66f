//! Receiving: short polls in order, then long ones.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_config::timeout::TimeoutConfig;
use aws_sdk_sqs::config::Builder;
use aws_sdk_sqs::types::Message;
use tracing::warn;

use super::batch::{self, BATCH, ENQUEUE};
use super::{CONNECT, Inner, RESPONSE, error};
use crate::wake::{finish, task_of};
use crate::{Delivery, Receipt, TransportError};

/// The longest long poll of SQS.
const LONGEST: Duration = Duration::from_secs(20);

/// The shortest. With several queues it is how long one may keep the others waiting.
const SLICE: Duration = Duration::from_secs(1);

pub(super) async fn receive(
    inner: &Arc<Inner>,
    queues: &[Arc<str>],
    max: usize,
    wait: Duration,
) -> Result<Vec<Delivery>, TransportError> {
    let (Some(first), true) = (queues.first(), max > 0) else { return Ok(Vec::new()) };
    let end = Instant::now() + wait;
    loop {
        for queue in queues {
            let found = fill(inner, queue, max).await?;
            if !found.is_empty() {
                return Ok(found);
            }
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Vec::new());
        }
        // SQS waits for whole seconds only, and what is left may be less.
        if left < SLICE {
            tokio::time::sleep(left).await;
            continue;
        }
        let longest = if queues.len() == 1 { LONGEST } else { SLICE };
        let found = poll(inner, first, max.min(BATCH), left.min(longest)).await?;
        if !found.is_empty() {
            return Ok(found);
        }
    }
}

/// Short polls until there are enough, or no more.
async fn fill(inner: &Arc<Inner>, queue: &Arc<str>, max: usize) -> Result<Vec<Delivery>, TransportError> {
    let mut found = Vec::new();
    loop {
        let asked = (max - found.len()).min(BATCH);
        let more = match poll(inner, queue, asked, Duration::ZERO).await {
            Ok(more) => more,
            // What was taken before must reach the caller.
            Err(_) if !found.is_empty() => return Ok(found),
            Err(error) => return Err(error),
        };
        let enough = more.len() < asked;
        found.extend(more);
        if enough || found.len() == max {
            return Ok(found);
        }
    }
}

/// One call. What a caller who has gone away no longer wants is shown to others again at once.
async fn poll(
    inner: &Arc<Inner>,
    queue: &Arc<str>,
    max: usize,
    wait: Duration,
) -> Result<Vec<Delivery>, TransportError> {
    let (reader, owner) = (Arc::clone(inner), Arc::clone(inner));
    let queue = queue.clone();
    let work = async move { ask(&reader, &queue, max, wait).await };
    let put_back = async move |unwanted: Vec<Delivery>| {
        let receipts: Vec<_> = unwanted.into_iter().map(|delivery| delivery.receipt).collect();
        if let Err(error) = batch::hide(&owner, &receipts, 0).await {
            warn!(%error, "cannot put back unwanted messages: they stay hidden until their visibility time-out");
        }
    };
    finish(work, put_back).await.unwrap_or_else(|| Err(error::unreachable("this process is ending")))
}

async fn ask(inner: &Inner, queue: &Arc<str>, max: usize, wait: Duration) -> Result<Vec<Delivery>, TransportError> {
    let whole = i32::try_from(wait.as_secs()).unwrap_or_default();
    let limits = TimeoutConfig::builder().connect_timeout(CONNECT).operation_attempt_timeout(wait + RESPONSE).build();
    let call = |url: String| {
        let call = inner.client.receive_message().queue_url(url).wait_time_seconds(whole);
        call.max_number_of_messages(i32::try_from(max).unwrap_or(1))
            .visibility_timeout(inner.visibility)
            .message_attribute_names(ENQUEUE)
            .customize()
            .config_override(Builder::default().timeout_config(limits.clone()))
            .send()
    };
    let answer = inner.queues.with(&inner.client, queue, call).await?;
    let (mut found, mut bad) = (Vec::new(), Vec::new());
    for message in answer.messages.unwrap_or_default() {
        let (Some(id), Some(handle)) = (&message.message_id, &message.receipt_handle) else { continue };
        let receipt = Receipt { queue: queue.clone(), handle: handle.as_str().into() };
        match message.body.as_deref().and_then(task_of) {
            Some(task) => {
                let enqueue = enqueue_of(&message);
                let message_id = id.as_str().into();
                found.push(Delivery { queue: queue.clone(), task, enqueue, message_id, receipt });
            }
            None => {
                warn!(queue.name = &**queue, message.id = id, "removing a message that is not a wake-up");
                bad.push(receipt);
            }
        }
    }
    if let Err(error) = batch::delete(inner, &bad).await {
        // It comes again.
        warn!(queue.name = &**queue, %error, "cannot remove a message that is not a wake-up");
    }
    Ok(found)
}

fn enqueue_of(message: &Message) -> Option<i64> {
    message.message_attributes.as_ref()?.get(ENQUEUE)?.string_value.as_deref()?.parse().ok()
}
