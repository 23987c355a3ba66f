//! What hostile clients can make a server hold in memory, all of them at once, while honest work goes on.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use tenure_testkit::{Tenure, wait_until};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::security::attack::resident_mib;
use crate::security::kit::{ADMIN_KEY, API_KEY, Caller, Desk, PATIENCE, roots};

const TOKEN: &str = "token-that-workers-share-0123456789";
const MIB: usize = 1 << 20;
/// What a server needs, as `docs/operations/sizing.md` states it.
const BOUND_MIB: u64 = 300;
const ATTACK: Duration = Duration::from_secs(20);

struct Target {
    address: String,
    roots: Arc<RootCertStore>,
}

impl Target {
    async fn connect(&self, protocol: &[u8]) -> TlsStream<TcpStream> {
        let provider = Arc::new(tokio_rustls::rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let mut config = config.with_root_certificates(Arc::clone(&self.roots)).with_no_client_auth();
        config.alpn_protocols = vec![protocol.to_vec()];
        let stream = TcpStream::connect(&self.address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
    }

    /// Asks for the largest open document on as many streams as it gets, and takes none of it.
    async fn open_documents(&self) {
        let stream = self.connect(b"h2").await;
        let (mut client, connection) = h2::client::Builder::new()
            .initial_window_size(0)
            .initial_max_send_streams(250)
            .handshake::<_, bytes::Bytes>(stream)
            .await
            .unwrap();
        let connection = tokio::spawn(connection);
        let mut held = Vec::new();
        for _ in 0..250 {
            let Ok(ready) = tokio::time::timeout(Duration::from_secs(2), client.clone().ready()).await else { break };
            client = ready.unwrap();
            let request = http::Request::get(format!("https://{}/api/v1/openapi.json", self.address)).body(()).unwrap();
            held.extend(client.send_request(request, true).ok());
        }
        let _ = connection.await;
    }

    /// Sends a head and as much of a body as is taken, and then waits.
    async fn large_body(&self, key: &str) {
        let mut stream = self.connect(b"http/1.1").await;
        let head = format!(
            "POST /api/v1/tasks/batch HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {key}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            29 * MIB
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let piece = vec![b' '; MIB];
        for _ in 0..28 {
            if stream.write_all(&piece).await.is_err() {
                return;
            }
        }
        let _ = stream.flush().await;
        pending::<()>().await;
    }

    /// Sends requests and reads no answer.
    async fn unread(&self, requests: String) {
        let mut stream = self.connect(b"http/1.1").await;
        let _ = stream.write_all(requests.as_bytes()).await;
        let _ = stream.flush().await;
        pending::<()>().await;
    }
}

async fn key_of(admin: &Caller, tenant: &str) -> String {
    let made = admin.post("/api/v1/admin/api-keys", &json!({"name": tenant, "tenant": tenant})).await;
    assert_eq!(made.status, 201, "{made:?}");
    made.json()["key"].as_str().unwrap().to_owned()
}

/// The highest that the server was at.
async fn watch(server: &Tenure, peak: &AtomicU64) {
    loop {
        peak.fetch_max(resident_mib(server), Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_clients_cost_little_memory_and_honest_work_goes_on() {
    let desk = Desk::new();
    desk.certs("certs").await;
    let auth =
        format!("auth: {{enabled: true, api_key: {API_KEY}, admin_api_key: {ADMIN_KEY}, worker_token: {TOKEN}}}\n");
    let tls = "server: {tls: {cert_file: certs/server.crt, key_file: certs/server.key}}\n";
    let server = desk.serve(&format!("{auth}{tls}")).await;
    let ca = desk.path("certs/ca.crt");
    let http = reqwest::Client::builder().tls_certs_only(roots(&ca)).timeout(PATIENCE).build().unwrap();
    let caller = Caller::with(server.url(), http);
    let mut store = RootCertStore::empty();
    for cert in tokio_rustls::rustls::pki_types::CertificateDer::pem_file_iter(&ca).unwrap() {
        store.add(cert.unwrap()).unwrap();
    }
    let address = server.url().split_once("://").unwrap().1.to_owned();
    let target = Arc::new(Target { address, roots: Arc::new(store) });
    let evil = key_of(&caller.admin(), "evil").await;
    let honest = caller.header("X-API-Key", &key_of(&caller.admin(), "acme").await);
    let hostile = caller.header("X-API-Key", &evil);
    // Large tasks, to list later.
    for _ in 0..30 {
        let task = json!({"queue": "large", "operator": "op", "payload": "x".repeat(MIB - 16)});
        assert_eq!(hostile.post("/api/v1/tasks", &task).await.status, 201);
    }
    let (before, peak) = (resident_mib(&server), AtomicU64::new(0));

    let mut attacks = tokio::task::JoinSet::new();
    let list = format!("GET /api/v1/tasks?limit=120 HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {evil}\r\n\r\n");
    let document = "GET /api/v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(200);
    for _ in 0..30 {
        let target = Arc::clone(&target);
        attacks.spawn(async move { target.open_documents().await });
    }
    for _ in 0..40 {
        let (target, evil) = (Arc::clone(&target), evil.clone());
        attacks.spawn(async move { target.large_body(&evil).await });
    }
    for requests in std::iter::repeat_n(list, 16).chain(std::iter::repeat_n(document, 16)) {
        let target = Arc::clone(&target);
        attacks.spawn(async move { target.unread(requests).await });
    }
    let work = async {
        let (started, mut done) = (Instant::now(), 0);
        let worker = caller.worker("w", TOKEN);
        while started.elapsed() < ATTACK {
            let begun = Instant::now();
            let task = honest.submit("echo", &json!(done)).await;
            let job = worker.claim("w").await.json();
            assert_eq!(job["job_id"], json!(task));
            let report = json!({"worker_id": "w", "job_id": job["job_id"], "attempt_id": job["attempt_id"],
                "lease_token": job["lease_token"], "result": done});
            assert_eq!(worker.post("/internal/worker/complete", &report).await.status, 200);
            assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
            done += 1;
        }
        done
    };
    let done = tokio::select! {
        done = work => done,
        () = watch(&server, &peak) => unreachable!("it has no end"),
    };
    let peak = peak.load(Ordering::Relaxed);
    println!("{before} MiB before, {peak} MiB at most; {done} tasks of others");
    assert!(done > 10, "honest work goes on: {done}");
    assert!(peak < BOUND_MIB, "{before} MiB before the attack, {peak} MiB at most");
    attacks.shutdown().await;
    wait_until("memory is given back", PATIENCE, async || {
        let text = caller.admin().get("/metrics").await.text;
        text.lines().any(|line| line == "tenure_request_memory_bytes 0")
    })
    .await;
}
