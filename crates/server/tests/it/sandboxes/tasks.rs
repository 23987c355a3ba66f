//! Tasks that ask for a sandbox, from submit to result, on a real worker.

use serde_json::{Value, json};
use tenure_testkit::wait_until;

use super::kit::{Plane, Worker, workers};
use crate::cases;
use crate::harness::SOON;

cases!(
    Plane,
    on_sqlite: [
        a_command_that_fails_or_takes_too_long_ends_its_sandbox,
        a_canceled_task_leaves_no_sandbox,
        a_task_outlives_its_worker,
    ],
    on_both_stores: [a_task_runs_in_a_sandbox_of_its_own],
);

impl Plane {
    async fn queue(&self) {
        let push = json!({"push": {"url": "sandbox:"}});
        self.server.put("/api/v1/queues/boxes", push).await.ok();
    }

    async fn submit(&self, sandbox: Value, extra: Value) -> String {
        let mut task = json!({"queue": "boxes", "operator": "op", "payload": {"n": 7}, "runtime": {"sandbox": sandbox},
            "retry": {"initial_backoff_ms": 0, "max_backoff_ms": 0}});
        task.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        self.server.post("/api/v1/tasks", task).await.ok()["task_id"].as_str().unwrap().to_owned()
    }

    async fn task(&self, id: &str) -> Value {
        self.server.get(&format!("/api/v1/tasks/{id}")).await.ok()
    }

    async fn ended(&self, id: &str, state: &str) -> Value {
        wait_until(state, SOON * 4, async || self.task(id).await["state"] == state).await;
        self.task(id).await
    }

    async fn sandboxes(&self) -> Vec<Value> {
        self.server.get("/api/v1/sandboxes").await.ok().as_array().unwrap().clone()
    }

    async fn no_sandboxes(&self) {
        wait_until("no sandbox", SOON, async || self.sandboxes().await.is_empty()).await;
    }
}

async fn a_task_runs_in_a_sandbox_of_its_own(plane: Plane) {
    let runtime = json!({"command": "cat", "env": {"A": "b"}});
    let wrong = json!({"queue": "plain", "operator": "op", "runtime": {"sandbox": runtime}});
    let refused = plane.server.post("/api/v1/tasks", wrong).await.refused(422);
    assert_eq!((&refused["error"], &refused["field"]), (&json!("wrong_runtime"), &json!("runtime")));
    plane.queue().await;
    let refused = plane.server.post("/api/v1/tasks", json!({"queue": "boxes", "operator": "op"})).await.refused(422);
    assert_eq!(refused["error"], "wrong_runtime");

    let id = plane.submit(runtime.clone(), json!({})).await;
    let done = plane.ended(&id, "Succeeded").await;
    assert_eq!((&done["result"], &done["attempt"]), (&json!({"n": 7}), &json!(1)));
    assert_eq!(done["runtime"], json!({"sandbox": runtime}));
    assert!(done["worker_id"].as_str().unwrap().starts_with("sb-"), "{done}");
    let line =
        r#"printf '{"id":"%s","fence":%s,"a":"%s"}' "$TENURE_TASK_ID" "$TENURE_FENCE" "$A" >"$TENURE_RESULT_FILE""#;
    let id = plane.submit(json!({"command": line, "env": {"A": "it's"}}), json!({})).await;
    assert_eq!(plane.ended(&id, "Succeeded").await["result"], json!({"id": id, "fence": 1, "a": "it's"}));
    plane.no_sandboxes().await;
}

async fn a_command_that_fails_or_takes_too_long_ends_its_sandbox(plane: Plane) {
    plane.queue().await;
    let id = plane.submit(json!({"command": ["sh", "-c", "echo why >&2; exit 65"]}), json!({})).await;
    let failed = plane.ended(&id, "Failed").await;
    assert_eq!(
        (&failed["error"]["code"], &failed["error"]["message"]),
        (&json!("DATA_QUALITY"), &json!("exit code 65: why"))
    );
    let id = plane.submit(json!({"command": "sleep 600", "timeout": "1s"}), json!({"max_attempts": 1})).await;
    assert_eq!(plane.ended(&id, "Failed").await["error"]["code"], "TIMEOUT");
    plane.no_sandboxes().await;
}

async fn a_canceled_task_leaves_no_sandbox(plane: Plane) {
    plane.queue().await;
    let id = plane.submit(json!({"command": "sleep 600"}), json!({})).await;
    wait_until("a start", SOON, async || plane.task(&id).await["worker_id"].is_string()).await;
    assert_eq!(plane.sandboxes().await.len(), 1);
    plane.server.post(&format!("/api/v1/tasks/{id}/cancel"), json!({"reason": "enough"})).await.ok();
    plane.ended(&id, "Canceled").await;
    plane.no_sandboxes().await;
}

async fn a_task_outlives_its_worker(plane: Plane) {
    plane.queue().await;
    let id = plane.submit(json!({"command": "[ \"$TENURE_FENCE\" = 2 ] || sleep 600; echo 2"}), json!({})).await;
    wait_until("a start", SOON, async || plane.task(&id).await["worker_id"].is_string()).await;
    let second = Worker::start(&plane.server, "worker-b").await;
    plane.worker.cut();
    let done = plane.ended(&id, "Succeeded").await;
    assert_eq!((&done["result"], &done["attempt"], &done["fence"]), (&json!(2), &json!(2), &json!(2)));
    assert_eq!(workers(&plane.server).await.len(), 2);
    drop(second);
}
