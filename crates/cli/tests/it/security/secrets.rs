//! Many secrets, a server that logs all it can, and a day's work.

use std::process::Command;

use reqwest::Method;
use serde_json::json;
use tenure_auth::worker::{Audience, MintRequest, PrivateKey, SigningKey};
use tenure_auth::{TaskKeys, WorkerKeys};
use tenure_testkit::{Signal, Tenure, wait_until};

use crate::security::canary::{Canaries, Places};
use crate::security::kit::{Caller, Desk, PATIENCE, code, finish};

const FAILURES: &str = "tenure_config_reload_failures_total";
/// No secrets. They are looked for to see that the search finds what is there.
pub const QUEUE: &str = "queue-that-everybody-may-see";
pub const ISSUER: &str = "issuer-that-everybody-may-see";
pub const UNKNOWN_KEY: &str = "key_that_everybody_may_see";

/// A configuration full of secrets, and who holds them.
pub struct Secrets {
    pub canaries: Canaries,
    yaml: String,
    variables: Vec<(&'static str, String)>,
    api_key: String,
    admin_key: String,
    /// Worker id and token.
    workers: Vec<(&'static str, String)>,
    pub bootstrap: String,
}

impl Secrets {
    /// `DSN_PASSWORD` in the section about the database is one of them.
    fn new(desk: &Desk, database: &str, format: &str) -> Self {
        let mut canaries = Canaries::default();
        let database = database.replace("DSN_PASSWORD", &canaries.plant("database.dsn"));
        let file = |canaries: &mut Canaries, name: &str| {
            let text = canaries.plant(name);
            desk.file(name, &format!("{text}\n"));
            text
        };
        let (api_key, shared) =
            (file(&mut canaries, "auth.api_key_file"), file(&mut canaries, "auth.worker_token_file"));
        file(&mut canaries, "callback.shared_secret_file");
        let (private, task) = (PrivateKey::random(), TaskKeys::generate().unwrap());
        for (name, pem) in [("workers.pem", private.to_pem().unwrap()), ("tasks.pem", task)] {
            canaries.add_pem(name, pem.reveal());
            desk.file(name, pem.reveal());
        }
        let [hmac, hmac_old, own, bootstrap] =
            ["worker_signing_key", "worker_signing_keys", "worker_tokens", "worker_bootstrap_keys"]
                .map(|name| canaries.plant(&format!("auth.{name}")));
        let admin_key = canaries.plant("auth.admin_api_key");
        let previous = canaries.plant("auth.worker_token_previous");
        let jwks = canaries.plant_shown("query of a URL in the configuration");
        let mut minted = |keys: WorkerKeys, id: &'static str| {
            let ed25519 = keys.private.is_some();
            let wanted = MintRequest { ed25519, ..MintRequest::new(id, Audience::ControlPlane, now()) };
            let token = keys.mint(&wanted).unwrap().token.reveal().to_owned();
            canaries.add(&format!("token of {id}"), token.rsplit('.').next().unwrap());
            (id, token)
        };
        let workers = vec![
            minted(WorkerKeys { active: SigningKey::new(&hmac), ..WorkerKeys::default() }, "w-hmac"),
            minted(WorkerKeys { active: SigningKey::new(&hmac_old), ..WorkerKeys::default() }, "w-hmac-old"),
            minted(WorkerKeys { private: Some(private), ..WorkerKeys::default() }, "w-ed"),
            ("w-own", own.clone()),
            ("w-shared", shared),
            ("w-previous", previous.clone()),
        ];
        let yaml = format!(
            "logging: {{level: trace, format: {format}}}
{database}
tokens: {{issuer: {ISSUER}}}
dispatch: {{capability: {{key_file: tasks.pem}}}}
callback: {{shared_secret_file: callback.shared_secret_file}}
rate_limit: {{failed_auth_per_minute: 0}}
auth:
  enabled: true
  api_key_file: auth.api_key_file
  worker_token_file: auth.worker_token_file
  worker_private_key_file: workers.pem
  worker_signing_key: {hmac}
  worker_signing_keys: [{hmac_old}]
  worker_tokens: {{w-own: {own}}}
  worker_bootstrap_keys: {{w-boot: {bootstrap}}}
  oidc_enabled: true
  oidc_issuer: https://id.example.com
  oidc_jwks_url: 'https://127.0.0.1:9/keys?token={jwks}'
"
        );
        let variables =
            vec![("TENURE_AUTH__ADMIN_API_KEY", admin_key.clone()), ("TENURE_AUTH__WORKER_TOKEN_PREVIOUS", previous)];
        Self { canaries, yaml, variables, api_key, admin_key, workers, bootstrap }
    }

    /// What runs beside the server: everything is logged, and the same variables hold.
    pub fn prepare(&self, command: &mut Command) {
        command.env("RUST_LOG", "trace").envs(self.variables.iter().map(|(name, value)| (name, value)));
    }
}

fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}

