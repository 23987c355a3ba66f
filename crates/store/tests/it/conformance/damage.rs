//! Rows that something else has damaged, and states that the schema refuses.

use tenure_core::attempt::Receipt;
use tenure_core::command::cancel::Mode;
use tenure_core::command::submit::{NewTask, Start};
use tenure_core::command::{Answer, Reach};
use tenure_core::queue::{FairnessKey, QueueSettings};
use tenure_core::task::State;
use tenure_store::{TaskFilter, TaskView};

use crate::common::{Fixture, make};

crate::on_both_stores!(
    a_damaged_lease_stops_nothing_else_and_can_be_ended,
    a_damaged_waiting_row_is_granted_all_the_same,
    a_damaged_end_is_listed_and_can_be_retried,
    a_damaged_body_hides_no_other,
    a_row_without_a_fairness_value_is_granted_behind_the_others,
    a_damaged_record_of_facts_hides_no_other,
    the_schema_refuses_impossible_states,
);

async fn a_damaged_lease_stops_nothing_else_and_can_be_ended(t: &Fixture) {
    for _ in 0..4 {
        t.put(NewTask { spec: make::attempts(2), ..t.task("q").await }).await;
    }
    let held = t.claim(&["q"], 3).await;
    for grant in &held[..2] {
        t.raw.execute(&format!("UPDATE running SET carry = '{{bad' WHERE seq = {}", grant.seq().0)).await;
    }
    let outcomes = t
        .run_all(vec![make::heartbeat(&held[0]), make::complete(&held[0], "1"), make::fail(&held[2], "X", None)])
        .await;
    assert!(matches!(outcomes[0], Ok(Answer::Renewed(_))), "{:?}", outcomes[0]);
    assert_eq!(outcomes[1], Ok(Answer::Reported(Receipt::Completed)));
    assert_eq!(outcomes[2], Ok(Answer::Reported(Receipt::Failed { requeued: true, dlq: false })));
    assert_eq!(t.claim(&["q"], 9).await.len(), 2);
    assert_eq!(t.store.tasks(&TaskFilter { limit: 10, ..TaskFilter::default() }).await.unwrap().items.len(), 4);
    t.clock.advance(60_000);
    assert_eq!(t.reap().await, 3);
    assert_ne!(t.state(held[1].task).await, State::Running);
}

async fn a_damaged_waiting_row_is_granted_all_the_same(t: &Fixture) {
    let ready = t.put_many("q", 2).await;
    let later = t.put(NewTask { start: Start::After(10), ..t.task("q").await }).await;
    t.raw.execute(&format!("UPDATE ready SET carry = 'null and void' WHERE seq = {}", ready[0].seq().0)).await;
    t.raw.execute("UPDATE scheduled SET carry = '[]'").await;
    t.clock.advance(10);
    assert_eq!(t.promote().await, 1);
    assert_eq!(t.claim_ids(&["q"], 9).await, [ready[0], ready[1], later]);
}

async fn a_damaged_end_is_listed_and_can_be_retried(t: &Fixture) {
    let ids = t.put_many("q", 2).await;
    for grant in t.claim(&["q"], 2).await {
        t.bury(&grant, "X").await;
    }
    let damage = "UPDATE finished SET more = '{', failure = 'x', reason = 'unheard of' WHERE seq =";
    t.raw.execute(&format!("{damage} {}", ids[0].seq().0)).await;
    let page = t.store.dead_letters(&tenure_store::DeadLetterFilter { limit: 10, ..Default::default() }).await.unwrap();
    assert_eq!(page.items.iter().map(TaskView::id).collect::<Vec<_>>(), ids);
    for id in &ids {
        assert!(matches!(t.run(make::retry(*id)).await, Ok(Answer::Retried(_))));
    }
    assert_eq!(t.claim_ids(&["q"], 9).await.len(), 2);
    t.raw.execute("UPDATE attempts SET failure = '{', evidence = '{'").await;
    assert_eq!(t.attempts(ids[0]).await.len(), 2);
}

async fn a_damaged_body_hides_no_other(t: &Fixture) {
    let tags = make::tags(&[("team", "etl")]);
    let damaged = t.put(NewTask { tags: tags.clone(), ..t.task("q").await }).await;
    let sound = t.put(NewTask { tags, ..t.task("q").await }).await;
    let damage = "UPDATE bodies SET tags = '{bad', spec = '{bad' WHERE seq =";
    t.raw.execute(&format!("{damage} {}", damaged.seq().0)).await;
    let tag = Some(("team".to_owned(), "etl".to_owned()));
    let page = t.store.tasks(&TaskFilter { tag, limit: 10, ..TaskFilter::default() }).await.unwrap();
    assert_eq!(page.items.iter().map(TaskView::id).collect::<Vec<_>>(), [sound]);
    assert_eq!(t.claim_ids(&["q"], 9).await, [damaged, sound]);
    assert!(t.store.task(damaged, &Reach::All).await.unwrap().is_some());
}

