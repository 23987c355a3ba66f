//! What is particular to Redis when all is well.

use std::collections::HashMap;
use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure_testkit::wait_until;
use tenure_transport::{Transport, Upkeep};

use crate::redis_stand::{RedisStand, transport};
use crate::stand::{SOON, Stand, look, publish, queue, receipts, task, wake};

#[tokio::test]
async fn an_entry_has_a_job_and_a_number_and_nothing_else() {
    let stand = RedisStand::start().await;
    let ids = publish(&transport(&stand.server.url(), "a"), &[wake("etl", 1)]).await;
    let entries: Vec<(String, HashMap<String, String>)> = stand.run(&["XRANGE", "t:etl", "-", "+"]);
    let fields = HashMap::from([
        ("job_id".to_owned(), task(1).to_string()),
        ("enqueue_id".to_owned(), "1000000000001".to_owned()),
    ]);
    assert_eq!(entries, [(ids[0].to_string(), fields)]);
}

#[tokio::test]
async fn nothing_is_pending_that_was_not_handed_out() {
    let stand = RedisStand::start().await;
    let names = ["a", "b", "c", "d"];
    let queues = names.map(queue);
    let wakes: Vec<_> = (0..200).map(|n| wake(names[n % 4], n)).collect();
    let consumers: Vec<_> = (0..8).map(|n| transport(&stand.server.url(), &format!("c{n}"))).collect();
    let counted = Arc::new(AtomicUsize::new(0));
    // Some wait already when the entries come, and several streams get some at once.
    let working: Vec<_> = consumers
        .into_iter()
        .map(|consumer| {
            let (queues, counted) = (queues.clone(), Arc::clone(&counted));
            tokio::spawn(async move {
                let mut handed_out = Vec::new();
                while counted.load(Ordering::SeqCst) < 200 {
                    let found = consumer.receive(&queues, 3, Duration::from_millis(500)).await.unwrap();
                    counted.fetch_add(found.len(), Ordering::SeqCst);
                    handed_out.extend(found);
                }
                handed_out
            })
        })
        .collect();
    let publisher = transport(&stand.server.url(), "p");
    for wakes in wakes.chunks(20) {
        publish(&publisher, wakes).await;
    }
    let mut handed_out = Vec::new();
    for one in working {
        handed_out.extend(one.await.unwrap());
    }
    assert_eq!(handed_out.len(), 200);
    assert_eq!(names.map(|name| stand.pending(name)), [50; 4]);
    publisher.settle(&receipts(&handed_out)).await.unwrap();
    assert_eq!(names.map(|name| stand.pending(name)), [0; 4]);
    for name in &queues {
        assert_eq!(publisher.depth(name).await.unwrap(), 0);
    }
}

#[tokio::test]
async fn who_stops_waiting_leaves_nothing_pending() {
    let stand = RedisStand::start().await;
    let consumer = transport(&stand.server.url(), "a");
    let q = queue("etl");
    let ids = publish(&consumer, &[wake("etl", 1), wake("etl", 2)]).await;
    consumer.prepare(&q).await.unwrap();
    assert_eq!(consumer.receive(from_ref(&q), 1, SOON).await.unwrap().len(), 1);
    {
        let queues = [q.clone()];
        let mut given_up = consumer.receive(&queues, 1, SOON);
        assert!(futures_util::poll!(&mut given_up).is_pending());
    }
    wait_until("the entry was read, and published again", SOON, async || {
        let entries = consumer.peek(&q, None, 10).await.unwrap();
        assert_eq!(entries.len(), 2);
        entries[1].task == task(2) && entries[1].message_id != ids[1]
    })
    .await;
    wait_until("only what is held is pending", SOON, async || stand.pending("etl") == 1).await;
    assert_eq!(look(&consumer, &[q]).await[0].task, task(2));
}

