//! SQS, standard queues.
//!
//! A queue is an SQS queue, named with a prefix. The body of a message is exactly `{"task_id":"<uuid>"}`; the number of
//! the enqueue is its attribute `enqueue_id`, which messages of jobs do not have. What is due later waits in the store, so nothing is published with a delay.
//!
//! **What SQS cannot tell.** There is no looking at messages without receiving them, and no finding out whether one is
//! still there. So [`lost`](crate::Upkeep::lost) does not know, [`take_over`](crate::Upkeep::take_over) and
//! [`peek`](crate::Upkeep::peek) are empty, and [`remove`](crate::Upkeep::remove) does nothing: a consumer that dies is
//! made good by the visibility time, and a stale message is settled by whoever receives it.
//!
//! **Redrive policy: none.** A queue that is created here has no dead-letter queue, and one should not be added. The dead
//! letters are tasks, and they are in the store, where attempts are counted. A wake-up that SQS moves away would only be
//! missing. What is no wake-up is logged and deleted by whoever receives it. Messages are kept for 14 days, the most
//! that SQS has.
//!
//! **Order of queues.** A short poll may overlook messages, so an earlier queue is preferred as far as SQS lets one see.
//! With several queues a wait is made of slices of about a second on the first, and a look at all of them in between.

mod batch;
mod error;
mod queues;
mod receive;
mod upkeep;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region};
use aws_sdk_sqs::Client;

use self::queues::Queues;
use crate::{Delivery, OutsideNames, Receipt, Refused, Transport, TransportError, WakeUp};

const SERVICE: &str = "sqs";

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(2);

/// How long an answer may take, beyond what it was asked to wait.
const RESPONSE: Duration = Duration::from_secs(5);

/// The longest time for which SQS hides a message.
const LONGEST_VISIBILITY: Duration = Duration::from_secs(12 * 3600);

/// Where the queues are. Credentials come from the environment, as everywhere with AWS.
#[derive(Debug, Clone)]
pub struct SqsConfig {
    /// For servers that speak as SQS does. Without it the one of the region.
    pub endpoint_url: Option<String>,
    /// Without it the one of the environment.
    pub region: Option<String>,
    /// Stands before the name of each queue.
    pub queue_prefix: String,
    /// The queues of jobs that have other names.
    pub outside_names: OutsideNames,
    /// Makes queues that do not exist.
    pub create_queues: bool,
    /// For how long a received message is hidden from others.
    pub visibility: Duration,
}

impl Default for SqsConfig {
    fn default() -> Self {
        Self {
            endpoint_url: None,
            region: None,
            queue_prefix: String::new(),
            outside_names: OutsideNames::new(),
            create_queues: false,
            visibility: Duration::from_secs(60),
        }
    }
}

/// Wake-ups by SQS. Cheap to clone; clones share their connections.
#[derive(Clone)]
pub struct SqsTransport {
    inner: Arc<Inner>,
}

struct Inner {
    client: Client,
    queues: Queues,
    visibility: i32,
}

impl fmt::Debug for SqsTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqsTransport")
            .field("queues", &self.inner.queues)
            .field("visibility", &self.inner.visibility)
            .finish_non_exhaustive()
    }
}

impl SqsTransport {
    /// Finds region and credentials as all programs for AWS do. Asks SQS nothing yet.
    pub async fn new(config: SqsConfig) -> Result<Self, TransportError> {
        // A server that only speaks as SQS does has no regions. It wants the name of one all the same.
        let region = config.region.clone().or_else(|| config.endpoint_url.as_ref().map(|_| "us-east-1".to_owned()));
        let mut loader = aws_config::defaults(BehaviorVersion::latest());
        if let Some(region) = region {
            loader = loader.region(Region::new(region));
        }
        if let Some(url) = &config.endpoint_url {
            loader = loader.endpoint_url(url);
        }
        let shared = loader.load().await;
        if shared.region().is_none() {
            return Err(error::refused("no region is set, here or in the environment (AWS_REGION)"));
        }
        Self::from_client(&Client::new(&shared), config)
    }

    /// Uses region, endpoint and credentials of a client. Time limits and retries are this transport's own.
    pub fn from_client(client: &Client, config: SqsConfig) -> Result<Self, TransportError> {
        if config.visibility < Duration::from_secs(1) || config.visibility > LONGEST_VISIBILITY {
            return Err(error::refused("the visibility time is not between 1 second and 12 hours"));
        }
        let limits = TimeoutConfig::builder().connect_timeout(CONNECT).operation_attempt_timeout(RESPONSE).build();
        let retry = RetryConfig::standard().with_max_attempts(2).with_max_backoff(Duration::from_millis(500));
        let adjusted = client.config().to_builder().timeout_config(limits).retry_config(retry).build();
        let client = Client::from_conf(adjusted);
        let visibility = seconds(config.visibility);
        let queues = Queues::new(config.queue_prefix, config.outside_names, config.create_queues.then_some(visibility));
        Ok(Self { inner: Arc::new(Inner { client, queues, visibility }) })
    }
}

/// Whole seconds, up, and no more than SQS takes.
fn seconds(time: Duration) -> i32 {
    let whole = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    i32::try_from(whole.min(LONGEST_VISIBILITY.as_secs())).unwrap_or(i32::MAX)
}

#[async_trait]
impl Transport for SqsTransport {
    fn name(&self) -> &'static str {
        SERVICE
    }

    async fn publish(&self, wakes: &[WakeUp]) -> Result<Vec<Result<Arc<str>, Refused>>, TransportError> {
        batch::publish(&self.inner, wakes).await
    }

    async fn receive(&self, queues: &[Arc<str>], max: usize, wait: Duration) -> Result<Vec<Delivery>, TransportError> {
        receive::receive(&self.inner, queues, max, wait).await
    }

    async fn settle(&self, receipts: &[Receipt]) -> Result<(), TransportError> {
        batch::delete(&self.inner, receipts).await
    }

    async fn extend(&self, receipts: &[Receipt], time: Duration) -> Result<(), TransportError> {
        batch::hide(&self.inner, receipts, seconds(time)).await
    }
}
