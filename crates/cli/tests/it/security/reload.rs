//! Keys, tokens and rules that change while the server is busy: no call that is valid fails.

use serde_json::json;
use tenure_auth::WorkerKeys;
use tenure_auth::worker::{Audience, MintRequest, Minted, PrivateKey, SigningKey};
use tenure_testkit::{Postgres, Signal, Tenure, wait_until};

use crate::security::kit::{ADMIN_KEY, API_KEY, Caller, Desk, PATIENCE};
use crate::security::load::Load;

const HMAC: [&str; 2] = ["hmac-key-number-one-0123456789abcdef", "hmac-key-number-two-0123456789abcdef"];
const SHARED: [&str; 2] = ["shared-token-one-0123456789", "shared-token-two-0123456789"];

/// The configuration of these tests, as it is written at the moment.
struct Keys {
    shared: &'static str,
    shared_previous: Option<&'static str>,
    hmac: &'static str,
    hmac_previous: Vec<&'static str>,
    private_file: &'static str,
    public: Vec<String>,
}

impl Keys {
    fn yaml(&self) -> String {
        let previous = self.shared_previous.map_or_else(String::new, |old| format!("  worker_token_previous: {old}\n"));
        format!(
            "auth:
  enabled: true
  api_key: {API_KEY}
  admin_api_key: {ADMIN_KEY}
  worker_token: {}
{previous}  worker_signing_key: {}
  worker_signing_keys: {:?}
  worker_private_key_file: {}
  worker_public_keys: {:?}
  worker_revoked_token_ids_file: revoked
",
            self.shared, self.hmac, self.hmac_previous, self.private_file, self.public
        )
    }
}

fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}

fn by_hmac(key: &str, worker: &str) -> Minted {
    let keys = WorkerKeys { active: SigningKey::new(key), ..WorkerKeys::default() };
    keys.mint(&MintRequest::new(worker, Audience::ControlPlane, now())).unwrap()
}

fn by_private(key: &PrivateKey, worker: &str) -> Minted {
    let keys = WorkerKeys { private: Some(key.clone()), ..WorkerKeys::default() };
    keys.mint(&MintRequest { ed25519: true, ..MintRequest::new(worker, Audience::ControlPlane, now()) }).unwrap()
}

async fn until_accepted(worker: &Caller, id: &str) {
    wait_until(&format!("{id} is let in"), PATIENCE, async || worker.claim(id).await.status == 200).await;
}

