//! Tasks of `runtime: lambda`, with a server that speaks as Lambda does and really runs handlers.

use std::collections::{BTreeMap, HashMap};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use aws_lc_rs::{digest, hmac};
use aws_sdk_sqs::config::Credentials;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde_json::{Value, json};
use tenure_engine::store::Clock;
use tenure_server::LambdaTarget;
use tenure_testkit::{Port, wait_until};
use tenure_transport::lambda::{Lambda, LambdaConfig};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::process::Command;

use super::kit::{self, ORG, Plane};
use crate::cases;
use crate::harness::{Home, SOON, between};

cases!(
    starts,
    on_both_stores: [
        a_function_gets_its_task_and_reports,
        an_invocation_that_is_lost_is_repeated_under_the_same_lease,
        a_function_that_is_invoked_twice_ends_its_task_once,
        throttling_costs_no_attempt_and_failures_of_lambda_pass,
        a_lambda_that_cannot_be_reached_costs_no_attempt,
        what_lambda_refuses_ends_the_task,
        a_payload_may_be_as_long_as_lambda_takes_it,
        a_running_function_needs_no_lease_token_towards_a_wrapper,
        a_bundle_goes_to_the_function_of_its_language,
    ],
);

/// Completes its task, as code on Lambda does it.
const HANDLER: &str = r#"
import json, sys, urllib.request, urllib.error
task = json.load(sys.stdin)
base = sys.argv[1]
body = {k: task[k] for k in ("task_id", "attempt", "lease_token")}
body["status"] = "Completed"
body["outputs"] = [{"output_index": o["output_index"], "dataset_uuid": o["dataset_uuid"], "dataset_version": o["dataset_version"],
                    "location": "none:", "partition_key": "1-5"} for o in task["outputs"]]
request = urllib.request.Request(base + "/v1/task/complete", json.dumps(body).encode(),
    {"Content-Type": "application/json", "X-Trace-Task-Capability": task["capability_token"]})
try:
    with urllib.request.urlopen(request, timeout=30) as answer:
        print(answer.status)
except urllib.error.HTTPError as error:
    print(error.code)
"#;

const DAG: &str = "name: functions
jobs:
  - { name: page, activation: source, runtime: lambda, operator: alert_route, outputs: 1, source: { kind: manual },
      timeout_seconds: 30, config: { channel: ops, size: 3 } }
  - name: after
    activation: reactive
    runtime: worker
    operator: after
    outputs: 0
    execution_strategy: PerPartition
    inputs: [{ from: { job: page, output: 0 } }]
";

mod starts {
    use crate::harness::{Home, database};

    pub async fn sqlite() -> Home {
        Home::Sqlite(tempfile::tempdir().unwrap())
    }

    pub async fn postgres() -> Home {
        Home::Postgres(database().await)
    }
}

const KEY: &str = "secret-of-the-endpoint";

/// What the endpoint does with the next invocations, in order. Afterwards it runs the handler.
#[derive(Debug, Clone, Copy)]
enum Turn {
    Answer(u16, &'static str),
    /// Accepts, and loses the invocation before anything runs.
    Hang,
    /// Runs the handler twice.
    Twice,
}

#[derive(Debug, Default)]
struct Seen {
    turns: Vec<Turn>,
    payloads: Vec<(String, Value)>,
    /// How long they were.
    bytes: Vec<usize>,
    headers: Vec<HashMap<String, String>>,
    /// What handlers were answered.
    answers: Vec<String>,
    base: String,
}

#[derive(Debug, Clone, Default)]
struct Endpoint(Arc<Mutex<Seen>>);

impl Endpoint {
    async fn start(&self) -> String {
        self.listen(0).await
    }

    async fn listen(&self, port: u16) -> String {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let path = "/2015-03-31/functions/{name}/invocations";
        let router = Router::new().route(path, post(invoked)).with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        url
    }

    fn seen<T>(&self, look: impl FnOnce(&mut Seen) -> T) -> T {
        look(&mut self.0.lock().unwrap())
    }

    fn invocations(&self) -> usize {
        self.seen(|seen| seen.payloads.len())
    }

