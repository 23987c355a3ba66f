//! Is it the worker that was meant?

use tenure_tls::{BindWorkerId, ClientTls};

use crate::stand::{Certs, Server, call};

#[tokio::test]
async fn a_certificate_of_another_worker_is_refused_before_any_byte_of_the_request() {
    let certs = Certs::new();
    let table = [
        (BindWorkerId::Off, "w-1", true),
        (BindWorkerId::Off, "w-2", true),
        (BindWorkerId::Warn, "w-1", true),
        (BindWorkerId::Warn, "w-2", true),
        (BindWorkerId::Require, "w-1", true),
        (BindWorkerId::Require, "w-2", false),
        (BindWorkerId::Require, "w-10", false),
        (BindWorkerId::Require, "W-1", false),
    ];
    for (bind_worker_id, worker_id, accepted) in table {
        let server = Server::start(certs.worker()).await;
        let client = ClientTls { bind_worker_id, ..certs.trusting() };
        let config = client.load().unwrap().for_worker(worker_id).unwrap();
        let result = call(config, "localhost", server.address).await;
        assert_eq!(result.is_ok(), accepted, "{bind_worker_id:?} {worker_id}");
        let bytes = if accepted { 4 } else { 0 };
        assert_eq!(server.bytes(), bytes, "{bind_worker_id:?} {worker_id}");
        if let Err(error) = result {
            assert!(error.contains("NotThisWorker"), "{error}");
            assert!(server.seen.clients.lock().unwrap().is_empty(), "the handshake succeeded");
        }
    }
}

#[tokio::test]
async fn skipping_verification_does_not_skip_the_binding() {
    let certs = Certs::new();
    let server = Server::start(certs.server()).await;
    let client =
        ClientTls { insecure_skip_verify: true, bind_worker_id: BindWorkerId::Require, ..ClientTls::default() };
    let config = client.load().unwrap().for_worker("w-1").unwrap();
    assert!(call(config, "localhost", server.address).await.is_err());
    assert_eq!(server.bytes(), 0);
}

#[tokio::test]
async fn one_client_tells_workers_apart_on_every_connection() {
    let certs = Certs::new();
    let server = Server::start(certs.worker()).await;
    let client = ClientTls { bind_worker_id: BindWorkerId::Require, ..certs.trusting() }.load().unwrap();
    for _ in 0..3 {
        let good = call(client.for_worker("w-1").unwrap(), "localhost", server.address).await.unwrap();
        assert!(!good.resumed);
        assert!(call(client.for_worker("w-2").unwrap(), "localhost", server.address).await.is_err());
    }
    assert_eq!(server.bytes(), 12);
}
