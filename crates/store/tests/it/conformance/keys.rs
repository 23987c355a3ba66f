//! Idempotency keys: the same key and content is the same task.

use tenure_core::TaskId;
use tenure_core::command::submit::{NewTask, Start, Submit};
use tenure_core::command::{Answer, Command, Rejection};
use tenure_core::task::State;

use crate::common::{Client, Fixture, make};

crate::on_both_stores!(
    the_same_key_and_content_is_the_same_task,
    other_content_under_the_same_key_is_refused,
    one_bad_entry_refuses_the_whole_submission,
    keys_are_known_inside_a_submission_and_inside_a_batch,
    keys_of_tenants_and_workspaces_are_apart,
    many_submits_of_one_key_at_the_same_time_make_one_task,
);

async fn keyed(client: &Client, key: &str, content: u8) -> NewTask {
    NewTask { idempotency: make::key(key, content), ..client.task("q").await }
}

async fn the_same_key_and_content_is_the_same_task(t: &Fixture) {
    let task = NewTask { start: Start::After(1_000), ..keyed(t, "k", 1).await };
    let id = t.put(task).await;
    let mut states = Vec::new();
    let repeat = async || {
        let submitted = t.submit(vec![keyed(t, "k", 1).await]).await;
        assert_eq!((submitted[0].id, submitted[0].created), (id, false));
        submitted[0].state
    };
    states.push(repeat().await);
    t.clock.advance(1_000);
    t.promote().await;
    states.push(repeat().await);
    let grant = t.claim_one("q").await;
    states.push(repeat().await);
    t.complete(&grant).await.unwrap();
    states.push(repeat().await);
    assert_eq!(states, [State::Scheduled, State::Ready, State::Running, State::Succeeded]);
}

async fn other_content_under_the_same_key_is_refused(t: &Fixture) {
    let id = t.put(keyed(t, "k", 1).await).await;
    let tasks = vec![t.task("q").await, keyed(t, "k", 2).await];
    let outcome = t.run(Command::Submit(Submit { tasks, maker: None })).await;
    assert_eq!(outcome, Err(Rejection::IdempotencyConflict { index: 1, existing: Some(id) }));
    assert_eq!(t.queue("q").await.counts.ready, 1);
}

async fn one_bad_entry_refuses_the_whole_submission(t: &Fixture) {
    let existing = keyed(t, "k", 1).await;
    let tasks = vec![existing.clone(), keyed(t, "k", 2).await];
    let bad = Command::Submit(Submit { tasks, maker: None });
    let good = Command::Submit(Submit { tasks: vec![keyed(t, "k", 3).await], maker: None });
    let outcomes = t.run_all(vec![bad, good]).await;
    assert_eq!(outcomes[0], Err(Rejection::IdempotencyConflict { index: 1, existing: Some(existing.id) }));
    assert!(outcomes[1].is_ok(), "the refused submission left no key: {:?}", outcomes[1]);
    assert_eq!(t.queue("q").await.counts.ready, 1);
}

async fn keys_are_known_inside_a_submission_and_inside_a_batch(t: &Fixture) {
    let first = keyed(t, "k", 1).await;
    let tasks = vec![first.clone(), keyed(t, "k", 1).await];
    let later = vec![keyed(t, "k", 1).await, keyed(t, "other", 1).await];
    let commands = [tasks, later].map(|tasks| Command::Submit(Submit { tasks, maker: None }));
    let outcomes = t.run_all(commands.to_vec()).await;
    let mut got: Vec<(TaskId, bool)> = Vec::new();
    for outcome in outcomes {
        let Ok(Answer::Submitted(submitted)) = outcome else { panic!("{outcome:?}") };
        got.extend(submitted.iter().map(|task| (task.id, task.created)));
    }
    assert_eq!(got[..3], [(first.id, true), (first.id, false), (first.id, false)]);
    assert!(got[3].1);
    assert_eq!(t.queue("q").await.counts.ready, 2);
}

async fn keys_of_tenants_and_workspaces_are_apart(t: &Fixture) {
    let mut ids = Vec::new();
    for (tenant, workspace) in [("acme", "default"), ("acme", "prod"), ("other", "default")] {
        let task = NewTask { tenant: tenant.into(), workspace: workspace.into(), ..keyed(t, "k", 1).await };
        ids.push(t.put(task).await);
    }
    ids.dedup();
    assert_eq!(ids.len(), 3);
    let again = NewTask { workspace: "prod".into(), ..keyed(t, "k", 1).await };
    assert_eq!(t.submit(vec![again]).await[0].id, ids[1]);
}

async fn many_submits_of_one_key_at_the_same_time_make_one_task(t: &Fixture) {
    let mut sent = Vec::new();
    for _ in 0..16 {
        let client = t.client();
        sent.push(tokio::spawn(async move {
            let task = keyed(&client, "k", 1).await;
            client.submit(vec![task]).await[0]
        }));
    }
    let mut submitted = Vec::new();
    for task in sent {
        submitted.push(task.await.unwrap());
    }
    assert_eq!(submitted.iter().filter(|task| task.created).count(), 1);
    assert!(submitted.iter().all(|task| task.id == submitted[0].id));
    assert_eq!(t.queue("q").await.counts.ready, 1);
}