    async fn answers(&self, count: usize) -> Vec<String> {
        wait_until("handlers have ended", SOON, async || self.seen(|seen| seen.answers.len()) >= count).await;
        self.seen(|seen| seen.answers.clone())
    }
}

async fn invoked(
    State(endpoint): State<Endpoint>,
    Path(name): Path<String>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if !is_signed(&uri, &headers, &body) {
        return (StatusCode::FORBIDDEN, [("x-amzn-errortype", "InvalidSignatureException")], "{}").into_response();
    }
    let payload: Value = serde_json::from_slice(&body).unwrap();
    let turn = endpoint.seen(|seen| {
        seen.payloads.push((name.clone(), payload));
        seen.bytes.push(body.len());
        let text = |value: &axum::http::HeaderValue| value.to_str().unwrap_or_default().to_owned();
        seen.headers.push(headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect());
        (!seen.turns.is_empty()).then(|| seen.turns.remove(0))
    });
    if name != "page-on-call" {
        let error = [("x-amzn-errortype", "ResourceNotFoundException")];
        return (StatusCode::NOT_FOUND, error, r#"{"Message":"secret account"}"#).into_response();
    }
    let runs = match turn {
        Some(Turn::Answer(status, code)) => {
            return (StatusCode::from_u16(status).unwrap(), [("x-amzn-errortype", code)], "{}").into_response();
        }
        Some(Turn::Hang) => std::future::pending().await,
        Some(Turn::Twice) => 2,
        None => 1,
    };
    for _ in 0..runs {
        tokio::spawn(handle(endpoint.clone(), body.clone()));
    }
    StatusCode::ACCEPTED.into_response()
}

/// Whether the request has the signature of AWS (version 4) by [`KEY`], worked out from its description.
fn is_signed(uri: &Uri, headers: &HeaderMap, body: &[u8]) -> bool {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let sha256 = |bytes: &[u8]| hex(digest::digest(&digest::SHA256, bytes).as_ref());
    let hmac =
        |key: &[u8], text: &str| hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes()).as_ref().to_vec();
    let parts: HashMap<&str, &str> = text("authorization")
        .trim_start_matches("AWS4-HMAC-SHA256 ")
        .split(", ")
        .filter_map(|part| part.split_once('='))
        .collect();
    let (Some(credential), Some(names), Some(signature)) =
        (parts.get("Credential"), parts.get("SignedHeaders"), parts.get("Signature"))
    else {
        return false;
    };
    let Some((_, scope)) = credential.split_once('/') else { return false };
    // Whatever says what is asked for, and as whom, is signed.
    let must = ["host", "x-amz-date", "x-amz-security-token", "x-amz-invocation-type"];
    if must.iter().any(|name| !names.split(';').any(|signed| signed == *name)) {
        return false;
    }
    // A path is encoded once more than it was sent.
    let path: String = uri
        .path()
        .bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => char::from(byte).to_string(),
            other => format!("%{other:02X}"),
        })
        .collect();
    let signed: String = names.split(';').map(|name| format!("{name}:{}\n", text(name).trim())).collect();
    let request = format!("POST\n{path}\n{}\n{signed}\n{names}\n{}", uri.query().unwrap_or_default(), sha256(body));
    let to_sign = format!("AWS4-HMAC-SHA256\n{}\n{scope}\n{}", text("x-amz-date"), sha256(request.as_bytes()));
    let key = scope.split('/').fold(format!("AWS4{KEY}").into_bytes(), |key, part| hmac(&key, part));
    hex(&hmac(&key, &to_sign)) == **signature
}

async fn handle(endpoint: Endpoint, payload: Bytes) {
    let base = endpoint.seen(|seen| seen.base.clone());
    let mut handler = Command::new("python3")
        .args(["-c", HANDLER, &base])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    handler.stdin.take().unwrap().write_all(&payload).await.unwrap();
    let output = handler.wait_with_output().await.unwrap();
    let answer = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    endpoint.seen(|seen| seen.answers.push(answer));
}

async fn target(endpoint: &Endpoint, functions: &[(&str, &str)]) -> LambdaTarget {
    target_with(endpoint, functions, KEY).await
}

async fn target_with(endpoint: &Endpoint, functions: &[(&str, &str)], key: &str) -> LambdaTarget {
    target_at(endpoint.start().await, functions, key).await
}

