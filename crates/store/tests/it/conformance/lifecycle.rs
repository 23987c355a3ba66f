//! From submit to the end of a task.

use std::sync::Arc;

use tenure_core::attempt::{AttemptState, Progress, Reason, Receipt};
use tenure_core::batch::Outcome;
use tenure_core::command::claim::NotGrantedReason;
use tenure_core::command::heartbeat::Heartbeat;
use tenure_core::command::submit::{NewTask, Start};
use tenure_core::command::{Answer, Command, ConflictKind, Reach, Rejection};
use tenure_core::queue::QueueSettings;
use tenure_core::task::{End, EnvelopeSpec, Place, SandboxCommand, SandboxRun, Spec, State};
use tenure_core::{Fence, TaskId};
use tenure_store::{AttemptView, Batch, Lane};

use crate::common::{Fixture, START, after_start, make};

crate::on_both_stores!(
    a_task_runs_and_succeeds,
    everything_submitted_comes_back_with_the_grant,
    a_delayed_task_waits_until_it_is_due,
    a_failed_task_backs_off_and_runs_again,
    the_last_failure_ends_in_the_dead_letters,
    a_heartbeat_extends_the_lease_and_keeps_progress_and_checkpoint,
    a_heartbeat_that_names_another_attempt_renews_nothing,
    heartbeats_have_a_lane_of_their_own,
    an_undelivered_grant_is_taken_back_without_cost,
    a_new_process_of_a_worker_voids_what_the_old_one_held,
    the_settings_of_its_queue_hold_for_what_a_new_process_voids,
    a_claim_by_id_gets_that_task_or_a_reason,
    a_guessed_id_names_nothing,
    commands_of_one_batch_are_judged_in_order,
    a_report_behind_a_grant_of_the_same_batch_is_one_of_an_earlier_attempt,
    numbers_are_given_once,
    a_batch_may_change_more_queues_than_fit_one_flight,
);