/// Until it is not let in any more. Who is refused too often hears 429.
async fn until_refused(worker: &Caller, id: &str) {
    wait_until(&format!("{id} is refused"), PATIENCE, async || {
        let said = worker.claim(id).await;
        assert!(matches!(said.status, 200 | 401 | 429), "{said:?}");
        said.status != 200
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_and_tokens_of_workers_change_under_load_without_one_failed_call() {
    let desk = Desk::new();
    let private = [PrivateKey::random(), PrivateKey::random()];
    for (name, key) in ["old.pem", "new.pem"].into_iter().zip(&private) {
        desk.file(name, key.to_pem().unwrap().reveal());
    }
    desk.file("revoked", "# none yet\n");
    let mut keys = Keys {
        shared: SHARED[0],
        shared_previous: None,
        hmac: HMAC[0],
        hmac_previous: Vec::new(),
        private_file: "old.pem",
        public: Vec::new(),
    };
    let mut server: Tenure = desk.serve(&keys.yaml()).await;
    let bare = Caller::new(server.url());
    let mut load = Load::default();
    load.submits("user", bare.user());
    let shared = load.works("w-shared", bare.worker("w-shared", SHARED[0]));
    let hmac = load.works("w-hmac", bare.worker("w-hmac", by_hmac(HMAC[0], "w-hmac").token.reveal()));
    let ed = load.works("w-ed", bare.worker("w-ed", by_private(&private[0], "w-ed").token.reveal()));
    load.settle().await;

    // The token that workers share: by watching the file.
    let old = bare.worker("w-shared", SHARED[0]);
    let new = bare.worker("w-shared", SHARED[1]);
    (keys.shared, keys.shared_previous) = (SHARED[1], Some(SHARED[0]));
    desk.file("tenure.yaml", &keys.yaml());
    until_accepted(&new, "w-shared").await;
    shared.set(new);
    load.settle().await;
    keys.shared_previous = None;
    desk.file("tenure.yaml", &keys.yaml());
    server.signal(Signal::SIGHUP);
    until_refused(&old, "w-shared").await;
    load.settle().await;

    // The key that signs with HMAC: at a signal.
    let old = bare.worker("w-hmac", by_hmac(HMAC[0], "w-hmac").token.reveal());
    let new = bare.worker("w-hmac", by_hmac(HMAC[1], "w-hmac").token.reveal());
    (keys.hmac, keys.hmac_previous) = (HMAC[1], vec![HMAC[0]]);
    desk.file("tenure.yaml", &keys.yaml());
    server.signal(Signal::SIGHUP);
    until_accepted(&new, "w-hmac").await;
    until_accepted(&old, "w-hmac").await;
    hmac.set(new);
    load.settle().await;
    keys.hmac_previous.clear();
    desk.file("tenure.yaml", &keys.yaml());
    server.signal(Signal::SIGHUP);
    until_refused(&old, "w-hmac").await;
    load.settle().await;

    // The Ed25519 key, whose public half goes on verifying.
    let (first, second) = (by_private(&private[0], "w-ed"), by_private(&private[1], "w-ed"));
    let (old, new) = (bare.worker("w-ed", first.token.reveal()), bare.worker("w-ed", second.token.reveal()));
    (keys.private_file, keys.public) = ("new.pem", vec![private[0].public().to_string()]);
    desk.file("tenure.yaml", &keys.yaml());
    server.signal(Signal::SIGHUP);
    until_accepted(&new, "w-ed").await;
    until_accepted(&old, "w-ed").await;
    ed.set(new);
    load.settle().await;
    keys.public.clear();
    desk.file("tenure.yaml", &keys.yaml());
    server.signal(Signal::SIGHUP);
    until_refused(&old, "w-ed").await;

    // Single tokens of workers that others of the same key outlive: by file, and over the API.
    let (by_file, by_api) = (by_private(&private[1], "w-ed"), by_hmac(HMAC[1], "w-hmac"));
    let (lost, stolen) = (bare.worker("w-ed", by_file.token.reveal()), bare.worker("w-hmac", by_api.token.reveal()));
    until_accepted(&lost, "w-ed").await;
    until_accepted(&stolen, "w-hmac").await;
    let revocation = json!({"token_id": by_api.token_id});
    let said = bare.admin().post("/api/v1/admin/worker-tokens/revocations", &revocation).await;
    assert_eq!(said.status, 204, "{said:?}");
    assert!(matches!(stolen.claim("w-hmac").await.status, 401 | 429), "it holds at once");
    desk.file("revoked", &format!("{} # lost\n", by_file.token_id));
    until_refused(&lost, "w-ed").await;
    load.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_api_key_is_refused_and_costs_nobody_else_a_call() {
    let desk = Desk::new();
    let yaml = format!("auth: {{enabled: true, api_key: {API_KEY}, admin_api_key: {ADMIN_KEY}}}");
    let server = desk.serve(&yaml).await;
    let bare = Caller::new(server.url());
    let made = async |name: &str| {
        let said = bare.admin().post("/api/v1/admin/api-keys", &json!({"name": name})).await;
        assert_eq!(said.status, 201, "{said:?}");
        let made = said.json();
        (bare.header("X-API-Key", made["key"].as_str().unwrap()), made["id"].as_str().unwrap().to_owned())
    };
    let (ann, _) = made("ann").await;
    let (ben, _) = made("ben").await;
    let (eve, eve_id) = made("eve").await;
    let mut load = Load::default();
    load.submits("configured", bare.user());
    load.submits("ann", ann);
    load.submits("ben", ben);
    load.settle().await;
    assert_eq!(eve.get("/api/v1/tasks").await.status, 200);
    let revoke = async |id: &str| {
        let path = format!("/api/v1/admin/api-keys/{id}");
        assert_eq!(bare.admin().try_call(reqwest::Method::DELETE, &path, None).await.unwrap().status, 200);
    };
    revoke(&eve_id).await;
    // More failures than an address may have: ann and ben call from the same one.
    for n in 0..60 {
        let said = eve.get("/api/v1/tasks").await;
        assert!(said.status == 401 || (n > 20 && said.status == 429), "{n}: {said:?}");
    }
    wait_until("more fail than may", PATIENCE, async || eve.get("/api/v1/tasks").await.status == 429).await;
    load.settle().await;
    // Keys that come and go are no reason to forget who the others are.
    let (_, id) = made("zoe").await;
    load.settle().await;
    revoke(&id).await;
    load.finish().await;
}

#[tokio::test]
async fn a_revocation_reaches_other_replicas_also_where_many_calls_fail() {
    let (desk, database) = (Desk::new(), Postgres::shared().await.database().await);
    let yaml = format!(
        "auth: {{enabled: true, api_key: {API_KEY}, admin_api_key: {ADMIN_KEY}, worker_signing_key: {}}}
database: {{driver: postgres, dsn: '{}'}}",
        HMAC[0],
        database.url()
    );
    let (here, there) = (desk.serve(&yaml).await, desk.serve(&yaml).await);
    let (admin, other) = (Caller::new(here.url()).admin(), Caller::new(there.url()));
    let made = admin.post("/api/v1/admin/api-keys", &json!({"name": "eve"})).await.json();
    let eve = other.header("X-API-Key", made["key"].as_str().unwrap());
    let token = by_hmac(HMAC[0], "w");
    let worker = other.worker("w", token.token.reveal());
    assert_eq!((eve.get("/api/v1/tasks").await.status, worker.claim("w").await.status), (200, 200));
    let wrong = other.header("X-API-Key", "nobody's");
    wait_until("more calls fail than may", PATIENCE, async || wrong.get("/api/v1/tasks").await.status == 429).await;
    assert_eq!(eve.get("/api/v1/tasks").await.status, 200, "a key that is known is let in");

    let path = format!("/api/v1/admin/api-keys/{}", made["id"].as_str().unwrap());
    assert_eq!(admin.try_call(reqwest::Method::DELETE, &path, None).await.unwrap().status, 200);
    let revocation = json!({"token_id": token.token_id});
    assert_eq!(admin.post("/api/v1/admin/worker-tokens/revocations", &revocation).await.status, 204);
    until_refused(&worker, "w").await;
    wait_until("the key is refused", PATIENCE, async || {
        // Failures go on all the time.
        wrong.get("/api/v1/tasks").await;
        eve.get("/api/v1/tasks").await.status != 200
    })
    .await;
}

const FAILURES: &str = "tenure_config_reload_failures_total";
const RELOADS: &str = "tenure_config_reloads_total";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_broken_is_not_taken_and_what_is_mended_is() {
    let desk = Desk::new();
    let (first, second) = (SHARED[0], SHARED[1]);
    desk.file("token", first);
    let good =
        format!("auth: {{enabled: true, api_key: {API_KEY}, admin_api_key: {ADMIN_KEY}, worker_token_file: token}}\n");
    // Others than this machine could reach it.
    let mut server = desk.serve_with(&good, &["--listen", "0.0.0.0:0"], |_| {}).await;
    let bare = Caller::new(&server.url().replace("0.0.0.0", "127.0.0.1"));
    let admin = bare.admin();
    let mut load = Load::default();
    load.submits("user", bare.user());
    let worker = load.works("w", bare.worker("w", first));
    load.settle().await;

    let broken = [
        ("token", " \n".to_owned(), "auth.worker_token_file"),
        ("tenure.yaml", "auth: {enabled: true, api_key: \"no end".to_owned(), "tenure.yaml"),
        ("tenure.yaml", good.replace("worker_token_file", "worker_tokn_file"), "auth.worker_tokn_file"),
        ("tenure.yaml", good.replace("enabled: true", "enabled: false"), "auth.enabled"),
        ("tenure.yaml", good.replace("worker_token_file: token", "worker_token_file: absent"), "absent"),
        ("tenure.yaml", good.replace("worker_token_file", "worker_private_key_file"), "auth.worker_private_key_file"),
        ("tenure.yaml", good.replace("worker_token_file: token", "anonymous_workers: true"), "anonymous_workers"),
        ("tenure.yaml", good.replace(", worker_token_file: token", ""), "no worker credential"),
    ];
    for (at, (name, text, said)) in broken.into_iter().enumerate() {
        let before = (admin.counter(FAILURES).await, desk.read(name));
        desk.file(name, &text);
        // Some by watching the files.
        if at > 1 {
            server.signal(Signal::SIGHUP);
        }
        wait_until(&format!("{said} is a failure"), PATIENCE, async || admin.counter(FAILURES).await > before.0).await;
        let line = server.wait_for_stderr(said, PATIENCE).await;
        assert!(line.contains("ERROR") && line.contains("the previous values stay in effect"), "{line}");
        assert_eq!(bare.get("/api/v1/tasks").await.status, 401, "{said}: nobody is let in without a key");
        load.settle().await;
        desk.file(name, &before.1);
    }

    // The next files are good, and are taken.
    desk.file(
        "tenure.yaml",
        &good.replace("worker_token_file", &format!("worker_token_previous: {first}, worker_token_file")),
    );
    let reloads = admin.counter(RELOADS).await;
    server.signal(Signal::SIGHUP);
    wait_until("the file is read", PATIENCE, async || admin.counter(RELOADS).await > reloads).await;
    desk.file("token", second);
    let new = bare.worker("w", second);
    until_accepted(&new, "w").await;
    worker.set(new);
    let before = admin.counter(RELOADS).await;
    server.signal(Signal::SIGHUP);
    wait_until("a signal alone has it read again", PATIENCE, async || admin.counter(RELOADS).await > before).await;
    load.finish().await;
    let log = server.output().stderr;
    assert!([API_KEY, ADMIN_KEY, first, second].iter().all(|secret| !log.contains(secret)), "{log}");
}

/// Settings of sandboxes, as they are written at the moment.
fn offer(defaults: &str, ports: &str, secret: &str, more: &str) -> String {
    format!(
        "server: {{preview_ports: \"{ports}\"}}
worker: {{local: true, data_dir: worker, heartbeat_interval: 1s, capacity: {{vcpus: 64, memory_mb: 65536}}}}
providers: {{default: process, process: {{enabled: true}}, namespace: {{enabled: false}}}}
defaults: {{{defaults}}}
templates: {{secrets: {{token: {secret}}}}}
{more}"
    )
}

/// Creates a sandbox, and tells it and how many seconds it lives.
async fn created(caller: &Caller) -> (String, i64) {
    let said = caller.post("/api/v1/sandboxes", &json!({})).await;
    assert_eq!(said.status, 201, "{said:?}");
    let made = said.json();
    let at = |field: &str| made[field].as_str().unwrap().parse::<jiff::Timestamp>().unwrap().as_second();
    (made["id"].as_str().unwrap().to_owned(), at("expires_at") - at("created_at"))
}

async fn exec(caller: &Caller, sandbox: &str, command: &str) -> crate::security::kit::Said {
    caller.post(&format!("/api/v1/sandboxes/{sandbox}/exec"), &json!({"command": command})).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_of_sandboxes_change_while_sandboxes_live() {
    let desk = Desk::new();
    let first = "ttl: 10m, max_sandboxes: 3, max_exec_timeout: 10m";
    let mut server = desk.serve(&offer(first, "8000-8999", "one", "")).await;
    let caller = Caller::new(server.url());
    wait_until("the worker is online", PATIENCE, async || {
        let workers = caller.get("/api/v1/workers").await.json();
        workers.as_array().unwrap().iter().any(|worker| worker["status"] == "online")
    })
    .await;
    let (old, lives) = created(&caller).await;
    assert_eq!(lives, 600);
    let template = json!({"name": "t", "image": "any", "secrets": [{"name": "token", "inject_at": "TOKEN"}]});
    assert_eq!(caller.post("/api/v1/templates", &template).await.status, 201);
    let secret = async || {
        let made = caller.post("/api/v1/templates/t/spawn", &json!({})).await;
        assert_eq!(made.status, 201, "{made:?}");
        let id = made.json()["id"].as_str().unwrap().to_owned();
        exec(&caller, &id, "echo $TOKEN").await.json()["stdout"].as_str().unwrap().to_owned()
    };
    assert_eq!(secret().await, "one\n");
    let port = format!("/api/v1/sandboxes/{old}/proxy/9000/");
    assert_eq!(caller.get(&port).await.status, 403);
    assert_eq!(exec(&caller, &old, "echo plain").await.status, 200);

    let second = "ttl: 20m, max_sandboxes: 9, max_exec_timeout: 300ms";
    let more =
        "audit: {commands: hash}\nmetrics: {legacy_names: true}\nleases: {ttl: 90s}\nscheduler: {freshness: 77s}\n";
    desk.file("tenure.yaml", &offer(second, "9000-9999", "two", more));
    server.signal(Signal::SIGHUP);
    wait_until("ports change", PATIENCE, async || caller.get(&port).await.status == 502).await;
    let lives = async || {
        let (made, lives) = created(&caller).await;
        let path = format!("/api/v1/sandboxes/{made}");
        assert_eq!(caller.try_call(reqwest::Method::DELETE, &path, None).await.unwrap().status, 200);
        lives == 1200
    };
    wait_until("the time of new sandboxes changes", PATIENCE, lives).await;
    assert_eq!(secret().await, "two\n", "with the new secret, and with more sandboxes than before");
    let diagnosed = caller.get("/api/v1/diagnostics").await.json();
    assert_eq!(diagnosed["scheduler"]["freshness"], "1m17s");
    // The worker follows the same file by itself, and the sandbox of before is still there.
    let said = exec(&caller, &old, "sleep 600").await;
    assert_eq!(said.status, 408, "{said:?}");
    let audit = caller.get("/api/v1/audit?action=exec&limit=500").await.text;
    assert!(audit.contains("echo plain") && audit.contains("sha256:") && !audit.contains("sleep 600"), "{audit}");
    // Sandboxes are counted every ten seconds.
    wait_until("figures under both names", PATIENCE, async || {
        let figures = caller.get("/api/v1/metrics/prometheus").await.text;
        figures.contains("\nstacyvm_sandboxes_total{") && figures.contains("\ntenure_sandboxes_total{")
    })
    .await;

    // What is wrong leaves everything as it was.
    desk.file("tenure.yaml", &offer("ttl: soon", "1-9", "three", ""));
    server.signal(Signal::SIGHUP);
    wait_until("the failure is counted", PATIENCE, async || {
        let text = caller.get("/metrics").await.text;
        // The worker in the process reads the file too, and both also look for changes of it.
        text.lines().any(|line| line.strip_prefix(FAILURES).is_some_and(|count| count.trim() != "0"))
    })
    .await;
    assert_eq!(caller.get(&port).await.status, 502);
}