async fn target_at(url: String, functions: &[(&str, &str)], key: &str) -> LambdaTarget {
    let config = LambdaConfig { endpoint_url: Some(url), region: Some("eu-central-1".to_owned()) };
    let credentials = Credentials::new("AKID", key, Some("session".to_owned()), None, "tests");
    let client = Lambda::with_credentials(config, credentials).await.unwrap();
    let functions: BTreeMap<String, String> =
        functions.iter().map(|(operator, function)| ((*operator).to_owned(), (*function).to_owned())).collect();
    LambdaTarget { client, functions }
}

/// A server whose functions are behind this endpoint, with the DAG deployed.
async fn with(home: Home, endpoint: &Endpoint, functions: &[(&str, &str)], turns: &[Turn]) -> Plane {
    let target = target(endpoint, functions).await;
    let plane = start(Arc::new(home), Arc::default(), endpoint, target).await;
    endpoint.seen(|seen| seen.turns = turns.to_vec());
    plane.deploy(DAG).await;
    plane
}

async fn start(home: Arc<Home>, clock: Arc<Clock>, endpoint: &Endpoint, target: LambdaTarget) -> Plane {
    let plane = kit::plane_on(home, clock, |dispatch| {
        dispatch.dags.lambda_functions = target.functions.keys().cloned().collect();
        dispatch.lambda = Some(target);
    })
    .await;
    endpoint.seen(|seen| seen.base.clone_from(&plane.url));
    plane
}

