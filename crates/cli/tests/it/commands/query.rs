//! `tenure query` against a server that answers as the tests need it.

mod shell;

use std::io::Write;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tenure_testkit::Output;

use crate::commands::kit::{Home, code, finish};

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
