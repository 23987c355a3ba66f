//! What holds for every transport.

use std::collections::HashSet;
use std::slice::from_ref;
use std::time::{Duration, Instant};

use tenure_testkit::wait_until;

use crate::stand::{SHORT, SOON, Stand, is_unreachable, look, publish, queue, receipts, task, wake};

pub async fn what_is_published_is_received_and_settled<S: Stand>() {
    let stand = S::start().await;
    let consumer = stand.consumer("a").await;
    let q = queue("etl");
    consumer.prepare(&q).await.unwrap();
    consumer.prepare(&q).await.unwrap();
    assert!(look(&*consumer, from_ref(&q)).await.is_empty());
    let wakes: Vec<_> = (0..25).map(|n| wake("etl", n)).collect();
    let ids = publish(&*consumer, &wakes).await;

    let mut found = consumer.receive(from_ref(&q), 25, SOON).await.unwrap();
    wait_until("all are received", SOON, async || {
        found.extend(consumer.receive(from_ref(&q), 25 - found.len(), Duration::ZERO).await.unwrap());
        found.len() == 25
    })
    .await;
    found.sort_by(|a, b| a.task.cmp(&b.task));
    for ((delivery, wake), id) in found.iter().zip(&wakes).zip(&ids) {
        assert_eq!((&delivery.queue, &delivery.task), (&wake.queue, &wake.task));
        assert_eq!((delivery.enqueue, &delivery.message_id), (Some(wake.enqueue), id));
    }
    assert_eq!(consumer.depth(&q).await.unwrap(), 25, "what was delivered is still there");
    consumer.settle(&receipts(&found[..20])).await.unwrap();
    assert_eq!(consumer.depth(&q).await.unwrap(), 5);
    consumer.settle(&receipts(&found)).await.unwrap();
    assert_eq!(consumer.depth(&q).await.unwrap(), 0);
    assert!(look(&*consumer, &[q]).await.is_empty());
}

pub async fn earlier_queues_come_first<S: Stand>() {
    let stand = S::start().await;
    let consumer = stand.consumer("a").await;
    let names = ["high", "normal", "low", "lowest"];
    let queues = names.map(queue);
    publish(&*consumer, &[wake("low", 1), wake("lowest", 2), wake("normal", 3), wake("high", 4)]).await;
    for name in names {
        let found = consumer.receive(&queues, 10, SOON).await.unwrap();
        let from: Vec<_> = found.iter().map(|delivery| &*delivery.queue).collect();
        assert_eq!(from, [name], "one queue at a time, in order");
    }
    // What was not handed out was not taken either.
    publish(&*consumer, &[wake("low", 5), wake("high", 6)]).await;
    assert_eq!(consumer.receive(&queues, 1, SOON).await.unwrap()[0].task, task(6));
    let other = stand.consumer("b").await;
    assert_eq!(other.receive(&queues, 1, SOON).await.unwrap()[0].task, task(5));
}

pub async fn a_wait_ends_with_a_message_or_with_its_time<S: Stand>() {
    let stand = S::start().await;
    let consumer = stand.consumer("a").await;
    let queues = ["high", "low"].map(queue);
    let before = Instant::now();
    let wait = Duration::from_millis(1500);
    assert!(consumer.receive(&queues, 1, wait).await.unwrap().is_empty());
    assert!(before.elapsed() >= wait, "not before its time");

    for (n, name) in ["low", "high"].into_iter().enumerate() {
        let waiting = {
            let (consumer, queues) = (consumer.clone(), queues.clone());
            tokio::spawn(async move { consumer.receive(&queues, 1, 4 * SOON).await })
        };
        let publisher = stand.consumer("b").await;
        publish(&*publisher, &[wake(name, n)]).await;
        let found = tokio::time::timeout(SOON, waiting).await.expect("long before its time").unwrap().unwrap();
        assert_eq!(found[0].task, task(n));
        consumer.settle(&receipts(&found)).await.unwrap();
    }
}

