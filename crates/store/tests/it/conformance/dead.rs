//! Dead letters: listing, filters, pages, and the way back.

use tenure_core::command::redrive::Redrive;
use tenure_core::command::submit::NewTask;
use tenure_core::command::{Answer, Command, NotRetryableReason, Reach, Rejection};
use tenure_core::task::{Spec, State};
use tenure_core::{Seq, TaskId, Timestamp};
use tenure_store::{DeadLetterFilter, NewRedrive, RedriveChange, RedriveCursor, RedriveFilter, RedriveView};

use crate::common::{Fixture, START, after_start, make};

crate::on_both_stores!(
    every_filter_finds_its_dead_letters,
    pages_have_no_gaps_and_no_repeats,
    a_person_brings_back_one_task,
    a_redrive_releases_step_by_step,
    a_redrive_that_matches_nothing_is_done,
    the_same_key_is_the_same_redrive,
    a_redrive_started_again_under_its_id_is_the_same,
    what_dies_after_the_start_is_not_released,
    redrives_are_listed_and_changed_within_reach,
);

/// Buries a task of its own and gives its id.
async fn bury(t: &Fixture, task: NewTask, code: &str) -> TaskId {
    let (id, queue) = (t.put(task.clone()).await, task.queue);
    let grant = t.claim_one(&queue).await;
    assert_eq!(grant.task, id);
    t.bury(&grant, code).await;
    id
}

async fn found(t: &Fixture, filter: RedriveFilter, reach: Reach) -> Vec<TaskId> {
    let filter = DeadLetterFilter { filter, reach, after: None, limit: 100 };
    t.store.dead_letters(&filter).await.unwrap().items.iter().map(|view| view.id()).collect()
}

async fn every_filter_finds_its_dead_letters(t: &Fixture) {
    let a = bury(t, NewTask { operator: "load".into(), ..t.task("etl").await }, "X").await;
    t.clock.advance(1_000);
    let b = bury(t, NewTask { tenant: "other".into(), ..t.task("etl").await }, "Y").await;
    t.clock.advance(1_000);
    let c = t.put(NewTask { spec: make::attempts(1), ..t.task("mail").await }).await;
    let grant = t.claim_one("mail").await;
    t.run(make::fail(&grant, "X", None)).await.unwrap();
    // Neither of these is a dead letter.
    t.put_in("etl").await;
    let grant = t.claim_one("etl").await;
    t.complete(&grant).await.unwrap();

    let text = |text: &str| Some(text.to_owned());
    let filter = RedriveFilter::default;
    let cases = [
        (filter(), vec![a, b, c]),
        (RedriveFilter { queue: text("etl"), ..filter() }, vec![a, b]),
        (RedriveFilter { queue: text("nowhere"), ..filter() }, vec![]),
        (RedriveFilter { operator: text("load"), ..filter() }, vec![a]),
        (RedriveFilter { reason: text("max_attempts"), ..filter() }, vec![c]),
        (RedriveFilter { reason: text("non_retryable"), ..filter() }, vec![a, b]),
        (RedriveFilter { error_code: text("X"), ..filter() }, vec![a, c]),
        (RedriveFilter { tenant: text("other"), ..filter() }, vec![b]),
        (RedriveFilter { after: Some(after_start(1_000)), ..filter() }, vec![b, c]),
        (RedriveFilter { before: Some(after_start(1_000)), ..filter() }, vec![a]),
        (RedriveFilter { rows: Some(vec![c.seq(), a.seq(), Seq(9_999)]), ..filter() }, vec![a, c]),
        (RedriveFilter { rows: Some(vec![]), ..filter() }, vec![]),
        (RedriveFilter { error_code: text("X"), queue: text("etl"), ..filter() }, vec![a]),
    ];
    for (filter, expected) in cases {
        assert_eq!(t.store.count_dead_letters(&filter).await.unwrap(), expected.len() as u64, "{filter:?}");
        assert_eq!(found(t, filter.clone(), Reach::All).await, expected, "{filter:?}");
    }
    let own = Reach::Tenant("acme".into());
    assert_eq!(found(t, filter(), own.clone()).await, [a, c]);
    assert_eq!(found(t, RedriveFilter { tenant: text("other"), ..filter() }, own).await, []);
}

