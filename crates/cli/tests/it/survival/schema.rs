//! A newer binary that migrated the database under one that runs.

use tenure_testkit::{Postgres, Tenure};

use crate::survival::kit::{PATIENCE, Site};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_a_newer_schema_leaves_behind_ends_by_itself() {
    let postgres = Postgres::shared().await;
    let database = postgres.database().await;
    let mut site = Site::start(Some(database.url())).await;
    let run = async |sql: &str| {
        let (client, connection) = tokio_postgres::connect(database.url(), tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client.batch_execute(sql).await.unwrap();
    };
    run("INSERT INTO schema_version (version, oldest) SELECT max(version) + 1, max(version) FROM schema_version").await;
    // One that only adds is no reason to stop, nor not to start.
    site.submit("op", serde_json::json!({})).await;
    site.kill();
    site.start_again().await;

    run("INSERT INTO schema_version (version, oldest) SELECT max(version) + 1, max(version) + 1 FROM schema_version")
        .await;
    let mut server = site.server.take().unwrap();
    let status = server.wait(PATIENCE).await;
    assert_eq!(status.code(), Some(1), "{status}");
    let stderr = server.output().stderr;
    assert!(stderr.contains("error: the store has schema version"), "{stderr}");
    assert!(stderr.contains("start a newer tenure"), "{stderr}");

    let data = site.folder.path().to_str().unwrap().to_owned();
    let again = ["serve", "--listen", "127.0.0.1:0", "--data", &data, "--store", database.url()];
    let refused = Tenure::run_to_end(&again).await;
    assert_eq!(refused.status.unwrap().code(), Some(1));
    assert!(refused.stderr.contains("start a newer tenure"), "{}", refused.stderr);
}
