//! Logs of tasks.

use std::sync::Arc;

use tenure_core::command::claim::Grant;
use tenure_core::{LeaseToken, Seq};
use tenure_store::{LOG_BYTES_PER_ATTEMPT, LogKept, NewLogPiece, Retention};

use crate::common::make::claim;
use crate::common::{Fixture, START};

crate::on_both_stores!(
    only_the_holder_of_an_attempt_adds_to_its_log,
    logs_are_read_in_order_by_attempt_and_position,
    an_attempt_has_so_much_and_no_more,
    logs_go_with_their_age_and_with_their_task,
);

fn piece(grant: &Grant, lines: &str) -> NewLogPiece {
    NewLogPiece { task: grant.task, token: grant.token, worker: None, lines: lines.into() }
}

async fn texts(t: &Fixture, grant: &Grant, attempt: Option<u32>, after: i64) -> Vec<Arc<str>> {
    let pieces = t.store.task_logs(grant.task.seq(), attempt, after, 99).await.unwrap();
    pieces.into_iter().map(|piece| piece.lines).collect()
}

async fn only_the_holder_of_an_attempt_adds_to_its_log(t: &Fixture) {
    t.put_many("q", 2).await;
    let grants = t.claimed(claim("w", &["q"], 2)).await.grants;
    let sent = [
        piece(&grants[0], "mine"),
        NewLogPiece { token: grants[1].token, ..piece(&grants[0], "the token of another") },
        NewLogPiece { token: LeaseToken::from_u128(0), ..piece(&grants[0], "no token") },
        NewLogPiece { worker: Some("another".into()), ..piece(&grants[0], "the wrong worker") },
        NewLogPiece { worker: Some("w".into()), ..piece(&grants[0], "proven") },
    ];
    let kept = t.store.keep_logs(&sent).await.unwrap();
    use LogKept::{Kept, NotHeld};
    assert_eq!(kept, [Kept, NotHeld, NotHeld, NotHeld, Kept]);
    assert_eq!(texts(t, &grants[0], None, 0).await, [Arc::from("mine"), "proven".into()]);
    t.complete(&grants[0]).await.unwrap();
    let late = t.store.keep_logs(&[piece(&grants[0], "late"), piece(&grants[1], "other")]).await.unwrap();
    assert_eq!(late, [NotHeld, Kept]);
    assert_eq!(texts(t, &grants[0], None, 0).await.len(), 2, "what was kept stays after the end");
}

async fn logs_are_read_in_order_by_attempt_and_position(t: &Fixture) {
    t.put_in("q").await;
    let first = t.claim_one("q").await;
    t.store.keep_logs(&[piece(&first, "a"), piece(&first, "b")]).await.unwrap();
    t.run(crate::common::make::release(&first)).await.unwrap();
    let second = t.claim_one("q").await;
    t.store.keep_logs(&[piece(&second, "c")]).await.unwrap();
    let all = t.store.task_logs(first.task.seq(), None, 0, 99).await.unwrap();
    let shown: Vec<_> = all.iter().map(|piece| (piece.attempt, &*piece.lines, piece.at)).collect();
    assert_eq!(shown, [(first.attempt, "a", START), (first.attempt, "b", START), (second.attempt, "c", START)]);
    assert_eq!(texts(t, &first, None, all[0].id).await, [Arc::from("b"), "c".into()]);
    assert_eq!(t.store.task_logs(first.task.seq(), None, 0, 1).await.unwrap().len(), 1);
    if second.attempt != first.attempt {
        assert_eq!(texts(t, &first, Some(second.attempt), 0).await, [Arc::from("c")]);
    }
}

async fn an_attempt_has_so_much_and_no_more(t: &Fixture) {
    t.put_in("q").await;
    let grant = t.claim_one("q").await;
    let half = "x".repeat(usize::try_from(LOG_BYTES_PER_ATTEMPT).unwrap() / 2);
    let sent = [piece(&grant, &half), piece(&grant, &half), piece(&grant, "y")];
    assert_eq!(t.store.keep_logs(&sent).await.unwrap(), [LogKept::Kept, LogKept::Kept, LogKept::Full]);
}

async fn logs_go_with_their_age_and_with_their_task(t: &Fixture) {
    t.put_many("q", 2).await;
    let grants = t.claim(&["q"], 2).await;
    t.store.keep_logs(&[piece(&grants[0], "old"), piece(&grants[1], "old")]).await.unwrap();
    t.clock.advance(5_000);
    t.store.keep_logs(&[piece(&grants[0], "young"), piece(&grants[1], "young")]).await.unwrap();
    t.complete(&grants[0]).await.unwrap();
    let keep = Retention { logs_ms: 2_000, ..Retention::default() };
    t.store.prune(&keep, Seq(0), 100).await.unwrap();
    assert_eq!(texts(t, &grants[0], None, 0).await, [Arc::from("young")]);
    assert_eq!(texts(t, &grants[1], None, 0).await, [Arc::from("young")]);
    t.clock.advance(3_600_000);
    let keep = Retention { finished_ms: 1_000, logs_ms: 7_200_000, ..Retention::default() };
    t.store.prune(&keep, Seq(0), 100).await.unwrap();
    assert!(texts(t, &grants[0], None, 0).await.is_empty(), "its task is gone");
    assert_eq!(texts(t, &grants[1], None, 0).await.len(), 1);
}