#[tokio::test]
async fn a_group_that_was_destroyed_is_made_again_from_the_start() {
    let stand = RedisStand::start().await;
    let consumer = transport(&stand.server.url(), "a");
    let q = queue("etl");
    publish(&consumer, &[wake("etl", 1), wake("etl", 2)]).await;
    let held = consumer.receive(from_ref(&q), 1, SOON).await.unwrap();
    let destroy = || stand.run::<i64>(&["XGROUP", "DESTROY", "t:etl", "tenure"]);
    assert_eq!(destroy(), 1);
    consumer.extend(&receipts(&held), SOON).await.unwrap();
    assert!(consumer.take_over(&q, Duration::ZERO, 10).await.unwrap().is_empty());
    assert_eq!(destroy(), 1, "taking over made it");
    consumer.settle(&receipts(&held)).await.unwrap();
    let found = look(&consumer, from_ref(&q)).await;
    assert_eq!(found.iter().map(|delivery| delivery.task.clone()).collect::<Vec<_>>(), [task(2)]);

    // Also while somebody waits.
    consumer.settle(&receipts(&found)).await.unwrap();
    let waiting = {
        let (consumer, q) = (consumer.clone(), q.clone());
        tokio::spawn(async move { consumer.receive(&[q], 1, 4 * SOON).await })
    };
    wait_until("it waits", SOON, async || {
        stand.run::<String>(&["CLIENT", "LIST"]).lines().any(|client| client.contains("cmd=xread"))
    })
    .await;
    assert_eq!(destroy(), 1);
    stand.run::<i64>(&["DEL", "t:etl"]);
    publish(&consumer, &[wake("etl", 3)]).await;
    let found = tokio::time::timeout(SOON, waiting).await.unwrap().unwrap().unwrap();
    assert_eq!(found[0].task, task(3));
}

#[tokio::test]
async fn taking_over_goes_through_the_whole_pending_list_and_past_what_was_deleted() {
    let stand = RedisStand::start().await;
    let (dead, alive) = (transport(&stand.server.url(), "a"), transport(&stand.server.url(), "b"));
    let q = queue("etl");
    let wakes: Vec<_> = (0..300).map(|n| wake("etl", n)).collect();
    let ids = publish(&dead, &wakes).await;
    stand.publish_garbage("etl").await;
    // Delivered by hand: our own group read would remove what is no wake-up.
    stand.run::<redis::Value>(&["XGROUP", "CREATE", "t:etl", "tenure", "0"]);
    stand.run::<redis::Value>(&["XREADGROUP", "GROUP", "tenure", "a", "STREAMS", "t:etl", ">"]);
    for id in &ids[..250] {
        stand.run::<i64>(&["XDEL", "t:etl", id]);
    }
    let taken = alive.take_over(&q, Duration::ZERO, 20).await.unwrap();
    assert_eq!(taken.len(), 20);
    assert_eq!(taken[0].task, task(250));
    let taken = alive.take_over(&q, Duration::ZERO, 1000).await.unwrap();
    assert_eq!(taken.len(), 50);
    assert_eq!(stand.pending("etl"), 50, "what was deleted, or is no wake-up, is gone");
    alive.settle(&receipts(&taken)).await.unwrap();
    assert_eq!((stand.pending("etl"), alive.depth(&q).await.unwrap()), (0, 0));
}

#[tokio::test]
async fn messages_can_be_looked_at_and_removed_whoever_has_them() {
    let stand = RedisStand::start().await;
    let (holder, upkeep) = (transport(&stand.server.url(), "a"), transport(&stand.server.url(), "b"));
    let q = queue("etl");
    stand.publish_garbage("etl").await;
    let ids = publish(&holder, &(0..5).map(|n| wake("etl", n)).collect::<Vec<_>>()).await;
    let mut seen = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let page = upkeep.peek(&q, after.as_deref(), 2).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.message_id.to_string());
        seen.extend(page.into_iter().map(|delivery| delivery.message_id));
    }
    assert_eq!(seen, ids, "without what is no wake-up");
    assert_eq!(upkeep.depth(&q).await.unwrap(), 10, "which looking does not remove");
    upkeep.peek(&q, Some("x"), 2).await.unwrap_err();

    for _ in 0..2 {
        assert_eq!(holder.receive(from_ref(&q), 1, SOON).await.unwrap().len(), 1);
    }
    upkeep.remove(&q, &[ids[0].clone(), ids[4].clone(), "7-7".into(), "no id".into()]).await.unwrap();
    assert_eq!(upkeep.lost(&q, &ids).await.unwrap(), Some(vec![0, 4]));
    assert_eq!(upkeep.lost(&q, &["no id".into(), ids[1].clone(), "12".into()]).await.unwrap(), Some(vec![0, 2]));
    assert_eq!(stand.pending("etl"), 1);
}