/// On Postgres also a submit that meets the command that sets the key can leave such a row.
async fn a_row_without_a_fairness_value_is_granted_behind_the_others(t: &Fixture) {
    let fairness_key = Some(FairnessKey::Tenant);
    t.set_queue("q", QueueSettings { fairness_key, ..QueueSettings::default() }).await;
    let ids = t.put_many("q", 3).await;
    t.raw.execute(&format!("UPDATE ready SET fair = NULL WHERE seq = {}", ids[1].seq().0)).await;
    assert_eq!(t.claim_ids(&["q"], 1).await, [ids[0]]);
    assert_eq!(t.claim_ids(&["q", "other"], 9).await.len(), 2);
    // The invariants ask for a value as long as it runs or waits.
    t.run(make::cancel(ids[1], Mode::Immediate)).await.unwrap();
}

async fn a_damaged_record_of_facts_hides_no_other(t: &Fixture) {
    for _ in 0..3 {
        t.put_in("q").await;
    }
    let (first, _) = t.store.event_bounds().await.unwrap();
    let garbage = match t.kind {
        crate::common::Kind::Sqlite => "x'ffff'",
        crate::common::Kind::Postgres => "'\\xffff'",
    };
    t.raw.execute(&format!("UPDATE events SET facts = {garbage} WHERE batch = {}", first + 1)).await;
    let facts: Vec<_> = t.store.events(0, 10).await.unwrap().iter().map(|batch| batch.facts.len()).collect();
    assert_eq!(facts, [1, 0, 1]);
}

async fn the_schema_refuses_impossible_states(t: &Fixture) {
    t.put(NewTask { idempotency: make::key("k", 1), ..t.task("q").await }).await;
    t.put(NewTask { start: Start::After(1_000), ..t.task("q").await }).await;
    t.put_many("q", 4).await;
    let held = t.claim(&["q"], 4).await;
    t.complete(&held[0]).await.unwrap();
    t.bury(&held[1], "X").await;
    t.run(make::cancel(held[2].task, Mode::Immediate)).await.unwrap();
    t.put(NewTask { spec: make::attempts(2), ..t.task("again").await }).await;
    let again = t.claim_one("again").await;
    t.run(make::fail(&again, "X", None)).await.unwrap();
    let impossible = [
        "UPDATE queues SET max_running = -1",
        "UPDATE queues SET rate = 0, burst = 1",
        "UPDATE queues SET rate = 1, burst = 0",
        "UPDATE queues SET rate = 1",
        "UPDATE queues SET bucket_tokens = 1",
        "UPDATE queues SET lease_ttl_ms = 0",
        "UPDATE queues SET heartbeat_ms = 0",
        "INSERT INTO queues (name) VALUES ('q')",
        "UPDATE bodies SET priority = 10",
        "UPDATE bodies SET idempotency_key = NULL WHERE idempotency_key IS NOT NULL",
        "UPDATE bodies SET fingerprint = NULL WHERE idempotency_key IS NOT NULL",
        "UPDATE bodies SET payload = NULL",
        "UPDATE scheduled SET attempt = -1",
        "UPDATE scheduled SET at = NULL",
        "UPDATE ready SET fence = -1",
        "UPDATE running SET fence = 0",
        "UPDATE running SET attempt = 0",
        "UPDATE running SET worker_id = NULL",
        "UPDATE running SET progress_pct = 101",
        "UPDATE running SET cancel_reason = 'without a time'",
        "UPDATE running SET cancel_signaled_at = granted_at",
        "UPDATE finished SET ended = 4",
        "UPDATE finished SET ended = 0",
        "UPDATE finished SET dead_lettered_at = finished_at WHERE ended = 1",
        "UPDATE finished SET attempt_id = NULL WHERE ended = 1",
        "UPDATE finished SET result = '1' WHERE ended = 2",
        "UPDATE finished SET reason = 'max_attempts' WHERE ended = 1",
        "UPDATE finished SET dead_lettered_at = finished_at WHERE ended = 3",
        "UPDATE finished SET cancel_reason = NULL WHERE ended = 3",
        "UPDATE finished SET attempt = 0 WHERE ended = 1",
        "UPDATE attempts SET attempt = 0",
        "UPDATE attempts SET ended_at = NULL",
        "INSERT INTO meta SELECT 2, next_number, alive_at, grace_until, gap_ended_at FROM meta",
        "INSERT INTO meta SELECT * FROM meta",
    ];
    for sql in impossible {
        let refused = t.raw.try_rows(sql).await.expect_err(sql).to_lowercase();
        assert!(refused.contains("constraint"), "{sql}: {refused}");
    }
    let copies = ["bodies", "scheduled", "ready", "running", "finished", "attempts"];
    for table in copies {
        assert!(t.raw.number(&format!("SELECT count(*) FROM {table}")).await > 0, "{table} is empty");
        let sql = format!("INSERT INTO {table} SELECT * FROM {table}");
        assert!(t.raw.try_rows(&sql).await.is_err(), "two rows of one task in {table}");
    }
}
