//! Two servers that are restarted one after the other, while their callers go on.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

use serde_json::{Value, json};
use tenure_testkit::Postgres;

use crate::survival::kit::{PATIENCE, Site};

/// At the least.
const TASKS: usize = 300;
const WORKERS: usize = 6;

/// The servers as a caller sees them: one that does not take a request is passed over for the other.
struct Fleet {
    urls: [String; 2],
    token: String,
    http: reqwest::Client,
    next: AtomicUsize,
    retries: AtomicUsize,
}

impl Fleet {
    /// Sends a request until a server takes it, and gives its answer.
    async fn post(&self, path: &str, body: &Value) -> Value {
        let began = Instant::now();
        loop {
            let url = &self.urls[self.next.fetch_add(1, Ordering::SeqCst) % 2];
            let sent = self.http.post(format!("{url}{path}")).header("X-Worker-Token", &self.token).json(body).send();
            match sent.await {
                Ok(response) if response.status() == 503 => {}
                Ok(response) => {
                    let status = response.status();
                    // An answer that breaks off was no answer.
                    if let Ok(answer) = response.json::<Value>().await {
                        assert!(status.is_success(), "{path}: {status} {answer}");
                        return answer;
                    }
                }
                Err(_) => {}
            }
            self.retries.fetch_add(1, Ordering::SeqCst);
            assert!(began.elapsed() < PATIENCE, "{path}: no server took it");
            tokio::task::yield_now().await;
        }
    }

    /// Submits while the servers are restarted. Gives how many tasks that were.
    async fn submit(&self, restarted: &AtomicBool) -> usize {
        let mut number = 0;
        while number < TASKS || !restarted.load(Ordering::SeqCst) {
            let task = json!({"queue": "q", "operator": "op", "lease_ttl_seconds": 30,
                "idempotency_key": format!("k{number}")});
            self.post("/api/v1/tasks", &task).await;
            number += 1;
        }
        number
    }

    /// Claims, sends heartbeats and completes until all is done.
    async fn work(&self, worker: usize, done: &Mutex<HashSet<String>>, total: &OnceLock<usize>) {
        let worker = format!("w{worker}");
        for claim in 0.. {
            if total.get() == Some(&done.lock().unwrap().len()) {
                return;
            }
            let ask = json!({"worker_id": worker, "streams": ["q"], "max_wait_ms": 500,
                "claim_id": format!("{worker}-{claim}")});
            let job = self.post("/internal/worker/claim", &ask).await;
            if job["claimed"] != true {
                continue;
            }
            let id = job["job_id"].as_str().unwrap().to_owned();
            assert_eq!(job["attempt"], 1, "no lease was lost: {job}");
            let lease = json!({"worker_id": worker, "job_id": id, "lease_token": job["lease_token"]});
            assert_eq!(self.post("/internal/worker/heartbeat", &lease).await["ok"], true);
            let report = json!({"worker_id": worker, "job_id": id, "attempt_id": job["attempt_id"],
                "lease_token": job["lease_token"]});
            assert_eq!(self.post("/internal/worker/complete", &report).await["ok"], true);
            assert!(done.lock().unwrap().insert(id), "completed twice");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_is_not_noticed_by_callers_that_try_again() {
    let database = Postgres::shared().await.database().await;
    let first = Site::start(Some(database.url())).await;
    let second = Site::beside(&first).await;
    let fleet = Fleet {
        urls: [first.url.clone(), second.url.clone()],
        token: first.token(),
        http: reqwest::Client::new(),
        next: AtomicUsize::new(0),
        retries: AtomicUsize::new(0),
    };
    let (done, total, restarted) = (Mutex::new(HashSet::new()), OnceLock::new(), AtomicBool::new(false));
    let mut sites = [first, second];
    let restarting = async {
        for site in &mut sites {
            let mut server = site.server.take().unwrap();
            assert!(server.terminate().await.success(), "it ended in order");
            site.start_again().await;
        }
        restarted.store(true, Ordering::SeqCst);
    };
    let submitting = async { total.set(fleet.submit(&restarted).await).unwrap() };
    let workers = futures_util::future::join_all((0..WORKERS).map(|worker| fleet.work(worker, &done, &total)));
    tokio::join!(restarting, submitting, workers);
    let (total, retries) = (total.get().unwrap(), fleet.retries.load(Ordering::SeqCst));
    eprintln!("{total} tasks were submitted and completed, {retries} requests were sent again");
    let queue = sites[0].get("/api/v1/queues/q").await;
    assert_eq!((&queue["counts"]["ready"], &queue["counts"]["running"]), (&json!(0), &json!(0)), "{queue}");
}
