//! `tenure doctor`

use std::os::unix::fs::PermissionsExt;

use serde_json::Value;
use tenure_testkit::{Moto, Output, Postgres, Redis, Tenure};

use crate::commands::kit::{Home, Site, code, finish};

/// Status and message of one check.
fn finding(output: &Output, check: &str) -> (String, String) {
    let findings: Vec<Value> = serde_json::from_str(&output.stdout).expect("doctor prints JSON");
    let found = findings.iter().find(|finding| finding["check"] == check);
    let found = found.unwrap_or_else(|| panic!("no {check} in {}", output.stdout));
    let text = |name: &str| found[name].as_str().unwrap_or_default().to_owned();
    (text("status"), text("message"))
}

/// What `run` finds, or finds the second time if the first time not all of `checks` are well: an answer that is read late
/// looks like a clock that is wrong.
async fn examined(checks: &[&str], run: impl AsyncFn() -> Output) -> Output {
    let output = run().await;
    match code(&output) == 0 && checks.iter().all(|check| finding(&output, check).0 == "ok") {
        true => output,
        false => run().await,
    }
}

#[tokio::test]
async fn a_machine_with_nothing_on_it_is_well() {
    let home = Home::new();
    let output = home.run(&["doctor"]).await;
    assert_eq!(code(&output), 0, "{output:?}");
    assert!(output.stdout.contains("[ok] config: no file, using the defaults"), "{}", output.stdout);
    assert!(output.stdout.contains("[ok] store: "), "{}", output.stdout);
    assert!(!home.path().join(".tenure").exists(), "it changed something");
}

#[tokio::test]
async fn a_running_server_is_found_well() {
    let site = Site::new().await;
    let checks = [
        "config",
        "data folder",
        "disk space",
        "worker token",
        "store",
        "server",
        "version",
        "server clock",
        "API key",
    ];
    let output = examined(&checks, async || site.run(&["doctor", "--json"]).await).await;
    assert_eq!(code(&output), 0, "{output:?}");
    for check in checks {
        assert_eq!(finding(&output, check).0, "ok", "{check}");
    }
    assert!(finding(&output, "store").1.contains("a server has it open"));
}

#[tokio::test]
async fn what_is_wrong_fails_with_a_remedy() {
    let home = Home::new();
    let data = home.path().join(".tenure");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("worker-token"), "t").unwrap();
    std::fs::set_permissions(data.join("worker-token"), PermissionsExt::from_mode(0o644)).unwrap();
    std::fs::write(data.join("tenure.db"), "this is no database at all, whatever its name says").unwrap();
    let args = ["doctor", "--server", "http://127.0.0.1:1", "--json"];
    let output = home.run(&args).await;
    assert_eq!(code(&output), 1);
    for check in ["worker token", "store", "server"] {
        assert_eq!(finding(&output, check).0, "fail", "{check}");
    }
    let text = home.run(&["doctor"]).await;
    assert!(
        text.stdout.contains("[fail] worker token: other users can read")
            && text.stdout.contains("\n      fix: chmod 600"),
        "{}",
        text.stdout
    );

    std::fs::write(home.path().join("tenure.yaml"), "sevrer: {}\n").unwrap();
    let output = home.run(&args).await;
    assert_eq!(code(&output), 1);
    assert!(finding(&output, "config").1.contains("did you mean `server`?"), "{output:?}");
}

#[tokio::test]
async fn postgres_is_looked_at_and_left_alone() {
    let home = Home::new();
    let database = Postgres::shared().await.database().await;
    let checks = ["fsync", "synchronous_commit", "store clock"];
    let examine = async || home.run(&["doctor", "--store", database.url(), "--json"]).await;
    let output = examined(&checks, examine).await;
    assert_eq!(code(&output), 0, "{output:?}");
    assert!(finding(&output, "store").1.contains("is empty"), "{output:?}");
    for check in checks {
        assert_eq!(finding(&output, check).0, "ok", "{check}");
    }
    finding(&output, "autovacuum_naptime");
    let again = home.run(&["doctor", "--store", database.url(), "--json"]).await;
    assert!(finding(&again, "store").1.contains("is empty"), "it made tables: {again:?}");
}

