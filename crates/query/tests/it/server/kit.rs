//! A server with a query process, datasets in files and in tables, and those who ask.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use datafusion::parquet::arrow::ArrowWriter;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;
use tenure_auth::{Secret, TaskKeys, WorkerAuth};
use tenure_data::DataStore;
use tenure_engine::store::{self, Clock};
use tenure_engine::{Engine, EngineConfig};
use tenure_objects::{Place, Settings};
use tenure_server::{
    Access, DispatchConfig, Live, QueryConfig, QueryPlace, QueryProcess, ServerConfig, SharedTaskKeys,
};
use tenure_testkit::{Database, Postgres, wait_until};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub const SOON: Duration = Duration::from_secs(120);
const TOKEN: &str = "worker-token-of-the-tests";

/// `blocks` is in files, `alerts` in a table; `decode` and `alert` read them.
pub const DAG: &str = "name: chain
jobs:
  - { name: import, activation: source, runtime: worker, operator: import, outputs: 1, source: { kind: manual } }
  - { name: second, activation: source, runtime: worker, operator: second, outputs: 1, source: { kind: manual } }
  - name: decode
    activation: reactive
    runtime: worker
    operator: decode
    outputs: 0
    execution_strategy: PerPartition
    inputs: [{ from: { job: import, output: 0 }, alias: raw, where: \"n < 100\" }]
  - name: alert
    activation: reactive
    runtime: worker
    operator: alert
    outputs: 0
    execution_strategy: PerUpdate
    inputs: [{ from: { dataset: alerts }, where: \"severity = 'critical'\" }]
publish:
  blocks: { from: { job: import, output: 0 } }
  alerts:
    from: [{ job: second, output: 0 }]
    storage: postgres
    write_mode: buffered
    schema:
      columns: [{ name: org_id, type: uuid, nullable: false }, { name: key, type: text, nullable: false }, { name: severity, type: text }, { name: n, type: int64 }]
      unique: [org_id, key]
";

pub struct Plane {
    pub url: String,
    pub engine: Engine,
    pub clock: Arc<Clock>,
    pub folder: TempDir,
    http: reqwest::Client,
    stop: CancellationToken,
    served: Option<tokio::task::JoinHandle<std::io::Result<()>>>,
    database: Option<Database>,
}

#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: reqwest::header::HeaderMap,
    pub body: Value,
}

impl Answer {
    #[track_caller]
    pub fn ok(self) -> Value {
        assert!(self.status.is_success(), "{} {}", self.status, self.body);
        self.body
    }

    #[track_caller]
    pub fn refused(self, status: u16, error: &str) -> Value {
        assert_eq!((self.status.as_u16(), self.body["error"].as_str()), (status, Some(error)), "{}", self.body);
        self.body
    }
}

pub async fn sqlite() -> Plane {
    plane(None, |_| {}).await
}

/// The store and the data store are the same Postgres.
pub async fn postgres() -> Plane {
    let prepare = async |url: &str| drop(store::postgres::Postgres::open(url, Arc::default()).await.unwrap());
    let database = Postgres::shared().await.prepared_database(prepare).await;
    plane(Some(database), |_| {}).await
}

pub fn own_process(folder: &Path) -> QueryProcess {
    QueryProcess {
        binary: env!("CARGO_BIN_EXE_tenure-query").into(),
        folder: folder.join("run"),
        at_once: 4,
        waiting: 16,
        memory_mib: 512,
        timeout: Duration::from_secs(300),
    }
}

pub async fn plane(database: Option<Database>, change: impl FnOnce(&mut ServerConfig)) -> Plane {
    let folder = tempfile::tempdir().unwrap();
    let url = match &database {
        Some(database) => database.url().to_owned(),
        None => format!("sqlite:{}", folder.path().join("tenure.db").display()),
    };
    let data: Arc<dyn DataStore> = match &database {
        Some(database) => Arc::new(tenure_data::Postgres::new(database.url(), None).unwrap()),
        None => Arc::new(tenure_data::Sqlite::new(folder.path().join("data.db"))),
    };
    let clock: Arc<Clock> = Arc::default();
    let engine = EngineConfig { clock: Arc::clone(&clock), ..EngineConfig::default() };
    let engine = Engine::open_with(&url, engine).await.unwrap();
    let place = Place::Folder { path: folder.path().join("objects"), allow_file: true };
    let objects = Settings::new(place).open().unwrap();
    let keys = TaskKeys::new("tenure", &TaskKeys::generate().unwrap()).unwrap();
    let workers = WorkerAuth { shared: Secret::new(TOKEN), ..WorkerAuth::default() };
    let mut config = ServerConfig {
        access: Live::new(Access { workers, ..Access::default() }),
        task_keys: Some(Arc::new(SharedTaskKeys::new(engine.clone(), keys))),
        dispatch: DispatchConfig { objects: Some(Arc::new(objects)), data: Some(data), ..DispatchConfig::default() },
        query: QueryConfig { place: QueryPlace::Own(own_process(folder.path())), ..QueryConfig::default() },
        ..ServerConfig::default()
    };
    change(&mut config);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let stop = CancellationToken::new();
    let stopped = stop.clone().cancelled_owned();
    let served = tokio::spawn(tenure_server::run(listener, engine.clone(), config, stopped));
    let http = reqwest::Client::builder().timeout(Duration::from_secs(300)).build().unwrap();
    Plane { url, engine, clock, folder, http, stop, served: Some(served), database }
}

impl Plane {
    pub async fn call(&self, method: Method, path: &str, headers: &[(&str, &str)], body: Option<&Value>) -> Answer {
        let mut request = self.http.request(method, format!("{}{path}", self.url));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await.unwrap();
        let (status, headers) = (response.status(), response.headers().clone());
        let text = response.text().await.unwrap();
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Answer { status, headers, body }
    }

    /// As a user of a tenant.
    pub async fn query_of(&self, tenant: &str, body: Value) -> Answer {
        self.call(Method::POST, "/api/v1/query", &[("X-Tenant-ID", tenant)], Some(&body)).await
    }

    pub async fn query(&self, sql: &str) -> Answer {
        self.query_of("default", json!({"sql": sql})).await
    }

    pub async fn rows(&self, sql: &str) -> Value {
        self.query(sql).await.ok()["rows"].clone()
    }

    pub async fn deploy(&self, tenant: &str, yaml: &str) {
        let request = self.http.post(format!("{}/api/v1/dags", self.url)).header("X-Tenant-ID", tenant);
        let answer = request.body(yaml.to_owned()).send().await.unwrap();
        let status = answer.status();
        assert!(status.is_success(), "{status} {}", answer.text().await.unwrap());
    }

    /// Publishes rows to `alerts` and waits until they can be read.
    pub async fn publish(&self, tenant: &str, rows: Vec<Value>) {
        let count = async || {
            self.query_of(tenant, json!({"sql": "SELECT count(*) FROM alerts"})).await.ok()["rows"][0][0]
                .as_u64()
                .unwrap()
        };
        let wanted = count().await + rows.len() as u64;
        let headers = [("X-Tenant-ID", tenant)];
        let body = json!({"records": rows});
        self.call(Method::POST, "/api/v1/buffers/alerts/publish", &headers, Some(&body)).await.ok();
        wait_until("the rows are written", SOON, async || count().await == wanted).await;
    }

    pub async fn trigger(&self, tenant: &str, job: &str, request: &str) -> String {
        let path = format!("/api/v1/dags/chain/jobs/{job}/trigger");
        let body = json!({"request_id": request});
        let answer = self.call(Method::POST, &path, &[("X-Tenant-ID", tenant)], Some(&body)).await.ok();
        answer["task_id"].as_str().unwrap().to_owned()
    }

    pub async fn claim(&self, task: &str) -> Value {
        let body = json!({"task_id": task, "worker_id": "w"});
        let headers = [("X-Trace-Worker-Token", TOKEN)];
        let answer = wait_until("the task is ready", SOON, async || {
            let answer = self.call(Method::POST, "/internal/task-claim", &headers, Some(&body)).await.ok();
            Some(answer).filter(|answer| answer["reason"] != "NotReady")
        })
        .await;
        assert_eq!(answer["status"], "Claimed", "{answer}");
        answer
    }

    pub async fn as_task(&self, claim: &Value, call: &str, body: Value) -> Answer {
        let token = claim["capability_token"].as_str().unwrap();
        let headers = [("X-Trace-Task-Capability", token)];
        self.call(Method::POST, &format!("/v1/task/{call}"), &headers, Some(&body)).await
    }

    /// The newest task of an operator, when there are so many.
    pub async fn nth(&self, operator: &str, count: usize) -> String {
        let path = format!("/api/v1/tasks?operator={operator}");
        let tasks = wait_until(operator, SOON, async || {
            let tasks = self.call(Method::GET, &path, &[], None).await.ok()["items"].as_array().unwrap().clone();
            Some(tasks).filter(|tasks| tasks.len() >= count)
        })
        .await;
        tasks[0]["task_id"].as_str().unwrap().to_owned()
    }

    /// Commits a partition of `blocks` with rows from `start` to `end`. Returns the folder that it is in.
    pub async fn import(&self, tenant: &str, start: i64, end: i64) -> PathBuf {
        let task = self.trigger(tenant, "import", &format!("{start}")).await;
        let claim = self.claim(&task).await;
        let location = claim["task"]["outputs"][0]["staging_prefix"].as_str().unwrap();
        self.commit(&claim, tenant, location, start, end).await
    }

    /// The same at another place, for a task that was claimed.
    pub async fn commit(&self, claim: &Value, tenant: &str, location: &str, start: i64, end: i64) -> PathBuf {
        let output = &claim["task"]["outputs"][0];
        let folder = PathBuf::from(location.strip_prefix("file://").unwrap());
        std::fs::create_dir_all(&folder).unwrap();
        write_blocks(&folder.join(format!("blocks_{start}_{end}.parquet")), start, end, tenant);
        std::fs::write(folder.join("_SUCCESS"), "").unwrap();
        let body = json!({"task_id": claim["task_id"], "attempt": 1, "lease_token": claim["lease_token"],
            "status": "Completed", "outputs": [{"output_index": 0, "dataset_uuid": output["dataset_uuid"],
                "dataset_version": output["dataset_version"], "location": location,
                "partition_key": format!("{start}-{end}"), "start": start, "end": end}]});
        self.as_task(claim, "complete", body).await.ok();
        folder
    }

    /// Makes the store refuse records of queries, or accept them again.
    pub async fn refuse_records(&self, refuse: bool) {
        match &self.database {
            None => {
                let file = rusqlite::Connection::open(self.folder.path().join("tenure.db")).unwrap();
                file.busy_timeout(SOON).unwrap();
                let sql = if refuse {
                    "CREATE TRIGGER no BEFORE INSERT ON query_audit BEGIN SELECT RAISE(ABORT, 'no'); END"
                } else {
                    "DROP TRIGGER no"
                };
                file.execute_batch(sql).unwrap();
            }
            Some(database) => {
                let (client, connection) =
                    tokio_postgres::connect(database.url(), tokio_postgres::NoTls).await.unwrap();
                tokio::spawn(connection);
                let sql = if refuse {
                    "ALTER TABLE query_audit ADD CONSTRAINT no CHECK (row_count < 0) NOT VALID"
                } else {
                    "ALTER TABLE query_audit DROP CONSTRAINT no"
                };
                client.batch_execute(sql).await.unwrap();
            }
        }
    }

    /// The record of a query.
    pub async fn audited(&self, query: &Value) -> Option<store::QueryAuditRow> {
        self.engine.identity().query_audit(query["query_id"].as_str().unwrap()).await.unwrap()
    }

    /// The process that answers queries now.
    pub fn process(&self) -> Option<i32> {
        let socket = self.folder.path().join("run/query-0/query.sock").to_str().unwrap().to_owned();
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let mut ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        ids.find(|id| {
            let line = std::fs::read_to_string(format!("/proc/{id}/cmdline")).unwrap_or_default();
            line.split('\0').any(|word| word == socket) && line.contains("tenure-query")
        })
    }

    pub async fn stop(&mut self) {
        self.stop.cancel();
        if let Some(served) = self.served.take() {
            served.await.unwrap().unwrap();
        }
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

pub fn write_blocks(path: &Path, start: i64, end: i64, owner: &str) {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(start..=end));
    let owners: ArrayRef = Arc::new(StringArray::from_iter_values((start..=end).map(|_| owner)));
    let batch = RecordBatch::try_from_iter([("n", numbers), ("owner", owners)]).unwrap();
    let mut writer = ArrowWriter::try_new(std::fs::File::create(path).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

/// All files below a folder.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.flatten().map(|entry| entry.path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

pub fn alert(key: &str, severity: &str, n: i64) -> Value {
    json!({"key": key, "severity": severity, "n": n})
}

/// A test of each case for each data store.
macro_rules! on_both {
    ($($case:ident),+ $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() { super::$case(super::kit::sqlite().await).await; })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() { super::$case(super::kit::postgres().await).await; })+
        }
    };
}
pub(super) use on_both;
