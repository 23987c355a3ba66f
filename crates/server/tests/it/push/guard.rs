//! Addresses that nothing is pushed to.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use serde_json::json;
use tenure_outbound::{Outbound, Policy, Resolver, Trust};
use tenure_testkit::wait_until;

use crate::cases;
use crate::harness::{Home, SOON, Server};
use crate::push::kit::{self, Worker, at_once, deliveries, keys, on, push_to, targets};

cases!(
    kit,
    on_sqlite: [addresses_that_nobody_may_name_are_refused],
);

/// Says for each look-up what the name resolves to; the last one stays.
#[derive(Clone, Default)]
struct Names(Arc<Mutex<(Vec<Vec<IpAddr>>, usize)>>);

impl Names {
    fn saying(answers: &[&[&str]]) -> Self {
        let parsed = answers.iter().map(|all| all.iter().map(|text| text.parse().unwrap()).collect()).collect();
        Self(Arc::new(Mutex::new((parsed, 0))))
    }

    fn asked(&self) -> usize {
        self.0.lock().unwrap().1
    }

    fn now(&self, addresses: &[&str]) {
        self.0.lock().unwrap().0 = vec![addresses.iter().map(|text| text.parse().unwrap()).collect()];
    }
}

impl Resolver for Names {
    fn lookup(&self, _: &str) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>> {
        let mut names = self.0.lock().unwrap();
        names.1 += 1;
        let next = if names.0.len() > 1 { names.0.remove(0) } else { names.0[0].clone() };
        Box::pin(async move { Ok(next) })
    }
}

async fn resolving(policy: Policy, names: &Names) -> Server {
    let client = Outbound::with_resolver(policy, &Trust::System, names.clone()).unwrap();
    let home = Arc::new(Home::Sqlite(tempfile::tempdir().unwrap()));
    on(home, Arc::default(), Some(targets(client)), keys()).await
}

fn dev() -> Policy {
    Policy { allow_http: true, allow_loopback: true, ..Policy::default() }
}

async fn addresses_that_nobody_may_name_are_refused(server: Server) {
    for (url, word) in [
        ("http://169.254.169.254/latest", "metadata"),
        ("http://[::ffff:169.254.169.254]/", "metadata"),
        ("http://[::ffff:a9fe:a9fe]/", "metadata"),
        ("http://0xa9fea9fe/", "metadata"),
        ("http://[fd00:ec2::254]/", "metadata"),
        ("http://10.0.0.1/", "push.allow_cidrs"),
        ("http://[::ffff:10.0.0.1]/", "push.allow_cidrs"),
        ("http://100.64.0.1/", "push.allow_cidrs"),
        ("http://[fc00::1]/", "push.allow_cidrs"),
        ("http://0.0.0.0/", "unspecified"),
        ("http://224.0.0.1/", "multicast"),
        ("http://255.255.255.255/", "broadcast"),
        ("http://[fe80::1]/", "link-local"),
        ("http://u:hunter2@127.0.0.1/", "header"),
        ("ftp://127.0.0.1/", "https"),
        ("worker/dispatch", "https://host/path"),
        ("", "must have 1 to"),
    ] {
        let refused = push_to(&server, url, json!({})).await.refused(422);
        assert_eq!((&refused["error"], &refused["field"]), (&json!("invalid_argument"), &json!("push.url")), "{url}");
        let message = refused["message"].as_str().unwrap();
        assert!(message.contains(word) && !message.contains("hunter2"), "{url}: {message}");
    }
    server.get("/api/v1/queues/q").await.refused(404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outside_of_dev_mode_http_and_this_machine_are_refused() {
    let names = Names::saying(&[&["1.1.1.1"]]);
    let server = resolving(Policy::default(), &names).await;
    for (url, word) in [
        ("http://worker.example/", "push.allow_http"),
        ("https://127.0.0.1/", "dev mode"),
        ("https://[::1]/", "dev mode"),
        ("https://[::ffff:127.0.0.1]/", "dev mode"),
    ] {
        let refused = push_to(&server, url, json!({})).await.refused(422);
        assert!(refused["message"].as_str().unwrap().contains(word), "{refused}");
    }
    push_to(&server, "https://worker.example/dispatch", json!({})).await.ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_is_judged_by_every_address_that_it_resolves_to() {
    for (addresses, word) in [
        (&["10.0.0.1"][..], "push.allow_cidrs"),
        (&["1.1.1.1", "192.168.0.1"], "push.allow_cidrs"),
        (&["::ffff:169.254.169.254"], "metadata"),
        (&["1.1.1.1", "fe80::1"], "link-local"),
    ] {
        let names = Names::saying(&[addresses]);
        let server = resolving(dev(), &names).await;
        let refused = push_to(&server, "https://worker.example/dispatch", json!({})).await.refused(422);
        let message = refused["message"].as_str().unwrap();
        assert!(message.contains(word) && message.contains("worker.example"), "{message}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_private_range_that_is_listed_is_allowed() {
    let names = Names::saying(&[&["10.1.2.3"]]);
    let policy = Policy { allow_cidrs: vec!["10.1.0.0/16".parse().unwrap()], ..Policy::default() };
    let server = resolving(policy, &names).await;
    push_to(&server, "https://worker.example/dispatch", json!({})).await.ok();
    names.now(&["10.2.0.1"]);
    push_to(&server, "https://worker.example/dispatch", json!({})).await.refused(422);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_turns_bad_after_it_was_set_is_not_connected_to() {
    let worker = Worker::answering(202).await;
    let names = Names::saying(&[&["127.0.0.1"], &["127.0.0.1", "169.254.169.254"]]);
    let server = resolving(dev(), &names).await;
    push_to(&server, &format!("http://worker.example:{}/dispatch", worker.port), json!({})).await.ok();
    let task = server.submit(at_once(1)).await;
    wait_until("a few pushes that were held back", SOON, async || {
        server.advance(200);
        (deliveries(&server, &task).await >= 3).then_some(())
    })
    .await;
    assert_eq!((worker.count(), server.state(&task).await.as_str()), (0, "Running"), "the attempt is not spent");

    // What is judged is what is connected to: with one look-up for each connection.
    let before = names.asked();
    names.now(&["127.0.0.1"]);
    let pushed = wait_until("the push", SOON, async || {
        server.advance(200);
        worker.pushed().first().cloned()
    })
    .await;
    assert!(names.asked() > before);
    pushed.succeed().await;
    server.until(&task, "Succeeded").await;
}
