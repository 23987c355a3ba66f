//! The control plane fails in the middle of what an end leads to.

use serde_json::json;
use tenure_engine::store::Fault;

use crate::cases;
use crate::harness::Server;
use crate::runs::kit::{claim, complete, entry, shown, states, submit, these, until, with};

cases!(
    Server,
    on_both_stores: [each_step_of_an_end_fails_once, a_run_goes_on_after_a_restart],
);

async fn each_step_of_an_end_fails_once(server: Server) {
    let mut failures = 0;
    for step in 1.. {
        let asks = json!({"payload": {"$from": "a"}});
        let run = submit(&server, vec![entry("a", &[]), with(entry("b", &["a"]), asks), entry("c", &["a", "b"])]).await;
        let job = claim(&server, &run, "a").await;
        server.engine.store().faults().fail_at(step, Fault::Error);
        let answer = server.complete("w-1", &job, json!([1])).await;
        let passed = server.engine.store().faults().clear();
        if !answer.status.is_success() {
            failures += 1;
            assert_eq!(answer.status.as_u16(), 503, "{}", answer.body);
            // Nothing of it happened: neither the end nor what it leads to.
            assert_eq!(states(&server, &run).await, these(&[("a", "Running"), ("b", "Blocked"), ("c", "Blocked")]));
            server.complete("w-1", &job, json!([1])).await.ok();
        }
        assert_eq!(states(&server, &run).await, these(&[("a", "Succeeded"), ("b", "Ready"), ("c", "Blocked")]));
        complete(&server, &run, "b", json!(1)).await;
        complete(&server, &run, "c", json!(1)).await;
        assert_eq!(shown(&server, &run).await["state"], "Succeeded");
        if passed {
            break;
        }
    }
    assert!(failures >= 5, "only {failures} steps could fail");
}

async fn a_run_goes_on_after_a_restart(server: Server) {
    let run = submit(&server, vec![entry("a", &[]), entry("b", &["a"]), entry("c", &["b"])]).await;
    let job = claim(&server, &run, "a").await;
    let server = server.restart().await;
    server.complete("w-1", &job, json!(1)).await.ok();
    let server = server.restart().await;
    complete(&server, &run, "b", json!(1)).await;
    let server = server.restart().await;
    complete(&server, &run, "c", json!(1)).await;
    until(&server, &run, "Succeeded").await;
}
