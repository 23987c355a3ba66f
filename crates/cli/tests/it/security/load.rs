//! Callers that never stop calling, and remember every answer that they should not have got.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tenure_testkit::wait_until;
use tokio::task::JoinHandle;

use crate::security::kit::{Caller, PATIENCE};

/// Between two calls of one caller: enough to leave a small machine time for others.
const BREATH: Duration = Duration::from_millis(5);

/// What a caller shows, which can be exchanged while it calls.
#[derive(Clone)]
pub struct Credential(Arc<Mutex<Caller>>);

impl Credential {
    pub fn set(&self, caller: Caller) {
        *self.0.lock().unwrap() = caller;
    }

    fn get(&self) -> Caller {
        self.0.lock().unwrap().clone()
    }
}

struct Runner {
    name: String,
    calls: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

#[derive(Default)]
pub struct Load {
    stop: Arc<AtomicBool>,
    failures: Arc<Mutex<Vec<String>>>,
    runners: Vec<Runner>,
}

impl Load {
    /// Submits tasks all the time.
    pub fn submits(&mut self, name: &str, caller: Caller) -> Credential {
        let task = json!({"queue": "q", "operator": "echo", "payload": {"by": name}});
        self.run(name, caller, move |caller| {
            let task = task.clone();
            async move { one(&caller, "/api/v1/tasks", &task, 201).await.map(|_| ()) }
        })
    }

    /// Claims and completes all the time, as the worker `id`.
    pub fn works(&mut self, id: &'static str, caller: Caller) -> Credential {
        self.run(id, caller, move |caller| async move {
            let claim = json!({"worker_id": id, "streams": ["q"], "max_wait_ms": 0});
            let job = one(&caller, "/internal/worker/claim", &claim, 200).await?;
            if job["claimed"] == true {
                let done = json!({"worker_id": id, "job_id": job["job_id"], "attempt_id": job["attempt_id"],
                    "lease_token": job["lease_token"], "result": {"by": id}});
                one(&caller, "/internal/worker/complete", &done, 200).await?;
            }
            Ok(())
        })
    }

    fn run<F: Future<Output = Result<(), String>> + Send>(
        &mut self,
        name: &str,
        caller: Caller,
        turn: impl Fn(Caller) -> F + Send + Sync + 'static,
    ) -> Credential {
        let credential = Credential(Arc::new(Mutex::new(caller)));
        let calls = Arc::<AtomicU64>::default();
        let (stop, failures) = (Arc::clone(&self.stop), Arc::clone(&self.failures));
        let (own, counted, own_name) = (credential.clone(), Arc::clone(&calls), name.to_owned());
        let task = tokio::spawn(async move {
            while !stop.load(Ordering::SeqCst) {
                if let Err(failure) = turn(own.get()).await {
                    failures.lock().unwrap().push(format!("{own_name}: {failure}"));
                }
                counted.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(BREATH).await;
            }
        });
        self.runners.push(Runner { name: name.to_owned(), calls, task });
        credential
    }

    /// Waits until nothing is on its way any more that was sent before.
    pub async fn settle(&self) {
        for runner in &self.runners {
            let before = runner.calls.load(Ordering::SeqCst);
            wait_until(&format!("{} goes on", runner.name), PATIENCE, async || {
                runner.calls.load(Ordering::SeqCst) >= before + 2
            })
            .await;
        }
        self.check();
    }

    /// Fails with what went wrong so far.
    fn check(&self) {
        let failures = self.failures.lock().unwrap().clone();
        assert!(failures.is_empty(), "{} valid calls failed, such as {}", failures.len(), failures[0]);
    }

    pub async fn finish(self) {
        self.settle().await;
        self.stop.store(true, Ordering::SeqCst);
        for runner in self.runners {
            runner.task.await.unwrap();
        }
        let failures = self.failures.lock().unwrap().clone();
        assert!(failures.is_empty(), "{failures:?}");
    }
}

async fn one(caller: &Caller, path: &str, body: &Value, expected: u16) -> Result<Value, String> {
    let said = caller.try_call(Method::POST, path, Some(body.to_string())).await;
    let said = said.map_err(|error| format!("{path}: {error:?}"))?;
    if said.status == expected { Ok(said.json()) } else { Err(format!("{path}: {said:?}")) }
}
