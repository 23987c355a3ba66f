//! `tenure query` against a server that answers as the tests need it, and its shell on a terminal of its own.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use nix::pty::{Winsize, openpty};
use serde_json::{Value, json};
use tenure_testkit::{Child, Output, wait_until_blocking};

use crate::commands::kit::{Home, SOON, code, finish};

/// What it was asked, and a home for who asks.
struct Site {
    home: Home,
    url: String,
    asked: Arc<Mutex<Vec<Value>>>,
}

impl Site {
    async fn new() -> Self {
        let asked: Arc<Mutex<Vec<Value>>> = Arc::default();
        let app = Router::new()
            .route("/api/v1/query", post(query))
            .route("/api/v1/query/q/result", get(async || "n,x\r\n1,a\r\n"))
            .route("/api/v1/datasets", get(datasets))
            .route("/api/v1/datasets/{name}", get(dataset))
            .with_state(Arc::clone(&asked));
        let listener = tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { home: Home::new(), url, asked }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.home.command(&[&["query"], args].concat());
        command.env("TENURE_SERVER", &self.url).env("TENURE_DATA", self.home.path()).stdin(Stdio::null());
        command
    }

    async fn run(&self, args: &[&str]) -> Output {
        finish(self.command(args)).await
    }

    async fn piped(&self, args: &[&str], text: &str) -> Output {
        let mut command = self.command(args);
        let (from, mut to) = std::io::pipe().unwrap();
        to.write_all(text.as_bytes()).unwrap();
        drop(to);
        command.stdin(from);
        finish(command).await
    }

    fn asked(&self) -> Vec<Value> {
        self.asked.lock().unwrap().clone()
    }
}

async fn query(State(asked): State<Arc<Mutex<Vec<Value>>>>, Json(body): Json<Value>) -> Response {
    asked.lock().unwrap().push(body.clone());
    let sql = body["sql"].as_str().unwrap();
    if sql.contains("other") {
        let message = "line 2, column 6: the relation 'other' is none of the datasets of this query";
        let error = json!({"code": "BAD_REQUEST", "error": "invalid_sql", "message": message, "request_id": "r"});
        return (StatusCode::BAD_REQUEST, Json(error)).into_response();
    }
    if sql.contains("endless") {
        std::future::pending::<()>().await;
    }
    if body["export"] == true {
        return Json(json!({"mode": "export", "delivery": "export", "query_id": "q", "output_location": "s3://b/q/",
            "format": body["format"], "row_count": 1, "bytes": 10, "expires_at": "2099-01-01T00:00:00Z",
            "result_url": "/api/v1/query/q/result"}))
        .into_response();
    }
    Json(json!({"mode": "inline", "delivery": "inline", "query_id": "q", "row_count": 2, "duration_ms": 3,
        "truncated": sql.contains("many"), "columns": [{"name": "n", "type": "int64"}, {"name": "x", "type": "text"}],
        "rows": [[7, "a\tb"], [null, null]]}))
    .into_response()
}

async fn datasets() -> Json<Value> {
    let one = |name: &str| {
        json!({"dataset_uuid": name, "name": name, "storage": "postgres", "write_mode": "buffered", "current_version": null,
            "cursor": null, "producer": {"dag": "d", "job": "j", "output_index": 0}})
    };
    Json(json!({"items": [one("alerts"), one("raw_logs")], "next_cursor": null}))
}

async fn dataset(Path(name): Path<String>) -> Response {
    if name != "alerts" {
        let error =
            json!({"code": "NOT_FOUND", "error": "dataset_not_found", "message": "no dataset", "request_id": "r"});
        return (StatusCode::NOT_FOUND, Json(error)).into_response();
    }
    Json(json!({"dataset_uuid": "alerts", "name": "alerts", "storage": "postgres", "write_mode": "buffered",
        "current_version": null, "producer": {"dag": "d", "job": "j", "output_index": 0},
        "schema": {"columns": [{"name": "severity", "type": "text"}, {"name": "seen", "type": "timestamptz"}]},
        "versions": [], "cursor": {"produced": null, "consumers": []},
        "partitions": {"items": [], "next_cursor": null}, "lineage": {"upstream": [], "downstream": []}}))
    .into_response()
}

