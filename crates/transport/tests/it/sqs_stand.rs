use std::slice::from_ref;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::{BehaviorVersion, Credentials, Region, SharedCredentialsProvider};
use tenure_testkit::Moto;
use tenure_transport::sqs::{SqsConfig, SqsTransport};
use tenure_transport::{Delivery, Upkeep};

use crate::stand::{SOON, Stand};

pub struct SqsStand {
    pub server: Moto,
}

impl SqsStand {
    pub fn client(&self) -> Client {
        let credentials = Credentials::new("access", "hunter2", None, None, "tests");
        let config = aws_sdk_sqs::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .endpoint_url(self.server.url())
            .region(Region::new("eu-central-1"))
            .credentials_provider(SharedCredentialsProvider::new(credentials))
            .build();
        Client::from_conf(config)
    }

    pub fn transport(&self, create_queues: bool, visibility: Duration) -> SqsTransport {
        let config = SqsConfig { queue_prefix: "t-".to_owned(), create_queues, visibility, ..SqsConfig::default() };
        SqsTransport::from_client(&self.client(), config).unwrap()
    }

    pub async fn url(&self, queue: &str) -> String {
        let found = self.client().get_queue_url().queue_name(format!("t-{queue}")).send().await.unwrap();
        found.queue_url.unwrap()
    }
}

impl Stand for SqsStand {
    /// Up to a tenth of a second each on a busy machine: the server is written for tests and not for speed.
    const MANY: usize = 100;

    async fn start() -> Self {
        Self { server: Moto::start().await }
    }

    async fn consumer_for(&self, _name: &str, visibility: Duration) -> Arc<dyn Upkeep> {
        Arc::new(self.transport(true, visibility))
    }

    async fn publish_garbage(&self, queue: &str) {
        let (client, url) = (self.client(), self.url(queue).await);
        for body in ["garbage", "{}", r#"{"task_id":7}"#, r#"{"task_id":"x"}"#] {
            client.send_message().queue_url(&url).message_body(body).send().await.unwrap();
        }
    }

    async fn lose(&self, queue: &str) {
        self.client().purge_queue().queue_url(self.url(queue).await).send().await.unwrap();
    }

    async fn redelivered(&self, consumer: &dyn Upkeep, queue: &Arc<str>) -> Vec<Delivery> {
        consumer.receive(from_ref(queue), 10, SOON).await.unwrap()
    }

    fn kill(&mut self) {
        self.server.kill();
    }

    async fn restart(&mut self) {
        self.server.restart().await;
    }
}
