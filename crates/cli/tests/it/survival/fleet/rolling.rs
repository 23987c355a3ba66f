//! Three control planes and two workers, restarted one after the other while their sandboxes are used.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures_util::future::join_all;
use serde_json::Value;
use tenure_testkit::{Postgres, wait_until};

use super::kit::{Node, User, all_online, balance, plane, plane_beside, processes, text};
use crate::survival::kit::{PATIENCE, Site};

/// Sandboxes that are there all the time.
const KEPT: usize = 5;
/// Users who create and destroy meanwhile.
const USERS: usize = 2;

fn address(site: &Site) -> std::net::SocketAddr {
    site.url.strip_prefix("http://").unwrap().parse().unwrap()
}

/// Creates, uses and destroys until it is over. Returns how often.
async fn come_and_go(user: &User, over: &AtomicBool) -> usize {
    let mut rounds = 0;
    while !over.load(Ordering::SeqCst) {
        let row = user.create(&format!("{}-{rounds}", user.owner), "10m").await;
        let id = text(&row, "id");
        user.write(id, "/workspace/a", "mine").await;
        assert_eq!(user.read(id, "/workspace/a").await, "mine");
        assert_eq!(user.runtime(id).await, text(&row, "vm_id"));
        user.destroy(id).await;
        rounds += 1;
    }
    rounds
}

/// Uses the sandboxes that stay.
async fn use_kept(user: &User, kept: &[Value], over: &AtomicBool, uses: &AtomicUsize) {
    for turn in 0.. {
        if over.load(Ordering::SeqCst) {
            return;
        }
        let row = &kept[turn % kept.len()];
        assert_eq!(user.runtime(text(row, "id")).await, text(row, "vm_id"));
        assert_eq!(user.read(text(row, "id"), "/workspace/kept").await, text(row, "id"));
        uses.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_under_load_loses_no_sandbox_and_leaks_none() {
    let database = Postgres::shared().await.database().await;
    let first = plane(Some(database.url()), 0, 0).await;
    let (second, third) = (plane_beside(&first).await, plane_beside(&first).await);
    let mut sites = [first, second, third];
    let shared = balance(sites.iter().map(address).collect()).await;
    let mut nodes = [Node::new("w1", &shared, 0), Node::new("w2", &shared, 0)];
    nodes.iter_mut().for_each(Node::start);
    all_online(&sites[0], 2).await;
    let urls: Vec<String> = sites.iter().map(|site| site.url.clone()).collect();
    let keeper = User::new(urls.clone(), "keeper");
    let kept = join_all((0..KEPT).map(|number| {
        let keeper = keeper.clone();
        async move {
            let row = keeper.create(&format!("kept-{number}"), "1h").await;
            keeper.write(text(&row, "id"), "/workspace/kept", text(&row, "id")).await;
            row
        }
    }))
    .await;

    let (over, uses) = (AtomicBool::new(false), AtomicUsize::new(0));
    let restart = async {
        for site in &mut sites {
            assert!(site.server.take().unwrap().terminate().await.success(), "it ended in order");
            site.start_again().await;
            used_again(&uses).await;
        }
        for node in &mut nodes {
            let mut child = node.child.take().unwrap();
            let ended = child.terminate().await;
            assert!(ended.success(), "{ended}: {}", child.output().stderr);
            node.start();
            used_again(&uses).await;
        }
        over.store(true, Ordering::SeqCst);
    };
    let users: Vec<User> = (0..USERS).map(|number| User::new(urls.clone(), &format!("user{number}"))).collect();
    let coming = join_all(users.iter().map(|user| come_and_go(user, &over)));
    let (_, rounds, ()) = tokio::join!(restart, coming, use_kept(&keeper, &kept, &over, &uses));
    eprintln!("{rounds:?} sandboxes came and went, those that stayed were used {} times", uses.load(Ordering::SeqCst));

    // What stayed is as it was, and nothing else is left.
    for row in &kept {
        assert_eq!(keeper.read(text(row, "id"), "/workspace/kept").await, text(row, "id"));
    }
    let wanted: Vec<String> = sorted(kept.iter().map(|row| text(row, "vm_id").to_owned()));
    wait_until("the workers have what stayed and nothing else", PATIENCE, async || {
        sorted(nodes.iter().flat_map(Node::runtimes)) == wanted
    })
    .await;
    join_all(kept.iter().map(|row| keeper.destroy(text(row, "id")))).await;
    for node in &nodes {
        node.has_nothing().await;
    }
    assert!(processes(&[&nodes[0], &nodes[1]]).is_empty());
}

fn sorted(names: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut names: Vec<String> = names.into_iter().collect();
    names.sort();
    names
}

/// Each of those that stay was used after what just happened.
async fn used_again(uses: &AtomicUsize) {
    let before = uses.load(Ordering::SeqCst);
    wait_until("sandboxes are used", PATIENCE, async || uses.load(Ordering::SeqCst) > before + KEPT).await;
}
