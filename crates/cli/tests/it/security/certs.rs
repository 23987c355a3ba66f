//! Certificates that change under load: new connections get the new one, and none is refused.

use std::os::unix::fs::symlink;

use reqwest::tls::TlsInfo;
use reqwest::{Certificate, Client};
use tenure_testkit::{Signal, wait_until};

use crate::security::kit::{ADMIN_KEY, API_KEY, Caller, Desk, PATIENCE, roots};
use crate::security::load::Load;

const TOKEN: &str = "token-that-workers-share-0123456789";

fn yaml(cert: &str, key: &str) -> String {
    format!(
        "auth: {{enabled: true, api_key: {API_KEY}, admin_api_key: {ADMIN_KEY}, worker_token: {TOKEN}}}
server: {{tls: {{cert_file: {cert}, key_file: {key}}}}}
"
    )
}

/// A client that makes a new connection for every call.
fn fresh(trusted: &[Certificate]) -> Client {
    let http = Client::builder().timeout(PATIENCE).pool_max_idle_per_host(0).tls_info(true);
    http.tls_certs_only(trusted.iter().cloned()).build().unwrap()
}

/// The certificate that new clients get. One that comes back with a ticket is not shown any.
async fn served(trusted: &[Certificate], url: &str) -> Vec<u8> {
    let response = fresh(trusted).get(format!("{url}/api/v1/live")).send().await.unwrap();
    response.extensions().get::<TlsInfo>().unwrap().peer_certificate().unwrap().to_vec()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_swapped_under_load_without_one_failed_call() {
    let desk = Desk::new();
    let folders = ["certs-1", "certs-2", "certs-3", "certs-4"];
    let mut trusted = Vec::new();
    for folder in folders {
        desk.certs(folder).await;
        trusted.extend(roots(&desk.path(&format!("{folder}/ca.crt"))));
    }
    // As Kubernetes mounts secrets: both files change at once, with a link.
    let point_to = |folder: &str| {
        symlink(folder, desk.path("live.new")).unwrap();
        std::fs::rename(desk.path("live.new"), desk.path("live")).unwrap();
    };
    point_to(folders[0]);
    let mut server = desk.serve(&yaml("live/server.crt", "live/server.key")).await;
    let url = server.url().to_owned();
    let bare = Caller::with(&url, fresh(&trusted));
    let mut load = Load::default();
    load.submits("user", bare.user());
    load.works("w-1", bare.worker("w-1", TOKEN));
    load.settle().await;

    let mut seen = vec![served(&trusted, &url).await];
    let changed = async |seen: &mut Vec<Vec<u8>>| {
        let new = wait_until("another certificate is served", PATIENCE, async || {
            let now = served(&trusted, &url).await;
            (now != *seen.last().unwrap()).then_some(now)
        });
        seen.push(new.await);
    };
    for folder in &folders[1..3] {
        point_to(folder);
        changed(&mut seen).await;
        load.settle().await;
    }
    point_to(folders[0]);
    server.signal(Signal::SIGHUP);
    changed(&mut seen).await;
    assert_eq!(seen[3], seen[0], "the first one again");

    // Other files, named by the configuration.
    desk.file("tenure.yaml", &yaml("certs-4/server.crt", "certs-4/server.key"));
    changed(&mut seen).await;
    load.settle().await;

    // A certificate without its key is not taken.
    let failures = async || bare.admin().counter("tenure_config_reload_failures_total").await;
    let before = failures().await;
    desk.file("tenure.yaml", &yaml("certs-1/server.crt", "certs-4/server.key"));
    server.signal(Signal::SIGHUP);
    wait_until("the pair is refused", PATIENCE, async || failures().await > before).await;
    assert_eq!(served(&trusted, &url).await, seen[4]);
    desk.file("tenure.yaml", &yaml("certs-1/server.crt", "certs-1/server.key"));
    server.signal(Signal::SIGHUP);
    changed(&mut seen).await;
    load.finish().await;
}

#[tokio::test]
async fn client_certificates_can_be_asked_for_without_a_restart() {
    let desk = Desk::new();
    desk.certs("certs").await;
    let without = yaml("certs/server.crt", "certs/server.key");
    let mut server = desk.serve(&without).await;
    let trust = roots(&desk.path("certs/ca.crt"));
    let (stranger, url) = (fresh(&trust), format!("{}/api/v1/live", server.url()));
    assert!(stranger.get(&url).send().await.is_ok());
    desk.file("tenure.yaml", &without.replace("cert_file", "client_ca_file: certs/ca.crt, cert_file"));
    server.signal(Signal::SIGHUP);
    wait_until("strangers are refused", PATIENCE, async || stranger.get(&url).send().await.is_err()).await;
    desk.file("tenure.yaml", &without);
    server.signal(Signal::SIGHUP);
    wait_until("strangers are let in again", PATIENCE, async || stranger.get(&url).send().await.is_ok()).await;
    assert!(server.wait_for_stderr("server.tls.client_ca_file", PATIENCE).await.contains("changed: "));
}
