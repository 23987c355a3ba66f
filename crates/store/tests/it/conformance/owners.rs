//! Owners inside a tenant: what one submitted is not there for the other.

use std::collections::HashMap;

use tenure_core::Seq;
use tenure_core::TaskId;
use tenure_core::command::cancel::{Cancel, Mode};
use tenure_core::command::retry::Retry;
use tenure_core::command::submit::{NewTask, Submit};
use tenure_core::command::{Answer, Command, Reach, Rejection};
use tenure_core::task::State;
use tenure_store::{DeadLetterFilter, NewRedrive, RedriveFilter, TaskFilter, TaskView, Whose};

use crate::common::{Fixture, make};

crate::on_both_stores!(
    one_owner_does_not_see_the_other,
    lists_hold_what_the_owner_submitted,
    one_owner_cannot_cancel_or_retry_for_the_other,
    dead_letters_are_those_of_the_owner,
    a_redrive_of_an_owner_releases_no_others,
    a_key_of_another_owner_is_taken_and_says_no_more,
    the_view_of_the_schema_shows_owners,
);

fn reach(owner: &str) -> Reach {
    Reach::Owner { tenant: "acme".into(), owner: owner.into() }
}

async fn put(t: &Fixture, tenant: &str, owner: Option<&str>) -> TaskId {
    t.put(NewTask { tenant: tenant.into(), owner: owner.map(Into::into), ..t.task("q").await }).await
}

/// Ann's, Bob's, nobody's, and that of an Ann of another tenant.
async fn four(t: &Fixture) -> [TaskId; 4] {
    [
        put(t, "acme", Some("ann")).await,
        put(t, "acme", Some("bob")).await,
        put(t, "acme", None).await,
        put(t, "other", Some("ann")).await,
    ]
}

fn ids(items: &[TaskView]) -> Vec<TaskId> {
    items.iter().map(TaskView::id).collect()
}

async fn one_owner_does_not_see_the_other(t: &Fixture) {
    let [ann, bob, nobody, other] = four(t).await;
    for (id, seen) in [(ann, true), (bob, false), (nobody, false), (other, false)] {
        assert_eq!(t.store.task(id, &reach("ann")).await.unwrap().is_some(), seen);
        assert_eq!(t.store.attempts(id, &reach("ann")).await.unwrap().is_some(), seen);
    }
    let whose = |tenant: &str, owner: Option<&str>| Whose { tenant: tenant.into(), owner: owner.map(Into::into) };
    let found = t.store.whose(&[ann.seq(), nobody.seq(), other.seq(), Seq(9_999)]).await.unwrap();
    let expected = [
        (ann.seq(), whose("acme", Some("ann"))),
        (nobody.seq(), whose("acme", None)),
        (other.seq(), whose("other", Some("ann"))),
    ];
    assert_eq!(found, HashMap::from(expected));
}

async fn lists_hold_what_the_owner_submitted(t: &Fixture) {
    let [ann, bob, nobody, other] = four(t).await;
    let cases = [
        (reach("ann"), vec![ann]),
        (reach("bob"), vec![bob]),
        (reach("eve"), vec![]),
        (Reach::Tenant("acme".into()), vec![nobody, bob, ann]),
        (Reach::All, vec![other, nobody, bob, ann]),
    ];
    for (reach, expected) in cases {
        for state in [None, Some(State::Ready)] {
            let filter = TaskFilter { reach: reach.clone(), state, limit: 100, ..TaskFilter::default() };
            assert_eq!(ids(&t.store.tasks(&filter).await.unwrap().items), expected, "{filter:?}");
        }
    }
}

async fn one_owner_cannot_cancel_or_retry_for_the_other(t: &Fixture) {
    let [ann, bob, nobody, other] = four(t).await;
    let cancel = |task, mode| Cancel { task, reason: "stop".into(), mode, reach: reach("ann") };
    for id in [bob, nobody, other] {
        for mode in [Mode::Cooperative, Mode::Immediate] {
            assert_eq!(t.run(Command::Cancel(cancel(id, mode))).await, Err(Rejection::NotFound));
        }
        assert_eq!(t.state(id).await, State::Ready);
    }
    assert!(t.run(Command::Cancel(cancel(ann, Mode::Immediate))).await.is_ok());
    for id in [bob, nobody, other] {
        t.run(make::cancel(id, Mode::Immediate)).await.unwrap();
        assert_eq!(t.run(Command::Retry(Retry { task: id, reach: reach("ann") })).await, Err(Rejection::NotFound));
        assert_eq!(t.state(id).await, State::Canceled);
    }
    assert!(t.run(Command::Retry(Retry { task: ann, reach: reach("ann") })).await.is_ok());
    assert_eq!(t.state(ann).await, State::Ready);
}