/// A server, what is kept from others, and where it was looked for.
pub struct Day<'a> {
    desk: &'a Desk,
    pub secrets: Secrets,
    pub server: Tenure,
    pub places: Places,
}

impl<'a> Day<'a> {
    pub async fn begin(desk: &'a Desk, database: &str, format: &str) -> Self {
        let secrets = Secrets::new(desk, database, format);
        let server = desk.serve_with(&secrets.yaml, &[], |command| secrets.prepare(command)).await;
        let mut places = Places::default();
        places.add_command_line("the server", server.pid());
        Self { desk, secrets, server, places }
    }

    pub fn bare(&self) -> Caller {
        Caller::new(self.server.url())
    }

    pub fn user(&self) -> Caller {
        self.bare().header("X-API-Key", &self.secrets.api_key)
    }

    pub fn admin(&self) -> Caller {
        self.bare().header("X-Admin-API-Key", &self.secrets.admin_key)
    }

    /// Every kind of worker runs a task: claim, heartbeat, complete or fail.
    pub async fn work(&mut self) {
        let boot = self.bare().header("X-Worker-Bootstrap-Key", &self.secrets.bootstrap);
        let issued = boot.post("/api/v1/worker/w-boot/token", &json!({})).await.json();
        let admin = self.admin();
        let central = admin.post("/api/v1/admin/worker-tokens", &json!({"worker_id": "w-central"})).await.json();
        let mut workers = self.secrets.workers.clone();
        for (id, issued) in [("w-boot", issued), ("w-central", central)] {
            let token = issued["token"].as_str().unwrap().to_owned();
            self.secrets.canaries.add(&format!("token of {id}"), token.rsplit('.').next().unwrap());
            workers.push((id, token));
        }
        for (n, (id, token)) in workers.into_iter().enumerate() {
            let canaries = &mut self.secrets.canaries;
            let [payload, result, checkpoint] =
                ["payload", "result", "checkpoint"].map(|what| canaries.plant_stored(&format!("{what} of {id}")));
            let task = json!({"queue": QUEUE, "operator": "echo", "payload": {"secret": payload}, "max_attempts": 1});
            let submitted = self.user().post("/api/v1/tasks", &task).await;
            assert_eq!(submitted.status, 201, "{submitted:?}");
            let worker = self.bare().worker(id, &token);
            let claim = json!({"worker_id": id, "streams": [QUEUE], "max_wait_ms": 0});
            let job = worker.post("/internal/worker/claim", &claim).await.json();
            let lease = job["lease_token"].as_str().unwrap();
            self.secrets.canaries.add(&format!("lease of {id}"), lease);
            let mut report = json!({"worker_id": id, "job_id": job["job_id"], "attempt_id": job["attempt_id"],
                "lease_token": lease, "checkpoint": {"at": checkpoint}});
            let beat = worker.post("/internal/worker/heartbeat", &report).await;
            assert_eq!(beat.status, 200, "{beat:?}");
            // With a lease that is wrong, too.
            let mut wrong = report.clone();
            wrong["lease_token"] = json!(self.secrets.canaries.plant("a wrong lease"));
            self.answered(&worker.post("/internal/worker/heartbeat", &wrong).await.text, "a wrong lease");
            let path = if n % 2 == 0 { "/internal/worker/complete" } else { "/internal/worker/fail" };
            report["result"] = json!({"secret": result});
            report["error"] = json!({"code": "E", "message": "as told", "stack": result, "retryable": false});
            let reported = worker.post(path, &report).await;
            assert_eq!(reported.status, 200, "{path}: {reported:?}");
        }
    }

    fn answered(&mut self, text: &str, to: &str) {
        self.places.add(&format!("the answer to {to}"), text);
    }

