//! `tenure bundle`, and bundles that really run: `tenure worker --bundles` with node and python.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tenure_testkit::{Child, Signal, Tenure, wait_until};

use crate::commands::kit::{Home, Site, code, providers};

/// Fires the webhook of the example.
const FIRE: &str = r#"
import hashlib, hmac, sys, time, urllib.request
url, key, body = sys.argv[1:]
t = int(time.time())
v1 = hmac.new(key.encode(), f"{t}.{body}".encode(), hashlib.sha256).hexdigest()
request = urllib.request.Request(url, body.encode(), {"X-Tenure-Signature": f"t={t},v1={v1}", "X-Tenure-Delivery": "d-1"})
print(urllib.request.urlopen(request, timeout=30).status)
"#;
const HOOK_KEY: &str = "keep-it-secret-0123456789abcdef";
const LONG: Duration = Duration::from_secs(120);
/// Looks for everything that it should not have.
const HOSTILE: &str = include_str!("bundles/hostile.py");

fn folder(site: &Site, name: &str, files: &[(&str, &str)]) -> String {
    let folder = site.home.path().join(name);
    for (path, content) in files {
        let path = folder.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    folder.display().to_string()
}

async fn push(site: &Site, name: &str, files: &[(&str, &str)], args: &[&str]) -> String {
    let folder = folder(site, name, files);
    let bundle = site.json(&[&["bundle", "push", &folder], args].concat()).await;
    bundle["bundle_id"].as_str().unwrap().to_owned()
}

/// A server that retries at once, and knows the secret of a webhook.
async fn site(args: &[&str]) -> Site {
    let home = Home::new();
    let file = home.path().join("server.yaml");
    std::fs::write(&file, format!("dispatch: {{retry_backoff: 0s, secrets: {{hook_key: {HOOK_KEY}}}}}\n")).unwrap();
    let server = Tenure::serve(&[&["--config", file.to_str().unwrap()], args].concat()).await;
    Site { server, home }
}

/// A worker that runs bundles. Its environment has a secret.
fn worker(site: &Site, provider: &str) -> Child {
    let file = site.home.path().join("worker.yaml");
    std::fs::write(&file, format!("worker:\n  sandbox:\n    provider: {provider}\n")).unwrap();
    let args = ["worker", "--bundles", "--concurrency", "2", "--grace", "1s", "--config", file.to_str().unwrap()];
    let mut command = site.command(&args);
    let tmp = site.home.path().join("tmp");
    std::fs::create_dir_all(&tmp).unwrap();
    command.env("TMPDIR", tmp).env("SECRET_OF_THE_WORKER", "hunter2");
    Child::spawn(command)
}

async fn apply(site: &Site, yaml: &str) {
    let file = site.home.path().join("dag.yaml");
    std::fs::write(&file, yaml).unwrap();
    site.ok(&["dag", "apply", file.to_str().unwrap()]).await;
}

fn job(name: &str, bundle: &str, more: &str) -> String {
    format!(
        "  - {{ name: {name}, activation: source, runtime: sandbox, operator: udf, outputs: 1, source: {{ kind: manual }},\n\
         \x20     udf: {{ bundle_id: {bundle} }}{more} }}\n"
    )
}

async fn trigger(site: &Site, job: &str) -> String {
    let fired = site.json(&["dag", "trigger", "code", job]).await;
    fired["task_id"].as_str().unwrap().to_owned()
}

async fn ended(site: &Site, task: &str) -> Value {
    wait_until("the task ends", LONG, async || {
        let view = site.json(&["task", "show", task]).await;
        let over = ["Succeeded", "Failed", "Canceled"].iter().any(|state| view["state"] == *state);
        Some(view).filter(|_| over)
    })
    .await
}

/// Whether this machine has what the bundles of a test need.
fn has_programs(test: &str) -> bool {
    let missing: Vec<_> =
        ["/usr/bin/node", "/usr/bin/python3"].into_iter().filter(|path| !Path::new(path).exists()).collect();
    if !missing.is_empty() {
        tenure_testkit::skip(test, &format!("{} is not installed", missing.join(" and ")));
    }
    missing.is_empty()
}

#[tokio::test]
async fn a_folder_is_pushed_and_shown() {
    let site = Site::new().await;
    let place = folder(&site, "detect", &[("index.js", "console.log('{}')"), ("lib/a.js", "")]);
    let made = site.json(&["bundle", "push", &place, "--env", "THRESHOLD"]).await;
    assert_eq!(
        (&made["runtime"], &made["entrypoint"], &made["files"]),
        (&json!("node"), &json!("index.js"), &json!(2))
    );
    let again = site.json(&["bundle", "push", &place, "--env", "THRESHOLD"]).await;
    assert_eq!(again, made, "the same files are the same bundle");
    let shown = site.ok(&["bundle", "show", made["bundle_id"].as_str().unwrap()]).await;
    assert!(shown.contains(made["sha256"].as_str().unwrap()) && shown.contains("index.js"), "{shown}");
    let missing = site.run(&["bundle", "show", "0190c0de-0000-7000-8000-000000000001"]).await;
    assert_eq!(code(&missing), 3, "{missing:?}");
    let id = made["bundle_id"].as_str().unwrap();
    apply(&site, &format!("name: code\njobs:\n{}", job("detect", id, ""))).await;
    let used = site.run(&["bundle", "rm", id]).await;
    assert!(
        code(&used) != 0 && used.stderr.contains("the job 'detect' of the DAG 'code' runs this bundle"),
        "{used:?}"
    );
    let other = push(&site, "other", &[("index.js", "1")], &[]).await;
    assert_eq!(site.ok(&["bundle", "rm", &other]).await.trim(), format!("removed bundle {other}"));
    assert_eq!(code(&site.run(&["bundle", "rm", &other]).await), 3, "it is gone");
    // What cannot be a bundle is not sent.
    let empty = folder(&site, "empty", &[("readme.txt", "x")]);
    let refused = site.run(&["bundle", "push", &empty]).await;
    assert!(code(&refused) == 2 && refused.stderr.contains("no entrypoint"), "{refused:?}");
    let file = folder(&site, "file", &[("x.zip", "not a zip")]) + "/x.zip";
    let refused = site.run(&["bundle", "push", &file]).await;
    assert!(code(&refused) == 2 && refused.stderr.contains("is not a bundle"), "{refused:?}");
}

/// A python bundle says on standard output what it wrote; a node bundle that reads it completes its task itself.
#[tokio::test]
async fn bundles_of_both_languages_run_through_a_dag() {
    let test = "bundles_of_both_languages_run_through_a_dag";
    if !has_programs(test) {
        return;
    }
    for provider in providers(test).await {
        let site = site(&[]).await;
        runs_through(&site, provider).await;
    }
}

#[tokio::test]
async fn bundles_run_through_a_dag_on_postgres() {
    let test = "bundles_run_through_a_dag_on_postgres";
    if !has_programs(test) || providers(test).await.len() < 2 {
        return;
    }
    let database = tenure_testkit::Postgres::shared().await.database().await;
    let site = site(&["--store", database.url()]).await;
    runs_through(&site, "namespace").await;
}

async fn runs_through(site: &Site, provider: &str) {
    let main = "import json, sys\nfrom lib.say import said\ntask = json.load(sys.stdin)\nprint('a note', file=sys.stderr)\njson.dump(said(task), sys.stdout)\n";
    let say = r#"
import os
def said(task):
    assert task["work_payload"]["n"] == 3 and os.environ["THRESHOLD"] == "5", (task["work_payload"], dict(os.environ))
    assert task["capability_token"] == os.environ["TRACE_TASK_CAPABILITY_TOKEN"]
    assert task["lease_token"] and task["handler"] == "handle", task
    out = task["outputs"][0]
    return {"outcome": "success", "task_id": "somebody else's", "outputs": [{"output_index": 0, "dataset_uuid": out["dataset_uuid"],
            "dataset_version": out["dataset_version"], "location": "none:", "partition_key": "1-5", "row_count": 3}]}
"#;
    let files = [("main.py", main), ("lib/__init__.py", ""), ("lib/say.py", say)];
    let make = push(site, "make", &files, &["--env", "THRESHOLD"]).await;
    let index = r#"
const fs = require("fs");
const task = JSON.parse(fs.readFileSync(0, "utf8"));
const key = task.inputs[0].partition.partition_key;
const body = { task_id: task.task_id, attempt: task.attempt, lease_token: task.lease_token, status: "Completed",
  operator_state: { key } };
fetch(process.env.TRACE_DISPATCHER_URL + "/v1/task/complete", { method: "POST", body: JSON.stringify(body),
  headers: { "content-type": "application/json", "x-trace-task-capability": process.env.TRACE_TASK_CAPABILITY_TOKEN } })
  .then(async (answer) => {
    if (answer.status !== 200) throw new Error(answer.status + " " + (await answer.text()));
    console.log(JSON.stringify({ result: "done" }));
  });
"#;
    let next = push(site, "next", &[("index.js", index)], &[]).await;
    let yaml = format!(
        "name: code\njobs:\n  - {{ name: make, activation: source, runtime: sandbox, operator: udf, outputs: 1, source: {{ kind: manual }},\n      \
         config: {{ n: 3 }}, udf: {{ bundle_id: {make}, entrypoint: handle, env: {{ THRESHOLD: \"5\" }} }} }}\n  \
         - {{ name: next, activation: reactive, runtime: sandbox, operator: score, outputs: 0, execution_strategy: PerPartition,\n      \
         inputs: [{{ from: {{ job: make, output: 0 }} }}], udf: {{ bundle_id: {next} }} }}\n"
    );
    apply(site, &yaml).await;
    let _worker = worker(site, provider);
    let task = trigger(site, "make").await;
    let view = ended(site, &task).await;
    assert_eq!(view["state"], "Succeeded", "{provider}: {view}");
    let next = wait_until("the next job runs", LONG, async || {
        let found = site.json(&["task", "list", "--operator", "score"]).await;
        found["items"][0]["task_id"].as_str().map(ToOwned::to_owned)
    })
    .await;
    let view = ended(site, &next).await;
    assert_eq!((&view["state"], &view["attempt"]), (&json!("Succeeded"), &json!(1)), "{provider}: {view}");
}

#[tokio::test]
async fn how_code_ends_decides_whether_it_is_tried_again() {
    let test = "how_code_ends_decides_whether_it_is_tried_again";
    if !has_programs(test) {
        return;
    }
    let providers = providers(test).await;
    let site = site(&[]).await;
    let code = [
        ("fails", "import sys; print('no such row', file=sys.stderr); sys.exit(3)", 2, "exit code 3: no such row"),
        ("killed", "import os; os.kill(os.getpid(), 9)", 2, "signal 9"),
        ("slow", "import time; time.sleep(600)", 2, ""),
        ("silent", "pass", 1, "is empty"),
        ("chatty", "print('hello'); print('{}')", 1, "one JSON object"),
        ("lists", "print('[]')", 1, "one JSON object"),
        ("long", "import sys\nwhile True: sys.stdout.write('x' * 65536)", 1, "more than 1048576 bytes"),
        ("odd", "print('{\"status\": \"Finished\"}')", 1, "did not take the report"),
        ("fatal", "print('{\"outcome\": \"fatal_error\", \"error_message\": \"no\"}')", 1, "no"),
        ("fine", "import sys; sys.stderr.write('x' * 3000000); print('{\"answer\": 42}')", 1, ""),
    ];
    let mut yaml = "name: code\njobs:\n".to_owned();
    for (name, text, _, _) in &code {
        let bundle = push(&site, name, &[("main.py", text)], &[]).await;
        let timeout = if *name == "slow" { 8 } else { 60 };
        yaml += &job(name, &bundle, &format!(", max_attempts: 2, timeout_seconds: {timeout}"));
    }
    apply(&site, &yaml).await;
    let _worker = worker(&site, providers.last().unwrap());
    let mut tasks = Vec::new();
    for (name, ..) in &code {
        tasks.push(trigger(&site, name).await);
    }
    for ((name, _, attempts, says), task) in code.iter().zip(tasks) {
        let view = ended(&site, &task).await;
        let state = if *name == "fine" { "Succeeded" } else { "Failed" };
        assert_eq!((&view["state"], &view["attempt"]), (&json!(state), &json!(attempts)), "{name}: {view}");
        let message = view["error"]["message"].as_str().unwrap_or_default();
        assert!(message.contains(says), "{name}: {view}");
        if *name == "slow" {
            // The worker says so, or on a slow machine the control plane.
            assert_eq!(view["error"]["code"], "TIMEOUT", "{view}");
        }
    }
}

#[tokio::test]
async fn a_canceled_task_and_a_killed_worker_leave_no_code_running() {
    let test = "a_canceled_task_and_a_killed_worker_leave_no_code_running";
    if !has_programs(test) || providers(test).await.len() < 2 {
        return;
    }
    let site = site(&[]).await;
    // Starts a process that ignores the polite signal and has left its group.
    let stays = "import os, signal, sys, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork(): os._exit(0)\n    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n    os.execvp('sleep', ['sleep', sys.argv[0][-3:] and os.environ['NAP']])\ntime.sleep(600)\n";
    let bundle = push(&site, "stays", &[("main.py", stays)], &["--env", "NAP"]).await;
    let nap = |name: &str, seconds: &str| {
        job(name, &bundle, "").replace(" } }\n", &format!(", env: {{ NAP: \"{seconds}\" }} }}, max_attempts: 1 }}\n"))
    };
    // Lengths that no other process of this machine sleeps.
    let (first, second) = (unique(), unique());
    apply(&site, &format!("name: code\njobs:\n{}{}", nap("first", &first), nap("second", &second))).await;
    let mut own = worker(&site, "namespace");
    let task = trigger(&site, "first").await;
    wait_until("the code runs", LONG, async || runs(&first)).await;
    site.ok(&["task", "cancel", &task]).await;
    assert_eq!(ended(&site, &task).await["state"], "Canceled");
    wait_until("nothing of it is left", LONG, async || !runs(&first)).await;
    let _task = trigger(&site, "second").await;
    wait_until("the code runs", LONG, async || runs(&second)).await;
    own.signal(Signal::SIGKILL);
    own.wait(LONG).await;
    wait_until("nothing of it is left", LONG, async || !runs(&second)).await;
}

fn unique() -> String {
    let noise = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    format!("{}.{}", 5_000 + std::process::id() % 1_000, noise.as_nanos() % 1_000_000_007)
}

/// Whether a process of this machine sleeps for so long.
fn runs(seconds: &str) -> bool {
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    processes
        .filter_map(|process| std::fs::read(process.path().join("cmdline")).ok())
        .any(|line| line.starts_with(b"sleep\0") && line.windows(seconds.len()).any(|part| part == seconds.as_bytes()))
}

/// Nothing of the worker, its machine and the control plane is in reach of the code.
#[tokio::test]
async fn a_hostile_bundle_finds_no_secret_and_no_way_out() {
    let test = "a_hostile_bundle_finds_no_secret_and_no_way_out";
    if !has_programs(test) || providers(test).await.len() < 2 {
        return;
    }
    let site = site(&[]).await;
    let token = std::fs::read_to_string(site.server.data().join("worker-token")).unwrap();
    let bundle = push(&site, "hostile", &[("main.py", HOSTILE)], &["--env", "OWN"]).await;
    let plane = site.server.url().trim_start_matches("http://").to_owned();
    let config = json!({
        "plane": plane, "files": [site.server.data().join("worker-token"), site.home.path().join("worker.yaml")],
    });
    let yaml = job("look", &bundle, &format!(", max_attempts: 1, config: {config}")).replacen(
        " }, max",
        ", env: { OWN: \"1\" } }, max",
        1,
    );
    apply(&site, &format!("name: code\njobs:\n{yaml}")).await;
    let _worker = worker(&site, "namespace");
    let view = ended(&site, &trigger(&site, "look").await).await;
    let message = view["error"]["message"].as_str().unwrap_or_else(|| panic!("{view}"));
    let found: Value = serde_json::from_str(message).unwrap_or_else(|error| panic!("{error}: {view}"));
    let env = [
        "OWN",
        "PATH",
        "TRACE_DISPATCHER_URL",
        "TRACE_OBJECT_STORE_BUCKET",
        "TRACE_OBJECT_STORE_ENDPOINT",
        "TRACE_QUERY_SERVICE_URL",
        "TRACE_TASK_CAPABILITY_TOKEN",
    ];
    assert_eq!(found["env"], json!(env), "{found}");
    assert_eq!(found["secrets"], json!([]), "nothing of the worker is in /proc: {found}");
    assert_eq!(found["files"], json!([]), "{found}");
    assert_eq!(found["connected"], json!([]), "{found}");
    assert_eq!(found["reached"], json!([]), "{found}");
    assert_eq!(found["heartbeat"], 200, "its own routes are in reach: {found}");
    assert!(!message.contains(token.trim()) && !message.contains("hunter2"), "{message}");
}

/// `examples/bundles`: webhook, partitions, code in a sandbox, a buffered table, an alert.
#[tokio::test]
async fn the_example_runs_from_the_webhook_to_the_alert() {
    let test = "the_example_runs_from_the_webhook_to_the_alert";
    if !has_programs(test) {
        return;
    }
    let providers = providers(test).await;
    let site = site(&[]).await;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/bundles");
    let mut yaml = std::fs::read_to_string(root.join("watch.yaml")).unwrap();
    for name in ["ranges", "detect", "alert"] {
        let folder = root.join(name).display().to_string();
        let bundle = site.json(&["bundle", "push", &folder]).await;
        let id = bundle["bundle_id"].as_str().unwrap();
        yaml = yaml.replace(&format!("bundle_id: {}", name.to_uppercase()), &format!("bundle_id: {id}"));
    }
    apply(&site, &yaml).await;
    let _worker = worker(&site, providers.last().unwrap());
    let url = format!("{}/api/v1/webhooks/watch/new-blocks", site.server.url());
    for _ in 0..2 {
        // The second delivery is the first one again.
        let mut fire = std::process::Command::new("/usr/bin/python3");
        fire.args(["-c", FIRE, &url, HOOK_KEY, r#"{"first": 1000, "last": 1999}"#]);
        let fired = crate::commands::kit::finish(fire).await;
        assert_eq!(fired.stdout.trim(), "202", "{fired:?}");
    }
    // Ten blocks of a thousand have an amount of 990 or more.
    wait_until("the rows are written", LONG, async || {
        let dataset = site.json(&["dataset", "show", "alert_events"]).await;
        dataset["cursor"]["produced"] == 10
    })
    .await;
    wait_until("people are told of all rows", LONG, async || {
        let tasks = site.json(&["task", "list", "--operator", "alert"]).await;
        let tasks = tasks["items"].as_array().unwrap();
        !tasks.is_empty() && tasks.iter().all(|task| task["state"] == "Succeeded")
    })
    .await;
    // A part publishes its rows before it ends, and the last part may have none.
    wait_until("all parts end", LONG, async || {
        let detect = site.json(&["task", "list", "--operator", "udf"]).await;
        let detect = detect["items"].as_array().unwrap();
        assert_eq!(detect.len(), 5, "one range and four parts: {detect:#?}");
        detect.iter().all(|task| task["state"] == "Succeeded")
    })
    .await;
}
