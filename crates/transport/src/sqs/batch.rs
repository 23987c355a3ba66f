//! Calls that take ten messages at a time.

use std::sync::Arc;

use aws_sdk_sqs::types::{
    BatchResultErrorEntry, ChangeMessageVisibilityBatchRequestEntry, DeleteMessageBatchRequestEntry,
    MessageAttributeValue, SendMessageBatchRequestEntry,
};
use futures_util::{StreamExt, TryStreamExt, stream};

use super::Inner;
use super::error::{self, Fault};
use crate::wake::{body, is_of_jobs};
use crate::{Receipt, Refused, TransportError, WakeUp};

/// As many as SQS takes in a call.
pub(super) const BATCH: usize = 10;

/// How many calls are under way at once.
const CALLS: usize = 8;

/// How often entries that SQS failed at are sent.
const TRIES: usize = 3;

/// The attribute that carries the number of the enqueue.
pub(super) const ENQUEUE: &str = "enqueue_id";

type Published = Result<Arc<str>, Refused>;

pub(super) async fn publish(inner: &Inner, wakes: &[WakeUp]) -> Result<Vec<Published>, TransportError> {
    let batches = batches(wakes, |wake| &wake.queue);
    let sent: Vec<Vec<(usize, Published)>> = stream::iter(batches)
        .map(|(queue, places)| send(inner, queue, wakes, places))
        .buffer_unordered(CALLS)
        .try_collect()
        .await?;
    let mut published: Vec<_> = sent.into_iter().flatten().collect();
    published.sort_unstable_by_key(|(place, _)| *place);
    let published: Vec<Published> = published.into_iter().map(|(_, one)| one).collect();
    match published.iter().find(|one| !matches!(one, Err(Refused::Away(_)))) {
        None if !published.is_empty() => {
            let reason = published.into_iter().find_map(Result::err).map(|away| away.to_string());
            Err(error::unreachable(reason.unwrap_or_default()))
        }
        _ => Ok(published),
    }
}

async fn send(
    inner: &Inner,
    queue: Arc<str>,
    wakes: &[WakeUp],
    mut places: Vec<usize>,
) -> Result<Vec<(usize, Published)>, TransportError> {
    let mut sent = Vec::with_capacity(places.len());
    for _ in 0..TRIES {
        let entries = places.iter().map(|place| entry(*place, &wakes[*place])).collect::<Result<Vec<_>, _>>()?;
        let call =
            |url: String| inner.client.send_message_batch().queue_url(url).set_entries(Some(entries.clone())).send();
        let answer = match inner.queues.with(&inner.client, &queue, call).await {
            Ok(answer) => answer,
            // Others may be reached: one that this caller may not use must not hold them up.
            Err(Fault::OfQueue(reason) | Fault::OfService(TransportError::Refused { reason, .. })) => {
                sent.extend(
                    places.into_iter().map(|place| (place, Err(Refused::ForItself(format!("SQS refused: {reason}"))))),
                );
                return Ok(sent);
            }
            // What other queues took is not to be sent again for this one.
            Err(Fault::OfService(TransportError::Unreachable { reason, .. })) => {
                sent.extend(places.into_iter().map(|place| (place, Err(Refused::Away(reason.clone())))));
                return Ok(sent);
            }
        };
        for one in answer.successful {
            sent.push((place_of(&one.id)?, Ok(one.message_id.into())));
        }
        places.clear();
        for one in answer.failed {
            let place = place_of(&one.id)?;
            match one.sender_fault {
                true => sent.push((place, Err(Refused::ForItself(format!("SQS refused: {}", one.code))))),
                false => places.push(place),
            }
        }
        if places.is_empty() {
            return Ok(sent);
        }
    }
    let reason = "it failed at this message, again and again";
    sent.extend(places.into_iter().map(|place| (place, Err(Refused::Away(reason.to_owned())))));
    Ok(sent)
}