    /// Credentials that are wrong in every header, and bodies that are none.
    pub async fn be_refused(&mut self) {
        let headers = [
            ("X-API-Key", "/api/v1/tasks", ""),
            ("X-Admin-API-Key", "/api/v1/admin/audit", ""),
            ("Authorization", "/api/v1/tasks", "Bearer "),
            ("Authorization", "/api/v1/tasks", "Bearer eyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ.eyJzdWIiOiJhIn0."),
            ("Authorization", "/api/v1/tasks", "Basic "),
            ("X-User-ID", "/api/v1/tasks", ""),
            ("Cookie", "/api/v1/tasks", "session="),
        ];
        for (name, path, before) in headers {
            let wrong = self.secrets.canaries.plant(&format!("a wrong {name} {before}"));
            let said = self.bare().header(name, &format!("{before}{wrong}")).get(path).await;
            assert!(said.status >= 400, "{name}: {said:?}");
            self.answered(&said.text, name);
        }
        let claim = json!({"worker_id": "w", "streams": [QUEUE], "max_wait_ms": 0});
        let signed = ["", "stacyvm-worker-v1.e30.", "tenure-worker-v1.e30."];
        for (name, before) in signed.map(|before| ("X-Worker-Token", before)).into_iter().chain([
            ("X-Trace-Worker-Token", ""),
            ("Authorization", "Bearer "),
            ("X-Worker-Bootstrap-Key", ""),
        ]) {
            let wrong = self.secrets.canaries.plant(&format!("a wrong {name} {before} of a worker"));
            let caller = self.bare().header(name, &format!("{before}{wrong}"));
            for path in ["/internal/worker/claim", "/api/v1/worker/w-boot/token"] {
                let said = caller.post(path, &claim).await;
                assert_eq!(said.status, 401, "{name}: {said:?}");
                self.answered(&said.text, name);
            }
        }
        let body = self.secrets.canaries.plant("a malformed body");
        for (path, text) in [
            ("/api/v1/tasks", format!("{{\"queue\": \"q\", \"payload\": \"{body}")),
            ("/api/v1/tasks", body.clone()),
            (
                "/api/v1/tasks",
                json!({"queue": "q", "operator": "echo", "payload": 1, "lease_ttl_seconds": body}).to_string(),
            ),
            ("/api/v1/admin/api-keys", json!({"name": "x", "role": body}).to_string()),
            ("/api/v1/admin/worker-tokens", json!({"worker_id": "x", "scopes": [body]}).to_string()),
        ] {
            let said = self.admin().try_call(Method::POST, path, Some(text)).await.unwrap();
            assert!((400..500).contains(&said.status), "{said:?}");
            // Whoever sent a value of the wrong kind is told which one.
            if !said.text.contains("invalid type") {
                self.answered(&said.text, path);
            }
        }
        let query = self.secrets.canaries.plant("the query of a call");
        for path in ["/api/v1/queues", "/api/v1/admin/audit", "/api/v1/admin/api-keys", "/nowhere"] {
            let said = self.admin().get(&format!("{path}?api_key={query}")).await;
            self.answered(&said.text, path);
        }
    }

    /// Keys that are made over the API, and used.
    pub async fn administer(&mut self) {
        let admin = self.admin();
        for role in ["viewer", "operator", "admin"] {
            let made = admin.post("/api/v1/admin/api-keys", &json!({"name": "ci", "role": role})).await.json();
            let key = made["key"].as_str().unwrap();
            let id = made["id"].as_str().unwrap();
            let secret = key.rsplit_once(id).unwrap().1;
            self.secrets.canaries.add(&format!("API key of {role}"), secret);
            let holder = self.bare().header("X-API-Key", key);
            assert_eq!(holder.get("/api/v1/whoami").await.status, 200);
            self.answered(&holder.get("/api/v1/whoami").await.text, "whoami");
            self.answered(&admin.get("/api/v1/admin/api-keys").await.text, "a list of keys");
            let path = format!("/api/v1/admin/api-keys/{id}");
            let gone = admin.try_call(Method::DELETE, &path, None).await.unwrap();
            assert_eq!(gone.status, 200, "{gone:?}");
            self.answered(&gone.text, "a revocation");
            self.answered(&holder.get("/api/v1/whoami").await.text, "a revoked key");
        }
    }

    /// Files that are broken where a secret stands.
    pub async fn reload(&mut self) {
        let good = self.secrets.yaml.clone();
        let broken = self.secrets.canaries.plant("a file that is broken");
        for text in [
            good.replace("  enabled: true", &format!("  enabled: true\n  {UNKNOWN_KEY}: {broken}")),
            good.replace("  enabled: true", &format!("  enabled: true\n  api_key: \"{broken}")),
            good.replace("  enabled: true", &format!("  enabled: true\n  api_key: {broken}")),
            good.replace("{w-boot: ", &format!("{{w-other: 'sha256:{broken}', w-boot: ")),
            good.replace("worker_private_key_file: workers.pem", "worker_private_key_file: broken.pem"),
        ] {
            self.desk.file("broken.pem", &format!("-----BEGIN PRIVATE KEY-----\n{broken}\n-----END PRIVATE KEY-----"));
            let before = self.admin().counter(FAILURES).await;
            self.desk.file("tenure.yaml", &text);
            self.server.signal(Signal::SIGHUP);
            let admin = self.admin();
            wait_until("the file is refused", PATIENCE, async || admin.counter(FAILURES).await > before).await;
            self.command("config show", &["config", "show", "--config", "tenure.yaml"], 2).await;
        }
        self.desk.file("tenure.yaml", &good);
        self.server.signal(Signal::SIGHUP);
    }

    pub async fn command(&mut self, name: &str, args: &[&str], exit: i32) {
        let mut command = self.desk.command(args);
        self.secrets.prepare(&mut command);
        let output = finish(command).await;
        assert_eq!(code(&output), exit, "{args:?}: {output:?}");
        self.places.add_output(name, &output);
    }
}