pub async fn what_a_dead_consumer_had_is_delivered_again<S: Stand>() {
    let stand = S::start().await;
    let (dead, alive) = (stand.consumer_for("a", SHORT).await, stand.consumer("b").await);
    let q = queue("etl");
    publish(&*dead, &[wake("etl", 1)]).await;
    let first = dead.receive(from_ref(&q), 1, SOON).await.unwrap();
    assert!(look(&*alive, from_ref(&q)).await.is_empty(), "it is another's");

    let second = stand.redelivered(&*alive, &q).await;
    assert_eq!(second.len(), 1);
    assert_eq!((&second[0].task, &second[0].message_id), (&first[0].task, &first[0].message_id));
    alive.settle(&receipts(&second)).await.unwrap();
    assert_eq!(alive.depth(&q).await.unwrap(), 0);
    // The receipt of the earlier delivery is no error, now or ever.
    dead.extend(&receipts(&first), SHORT).await.unwrap();
    dead.settle(&receipts(&first)).await.unwrap();
    assert_eq!(alive.depth(&q).await.unwrap(), 0);
}

pub async fn what_is_extended_is_left_alone<S: Stand>() {
    let stand = S::start().await;
    let (holder, other) = (stand.consumer_for("a", SHORT).await, stand.consumer("b").await);
    let q = queue("etl");
    publish(&*holder, &[wake("etl", 1)]).await;
    let held = holder.receive(from_ref(&q), 1, SOON).await.unwrap();
    let until = Instant::now() + 2 * SHORT;
    while Instant::now() < until {
        holder.extend(&receipts(&held), Duration::from_secs(60)).await.unwrap();
        assert!(other.take_over(&q, SHORT, 10).await.unwrap().is_empty(), "it is held");
        assert!(other.receive(from_ref(&q), 1, SHORT / 8).await.unwrap().is_empty(), "it is held");
    }
    holder.settle(&receipts(&held)).await.unwrap();
    assert_eq!(other.depth(&q).await.unwrap(), 0);
}

pub async fn duplicates_are_delivered_and_settled_one_by_one<S: Stand>() {
    let stand = S::start().await;
    let consumer = stand.consumer("a").await;
    let q = queue("etl");
    let ids = publish(&*consumer, &[wake("etl", 1), wake("etl", 1)]).await;
    assert_ne!(ids[0], ids[1]);
    for left in [1, 0] {
        let found = consumer.receive(from_ref(&q), 1, SOON).await.unwrap();
        assert_eq!(found[0].task, task(1));
        consumer.settle(&receipts(&found)).await.unwrap();
        assert_eq!(consumer.depth(&q).await.unwrap(), left);
    }
}

pub async fn what_is_no_wake_up_is_dropped<S: Stand>() {
    let stand = S::start().await;
    let consumer = stand.consumer("a").await;
    let q = queue("etl");
    consumer.prepare(&q).await.unwrap();
    stand.publish_garbage("etl").await;
    publish(&*consumer, &[wake("etl", 1)]).await;
    stand.publish_garbage("etl").await;
    let found = consumer.receive(from_ref(&q), 1, SOON).await.unwrap();
    assert_eq!(found[0].task, task(1));
    consumer.settle(&receipts(&found)).await.unwrap();
    wait_until("nothing is left", SOON, async || {
        assert!(look(&*consumer, from_ref(&q)).await.is_empty());
        consumer.depth(&q).await.unwrap() == 0
    })
    .await;
}

pub async fn a_great_many_are_all_received_once<S: Stand>() {
    let stand = S::start().await;
    let consumer = stand.consumer("a").await;
    let q = queue("etl");
    let wakes: Vec<_> = (0..S::MANY).map(|n| wake("etl", n)).collect();
    let ids = publish(&*consumer, &wakes).await;
    assert_eq!(ids.into_iter().collect::<HashSet<_>>().len(), S::MANY);
    assert_eq!(consumer.depth(&q).await.unwrap(), S::MANY as u64);
    let mut tasks = HashSet::new();
    while tasks.len() < S::MANY {
        let found = consumer.receive(from_ref(&q), 1500, SOON).await.unwrap();
        assert!(!found.is_empty(), "{} of {} were received", tasks.len(), S::MANY);
        consumer.settle(&receipts(&found)).await.unwrap();
        for delivery in found {
            assert!(tasks.insert(delivery.task), "one was received twice");
        }
    }
    assert_eq!(consumer.depth(&q).await.unwrap(), 0);
}

