//! Names of queues and their URLs.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::http::HttpResponse;
use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_sqs::types::QueueAttributeName;

use super::error::{self, Fault};
use crate::wake::outside;
use crate::{OutsideNames, TransportError};

/// The most that SQS has: 14 days.
const RETENTION_SECONDS: u32 = 14 * 24 * 3600;

/// The queues that were found so far.
pub(super) struct Queues {
    prefix: String,
    outside_names: OutsideNames,
    /// The visibility time of queues that are created; none are without it.
    create: Option<i32>,
    urls: Mutex<HashMap<Arc<str>, Arc<str>>>,
}

impl fmt::Debug for Queues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queues")
            .field("prefix", &self.prefix)
            .field("create", &self.create.is_some())
            .finish_non_exhaustive()
    }
}

impl Queues {
    pub(super) fn new(prefix: String, outside_names: OutsideNames, create: Option<i32>) -> Self {
        Self { prefix, outside_names, create, urls: Mutex::default() }
    }

    pub(super) async fn url(&self, client: &Client, queue: &Arc<str>) -> Result<Arc<str>, Fault> {
        if let Some(url) = self.urls().get(queue) {
            return Ok(url.clone());
        }
        let name = self.name(queue)?;
        let url: Arc<str> = match (find(client, &name).await?, self.create) {
            (Some(url), _) => url.into(),
            (None, Some(visibility)) => create(client, &name, visibility).await?.into(),
            (None, None) => return Err(Fault::OfQueue(format!("the queue {name} does not exist"))),
        };
        self.urls().insert(queue.clone(), url.clone());
        Ok(url)
    }

    pub(super) async fn is_there(&self, client: &Client, queue: &str) -> Result<bool, Fault> {
        Ok(find(client, &self.name(queue)?).await?.is_some())
    }

    /// Runs a call on a queue. If it turns out that the queue is gone it is looked for, or made, once more.
    pub(super) async fn with<T, E, C>(
        &self,
        client: &Client,
        queue: &Arc<str>,
        call: impl Fn(String) -> C,
    ) -> Result<T, Fault>
    where
        E: ProvideErrorMetadata,
        C: Future<Output = Result<T, SdkError<E, HttpResponse>>>,
    {
        match call(self.url(client, queue).await?.to_string()).await {
            Err(error) if error::is_missing_queue(&error) => {
                self.urls().remove(queue);
                call(self.url(client, queue).await?.to_string()).await.map_err(|error| error::of(&error).into())
            }
            answer => answer.map_err(|error| error::of(&error).into()),
        }
    }

    fn name(&self, queue: &str) -> Result<String, Fault> {
        // SQS does not take dots.
        let name = outside(queue, &self.outside_names, &self.prefix, |name| name.replace('.', "_"));
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if (1..=80).contains(&name.len()) && name.bytes().all(fits) {
            return Ok(name);
        }
        Err(Fault::OfQueue(format!(
            "{name:?} is not a valid queue name: up to 80 letters, digits, hyphens, underscores"
        )))
    }

    fn urls(&self) -> MutexGuard<'_, HashMap<Arc<str>, Arc<str>>> {
        self.urls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn find(client: &Client, name: &str) -> Result<Option<String>, TransportError> {
    match client.get_queue_url().queue_name(name).send().await {
        Ok(found) => Ok(found.queue_url),
        Err(error) if error::is_missing_queue(&error) => Ok(None),
        Err(error) => Err(error::of(&error)),
    }
}

/// Without a redrive policy: see the module.
async fn create(client: &Client, name: &str, visibility: i32) -> Result<String, TransportError> {
    let made = client
        .create_queue()
        .queue_name(name)
        .attributes(QueueAttributeName::VisibilityTimeout, visibility.to_string())
        .attributes(QueueAttributeName::MessageRetentionPeriod, RETENTION_SECONDS.to_string())
        .send()
        .await;
    let url = match made {
        Ok(made) => made.queue_url,
        // Somebody else was faster, and chose other attributes.
        Err(error) if error.code().is_some_and(|code| code.contains("QueueNameExists")) => find(client, name).await?,
        Err(error) => return Err(error::of(&error)),
    };
    url.ok_or_else(|| error::unreachable("unexpected response"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_sqs_takes() {
        let names = OutsideNames::from([("worker.gpu".to_owned(), "their-gpu".to_owned())]);
        let queues = Queues::new("t-".to_owned(), names, None);
        assert_eq!(queues.name("dag::worker").unwrap(), "t-worker");
        assert_eq!(queues.name("dag::worker.big").unwrap(), "t-worker_big");
        assert_eq!(queues.name("dag::worker.gpu").unwrap(), "their-gpu", "a whole name");
        assert_eq!(queues.name("worker-gpu").unwrap(), "t-worker-gpu", "of no job");
        assert_eq!(queues.name("etl_Low-1").unwrap(), "t-etl_Low-1");
        for bad in ["etl.low", "a b", "ä", "orders.fifo", &"x".repeat(79)] {
            let error = queues.name(bad).unwrap_err();
            assert!(matches!(error, Fault::OfQueue(_)), "{bad}");
        }
        assert!(Queues::new(String::new(), OutsideNames::new(), None).name("").is_err());
    }
}
