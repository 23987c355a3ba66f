//! Two control planes that are asked for more than there may be, at the same time.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use serde_json::{Value, json};
use tenure_testkit::Postgres;

use super::kit::{Node, User, all_online, plane, plane_beside, text};

const OWNERS: [&str; 3] = ["ann", "bob", "cem"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_control_planes_respect_every_cap_under_concurrent_creates() {
    let database = Postgres::shared().await.database().await;
    // Three of each owner fit, and seven of all; the workers have room for eight.
    let first = plane(Some(database.url()), 7, 3).await;
    let second = plane_beside(&first).await;
    let mut nodes = [Node::new("w1", &first.url, 4), Node::new("w2", &second.url, 4)];
    nodes.iter_mut().for_each(Node::start);
    for site in [&first, &second] {
        all_online(site, 2).await;
    }
    let urls = vec![first.url.clone(), second.url.clone()];
    let user = |owner: &str| User::new(urls.clone(), owner);
    for round in 0..3 {
        let creates = (0..24).map(|number| {
            let user = user(OWNERS[number % OWNERS.len()]);
            async move { user.create_once(number, &format!("r{round}-{number}"), "10m").await.expect("an answer") }
        });
        let answers = join_all(creates).await;
        let made: Vec<&Value> = answers.iter().filter(|(status, _)| *status == 201).map(|(_, row)| row).collect();
        assert_eq!(made.len(), 7, "the cap on all, and no less: {answers:?}");
        for (status, answer) in answers.iter().filter(|(status, _)| *status != 201) {
            assert_eq!((*status, &answer["code"]), (429, &json!("RESOURCE_LIMIT")), "{answer}");
        }
        let mut by_owner: BTreeMap<&str, usize> = BTreeMap::new();
        for row in &made {
            *by_owner.entry(text(row, "owner_id")).or_default() += 1;
        }
        assert!(by_owner.values().all(|count| *count <= 3), "{by_owner:?}");
        let held: Vec<usize> = nodes.iter().map(|node| node.runtimes().len()).collect();
        assert!(held.iter().all(|count| *count <= 4) && held.iter().sum::<usize>() == 7, "{held:?}");
        join_all(made.iter().map(|row| {
            let (user, id) = (user(text(row, "owner_id")), text(row, "id"));
            async move { user.destroy(id).await }
        }))
        .await;
    }
    for node in &nodes {
        node.has_nothing().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_control_planes_do_not_overfill_a_worker() {
    let database = Postgres::shared().await.database().await;
    let first = plane(Some(database.url()), 0, 0).await;
    let second = plane_beside(&first).await;
    let mut nodes = [Node::new("w1", &first.url, 3), Node::new("w2", &second.url, 2)];
    nodes.iter_mut().for_each(Node::start);
    for site in [&first, &second] {
        all_online(site, 2).await;
    }
    let user = User::new(vec![first.url.clone(), second.url.clone()], "ann");
    let creates = (0..16).map(|number| {
        let user = user.clone();
        async move { user.create_once(number, &format!("k{number}"), "10m").await.expect("an answer").0 }
    });
    let statuses = join_all(creates).await;
    let made = statuses.iter().filter(|status| **status == 201).count();
    assert_eq!(made, 5, "{statuses:?}");
    let rows = user.list().await;
    for (node, room) in nodes.iter().zip([3, 2]) {
        let placed = rows.iter().filter(|row| row["worker_id"] == node.id && row["state"] == "running").count();
        assert_eq!((node.runtimes().len(), placed), (room, room), "{rows:?}");
    }
    join_all(rows.iter().map(|row| user.destroy(text(row, "id")))).await;
    for node in &nodes {
        node.has_nothing().await;
    }
}
