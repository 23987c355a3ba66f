//! Which task a claim gets.

use std::sync::Arc;

use tenure_core::TaskId;
use tenure_core::command::claim::{Claim, Claimed, Grant};
use tenure_core::command::submit::{NewTask, Start};
use tenure_core::command::{Answer, Command};
use tenure_core::task::{Spec, State};

use crate::common::{Fixture, after_start, make};

crate::on_both_stores!(
    priority_comes_first_and_then_the_time_of_readiness,
    queues_are_tried_strictly_in_the_listed_order,
    unknown_and_paused_queues_count_as_empty,
    claims_of_one_batch_never_share_a_task,
    claims_of_one_batch_share_what_a_later_queue_has,
    a_task_past_its_deadline_does_not_hide_those_behind_it,
    a_task_that_an_earlier_command_took_does_not_hide_those_behind_it,
    a_repeated_claim_id_gets_the_same_grants,
    a_claim_id_is_free_again_once_its_leases_are_over,
);

fn ids(claimed: &Claimed) -> Vec<TaskId> {
    claimed.grants.iter().map(|grant| grant.task).collect()
}

async fn claim_batch(t: &Fixture, claims: Vec<Claim>) -> Vec<Vec<TaskId>> {
    let outcomes = t.run_all(claims.into_iter().map(Command::Claim).collect()).await;
    outcomes
        .iter()
        .map(|outcome| match outcome {
            Ok(Answer::Claimed(claimed)) => ids(claimed),
            other => panic!("no answer to a claim: {other:?}"),
        })
        .collect()
}

async fn priority_comes_first_and_then_the_time_of_readiness(t: &Fixture) {
    let delayed = t.put(NewTask { start: Start::At(after_start(500)), ..t.task("q").await }).await;
    let first = t.put_in("q").await;
    let second = t.put_in("q").await;
    t.clock.advance(1_000);
    let later = t.put_in("q").await;
    let low = t.put(NewTask { priority: 9, ..t.task("q").await }).await;
    let high = t.put(NewTask { priority: 0, ..t.task("q").await }).await;
    // Found late, but ready since its time came.
    assert_eq!(t.promote().await, 1);
    assert_eq!(t.claim_ids(&["q"], 3).await, [high, first, second]);
    assert_eq!(t.claim_ids(&["q"], 10).await, [delayed, later, low]);
}

async fn queues_are_tried_strictly_in_the_listed_order(t: &Fixture) {
    let normal = t.put_many("normal", 3).await;
    let high = t.put_many("high", 2).await;
    let urgent_elsewhere = t.put(NewTask { priority: 0, ..t.task("normal").await }).await;
    assert_eq!(t.claim_ids(&["high", "normal"], 3).await, [high[0], high[1], urgent_elsewhere]);
    let again = t.put_in("high").await;
    assert_eq!(t.claim_ids(&["high", "normal"], 1).await, [again]);
    assert_eq!(t.claim_ids(&["high", "normal"], 9).await, normal);
    assert_eq!(t.claim_ids(&["high", "normal"], 9).await, []);
}

async fn unknown_and_paused_queues_count_as_empty(t: &Fixture) {
    let held_back = t.put_in("paused").await;
    let id = t.put_in("q").await;
    t.pause("paused", true).await;
    assert_eq!(t.claim_ids(&["nowhere", "paused", "q"], 9).await, [id]);
    assert_eq!(t.store.queues(None, None, 10).await.unwrap().items.len(), 2, "a claim makes no queue");
    t.pause("paused", false).await;
    assert_eq!(t.claim_ids(&["nowhere", "paused", "q"], 9).await, [held_back]);
}

async fn claims_of_one_batch_never_share_a_task(t: &Fixture) {
    let put = t.put_many("q", 5).await;
    let claims = (0..4).map(|worker| make::claim(&format!("w{worker}"), &["q"], 2)).collect();
    let got = claim_batch(t, claims).await;
    assert_eq!(got, [put[..2].to_vec(), put[2..4].to_vec(), put[4..].to_vec(), vec![]]);
}