async fn pages_have_no_gaps_and_no_repeats(t: &Fixture) {
    let ids = t.put_many("q", 7).await;
    for grant in t.claim(&["q"], 7).await {
        t.bury(&grant, "X").await;
    }
    let mut filter = DeadLetterFilter { limit: 3, ..DeadLetterFilter::default() };
    let (mut got, mut sizes) = (Vec::new(), Vec::new());
    loop {
        let page = t.store.dead_letters(&filter).await.unwrap();
        sizes.push(page.items.len());
        got.extend(page.items.iter().map(|view| view.id()));
        let Some(next) = page.next else { break };
        // What changes behind a cursor does not move what is in front of it.
        t.run(make::retry(got[0])).await.ok();
        filter.after = Some(Seq(next.parse().unwrap()));
    }
    assert_eq!((got, sizes), (ids, vec![3, 3, 1]));
    filter = DeadLetterFilter { limit: 6, ..DeadLetterFilter::default() };
    assert_eq!(t.store.dead_letters(&filter).await.unwrap().next, None, "exactly one page full");
}

async fn a_person_brings_back_one_task(t: &Fixture) {
    let deadline = Some(after_start(1_000));
    let spec = Spec { deadline, ..make::attempts(1) };
    let id = bury(t, NewTask { spec, ..t.task("q").await }, "X").await;
    let Ok(Answer::Retried(retried)) = t.run(make::retry(id)).await else { panic!("it failed") };
    assert_eq!((retried.attempt, retried.max_attempts), (1, 2));
    assert_eq!(t.queue("q").await.counts.dead_lettered, 0);
    let grant = t.claim_one("q").await;
    assert_eq!((grant.task, grant.attempt), (id, 2));
    assert_eq!(t.attempts(id).await.len(), 2);
    t.bury(&grant, "X").await;
    t.clock.advance(1_000);
    let refused = Rejection::NotRetryable { state: State::Failed, reason: NotRetryableReason::PastDeadline };
    assert_eq!(t.run(make::retry(id)).await, Err(refused));
}

fn redrive(id: u128, key: Option<&str>, filter: RedriveFilter) -> NewRedrive {
    NewRedrive { redrive_id: id, key: key.map(Into::into), filter, rate: Some(2.5) }
}

/// Releases the next `limit` tasks of a redrive, as the engine does. Gives how many that were.
async fn step(t: &Fixture, redrive: &RedriveView, limit: usize) -> u64 {
    let rows = t.store.redrive_matches(redrive, limit).await.unwrap();
    let command = Redrive {
        redrive_id: redrive.redrive_id,
        cursor: rows.last().copied().unwrap_or(redrive.cursor),
        finished: rows.len() < limit,
        rows,
        started_at: redrive.started_at,
    };
    match t.run(Command::Redrive(command)).await {
        Ok(Answer::Redriven { released }) => released,
        other => panic!("not redriven: {other:?}"),
    }
}

async fn open(t: &Fixture) -> Vec<RedriveView> {
    t.store.open_redrives().await.unwrap()
}

async fn bury_many(t: &Fixture, count: usize) -> Vec<TaskId> {
    let ids = t.put_many("q", count).await;
    for grant in t.claim(&["q"], count).await {
        t.bury(&grant, "X").await;
    }
    ids
}

async fn a_redrive_releases_step_by_step(t: &Fixture) {
    let ids = bury_many(t, 5).await;
    let kept = bury(t, t.task("q").await, "OTHER").await;
    let filter = RedriveFilter { error_code: Some("X".into()), ..RedriveFilter::default() };
    let started = t.store.start_redrive(&redrive(1, None, filter.clone())).await.unwrap();
    let fresh = RedriveView {
        redrive_id: 1,
        filter,
        rate: Some(2.5),
        matched: 5,
        released: 0,
        cursor: Seq(0),
        started_at: START,
        finished: false,
        paused: false,
        canceled: false,
    };
    assert_eq!((&started, open(t).await), (&fresh, vec![fresh.clone()]));

    assert_eq!(step(t, &started, 2).await, 2);
    let [now] = &open(t).await[..] else { panic!("one") };
    assert_eq!((now.released, now.cursor, now.finished), (2, ids[1].seq(), false));
    // A person was faster with one of them.
    t.run(make::retry(ids[2])).await.unwrap();
    // A second control plane does the same step again: nothing is released twice.
    assert_eq!(step(t, &started, 2).await, 2);
    let [now] = &open(t).await[..] else { panic!("one") };
    assert_eq!((now.released, now.cursor), (4, ids[4].seq()));
    assert_eq!(step(t, now, 2).await, 0);
    assert_eq!(open(t).await, []);
    assert_eq!(found(t, RedriveFilter::default(), Reach::All).await, [kept]);
    let mut back = t.claim_ids(&["q"], 9).await;
    back.sort_unstable();
    assert_eq!(back, ids);
}

async fn a_redrive_that_matches_nothing_is_done(t: &Fixture) {
    let started = t.store.start_redrive(&redrive(1, None, RedriveFilter::default())).await.unwrap();
    assert!(started.finished && started.matched == 0);
    assert_eq!(open(t).await, []);
}