async fn fire(plane: &Plane, request: &str) -> String {
    let input = Some(r#"{"size":4,"who":"me"}"#.into());
    plane.dags.trigger(ORG, "functions", "page", &request.into(), input).await.unwrap().task.to_string()
}

async fn ended(plane: &Plane, task: &str) -> Value {
    wait_until("the task has ended", SOON, async || {
        let view = plane.get(&format!("/api/v1/tasks/{task}")).await.ok();
        Some(view).filter(|view| ["Succeeded", "Failed", "Canceled"].iter().any(|end| view["state"] == *end))
    })
    .await
}

const FUNCTIONS: [(&str, &str); 1] = [("alert_route", "page-on-call")];

async fn a_function_gets_its_task_and_reports(home: Home) {
    let endpoint = Endpoint::default();
    let plane = with(home, &endpoint, &FUNCTIONS, &[]).await;
    let task = fire(&plane, "r-1").await;
    let view = ended(&plane, &task).await;
    assert_eq!((&view["state"], &view["attempt"]), (&json!("Succeeded"), &json!(1)), "{view}");
    assert_eq!(endpoint.answers(1).await, ["200"]);
    plane.nth("after", 1).await;
    let (payloads, headers) = endpoint.seen(|seen| (seen.payloads.clone(), seen.headers.clone()));
    let [(function, payload)] = &payloads[..] else { panic!("{payloads:?}") };
    assert_eq!(function, "page-on-call");
    // What `task-fetch` says of the task, and what the function needs beside it.
    let fetched = plane.fetch(&task).await.ok();
    for key in [
        "task_id",
        "org_id",
        "job",
        "operator",
        "runtime",
        "config",
        "timeout_seconds",
        "trigger",
        "inputs",
        "bundle_url",
    ] {
        assert_eq!(payload[key], fetched[key], "{key}");
    }
    assert_eq!((&payload["attempt"], &payload["bundle_url"]), (&json!(1), &json!("")));
    let work = &payload["work_payload"];
    assert_eq!((&work["channel"], &work["size"], &work["who"]), (&json!("ops"), &json!(4), &json!("me")));
    assert_eq!(work["operator"], "alert_route");
    for secret in ["lease_token", "capability_token", "lease_expires_at"] {
        assert!(payload[secret].as_str().is_some_and(|text| !text.is_empty()), "{secret}");
        assert!(fetched.get(secret).is_none(), "{secret} is told to nobody else");
    }
    let headers = &headers[0];
    assert_eq!(headers["x-amz-invocation-type"], "Event");
    assert_eq!(headers["x-amz-security-token"], "session");
    let signed = &headers["authorization"];
    assert!(signed.starts_with("AWS4-HMAC-SHA256 Credential=AKID/"), "{signed}");
    assert!(signed.contains("/eu-central-1/lambda/aws4_request"), "{signed}");
}

async fn an_invocation_that_is_lost_is_repeated_under_the_same_lease(home: Home) {
    let endpoint = Endpoint::default();
    let plane = with(home, &endpoint, &FUNCTIONS, &[Turn::Hang]).await;
    let task = fire(&plane, "r-1").await;
    wait_until("invoked", SOON, async || endpoint.invocations() == 1).await;
    // The control plane dies with the lease taken and the invocation not answered; another one finds the delivery.
    let (home, clock) = (Arc::clone(&plane.home), Arc::clone(&plane.clock));
    let target = plane.config.dispatch.lambda.clone().unwrap();
    let mut plane = plane;
    plane.server.stop().await;
    drop(plane);
    let plane = start(home, clock, &endpoint, target).await;
    plane.clock.advance(16_000);
    let view = ended(&plane, &task).await;
    assert_eq!((&view["state"], &view["attempt"]), (&json!("Succeeded"), &json!(1)), "{view}");
    let payloads = endpoint.seen(|seen| seen.payloads.clone());
    assert!(payloads.len() >= 2, "{payloads:?}");
    for (_, payload) in &payloads {
        for key in ["attempt", "fence", "lease_token"] {
            assert_eq!(payload[key], payloads[0].1[key], "{key}");
        }
    }
}

async fn a_function_that_is_invoked_twice_ends_its_task_once(home: Home) {
    let endpoint = Endpoint::default();
    let plane = with(home, &endpoint, &FUNCTIONS, &[Turn::Twice]).await;
    let task = fire(&plane, "r-1").await;
    assert_eq!(ended(&plane, &task).await["state"], "Succeeded");
    // The second report is an exact replay.
    assert_eq!(endpoint.answers(2).await, ["200", "200"]);
    plane.nth("after", 1).await;
    assert_eq!(plane.count("after").await, 1);
}

async fn throttling_costs_no_attempt_and_failures_of_lambda_pass(home: Home) {
    let endpoint = Endpoint::default();
    let turns = [
        Turn::Answer(429, "TooManyRequestsException"),
        Turn::Answer(400, "ThrottlingException"),
        Turn::Answer(500, "ServiceException"),
    ];
    let plane = with(home, &endpoint, &FUNCTIONS, &turns).await;
    let task = fire(&plane, "r-1").await;
    for count in 1..=3 {
        wait_until("invoked", SOON, async || endpoint.invocations() >= count).await;
        // Whatever is put off is due.
        let moved = async || {
            plane.clock.advance(5_000);
            endpoint.invocations() > count
        };
        wait_until("invoked again", SOON, moved).await;
    }
    let view = ended(&plane, &task).await;
    assert_eq!((&view["state"], &view["attempt"]), (&json!("Succeeded"), &json!(1)), "{view}");
    let tokens: Vec<Value> =
        endpoint.seen(|seen| seen.payloads.iter().map(|(_, sent)| sent["lease_token"].clone()).collect());
    assert!(tokens.iter().all(|token| *token == tokens[0]), "one lease");
}

async fn a_lambda_that_cannot_be_reached_costs_no_attempt(home: Home) {
    let (endpoint, port) = (Endpoint::default(), Port::reserve());
    let target = target_at(format!("http://127.0.0.1:{}", port.number()), &FUNCTIONS, KEY).await;
    let plane = start(Arc::new(home), Arc::default(), &endpoint, target).await;
    plane.deploy(DAG).await;
    let task = fire(&plane, "r-1").await;
    let why = async || plane.get(&format!("/api/v1/tasks/{task}/why")).await.ok()["why"][0].clone();
    let mut reason = wait_until("the reason", SOON, async || {
        Some(why().await)
            .filter(|reason| reason["code"] == "push_target_down" && reason["detail"]["next_push_at"].is_string())
    })
    .await;
    let message = reason["message"].as_str().unwrap();
    assert!(message.starts_with("Lambda cannot be reached: the connection failed; no attempt is spent"), "{reason}");
    // For longer than the lease of an attempt, which is 90 s.
    for _ in 0..3 {
        plane.clock.advance(80_000);
        // A try from before the step, which was not seen yet, is repeated sooner.
        let next = |reason: &Value| reason["detail"]["next_push_at"].clone();
        let is_later = |now: &Value| next(now).is_string() && between(&next(&reason), &next(now)) >= 45_000;
        let again = async || Some(why().await).filter(is_later);
        reason = wait_until("another try", SOON, again).await;
        let view = plane.get(&format!("/api/v1/tasks/{task}")).await.ok();
        assert_eq!((&view["state"], &view["attempt"]), (&json!("Running"), &json!(1)), "{view}");
    }
    endpoint.listen(port.number()).await;
    // The next try is due; the circuit lets it through a little later.
    plane.clock.advance(35_000);
    let view = ended(&plane, &task).await;
    assert_eq!(view["state"], "Succeeded", "{view}");
    assert_eq!(view["attempt"], 1, "{view}");
}

async fn what_lambda_refuses_ends_the_task(home: Home) {
    let endpoint = Endpoint::default();
    let plane = with(home, &endpoint, &[("alert_route", "nobody:live")], &[]).await;
    let task = fire(&plane, "r-1").await;
    let view = ended(&plane, &task).await;
    assert_eq!((&view["state"], &view["attempt"]), (&json!("Failed"), &json!(1)), "{view}");
    let text = view.to_string();
    assert!(text.contains("ResourceNotFoundException") && text.contains("nobody:live"), "{text}");
    assert!(!text.contains("secret account"), "{text}");
    assert_eq!(endpoint.seen(|seen| seen.payloads[0].0.clone()), "nobody:live");
    let attempts = plane.get(&format!("/api/v1/tasks/{task}/attempts")).await.ok();
    assert!(attempts.to_string().to_uppercase().contains("CONFIGURATION"), "{attempts}");
    assert_eq!(endpoint.invocations(), 1);
}

async fn a_running_function_needs_no_lease_token_towards_a_wrapper(home: Home) {
    let endpoint = Endpoint::default();
    let hang = [Turn::Hang; 3];
    let plane = with(home, &endpoint, &FUNCTIONS, &hang).await;
    plane.still().await;
    let invoked = async |nth: usize, request: &str| {
        let task = fire(&plane, request).await;
        wait_until("the function is invoked", SOON, async || endpoint.invocations() >= nth).await;
        let payload = endpoint.seen(|seen| seen.payloads[nth - 1].1.clone());
        assert_eq!(payload["task_id"], json!(task));
        payload
    };
    let payload = invoked(1, "r-1").await;
    let said = |extra: Value| {
        let mut body = json!({"task_id": payload["task_id"], "attempt": 1});
        crate::harness::merge(&mut body, extra);
        body
    };
    let event = json!({"dataset_uuid": payload["outputs"][0]["dataset_uuid"],
        "dataset_version": payload["outputs"][0]["dataset_version"], "partition_key": "1-5"});
    // Its code has a capability token, and needs the lease token too.
    let token = payload["capability_token"].as_str().unwrap();
    for call in ["heartbeat", "events", "complete"] {
        let body = said(json!({"status": "Completed", "events": [event]}));
        assert_eq!(plane.as_task(call, token, &body).await.refused(400)["error"], "malformed_request", "{call}");
    }
    for call in ["heartbeat", "events", "task-complete"] {
        let body = said(json!({"attempt": 2, "status": "Completed", "events": [event]}));
        assert_eq!(plane.internal(call, body).await.refused(409)["error"], "stale_attempt", "{call}");
    }
    assert_eq!(plane.internal("heartbeat", said(json!({}))).await.ok()["status"], "Running");
    assert_eq!(plane.internal("events", said(json!({"events": [event]}))).await.ok()["accepted"], 1);
    let done = plane.internal("task-complete", said(json!({"status": "Completed"}))).await.ok();
    assert_eq!((&done["status"], &done["fence"]), (&json!("Completed"), &payload["fence"]));
    plane.nth("after", 1).await;
    // It has to run: who comes late shows the token.
    let payload = invoked(2, "r-2").await;
    plane.advance(90_000);
    let body = json!({"task_id": payload["task_id"], "attempt": 1, "status": "Completed"});
    for call in ["heartbeat", "events", "task-complete"] {
        assert_eq!(plane.internal(call, body.clone()).await.refused(409)["error"], "lease_expired", "{call}");
    }
    let mut shown = body.clone();
    shown["lease_token"] = payload["lease_token"].clone();
    plane.internal("task-complete", shown).await.ok();
    for call in ["heartbeat", "task-complete"] {
        assert_eq!(plane.internal(call, body.clone()).await.refused(409)["error"], "attempt_closed", "{call}");
    }
}

/// Which function runs an operator: the one of the operator, and else the one for all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_function_of_an_operator_comes_before_the_one_for_all() {
    for functions in [&[("*", "nobody:live"), ("alert_route", "page-on-call")][..], &[("*", "page-on-call")]] {
        let endpoint = Endpoint::default();
        let plane = with(starts::sqlite().await, &endpoint, functions, &[]).await;
        let task = fire(&plane, "r-1").await;
        assert_eq!(ended(&plane, &task).await["state"], "Succeeded");
        assert_eq!(endpoint.seen(|seen| seen.payloads[0].0.clone()), "page-on-call");
    }
    let endpoint = Endpoint::default();
    let target = target(&endpoint, &[("other", "page-on-call")]).await;
    let plane = start(Arc::new(starts::sqlite().await), Arc::default(), &endpoint, target).await;
    let refused = plane.deploy_text(DAG).await;
    assert_eq!((refused.status.as_u16(), &refused.body["error"]), (422, &json!("invalid_dag")), "{}", refused.body);
    assert!(refused.body.to_string().contains("dispatch.lambda.functions"), "{}", refused.body);
}