/// The rows of a second queue are loaded only for claims that found too little in their first.
async fn claims_of_one_batch_share_what_a_later_queue_has(t: &Fixture) {
    let a = t.put_many("a", 3).await;
    let b = t.put_many("b", 4).await;
    let claims = vec![
        make::claim("w1", &["a", "b"], 2),
        make::claim("w2", &["a", "b"], 2),
        make::claim("w3", &["b"], 1),
        make::claim("w4", &["b", "a"], 9),
    ];
    let got = claim_batch(t, claims).await;
    assert_eq!(got, [vec![a[0], a[1]], vec![a[2], b[0]], vec![b[1]], vec![b[2], b[3]]]);
}

async fn a_task_past_its_deadline_does_not_hide_those_behind_it(t: &Fixture) {
    let spec = Spec { deadline: Some(after_start(1_000)), ..Spec::default() };
    for _ in 0..3 {
        t.put(NewTask { spec, priority: 0, ..t.task("first").await }).await;
    }
    let (first, second) = (t.put_many("first", 2).await, t.put_in("second").await);
    t.clock.advance(1_000);
    assert_eq!(t.claim_ids(&["first", "second"], 1).await, [first[0]]);
    assert_eq!(t.claim_ids(&["first", "second"], 2).await, [first[1], second]);
    assert_eq!(t.queue("first").await.counts.dead_lettered, 3, "the deadline counts before the reaper comes by");
}

async fn a_task_that_an_earlier_command_took_does_not_hide_those_behind_it(t: &Fixture) {
    let put = t.put_many("q", 3).await;
    let cancel = make::cancel(put[0], tenure_core::command::cancel::Mode::Cooperative);
    let take = make::claim_task("w1", put[1]);
    let outcomes = t.run_all(vec![cancel, take, Command::Claim(make::claim("w2", &["q"], 1))]).await;
    let Ok(Answer::Claimed(claimed)) = &outcomes[2] else { panic!("{:?}", outcomes[2]) };
    assert_eq!(ids(claimed), [put[2]]);
}

fn named(worker: &str, claim_id: &str, max_jobs: usize) -> Claim {
    let mut claim = make::claim(worker, &["high", "q"], max_jobs);
    claim.claimer.worker.as_mut().unwrap().claim_id = Some(claim_id.into());
    claim
}

/// Order does not matter here: only the claim itself knew in which order it took the tasks.
fn sorted(mut grants: Vec<Grant>) -> Vec<Grant> {
    grants.sort_by_key(|grant| grant.task);
    grants
}

async fn a_repeated_claim_id_gets_the_same_grants(t: &Fixture) {
    t.put_many("q", 4).await;
    t.put_in("high").await;
    let first = t.claimed(named("w", "c-1", 3)).await;
    assert_eq!(first.grants.len(), 3);
    assert_eq!(sorted(t.claimed(named("w", "c-1", 3)).await.grants), sorted(first.grants.clone()));
    // The body comes along again, and what the claim asks for now makes no difference.
    let again = t.claimed(named("w", "c-1", 1)).await.grants;
    assert!(again.len() == 3 && again.iter().all(|grant| grant.body.is_some()));

    // Inside one batch as well.
    let outcomes = t.run_all(vec![Command::Claim(named("w", "c-2", 1)), Command::Claim(named("w", "c-2", 1))]).await;
    assert_eq!(outcomes[0], outcomes[1]);

    // The id is the worker's own.
    assert_eq!(t.claimed(named("other", "c-1", 9)).await.grants.len(), 1);
    assert_eq!(t.claimed(named("w", "c-3", 9)).await.grants, []);
    let left = first.grants.iter().skip(1).cloned().collect();
    t.complete(&first.grants[0]).await.unwrap();
    assert_eq!(sorted(t.claimed(named("w", "c-1", 3)).await.grants), sorted(left));
}

async fn a_claim_id_is_free_again_once_its_leases_are_over(t: &Fixture) {
    t.put_many("q", 2).await;
    let first = t.claimed(named("w", "c-1", 1)).await.grants;
    t.clock.advance(60_000);
    // Nobody has swept it yet; the claim gets something else all the same.
    let second = t.claimed(named("w", "c-1", 1)).await.grants;
    assert_eq!(second.len(), 1);
    assert_ne!(first[0].task, second[0].task);
    assert_eq!(t.state(first[0].task).await, State::Running);
    assert_eq!(t.claimed(named("w", "c-1", 1)).await.grants, second);
    let names: Vec<Arc<str>> = vec!["q".into(), "high".into()];
    assert_eq!(t.store.ready_in(&names, 10).await.unwrap(), []);
}
