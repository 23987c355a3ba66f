//! The same over TLS: HTTP/1.1 and HTTP/2, and certificates that change while the server runs.

use std::path::Path;
use std::sync::Arc;

use axum::body::Body;
use http_body_util::BodyExt;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tenure_tls::rustls::pki_types::pem::PemObject;
use tenure_tls::rustls::pki_types::{CertificateDer, ServerName};
use tenure_tls::rustls::{self, ClientConfig, RootCertStore};
use tenure_tls::tokio_rustls::TlsConnector;
use tenure_tls::tokio_rustls::client::TlsStream;
use tenure_tls::{LiveServer, ServerTls, dev_certs};
use tokio::net::TcpStream;

use crate::harness::Server;
use crate::identity::people::{USER, restarted, with_users};

/// A server with a certificate of this folder.
async fn with_tls(folder: &Path) -> (Server, Arc<LiveServer>) {
    dev_certs(folder, &[], &[]).unwrap();
    let tls = Arc::new(ServerTls::new(folder.join("server.crt"), folder.join("server.key")).load().unwrap());
    let server = restarted(Server::sqlite().await, |_, config| config.tls = Some(Arc::clone(&tls))).await;
    with_users(&server);
    (server, tls)
}

fn trusting(folder: &Path, protocols: &[&str]) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(folder.join("ca.crt")).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    TlsConnector::from(Arc::new(config))
}

async fn connect(server: &Server, connector: &TlsConnector) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(server.url.trim_start_matches("http://")).await.unwrap();
    connector.connect(ServerName::try_from("localhost").unwrap(), stream).await
}

fn request(path: &str, key: Option<&str>) -> hyper::Request<Body> {
    let mut request = hyper::Request::get(format!("https://localhost{path}")).header("host", "localhost");
    if let Some(key) = key {
        request = request.header(USER.0, key);
    }
    request.body(Body::empty()).unwrap()
}

async fn decoded(answer: hyper::Response<hyper::body::Incoming>) -> (u16, Value) {
    assert_eq!(answer.headers()["x-content-type-options"], "nosniff");
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&body).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_1_and_http_2_are_agreed_on_and_the_rules_hold_for_both() {
    let folder = tempfile::tempdir().unwrap();
    let (server, _) = with_tls(folder.path()).await;
    for (offered, agreed) in [
        (vec!["h2", "http/1.1"], Some("h2")),
        (vec!["h2"], Some("h2")),
        (vec!["http/1.1"], Some("http/1.1")),
        (vec![], None),
    ] {
        let stream = connect(&server, &trusting(folder.path(), &offered)).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), agreed.map(str::as_bytes), "{offered:?}");
        let mut answers = Vec::new();
        let calls = [("/api/v1/live", None), ("/api/v1/whoami", Some(USER.1)), ("/api/v1/whoami", Some("wrong"))];
        if agreed == Some("h2") {
            let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
            let (mut sender, connection) = handshake.await.unwrap();
            tokio::spawn(connection);
            for (path, key) in calls {
                sender.ready().await.unwrap();
                answers.push(decoded(sender.send_request(request(path, key)).await.unwrap()).await);
            }
        } else {
            let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
            tokio::spawn(connection);
            for (path, key) in calls {
                sender.ready().await.unwrap();
                answers.push(decoded(sender.send_request(request(path, key)).await.unwrap()).await);
            }
        }
        assert_eq!(answers.iter().map(|(status, _)| *status).collect::<Vec<_>>(), [200, 200, 401], "{offered:?}");
        assert_eq!(answers[1].1["actor"], "auth.api_key");
        assert_eq!(answers[2].1["error"], "invalid_api_key");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ordinary_client_calls_over_tls_and_only_under_the_right_ca() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (server, _) = with_tls(folder.path()).await;
    dev_certs(other.path(), &[], &[]).unwrap();
    let client = |folder: &Path| {
        let ca = reqwest::Certificate::from_pem(&std::fs::read(folder.join("ca.crt")).unwrap()).unwrap();
        reqwest::Client::builder().tls_certs_only([ca]).build().unwrap()
    };
    let url = server.url.replace("http://", "https://");
    let task = json!({"queue": "q", "operator": "op"});
    let post =
        |folder: &Path| client(folder).post(format!("{url}/api/v1/tasks")).header(USER.0, USER.1).json(&task).send();
    assert_eq!(post(folder.path()).await.unwrap().status().as_u16(), 201);
    assert!(post(other.path()).await.is_err());
    // Whoever speaks plain HTTP to it gets nothing, and harms nobody.
    assert!(reqwest::get(format!("{}/api/v1/live", server.url)).await.is_err());
    assert_eq!(post(folder.path()).await.unwrap().status().as_u16(), 201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_certificate_is_used_from_the_next_connection_on() {
    let (folder, fresh) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (server, tls) = with_tls(folder.path()).await;
    dev_certs(fresh.path(), &[], &[]).unwrap();
    let (before, after) = (trusting(folder.path(), &["http/1.1"]), trusting(fresh.path(), &["http/1.1"]));
    let stream = connect(&server, &before).await.unwrap();
    assert!(connect(&server, &after).await.is_err());
    let (mut open, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    assert_eq!(open.send_request(request("/api/v1/live", None)).await.unwrap().status().as_u16(), 200);
    for file in ["server.crt", "server.key"] {
        std::fs::copy(fresh.path().join(file), folder.path().join(file)).unwrap();
    }
    assert!(tls.reload().unwrap());
    assert!(connect(&server, &after).await.is_ok());
    // With a new connector, as the old one may take up its session again.
    assert!(connect(&server, &trusting(folder.path(), &["http/1.1"])).await.is_err());
    // Whoever was connected stays connected.
    open.ready().await.unwrap();
    let (status, _) = decoded(open.send_request(request("/api/v1/whoami", Some(USER.1))).await.unwrap()).await;
    assert_eq!(status, 200);
    // A file that is no certificate changes nothing.
    std::fs::write(folder.path().join("server.crt"), "no certificate").unwrap();
    assert!(tls.reload().is_err());
    assert!(connect(&server, &after).await.is_ok());
}