const TABLE: &str = "   n  x\n   7  a b\nNULL  NULL\n";

#[tokio::test]
async fn rows_are_a_table_however_the_sql_comes() {
    let site = Site::new().await;
    let shown = site.run(&["SELECT 1", "--dataset", "alerts", "--limit", "5", "--timeout", "9s"]).await;
    assert_eq!((code(&shown), shown.stdout.as_str(), shown.stderr.as_str()), (0, TABLE, ""));
    assert_eq!(site.asked()[0], json!({"sql": "SELECT 1", "datasets": ["alerts"], "limit": 5, "timeout_seconds": 9}));
    let file = site.home.path().join("q.sql");
    std::fs::write(&file, "SELECT 2\n").unwrap();
    assert_eq!(site.run(&["--file", file.to_str().unwrap()]).await.stdout, TABLE);
    assert_eq!(site.piped(&[], "SELECT 3").await.stdout, TABLE);
    assert_eq!(site.piped(&["-"], "SELECT 4").await.stdout, TABLE);
    let asked: Vec<Value> = site.asked().into_iter().map(|body| body["sql"].clone()).collect();
    assert_eq!(asked, ["SELECT 1", "SELECT 2\n", "SELECT 3", "SELECT 4"]);
}

#[tokio::test]
async fn rows_that_are_left_out_are_told_with_the_way_to_get_them() {
    let site = Site::new().await;
    let cut = site.run(&["SELECT many"]).await;
    assert_eq!((code(&cut), cut.stdout.as_str()), (0, TABLE));
    assert!(cut.stderr.contains("--limit shows up to 10000 rows") && cut.stderr.contains("--csv FILE"), "{cut:?}");
}

#[tokio::test]
async fn an_error_points_at_its_place() {
    let site = Site::new().await;
    let refused = site.run(&["SELECT 1\nFROM other"]).await;
    assert_eq!(code(&refused), 2, "{refused:?}");
    let expected = "error: line 2, column 6: the relation 'other' is none of the datasets of this query\n  2 | FROM other\n    |      ^\n";
    assert_eq!(refused.stderr, expected);
}

