//! Groups, the pending list, and the removal of entries.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use redis::{Cmd, Value};

use super::entry::{self, is_entry_id};
use super::{Inner, PIPELINE, RedisTransport, error};
use crate::{Delivery, Message, Receipt, TransportError, Upkeep};

impl Inner {
    /// From the first entry on: what was published before the group was made, or made again, is delivered too.
    async fn make_group(&self, queue: &str) -> Result<(), TransportError> {
        let mut command = redis::cmd("XGROUP");
        command.arg("CREATE").arg(self.key(queue)).arg(&self.group).arg("0").arg("MKSTREAM");
        match self.connections.ask(&command).await? {
            Err(error) if error.code() != Some("BUSYGROUP") => Err(error::of(&error)),
            _ => Ok(()),
        }
    }

    /// Runs a command that needs the group, which is made if it is not there: a stream may be new, or was deleted.
    pub(super) async fn ask_of_group(&self, queue: &str, command: &Cmd) -> Result<Value, TransportError> {
        match self.connections.ask(command).await? {
            Err(error) if error.code() == Some("NOGROUP") => {
                self.make_group(queue).await?;
                self.connections.ask(command).await?.map_err(|error| error::of(&error))
            }
            answer => answer.map_err(|error| error::of(&error)),
        }
    }

    /// Acknowledges and deletes, in one step. Entries that are gone are no error.
    pub(super) async fn remove(&self, queue: &str, ids: &[&str]) -> Result<(), TransportError> {
        let key = self.key(queue);
        for ids in ids.chunks(PIPELINE) {
            let mut pipeline = redis::pipe();
            pipeline.atomic().cmd("XACK").arg(&key).arg(&self.group).arg(ids);
            pipeline.cmd("XDEL").arg(&key).arg(ids);
            self.connections.run::<Value>(&pipeline).await?;
        }
        Ok(())
    }

    /// Sets the idle time of pending entries to nothing, and makes them this consumer's. How long they are left alone
    /// from then on is up to those who take over.
    pub(super) async fn touch(&self, queue: &str, ids: &[&str]) -> Result<(), TransportError> {
        for ids in ids.chunks(PIPELINE) {
            let mut command = redis::cmd("XCLAIM");
            command.arg(self.key(queue)).arg(&self.group).arg(&self.consumer).arg(0).arg(ids);
            command.arg("IDLE").arg(0).arg("JUSTID");
            match self.connections.ask(&command).await? {
                Err(error) if error.code() != Some("NOGROUP") => return Err(error::of(&error)),
                // Without a group nothing is pending.
                _ => {}
            }
        }
        Ok(())
    }

    async fn range(&self, queue: &str, after: &str, max: usize) -> Result<Vec<entry::Entry>, TransportError> {
        let mut command = redis::cmd("XRANGE");
        command.arg(self.key(queue)).arg(after).arg("+").arg("COUNT").arg(max);
        let answer = self.connections.ask(&command).await?.map_err(|error| error::of(&error))?;
        Ok(entry::entries(queue, &answer))
    }
}

/// The field of an entry that has the whole message.
const BODY: &str = "body";
/// How long a message that was taken is left to whoever took it.
const UNSETTLED_MS: u64 = 60_000;

#[async_trait]
impl Upkeep for RedisTransport {
    async fn prepare(&self, queue: &Arc<str>) -> Result<(), TransportError> {
        self.inner.make_group(queue).await
    }

    async fn is_prepared(&self, queue: &Arc<str>) -> Result<bool, TransportError> {
        let mut command = redis::cmd("XINFO");
        command.arg("GROUPS").arg(self.inner.key(queue));
        match self.inner.connections.ask(&command).await? {
            Ok(groups) => Ok(entry::group_names(&groups).any(|name| name == self.inner.group)),
            Err(error) if error.detail().is_some_and(|detail| detail.contains("no such key")) => Ok(false),
            Err(error) => Err(error::of(&error)),
        }
    }

    async fn depth(&self, queue: &Arc<str>) -> Result<u64, TransportError> {
        let mut command = redis::cmd("XLEN");
        command.arg(self.inner.key(queue));
        match self.inner.connections.ask(&command).await?.map_err(|error| error::of(&error))? {
            Value::Int(length) => Ok(u64::try_from(length).unwrap_or_default()),
            _ => Err(error::unreachable("unexpected response")),
        }
    }