async fn a_task_runs_and_succeeds(t: &Fixture) {
    let id = t.put_in("q").await;
    assert_eq!(t.state(id).await, State::Ready);

    let grant = t.claim_one("q").await;
    assert_eq!((grant.task, grant.attempt, grant.fence), (id, 1, Fence(1)));
    let Place::Running(running) = t.view(id).await.place else { panic!("it runs") };
    assert_eq!((running.lease.holder.as_deref(), running.lease.expires_at), (Some("w"), after_start(60_000)));
    assert_eq!(t.claim(&["q"], 1).await, []);

    let done = t.execute(t.batch(vec![make::complete(&grant, r#"{"rows":10}"#)]).await).await;
    assert_eq!(done.outcomes, [Ok(Answer::Reported(Receipt::Completed))]);
    assert_eq!((done.freed, done.now), (vec!["q".into()], START));
    let Place::Finished(finished) = t.view(id).await.place else { panic!("it has ended") };
    assert_eq!(finished.result.as_deref(), Some(r#"{"rows":10}"#));
    assert_eq!((finished.attempt, finished.fence, finished.finished_at), (1, Fence(1), START));
    let [AttemptView::Closed(only)] = &t.attempts(id).await[..] else { panic!("one attempt") };
    assert_eq!(
        (only.state, only.reason, only.worker.as_deref()),
        (AttemptState::Succeeded, Reason::Completed, Some("w"))
    );
}

async fn everything_submitted_comes_back_with_the_grant(t: &Fixture) {
    let spec = Spec {
        max_attempts: Some(7),
        lease_ttl_ms: Some(5_000),
        heartbeat_ms: Some(1_000),
        timeout_ms: Some(90_000),
        cancel_grace_ms: Some(2_000),
        deadline: Some(after_start(600_000)),
        retry: Some(make::backoff(250)),
        sandbox: false,
        rebuild: false,
    };
    let submitted = NewTask {
        operator: "größe-✓".into(),
        tenant: "acme".into(),
        owner: Some("ann@example.com".into()),
        workspace: "prod".into(),
        priority: 2,
        payload: "{\"text\":\"\\u0000 'quoted' \\\"twice\\\" 🚀\",\"n\":1e400}".into(),
        spec,
        tags: make::tags(&[("team", "etl"), ("", "empty name"), ("quote\"", "it's")]),
        idempotency: make::key("once", 9),
        traceparent: Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into()),
        submitted_by: Some("key:k-1".into()),
        envelope: Some(Arc::new(EnvelopeSpec {
            asset_id: Some("raw.\"events\"".into()),
            partition_key: Some("day=1".into()),
            execution_location_id: Some("eu".into()),
            memory_bytes: Some(1 << 40),
            cpu_millicores: None,
            token_ttl_ms: Some(7_000_000),
            sandbox: Some(SandboxRun {
                command: SandboxCommand::Words(vec!["a".to_owned(), "it's".to_owned()]),
                env: [("A".to_owned(), "b".to_owned())].into(),
                ..SandboxRun::default()
            }),
        })),
        ..t.task("etl").await
    };
    t.put(submitted.clone()).await;
    let grant = t.claim_one("etl").await;
    let body = grant.body.as_ref().unwrap();
    let back = NewTask {
        id: body.id,
        queue: Arc::clone(&t.queue("etl").await.queue.name),
        operator: Arc::clone(&body.operator),
        tenant: Arc::clone(&body.tenant),
        owner: body.owner.clone(),
        workspace: Arc::clone(&body.workspace),
        priority: body.priority,
        payload: Arc::clone(&body.payload),
        spec: body.spec,
        start: Start::Now,
        tags: body.tags.clone(),
        idempotency: body.idempotency.clone(),
        traceparent: body.traceparent.clone(),
        submitted_by: body.submitted_by.clone(),
        envelope: body.envelope.clone(),
    };
    assert_eq!(back, submitted);
    assert_eq!((body.created_at, body.run_at), (START, START));
    assert_eq!((grant.lease_ttl_ms, grant.heartbeat_ms), (5_000, 1_000));
    assert_eq!(grant.deadline, Some(after_start(600_000)));
    let view = t.view(grant.task).await;
    assert_eq!((&*view.queue, &view.body), ("etl", body));
}

async fn a_delayed_task_waits_until_it_is_due(t: &Fixture) {
    let at = t.put(NewTask { start: Start::At(after_start(10_000)), ..t.task("q").await }).await;
    let after = t.put(NewTask { start: Start::After(20_000), ..t.task("q").await }).await;
    let now = t.put(NewTask { start: Start::At(after_start(-5_000)), ..t.task("q").await }).await;
    assert_eq!((t.state(at).await, t.state(after).await), (State::Scheduled, State::Scheduled));
    assert_eq!(t.claim_ids(&["q"], 9).await, [now]);
    let due = t.store.due(10).await.unwrap();
    assert_eq!((due.rows, due.next_at, due.now), (vec![], Some(after_start(10_000)), START));
    // Sent too early, the timer's command changes nothing.
    let early = Command::Promote(tenure_core::command::promote::Promote { row: at.seq() });
    assert_eq!(t.run(early).await, Ok(Answer::Done(false)));

    t.clock.advance(10_000);
    let due = t.store.due(10).await.unwrap();
    assert_eq!((due.rows, due.next_at), (vec![at.seq()], Some(after_start(20_000))));
    assert_eq!(t.promote().await, 1);
    assert_eq!(t.claim_ids(&["q"], 9).await, [at]);
    t.clock.advance(10_000);
    // As many as were asked for: there may be more.
    assert_eq!(t.store.due(1).await.unwrap().next_at, Some(after_start(20_000)));
    assert_eq!(t.promote().await, 1);
    assert_eq!(t.store.due(10).await.unwrap().next_at, None);
    assert_eq!(t.claim_ids(&["q"], 9).await, [after]);
}

async fn a_failed_task_backs_off_and_runs_again(t: &Fixture) {
    let spec = Spec { retry: Some(make::backoff(4_000)), ..Spec::default() };
    let id = t.put(NewTask { spec, ..t.task("q").await }).await;
    let first = t.claim_one("q").await;
    let outcome = t.run(make::fail(&first, "HTTP_503", None)).await;
    assert_eq!(outcome, Ok(Answer::Reported(Receipt::Failed { requeued: true, dlq: false })));
    let Place::Scheduled(waiting) = t.view(id).await.place else { panic!("it backs off") };
    assert_eq!((waiting.at, waiting.attempt), (after_start(4_000), 1));
    assert_ne!(waiting.message, first.message, "the new wait has a new message");

    t.clock.advance(4_000);
    t.promote().await;
    let second = t.claim_one("q").await;
    assert_eq!((second.task, second.attempt, second.fence), (id, 2, Fence(2)));
    assert_ne!((first.attempt_id, first.token), (second.attempt_id, second.token));
    assert_eq!(t.complete(&second).await, Ok(Answer::Reported(Receipt::Completed)));
    let [AttemptView::Closed(one), AttemptView::Closed(two)] = &t.attempts(id).await[..] else { panic!("two") };
    assert_eq!((one.number, one.reason, two.number, two.reason), (1, Reason::Failed, 2, Reason::Completed));
    assert_eq!(one.failure.as_ref().map(|failure| &*failure.code), Some("HTTP_503"));
    // The receipt of an attempt that another followed is still the same.
    assert_eq!(t.run(make::fail(&first, "HTTP_503", None)).await, outcome);
}

async fn the_last_failure_ends_in_the_dead_letters(t: &Fixture) {
    let id = t.put(NewTask { spec: make::attempts(2), ..t.task("q").await }).await;
    for (attempt, requeued) in [(1, true), (2, false)] {
        let grant = t.claim_one("q").await;
        assert_eq!(grant.attempt, attempt);
        let outcome = t.run(make::fail(&grant, "BROKEN", None)).await;
        assert_eq!(outcome, Ok(Answer::Reported(Receipt::Failed { requeued, dlq: !requeued })));
    }
    let Place::Finished(finished) = t.view(id).await.place else { panic!("it has ended") };
    assert_eq!(finished.dead_lettered_at, Some(START));
    assert_eq!(finished.failure.as_ref().map(|failure| &*failure.code), Some("BROKEN"));
    assert_eq!(t.claim(&["q"], 1).await, []);
}

async fn a_heartbeat_extends_the_lease_and_keeps_progress_and_checkpoint(t: &Fixture) {
    let id = t.put(NewTask { spec: make::attempts(3), ..t.task("q").await }).await;
    let grant = t.claim_one("q").await;
    t.clock.advance(50_000);
    let beat = |pct, message: Option<&str>, checkpoint: Option<&str>| {
        Command::Heartbeat(Heartbeat {
            task: id,
            attempt: Some(grant.attempt),
            token: grant.token,
            worker: None,
            progress: Progress { pct, message: message.map(Into::into) },
            checkpoint: checkpoint.map(Into::into),
        })
    };
    let Ok(Answer::Renewed(renewed)) = t.run(beat(Some(40), Some("half way"), Some("row 7"))).await else {
        panic!("the lease is live")
    };
    assert_eq!((renewed.expires_at, renewed.cancel), (after_start(110_000), None));
    t.run(beat(Some(60), None, None)).await.unwrap();
    let Place::Running(running) = t.view(id).await.place else { panic!("it runs") };
    assert_eq!((running.progress.pct, running.progress.message.as_deref()), (Some(60), Some("half way")));
    assert_eq!(running.last_heartbeat_at, Some(after_start(50_000)));

    t.run(make::fail(&grant, "HTTP_503", None)).await.unwrap();
    assert_eq!(t.claim_one("q").await.checkpoint.as_deref(), Some("row 7"), "the next attempt goes on from there");
    let [AttemptView::Closed(first), AttemptView::Open(_)] = &t.attempts(id).await[..] else { panic!("two") };
    assert_eq!(first.progress.pct, Some(60));
}

async fn a_heartbeat_that_names_another_attempt_renews_nothing(t: &Fixture) {
    let id = t.put(NewTask { spec: make::attempts(3), ..t.task("q").await }).await;
    let grant = t.claim_one("q").await;
    let before = t.view(id).await.place;
    t.clock.advance(30_000);
    let beat = |attempt| {
        let (progress, checkpoint) = (Progress { pct: Some(40), message: None }, Some("row 7".into()));
        Command::Heartbeat(Heartbeat { task: id, attempt, token: grant.token, worker: None, progress, checkpoint })
    };
    for attempt in [0, 2] {
        let Err(Rejection::Conflict(conflict)) = t.run(beat(Some(attempt))).await else { panic!("it is another one") };
        assert_eq!((conflict.kind, conflict.attempt), (ConflictKind::StaleAttempt, 1));
    }
    assert_eq!(t.view(id).await.place, before);
    let Ok(Answer::Renewed(renewed)) = t.run(beat(Some(1))).await else { panic!("the lease is live") };
    assert_eq!(renewed.expires_at, after_start(90_000));
}

async fn heartbeats_have_a_lane_of_their_own(t: &Fixture) {
    t.put_in("q").await;
    let grant = t.claim_one("q").await;
    let batch = Batch { lane: Lane::Heartbeat, ..t.batch(vec![make::heartbeat(&grant)]).await };
    assert!(matches!(t.execute(batch).await.outcomes[..], [Ok(Answer::Renewed(_))]));
}

async fn an_undelivered_grant_is_taken_back_without_cost(t: &Fixture) {
    let id = t.put(NewTask { spec: make::attempts(1), ..t.task("q").await }).await;
    let grant = t.claim_one("q").await;
    assert_eq!(t.run(make::release(&grant)).await, Ok(Answer::Done(true)));
    assert_eq!(t.run(make::release(&grant)).await, Ok(Answer::Done(false)));
    let again = t.claim_one("q").await;
    assert_eq!((again.task, again.attempt, again.fence), (id, 2, Fence(2)));
    t.run(make::heartbeat(&again)).await.unwrap();
    assert_eq!(t.run(make::release(&again)).await, Ok(Answer::Done(false)), "a heartbeat proves that it arrived");
}

async fn a_new_process_of_a_worker_voids_what_the_old_one_held(t: &Fixture) {
    let ids = t.put_many("q", 3).await;
    assert_eq!(t.run(make::hello("w", "01-old")).await, Ok(Answer::Done(true)));
    let claim = |worker: &str, incarnation: Option<&str>| {
        let mut claim = make::claim(worker, &["q"], 1);
        claim.claimer.worker.as_mut().unwrap().incarnation = incarnation.map(Into::into);
        claim
    };
    t.claimed(claim("w", Some("01-old"))).await;
    t.claimed(claim("w", None)).await;
    t.claimed(claim("other", Some("01-old"))).await;

    assert_eq!(t.run(make::hello("w", "02-new")).await, Ok(Answer::Done(true)));
    assert_ne!(t.state(ids[0]).await, State::Running);
    assert_eq!((t.state(ids[1]).await, t.state(ids[2]).await), (State::Running, State::Running));
    let [AttemptView::Closed(lost)] = &t.attempts(ids[0]).await[..] else { panic!("one") };
    assert_eq!(lost.reason, Reason::WorkerLost);
    assert_eq!(t.run(make::hello("w", "02-new")).await, Ok(Answer::Done(false)));
    assert_eq!(t.run(make::hello("w", "01-old")).await, Err(Rejection::StaleIncarnation));
}

/// No command of the batch names the queue; the leases that it voids stand in it.
async fn the_settings_of_its_queue_hold_for_what_a_new_process_voids(t: &Fixture) {
    t.set_queue("q", QueueSettings { no_dead_letter: true, ..QueueSettings::default() }).await;
    let id = t.put(NewTask { spec: make::attempts(1), ..t.task("q").await }).await;
    let mut claim = make::claim("w", &["q"], 1);
    claim.claimer.worker.as_mut().unwrap().incarnation = Some("01-old".into());
    t.claimed(claim).await;
    let done = t.execute(t.batch(vec![make::hello("w", "02-new")]).await).await;
    assert_eq!((done.outcomes, done.freed), (vec![Ok(Answer::Done(true))], vec!["q".into()]));
    assert_eq!(t.state(id).await, State::Failed);
    assert_eq!(t.queue("q").await.counts.dead_lettered, 0);
}

async fn a_claim_by_id_gets_that_task_or_a_reason(t: &Fixture) {
    let ids = t.put_many("q", 2).await;
    let later = t.put(NewTask { start: Start::After(1_000), ..t.task("q").await }).await;
    let reason = |outcome| match outcome {
        Ok(Answer::NotGranted(not)) => not.reason,
        other => panic!("granted: {other:?}"),
    };
    let command = make::claim_task("w", ids[1]);
    let Ok(Answer::Claimed(claimed)) = t.run(command.clone()).await else { panic!("it is ready") };
    assert_eq!((claimed.grants[0].task, claimed.grants[0].body.is_some()), (ids[1], true));
    let Ok(Answer::Claimed(again)) = t.run(command).await else { panic!("the same claim") };
    assert_eq!(again, claimed);

    assert_eq!(reason(t.run(make::claim_task("w", ids[1])).await), NotGrantedReason::AlreadyRunning);
    assert_eq!(reason(t.run(make::claim_task("w", later)).await), NotGrantedReason::NotDue);
    assert_eq!(reason(t.run(make::claim_task("w", t.mint().await)).await), NotGrantedReason::NotFound);
    t.complete(&claimed.grants[0]).await.unwrap();
    assert_eq!(reason(t.run(make::claim_task("w", ids[1])).await), NotGrantedReason::Ended(End::Succeeded));
}

async fn a_guessed_id_names_nothing(t: &Fixture) {
    t.put_in("q").await;
    let grant = t.claim_one("q").await;
    let guessed = TaskId::from_u128(grant.task.as_u128() ^ 1 << 100);
    assert_eq!(guessed.seq(), grant.task.seq());
    let mut stolen = grant.clone();
    stolen.task = guessed;
    assert_eq!(t.complete(&stolen).await, Err(Rejection::NotFound));
    assert!(t.store.task(guessed, &Default::default()).await.unwrap().is_none());
    assert!(t.store.attempts(guessed, &Default::default()).await.unwrap().is_none());
    assert_eq!(t.state(grant.task).await, State::Running);
}

async fn commands_of_one_batch_are_judged_in_order(t: &Fixture) {
    let id = t.put(NewTask { spec: make::attempts(2), ..t.task("q").await }).await;
    let grant = t.claim_one("q").await;
    let next = make::claim_task("other", id);
    let outcomes = t
        .run_all(vec![
            make::heartbeat(&grant),
            make::fail(&grant, "X", None),
            next,
            make::complete(&grant, "1"),
            make::fail(&grant, "X", None),
        ])
        .await;
    assert!(matches!(outcomes[0], Ok(Answer::Renewed(_))));
    assert_eq!(outcomes[1], Ok(Answer::Reported(Receipt::Failed { requeued: true, dlq: false })));
    assert!(matches!(&outcomes[2], Ok(Answer::Claimed(claimed)) if claimed.grants[0].attempt == 2));
    let Err(Rejection::Conflict(conflict)) = &outcomes[3] else { panic!("{:?}", outcomes[3]) };
    assert_eq!(conflict.kind, ConflictKind::ConflictingCompletion);
    assert_eq!(outcomes[4], outcomes[1], "the receipt is known inside the batch that made it");
}

/// When the batch is loaded the report is one of the last attempt; when it is judged, another was granted.
async fn a_report_behind_a_grant_of_the_same_batch_is_one_of_an_earlier_attempt(t: &Fixture) {
    t.put(NewTask { spec: make::attempts(3), ..t.task("q").await }).await;
    let first = t.claim_one("q").await;
    let failed = t.run(make::fail(&first, "X", None)).await;
    let outcomes = t
        .run_all(vec![
            Command::Claim(make::claim("w", &["q"], 1)),
            make::fail(&first, "X", None),
            make::heartbeat(&first),
            make::complete(&first, "1"),
        ])
        .await;
    assert!(matches!(&outcomes[0], Ok(Answer::Claimed(claimed)) if claimed.grants[0].attempt == 2));
    assert_eq!(outcomes[1], failed, "the same receipt");
    let kind = |outcome: &Outcome| match outcome {
        Err(Rejection::Conflict(conflict)) => conflict.kind,
        other => panic!("not refused: {other:?}"),
    };
    assert_eq!(kind(&outcomes[2]), ConflictKind::StaleAttempt);
    assert_eq!(kind(&outcomes[3]), ConflictKind::ConflictingCompletion);
    let AttemptView::Closed(closed) = &t.attempts(first.task).await[0] else { panic!("it has ended") };
    assert!(closed.evidence.is_some(), "kept with the attempt that it is about");
}

async fn numbers_are_given_once(t: &Fixture) {
    let blocks = (0..20_i64).map(|i| {
        let client = t.client();
        tokio::spawn(async move {
            let mut numbers = client.store.reserve_numbers(i).await.unwrap();
            (0..i).map(|_| numbers.take()).collect::<Vec<_>>()
        })
    });
    let mut all = Vec::new();
    for block in blocks.collect::<Vec<_>>() {
        all.extend(block.await.unwrap());
    }
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!((all.len(), count), (190, 190));
    assert!(all[0] > 0);
}

/// Postgres sends the statements of a batch in one flight, one for each changed queue; their order must hold for any
/// number of them.
async fn a_batch_may_change_more_queues_than_fit_one_flight(t: &Fixture) {
    let mut tasks = Vec::new();
    for i in 0..50 {
        tasks.push(t.task(&format!("q{i:02}")).await);
    }
    let id = tasks[40].id;
    t.submit(tasks).await;
    let grant = t.claim_one("q40").await;
    let mut commands: Vec<_> = (0..50)
        .map(|i| {
            let queue = format!("q{i:02}").into();
            Command::PauseQueue(tenure_core::command::queues::PauseQueue { queue, paused: true, reach: Reach::All })
        })
        .collect();
    commands.push(make::complete(&grant, "1"));
    assert!(t.run_all(commands).await.iter().all(Result::is_ok));
    let page = t.store.queues(None, None, 100).await.unwrap();
    assert_eq!((page.items.len(), page.items.iter().filter(|stats| stats.queue.paused).count()), (50, 50));
    assert_eq!(t.state(id).await, State::Succeeded);
}