async fn the_same_key_is_the_same_redrive(t: &Fixture) {
    bury_many(t, 2).await;
    let first = t.store.start_redrive(&redrive(1, Some("k"), RedriveFilter::default())).await.unwrap();
    let second = t.store.start_redrive(&redrive(2, Some("k"), RedriveFilter::default())).await.unwrap();
    assert_eq!(first, second);
    assert_eq!(open(t).await, [first]);
    let other = t.store.start_redrive(&redrive(3, Some("other"), RedriveFilter::default())).await.unwrap();
    assert_eq!(other.redrive_id, 3);
    // Two at the same time agree on one.
    let starts = (0..8_u128).map(|n| {
        let store = std::sync::Arc::clone(&t.store);
        tokio::spawn(async move {
            store.start_redrive(&redrive(100 + n, Some("race"), RedriveFilter::default())).await.unwrap().redrive_id
        })
    });
    let mut ids = Vec::new();
    for start in starts.collect::<Vec<_>>() {
        ids.push(start.await.unwrap());
    }
    ids.dedup();
    assert_eq!((ids.len(), open(t).await.len()), (1, 3));
}

async fn a_redrive_started_again_under_its_id_is_the_same(t: &Fixture) {
    bury_many(t, 2).await;
    let first = t.store.start_redrive(&redrive(7, None, RedriveFilter::default())).await.unwrap();
    let again = t.store.start_redrive(&redrive(7, None, RedriveFilter::default())).await.unwrap();
    assert_eq!(first, again, "the answer to the first start was lost");
    assert_eq!(open(t).await, [first]);
}

async fn what_dies_after_the_start_is_not_released(t: &Fixture) {
    bury_many(t, 1).await;
    let started = t.store.start_redrive(&redrive(1, None, RedriveFilter::default())).await.unwrap();
    t.clock.advance(1);
    let later = bury_many(t, 1).await;
    assert_eq!(step(t, &started, 10).await, 1);
    assert_eq!(found(t, RedriveFilter::default(), Reach::All).await, later);
    assert_eq!(open(t).await, []);
    assert!(started.started_at < t.store.now().await.unwrap() && started.started_at > Timestamp::MIN);
}

async fn redrives_are_listed_and_changed_within_reach(t: &Fixture) {
    bury_many(t, 3).await;
    let of = |tenant: &str| RedriveFilter { tenant: Some(tenant.to_owned()), ..RedriveFilter::default() };
    t.store.start_redrive(&redrive(1, None, of("acme"))).await.unwrap();
    t.store.start_redrive(&redrive(2, None, of("acme"))).await.unwrap();
    t.clock.advance(1_000);
    let last = t.store.start_redrive(&redrive(3, None, RedriveFilter::default())).await.unwrap();
    let own = Reach::Tenant("acme".into());
    let listed = async |reach: &Reach, after, limit| {
        let found = t.store.redrives(reach, after, limit).await.unwrap();
        found.iter().map(|view| view.redrive_id).collect::<Vec<_>>()
    };
    assert_eq!(listed(&Reach::All, None, 9).await, [3, 2, 1]);
    assert_eq!(listed(&own, None, 9).await, [2, 1]);
    assert_eq!(listed(&Reach::Tenant("other".into()), None, 9).await, [0_u128; 0]);
    assert_eq!(listed(&Reach::All, None, 1).await, [3]);
    let after = |started_at, redrive_id| Some(RedriveCursor { started_at, redrive_id });
    assert_eq!(listed(&Reach::All, after(last.started_at, 3), 9).await, [2, 1]);
    assert_eq!(listed(&Reach::All, after(START, 2), 9).await, [1]);
    assert!(t.store.redrive(3, &own).await.unwrap().is_none(), "it is about all tenants");

    let change = async |id, change| t.store.change_redrive(id, &own, change).await.unwrap();
    assert!(!change(3, RedriveChange::Cancel).await);
    assert!(change(1, RedriveChange::Pause).await);
    let opened = async || open(t).await.iter().map(|view| view.redrive_id).collect::<Vec<_>>();
    assert_eq!(opened().await, [2, 3]);
    assert!(t.store.redrive(1, &own).await.unwrap().unwrap().paused);
    assert!(change(1, RedriveChange::Resume).await);
    assert!(change(2, RedriveChange::Cancel).await);
    assert_eq!(opened().await, [1, 3]);
    let canceled = t.store.redrive(2, &own).await.unwrap().unwrap();
    assert!(canceled.canceled && canceled.finished);
    assert!(!change(2, RedriveChange::Resume).await, "nothing brings it back");
    // A step that was under way does not bring it back either.
    step(t, &canceled, 1).await;
    assert!(t.store.redrive(2, &own).await.unwrap().unwrap().finished);
}
