//! How long ended tasks are kept.

use tenure_core::command::Reach;
use tenure_core::command::submit::NewTask;
use tenure_core::{Seq, TaskId, limits};
use tenure_store::{Pruned, Retention};

use crate::common::{Fixture, make};

crate::on_both_stores!(
    what_is_old_goes_with_its_history,
    dead_letters_are_kept_longer,
    too_many_go_oldest_first_and_dead_letters_stay,
    a_key_is_kept_for_a_day,
    pruning_goes_on_behind_its_cursor,
    young_tasks_end_the_look,
    only_finished_tasks_go,
    facts_are_kept_for_their_own_time,
    old_facts_are_removed_bite_by_bite,
);

const HOUR: i64 = 3_600_000;
const DAY: i64 = 24 * HOUR;

fn keep(finished_ms: i64) -> Retention {
    Retention { finished_ms, dead_letter_ms: 10 * finished_ms, finished_count: 1_000, events_ms: HOUR, logs_ms: HOUR }
}

async fn finish(t: &Fixture, count: usize) -> Vec<TaskId> {
    let ids = t.put_many("q", count).await;
    let commands = t.claim(&["q"], count).await.iter().map(|grant| make::complete(grant, "1")).collect();
    t.run_all(commands).await;
    ids
}

async fn bury(t: &Fixture) -> TaskId {
    t.put_in("q").await;
    let grant = t.claim_one("q").await;
    t.bury(&grant, "X").await;
    grant.task
}

async fn exists(t: &Fixture, id: TaskId) -> bool {
    t.store.task(id, &Reach::All).await.unwrap().is_some()
}

async fn prune(t: &Fixture, retention: &Retention) -> Pruned {
    t.store.prune(retention, Seq(0), 100).await.unwrap()
}

async fn what_is_old_goes_with_its_history(t: &Fixture) {
    let old = t.put(NewTask { spec: make::attempts(2), ..t.task("q").await }).await;
    let first = t.claim_one("q").await;
    t.run(make::fail(&first, "X", None)).await.unwrap();
    let second = t.claim_one("q").await;
    t.complete(&second).await.unwrap();
    t.clock.advance(HOUR - 1);
    let young = finish(t, 1).await[0];
    assert_eq!(prune(t, &keep(HOUR)).await, Pruned { removed: 0, next: None });
    t.clock.advance(1);
    assert_eq!(prune(t, &keep(HOUR)).await.removed, 1);
    assert_eq!((exists(t, old).await, exists(t, young).await), (false, true));
    assert_eq!(t.raw.number(&format!("SELECT count(*) FROM attempts WHERE seq = {}", old.seq().0)).await, 0);
    assert_eq!(t.queue("q").await.counts.finished, 1);
}

async fn dead_letters_are_kept_longer(t: &Fixture) {
    let dead = bury(t).await;
    finish(t, 1).await;
    t.clock.advance(10 * HOUR - 1);
    assert_eq!(prune(t, &keep(HOUR)).await.removed, 1);
    assert!(exists(t, dead).await);
    t.clock.advance(1);
    assert_eq!(prune(t, &keep(HOUR)).await.removed, 1);
    assert!(!exists(t, dead).await);
    assert_eq!(t.queue("q").await.counts.dead_lettered, 0);
}

async fn too_many_go_oldest_first_and_dead_letters_stay(t: &Fixture) {
    let dead = bury(t).await;
    let ids = finish(t, 5).await;
    // Six have ended: two too many.
    let retention = Retention { finished_count: 4, ..keep(HOUR) };
    t.clock.advance(limits::FINISHED_MS_MIN - 1);
    assert_eq!(prune(t, &retention).await.removed, 0, "their reports may be sent again");
    t.clock.advance(1);
    assert_eq!(prune(t, &retention).await.removed, 2);
    let mut left = Vec::new();
    for id in &ids {
        left.push(exists(t, *id).await);
    }
    assert_eq!(left, [false, false, true, true, true]);
    assert!(exists(t, dead).await);
    assert_eq!(prune(t, &retention).await.removed, 0);
    let none = Retention { finished_count: 0, ..keep(HOUR) };
    assert_eq!(prune(t, &none).await.removed, 3);
    assert!(exists(t, dead).await);
}

