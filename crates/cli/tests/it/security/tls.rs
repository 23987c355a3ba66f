//! TLS from end to end, with certificates that `tenure dev-certs` made.

use std::path::Path;

use reqwest::Identity;
use serde_json::json;
use tenure_testkit::{Child, Postgres, wait_until};
use tenure_tls::dev_certs;
use tokio_postgres::NoTls;

use crate::security::kit::{ADMIN_KEY, API_KEY, Caller, Desk, PATIENCE, code, roots};

const TOKEN: &str = "token-that-workers-share-0123456789";

fn auth() -> String {
    format!("auth: {{enabled: true, api_key: {API_KEY}, admin_api_key: {ADMIN_KEY}, worker_token: {TOKEN}}}\n")
}

#[tokio::test]
async fn commands_and_workers_talk_tls_to_a_server_that_they_trust_and_to_no_other() {
    let desk = Desk::new();
    desk.certs("certs").await;
    desk.certs("other").await;
    let (key, token) = (desk.file("key", API_KEY), desk.file("token", TOKEN));
    let tls = "server: {tls: {cert_file: certs/server.crt, key_file: certs/server.key}}";
    let server = desk.serve(&format!("{}{tls}", auth())).await;
    let url = server.url();
    assert!(url.starts_with("https://"), "{url}");

    let submit = ["task", "submit", "q", "echo", "--server", url, "--api-key-file", &key, "--wait"];
    let trusting = ["--ca-file", "certs/ca.crt"];
    let worker = ["worker", "--server", url, "--token-file", &token, "--queue", "q"];
    let mut working = Child::spawn(desk.command(&[&worker[..], &trusting].concat()));
    desk.ok(&[&submit[..], &trusting].concat()).await;
    let mut by_variable = desk.command(&submit);
    by_variable.env("TENURE_CA_FILE", "certs/ca.crt");
    assert_eq!(code(&crate::security::kit::finish(by_variable).await), 0);
    assert_eq!(working.terminate().await.code(), Some(0));

    // Neither another CA nor those of the system.
    for trust in [&["--ca-file", "other/ca.crt"][..], &[]] {
        let refused = desk.run(&[&submit[..], trust].concat()).await;
        assert_eq!(code(&refused), 5, "{refused:?}");
        assert!(refused.stderr.contains("certificate"), "{trust:?}: {}", refused.stderr);
        assert!(!refused.stderr.contains(API_KEY), "{}", refused.stderr);
    }
    let mut distrusting = Child::spawn(desk.command(&[&worker[..], &["--ca-file", "other/ca.crt"]].concat()));
    distrusting.wait_for_stderr("certificate", PATIENCE).await;

    // Plain HTTP is not answered there.
    let plain = Caller::new(&url.replace("https://", "http://"));
    assert!(plain.try_call(reqwest::Method::GET, "/api/v1/live", None).await.is_err());
}

#[tokio::test]
async fn where_client_certificates_are_required_nobody_gets_in_without_one() {
    let desk = Desk::new();
    desk.certs("certs").await;
    desk.certs("other").await;
    let tls = "server:
  tls:
    cert_file: certs/server.crt
    key_file: certs/server.key
    client_ca_file: certs/ca.crt
";
    let server = desk.serve(&format!("{}{tls}", auth())).await;
    let live = async |identity: Option<&str>| {
        let trust = roots(&desk.path("certs/ca.crt"));
        let mut http = reqwest::Client::builder().timeout(PATIENCE).tls_certs_only(trust);
        if let Some(folder) = identity {
            let pem = desk.read(&format!("{folder}/client.crt")) + &desk.read(&format!("{folder}/client.key"));
            http = http.identity(Identity::from_pem(pem.as_bytes()).unwrap());
        }
        let caller = Caller::with(server.url(), http.build().unwrap()).user();
        caller.try_call(reqwest::Method::GET, "/api/v1/whoami", None).await.map(|said| said.status)
    };
    assert_eq!(live(Some("certs")).await.unwrap(), 200);
    assert!(live(None).await.is_err(), "without a certificate");
    assert!(live(Some("other")).await.is_err(), "with one of another CA");
    // The command line has no certificate to show.
    let refused = desk.run(&["task", "list", "--server", server.url(), "--ca-file", "certs/ca.crt"]).await;
    assert_eq!(code(&refused), 5, "{refused:?}");
}

#[tokio::test]
async fn a_postgres_is_reached_over_tls_when_the_dsn_asks_for_it() {
    let desk = Desk::new();
    desk.certs("other").await;
    let prepare = |folder: &Path| {
        dev_certs(folder, &[], &[]).unwrap();
        std::fs::copy(folder.join("ca.crt"), desk.path("ca.crt")).unwrap();
        let file = |setting: &str, name: &str| format!("{setting}={}", folder.join(name).display());
        vec!["ssl=on".to_owned(), file("ssl_cert_file", "server.crt"), file("ssl_key_file", "server.key")]
    };
    let postgres = Postgres::start_with(prepare).await;
    let database = postgres.database().await;
    let dsn = format!("postgres://postgres:p4ssword@localhost:{}/{}?sslmode=require", postgres.port(), database.name());
    let section = |ca: &str| format!("database:\n  driver: postgres\n  dsn: {dsn}\n  tls: {{ca_file: {ca}}}\n");

    let server = desk.serve(&format!("{}{}", auth(), section("ca.crt"))).await;
    let caller = Caller::new(server.url());
    let task = caller.user().submit("echo", &json!(1)).await;
    let claimed = caller.worker("w-1", TOKEN).claim("w-1").await.json();
    assert_eq!(claimed["job_id"], task.as_str(), "{claimed}");
    let (client, connection) = tokio_postgres::connect(database.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    let question = "SELECT count(*), count(*) FILTER (WHERE NOT ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING \
                    (pid) WHERE application_name = 'tenure' AND datname = current_database()";
    wait_until("the server has connections", PATIENCE, async || {
        let row = client.query_one(question, &[]).await.unwrap();
        let (all, plain): (i64, i64) = (row.get(0), row.get(1));
        assert_eq!(plain, 0, "every connection is encrypted");
        all > 0
    })
    .await;
    drop(server);

    desk.file("tenure.yaml", &format!("{}{}", auth(), section("other/ca.crt")));
    // It goes on trying for a while, as for a Postgres that is not up yet.
    let serve = desk.command(&["serve", "--config", "tenure.yaml", "--data", "data", "--listen", "127.0.0.1:0"]);
    let mut refused = Child::spawn(serve);
    refused.wait_for_stderr("not signed by a trusted CA", PATIENCE).await;
    let said = refused.output();
    assert!(said.stdout.is_empty() && !said.stderr.contains("p4ssword"), "{said:?}");
}
