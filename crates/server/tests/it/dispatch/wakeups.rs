//! Wake-ups for workers that ask for them.

use reqwest::Method;
use serde_json::json;

use super::kit::{self, Plane};
use crate::cases;
use crate::harness::TOKEN;

cases!(kit, on_both_stores: [a_worker_that_asks_is_told_of_tasks],);

async fn a_worker_that_asks_is_told_of_tasks(plane: Plane) {
    plane.deploy(kit::CHAIN).await;
    let token = [("X-Trace-Worker-Token", TOKEN)];
    let ask =
        async |query: &str| plane.call(Method::GET, &format!("/internal/task-wakeups?{query}"), &token, None).await;
    assert_eq!(ask("queue=worker&max=10&wait_seconds=0").await.ok(), json!({"messages": []}));
    let (told, task) = tokio::join!(ask("queue=worker&max=10&wait_seconds=20"), plane.fire("r-1"));
    assert_eq!(told.ok(), json!({"messages": [{"task_id": task}]}));
    assert_eq!(ask("queue=other&wait_seconds=0").await.ok(), json!({"messages": []}), "an unknown queue is empty");
    let greedy = ask("queue=worker&max=1000000&wait_seconds=0").await.ok();
    assert_eq!(greedy, json!({"messages": [{"task_id": task}]}), "what is claimed by nobody is told again");
    plane.claim(&task).await;
    assert_eq!(ask("queue=worker&wait_seconds=0").await.ok(), json!({"messages": []}));
    for wrong in ["", "queue=worker&max=ten", "queue=worker&wait_seconds=-1", &format!("queue={}", "q".repeat(300))] {
        assert_eq!(ask(wrong).await.refused(400)["error"], "malformed_request", "{wrong}");
    }
    let nobody = plane.call(Method::GET, "/internal/task-wakeups?queue=worker&wait_seconds=0", &[], None).await;
    assert_eq!(nobody.refused(401)["error"], "missing_worker_token");
}
