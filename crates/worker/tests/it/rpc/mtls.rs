//! TLS with client certificates, as control planes use it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use reqwest::{Certificate, Identity};
use serde_json::json;
use tempfile::TempDir;
use tenure_tls::{LiveServer, RpcTls, dev_certs};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::kit::*;

struct Certs(TempDir);

impl Certs {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        dev_certs(folder.path(), &[], &[WORKER.to_owned()]).unwrap();
        Self(folder)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.file(name)).unwrap()
    }

    fn server(&self, allowed: &[&str]) -> Arc<LiveServer> {
        let tls = RpcTls {
            enabled: true,
            server_cert_file: Some(self.file(&format!("worker-{WORKER}.crt"))),
            server_key_file: Some(self.file(&format!("worker-{WORKER}.key"))),
            client_ca_file: Some(self.file("ca.crt")),
            allowed_client_names: allowed.iter().map(ToString::to_string).collect(),
            ..RpcTls::default()
        };
        tls.check(true).unwrap();
        Arc::new(tls.server().unwrap().load().unwrap())
    }

    /// A client that trusts this CA and shows the certificate with this name, if any.
    fn client(&self, shown: Option<(&Certs, &str)>) -> reqwest::Client {
        let builder = reqwest::Client::builder()
            .no_proxy()
            .tls_certs_only([Certificate::from_pem(&self.read("ca.crt")).unwrap()]);
        let builder = match shown {
            None => builder,
            Some((certs, name)) => {
                let pem = [certs.read(&format!("{name}.crt")), certs.read(&format!("{name}.key"))].concat();
                builder.identity(Identity::from_pem(&pem).unwrap())
            }
        };
        builder.build().unwrap()
    }
}

async fn health(client: &reqwest::Client, worker: &Worker) -> Result<u16, reqwest::Error> {
    let url = format!("https://localhost:{}/health", worker.address.port());
    Ok(client.get(url).send().await?.status().as_u16())
}

async fn with(tls: Arc<LiveServer>) -> Worker {
    Worker::with(Options { tls: Some(tls), ..Options::default() }).await
}

#[tokio::test]
async fn calls_go_over_mutual_tls() {
    let certs = Certs::new();
    let worker = with(certs.server(&["tenure://control-plane"])).await;
    let client = certs.client(Some((&certs, "client")));
    let send = async |envelope: serde_json::Value| {
        let request = client.post(format!("https://localhost:{}/rpc", worker.address.port()));
        answer(worker.signed(request).body(envelope.to_string()).send().await.unwrap()).await
    };
    let mut spawn = worker.envelope("worker.spawn", spawn_params("sb-1"));
    spawn["lease"] = lease("sb-1", 1);
    assert_eq!(send(spawn).await.0, 200);
    let (status, body) =
        send(worker.envelope("worker.exec", json!({"sandbox_id": "sb-1", "command": "echo hi"}))).await;
    assert_eq!((status.as_u16(), &body["result"]["stdout"]), (200, &json!("hi\n")), "{body}");
}

#[tokio::test]
async fn a_client_certificate_of_the_right_ca_and_name_is_required() {
    let (certs, others) = (Certs::new(), Certs::new());
    let worker = with(certs.server(&["tenure://control-plane"])).await;
    assert_eq!(health(&certs.client(Some((&certs, "client"))), &worker).await.unwrap(), 200);
    let worker_s_own = format!("worker-{WORKER}");
    for (shown, what) in [
        (None, "no certificate"),
        (Some((&others, "client")), "a certificate of another CA"),
        (Some((&certs, worker_s_own.as_str())), "a certificate with another name"),
    ] {
        assert!(health(&certs.client(shown), &worker).await.is_err(), "{what}");
    }
    let plain = worker.http.get(worker.url("/health")).send().await;
    assert!(plain.is_err(), "plain HTTP");
    assert!(
        health(&others.client(Some((&certs, "client"))), &worker).await.is_err(),
        "the client checks the worker too"
    );
}

fn replace(from: &Path, to: &Path) {
    let moving = to.with_extension("new");
    std::fs::copy(from, &moving).unwrap();
    std::fs::rename(moving, to).unwrap();
}

#[tokio::test]
async fn certificates_are_swapped_without_a_restart() {
    let (certs, next) = (Certs::new(), Certs::new());
    let tls = certs.server(&[]);
    let worker = with(Arc::clone(&tls)).await;
    assert_eq!(health(&certs.client(Some((&certs, "client"))), &worker).await.unwrap(), 200);
    let (old_ca, old_client) = (certs.client(Some((&certs, "client"))), next.client(Some((&certs, "client"))));
    for name in [format!("worker-{WORKER}.crt"), format!("worker-{WORKER}.key"), "ca.crt".to_owned()] {
        replace(&next.file(&name), &certs.file(&name));
    }
    assert!(tls.reload().unwrap());
    assert_eq!(health(&next.client(Some((&next, "client"))), &worker).await.unwrap(), 200);
    assert!(health(&old_ca, &worker).await.is_err(), "the new certificate is of the new CA");
    assert!(health(&old_client, &worker).await.is_err(), "clients of the old CA are out");
}

#[tokio::test]
async fn a_client_that_prefers_http_2_gets_http_1() {
    let certs = Certs::new();
    let worker = with(certs.server(&[])).await;
    let client = tenure_tls::ClientTls {
        ca_file: Some(certs.file("ca.crt")),
        client_cert_file: Some(certs.file("client.crt")),
        client_key_file: Some(certs.file("client.key")),
        ..tenure_tls::ClientTls::default()
    };
    let mut config = client.load().unwrap().for_worker(WORKER).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let stream = tokio::net::TcpStream::connect(worker.address).await.unwrap();
    let name = "localhost".try_into().unwrap();
    let mut stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(b"http/1.1".as_slice()));
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: w\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}
