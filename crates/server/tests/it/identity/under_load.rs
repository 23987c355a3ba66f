//! Keys, revocations and certificates change while everybody works, and no good request fails.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use reqwest::Method;
use serde_json::json;
use tenure_auth::Secret;
use tenure_auth::WorkerKeys;
use tenure_auth::worker::{Audience, MintRequest, SigningKey};
use tenure_testkit::wait_until;
use tenure_tls::{ServerTls, dev_certs};

use crate::cases;
use crate::harness::{SOON, Server};
use crate::identity::people::{ADMIN, USER, delete, get, made, post, restarted, set, with_users};
use crate::identity::provider::now;

cases!(
    Server,
    on_both_stores: [keys_rotate_and_others_are_revoked_while_everybody_works],
);

fn key(n: usize) -> SigningKey {
    SigningKey::new(&format!("signing-key-number-{n}-with-at-least-32-bytes")).unwrap()
}

/// Workers with the key of this turn and of the one before.
fn rotated(server: &Server, turn: usize) {
    set(server, |access| {
        access.workers.keys.active = Some(key(turn));
        access.workers.keys.rotation = vec![key(turn.saturating_sub(1))];
        access.workers.shared_previous = access.workers.shared.take();
        access.workers.shared = Secret::new(&format!("shared-{turn}"));
    });
}

async fn claims(server: &Server, worker: &str, token: &str) -> u16 {
    let body = json!({"worker_id": worker, "streams": ["q"], "max_wait_ms": 0});
    let headers = [("X-Worker-Token", token), ("X-Worker-ID", worker)];
    server.call(Method::POST, "/internal/worker/claim", &headers, Some(&body)).await.status.as_u16()
}

async fn keys_rotate_and_others_are_revoked_while_everybody_works(server: Server) {
    with_users(&server);
    rotated(&server, 0);
    let good = made(&server, json!({"tenant": "acme"})).await;
    let (turn, done, rounds) = (AtomicUsize::new(0), AtomicBool::new(false), AtomicUsize::new(0));
    let workers = async {
        while !done.load(Ordering::SeqCst) {
            // The turn may go on by one before the token arrives: both keys count then.
            let turn = turn.load(Ordering::SeqCst);
            let keys = WorkerKeys { active: Some(key(turn)), ..WorkerKeys::default() };
            let minted = keys.mint(&MintRequest::new("w-1", Audience::ControlPlane, now())).unwrap();
            for (worker, token) in [("w-1", minted.token.reveal()), ("w-2", &format!("shared-{turn}"))] {
                assert_eq!(claims(&server, worker, token).await, 200, "turn {turn}");
            }
            rounds.fetch_add(1, Ordering::SeqCst);
        }
    };
    let users = async {
        while !done.load(Ordering::SeqCst) {
            for who in [good.header(), USER, ADMIN] {
                assert_eq!(get(&server, &[who], "/api/v1/whoami").await.status.as_u16(), 200);
            }
        }
    };
    let operator = async {
        for n in 1..=15 {
            let lost = made(&server, json!({"tenant": "acme"})).await;
            let token = json!({"token_id": format!("lost-{n}")});
            post(&server, &[ADMIN], "/api/v1/admin/worker-tokens/revocations", token).await.ok();
            delete(&server, &[ADMIN], &format!("/api/v1/admin/api-keys/{}", lost.id)).await.ok();
            assert_eq!(get(&server, &[lost.header()], "/api/v1/whoami").await.status.as_u16(), 401);
            rotated(&server, n);
            turn.store(n, Ordering::SeqCst);
            // Who took a token of the turn before gets the time to use it.
            let seen = rounds.load(Ordering::SeqCst);
            wait_until("everybody went on", SOON, async || rounds.load(Ordering::SeqCst) >= seen + 2).await;
            if n > 1 {
                assert_eq!(claims(&server, "w-2", &format!("shared-{}", n - 2)).await, 401, "two turns ago");
            }
        }
        done.store(true, Ordering::SeqCst);
    };
    tokio::join!(workers, users, operator);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_change_while_everybody_connects() {
    let folder = tempfile::tempdir().unwrap();
    let generations: Vec<_> = (0..6).map(|n| folder.path().join(n.to_string())).collect();
    for generation in &generations {
        dev_certs(generation, &[], &[]).unwrap();
    }
    let (cert, key) = (folder.path().join("server.crt"), folder.path().join("server.key"));
    let install = |generation: &Path| {
        std::fs::copy(generation.join("server.crt"), &cert).unwrap();
        std::fs::copy(generation.join("server.key"), &key).unwrap();
    };
    install(&generations[0]);
    let tls = Arc::new(ServerTls::new(&cert, &key).load().unwrap());
    let server = restarted(Server::sqlite().await, |_, config| config.tls = Some(Arc::clone(&tls))).await;
    with_users(&server);
    let url = format!("{}/api/v1/whoami", server.url.replace("http://", "https://"));
    let roots = generations
        .iter()
        .map(|generation| reqwest::Certificate::from_pem(&std::fs::read(generation.join("ca.crt")).unwrap()).unwrap());
    let roots: Vec<_> = roots.collect();
    let (done, counts) = (AtomicBool::new(false), [AtomicUsize::new(0), AtomicUsize::new(0)]);
    // One that keeps its connection, and one that makes a new one for each call.
    let calls = |idle: usize| {
        let count = &counts[idle];
        let builder = reqwest::Client::builder().tls_certs_only(roots.clone()).pool_max_idle_per_host(idle);
        let (client, done, url) = (builder.build().unwrap(), &done, &url);
        async move {
            while !done.load(Ordering::SeqCst) {
                let answer = client.get(url).header(USER.0, USER.1).send().await.unwrap();
                assert_eq!(answer.status().as_u16(), 200);
                count.fetch_add(1, Ordering::SeqCst);
            }
        }
    };
    let both_go_on = async || {
        let seen = counts.each_ref().map(|count| count.load(Ordering::SeqCst));
        wait_until("both go on", SOON, async || {
            counts.iter().zip(seen).all(|(count, seen)| count.load(Ordering::SeqCst) >= seen + 3)
        })
        .await;
    };
    let operator = async {
        for generation in generations.iter().skip(1) {
            both_go_on().await;
            // For a moment the certificate is new and the key is not: that is refused and the old pair serves on.
            std::fs::copy(generation.join("server.crt"), &cert).unwrap();
            assert!(tls.reload().is_err());
            both_go_on().await;
            install(generation);
            assert!(tls.reload().unwrap());
        }
        both_go_on().await;
        done.store(true, Ordering::SeqCst);
    };
    tokio::join!(calls(1), calls(0), operator);
}
