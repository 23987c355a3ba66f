//! A wall clock that is set while a server on SQLite runs, and while it is down.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tenure_testkit::{Child, Tenure, skip, wait_until};

const PATIENCE: Duration = Duration::from_secs(60);

/// The library that answers programs with another wall clock.
fn faketime() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").ok()?.flatten().map(|entry| entry.path());
    folders.map(|folder| folder.join("faketime/libfaketimeMT.so.1")).find(|library| library.exists())
}

struct Site {
    folder: tempfile::TempDir,
    http: reqwest::Client,
    server: Option<Child>,
    url: String,
}

impl Site {
    async fn start(library: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let http = reqwest::Client::builder().timeout(PATIENCE).build().unwrap();
        let mut site = Self { folder, http, server: None, url: String::new() };
        site.set_wall_clock("+0");
        site.start_again(library).await;
        site
    }

    async fn start_again(&mut self, library: &Path) {
        let data = self.folder.path().join("data");
        let mut command = Tenure::command(&["serve", "--listen", "127.0.0.1:0"]);
        command.arg("--data").arg(data).env("LD_PRELOAD", library).env("FAKETIME_NO_CACHE", "1");
        command.env("FAKETIME_TIMESTAMP_FILE", self.folder.path().join("clock"));
        command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("DONT_FAKE_MONOTONIC", "1");
        let mut server = Child::spawn(command);
        let line = server.wait_for_stdout("tenure listening on ", PATIENCE).await;
        self.url = line.trim().rsplit(' ').next().unwrap().to_owned();
        self.server = Some(server);
    }

    /// As an offset from the real one.
    fn set_wall_clock(&self, offset: &str) {
        // In one step: a half-written file is not a valid offset.
        let new = self.folder.path().join("clock.new");
        std::fs::write(&new, offset).unwrap();
        std::fs::rename(new, self.folder.path().join("clock")).unwrap();
    }

    async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let token = std::fs::read_to_string(self.folder.path().join("data/worker-token")).unwrap();
        let request = self.http.post(format!("{}{path}", self.url)).header("X-Worker-Token", token.trim());
        let response = request.json(body).send().await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap_or_default())
    }

    async fn get(&self, path: &str) -> String {
        self.http.get(format!("{}{path}", self.url)).send().await.unwrap().text().await.unwrap()
    }

    async fn submit(&self, queue: &str, extra: Value) -> String {
        let mut task = json!({"queue": queue, "operator": "op", "retry": {"initial_backoff_ms": 0}});
        task.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let (status, answer) = self.post("/api/v1/tasks", &task).await;
        assert_eq!(status, 201, "{answer}");
        answer["task_id"].as_str().unwrap().to_owned()
    }

    async fn claim(&self, queue: &str) -> Value {
        let claim = json!({"worker_id": "w", "streams": [queue], "max_wait_ms": 20_000});
        let (status, job) = self.post("/internal/worker/claim", &claim).await;
        assert_eq!((status, &job["claimed"]), (200, &json!(true)), "{job}");
        job
    }

    async fn state(&self, id: &str) -> String {
        let task: Value = serde_json::from_str(&self.get(&format!("/api/v1/tasks/{id}")).await).unwrap();
        task["state"].as_str().unwrap().to_owned()
    }

    async fn beat(&self, job: &Value) -> u16 {
        let beat = json!({"worker_id": "w", "job_id": job["job_id"], "lease_token": job["lease_token"]});
        self.post("/internal/worker/heartbeat", &beat).await.0
    }

    /// By how many seconds the metric says that the wall clock is ahead.
    async fn offset(&self) -> f64 {
        let metrics = self.get("/metrics").await;
        let line = metrics.lines().find_map(|line| line.strip_prefix("tenure_clock_offset_seconds "));
        line.unwrap_or_else(|| panic!("{metrics}")).parse().unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wall_clock_that_is_set_stops_nothing_and_ends_no_lease() {
    let Some(library) = faketime() else {
        skip("a_wall_clock_that_is_set_stops_nothing_and_ends_no_lease", "faketime is not installed");
        return;
    };
    let mut site = Site::start(&library).await;
    let held = site.submit("held", json!({"lease_ttl_seconds": 60})).await;
    let job = site.claim("held").await;
    let later = site.submit("later", json!({"delay_ms": 1_800_000})).await;
    assert!(site.offset().await.abs() < 1.0);

    // Delays and leases end although the wall clock has to catch up for an hour.
    site.set_wall_clock("-1h");
    site.submit("soon", json!({"delay_ms": 300})).await;
    site.claim("soon").await;
    site.submit("lost", json!({"lease_ttl_seconds": 1})).await;
    site.claim("lost").await;
    assert_eq!(site.claim("lost").await["attempt"], 2, "the first lease has run out");
    assert_eq!(site.beat(&job).await, 200);
    assert!((-3_700.0..-3_500.0).contains(&site.offset().await));
    let server = site.server.as_mut().unwrap();
    let warning = server.wait_for_stderr("the wall clock was set", PATIENCE).await;
    assert!(warning.contains("-3"), "{warning}");

    // Nothing ends early although the wall clock says that it has.
    site.set_wall_clock("+1h");
    wait_until("the server has seen it", PATIENCE, async || site.offset().await > 3_000.0).await;
    assert_eq!((site.state(&held).await, site.state(&later).await), ("Running".into(), "Scheduled".into()));
    assert_eq!(site.beat(&job).await, 200);

    // A server that starts before the time at which it was last alive goes on from there.
    site.server.take().unwrap().kill();
    site.set_wall_clock("-1h");
    site.start_again(&library).await;
    site.submit("again", json!({"delay_ms": 300})).await;
    site.claim("again").await;
    assert_eq!(site.beat(&job).await, 200, "the lease has outlived it");

    // A server that starts after a step forward sees an outage: leases have their grace.
    site.server.take().unwrap().kill();
    site.set_wall_clock("+1h");
    site.start_again(&library).await;
    assert_eq!(site.beat(&job).await, 200);
}
