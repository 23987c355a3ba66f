//! Carries wake-ups between control planes and workers.
//!
//! A wake-up says "this task may be claimed now" and nothing else. The store is the truth: a wake-up that is lost,
//! doubled, late or out of order costs time and never correctness. So a transport promises little, and what it cannot
//! promise the control plane makes good: what was lost is published again, what is stale is settled when somebody meets
//! it.
//!
//! - [`Transport`] is what publishers and consumers use: publish, receive with a wait, settle.
//! - [`Upkeep`] is what only a control plane does to keep a stream in order.

#[cfg(feature = "lambda")]
pub mod lambda;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "sqs")]
pub mod sqs;
#[cfg(feature = "sts")]
pub mod sts;
#[cfg(any(feature = "redis", feature = "sqs"))]
mod wake;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

/// A queue with a name that begins like this carries the wake-ups of jobs, for workers of the dispatch contract. Outside
/// it has the rest of the name, or the one that [`OutsideNames`] gives it, and its messages are `{"task_id":"<uuid>"}`
/// and nothing else.
pub const JOBS: &str = "dag::";

/// How queues of jobs are called outside, by their names without [`JOBS`]. These are whole names: no prefix is put before
/// them.
pub type OutsideNames = std::collections::BTreeMap<String, String>;

/// What tells the consumers of a queue that a task may be claimed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WakeUp {
    pub queue: Arc<str>,
    /// The id of the task, as a lower-case UUID.
    pub task: Arc<str>,
    /// Fresh with every enqueue of the task; the same when a wake-up is published again.
    pub enqueue: i64,
}

/// A wake-up as a consumer got it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    pub queue: Arc<str>,
    pub task: Arc<str>,
    /// Not every transport carries it.
    pub enqueue: Option<i64>,
    /// How the transport names the message: what a claim sends as `message_id`.
    pub message_id: Arc<str>,
    /// What settles it. Where the transport has one receipt per delivery, a message that was delivered again has
    /// another one.
    pub receipt: Receipt,
}

/// Names a delivery of a message to the transport.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    pub queue: Arc<str>,
    pub handle: Arc<str>,
}

/// A message that is more than a wake-up: a batch of rows, or a dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub body: String,
    pub receipt: Receipt,
}

/// Why one wake-up was not published while others were.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It was refused.
    #[error("{0}")]
    ForItself(String),
    /// Its queue could not be reached; that says nothing about the wake-up.
    #[error("{0}")]
    Away(String),
}

/// The transport as such did not do it. Messages hold no address and no credential.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// It cannot be reached, or does not answer in time. What was asked may have happened.
    #[error("{service} cannot be reached: {reason}")]
    Unreachable { service: &'static str, reason: String },
    /// It answered, and will not do this however often it is asked.
    #[error("{service} refused: {reason}")]
    Refused { service: &'static str, reason: String },
}

/// What publishers and consumers of wake-ups use.
#[async_trait]
pub trait Transport: std::fmt::Debug + Send + Sync {
    /// `redis` or `sqs`.
    fn name(&self) -> &'static str;

    /// Publishes each wake-up, in order. Gives for each its message id, or why it alone was refused. An error means
    /// that nothing is known: some may have been published, and all are to be published again.
    async fn publish(&self, wakes: &[WakeUp]) -> Result<Vec<Result<Arc<str>, Refused>>, TransportError>;

    /// Up to `max` deliveries, all of the first of `queues` that has any. Waits up to `wait` while none has. A message
    /// that is no wake-up is logged, settled and left out. Who stops waiting for the answer loses nothing: what was taken
    /// by then is given back.
    async fn receive(&self, queues: &[Arc<str>], max: usize, wait: Duration) -> Result<Vec<Delivery>, TransportError>;

    /// The wake-ups are over: they are not delivered again. Only for what the control plane has called over (`ack: true`),
    /// and then for everybody. So it does not matter whether the receipt of an earlier delivery settles the message, as in
    /// Redis, or settles nothing, as SQS may do. A receipt of a message that is gone is not an error.
    async fn settle(&self, receipts: &[Receipt]) -> Result<(), TransportError>;

    /// The receiver of these is still working: nobody else gets them for this long from now.
    async fn extend(&self, receipts: &[Receipt], time: Duration) -> Result<(), TransportError>;
}

/// What a control plane does to keep the messages of a queue in line with the store.
#[async_trait]
pub trait Upkeep: Transport {
    /// Makes what consumers of the queue need, if it is not there.
    async fn prepare(&self, queue: &Arc<str>) -> Result<(), TransportError>;

    /// Whether what consumers of the queue need is there, without making it.
    async fn is_prepared(&self, queue: &Arc<str>) -> Result<bool, TransportError>;

    /// How many messages it holds of a queue, delivered or not.
    async fn depth(&self, queue: &Arc<str>) -> Result<u64, TransportError>;

    /// Which of these messages it no longer holds, by their place in the list. `None` if it cannot tell.
    async fn lost(&self, queue: &Arc<str>, messages: &[Arc<str>]) -> Result<Option<Vec<usize>>, TransportError>;

    /// Deliveries of which nobody was heard for `idle`: from now on they are the caller's.
    async fn take_over(&self, queue: &Arc<str>, idle: Duration, max: usize) -> Result<Vec<Delivery>, TransportError>;

    /// Messages behind `after` in the order of the queue, delivered or not, without taking them from anybody. Empty at
    /// the end, and always for a transport that cannot look.
    async fn peek(&self, queue: &Arc<str>, after: Option<&str>, max: usize) -> Result<Vec<Delivery>, TransportError>;

    /// Removes messages whoever has them, by message id. A transport that cannot leaves them to those who receive them.
    async fn remove(&self, queue: &Arc<str>, messages: &[Arc<str>]) -> Result<(), TransportError>;

    /// Puts a message into a queue, as it is.
    async fn send(&self, queue: &Arc<str>, body: &str) -> Result<(), TransportError>;

    /// Up to `max` messages of a queue, whatever they are, without a wait. One that is not settled comes again later.
    async fn take(&self, queue: &Arc<str>, max: usize) -> Result<Vec<Message>, TransportError>;
}
