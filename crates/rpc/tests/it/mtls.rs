//! TLS with certificates on both sides.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;
use tenure_rpc::{Call, Capabilities, Client, Error, Settings, Target, new_request_id};
use tenure_tls::{BindWorkerId, LiveServer, RpcTls, dev_certs};

use super::kit::*;
use super::wire::{hear, server};

struct Certs(TempDir);

impl Certs {
    /// With a certificate for this worker.
    fn for_worker(worker_id: &str) -> Self {
        let folder = TempDir::new().unwrap();
        dev_certs(folder.path(), &[], &[worker_id.to_owned()]).unwrap();
        Self(folder)
    }

    fn new() -> Self {
        Self::for_worker(WORKER)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn server(&self, worker_id: &str) -> Arc<LiveServer> {
        let tls = RpcTls {
            enabled: true,
            server_cert_file: Some(self.file(&format!("worker-{worker_id}.crt"))),
            server_key_file: Some(self.file(&format!("worker-{worker_id}.key"))),
            client_ca_file: Some(self.file("ca.crt")),
            ..RpcTls::default()
        };
        Arc::new(tls.server().unwrap().load().unwrap())
    }

    fn settings(&self) -> RpcTls {
        RpcTls {
            enabled: true,
            ca_file: Some(self.file("ca.crt")),
            client_cert_file: Some(self.file("client.crt")),
            client_key_file: Some(self.file("client.key")),
            bind_worker_id: BindWorkerId::Require,
            ..RpcTls::default()
        }
    }
}

fn calling(tls: &RpcTls) -> Client {
    Client::new(Settings::default(), Arc::new(shared(TOKEN)), Some(tls.client().load().unwrap()))
}

async fn worker(tls: &Arc<LiveServer>) -> Worker {
    Worker::with(Options { tls: Some(Arc::clone(tls)), ..Options::default() }).await
}

async fn call(client: &Client, target: &Target) -> Result<(), Error> {
    client.shutdown(target, Call::new(&new_request_id())).await
}

fn refused_before_sending(result: Result<(), Error>, part: &str) {
    match result {
        Err(Error::Unreachable { sent: false, message }) => assert!(message.contains(part), "{message}"),
        other => panic!("{other:?}, not {part:?}"),
    }
}

#[tokio::test]
async fn calls_streams_and_files_go_over_mutual_tls() {
    let certs = Certs::new();
    let worker = worker(&certs.server(WORKER)).await;
    let client = calling(&certs.settings());
    let target = worker.target();
    assert!(target.rpc_url.starts_with("https:"));
    spawn(&client, &target, "sb-1").await;
    assert_eq!(exec(&client, &target, "echo hi").await, "hi\n");
    let id = new_request_id();
    let mut stream = client.exec_stream(&target, Call::new(&id), &command("seq 100000")).await.unwrap();
    let (stdout, _, end) = drain(&mut stream).await;
    assert_eq!((stdout.len(), end), (588_895, Some(Ok(Some(0)))));
    let content = bytes::Bytes::from(vec![7; 3 << 20]);
    let pieces = futures_util::stream::iter([Ok::<_, String>(content.clone())]);
    client.write_file(&target, Call::new(&id), &file("/workspace/a"), "", None, pieces).await.unwrap();
    let mut read = client.read_file(&target, Call::new(&id), &file("/workspace/a")).await.unwrap();
    let mut all = Vec::new();
    while let Some(piece) = read.next().await {
        all.extend_from_slice(&piece.unwrap());
    }
    assert!(all == content);
    let start = tenure_rpc::wire::SocketStart { exec: command("cat"), ..tenure_rpc::wire::SocketStart::default() };
    let mut socket = client.exec_socket(&target, Call::new(&id), &start).await.unwrap();
    socket.send(&tenure_rpc::wire::SocketInput::StdinClose).await.unwrap();
    assert!(matches!(socket.next().await, Some(Ok(tenure_rpc::ExecEvent::End { exit_code: Some(0), .. }))));
}

#[tokio::test]
async fn a_worker_under_another_ca_or_with_another_name_is_not_called() {
    let (certs, others) = (Certs::new(), Certs::new());
    let worker = worker(&certs.server(WORKER)).await;
    let target = worker.target();
    let wrong_ca = RpcTls { ca_file: Some(others.file("ca.crt")), ..certs.settings() };
    refused_before_sending(call(&calling(&wrong_ca), &target).await, "not signed by a trusted CA");
    let wrong_name = RpcTls { server_name: Some("worker-b.internal".to_owned()), ..certs.settings() };
    refused_before_sending(call(&calling(&wrong_name), &target).await, "another name");
    // The entry of the worker takes precedence.
    let names = [(WORKER.to_owned(), WORKER.to_owned())].into_iter().collect();
    let own_name = RpcTls { server_names: names, ..wrong_name.clone() };
    call(&calling(&own_name), &target).await.unwrap();
    let anything = RpcTls { insecure_skip_verify: true, bind_worker_id: BindWorkerId::Off, ..wrong_name };
    call(&calling(&anything), &target).await.unwrap();
}

#[tokio::test]
async fn a_certificate_of_another_worker_is_refused_before_the_request_is_sent() {
    let certs = Certs::for_worker("worker-b");
    let worker = worker(&certs.server("worker-b")).await;
    let target = worker.target();
    for (bind, accepted) in [(BindWorkerId::Require, false), (BindWorkerId::Warn, true), (BindWorkerId::Off, true)] {
        let client = calling(&RpcTls { bind_worker_id: bind, ..certs.settings() });
        let result = call(&client, &target).await;
        match accepted {
            true => result.unwrap(),
            false => refused_before_sending(result, "the certificate is not for worker 'worker-a'"),
        }
    }
}

#[tokio::test]
async fn a_missing_or_foreign_client_certificate_is_refused_by_the_worker() {
    let (certs, others) = (Certs::new(), Certs::new());
    let worker = worker(&certs.server(WORKER)).await;
    let target = worker.target();
    let none = RpcTls { client_cert_file: None, client_key_file: None, ..certs.settings() };
    let foreign = RpcTls {
        client_cert_file: Some(others.file("client.crt")),
        client_key_file: Some(others.file("client.key")),
        ..certs.settings()
    };
    for tls in [none, foreign] {
        match call(&calling(&tls), &target).await {
            // A worker that says why has not read the request. Its reason may be lost.
            Err(Error::Unreachable { sent, message }) => {
                assert_eq!(sent, !message.contains("fatal alert"), "{message}")
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(!worker.node.is_draining(), "no call was executed");
}

fn replace(from: &Path, to: &Path) {
    let moving = to.with_extension("new");
    std::fs::copy(from, &moving).unwrap();
    std::fs::rename(moving, to).unwrap();
}

#[tokio::test]
async fn certificates_are_swapped_while_the_client_runs() {
    let (certs, next) = (Certs::new(), Certs::new());
    let client_files = TempDir::new().unwrap();
    let names = ["ca.crt", "client.crt", "client.key"];
    names.iter().for_each(|name| replace(&certs.file(name), &client_files.path().join(name)));
    let of = |name: &str| Some(client_files.path().join(name));
    let settings = RpcTls {
        ca_file: of("ca.crt"),
        client_cert_file: of("client.crt"),
        client_key_file: of("client.key"),
        ..certs.settings()
    };
    let (old, new) = (worker(&certs.server(WORKER)).await, worker(&next.server(WORKER)).await);
    let client = calling(&settings);
    refused_before_sending(call(&client, &new.target()).await, "not signed by a trusted CA");
    call(&client, &old.target()).await.unwrap();
    assert!(!client.reload_tls().unwrap(), "nothing changed");

    names.iter().for_each(|name| replace(&next.file(name), &client_files.path().join(name)));
    assert!(client.reload_tls().unwrap());
    // The connection that was kept was opened under the old CA.
    refused_before_sending(call(&client, &old.target()).await, "not signed by a trusted CA");
    call(&client, &new.target()).await.unwrap();

    std::fs::write(client_files.path().join("ca.crt"), "not a certificate").unwrap();
    assert!(client.reload_tls().is_err());
    call(&client, &new.target()).await.unwrap();

    client.replace_tls(Some(certs.settings().client().load().unwrap()));
    refused_before_sending(call(&client, &new.target()).await, "not signed by a trusted CA");
    call(&client, &old.target()).await.unwrap();
}

#[tokio::test]
async fn a_worker_that_must_prove_its_id_is_not_called_without_tls() {
    let certs = Certs::new();
    let client = calling(&certs.settings());
    let target = at("http://worker-a.invalid:7430", Capabilities::all());
    refused_before_sending(call(&client, &target).await, "bind_worker_id is require");
    let worker = Worker::start().await;
    call(&client, &worker.target()).await.unwrap();
}

#[tokio::test]
async fn a_worker_that_never_shakes_hands_is_given_up() {
    let certs = Certs::new();
    let (address, _) = server(|mut stream| async move {
        drop(hear(&mut stream).await);
        std::future::pending::<()>().await;
    })
    .await;
    let mut settings = Settings::default();
    settings.times.connect = std::time::Duration::from_millis(300);
    let tls = certs.settings().client().load().unwrap();
    let client = Client::new(settings, Arc::new(shared(TOKEN)), Some(tls));
    let target = at(&format!("https://localhost:{}", address.port()), Capabilities::all());
    refused_before_sending(call(&client, &target).await, "no connection to");
}
