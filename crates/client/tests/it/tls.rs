//! Client and worker against a TLS listener with a certificate of an authority that no system knows.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::json;
use tenure_client::{Client, ClientError, TaskContext, TaskError, Worker};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::server::TlsStream;

struct Tls {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl axum::serve::Listener for Tls {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let Ok((stream, from)) = self.listener.accept().await else { continue };
            // A client that does not trust us ends the handshake.
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, from);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Starts a server and returns its address.
async fn serve(authority: &CertifiedIssuer<'static, KeyPair>, app: Router) -> String {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["localhost".into()]).unwrap().signed_by(&key, authority).unwrap();
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::Pkcs8(key.serialize_der().into()))
        .unwrap();
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let tls = Tls { listener, acceptor: TlsAcceptor::from(Arc::new(config)) };
    tokio::spawn(async move { axum::serve(tls, app).await.unwrap() });
    format!("https://localhost:{port}")
}

fn whoami() -> Router {
    let me = json!({"actor": "key:1", "role": "viewer", "tenant": "acme"}).to_string();
    Router::new().route("/api/v1/whoami", get(|| async { me }))
}

#[tokio::test]
async fn a_client_trusts_the_authority_that_it_was_given_and_no_other() {
    let (own, other) = (authority(), authority());
    let url = serve(&own, whoami()).await;
    let mut file = tempfile::NamedTempFile::new().unwrap();
    // A bundle: the one that counts need not be the first.
    write!(file, "{}{}", other.pem(), own.pem()).unwrap();
    for builder in [Client::builder(&url).ca_file(file.path()), Client::builder(&url).root_certificate(own.pem())] {
        assert_eq!(builder.build().unwrap().whoami().await.unwrap().role, "viewer");
    }
    for builder in [Client::builder(&url), Client::builder(&url).root_certificate(other.pem())] {
        let refused = builder.retries(0).build().unwrap().whoami().await.unwrap_err();
        assert!(matches!(refused, ClientError::Network { .. }), "{refused}");
    }
}

#[tokio::test]
async fn a_worker_trusts_the_authority_that_it_was_given() {
    let own = authority();
    let (claimed, mut claims) = mpsc::unbounded_channel();
    let exchange = post(move || async move {
        claimed.send(()).unwrap();
        "{}"
    });
    let url = serve(&own, Router::new().route("/internal/worker/exchange", exchange)).await;
    let echo = |task: TaskContext| async move { Ok::<_, TaskError>(task.raw_payload().clone()) };
    let worker = Worker::new(&url).queues(["q"]).operator("echo", echo);
    let run = tokio::spawn(worker.clone().root_certificate(own.pem()).run());
    claims.recv().await.unwrap();
    run.abort();

    let unusable = worker.root_certificate("none").run().await.unwrap_err();
    assert!(unusable.to_string().contains("PEM"), "{unusable}");
}
