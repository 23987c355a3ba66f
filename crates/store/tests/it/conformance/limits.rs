//! What holds grants back: slots, rate, fairness, pause.

use std::sync::Arc;

use tenure_core::command::cancel::Mode;
use tenure_core::command::claim::NotGrantedReason;
use tenure_core::command::queues::SetQueue;
use tenure_core::command::submit::{NewTask, Start};
use tenure_core::command::{Answer, Command, Reach};
use tenure_core::queue::{FairnessKey, QueueSettings, Rate};
use tenure_core::task::{Place, State};

use crate::common::{Fixture, after_start, make};

crate::on_both_stores!(
    never_more_attempts_are_open_than_slots,
    every_end_of_an_attempt_frees_its_slot,
    a_slot_freed_in_the_same_batch_can_be_granted,
    a_limit_set_in_the_same_batch_holds,
    the_rate_is_kept_with_the_queue,
    grants_rotate_over_tenants_whatever_their_backlog,
    a_fair_queue_gives_all_it_has_before_the_next_queue_is_tried,
    rotation_goes_on_where_the_last_claim_ended,
    a_new_fairness_key_rewrites_what_waits,
    a_task_that_ran_while_the_fairness_key_changed_is_granted_again,
    a_paused_queue_grants_nothing_and_lets_running_work_go_on,
    settings_come_back_as_they_were_set,
    a_new_setting_holds_for_the_next_report,
    a_strict_queue_serves_workers_that_kill_and_waits_for_the_death_of_a_lost_attempt,
);

fn slots(max_running: u32) -> QueueSettings {
    QueueSettings { max_running: Some(max_running), ..QueueSettings::default() }
}

fn fair(key: FairnessKey) -> QueueSettings {
    QueueSettings { fairness_key: Some(key), ..QueueSettings::default() }
}

async fn put_for(t: &Fixture, tenant: &str, count: usize) {
    let tasks = t.tasks("q", count).await;
    t.submit(tasks.into_iter().map(|task| NewTask { tenant: tenant.into(), ..task }).collect()).await;
}

/// The tenants of what a claim gets, in order.
async fn claim_tenants(t: &Fixture, max_jobs: usize) -> Vec<Arc<str>> {
    t.claim(&["q"], max_jobs).await.iter().map(|grant| Arc::clone(&grant.body.as_ref().unwrap().tenant)).collect()
}

async fn never_more_attempts_are_open_than_slots(t: &Fixture) {
    t.set_queue("q", slots(2)).await;
    let ids = t.put_many("q", 5).await;
    let elsewhere = t.put_in("open").await;
    let claimed = t.claimed(make::claim("w", &["q", "open"], 9)).await;
    let got: Vec<_> = claimed.grants.iter().map(|grant| grant.task).collect();
    assert_eq!(got, [ids[0], ids[1], elsewhere]);
    assert_eq!(claimed.full, [Arc::<str>::from("q")]);
    let outcomes = t.run_all((0..3).map(|_| Command::Claim(make::claim("w", &["q"], 1))).collect()).await;
    for outcome in outcomes {
        let Ok(Answer::Claimed(claimed)) = outcome else { panic!("{outcome:?}") };
        assert_eq!((claimed.grants.len(), claimed.full), (0, vec!["q".into()]));
    }
    // Nor does a worker that knows the id get around it.
    let Ok(Answer::NotGranted(not)) = t.run(make::claim_task("w", ids[3])).await else { panic!("granted") };
    assert_eq!((not.reason, not.ack), (NotGrantedReason::NotDue, false));
    assert_eq!(t.store.queue(claimed.grants[0].queue).await.unwrap().unwrap().running, 2);
}

async fn every_end_of_an_attempt_frees_its_slot(t: &Fixture) {
    t.set_queue("q", slots(1)).await;
    t.put_many("q", 6).await;
    for end in 0..6 {
        let grant = t.claim_one("q").await;
        assert_eq!(t.claim(&["q"], 1).await, [], "one slot");
        let ended = match end {
            0 => t.complete(&grant).await,
            1 => t.run(make::fail(&grant, "X", None)).await,
            2 => t.run(make::cancel(grant.task, Mode::Immediate)).await,
            3 => t.run(make::release(&grant)).await,
            4 => {
                t.clock.advance(60_000);
                t.run(Command::Expire(tenure_core::command::expire::Expire { row: grant.seq() })).await
            }
            _ => t.run(make::fail(&grant, "CANCELLED", None)).await,
        };
        ended.unwrap();
    }
}

