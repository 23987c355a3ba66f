//! Many tasks to a worker that answers slowly, wrongly and not at all by turns.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::http::Response;
use serde_json::json;
use tenure_testkit::wait_until;

use crate::cases;
use crate::harness::Server;
use crate::push::kit::{self, Pushed, Worker, answer, push_to, with_header};

cases!(
    kit,
    on_both_stores: [many_tasks_reach_a_worker_that_behaves_badly],
);

/// All of it on the embedded store. On Postgres a part keeps the tests short; `TENURE_PUSH_TASKS=10000` is the whole.
fn tasks(server: &Server) -> usize {
    let usual = if server.home.is_sqlite() { 10_000 } else { 2_000 };
    std::env::var("TENURE_PUSH_TASKS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Tells a repeat by its dispatch id, as workers have to.
#[derive(Default)]
struct Memory {
    done: Mutex<HashSet<String>>,
    executed: Mutex<Vec<String>>,
}

impl Memory {
    fn is_done(&self, pushed: &Pushed) -> bool {
        self.done.lock().unwrap().contains(pushed.header("x-tenure-dispatch-id"))
    }

    /// Goes on when the exchange is over.
    fn execute(&self, pushed: Pushed) -> tokio::task::JoinHandle<()> {
        let id = pushed.header("x-tenure-dispatch-id").to_owned();
        let first = self.done.lock().unwrap().insert(id.clone());
        if first {
            self.executed.lock().unwrap().push(id);
        }
        tokio::spawn(async move {
            if first {
                pushed.succeed().await;
            }
        })
    }
}

async fn behave(number: usize, pushed: Pushed, memory: Arc<Memory>) -> Response<Body> {
    if memory.is_done(&pushed) {
        return answer(409);
    }
    match number % 40 {
        // Slowly, and all done inside of the request.
        0 => {
            tokio::time::sleep(Duration::from_millis(50)).await;
            memory.execute(pushed).await.unwrap();
            answer(200)
        }
        // Wrongly.
        10 => answer(500),
        11 => with_header(503, "retry-after", "1"),
        12 => answer(429),
        // It has it, and the answer is wrong.
        20 => {
            memory.execute(pushed).await.unwrap();
            answer(500)
        }
        // Not at all.
        30 => {
            std::future::pending::<()>().await;
            answer(200)
        }
        // It has it, and does not answer.
        31 => {
            memory.execute(pushed).await.unwrap();
            std::future::pending::<()>().await;
            answer(200)
        }
        _ => {
            drop(memory.execute(pushed));
            answer(202)
        }
    }
}

async fn many_tasks_reach_a_worker_that_behaves_badly(server: Server) {
    let memory = Arc::new(Memory::default());
    let worker = {
        let memory = Arc::clone(&memory);
        Worker::start(move |number, pushed| behave(number, pushed, Arc::clone(&memory))).await
    };
    push_to(&server, &worker.url, json!({"concurrency": 200, "ack_timeout_ms": 5_000})).await.ok();
    let count = tasks(&server);
    for _ in 0..count / 1_000 {
        let batch: Vec<_> = (0..1_000).map(|_| json!({"queue": "q", "operator": "op"})).collect();
        server.post("/api/v1/tasks/batch", json!({"tasks": batch})).await.ok();
    }
    wait_until("all tasks", Duration::from_secs(240), async || {
        let counts = &server.queue("q").await["counts"];
        (counts["ready"] == 0 && counts["running"] == 0 && counts["scheduled"] == 0).then_some(())
    })
    .await;
    let executed = memory.executed.lock().unwrap().clone();
    let distinct: HashSet<_> = executed.iter().collect();
    assert_eq!((executed.len(), distinct.len()), (count, count), "each once");
    let queue = server.queue("q").await;
    assert_eq!(queue["counts"]["dead_lettered"], 0, "{queue}");
    let repeats = worker.count() - count;
    assert!(repeats >= count / 40, "{repeats}");
    assert!(repeats <= count / 4, "{repeats}: few answers were wrong");
}