fn entry(place: usize, wake: &WakeUp) -> Result<SendMessageBatchRequestEntry, TransportError> {
    let mut entry = SendMessageBatchRequestEntry::builder().id(place.to_string()).message_body(body(&wake.task));
    if !is_of_jobs(&wake.queue) {
        let number = MessageAttributeValue::builder().data_type("String").string_value(wake.enqueue.to_string());
        entry = entry.message_attributes(ENQUEUE, number.build().map_err(incomplete)?);
    }
    entry.build().map_err(incomplete)
}

pub(super) async fn delete(inner: &Inner, receipts: &[Receipt]) -> Result<(), TransportError> {
    for (queue, places) in batches(receipts, |receipt| &receipt.queue) {
        let entry = |place: &usize| {
            let handle = &*receipts[*place].handle;
            DeleteMessageBatchRequestEntry::builder().id(place.to_string()).receipt_handle(handle).build()
        };
        let entries = places.iter().map(entry).collect::<Result<Vec<_>, _>>().map_err(incomplete)?;
        let call =
            |url: String| inner.client.delete_message_batch().queue_url(url).set_entries(Some(entries.clone())).send();
        judge(&inner.queues.with(&inner.client, &queue, call).await?.failed)?;
    }
    Ok(())
}

/// Hides messages for this many seconds from now. With 0 others get them at once.
pub(super) async fn hide(inner: &Inner, receipts: &[Receipt], seconds: i32) -> Result<(), TransportError> {
    for (queue, places) in batches(receipts, |receipt| &receipt.queue) {
        let entry = |place: &usize| {
            let entry = ChangeMessageVisibilityBatchRequestEntry::builder().id(place.to_string());
            entry.receipt_handle(&*receipts[*place].handle).visibility_timeout(seconds).build()
        };
        let entries = places.iter().map(entry).collect::<Result<Vec<_>, _>>().map_err(incomplete)?;
        let call = |url: String| {
            let call = inner.client.change_message_visibility_batch();
            call.queue_url(url).set_entries(Some(entries.clone())).send()
        };
        judge(&inner.queues.with(&inner.client, &queue, call).await?.failed)?;
    }
    Ok(())
}

/// Entries that failed by the sender's fault have a receipt that is over, and so nothing is left to do for them.
fn judge(failed: &[BatchResultErrorEntry]) -> Result<(), TransportError> {
    match failed.iter().find(|one| !one.sender_fault) {
        Some(one) => Err(error::unreachable(format!("it failed at some messages with {}", one.code))),
        None => Ok(()),
    }
}

/// The places of what belongs to the same queue, ten at a time.
fn batches<T>(all: &[T], queue: impl Fn(&T) -> &Arc<str>) -> Vec<(Arc<str>, Vec<usize>)> {
    let mut batches: Vec<(Arc<str>, Vec<usize>)> = Vec::new();
    for (place, one) in all.iter().enumerate() {
        let queue = queue(one);
        let open = batches.iter_mut().rev().find(|(other, _)| other == queue);
        match open.filter(|(_, places)| places.len() < BATCH) {
            Some((_, places)) => places.push(place),
            None => batches.push((queue.clone(), vec![place])),
        }
    }
    batches
}

fn place_of(id: &str) -> Result<usize, TransportError> {
    id.parse().map_err(|_| error::unreachable("unexpected response"))
}

fn incomplete(_: aws_sdk_sqs::error::BuildError) -> TransportError {
    error::refused("the request could not be created")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_hold_ten_of_one_queue() {
        let queues: Vec<Arc<str>> = (0..25).map(|n| Arc::from(if n % 5 == 0 { "a" } else { "b" })).collect();
        let sizes: Vec<_> = batches(&queues, |queue| queue).iter().map(|(q, p)| (q.to_string(), p.len())).collect();
        assert_eq!(sizes, [("a".to_owned(), 5), ("b".to_owned(), 10), ("b".to_owned(), 10)]);
    }
}