async fn a_slot_freed_in_the_same_batch_can_be_granted(t: &Fixture) {
    t.set_queue("q", slots(1)).await;
    let ids = t.put_many("q", 2).await;
    t.put_in("second").await;
    let grant = t.claim_one("q").await;
    let claim = Command::Claim(make::claim("w", &["q", "second"], 1));
    let outcomes = t.run_all(vec![make::complete(&grant, "1"), claim]).await;
    let Ok(Answer::Claimed(claimed)) = &outcomes[1] else { panic!("{:?}", outcomes[1]) };
    assert_eq!(claimed.grants[0].task, ids[1]);
}

async fn a_limit_set_in_the_same_batch_holds(t: &Fixture) {
    t.put_many("q", 3).await;
    t.claim(&["q"], 2).await;
    let set = |settings| {
        Command::SetQueue(SetQueue {
            queue: "q".into(),
            settings,
            transport: None,
            keep_push: false,
            reach: Reach::All,
        })
    };
    let claim = || Command::Claim(make::claim("w", &["q"], 1));
    let grants = |outcome| match outcome {
        Ok(Answer::Claimed(claimed)) => claimed.grants.len(),
        other => panic!("{other:?}"),
    };
    let mut outcomes = t.run_all(vec![set(slots(2)), claim()]).await;
    assert_eq!(grants(outcomes.remove(1)), 0);
    let mut outcomes = t.run_all(vec![set(slots(3)), claim()]).await;
    assert_eq!(grants(outcomes.remove(1)), 1);
}

async fn the_rate_is_kept_with_the_queue(t: &Fixture) {
    let rate = Some(Rate { per_second: 2.0, burst: 3.0 });
    t.set_queue("q", QueueSettings { rate, ..QueueSettings::default() }).await;
    t.put_many("q", 9).await;
    assert_eq!(t.claim(&["q"], 9).await.len(), 3, "the bucket starts full");
    let tokens = t.raw.rows("SELECT bucket_tokens FROM queues WHERE name = 'q'").await;
    assert_eq!(tokens[0][0].as_deref().unwrap().parse::<f64>().unwrap(), 0.0);
    let claimed = t.claimed(make::claim("w", &["q"], 9)).await;
    assert_eq!((claimed.grants.len(), claimed.retry_at), (0, Some(after_start(500))));
    t.clock.advance(500);
    assert_eq!(t.claim(&["q"], 9).await.len(), 1);
    t.clock.advance(10_000);
    assert_eq!(t.claim(&["q"], 9).await.len(), 3, "it never holds more than the burst");
    // Other settings leave the bucket as it is.
    t.set_queue("q", QueueSettings { rate, max_running: Some(100), ..QueueSettings::default() }).await;
    assert_eq!(t.claim(&["q"], 9).await.len(), 0);
}

async fn grants_rotate_over_tenants_whatever_their_backlog(t: &Fixture) {
    t.set_queue("q", fair(FairnessKey::Tenant)).await;
    put_for(t, "big", 40).await;
    put_for(t, "small", 2).await;
    put_for(t, "tiny", 1).await;
    let mut order = Vec::new();
    for _ in 0..3 {
        order.extend(claim_tenants(t, 2).await);
    }
    let order: Vec<&str> = order.iter().map(|tenant| &**tenant).collect();
    assert_eq!(order, ["big", "small", "tiny", "big", "small", "big"]);
    assert_eq!(claim_tenants(t, 100).await.len(), 37);
}

async fn a_fair_queue_gives_all_it_has_before_the_next_queue_is_tried(t: &Fixture) {
    t.set_queue("q", fair(FairnessKey::Tenant)).await;
    put_for(t, "a", 1).await;
    put_for(t, "b", 20).await;
    put_for(t, "c", 1).await;
    t.put_many("second", 5).await;
    let grants = t.claim(&["q", "second"], 10).await;
    assert_eq!(grants.len(), 10);
    assert!(grants.iter().all(|grant| grant.queue == grants[0].queue), "nothing of the second queue");
}