#[tokio::test]
async fn a_postgres_that_is_not_there_fails_without_its_password() {
    let home = Home::new();
    let output = home.run(&["doctor", "--store", "postgres://u:hunter2@127.0.0.1:1/d", "--json"]).await;
    assert_eq!(code(&output), 1);
    assert_eq!(finding(&output, "store").0, "fail");
    assert!(!format!("{output:?}").contains("hunter2"), "{output:?}");
}

/// A server of this configuration, and a home in which the same file is found.
async fn configured(config: &str) -> Site {
    let home = Home::new();
    let file = home.path().join("tenure.yaml");
    std::fs::write(&file, config).unwrap();
    let server = Tenure::serve_with(&["--config", file.to_str().unwrap()], |command| {
        command.envs(AWS);
    })
    .await;
    Site { server, home }
}

const AWS: [(&str, &str); 2] = [("AWS_ACCESS_KEY_ID", "access"), ("AWS_SECRET_ACCESS_KEY", "hunter2")];

impl Site {
    /// Runs `doctor` with this configuration, on the store of the server.
    async fn doctor(&self, config: &str) -> Output {
        std::fs::write(self.home.path().join("tenure.yaml"), config).unwrap();
        let mut command = self.command(&["doctor", "--json"]);
        command.envs(AWS);
        let output = finish(command).await;
        assert!(!format!("{output:?}").contains("hunter2"), "{output:?}");
        output
    }
}

#[tokio::test]
async fn queues_that_push_are_held_against_the_configuration() {
    let config = "push: {secrets: {etl: hunter2}}\n";
    let site = configured(config).await;
    assert_eq!(finding(&site.doctor(config).await, "push"), ("ok".into(), "no queue pushes tasks".into()));
    let url = "http://127.0.0.1:1/dispatch";
    site.ok(&["queue", "create", "etl", "--push-url", url, "--push-secret-ref", "etl"]).await;
    let (status, message) = finding(&site.doctor(config).await, "push");
    assert!(status == "ok" && message.starts_with("1 queue pushes tasks"), "{status}: {message}");

    let known = "auth: {enabled: true, api_key: a-key-of-sixteen-letters}\n";
    let cidr = "push: {secrets: {etl: hunter2}, allow_http: true, allow_cidrs: [10.0.0.0/33]}\n";
    for (config, check, said) in [
        ("{}\n".to_owned(), "push", "queue etl: push.secrets has no `etl`"),
        (format!("{config}{known}"), "push", "callback.base_url is not set, and 1 queue pushes tasks"),
        (format!("{config}{known}callback: {{base_url: https://t.example}}\n"), "push", "queue etl: "),
        ("push: {secrets: {etl: hunter2}, mtls: {ca_files: {etl: /nowhere.pem}}}\n".to_owned(), "push", "/nowhere.pem"),
        ("push: {secret_files: {etl: /nowhere}}\n".to_owned(), "config", "/nowhere"),
        (cidr.to_owned(), "config", "push.allow_cidrs"),
    ] {
        let output = site.doctor(&config).await;
        assert_eq!(code(&output), 1, "{config}: {output:?}");
        let (status, message) = finding(&output, check);
        assert!(status == "fail" && message.contains(said), "{config}: {status}: {message}");
        let findings: Vec<Value> = serde_json::from_str(&output.stdout).unwrap();
        assert!(findings.iter().all(|finding| finding["status"] != "fail" || finding["fix"].is_string()), "{output:?}");
    }
}

