//! Workers that die, and workers that only seem to.

use std::process::Command;

use serde_json::json;
use tenure_testkit::{Child, Signal, wait_until};

use crate::survival::kit::{PATIENCE, Site};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_task_of_a_killed_worker_runs_again_under_a_higher_fence() {
    let site = Site::start(None).await;
    let go = site.path("go");
    let hold =
        format!("hold=while [ ! -e {} ]; do sleep 0.02; done; echo '{{\"fence\":'$TENURE_FENCE'}}'", go.display());
    let mut first = site.worker(&["--name", "first", "--operator", &hold]);
    let id = site.submit("hold", json!({})).await;
    site.until(&id, "Running").await;
    first.kill();
    let _second = site.worker(&["--name", "second", "--operator", &hold]);
    wait_until("the second worker has it", PATIENCE, async || site.task(&id).await["worker_id"] == "second").await;
    std::fs::write(&go, "").unwrap();
    let task = site.until(&id, "Succeeded").await;
    assert_eq!(task["result"], json!({"fence": task["fence"]}), "the fence reached the command");
    let attempts = site.attempts(&id).await;
    assert_eq!(attempts[0]["reason"], "HEARTBEAT_TIMEOUT");
    assert_eq!((&attempts[0]["worker_id"], &attempts[0]["state"]), (&json!("first"), &json!("Failed")));
    let last = attempts.last().unwrap();
    assert!(last["fence"].as_u64() > attempts[0]["fence"].as_u64());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_under_the_same_name_voids_what_the_old_process_held() {
    let site = Site::start(None).await;
    let mut old = site.worker(&["--name", "w"]);
    let id = site.submit("sleep", json!({"payload": {"ms": 600_000}, "lease_ttl_seconds": 3600})).await;
    site.until(&id, "Running").await;
    old.kill();
    let _new = site.worker(&["--name", "w"]);
    // Its lease had an hour to go; the new process did not wait for it.
    wait_until("the task runs again", PATIENCE, async || site.task(&id).await["attempt"] == 2).await;
    assert_eq!(site.attempts(&id).await[0]["reason"], "WORKER_LOST");
}

/// A worker is stopped beyond its lease, another one gets the task, and then the first one reports.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_worker_comes_back_too_late() {
    let site = Site::start(None).await;
    let id = site.submit("op", json!({})).await;
    let claim = |worker: &str| json!({"worker_id": worker, "streams": ["q"], "max_wait_ms": 5_000});
    let (_, job) = site.post("/internal/worker/claim", &claim("stopped")).await;
    assert_eq!(job["job_id"], id.as_str());
    // A process of its own, which stops itself, and sends its completion once it is continued.
    let report = json!({"worker_id": "stopped", "job_id": id, "attempt_id": job["attempt_id"],
        "lease_token": job["lease_token"], "result": {"late": true}})
    .to_string();
    let script = format!(
        "kill -STOP $$\nexec 3<>/dev/tcp/{}\nprintf '%s\\r\\n' 'POST /internal/worker/complete HTTP/1.1' 'Host: 127.0.0.1' \
         'Content-Type: application/json' 'X-Worker-Token: {}' 'Connection: close' 'Content-Length: {}' '' >&3\n\
         printf '%s' '{report}' >&3\ncat <&3\n",
        site.url.trim_start_matches("http://").replace(':', "/"),
        site.token(),
        report.len(),
    );
    let mut bash = Command::new("bash");
    bash.args(["-c", &script]);
    let mut stopped = Child::spawn(bash);
    wait_until("it has stopped itself", PATIENCE, async || is_stopped(&stopped)).await;
    let second = wait_until("the lease ran out and another worker has the task", PATIENCE, async || {
        let (_, job) = site.post("/internal/worker/claim", &claim("second")).await;
        (job["claimed"] == true).then_some(job)
    })
    .await;
    assert_eq!(second["attempt"], 2);
    stopped.signal(Signal::SIGCONT);
    stopped.wait(PATIENCE).await;
    let answer = stopped.output().stdout;
    assert!(answer.starts_with("HTTP/1.1 409"), "{answer}");
    assert!(answer.contains("\"stale_attempt\"") && answer.contains("\"ack\":true"), "{answer}");
    let attempts = site.attempts(&id).await;
    assert_eq!(attempts[0]["late_report"]["outcome"], "Succeeded");
    assert_eq!(attempts[0]["late_report"]["result"], json!({"late": true}));
    let task = site.task(&id).await;
    assert_eq!((&task["attempt"], &task["result"]), (&json!(2), &json!(null)), "the late report changed nothing");
}

fn is_stopped(process: &Child) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.pid())).unwrap_or_default();
    // The state follows the name, which is in brackets and may have any in it.
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
}

/// The same with the worker that people run: stopped for so long that its lease is gone, it kills its own work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_continued_worker_stops_what_it_no_longer_holds() {
    let site = Site::start(None).await;
    let traces = site.path("traces");
    let work = format!("work=echo $$ >> {}; sleep 600", traces.display());
    // It has no room for more: a claim that waits at the server would get the task while it is stopped.
    let mut first = site.worker(&["--name", "first", "--concurrency", "1", "--operator", &work]);
    let id = site.submit("work", json!({"lease_ttl_seconds": 8})).await;
    let pids = || -> Vec<String> {
        std::fs::read_to_string(&traces).unwrap_or_default().lines().map(ToOwned::to_owned).collect()
    };
    wait_until("the command runs", PATIENCE, async || !pids().is_empty()).await;
    first.signal(Signal::SIGSTOP);
    let _second = site.worker(&["--name", "second", "--operator", &work]);
    wait_until("the second worker has it", PATIENCE, async || {
        pids().len() > 1 && site.task(&id).await["worker_id"] == "second"
    })
    .await;
    first.signal(Signal::SIGCONT);
    let first_command = format!("/proc/{}", pids()[0]);
    wait_until("the first worker killed its command", PATIENCE, async || {
        !std::path::Path::new(&first_command).exists()
    })
    .await;
    let task = site.task(&id).await;
    assert_eq!((&task["state"], &task["worker_id"]), (&json!("Running"), &json!("second")));
}
