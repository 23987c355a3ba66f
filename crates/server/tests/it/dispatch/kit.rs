//! A server with DAGs, and a worker of the dispatch contract.

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use reqwest::Method;
use serde_json::{Value, json};
use tenure_auth::{Secret, TaskKeys, WorkerAuth};
use tenure_data::DataStore;
use tenure_engine::dags::{Dags, NewVersion};
use tenure_engine::store::{Clock, Retention};
use tenure_objects::{LOCAL_BUCKET, Objects, Place, Settings};
use tenure_s3::{Keys, REGION, Service};
use tenure_server::{Access, CredentialBackend, CredentialBroker, DispatchConfig, Live, ServerConfig, SharedTaskKeys};
use tenure_testkit::wait_until;

use crate::harness::{Answer, Home, SOON, Server, TOKEN, database, merge};

/// The tenant of callers without one.
pub const ORG: &str = "default";
pub const WORKER: &str = "ecs:cluster/service/task";

/// A source with two outputs, a job for each partition, and one for each update.
pub const CHAIN: &str = "name: chain
jobs:
  - { name: import, activation: source, runtime: worker, operator: import, outputs: 2, source: { kind: manual },
      config: { abi: erc20 } }
  - name: decode
    activation: reactive
    runtime: worker
    operator: decode
    outputs: 1
    execution_strategy: PerPartition
    update_strategy: replace
    inputs: [{ from: { job: import, output: 0 }, alias: raw }]
  - name: page
    activation: reactive
    runtime: worker
    operator: page
    outputs: 0
    execution_strategy: PerUpdate
    inputs: [{ from: { job: import, output: 1 }, where: \"severity = 'critical'\" }]
";

pub struct Plane {
    pub server: Server,
    /// Deploys and triggers.
    pub dags: Dags,
    /// The folder of the object store.
    pub objects: tempfile::TempDir,
    /// Makes keys for it.
    pub keys: Arc<Keys>,
}

impl Deref for Plane {
    type Target = Server;
    fn deref(&self) -> &Server {
        &self.server
    }
}

pub async fn sqlite() -> Plane {
    plane(Home::Sqlite(tempfile::tempdir().unwrap())).await
}

pub async fn postgres() -> Plane {
    plane(Home::Postgres(database().await)).await
}

pub async fn plane(home: Home) -> Plane {
    plane_on(Arc::new(home), Arc::default(), |_| {}).await
}

/// A server that is set up differently.
pub async fn plane_on(home: Arc<Home>, clock: Arc<Clock>, change: impl FnOnce(&mut DispatchConfig)) -> Plane {
    plane_with(home, clock, change, |_| {}).await
}

/// The same, beyond what concerns DAGs.
pub async fn plane_with(
    home: Arc<Home>,
    clock: Arc<Clock>,
    change: impl FnOnce(&mut DispatchConfig),
    set: impl FnOnce(&mut ServerConfig),
) -> Plane {
    let folder = tempfile::tempdir().unwrap();
    let workers = WorkerAuth { shared: Secret::new(TOKEN), ..WorkerAuth::default() };
    let access = Live::new(Access { workers, ..Access::default() });
    let place = Place::Folder { path: folder.path().to_owned(), allow_file: true };
    let objects: Objects = Settings::new(place).open().unwrap();
    let keys = Arc::new(Keys::of_folder(objects.folder().unwrap()).unwrap());
    let s3 = Service::new(objects.folder().unwrap(), LOCAL_BUCKET, Arc::clone(&keys)).unwrap();
    let broker = CredentialBroker {
        backend: CredentialBackend::Embedded(Arc::clone(&keys)),
        endpoint_url: None,
        at_host: Some("http"),
        region: REGION.to_owned(),
        bucket: LOCAL_BUCKET.to_owned(),
    };
    let data = data_store(&home, folder.path());
    let mut dispatch =
        DispatchConfig { objects: Some(Arc::new(objects)), data: Some(data), ..DispatchConfig::default() };
    dispatch.credentials = Some(broker);
    change(&mut dispatch);
    let settings = dispatch.dags.clone();
    let mut config = ServerConfig { access, dispatch, s3: Some(s3), ..ServerConfig::default() };
    set(&mut config);
    let server = Server::start_with(home, Retention::default(), clock, |engine| {
        let keys =
            SharedTaskKeys::new(engine.clone(), TaskKeys::new("tenure", &TaskKeys::generate().unwrap()).unwrap());
        ServerConfig { task_keys: Some(Arc::new(keys)), ..config }
    })
    .await;
    let dags = server.engine.dags(settings);
    Plane { server, dags, objects: folder, keys }
}

/// The data store that goes with a store: a file beside the objects, or the same Postgres.
pub fn data_store(home: &Home, folder: &Path) -> Arc<dyn DataStore> {
    match home {
        Home::Sqlite(_) => Arc::new(tenure_data::Sqlite::new(folder.join("data.db"))),
        _ => Arc::new(tenure_data::Postgres::new(&home.url(), None).unwrap()),
    }
}

/// What a claim granted.
#[derive(Debug, Clone)]
pub struct Claim(pub Value);

impl Deref for Claim {
    type Target = Value;
    fn deref(&self) -> &Value {
        &self.0
    }
}

impl Claim {
    /// The part of a body that names the attempt.
    pub fn attempt(&self) -> Value {
        json!({"task_id": self["task_id"], "attempt": self["attempt"], "lease_token": self["lease_token"]})
    }

    pub fn with(&self, extra: Value) -> Value {
        let mut body = self.attempt();
        merge(&mut body, extra);
        body
    }

    pub fn token(&self) -> &str {
        self["capability_token"].as_str().unwrap()
    }

    pub fn task(&self) -> &str {
        self["task_id"].as_str().unwrap()
    }

    /// An output of the task, at a position.
    pub fn output(&self, index: usize, at: Value) -> Value {
        let output = &self["task"]["outputs"][index];
        let mut said = json!({
            "output_index": index, "dataset_uuid": output["dataset_uuid"], "dataset_version": output["dataset_version"],
            "location": "none:",
        });
        merge(&mut said, at);
        said
    }

    pub fn event(&self, index: usize, at: Value) -> Value {
        let output = &self["task"]["outputs"][index];
        let mut said = json!({"dataset_uuid": output["dataset_uuid"], "dataset_version": output["dataset_version"]});
        merge(&mut said, at);
        said
    }
}

impl Plane {
    pub async fn deploy(&self, yaml: &str) {
        let version = NewVersion { org: ORG, yaml, manual: false, dry_run: false };
        self.dags.deploy(version).await.unwrap();
    }

    /// Deploys as users do it.
    pub async fn deploy_text(&self, yaml: &str) -> Answer {
        self.send("/api/v1/dags", &[("Content-Type", "application/yaml")], yaml.to_owned()).await
    }

    /// Waits until this version of the chain is the active one.
    pub async fn active(&self, version: i64) {
        let is_active = async || {
            let view = self.dags.view(ORG).await.unwrap();
            view.deployment.dags.get("chain").and_then(|dag| dag.active) == Some(version)
        };
        wait_until("the version is active", SOON, is_active).await;
    }

    /// Fires the source of the chain.
    pub async fn fire(&self, request: &str) -> String {
        self.dags.trigger(ORG, "chain", "import", &request.into(), None).await.unwrap().task.to_string()
    }

    pub async fn internal(&self, call: &str, body: Value) -> Answer {
        let token = [("X-Trace-Worker-Token", TOKEN)];
        self.call(Method::POST, &format!("/internal/{call}"), &token, Some(&body)).await
    }

    pub async fn claim_answer(&self, task: &str) -> Value {
        self.internal("task-claim", json!({"task_id": task, "worker_id": WORKER})).await.ok()
    }

    /// What is due is ready a moment later.
    pub async fn claim(&self, task: &str) -> Claim {
        let answer = wait_until("the task is ready", SOON, async || {
            Some(self.claim_answer(task).await).filter(|answer| answer["reason"] != "NotReady")
        })
        .await;
        assert_eq!(answer["status"], "Claimed", "{answer}");
        Claim(answer)
    }

    /// Why a task is not claimed.
    pub async fn not_claimed(&self, task: &str) -> String {
        let answer = self.claim_answer(task).await;
        assert_eq!(answer["status"], "NotClaimed", "{answer}");
        answer["reason"].as_str().unwrap().to_owned()
    }

    /// As the code of the task.
    pub async fn as_task(&self, call: &str, token: &str, body: &Value) -> Answer {
        let token = [("X-Trace-Task-Capability", token)];
        self.call(Method::POST, &format!("/v1/task/{call}"), &token, Some(body)).await
    }

    pub async fn beat(&self, claim: &Claim) -> Answer {
        self.as_task("heartbeat", claim.token(), &claim.attempt()).await
    }

    pub async fn complete(&self, claim: &Claim, extra: Value) -> Answer {
        self.as_task("complete", claim.token(), &claim.with(extra)).await
    }

    pub async fn events(&self, claim: &Claim, events: Value) -> Answer {
        self.as_task("events", claim.token(), &claim.with(json!({"events": events}))).await
    }

    pub async fn fetch(&self, task: &str) -> Answer {
        let token = [("X-Trace-Worker-Token", TOKEN)];
        self.call(Method::GET, &format!("/internal/task-fetch?task_id={task}"), &token, None).await
    }

    /// The ids of the tasks of an operator, newest first, when there are so many.
    pub async fn nth(&self, operator: &str, count: usize) -> String {
        let path = format!("/api/v1/tasks?operator={operator}");
        let tasks = wait_until(operator, SOON, async || {
            let tasks = self.get(&path).await.ok()["items"].as_array().unwrap().clone();
            Some(tasks).filter(|tasks| tasks.len() >= count)
        })
        .await;
        assert_eq!(tasks.len(), count, "{operator}");
        tasks[0]["task_id"].as_str().unwrap().to_owned()
    }

    /// How many tasks of an operator there are now.
    pub async fn count(&self, operator: &str) -> usize {
        self.get(&format!("/api/v1/tasks?operator={operator}")).await.ok()["items"].as_array().unwrap().len()
    }
}