#[tokio::test]
async fn a_redis_is_looked_at_and_left_alone() {
    let mut redis = Redis::start_with(|_, _| vec!["--requirepass".into(), "hunter2".into()]).await;
    let url = redis.url().replace("redis://", "redis://:hunter2@");
    let config = format!("redis: {{url: '{url}'}}\n");
    let ask = |words: &[&str]| -> redis::Value {
        let mut connection = redis::Client::open(url.as_str()).unwrap().get_connection().unwrap();
        redis::cmd(words[0]).arg(&words[1..]).query(&mut connection).unwrap()
    };
    let site = configured(&config).await;
    let said = async |config: &str| finding(&site.doctor(config).await, "redis");
    assert_eq!(said(&config).await, ("ok".into(), "reached; no queue yet with the consumer group tenure".into()));
    assert_eq!(ask(&["DBSIZE"]), redis::Value::Int(0), "it made something");

    site.ok(&["queue", "create", "etl", "--transport", "redis"]).await;
    let (status, message) = said(&config).await;
    assert!(status == "ok" && message.starts_with("reached; 1 queue with the consumer group tenure"), "{message}");
    let (status, message) = said("{}\n").await;
    assert!(status == "fail" && message.contains("redis.url is not set"), "{message}");
    let (status, message) = said(&config.replace("hunter2", "hunter2-wrong")).await;
    assert_eq!(
        (status.as_str(), message.as_str()),
        ("fail", "redis.url: redis refused: it does not accept the user or the password")
    );
    ask(&["DEL", "etl"]);
    ask(&["SET", "etl", "not a stream"]);
    let (status, message) = said(&config).await;
    assert_eq!(
        (status.as_str(), message.as_str()),
        ("fail", "stream of queue etl: redis refused: the key of the queue is not a stream")
    );
    redis.kill();
    let (status, message) = said(&config).await;
    assert_eq!(
        (status.as_str(), message.as_str()),
        ("fail", "redis.url: redis cannot be reached: nothing listens there")
    );
}

#[tokio::test]
async fn sqs_is_looked_at_and_left_alone() {
    let mut moto = Moto::start().await;
    let config = format!("sqs: {{endpoint_url: '{}', region: eu-central-1, queue_prefix: t-}}\n", moto.url());
    let site = configured(&config).await;
    let said = async |config: &str| finding(&site.doctor(config).await, "sqs");
    assert_eq!(said(&config).await, ("ok".into(), "reached; no queue yet with this transport".into()));
    site.ok(&["queue", "create", "etl", "--transport", "sqs"]).await;
    assert_eq!(said(&config).await, ("fail".into(), "the queue t-etl does not exist".into()));
    let creating = config.replace("queue_prefix", "create_queues: true, queue_prefix");
    let (status, message) = said(&creating).await;
    assert!(status == "ok" && message.ends_with("created when first needed"), "{message}");
    assert_eq!(said(&config).await.0, "fail", "it made the queue");
    moto.kill();
    let (status, message) = said(&config).await;
    assert!(status == "fail" && message.starts_with("sqs cannot be reached"), "{message}");
}

/// A server that is pointed at another database by mistake would find no tasks there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_database_than_the_recorded_one_is_refused() {
    let postgres = Postgres::shared().await;
    let (own, other) = (postgres.database().await, postgres.database().await);
    let folder = tempfile::tempdir().unwrap();
    let serve =
        async |store: &str| Tenure::serve_in(folder.path(), &["--listen", "127.0.0.1:0", "--store", store]).await;
    for _ in 0..2 {
        drop(serve(own.url()).await);
    }
    let data = folder.path().display().to_string();
    let doctor =
        async |store: &str| finish(Tenure::command(&["doctor", "--json", "--data", &data, "--store", store])).await;
    assert_eq!(finding(&doctor(own.url()).await, "store identity").0, "ok");
    assert_eq!(finding(&doctor(other.url()).await, "store identity").0, "fail");

    let start = Tenure::command(&["serve", "--listen", "127.0.0.1:0", "--data", &data, "--store", other.url()]);
    let refused = finish(start).await;
    assert_ne!(code(&refused), 0);
    let record = folder.path().join("store-id");
    assert!(
        refused.stderr.contains("is not the store") && refused.stderr.contains(&record.display().to_string()),
        "{refused:?}"
    );

    std::fs::remove_file(&record).unwrap();
    drop(serve(other.url()).await);
    assert_eq!(finding(&doctor(own.url()).await, "store identity").0, "fail");
}
