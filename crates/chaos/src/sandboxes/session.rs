//! Those who create sandboxes, use them, and destroy or forget them.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::api::{Api, Wanted};
use super::fleet::OWNERS;
use super::history::{Answer, Row};
use crate::rng::Rng;

/// How often a request whose end is not known is sent again.
const TRIES: usize = 8;

/// Sandboxes that sessions share.
#[derive(Debug, Default)]
pub struct Pool(Mutex<Vec<String>>);

impl Pool {
    const MOST: usize = 60;

    fn add(&self, sandbox: &str) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.push(sandbox.to_owned());
        let surplus = known.len().saturating_sub(Self::MOST);
        known.drain(..surplus);
    }

    fn pick(&self, rng: &mut Rng) -> Option<String> {
        rng.pick(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).cloned()
    }

    fn forget(&self, sandbox: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|known| known != sandbox);
    }
}

/// One user.
#[derive(Debug)]
pub struct Session<'a> {
    name: String,
    api: Api<'a>,
    pool: &'a Pool,
    rng: Rng,
    count: u64,
    end: Instant,
}

impl<'a> Session<'a> {
    pub fn new(index: usize, api: Api<'a>, pool: &'a Pool, seed: u64, end: Instant) -> Self {
        let name = format!("s{index}");
        let rng = Rng::fork(seed, &name);
        Self { name, api, pool, rng, count: 0, end }
    }

    fn server(&mut self) -> usize {
        self.rng.index(self.api.servers())
    }

    fn is_over(&self) -> bool {
        Instant::now() > self.end
    }

    async fn pause(&mut self, low_ms: u64, high_ms: u64) {
        let pause = self.rng.between(low_ms, high_ms);
        sleep(Duration::from_millis(pause)).await;
    }

    pub async fn run(mut self) {
        while !self.is_over() {
            match self.create().await {
                Some(row) if row.state == "running" => self.live(&row.sandbox).await,
                // It failed, or it is not known whether it will be one.
                Some(_) => self.pause(50, 300).await,
                None => self.pause(100, 800).await,
            }
            if self.rng.chance(40) {
                self.meddle().await;
            }
        }
    }

    fn wanted(&mut self) -> Wanted {
        self.count += 1;
        let nonce = format!("{}-{}", self.name, self.count);
        let key = self.rng.chance(70).then(|| format!("key-{nonce}"));
        let ttl_ms = [6_000, 15_000, 600_000][self.rng.index(3)];
        let memory_mb = [64, 128, 256][self.rng.index(3)];
        let vcpus = self.rng.between(1, 3);
        let owner = OWNERS[self.rng.index(OWNERS.len())].to_owned();
        Wanted { nonce, key, owner, ttl_ms, memory_mb, vcpus }
    }

    async fn create(&mut self) -> Option<Row> {
        let wanted = self.wanted();
        let keyed = wanted.key.is_some();
        // The same key twice at the same time is one sandbox.
        if keyed && self.rng.chance(20) {
            let (one, other) = (self.server(), self.server());
            tokio::join!(self.api.create(one, &wanted), self.api.create(other, &wanted));
        }
        for attempt in 0..TRIES {
            let server = self.server();
            match self.api.create(server, &wanted).await {
                Answer::Created { row } => return Some(row),
                Answer::NotSent => {}
                // Sent again without a key it would be another sandbox.
                Answer::Unknown { .. } if keyed => {}
                _ => return None,
            }
            if self.is_over() {
                return None;
            }
            sleep(Duration::from_millis(100 << attempt.min(4))).await;
        }
        None
    }

    async fn live(&mut self, sandbox: &str) {
        let path = format!("/workspace/{}", self.name);
        for step in 0..self.rng.between(2, 10) {
            if self.is_over() {
                break;
            }
            let server = self.server();
            let answer = match self.rng.between(0, 100) {
                0..30 => self.api.write(server, sandbox, &path, &format!("{}-{}-{step}", self.name, self.count)).await,
                30..55 => self.api.read(server, sandbox, &path).await,
                55..78 => {
                    let leave = self.rng.chance(15);
                    self.api.exec(server, sandbox, leave).await
                }
                78..84 => self.extend(server, sandbox).await,
                84..92 => self.api.show(server, sandbox).await,
                _ => {
                    let owner = self.rng.chance(50).then(|| OWNERS[self.rng.index(OWNERS.len())]);
                    self.api.list(server, owner).await
                }
            };
            if let Answer::Refused { status: 404, .. } = answer {
                // Whether a file is missing or all of it.
                if !matches!(self.api.show(server, sandbox).await, Answer::Seen { .. }) {
                    return;
                }
            }
            self.pause(20, 500).await;
        }
        if self.rng.chance(55) {
            self.destroy(sandbox).await;
        } else {
            self.pool.add(sandbox);
        }
    }

    async fn extend(&mut self, server: usize, sandbox: &str) -> Answer {
        let ttl_ms = [5_000, 20_000, 600_000][self.rng.index(3)];
        self.api.extend(server, sandbox, ttl_ms).await
    }

    async fn destroy(&mut self, sandbox: &str) {
        self.pool.forget(sandbox);
        for _ in 0..TRIES {
            let server = self.server();
            match self.api.destroy(server, sandbox).await {
                // Once more, for nothing.
                Answer::Destroyed { .. } if self.rng.chance(10) => {}
                Answer::Unknown { .. } | Answer::NotSent if !self.is_over() => {}
                _ => break,
            }
            self.pause(50, 400).await;
        }
        if self.rng.chance(30) {
            let server = self.server();
            self.api.show(server, sandbox).await;
        }
    }

    /// Ends a sandbox of somebody else, whatever is being done with it. It may not even be created yet.
    async fn end_another(&mut self) {
        let server = self.server();
        let Answer::Listed { rows } = self.api.list(server, None).await else { return };
        let rows: Vec<Row> = rows.into_iter().filter(Row::counts).collect();
        if let Some(row) = self.rng.pick(&rows) {
            self.destroy(&row.sandbox.clone()).await;
        }
    }

    /// Does something to a sandbox that a session has left alone.
    async fn meddle(&mut self) {
        if self.rng.chance(20) {
            return self.end_another().await;
        }
        let Some(sandbox) = self.pool.pick(&mut self.rng) else { return };
        let server = self.server();
        let path = format!("/workspace/{}", self.name);
        let answer = match self.rng.between(0, 100) {
            0..25 => self.api.exec(server, &sandbox, false).await,
            25..40 => self.api.write(server, &sandbox, &path, &format!("{}-m{}", self.name, self.count)).await,
            40..55 => self.api.read(server, &sandbox, &path).await,
            55..60 => self.extend(server, &sandbox).await,
            60..75 => self.api.show(server, &sandbox).await,
            _ => return self.destroy(&sandbox).await,
        };
        if let Answer::Refused { status: 404, .. } = answer {
            self.api.show(server, &sandbox).await;
        }
    }
}
