use super::*;

#[test]
fn later_commands_see_what_earlier_ones_did() {
    let (outcomes, writes) =
        run(Place::Ready(ready()), 0, &[claim(1), heartbeat(1), complete(1), complete(1), cancel()]);
    assert_eq!(grants(&outcomes[0]).len(), 1);
    assert!(matches!(outcomes[1], Ok(Answer::Renewed(_))));
    assert_eq!(outcomes[2], Ok(Answer::Reported(Receipt::Completed)));
    assert_eq!(outcomes[2], outcomes[3]);
    assert_eq!(outcomes[4], Err(Rejection::AlreadyTerminal { state: State::Succeeded }));
    assert_eq!((writes.tasks.unready.len(), finish_row(&writes).attempt), (1, 1));
}

#[test]
fn a_refused_command_refuses_nothing_else() {
    let (outcomes, _) = run(Place::Running(running()), 0, &[complete(9), complete(1)]);
    assert_eq!(conflict(&outcomes[0]).kind, ConflictKind::StaleAttempt);
    assert_eq!(outcomes[1], Ok(Answer::Reported(Receipt::Completed)));
}

#[test]
fn two_claims_never_share_a_task() {
    let (outcomes, writes) = run(Place::Ready(ready()), 0, &[claim(1), claim(2)]);
    assert_eq!((grants(&outcomes[0]).len(), grants(&outcomes[1]).len()), (1, 0));
    assert_eq!(writes.tasks.run.len(), 1);
}

#[test]
fn a_task_that_an_earlier_command_took_away_is_not_granted() {
    let (outcomes, writes) = run(Place::Ready(ready()), 0, &[cancel(), claim(1)]);
    assert_eq!(grants(&outcomes[1]), []);
    assert_eq!(finish_row(&writes).end, crate::task::End::Canceled);
}

#[test]
fn a_replay_behind_a_regrant_in_the_same_batch_gets_its_receipt() {
    // The attempt was current when the batch was loaded, so its history was not.
    let commands = [fail(1), claim_task(2), fail(1), complete(1), heartbeat(1)];
    let (outcomes, writes) = run(Place::Running(running_with(no_backoff())), 1_000, &commands);
    assert_eq!(outcomes[0], Ok(Answer::Reported(Receipt::Failed { requeued: true, dlq: false })));
    assert_eq!(grants(&outcomes[1])[0].attempt, 2);
    assert_eq!(outcomes[2], outcomes[0]);
    assert_eq!(conflict(&outcomes[3]).kind, ConflictKind::ConflictingCompletion);
    assert_eq!(conflict(&outcomes[4]).kind, ConflictKind::StaleAttempt);
    let [(_, first)] = &writes.tasks.attempts[..] else { panic!("{:?}", writes.tasks.attempts) };
    assert!(first.receipt.is_some() && first.evidence.is_some());
}

#[test]
fn a_replay_behind_the_grant_of_the_retry_gets_its_receipt() {
    // The attempt was the last one when the batch was loaded, so its history was not; the grant takes it away.
    let (_, writes) = run(Place::Running(running_with(no_backoff())), 1_000, &[fail(1)]);
    let waiting = Place::Ready(writes.tasks.ready[0].1.clone());
    let (outcomes, writes) = run(waiting, 2_000, &[claim(2), fail(1), heartbeat(1), complete(1)]);
    assert_eq!(outcomes[1], Ok(Answer::Reported(Receipt::Failed { requeued: true, dlq: false })));
    assert_eq!(conflict(&outcomes[2]).kind, ConflictKind::StaleAttempt);
    assert_eq!(conflict(&outcomes[3]).kind, ConflictKind::ConflictingCompletion);
    assert!(matches!(&writes.tasks.attempts[..], [(_, first)] if first.number == 1 && first.evidence.is_some()));
}

#[test]
fn a_superseded_report_behind_a_regrant_in_the_same_batch_is_kept() {
    let commands = [claim_task(2), complete(1)];
    let (outcomes, writes) = run(Place::Running(running_with(no_backoff())), 60_000, &commands);
    assert_eq!(conflict(&outcomes[1]).kind, ConflictKind::StaleAttempt);
    let [(_, first)] = &writes.tasks.attempts[..] else { panic!("{:?}", writes.tasks.attempts) };
    assert_eq!((first.number, first.evidence.is_some()), (1, true));
}

#[test]
fn an_id_with_the_row_of_another_task_names_nothing() {
    let guessed = TaskId::from_u128(id().as_u128() ^ 1 << 100);
    let report = succeeded("1");
    let commands = [
        Command::Report(AttemptReport {
            task: guessed,
            attempt_id: attempt_id(1),
            token: token(1),
            report,
            data: None,
        }),
        Command::ClaimTask(ClaimTask { claimer: claimer(2), task: guessed, message: None }),
    ];
    let (outcomes, writes) = run(Place::Running(running()), 0, &commands);
    assert_eq!(outcomes[0], Err(Rejection::NotFound));
    let Ok(Answer::NotGranted(refusal)) = outcomes[1] else { panic!("{outcomes:?}") };
    assert_eq!((refusal.reason, refusal.ack), (NotGrantedReason::NotFound, true));
    assert!(writes.is_empty());
}