/// The endpoint checks signatures: a request that somebody else signed ends its task.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signature_by_another_key_is_refused() {
    let endpoint = Endpoint::default();
    let target = target_with(&endpoint, &FUNCTIONS, "secret-of-somebody-else").await;
    let plane = start(Arc::new(starts::sqlite().await), Arc::default(), &endpoint, target).await;
    plane.deploy(DAG).await;
    let view = ended(&plane, &fire(&plane, "r-1").await).await;
    assert_eq!(view["state"], "Failed");
    assert!(view.to_string().contains("InvalidSignatureException"), "{view}");
    assert_eq!(endpoint.invocations(), 0);
}

async fn a_payload_may_be_as_long_as_lambda_takes_it(home: Home) {
    const LONGEST: usize = 256 * 1024;
    let endpoint = Endpoint::default();
    let plane = with(home, &endpoint, &FUNCTIONS, &[]).await;
    // So that times are equally long.
    plane.still().await;
    let send = async |request: &str, pad: usize| {
        let input = json!({"pad": "x".repeat(pad)}).to_string();
        let made = plane.dags.trigger(ORG, "functions", "page", &request.into(), Some(input.into())).await.unwrap();
        ended(&plane, &made.task.to_string()).await
    };
    assert_eq!(send("r-1", 100_000).await["state"], "Succeeded");
    // The input is in the payload twice, the name of the request once.
    let left = LONGEST - endpoint.seen(|seen| seen.bytes[0]);
    let (pad, name) = (100_000 + left / 2, if left.is_multiple_of(2) { "r-2" } else { "rr-2" });
    assert_eq!(send(name, pad).await["state"], "Succeeded");
    assert_eq!(endpoint.seen(|seen| seen.bytes[1]), LONGEST);
    // One byte more.
    let view = send(&format!("r{name}"), pad).await;
    assert_eq!((&view["state"], &view["attempt"]), (&json!("Failed"), &json!(1)), "{view}");
    let text = view.to_string();
    assert!(text.contains("262145") && text.contains("262144"), "{text}");
    assert_eq!(endpoint.invocations(), 2, "Lambda was not asked");
}

