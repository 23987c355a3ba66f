use std::sync::Arc;
use std::time::Duration;

use redis::{Connection, FromRedisValue};
use tenure_testkit::{Redis, wait_until};
use tenure_transport::redis::{RedisConfig, RedisTransport};
use tenure_transport::{Delivery, Upkeep};

use crate::stand::{SHORT, SOON, Stand};

pub struct RedisStand {
    pub server: Redis,
}

pub fn transport(url: &str, consumer: &str) -> RedisTransport {
    let config = RedisConfig {
        url: url.to_owned(),
        prefix: "t:".to_owned(),
        consumer: consumer.to_owned(),
        ..RedisConfig::default()
    };
    RedisTransport::new(config).unwrap()
}

impl RedisStand {
    pub fn connection(&self) -> Connection {
        redis::Client::open(self.server.url()).unwrap().get_connection().unwrap()
    }

    /// Runs a command, its words as given.
    pub fn run<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query(&mut self.connection()).unwrap()
    }

    /// How many entries of a queue were delivered and not settled.
    pub fn pending(&self, queue: &str) -> usize {
        let found: Vec<redis::Value> = self.run(&["XPENDING", &format!("t:{queue}"), "tenure", "-", "+", "100000"]);
        found.len()
    }
}

impl Stand for RedisStand {
    const MANY: usize = 50_000;

    async fn start() -> Self {
        Self { server: Redis::start().await }
    }

    async fn consumer_for(&self, name: &str, _visibility: Duration) -> Arc<dyn Upkeep> {
        Arc::new(transport(&self.server.url(), name))
    }

    async fn publish_garbage(&self, queue: &str) {
        let key = format!("t:{queue}");
        let id = "018c385a-9fb1-9509-0e89-33fe3b7b1aa9";
        for fields in [
            &["what", "ever"][..],
            &["job_id", id],
            &["enqueue_id", "7"],
            &["job_id", "x", "enqueue_id", "7"],
            &["job_id", id, "enqueue_id", "seven"],
        ] {
            self.run::<String>(&[&["XADD", &key, "*"], fields].concat());
        }
    }

    async fn lose(&self, queue: &str) {
        self.run::<i64>(&["DEL", &format!("t:{queue}")]);
    }

    async fn redelivered(&self, consumer: &dyn Upkeep, queue: &Arc<str>) -> Vec<Delivery> {
        assert!(consumer.take_over(queue, Duration::from_secs(3600), 10).await.unwrap().is_empty(), "not idle enough");
        wait_until("a delivery is taken over", SOON, async || {
            let taken = consumer.take_over(queue, SHORT, 10).await.unwrap();
            (!taken.is_empty()).then_some(taken)
        })
        .await
    }

    fn kill(&mut self) {
        self.server.kill();
    }

    async fn restart(&mut self) {
        self.server.restart().await;
    }
}