async fn rotation_goes_on_where_the_last_claim_ended(t: &Fixture) {
    t.set_queue("q", fair(FairnessKey::Workspace)).await;
    for (workspace, priority) in [("a", 5), ("a", 1), ("b", 5), ("c", 5), ("c", 0)] {
        let task = NewTask { workspace: workspace.into(), priority, ..t.task("q").await };
        t.put(task).await;
    }
    let mut order = Vec::new();
    for _ in 0..5 {
        let grant = t.claim_one("q").await;
        let body = grant.body.unwrap();
        order.push((body.workspace.to_string(), body.priority));
    }
    // Each value in turn; inside a value by priority.
    let expected = [("a", 1), ("b", 5), ("c", 0), ("a", 5), ("c", 5)];
    assert_eq!(order, expected.map(|(workspace, priority)| (workspace.to_owned(), priority)));
}

async fn a_new_fairness_key_rewrites_what_waits(t: &Fixture) {
    let tagged = |task, team: Option<&str>| NewTask {
        tags: team.map(|team| make::tags(&[("team", team), ("other", "x")])).unwrap_or_default(),
        ..task
    };
    for team in [Some("red"), Some("red"), Some("it's \"blue\""), None] {
        let task = tagged(t.task("q").await, team);
        t.put(task).await;
    }
    let later = tagged(t.task("q").await, Some("green"));
    t.put(NewTask { start: Start::After(1_000), ..later }).await;
    let values = async || {
        let rows = t.raw.rows("SELECT fair FROM ready UNION ALL SELECT fair FROM scheduled").await;
        let mut values: Vec<_> = rows.into_iter().map(|mut row| row.remove(0)).collect();
        values.sort_unstable();
        values
    };
    assert_eq!(values().await, [const { None }; 5]);
    t.set_queue("q", fair(FairnessKey::Tag("team".into()))).await;
    let teams = ["", "green", "it's \"blue\"", "red", "red"].map(|team| Some(team.to_owned()));
    assert_eq!(values().await, teams);
    let grants = t.claim(&["q"], 3).await;
    let order: Vec<_> =
        grants.iter().map(|grant| grant.body.as_ref().unwrap().tags.get("team").map(String::as_str)).collect();
    assert_eq!(order, [None, Some("it's \"blue\""), Some("red")]);
    t.set_queue("q", fair(FairnessKey::Tenant)).await;
    assert_eq!(values().await, ["acme", "acme"].map(|tenant| Some(tenant.to_owned())));
    t.set_queue("q", QueueSettings::default()).await;
    assert_eq!(values().await, [None, None]);
}

async fn a_task_that_ran_while_the_fairness_key_changed_is_granted_again(t: &Fixture) {
    let id = t.put(NewTask { spec: make::attempts(9), ..t.task("q").await }).await;
    let first = t.claim_one("q").await;
    t.set_queue("q", fair(FairnessKey::Tenant)).await;
    t.run(make::fail(&first, "X", None)).await.unwrap();
    let second = t.claim_one("q").await;
    assert_eq!(second.task, id);
    t.set_queue("q", fair(FairnessKey::Workspace)).await;
    t.run(make::release(&second)).await.unwrap();
    let Place::Ready(waiting) = t.view(id).await.place else { panic!("it was taken back") };
    assert_eq!(waiting.fair.as_deref(), Some("default"));
    // Ended and brought back by a person.
    let third = t.claim_one("q").await;
    t.bury(&third, "X").await;
    t.set_queue("q", fair(FairnessKey::Tenant)).await;
    t.run(make::retry(id)).await.unwrap();
    assert_eq!(t.claim_one("q").await.task, id);
}

