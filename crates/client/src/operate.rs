//! The part of the user API for those who run the place: queues and dead letters.

use reqwest::Method;
use tenure_contract::user::{
    DeadLetter, Page, Queue, QueueChange, QueueDeleted, QueuePaused, QueueSettings, Redrive, RedriveRequest,
};

use crate::client::{Call, Client};
use crate::error::ClientError;
use crate::filter::{self, DeadLetterFilter};

impl Client {
    /// One page of queues.
    pub async fn queues(&self, cursor: Option<String>) -> Result<Page<Queue>, ClientError> {
        let mut url = self.url(&["queues"]);
        filter::write(&mut url, &[("cursor", &cursor)]);
        self.call(Call::new(Method::GET, url)).await
    }

    pub async fn queue(&self, name: &str) -> Result<Queue, ClientError> {
        self.call(Call::new(Method::GET, self.url(&["queues", name]))).await
    }

    /// Creates a queue, or replaces its settings; what is absent has no limit. Its transport and where its tasks are pushed
    /// stay.
    pub async fn set_queue(&self, name: &str, settings: &QueueSettings) -> Result<Queue, ClientError> {
        self.call(Call::new(Method::PUT, self.url(&["queues", name])).json(settings)?).await
    }

    /// Changes what is named about a queue that exists; everything else stays.
    pub async fn change_queue(&self, name: &str, change: &QueueChange) -> Result<Queue, ClientError> {
        let call = Call::new(Method::PATCH, self.url(&["queues", name])).json(change)?;
        self.call(call.repeatable(true)).await
    }

    /// Stops grants; running work goes on.
    pub async fn pause_queue(&self, name: &str) -> Result<QueuePaused, ClientError> {
        self.call(Call::new(Method::POST, self.url(&["queues", name, "pause"])).repeatable(true)).await
    }

    pub async fn resume_queue(&self, name: &str) -> Result<QueuePaused, ClientError> {
        self.call(Call::new(Method::POST, self.url(&["queues", name, "resume"])).repeatable(true)).await
    }

    /// Deletes a queue without open tasks; with `force` also if it has dead letters. Its ended tasks stay readable. After a
    /// lost answer `queue_not_found` means that it is deleted.
    pub async fn delete_queue(&self, name: &str, force: bool) -> Result<QueueDeleted, ClientError> {
        let mut url = self.url(&["queues", name]);
        filter::write(&mut url, &[("force", &force.then(|| "true".to_owned()))]);
        self.call(Call::new(Method::DELETE, url)).await
    }

    /// One page of dead letters; `next_cursor` goes into the filter of the next.
    pub async fn dead_letters(&self, filter: &DeadLetterFilter) -> Result<Page<DeadLetter>, ClientError> {
        let mut url = self.url(&["dead-letters"]);
        filter.write(&mut url);
        self.call(Call::new(Method::GET, url)).await
    }

    /// Releases dead letters into their queues. Call again with the same `idempotency_key` to see how far it is.
    pub async fn redrive(&self, request: &RedriveRequest) -> Result<Redrive, ClientError> {
        let call = Call::new(Method::POST, self.url(&["dead-letters", "redrive"])).json(request)?;
        self.call(call.repeatable(request.dry_run || request.idempotency_key.is_some())).await
    }

    /// One page of redrives, newest first.
    pub async fn redrives(&self, cursor: Option<String>) -> Result<Page<Redrive>, ClientError> {
        let mut url = self.url(&["redrives"]);
        filter::write(&mut url, &[("cursor", &cursor)]);
        self.call(Call::new(Method::GET, url)).await
    }

    /// How far a redrive is.
    pub async fn get_redrive(&self, redrive_id: &str) -> Result<Redrive, ClientError> {
        self.call(Call::new(Method::GET, self.url(&["redrives", redrive_id]))).await
    }

    /// Lets a redrive release nothing more until it is resumed.
    pub async fn pause_redrive(&self, redrive_id: &str) -> Result<Redrive, ClientError> {
        self.call(Call::new(Method::POST, self.url(&["redrives", redrive_id, "pause"])).repeatable(true)).await
    }

    pub async fn resume_redrive(&self, redrive_id: &str) -> Result<Redrive, ClientError> {
        self.call(Call::new(Method::POST, self.url(&["redrives", redrive_id, "resume"])).repeatable(true)).await
    }

    /// Ends a redrive. What was released stays released.
    pub async fn cancel_redrive(&self, redrive_id: &str) -> Result<Redrive, ClientError> {
        self.call(Call::new(Method::POST, self.url(&["redrives", redrive_id, "cancel"])).repeatable(true)).await
    }
}