#[tokio::test]
async fn a_whole_result_goes_to_a_file_or_to_standard_output() {
    let site = Site::new().await;
    let file = site.home.path().join("out.csv");
    let wrote = site.run(&["SELECT 1", "--csv", file.to_str().unwrap()]).await;
    assert_eq!((code(&wrote), wrote.stdout.as_str()), (0, ""), "{wrote:?}");
    assert!(wrote.stderr.starts_with("1 row, 10 B in "), "{wrote:?}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "n,x\r\n1,a\r\n");
    for (flag, format) in [("--csv", "csv"), ("--json", "json"), ("--parquet", "parquet")] {
        let wrote = site.run(&["SELECT 1", flag, "-"]).await;
        assert_eq!((code(&wrote), wrote.stdout.as_str(), wrote.stderr.as_str()), (0, "n,x\r\n1,a\r\n", ""));
        assert_eq!(site.asked().last().unwrap()["format"], format);
    }
    let nowhere = site.run(&["SELECT 1", "--csv", "/nowhere/out.csv"]).await;
    assert!(code(&nowhere) != 0 && nowhere.stderr.contains("/nowhere/out.csv could not be written"), "{nowhere:?}");
    assert!(nowhere.stderr.contains("s3://b/q/"), "where the result still is: {nowhere:?}");
    let both = site.run(&["SELECT 1", "--csv", "-", "--json", "-"]).await;
    let limited = site.run(&["SELECT 1", "--csv", "-", "--limit", "5"]).await;
    assert_eq!((code(&both), code(&limited)), (2, 2));
}

#[tokio::test]
async fn without_sql_and_without_a_terminal_it_says_what_to_do() {
    let site = Site::new().await;
    for refused in [site.run(&[]).await, site.piped(&[], " \n").await, site.run(&["", "--csv", "-"]).await] {
        assert_eq!((code(&refused), refused.stdout.as_str()), (2, ""), "{refused:?}");
        assert!(refused.stderr.contains("there is no SQL") && refused.stderr.contains("--file FILE"), "{refused:?}");
    }
    let missing = site.run(&["--file", "nowhere.sql"]).await;
    assert!(code(&missing) == 2 && missing.stderr.contains("nowhere.sql could not be read"), "{missing:?}");
    assert!(site.asked().is_empty());
}

/// A terminal with a process in it.
struct Terminal {
    master: std::fs::File,
    seen: Arc<Mutex<String>>,
    child: Child,
}

impl Terminal {
    /// `setsid` makes the terminal the one that Ctrl-C is pressed on.
    fn new(site: &Site, args: &[&str]) -> Self {
        let size = Winsize { ws_row: 40, ws_col: 60, ws_xpixel: 0, ws_ypixel: 0 };
        let pair = openpty(Some(&size), None::<&nix::sys::termios::Termios>).unwrap();
        let inner = site.command(args);
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait"]).arg(inner.get_program()).args(inner.get_args());
        for (name, value) in inner.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let slave = |fd: &OwnedFd| Stdio::from(fd.try_clone().unwrap());
        command.env("TERM", "xterm").current_dir(site.home.path());
        command.stdin(slave(&pair.slave)).stdout(slave(&pair.slave)).stderr(slave(&pair.slave));
        let child = Child::spawn(command);
        let master = std::fs::File::from(pair.master);
        let (mut reader, seen) = (master.try_clone().unwrap(), Arc::new(Mutex::new(String::new())));
        let all = Arc::clone(&seen);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                all.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        });
        Self { master, seen, child }
    }

    fn type_in(&mut self, text: &str) {
        self.master.write_all(text.as_bytes()).unwrap();
    }

    /// Types when it is asked for something.
    fn enter(&mut self, text: &str) {
        self.until("tenure> ");
        self.type_in(text);
    }

    /// What was shown up to there is forgotten.
    fn until(&self, text: &str) {
        wait_until_blocking(&format!("{text:?} is shown"), SOON, || {
            let mut seen = self.seen.lock().unwrap();
            let found = seen.find(text).map(|at| at + text.len());
            if let Some(end) = found {
                seen.drain(..end);
            }
            found.is_some()
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_terminal_it_is_a_shell() {
    let site = Site::new().await;
    let mut shell = Terminal::new(&site, &[]);
    shell.enter("SELECT n,\r");
    shell.type_in("x FROM alerts;\r");
    shell.until("2 rows, 3 ms");
    assert_eq!(site.asked()[0]["sql"], "SELECT n,\nx FROM alerts;");
    // Names of datasets and columns are completed.
    shell.enter("SELECT sev\t FROM al\t;\r");
    shell.until("2 rows");
    assert_eq!(site.asked()[1]["sql"], "SELECT sev FROM alerts;", "no dataset was named yet");
    shell.enter("SELECT 1 FROM alerts WHERE sev\t = 'x';\r");
    shell.until("2 rows");
    assert_eq!(site.asked()[2]["sql"], "SELECT 1 FROM alerts WHERE severity = 'x';");
    shell.enter("\\d\r");
    shell.until("raw_logs");
    shell.enter("\\d alerts\r");
    shell.until("timestamptz");
    shell.enter("\\d nothing\r");
    shell.until("no dataset");
    shell.enter("\\limit 10001\r");
    shell.until("from 1 to 10000");
    shell.enter("\\nonsense\r");
    shell.until("there is no command");
    shell.enter("SELECT 1\nFROM other;\r");
    shell.until("|      ^");
    // Ctrl-C ends what is written, and then what runs.
    shell.enter("SELECT half\x03");
    shell.enter("SELECT endless;\r");
    wait_until_blocking("the query runs", SOON, || site.asked().iter().any(|body| body["sql"] == "SELECT endless;"));
    shell.type_in("\x03");
    shell.until("Canceled.");
    shell.enter("\\q\r");
    assert!(shell.child.wait(SOON).await.success());
    let history = std::fs::read_to_string(site.home.path().join("query_history")).unwrap();
    assert!(history.contains("FROM alerts WHERE severity"), "{history}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_fits_the_terminal() {
    let site = Site::new().await;
    let mut shown = Terminal::new(&site, &["SELECT 1"]);
    shown.until("2 rows, 3 ms");
    assert!(shown.child.wait(SOON).await.success());
    let refused = Terminal::new(&site, &["SELECT 1", "--parquet", "-"]);
    refused.until("Parquet is not for a terminal");
}
