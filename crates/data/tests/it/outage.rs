use std::time::Duration;

use tenure_data::{DataStore, Sqlite};
use tenure_testkit::{Postgres, wait_until};

use crate::stand::{keys, read, table};

#[tokio::test]
async fn a_file_that_cannot_be_opened_may_be_there_later() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("missing");
    let (store, table) = (Sqlite::new(path.join("data.db")), table(1, &[]));
    let error = store.append(&table, vec![keys(&table, [1])]).await.unwrap_err();
    assert!(error.is_transient(), "{error:?}");
    assert!(!error.to_string().contains("missing"), "{error}");
    std::fs::create_dir(&path).unwrap();
    assert_eq!(store.append(&table, vec![keys(&table, [1])]).await.unwrap().rows, 1);
}

#[tokio::test]
async fn a_server_that_was_away_is_used_again() {
    let server = Postgres::start().await;
    let database = server.database().await;
    let store = tenure_data::Postgres::new(database.url(), None).unwrap();
    let table = table(1, &[]);
    store.ensure(&table).await.unwrap();
    store.append(&table, vec![keys(&table, [1])]).await.unwrap();
    server.kill();
    let error = store.append(&table, vec![keys(&table, [1, 2])]).await.unwrap_err();
    assert!(error.is_transient(), "{error:?}");
    server.start_again().await;
    let append = async || store.append(&table, vec![keys(&table, [1, 2])]).await.is_ok();
    wait_until("it answers", Duration::from_secs(30), append).await;
    assert_eq!(read(&store.reading(&table).await.unwrap(), 0).await.len(), 2);
}
