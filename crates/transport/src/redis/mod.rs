//! Redis Streams.
//!
//! A queue is a stream, named with a prefix, and all consumers are one consumer group. An entry has the fields `job_id`
//! and `enqueue_id` and no others. It stays in the stream, delivered or not, until it is settled or removed, which
//! acknowledges and deletes it. There is no `MAXLEN`: Redis would drop wake-ups that nobody has seen. Entries of jobs have
//! one field, `body`, which is the message of the dispatch contract.
//!
//! **Waiting.** A blocking group read over several streams can answer with entries of several streams, and what is not
//! handed out would stay in the pending list. So a wait only asks to be woken, by an `XREAD` that takes nothing, and the
//! streams are then read again, one by one and in order. Every consumer that waits is woken by a new entry, and all but
//! one find nothing. It is a few small commands for each idle consumer and entry; consumers that are busy do not wait.
//!
//! **Receipts.** Redis settles by the id of an entry, whoever has it. That is right here: a wake-up is only settled when
//! the control plane has said that it is over (`ack: true`), and then it is over for everybody.
//!
//! **Connections** are made when they are needed and anew when they were lost. One is shared by all commands; each wait
//! has one to itself. If an answer to a group read is lost with its connection, the entries stay in the pending list
//! until a control plane takes them over.

mod connection;
mod entry;
mod error;
mod link;
mod read;
mod tls;
mod upkeep;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use self::connection::Connections;
use self::entry::is_entry_id;
use crate::wake::{finish, outside};
use crate::{Delivery, OutsideNames, Receipt, Refused, Transport, TransportError, WakeUp};

const SERVICE: &str = "redis";

/// How many commands go out before the answers are read.
const PIPELINE: usize = 1000;

/// Where Redis is, and what this consumer is called there.
#[derive(Clone)]
pub struct RedisConfig {
    /// `redis://[user:password@]host[:port][/db]`, `rediss://` for TLS, or `unix:///path`.
    pub url: String,
    /// The consumer group that all consumers share.
    pub group: String,
    /// Stands before the name of each queue.
    pub prefix: String,
    /// The streams of jobs that have other names.
    pub outside_names: OutsideNames,
    /// Whom to trust with `rediss://`, as PEM. Without it the system's CAs.
    pub ca_file: Option<PathBuf>,
    /// The name of this consumer in the group. Unique per process.
    pub consumer: String,
}

impl Default for RedisConfig {
    fn default() -> Self {
        Self {
            url: "redis://127.0.0.1:6379".to_owned(),
            group: "tenure".to_owned(),
            prefix: String::new(),
            outside_names: OutsideNames::new(),
            ca_file: None,
            consumer: format!("tenure-{}", std::process::id()),
        }
    }
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { url: _, group, prefix, outside_names, ca_file, consumer } = self;
        f.debug_struct("RedisConfig")
            .field("url", &"***")
            .field("group", group)
            .field("prefix", prefix)
            .field("outside_names", outside_names)
            .field("ca_file", ca_file)
            .field("consumer", consumer)
            .finish()
    }
}

/// Wake-ups by Redis Streams. Cheap to clone; clones share their connections.
#[derive(Clone)]
pub struct RedisTransport {
    inner: Arc<Inner>,
}

struct Inner {
    connections: Connections,
    group: String,
    prefix: String,
    outside_names: OutsideNames,
    consumer: String,
}

impl fmt::Debug for RedisTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { connections: _, group, prefix, outside_names: _, consumer } = &*self.inner;
        f.debug_struct("RedisTransport")
            .field("group", group)
            .field("prefix", prefix)
            .field("consumer", consumer)
            .finish_non_exhaustive()
    }
}

impl RedisTransport {
    /// Checks the configuration. Connects to nothing yet.
    pub fn new(config: RedisConfig) -> Result<Self, TransportError> {
        for (what, text) in [("group", &config.group), ("consumer", &config.consumer)] {
            if text.is_empty() {
                return Err(error::refused(format!("the name of the {what} is empty")));
            }
        }
        let connections = Connections::new(&config.url, config.ca_file.as_deref())?;
        let RedisConfig { group, prefix, outside_names, consumer, .. } = config;
        Ok(Self { inner: Arc::new(Inner { connections, group, prefix, outside_names, consumer }) })
    }
}

impl Inner {
    fn key(&self, queue: &str) -> String {
        outside(queue, &self.outside_names, &self.prefix, str::to_owned)
    }
}

#[async_trait]
impl Transport for RedisTransport {
    fn name(&self) -> &'static str {
        SERVICE
    }

    async fn publish(&self, wakes: &[WakeUp]) -> Result<Vec<Result<Arc<str>, Refused>>, TransportError> {
        let mut published = Vec::with_capacity(wakes.len());
        for wakes in wakes.chunks(PIPELINE) {
            let mut pipeline = redis::pipe();
            pipeline.ignore_errors();
            for wake in wakes {
                let key = self.inner.key(&wake.queue);
                entry::add(&mut pipeline, &key, &wake.queue, &wake.task, wake.enqueue);
            }
            let answers: Vec<redis::RedisResult<String>> = self.inner.connections.run(&pipeline).await?;
            if answers.iter().filter_map(|answer| answer.as_ref().err()).any(connection::is_of_the_connection) {
                // It may lead to a server that others have left.
                self.inner.connections.forget().await;
            }
            for answer in answers {
                published.push(match answer {
                    Ok(id) => Ok(id.into()),
                    Err(error) => Err(error::of_one(&error)?),
                });
            }
        }
        Ok(published)
    }

    async fn receive(&self, queues: &[Arc<str>], max: usize, wait: Duration) -> Result<Vec<Delivery>, TransportError> {
        read::receive(&self.inner, queues, max, wait).await
    }

    async fn settle(&self, receipts: &[Receipt]) -> Result<(), TransportError> {
        for (queue, handles) in by_queue(receipts) {
            self.inner.remove(queue, &handles).await?;
        }
        Ok(())
    }

    async fn extend(&self, receipts: &[Receipt], _time: Duration) -> Result<(), TransportError> {
        for (queue, handles) in by_queue(receipts) {
            self.inner.touch(queue, &handles).await?;
        }
        Ok(())
    }
}

/// The entry ids of each queue. Anything else cannot exist in Redis.
fn by_queue(receipts: &[Receipt]) -> Vec<(&str, Vec<&str>)> {
    let mut queues: Vec<(&str, Vec<&str>)> = Vec::new();
    for receipt in receipts.iter().filter(|receipt| is_entry_id(&receipt.handle)) {
        let queue = match queues.iter_mut().find(|(queue, _)| *queue == &*receipt.queue) {
            Some(queue) => queue,
            None => queues.push_mut((&receipt.queue, Vec::new())),
        };
        queue.1.push(&receipt.handle);
    }
    queues
}
