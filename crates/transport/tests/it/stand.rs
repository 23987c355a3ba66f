//! What a case needs of a service.

use std::sync::Arc;
use std::time::Duration;

use tenure_transport::{Delivery, Receipt, TransportError, Upkeep, WakeUp};

/// How long anything may take on a busy machine.
pub const SOON: Duration = Duration::from_secs(60);

/// For how long a service keeps a delivery from others, where a case waits for the end of it.
pub const SHORT: Duration = Duration::from_secs(4);

/// The same where a case does not.
pub const LONG: Duration = Duration::from_secs(3600);

/// A running service.
pub trait Stand {
    /// How many messages a case of many has.
    const MANY: usize;

    async fn start() -> Self;

    /// A consumer of its own. What it receives is kept from others for [`LONG`], where it is up to the service.
    async fn consumer(&self, name: &str) -> Arc<dyn Upkeep> {
        self.consumer_for(name, LONG).await
    }

    /// A consumer of its own. What it receives is kept from others for so long, where it is up to the service.
    async fn consumer_for(&self, name: &str, visibility: Duration) -> Arc<dyn Upkeep>;

    /// Puts something into the queue that is no wake-up.
    async fn publish_garbage(&self, queue: &str);

    /// Loses everything in a queue.
    async fn lose(&self, queue: &str);

    /// What another consumer gets of a delivery that was not settled in time.
    async fn redelivered(&self, consumer: &dyn Upkeep, queue: &Arc<str>) -> Vec<Delivery>;

    fn kill(&mut self);

    async fn restart(&mut self);
}

pub fn queue(name: &str) -> Arc<str> {
    name.into()
}

pub fn wake(queue: &str, n: usize) -> WakeUp {
    WakeUp { queue: queue.into(), task: task(n), enqueue: i64::try_from(n).unwrap() + 1_000_000_000_000 }
}

pub fn task(n: usize) -> Arc<str> {
    format!("018c385a-9fb1-9509-0e89-{n:012x}").into()
}

pub async fn publish(to: &dyn Upkeep, wakes: &[WakeUp]) -> Vec<Arc<str>> {
    to.publish(wakes).await.unwrap().into_iter().map(Result::unwrap).collect()
}

/// What is there now.
pub async fn look(consumer: &dyn Upkeep, queues: &[Arc<str>]) -> Vec<Delivery> {
    consumer.receive(queues, 100, Duration::ZERO).await.unwrap()
}

pub fn receipts(deliveries: &[Delivery]) -> Vec<Receipt> {
    deliveries.iter().map(|delivery| delivery.receipt.clone()).collect()
}

pub fn is_unreachable<T>(answer: &Result<T, TransportError>) -> bool {
    matches!(answer, Err(TransportError::Unreachable { .. }))
}
