//! Is it the server that was meant?

use std::sync::Arc;

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ProtocolVersion, RootCertStore};
use tenure_tls::ClientTls;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::stand::{Certs, Server, call, call_worker};

#[tokio::test]
async fn a_server_of_the_ca_is_accepted_by_each_of_its_names() {
    let certs = Certs::new();
    let server = Server::start(certs.server()).await;
    for name in ["localhost", "127.0.0.1", "::1"] {
        let config = certs.trusting().load().unwrap().for_worker("w-1").unwrap();
        call(config, name, server.address).await.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    assert_eq!(server.bytes(), 12);
}

#[tokio::test]
async fn a_wrong_name_and_a_wrong_ca_are_refused_before_anything_is_said() {
    let (certs, others) = (Certs::new(), Certs::new());
    let server = Server::start(certs.server()).await;
    let config = certs.trusting().load().unwrap().for_worker("w-1").unwrap();
    let error = call(config, "other.example", server.address).await.err().unwrap();
    assert!(error.contains("not valid for name"), "{error}");
    let error = call_worker(others.trusting(), &server).await.err().unwrap();
    assert!(error.contains("UnknownIssuer"), "{error}");
    assert_eq!(server.bytes(), 0);
}

#[tokio::test]
async fn a_configured_name_takes_the_place_of_the_one_that_is_dialled() {
    let certs = Certs::new();
    let server = Server::start(certs.worker()).await;
    let named = |name: Option<&str>, of_worker: &[(&str, &str)]| ClientTls {
        server_name: name.map(str::to_owned),
        server_names: of_worker.iter().map(|(id, name)| ((*id).to_owned(), (*name).to_owned())).collect(),
        ..certs.trusting()
    };
    let table = [
        (named(None, &[]), false),
        (named(Some("localhost"), &[]), true),
        (named(Some("other.example"), &[]), false),
        (named(Some("other.example"), &[("w-1", "w-1")]), true),
        (named(Some("localhost"), &[("w-1", "other.example")]), false),
        (named(Some("localhost"), &[("w-2", "other.example")]), true),
    ];
    for (client, accepted) in table {
        let context = format!("{:?} {:?}", client.server_name, client.server_names);
        let config = client.load().unwrap().for_worker("w-1").unwrap();
        let result = call(config, "dialled.example", server.address).await;
        assert_eq!(result.is_ok(), accepted, "{context}: {:?}", result.err());
    }
}

#[tokio::test]
async fn skipping_verification_accepts_a_stranger_and_still_encrypts() {
    let certs = Certs::new();
    let server = Server::start(certs.server()).await;
    let client = ClientTls { insecure_skip_verify: true, ..ClientTls::default() };
    let config = client.load().unwrap().for_worker("w-1").unwrap();
    call(config, "whoever.example", server.address).await.unwrap();
}

#[tokio::test]
async fn tls_1_2_and_1_3_are_spoken_and_protocols_are_agreed() {
    let certs = Certs::new();
    let server = Server::start(certs.server()).await;
    let mut roots = RootCertStore::empty();
    let ca = std::fs::read(certs.file("ca.crt")).unwrap();
    roots.add(CertificateDer::from_pem_slice(&ca).unwrap()).unwrap();
    for (version, expected) in [(&TLS12, ProtocolVersion::TLSv1_2), (&TLS13, ProtocolVersion::TLSv1_3)] {
        for (offered, agreed) in [(vec!["http/1.1"], "http/1.1"), (vec!["http/1.1", "h2"], "h2")] {
            let mut config = ClientConfig::builder_with_provider(default_provider().into())
                .with_protocol_versions(&[version])
                .unwrap()
                .with_root_certificates(roots.clone())
                .with_no_client_auth();
            config.alpn_protocols = offered.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
            let stream = TcpStream::connect(server.address).await.unwrap();
            let connector = TlsConnector::from(Arc::new(config));
            let stream = connector.connect("localhost".try_into().unwrap(), stream).await.unwrap();
            assert_eq!(stream.get_ref().1.protocol_version(), Some(expected));
            assert_eq!(stream.get_ref().1.alpn_protocol(), Some(agreed.as_bytes()));
        }
    }
}
