//! Receiving: group reads one stream at a time, and waits that take nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Value;
use tracing::warn;

use super::entry::{self, Entry};
use super::{Inner, error, finish};
use crate::{Delivery, TransportError};

/// One wait at the server. Longer ones are made of several, so that a stream that is deleted and made anew with older
/// ids is noticed.
const SLICE: Duration = Duration::from_secs(20);

pub(super) async fn receive(
    inner: &Arc<Inner>,
    queues: &[Arc<str>],
    max: usize,
    wait: Duration,
) -> Result<Vec<Delivery>, TransportError> {
    if queues.is_empty() || max == 0 {
        return Ok(Vec::new());
    }
    let end = Instant::now() + wait;
    let mut found = read_in_order(inner, queues, max).await?;
    while found.is_empty() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        // Known before the streams are read again: what comes after that read ends the wait.
        let places = inner.places(queues).await?;
        found = read_in_order(inner, queues, max).await?;
        if found.is_empty() {
            inner.wait_behind(queues, &places, left.min(SLICE)).await?;
            found = read_in_order(inner, queues, max).await?;
        }
    }
    Ok(found)
}

/// What a caller who has gone away no longer wants is published again, and so waits in no pending list.
async fn read_in_order(inner: &Arc<Inner>, queues: &[Arc<str>], max: usize) -> Result<Vec<Delivery>, TransportError> {
    let (reader, owner) = (Arc::clone(inner), Arc::clone(inner));
    let queues = queues.to_vec();
    let work = async move {
        for queue in &queues {
            let found = reader.read(queue, max).await?;
            if !found.is_empty() {
                return Ok(found);
            }
        }
        Ok(Vec::new())
    };
    let put_back = async move |unwanted: Vec<Delivery>| {
        if let Err(error) = owner.put_back(&unwanted).await {
            warn!(%error, "cannot put back unwanted wake-ups: they stay in the pending list until they are taken over");
        }
    };
    finish(work, put_back).await.unwrap_or_else(|| Err(error::unreachable("this process is ending")))
}

impl Inner {
    /// New entries of one stream, without a wait.
    async fn read(&self, queue: &Arc<str>, max: usize) -> Result<Vec<Delivery>, TransportError> {
        let mut command = redis::cmd("XREADGROUP");
        command.arg("GROUP").arg(&self.group).arg(&self.consumer).arg("COUNT").arg(max);
        command.arg("STREAMS").arg(self.key(queue)).arg(">");
        loop {
            let answer = self.ask_of_group(queue, &command).await?;
            let entries = entry::entries_of_read(queue, &answer);
            let any = !entries.is_empty();
            let found = self.deliveries(queue, entries).await?;
            // Behind entries that were no wake-ups there may be some.
            if !any || !found.is_empty() {
                return Ok(found);
            }
        }
    }

    /// Entries that are not wake-ups are removed: they are of no use to anybody.
    pub(super) async fn deliveries(
        &self,
        queue: &Arc<str>,
        entries: Vec<Entry>,
    ) -> Result<Vec<Delivery>, TransportError> {
        let bad: Vec<Arc<str>> =
            entries.iter().filter(|entry| !entry.is_wake_up()).map(|entry| entry.id.clone()).collect();
        if !bad.is_empty() {
            for message_id in &bad {
                warn!(queue.name = &**queue, message.id = &**message_id, "removed an entry that is not a wake-up");
            }
            let bad: Vec<&str> = bad.iter().map(|id| &**id).collect();
            self.remove(queue, &bad).await?;
        }
        Ok(entries.into_iter().filter_map(|entry| entry.delivery(queue)).collect())
    }

    /// The id of the newest entry that each stream ever had.
    async fn places(&self, queues: &[Arc<str>]) -> Result<Vec<String>, TransportError> {
        let mut pipeline = redis::pipe();
        pipeline.ignore_errors();
        for queue in queues {
            pipeline.cmd("XINFO").arg("STREAM").arg(self.key(queue));
        }
        let answers: Vec<redis::RedisResult<Value>> = self.connections.run(&pipeline).await?;
        answers
            .iter()
            .map(|answer| match answer {
                Ok(info) => Ok(entry::last_id(info).unwrap_or("0-0").to_owned()),
                // A stream that does not exist is plain ERR.
                Err(error) if error.code() == Some("ERR") => Ok("0-0".to_owned()),
                Err(error) => Err(error::of(error)),
            })
            .collect()
    }

    /// Waits until one of the streams has an entry after its position. Takes nothing.
    async fn wait_behind(&self, queues: &[Arc<str>], places: &[String], wait: Duration) -> Result<(), TransportError> {
        let mut command = redis::cmd("XREAD");
        // A block of 0 would be one without end.
        let milliseconds = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).max(1);
        command.arg("COUNT").arg(1).arg("BLOCK").arg(milliseconds).arg("STREAMS");
        for queue in queues {
            command.arg(self.key(queue));
        }
        command.arg(places);
        self.connections.wait(&command, wait).await.map(drop)
    }

    /// Publishes entries again and removes the old ones, in one step.
    async fn put_back(&self, unwanted: &[Delivery]) -> Result<(), TransportError> {
        if unwanted.is_empty() {
            return Ok(());
        }
        let mut pipeline = redis::pipe();
        pipeline.atomic();
        for delivery in unwanted {
            let key = self.key(&delivery.queue);
            let enqueue = delivery.enqueue.unwrap_or_default();
            entry::add(&mut pipeline, &key, &delivery.queue, &delivery.task, enqueue);
            pipeline.cmd("XACK").arg(&key).arg(&self.group).arg(&*delivery.message_id);
            pipeline.cmd("XDEL").arg(&key).arg(&*delivery.message_id);
        }
        self.connections.run::<Value>(&pipeline).await.map(drop)
    }
}