async fn a_paused_queue_grants_nothing_and_lets_running_work_go_on(t: &Fixture) {
    let ids = t.put_many("q", 2).await;
    let grant = t.claim_one("q").await;
    t.pause("q", true).await;
    assert!(t.queue("q").await.queue.paused);
    assert_eq!(t.claim(&["q"], 1).await, []);
    let Ok(Answer::NotGranted(not)) = t.run(make::claim_task("w", ids[1])).await else { panic!("granted") };
    assert_eq!(not.reason, NotGrantedReason::NotDue);
    let names: Vec<Arc<str>> = vec!["q".into(), "nowhere".into()];
    assert_eq!(t.store.ready_in(&names, 10).await.unwrap(), [], "nobody needs to be woken for it");
    t.put_in("q").await;
    t.run(make::heartbeat(&grant)).await.unwrap();
    t.complete(&grant).await.unwrap();
    t.pause("q", false).await;
    assert_eq!(t.store.ready_in(&names, 10).await.unwrap(), [("q".into(), 2)]);
    assert_eq!(t.store.ready_in(&names, 1).await.unwrap(), [("q".into(), 1)]);
    assert_eq!(t.claim(&["q"], 9).await.len(), 2);
    assert_eq!(t.state(ids[0]).await, State::Succeeded);
}

/// A report goes by what the store remembers of the queue.
async fn a_new_setting_holds_for_the_next_report(t: &Fixture) {
    t.put_many("q", 2).await;
    let held = t.claim(&["q"], 2).await;
    t.run(make::heartbeat(&held[0])).await.unwrap();
    t.set_queue("q", QueueSettings { no_dead_letter: true, ..QueueSettings::default() }).await;
    t.bury(&held[0], "X").await;
    assert_eq!(t.queue("q").await.counts.dead_lettered, 0);
    t.set_queue("q", QueueSettings::default()).await;
    t.bury(&held[1], "X").await;
    assert_eq!(t.queue("q").await.counts.dead_lettered, 1);
}

async fn settings_come_back_as_they_were_set(t: &Fixture) {
    let settings = QueueSettings {
        max_running: Some(7),
        rate: Some(Rate { per_second: 0.25, burst: 1.5 }),
        fairness_key: Some(FairnessKey::Tag("größe".into())),
        lease_ttl_ms: Some(12_000),
        heartbeat_ms: Some(3_000),
        no_dead_letter: true,
        strict: false,
        push: None,
        dispatch: None,
    };
    t.set_queue("q", settings.clone()).await;
    assert_eq!(t.queue("q").await.queue.settings, settings);
    t.put(NewTask { spec: make::attempts(1), ..t.task("q").await }).await;
    let grant = t.claim_one("q").await;
    assert_eq!((grant.lease_ttl_ms, grant.heartbeat_ms), (12_000, 3_000));
    t.bury(&grant, "X").await;
    assert_eq!(t.queue("q").await.counts.dead_lettered, 0);
    let view = t.store.queue(grant.queue).await.unwrap().unwrap();
    assert_eq!((view.queue.settings, view.running), (settings, 0));
}

async fn a_strict_queue_serves_workers_that_kill_and_waits_for_the_death_of_a_lost_attempt(t: &Fixture) {
    let strict = QueueSettings { strict: true, ..QueueSettings::default() };
    t.set_queue("q", strict.clone()).await;
    assert_eq!(t.queue("q").await.queue.settings, strict);
    let task = t.put(NewTask { spec: make::attempts(3), ..t.task("q").await }).await;
    assert_eq!(t.claim(&["q"], 1).await, [], "the worker promised nothing");
    let Ok(Answer::NotGranted(not)) = t.run(make::claim_task("w", task)).await else { panic!("granted") };
    assert_eq!(not.reason, NotGrantedReason::NotDue);

    let claim = || {
        let mut claim = make::claim("w", &["q"], 1);
        claim.claimer.worker.as_mut().unwrap().kills_on_expiry = true;
        claim
    };
    let first = t.claimed(claim()).await.grants.remove(0);
    t.clock.advance(60_000);
    assert_eq!(t.reap().await, 1);
    // A task without that would have been ready at once; back-off is off here.
    let Place::Scheduled(waiting) = t.view(task).await.place else { panic!("it waits") };
    assert_eq!(waiting.at, after_start(60_000 + tenure_core::limits::STRICT_KILL_MS));
    assert_eq!(t.claimed(claim()).await.grants, []);
    t.clock.advance(tenure_core::limits::STRICT_KILL_MS);
    t.promote().await;
    let second = t.claimed(claim()).await.grants.remove(0);
    assert!(second.fence > first.fence);
}