    async fn lost(&self, queue: &Arc<str>, messages: &[Arc<str>]) -> Result<Option<Vec<usize>>, TransportError> {
        let key = self.inner.key(queue);
        let mut lost = Vec::new();
        let places: Vec<usize> = (0..messages.len()).collect();
        for places in places.chunks(PIPELINE) {
            // An id that is none of Redis, say of a time when it was down, names nothing that it has.
            let (asked, never): (Vec<usize>, Vec<usize>) =
                places.iter().partition(|place| is_entry_id(&messages[**place]));
            lost.extend(never);
            if asked.is_empty() {
                continue;
            }
            let mut pipeline = redis::pipe();
            for place in &asked {
                let id = &*messages[*place];
                pipeline.cmd("XRANGE").arg(&key).arg(id).arg(id).arg("COUNT").arg(1);
            }
            let answers: Vec<Value> = self.inner.connections.run(&pipeline).await?;
            let gone = asked.iter().zip(&answers).filter(|(_, answer)| entry::entries(queue, answer).is_empty());
            lost.extend(gone.map(|(place, _)| *place));
        }
        lost.sort_unstable();
        Ok(Some(lost))
    }

    async fn take_over(&self, queue: &Arc<str>, idle: Duration, max: usize) -> Result<Vec<Delivery>, TransportError> {
        let inner = &self.inner;
        let mut taken = Vec::new();
        let mut cursor = Some("0-0".to_owned());
        while let Some(start) = cursor.take().filter(|_| taken.len() < max) {
            let mut command = redis::cmd("XAUTOCLAIM");
            command.arg(inner.key(queue)).arg(&inner.group).arg(&inner.consumer);
            command.arg(u64::try_from(idle.as_millis()).unwrap_or(u64::MAX)).arg(start);
            command.arg("COUNT").arg(max - taken.len());
            let (next, entries) = entry::claimed(queue, &inner.ask_of_group(queue, &command).await?);
            taken.extend(inner.deliveries(queue, entries).await?);
            cursor = next;
        }
        Ok(taken)
    }

    /// Entries that are no wake-ups are passed over and stay: whoever receives them removes them.
    async fn peek(&self, queue: &Arc<str>, after: Option<&str>, max: usize) -> Result<Vec<Delivery>, TransportError> {
        let mut start = match after {
            Some(after) if !is_entry_id(after) => {
                return Err(error::refused("the position in the queue is not an entry id"));
            }
            Some(after) => format!("({after}"),
            None => "-".to_owned(),
        };
        loop {
            let entries = self.inner.range(queue, &start, max).await?;
            let Some(last) = entries.last() else { return Ok(Vec::new()) };
            start = format!("({}", last.id);
            let found: Vec<_> = entries.into_iter().filter_map(|entry| entry.delivery(queue)).collect();
            if !found.is_empty() {
                return Ok(found);
            }
        }
    }

    async fn remove(&self, queue: &Arc<str>, messages: &[Arc<str>]) -> Result<(), TransportError> {
        let ids: Vec<&str> = messages.iter().map(|id| &**id).filter(|id| is_entry_id(id)).collect();
        self.inner.remove(queue, &ids).await
    }

    async fn send(&self, queue: &Arc<str>, body: &str) -> Result<(), TransportError> {
        let mut command = redis::cmd("XADD");
        command.arg(self.inner.key(queue)).arg("*").arg(BODY).arg(body);
        self.inner.connections.ask(&command).await?.map(drop).map_err(|error| error::of(&error))
    }

    /// Entries that somebody took and did not settle come first.
    async fn take(&self, queue: &Arc<str>, max: usize) -> Result<Vec<Message>, TransportError> {
        let (inner, key) = (&self.inner, self.inner.key(queue));
        let mut left = redis::cmd("XAUTOCLAIM");
        left.arg(&key).arg(&inner.group).arg(&inner.consumer).arg(UNSETTLED_MS).arg("0-0").arg("COUNT").arg(max);
        let answer = inner.ask_of_group(queue, &left).await?;
        let mut messages = entry::claimed_bodies(&answer);
        if messages.is_empty() {
            let mut read = redis::cmd("XREADGROUP");
            read.arg("GROUP").arg(&inner.group).arg(&inner.consumer).arg("COUNT").arg(max);
            read.arg("STREAMS").arg(&key).arg(">");
            messages = entry::read_bodies(&inner.ask_of_group(queue, &read).await?);
        }
        let message = |(id, body): (Arc<str>, String)| Message {
            body,
            receipt: Receipt { queue: Arc::clone(queue), handle: id },
        };
        Ok(messages.into_iter().map(message).collect())
    }
}
