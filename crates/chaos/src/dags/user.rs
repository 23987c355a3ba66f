//! Those who fire the source, say that data has changed, and look at cursors.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::DAG;
use super::history::{Answer, Call, Recorder, range};
use crate::http::{Http, Reply};
use crate::rng::Rng;

/// How often a request without an answer is sent again.
const TRIES: usize = 12;

/// Between two looks at the cursors.
const LOOK: Duration = Duration::from_millis(150);

/// A user in the process of the run.
#[derive(Debug)]
pub struct User {
    http: Http,
    recorder: Recorder,
    rng: Rng,
}

/// The output of a job: its name in the history, and the dataset.
pub type Outputs = BTreeMap<String, String>;

impl User {
    pub fn new(http: Http, recorder: Recorder, seed: u64, name: &str) -> Self {
        Self { http, recorder, rng: Rng::fork(seed, name) }
    }

    async fn post(
        &mut self,
        call: Call,
        path: &str,
        key: &str,
        body: &Value,
        read: fn(&Value) -> Option<Answer>,
    ) -> Answer {
        let mut last = Answer::NotSent;
        for turn in 0..TRIES {
            let op = self.recorder.ask(call.clone());
            let server = self.rng.index(self.http.servers());
            last = Answer::of(&self.http.send(server, path, ("Idempotency-Key", key), Some(body)).await, read);
            self.recorder.answer(&op, &last);
            if !last.is_open() {
                // Some ask again for nothing: it must be the same.
                if turn > 0 || !self.rng.chance(10) {
                    break;
                }
                continue;
            }
            sleep(Duration::from_millis(100 << turn.min(4))).await;
        }
        last
    }

    /// Fires the source until `end`, each time for the next number, and says of some ranges that they have changed.
    pub async fn fire(mut self, imported: String, end: Instant) -> u64 {
        let mut fired = 0;
        for n in 0_u64.. {
            if Instant::now() > end {
                break;
            }
            let (path, body) = (format!("/api/v1/dags/{DAG}/jobs/import/trigger"), json!({"input": {"n": n}}));
            let read = |body: &Value| Some(Answer::Fired { task: body["task_id"].as_str()?.to_owned() });
            self.post(Call::Fire { n }, &path, &format!("r-{n}"), &body, read).await;
            fired = n + 1;
            if n > 4 && self.rng.chance(30) {
                let changed = self.rng.between(0, n - 3);
                let key = format!("i-{n}");
                let path = format!("/api/v1/datasets/{imported}/invalidate");
                let body = json!({"scope": "partition", "partition_key": range(changed), "reason": "reorg"});
                let read = |body: &Value| Some(Answer::Invalidated { generation: body["generation"].as_u64()? });
                self.post(Call::Invalidate { n: changed, key: key.clone() }, &path, &key, &body, read).await;
            }
            let pause = self.rng.between(20, 250);
            sleep(Duration::from_millis(pause)).await;
        }
        fired
    }

    /// Looks at all cursors, again and again, at any control plane.
    pub async fn look(mut self, outputs: Outputs) {
        loop {
            self.look_once(&outputs).await;
            sleep(LOOK).await;
        }
    }

    pub async fn look_once(&mut self, outputs: &Outputs) {
        let op = self.recorder.ask(Call::Look);
        let server = self.rng.index(self.http.servers());
        let mut values = BTreeMap::new();
        for (name, dataset) in outputs {
            let path = format!("/api/v1/datasets/{dataset}?limit=1");
            let Reply::Told { status: 200, body } = self.http.get(server, &path).await else {
                self.recorder.answer(&op, &Answer::Unknown { why: "no answer".to_owned() });
                return;
            };
            values.extend(body["cursor"]["produced"].as_u64().map(|value| (name.clone(), value)));
            for consumer in body["cursor"]["consumers"].as_array().into_iter().flatten() {
                let reader = format!("{name} read by {}", consumer["job"].as_str().unwrap_or_default());
                values.extend(consumer["value"].as_u64().map(|value| (reader, value)));
            }
        }
        self.recorder.answer(&op, &Answer::Cursors { values });
    }
}