async fn a_key_is_kept_for_a_day(t: &Fixture) {
    let id = t.put(NewTask { idempotency: make::key("k", 1), ..t.task("q").await }).await;
    let grant = t.claim_one("q").await;
    t.complete(&grant).await.unwrap();
    let nothing_stays = Retention { finished_count: 0, ..keep(1) };
    t.clock.advance(DAY - 1);
    assert_eq!(prune(t, &nothing_stays).await.removed, 0);
    let again = NewTask { idempotency: make::key("k", 1), ..t.task("q").await };
    assert_eq!(t.submit(vec![again.clone()]).await[0].id, id);
    t.clock.advance(1);
    assert_eq!(prune(t, &nothing_stays).await.removed, 1);
    assert!(t.submit(vec![again]).await[0].created, "with the task its key is free");
}

async fn pruning_goes_on_behind_its_cursor(t: &Fixture) {
    let mut ids = vec![bury(t).await];
    ids.extend(finish(t, 6).await);
    t.clock.advance(HOUR);
    let retention = keep(HOUR);
    let (mut after, mut bites) = (Seq(0), Vec::new());
    loop {
        let pruned = t.store.prune(&retention, after, 3).await.unwrap();
        bites.push(pruned.removed);
        let Some(next) = pruned.next else { break };
        assert!(next > after);
        after = next;
    }
    assert_eq!(bites, [2, 3, 1], "the dead letter is looked at once and stays");
    assert!(exists(t, ids[0]).await);
}

async fn young_tasks_end_the_look(t: &Fixture) {
    finish(t, 4).await;
    assert_eq!(t.store.prune(&keep(HOUR), Seq(0), 2).await.unwrap(), Pruned { removed: 0, next: None });
}

async fn only_finished_tasks_go(t: &Fixture) {
    let ids = t.put_many("q", 3).await;
    t.claim_one("q").await;
    t.clock.advance(1_000 * DAY);
    assert_eq!(prune(t, &Retention { finished_count: 0, ..keep(1) }).await.removed, 0);
    for id in ids {
        assert!(exists(t, id).await);
    }
}

async fn facts_are_kept_for_their_own_time(t: &Fixture) {
    t.put_in("q").await;
    t.clock.advance(HOUR);
    t.put_in("q").await;
    let bounds = t.store.event_bounds().await.unwrap();
    prune(t, &keep(DAY)).await;
    assert_eq!(t.store.event_bounds().await.unwrap(), bounds);
    t.clock.advance(1);
    prune(t, &keep(DAY)).await;
    assert_eq!(t.store.event_bounds().await.unwrap(), (bounds.1, bounds.1));
    t.clock.advance(HOUR + 1);
    prune(t, &keep(DAY)).await;
    assert_eq!(t.store.event_bounds().await.unwrap(), (0, 0));
    // Numbers are never given twice, even when nothing is left.
    t.put_in("q").await;
    assert!(t.store.event_bounds().await.unwrap().0 > bounds.1);
}

async fn old_facts_are_removed_bite_by_bite(t: &Fixture) {
    for _ in 0..5 {
        t.put_in("q").await;
    }
    t.clock.advance(2 * HOUR);
    let mut bites = 0;
    let mut after = Seq(0);
    // No task has ended; the facts alone are reason enough to go on.
    while let Some(next) = t.store.prune(&keep(DAY), after, 2).await.unwrap().next {
        after = next;
        bites += 1;
    }
    assert_eq!((bites, t.store.events(0, 10).await.unwrap().len()), (2, 0));
}
