//! No secret is seen where it does not belong: in logs, metrics, answers, audits, outputs, command lines, the store.

use std::io::{Read, Write};
use std::net::TcpListener;

use serde_json::json;
use tenure_testkit::{Child, Postgres};

use crate::security::kit::Desk;
use crate::security::secrets::{Day, ISSUER, QUEUE, UNKNOWN_KEY};

/// What others than the server print: commands for operators, a worker, clients.
async fn run_commands(day: &mut Day<'_>, desk: &Desk) {
    let url = day.server.url().to_owned();
    let data = day.server.data().to_str().unwrap().to_owned();
    let here = ["--config", "tenure.yaml", "--data", &data];
    day.command("config show", &[&["config", "show"], &here[..]].concat(), 0).await;
    day.command("config show --json", &[&["config", "show", "--json"], &here[..]].concat(), 0).await;
    day.command("config lint", &[&["config", "lint"], &here[..]].concat(), 0).await;
    day.command("config lint --production", &[&["config", "lint", "--production"], &here[..]].concat(), 1).await;
    let key = [&["--server", &url, "--api-key-file", "auth.api_key_file"], &here[..]].concat();
    day.command("doctor", &[&["doctor"], &key[..]].concat(), 0).await;
    let to = ["--server", &url, "--api-key-file", "auth.api_key_file"];
    day.command("whoami", &[&["whoami"], &to[..]].concat(), 0).await;
    day.command("task list", &[&["task", "list"], &to[..]].concat(), 0).await;
    let wrong = day.secrets.canaries.plant("a wrong key in a file");
    desk.file("wrong", &wrong);
    day.command("task list", &["task", "list", "--server", &url, "--api-key-file", "wrong"], 4).await;
    for name in ["userinfo", "query"] {
        let secret = day.secrets.canaries.plant(&format!("{name} of a server's address"));
        let host = url.strip_prefix("http://").unwrap();
        let address = match name {
            "userinfo" => format!("http://user:{secret}@{host}"),
            _ => format!("{url}?token={secret}"),
        };
        let mut command = desk.command(&["task", "list", "--api-key-file", "auth.api_key_file"]);
        day.secrets.prepare(&mut command);
        command.env("TENURE_SERVER", address);
        let output = crate::security::kit::finish(command).await;
        day.places.add_output(&format!("a command with {name} in the address"), &output);
    }
}

/// A worker that logs all it can runs tasks, one of which calls an address with a password.
async fn run_worker(day: &mut Day<'_>, desk: &Desk) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}");
        }
    });
    desk.file("boot", &day.secrets.bootstrap);
    let url = day.server.url().to_owned();
    let mut command = desk.command(&["worker", "--server", &url, "--queue", "q", "--id", "w-boot"]);
    command.args([
        "--bootstrap-key-file",
        "boot",
        "--operator",
        "run=cat",
        "--operator",
        "http",
        "--config",
        "tenure.yaml",
    ]);
    day.secrets.prepare(&mut command);
    let mut worker = Child::spawn(command);
    let user = day.user();
    let secrets = &mut day.secrets.canaries;
    let mut submitted = Vec::new();
    for operator in ["echo", "run", "fail"] {
        let payload =
            json!({"message": "as told", "retryable": false, "secret": secrets.plant_stored("a worker's payload")});
        submitted.push(user.submit(operator, &payload).await);
    }
    let (password, query, header) = (
        secrets.plant_stored("the password of an address"),
        secrets.plant_stored("the query of an address"),
        secrets.plant_stored("a header of a call"),
    );
    for address in [format!("http://u:{password}@{host}/x"), format!("http://{host}/x?token={query}")] {
        let payload = json!({"url": address, "headers": {"Authorization": format!("Bearer {header}")}});
        let task = json!({"queue": "q", "operator": "http", "payload": payload, "max_attempts": 1});
        let said = user.post("/api/v1/tasks", &task).await.json();
        submitted.push(said["task_id"].as_str().unwrap().to_owned());
    }
    for task in submitted {
        user.until_ended(&task).await;
    }
    day.places.add_command_line("the worker", worker.pid());
    worker.terminate().await;
    day.places.add_output("the worker", &worker.output());
}

/// What the server tells those who look after it.
async fn look(day: &mut Day<'_>) {
    let admin = day.admin();
    for path in [
        "/metrics",
        "/api/v1/metrics/prometheus",
        "/api/v1/admin/audit?limit=500",
        "/api/v1/admin/audit?limit=500&format=csv",
        "/api/v1/audit?limit=500",
        "/api/v1/audit?limit=500&format=csv",
        "/api/v1/admin/api-keys",
        "/api/v1/admin/worker-tokens/revocations",
        "/api/v1/queues",
        "/api/v1/health",
        "/internal/jwks/task",
    ] {
        let said = admin.get(path).await;
        assert_eq!(said.status, 200, "{path}: {said:?}");
        day.places.add(path, said.text);
    }
}

async fn spend(desk: &Desk, database: &str, format: &str) {
    let mut day = Day::begin(desk, database, format).await;
    day.work().await;
    day.administer().await;
    day.be_refused().await;
    run_worker(&mut day, desk).await;
    day.reload().await;
    run_commands(&mut day, desk).await;
    look(&mut day).await;
    day.server.terminate().await;
    let output = day.server.output();
    day.places.add_output("the server", &output);
    day.places.add_store(day.server.data());

    // The search finds what is there.
    for (place, text) in [
        ("stderr of the server", UNKNOWN_KEY),
        // At the level debug.
        ("stderr of the server", "worker token refused"),
        ("stderr of the worker", "w-boot"),
        ("stdout of config show", ISSUER),
        ("/metrics", QUEUE),
        ("/api/v1/admin/audit?limit=500", "/api/v1/admin/api-keys"),
        ("/api/v1/admin/audit?limit=500&format=csv", "/api/v1/admin/api-keys"),
        ("command line of the server", "tenure.yaml"),
        ("command line of the worker", "w-boot"),
    ] {
        day.places.assert_found(place, text);
    }
    if database.is_empty() {
        day.places.assert_found("tenure.db", QUEUE);
    }
    let canaries = &day.secrets.canaries;
    assert!(canaries.count() >= 40, "only {} secrets", canaries.count());
    let leaks = canaries.leaks(&day.places);
    assert!(leaks.is_empty(), "{} leaks\n{}", leaks.len(), leaks.join("\n\n"));
}

#[tokio::test]
async fn no_secret_is_seen_with_sqlite_and_json_logs() {
    spend(&Desk::new(), "", "json").await;
}

#[tokio::test]
async fn no_secret_is_seen_with_postgres_and_logs_for_people() {
    let desk = Desk::new();
    let database = Postgres::shared().await.database().await;
    let dsn = database.url().replace("postgres@", "postgres:DSN_PASSWORD@");
    assert!(dsn.contains("DSN_PASSWORD"), "{dsn}");
    spend(&desk, &format!("database: {{driver: postgres, dsn: '{dsn}'}}"), "pretty").await;
}
