//! TLS to a real Postgres: who is believed, who is refused, and what the refusal says.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tenure_store::{Clock, Store, StoreError};
use tenure_testkit::{Database, Postgres, PrivatePostgres, wait_until};
use tenure_tls::dev_certs;
use tokio_postgres::NoTls;

/// A server with `ssl=on` and a certificate for localhost and its addresses.
struct Server {
    postgres: PrivatePostgres,
    /// Holds its CA as `ca.crt`, and that of someone else as `other/ca.crt`.
    certs: TempDir,
}

impl Server {
    async fn start() -> Self {
        let certs = TempDir::new().unwrap();
        dev_certs(&certs.path().join("other"), &[], &[]).unwrap();
        let prepare = |folder: &Path| {
            dev_certs(folder, &[], &[]).unwrap();
            std::fs::copy(folder.join("ca.crt"), certs.path().join("ca.crt")).unwrap();
            let file = |setting: &str, name: &str| format!("{setting}={}", folder.join(name).display());
            vec!["ssl=on".to_owned(), file("ssl_cert_file", "server.crt"), file("ssl_key_file", "server.key")]
        };
        let postgres = Postgres::start_with(prepare).await;
        Self { postgres, certs }
    }

    /// The address under a host name that leads to the server, whether its certificate has the name or not.
    fn url(&self, database: &Database, host: &str, query: &str) -> String {
        let certs = self.certs.path().display().to_string();
        let query = query.replace("CERTS", &certs);
        let (port, name) = (self.postgres.port(), database.name());
        format!("postgres://postgres@{host}:{port}/{name}?hostaddr=127.0.0.1&{query}")
    }
}

async fn open(url: &str) -> Result<Arc<dyn Store>, StoreError> {
    tenure_store::open(url, Arc::new(Clock::default())).await
}

/// Whether the connections of the store are encrypted: all of them, or none.
async fn is_encrypted(database: &Database) -> bool {
    let (client, connection) = tokio_postgres::connect(database.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    let question = "SELECT bool_and(ssl), bool_or(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                    WHERE application_name = 'tenure' AND datname = current_database()";
    let row = client.query_one(question, &[]).await.unwrap();
    let (all, any): (bool, bool) = (row.get(0), row.get(1));
    assert_eq!(all, any);
    all
}

#[tokio::test]
async fn modes_encrypt_and_verify_as_they_say() {
    let server = Server::start().await;
    let untrusted = "not signed by a trusted CA";
    let other_name = "for another name";
    // Host, query, and what is wrong, or else whether the connection is encrypted.
    let table: [(&str, &str, Result<bool, &str>); 17] = [
        ("localhost", "sslmode=require&sslrootcert=CERTS/ca.crt", Ok(true)),
        ("localhost", "sslmode=verify-full&sslrootcert=CERTS/ca.crt", Ok(true)),
        ("localhost", "sslmode=verify-ca&sslrootcert=CERTS/ca.crt", Ok(true)),
        ("127.0.0.1", "sslmode=verify-full&sslrootcert=CERTS/ca.crt", Ok(true)),
        ("localhost", "sslmode=require&sslrootcert=CERTS/other/ca.crt", Err(untrusted)),
        ("localhost", "sslmode=verify-full&sslrootcert=CERTS/other/ca.crt", Err(untrusted)),
        ("localhost", "sslmode=verify-ca&sslrootcert=CERTS/other/ca.crt", Err(untrusted)),
        ("localhost", "sslmode=require", Err(untrusted)),
        ("localhost", "sslmode=verify-ca", Err(untrusted)),
        ("db.example", "sslmode=require&sslrootcert=CERTS/ca.crt", Err(other_name)),
        ("db.example", "sslmode=verify-full&sslrootcert=CERTS/ca.crt", Err(other_name)),
        ("db.example", "sslmode=verify-ca&sslrootcert=CERTS/ca.crt", Ok(true)),
        ("db.example", "sslmode=prefer", Ok(true)),
        ("db.example", "connect_timeout=5", Ok(true)),
        ("localhost", "sslmode=disable", Ok(false)),
        ("localhost", "sslmode=require&sslrootcert=CERTS/missing.crt", Err("missing.crt")),
        ("localhost", "sslrootcert=CERTS/ca.crt", Err("sslmode=verify-full")),
    ];
    for (host, query, expected) in table {
        let database = server.postgres.database().await;
        let opened = open(&server.url(&database, host, query)).await;
        match (opened, expected) {
            (Ok(store), Ok(encrypted)) => {
                store.now().await.unwrap();
                assert_eq!(is_encrypted(&database).await, encrypted, "{host} {query}");
            }
            (Err(error), Err(expected)) => {
                let text = error.chain();
                assert!(text.contains(expected), "{host} {query}: {text}");
            }
            (opened, expected) => {
                panic!("{host} {query}: expected {expected:?}, got {:?}", opened.map(|_| ()).map_err(|e| e.chain()));
            }
        }
    }
}

/// Each server of an address is verified by its own name: one with the wrong name is passed over for the next.
#[tokio::test]
async fn each_of_several_servers_is_verified_by_its_own_name() {
    let server = Server::start().await;
    let database = server.postgres.database().await;
    let (port, name, certs) = (server.postgres.port(), database.name(), server.certs.path().display());
    let url = |first: &str, second: &str| {
        format!(
            "postgres://postgres@{first}:{port},{second}:{port}/{name}?hostaddr=127.0.0.1,127.0.0.1\
             &target_session_attrs=read-write&sslmode=verify-full&sslrootcert={certs}/ca.crt"
        )
    };
    let store = open(&url("db.example", "localhost")).await.unwrap();
    store.now().await.unwrap();
    assert!(is_encrypted(&database).await);
    let error = open(&url("db.example", "other.example")).await.map(|_| ()).unwrap_err();
    assert!(error.chain().contains("for another name"), "{}", error.chain());
}

#[tokio::test]
async fn a_server_without_tls_is_refused_where_tls_is_asked_for() {
    let database = Postgres::shared().await.database().await;
    for mode in ["require", "verify-ca", "verify-full"] {
        let error = open(&format!("{}?sslmode={mode}", database.url())).await.map(|_| ()).unwrap_err();
        assert!(error.chain().contains("the server offers no TLS"), "{mode}: {}", error.chain());
    }
    for query in ["", "?sslmode=prefer", "?sslmode=disable"] {
        open(&format!("{}{query}", database.url())).await.unwrap().now().await.unwrap();
    }
}

#[tokio::test]
async fn connections_come_back_encrypted_after_a_restart_of_the_server() {
    let server = Server::start().await;
    let database = server.postgres.database().await;
    let url = server.url(&database, "localhost", "sslmode=verify-full&sslrootcert=CERTS/ca.crt");
    let store = open(&url).await.unwrap();
    store.now().await.unwrap();
    for crash in [false, true] {
        if crash {
            server.postgres.kill();
        } else {
            server.postgres.stop().await;
        }
        assert!(store.now().await.unwrap_err().is_transient());
        server.postgres.start_again().await;
        wait_until("the store is back", Duration::from_secs(30), async || store.now().await.is_ok()).await;
        assert!(is_encrypted(&database).await);
    }
}