/// As [`four`], all of them dead.
async fn four_dead(t: &Fixture) -> [TaskId; 4] {
    let four = four(t).await;
    for grant in t.claim(&["q"], 9).await {
        t.bury(&grant, "X").await;
    }
    four
}

async fn dead_letters_are_those_of_the_owner(t: &Fixture) {
    let [ann, bob, nobody, other] = four_dead(t).await;
    let of = |owner: &str| RedriveFilter { owner: Some(owner.to_owned()), ..RedriveFilter::default() };
    let cases = [
        (reach("ann"), RedriveFilter::default(), vec![ann]),
        (reach("ann"), of("ann"), vec![ann]),
        // Outside of its reach a caller finds nothing, whatever it asks for.
        (reach("ann"), of("bob"), vec![]),
        (reach("ann"), RedriveFilter { tenant: Some("other".to_owned()), ..RedriveFilter::default() }, vec![]),
        (reach("ann"), RedriveFilter { rows: Some(vec![bob.seq()]), ..RedriveFilter::default() }, vec![]),
        (Reach::Tenant("acme".into()), RedriveFilter::default(), vec![ann, bob, nobody]),
        (Reach::Tenant("acme".into()), of("ann"), vec![ann]),
        (Reach::All, of("ann"), vec![ann, other]),
    ];
    for (reach, filter, expected) in cases {
        let filter = DeadLetterFilter { filter, reach, limit: 100, ..DeadLetterFilter::default() };
        assert_eq!(ids(&t.store.dead_letters(&filter).await.unwrap().items), expected, "{filter:?}");
    }
    assert_eq!(t.store.count_dead_letters(&of("ann")).await.unwrap(), 2);
    assert_eq!(t.store.count_dead_letters(&of("eve")).await.unwrap(), 0);
}

/// The filter of a redrive is kept with it, its owner too.
async fn a_redrive_of_an_owner_releases_no_others(t: &Fixture) {
    let [ann, ..] = four_dead(t).await;
    let filter =
        RedriveFilter { tenant: Some("acme".to_owned()), owner: Some("ann".to_owned()), ..RedriveFilter::default() };
    let new = NewRedrive { redrive_id: 1, key: None, filter: filter.clone(), rate: None };
    assert_eq!(t.store.start_redrive(&new).await.unwrap().matched, 1);
    let open = t.store.open_redrives().await.unwrap();
    assert_eq!(open[0].filter, filter);
    assert_eq!(t.store.redrive_matches(&open[0], 100).await.unwrap(), [ann.seq()]);
}

async fn a_key_of_another_owner_is_taken_and_says_no_more(t: &Fixture) {
    let keyed = async |owner: Option<&str>, content| NewTask {
        owner: owner.map(Into::into),
        idempotency: make::key("k", content),
        ..t.task("q").await
    };
    let first = t.put(keyed(Some("ann"), 1).await).await;
    let submit = async |task| t.run(Command::Submit(Submit { tasks: vec![task], maker: None })).await;
    let hidden = Err(Rejection::IdempotencyConflict { index: 0, existing: None });
    // The same content or not: Bob cannot find out.
    for content in [1, 2] {
        assert_eq!(submit(keyed(Some("bob"), content).await).await, hidden);
    }
    let own = submit(keyed(Some("ann"), 2).await).await;
    assert_eq!(own, Err(Rejection::IdempotencyConflict { index: 0, existing: Some(first) }));
    for owner in [Some("ann"), None] {
        match submit(keyed(owner, 1).await).await {
            Ok(Answer::Submitted(again)) => assert_eq!((again[0].id, again[0].created), (first, false)),
            other => panic!("{owner:?}: {other:?}"),
        }
    }
    assert_eq!(t.raw.number("SELECT count(*) FROM bodies").await, 1);
}

async fn the_view_of_the_schema_shows_owners(t: &Fixture) {
    four(t).await;
    let rows = t.raw.rows("SELECT tenant, owner FROM tasks ORDER BY seq").await;
    let text = |text: &str| Some(text.to_owned());
    let expected =
        [[text("acme"), text("ann")], [text("acme"), text("bob")], [text("acme"), None], [text("other"), text("ann")]];
    assert_eq!(rows, expected);
}
