//! Certificates change while connections come and go.

use std::sync::Arc;

use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tenure_tls::{ClientAuth, ClientTls, ServerTls};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;

use crate::stand::{Certs, Server, call, call_with, call_worker};

const SERVER: [&str; 2] = ["server.crt", "server.key"];

fn certificate(certs: &Certs) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(&std::fs::read(certs.file("server.crt")).unwrap()).unwrap()
}

/// Trusts the CAs of all these folders.
fn trusting(certs: &[&Certs]) -> ClientTls {
    let text: String = certs.iter().map(|certs| std::fs::read_to_string(certs.file("ca.crt")).unwrap()).collect();
    let bundle = certs[0].file("bundle.crt");
    std::fs::write(&bundle, text).unwrap();
    ClientTls { ca_file: Some(bundle), ..ClientTls::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_connections_over_swaps_all_succeed_and_new_ones_see_the_new_certificate() {
    let (live, one, two) = (Certs::new(), Certs::new(), Certs::new());
    let client = trusting(&[&live, &one, &two]).load().unwrap();
    let server = Server::start(live.server()).await;
    let calls = async {
        for n in 0..200 {
            let config = client.for_worker("w-1").unwrap();
            call(config, "localhost", server.address).await.unwrap_or_else(|error| panic!("call {n}: {error}"));
        }
    };
    let swaps = async {
        for n in 0..10 {
            // A swap at every twentieth call or so; the calls go on meanwhile.
            while server.seen.connections.load(std::sync::atomic::Ordering::SeqCst) < n * 20 {
                tokio::task::yield_now().await;
            }
            let next = if n % 2 == 0 { &one } else { &two };
            live.replace(next, &SERVER);
            assert!(server.live.reload().unwrap(), "swap {n}");
            let config = client.for_worker("w-1").unwrap();
            let seen = call(config, "localhost", server.address).await.unwrap();
            assert_eq!(seen.certificate, certificate(next), "swap {n}");
        }
    };
    tokio::join!(calls, swaps);
    assert_eq!(server.bytes(), 210 * 4);
}

#[tokio::test]
async fn a_connection_that_exists_is_not_touched_by_a_swap() {
    let (live, next) = (Certs::new(), Certs::new());
    let server = Server::start(live.server()).await;
    let config = trusting(&[&live]).load().unwrap().for_worker("w-1").unwrap();
    let stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
    let connector = TlsConnector::from(Arc::new(config));
    let mut stream = connector.connect("localhost".try_into().unwrap(), stream).await.unwrap();
    for _ in 0..2 {
        stream.write_all(b"ping").await.unwrap();
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).await.unwrap();
        live.replace(&next, &SERVER);
        server.live.reload().unwrap();
    }
}

#[tokio::test]
async fn broken_files_keep_the_old_certificate() {
    let (live, next) = (Certs::new(), Certs::new());
    let server = Server::start(live.server()).await;
    let client = trusting(&[&live, &next]).load().unwrap();
    let before = certificate(&live);
    let (cert, key) = (live.file("server.crt"), live.file("server.key"));
    let breaks: [(&str, &dyn Fn()); 4] = [
        ("no PEM", &|| std::fs::write(&cert, "nothing").unwrap()),
        ("the certificate without its key", &|| live.replace(&next, &["server.crt"])),
        ("cut off", &|| {
            let text = std::fs::read(&cert).unwrap();
            std::fs::write(&cert, &text[..text.len() / 2]).unwrap();
        }),
        ("gone", &|| std::fs::remove_file(&key).unwrap()),
    ];
    for (case, break_it) in breaks {
        break_it();
        let error = server.live.reload().expect_err(case).to_string();
        assert!(error.contains("server."), "{case}: {error}");
        let seen = call(client.for_worker("w-1").unwrap(), "localhost", server.address).await.unwrap();
        assert_eq!(seen.certificate, before, "{case}");
    }
    live.replace(&next, &SERVER);
    assert!(server.live.reload().unwrap());
    assert!(!server.live.reload().unwrap(), "nothing is new");
    let seen = call(client.for_worker("w-1").unwrap(), "localhost", server.address).await.unwrap();
    assert_eq!(seen.certificate, certificate(&next));
}

/// A client that keeps tickets.
fn resuming(client: ClientTls) -> Arc<ClientConfig> {
    let mut config = client.load().unwrap().for_worker("w-1").unwrap();
    config.resumption = Resumption::in_memory_sessions(8);
    Arc::new(config)
}

#[tokio::test]
async fn tickets_work_over_a_swap() {
    let (live, next) = (Certs::new(), Certs::new());
    let server = Server::start(live.server()).await;
    let config = resuming(trusting(&[&live]));
    let resumed = async || call_with(Arc::clone(&config), "localhost", server.address).await.unwrap().resumed;
    assert!(!resumed().await);
    assert!(resumed().await);
    live.replace(&next, &SERVER);
    assert!(server.live.reload().unwrap());
    // This client does not trust the new certificate: only its ticket lets it in.
    assert!(resumed().await);
}

#[tokio::test]
async fn a_ticket_does_not_outlive_the_ca_of_the_client() {
    let (live, next) = (Certs::new(), Certs::new());
    let tls =
        ServerTls { client_ca_file: Some(live.file("ca.crt")), client_auth: ClientAuth::Required, ..live.server() };
    let ca = live.file("old-ca.crt");
    std::fs::copy(live.file("ca.crt"), &ca).unwrap();
    let server = Server::start(tls).await;
    let config = resuming(ClientTls { ca_file: Some(ca.clone()), ..live.control_plane() });
    for resumed in [false, true] {
        let seen = call_with(Arc::clone(&config), "localhost", server.address).await.unwrap();
        assert_eq!(seen.resumed, resumed);
    }
    // The names are known on a resumed connection too.
    assert!(server.seen.clients.lock().unwrap().iter().all(Option::is_some));
    live.replace(&next, &["ca.crt"]);
    assert!(server.live.reload().unwrap());
    assert!(call_with(Arc::clone(&config), "localhost", server.address).await.is_err());
    let newcomer = ClientTls { ca_file: Some(ca), ..next.control_plane() };
    call_worker(newcomer, &server).await.unwrap();
}

#[tokio::test]
async fn the_client_swaps_too_and_keeps_the_old_on_an_error() {
    let (live, next) = (Certs::new(), Certs::new());
    let old = Server::start(Certs::worker(&live)).await;
    let new = Server::start(Certs::worker(&next)).await;
    let client = live.control_plane().load().unwrap();
    let reaches =
        async |server: &Server| call(client.for_worker("w-1").unwrap(), "localhost", server.address).await.is_ok();
    assert!(reaches(&old).await);
    assert!(!reaches(&new).await);
    assert!(!client.reload().unwrap(), "nothing is new");
    std::fs::write(live.file("ca.crt"), "nothing").unwrap();
    client.reload().unwrap_err();
    assert!(reaches(&old).await);
    live.replace(&next, &["ca.crt"]);
    assert!(client.reload().unwrap());
    assert!(reaches(&new).await);
    assert!(!reaches(&old).await);
}