/// Two control planes deliver from one store, and one of them stops while it waits for an answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_control_planes_invoke_each_attempt_under_one_lease_and_one_report_counts() {
    const TASKS: usize = 8;
    let endpoint = Endpoint::default();
    let home = Arc::new(starts::postgres().await);
    let clock: Arc<Clock> = Arc::default();
    let target = target(&endpoint, &FUNCTIONS).await;
    let mut first = start(Arc::clone(&home), Arc::clone(&clock), &endpoint, target.clone()).await;
    let second = start(home, clock, &endpoint, target).await;
    endpoint.seen(|seen| seen.turns = vec![Turn::Hang, Turn::Twice, Turn::Hang, Turn::Twice]);
    first.deploy(DAG).await;
    let mut tasks = Vec::new();
    for n in 0..TASKS {
        tasks.push(fire(if n % 2 == 0 { &first } else { &second }, &format!("r-{n}")).await);
    }
    wait_until("all are invoked", SOON, async || endpoint.invocations() >= TASKS).await;
    first.server.stop().await;
    // Whatever was not answered is delivered again by whoever is left.
    second.clock.advance(16_000);
    for task in &tasks {
        let view = ended(&second, task).await;
        assert_eq!(
            (&view["state"], &view["attempt"], &view["fence"]),
            (&json!("Succeeded"), &json!(1), &json!(1)),
            "{view}"
        );
        let attempts = second.attempts(task).await;
        assert_eq!(attempts.len(), 1, "{attempts:?}");
        let sent = endpoint.seen(|seen| seen.payloads.clone());
        let sent: Vec<&Value> = sent.iter().map(|(_, payload)| payload).filter(|it| it["task_id"] == **task).collect();
        for key in ["attempt", "fence", "lease_token"] {
            assert!(sent.iter().all(|payload| payload[key] == sent[0][key]), "{key}: {sent:?}");
        }
    }
    // Every handler reports the same: the first report counts, and the others are told so.
    let invoked = endpoint.invocations();
    let answers = endpoint.answers(invoked).await;
    assert!(answers.iter().all(|answer| answer == "200"), "{answers:?}");
    second.nth("after", 1).await;
    assert_eq!(second.count("after").await, 1);
}