pub async fn what_was_lost_can_be_published_again<S: Stand>() {
    let stand = S::start().await;
    let consumer = stand.consumer("a").await;
    let q = queue("etl");
    let wakes = [wake("etl", 1), wake("etl", 2), wake("etl", 3)];
    let ids = publish(&*consumer, &wakes).await;
    let held = consumer.receive(from_ref(&q), 1, SOON).await.unwrap();
    stand.lose("etl").await;
    assert!(look(&*consumer, from_ref(&q)).await.is_empty());
    if let Some(lost) = consumer.lost(&q, &ids).await.unwrap() {
        assert_eq!(lost, [0, 1, 2]);
    }
    consumer.extend(&receipts(&held), SHORT).await.unwrap();
    consumer.settle(&receipts(&held)).await.unwrap();
    let again = publish(&*consumer, &wakes[..2]).await;
    if let Some(lost) = consumer.lost(&q, &[&ids[..], &again].concat()).await.unwrap() {
        assert_eq!(lost, [0, 1, 2]);
    }
    let found = consumer.receive(from_ref(&q), 10, SOON).await.unwrap();
    consumer.settle(&receipts(&found)).await.unwrap();
    assert_eq!(found.len(), 2);
}

pub async fn a_service_that_is_down_is_unreachable_until_it_is_back<S: Stand>() {
    let mut stand = S::start().await;
    let consumer = stand.consumer("a").await;
    let q = queue("etl");
    publish(&*consumer, &[wake("etl", 1)]).await;
    assert_eq!(consumer.receive(from_ref(&q), 1, SOON).await.unwrap().len(), 1);
    let waiting = {
        let (consumer, q) = (consumer.clone(), q.clone());
        tokio::spawn(async move { consumer.receive(&[q], 1, 4 * SOON).await })
    };
    stand.kill();
    let ended = tokio::time::timeout(SOON, waiting).await.expect("a wait ends with the service").unwrap();
    assert!(is_unreachable(&ended), "{ended:?}");
    let before = Instant::now();
    for _ in 0..3 {
        let answer = consumer.publish(&[wake("etl", 2)]).await;
        assert!(is_unreachable(&answer), "{answer:?}");
        let answer = consumer.receive(from_ref(&q), 1, SOON).await;
        assert!(is_unreachable(&answer), "{answer:?}");
        let answer = consumer.depth(&q).await;
        assert!(is_unreachable(&answer), "{answer:?}");
    }
    assert!(before.elapsed() < SOON, "it is found out at once");

    stand.restart().await;
    publish(&*consumer, &[wake("etl", 3)]).await;
    let found = consumer.receive(from_ref(&q), 1, SOON).await.unwrap();
    assert_eq!(found[0].task, task(3));
    consumer.settle(&receipts(&found)).await.unwrap();
    assert_eq!(consumer.depth(&q).await.unwrap(), 0);
}

pub async fn who_stops_waiting_takes_nothing_along<S: Stand>() {
    let stand = S::start().await;
    let (first, second) = (stand.consumer("a").await, stand.consumer("b").await);
    let q = queue("etl");
    first.prepare(&q).await.unwrap();
    for n in 0..10 {
        publish(&*second, &[wake("etl", n)]).await;
        {
            let queues = [q.clone()];
            let mut given_up = first.receive(&queues, 1, SOON);
            // Far enough that the service is being asked.
            assert!(futures_util::poll!(&mut given_up).is_pending());
        }
        let found = second.receive(from_ref(&q), 1, SOON).await.unwrap();
        assert_eq!(found.first().map(|delivery| delivery.task.clone()), Some(task(n)));
        second.settle(&receipts(&found)).await.unwrap();
        wait_until("nothing is left", SOON, async || second.depth(&q).await.unwrap() == 0).await;
    }
}
