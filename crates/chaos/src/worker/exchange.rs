//! Requests of several jobs, and a claim, that go to the control plane as one exchange.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use super::{WAIT, Worker};
use crate::http::Reply;

/// How long a request waits for others to go with it.
const GATHER: Duration = Duration::from_millis(25);

/// Requests in one exchange, at most.
const TOGETHER: usize = 12;

/// Requests that wait for the next exchange, at most.
pub(super) const WAITING: usize = 64;

/// One request of an exchange.
pub(super) struct Item {
    /// `complete`, `fail`, `heartbeat` or `claim`.
    part: String,
    body: Value,
    reply: oneshot::Sender<Reply>,
}

/// Sends what waits, a turn at a time.
pub(super) async fn run(worker: &Arc<Worker>, mut items: mpsc::Receiver<Item>) {
    while let Some(first) = items.recv().await {
        sleep(GATHER).await;
        let mut turn = vec![first];
        while turn.len() < TOGETHER
            && let Ok(item) = items.try_recv()
        {
            turn.push(item);
        }
        tokio::spawn(send(Arc::clone(worker), turn));
    }
}

async fn send(worker: Arc<Worker>, turn: Vec<Item>) {
    let mut body = json!({"worker_id": worker.args.name});
    for item in &turn {
        match (item.part.as_str(), body[&item.part].as_array_mut()) {
            ("claim", _) => body["claim"] = item.body.clone(),
            (_, Some(items)) => items.push(item.body.clone()),
            (part, None) => body[part] = json!([item.body]),
        }
    }
    let told = worker.http.post(worker.server(), "/internal/worker/exchange", &body, WAIT).await;
    let mut answered: HashMap<String, usize> = HashMap::new();
    for item in turn {
        let index = answered.entry(item.part.clone()).or_default();
        let reply = match &told {
            Reply::Told { status: 200, body: answer } => answer_to(answer, &item.part, *index, &body),
            other => other.clone(),
        };
        *index += 1;
        let _ = item.reply.send(reply);
    }
}

/// The answer to one item, as the single endpoint would have said it. One that is missing says nothing.
fn answer_to(answer: &Value, part: &str, index: usize, sent: &Value) -> Reply {
    if part == "claim" {
        let jobs = &answer["jobs"];
        let body = jobs.as_array().map(|list| json!({"claimed": !list.is_empty(), "jobs": jobs}));
        return Reply::Told { status: 200, body: body.unwrap_or_default() };
    }
    let count = |of: &Value| of[part].as_array().map(Vec::len);
    if count(answer) != count(sent) {
        return Reply::Told { status: 200, body: Value::Null };
    }
    let mut item = answer[part][index].clone();
    let refused = item.as_object_mut().and_then(|item| item.remove("http_status"));
    match refused.and_then(|status| status.as_u64()) {
        Some(status @ 500..) => Reply::failed(status as u16, item["error"].as_str().unwrap_or_default()),
        Some(status) => Reply::Told { status: status as u16, body: item },
        None => Reply::Told { status: 200, body: item },
    }
}

impl Worker {
    /// The same request as a part of an exchange. The answer to it is that of the single endpoint.
    pub(super) async fn exchange(&self, part: &str, body: &Value) -> Reply {
        let mut body = body.clone();
        if let (true, Some(claim)) = (part == "claim", body.as_object_mut()) {
            claim.remove("worker_id");
        }
        let (reply, answer) = oneshot::channel();
        let item = Item { part: part.to_owned(), body, reply };
        if self.turns.send(item).await.is_err() {
            return Reply::NotSent;
        }
        answer.await.unwrap_or_else(|_| Reply::Unknown { why: "no answer".to_owned(), status: None })
    }
}