/// Names are looked up from the most specific one on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_function_of_a_bundle_is_the_most_specific_one() {
    let all = [("score.node", "first"), ("score", "second"), ("udf.node", "third"), ("*", "fourth")];
    for skipped in 0..all.len() {
        let endpoint = Endpoint::default();
        let named = [&all[skipped..], &[("score.python", "other"), ("udf.python", "other")]].concat();
        let target = target(&endpoint, &named).await;
        let plane = start(Arc::new(starts::sqlite().await), Arc::default(), &endpoint, target).await;
        let bundle = plane.send("/api/v1/udf/bundles", &[], super::bundles::good().build()).await.ok();
        let udf = format!("operator: score, udf: {{ bundle_id: {} }}", bundle["bundle_id"].as_str().unwrap());
        plane.deploy(&DAG.replace("operator: alert_route", &udf)).await;
        fire(&plane, "r-1").await;
        wait_until("invoked", SOON, async || endpoint.invocations() >= 1).await;
        assert_eq!(endpoint.seen(|seen| seen.payloads[0].0.clone()), all[skipped].1);
    }
}

/// The payload says where the bundle is, and what it must be.
async fn a_bundle_goes_to_the_function_of_its_language(home: Home) {
    let endpoint = Endpoint::default();
    let target = target(&endpoint, &[("udf.node", "page-on-call"), ("udf.python", "other"), ("*", "other")]).await;
    let plane = start(Arc::new(home), Arc::default(), &endpoint, target).await;
    let zip = super::bundles::good().build();
    let bundle = plane.send("/api/v1/udf/bundles", &[], zip).await.ok();
    let id = bundle["bundle_id"].as_str().unwrap();
    let udf = format!("operator: udf, udf: {{ bundle_id: {id}, entrypoint: index.js }}");
    plane.deploy(&DAG.replace("operator: alert_route", &udf)).await;
    let task = fire(&plane, "r-1").await;
    assert_eq!(ended(&plane, &task).await["state"], "Succeeded");
    let (function, payload) = endpoint.seen(|seen| seen.payloads[0].clone());
    assert_eq!(function, "page-on-call");
    assert_eq!(payload["bundle"]["sha256"], bundle["sha256"]);
    assert_eq!((&payload["bundle_url"], &payload["handler"]), (&json!("/v1/task/bundle"), &Value::Null));
    assert_eq!(payload["work_payload"]["bundle_url"], payload["bundle_url"]);
}
