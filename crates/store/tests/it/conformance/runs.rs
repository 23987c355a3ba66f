//! Runs: written as a whole, led on by the ends of their tasks, and shown.

use std::sync::Arc;

use tenure_core::attempt::{Failure, Report};
use tenure_core::batch::Outcome;
use tenure_core::command::cancel::Mode;
use tenure_core::command::claim::Grant;
use tenure_core::command::report::AttemptReport;
use tenure_core::command::run::{CancelRun, Carried, NewMember, RunSubmitted, SubmitRun};
use tenure_core::command::submit::{Submit, Submitted};
use tenure_core::command::{Answer, Command, NotRetryableReason, Reach, Rejection};
use tenure_core::queue::{FairnessKey, QueueSettings};
use tenure_core::run::{Run, RunState};
use tenure_core::task::{Idempotency, State};
use tenure_core::{IdPrefix, RunId, Seq, TaskId, limits};
use tenure_store::{Batch, Retention, RunFilter, RunView};

use crate::common::{Client, Fixture, after_start, make};

crate::on_both_stores!(
    a_run_is_written_whole_and_shown_as_it_stands,
    ends_release_those_behind_them,
    a_failure_skips_all_behind_it,
    a_canceled_task_cancels_all_behind_it,
    a_canceled_run_ends_as_a_whole,
    a_cancel_and_a_report_of_its_run_meet_in_one_batch,
    in_a_run_that_was_asked_to_stop_nothing_starts_again,
    outputs_travel_into_payloads,
    a_deadline_passes_while_a_task_waits,
    a_run_key_names_one_run_also_for_two_at_once,
    a_key_of_a_task_of_a_run_is_taken_in_one_batch_too,
    a_submit_that_got_no_answer_is_found_again,
    runs_are_listed_newest_first_and_by_filter,
    what_a_task_waits_for_is_known,
    a_run_is_material_for_another,
    ends_of_one_run_at_once_count_each_edge_once,
    a_cancel_meets_the_ends_of_its_run,
    a_run_goes_with_its_tasks_and_not_before,
    a_large_run_goes_in_steps,
    stacks_are_not_shown_with_a_run,
    too_many_tasks_do_not_break_a_run_that_goes_on,
    a_new_fairness_key_reaches_what_is_blocked,
    a_run_that_is_gone_stops_nobody,
);

async fn members(t: &Client, queue: &str, graph: &[&[usize]]) -> Vec<NewMember> {
    make::members(t.tasks(queue, graph.len()).await, graph)
}

async fn submission(t: &Client, key: Option<&str>, tasks: Vec<NewMember>) -> SubmitRun {
    make::run(t.mint().await, key, tasks)
}

async fn put(t: &Client, submission: SubmitRun) -> RunId {
    match t.run(Command::SubmitRun(submission)).await {
        Ok(Answer::RunSubmitted(RunSubmitted { id, created: true })) => id,
        other => panic!("not submitted: {other:?}"),
    }
}

/// A run of this shape in the queue `q`: each entry lists what it depends on.
async fn put_graph(t: &Client, graph: &[&[usize]]) -> RunId {
    put(t, submission(t, None, members(t, "q", graph).await).await).await
}

async fn shown(t: &Client, id: RunId) -> RunView {
    t.store.run(id, &Reach::All).await.unwrap().unwrap_or_else(|| panic!("no run {id}"))
}

async fn states(t: &Client, id: RunId) -> Vec<State> {
    shown(t, id).await.tasks.iter().map(|task| task.state).collect()
}

fn cancel(run: RunId) -> Command {
    Command::CancelRun(CancelRun { run, reason: "enough".into(), mode: Mode::Cooperative, reach: Reach::All })
}

/// Claims all that is ready, in the order of submission.
async fn claim_all(t: &Client) -> Vec<Grant> {
    let mut grants = t.claim(&["q"], 100).await;
    grants.sort_by_key(|grant| grant.task);
    grants
}

use State::{Blocked, Canceled, Failed, Ready, Running, Skipped, Succeeded};

async fn a_run_is_written_whole_and_shown_as_it_stands(t: &Fixture) {
    let mut asked = submission(t, Some("daily"), members(t, "q", &[&[], &[0], &[0, 1]]).await).await;
    asked.run.labels = make::tags(&[("team", "etl")]);
    asked.run.deadline = Some(after_start(1_000_000));
    asked.run.owner = Some("ann".into());
    let first = asked.tasks[0].task.id;
    let id = put(t, asked).await;
    let view = shown(t, id).await;
    let Run { id: shown_id, key, tenant, labels, deadline, counts, .. } = &view.run;
    assert_eq!((*shown_id, key.as_deref(), &**tenant), (id, Some("daily"), "acme"));
    assert_eq!((labels["team"].as_str(), *deadline), ("etl", Some(after_start(1_000_000))));
    assert_eq!((counts.open, counts.total(), view.run.state()), (3, 3, RunState::Running));
    let keys: Vec<(&str, Vec<&str>)> =
        view.tasks.iter().map(|task| (&*task.key, task.depends_on.iter().map(|key| &**key).collect())).collect();
    assert_eq!(keys, [("t0", vec![]), ("t1", vec!["t0"]), ("t2", vec!["t0", "t1"])]);
    assert_eq!(states(t, id).await, [Ready, Blocked, Blocked]);
    assert_eq!((&*view.tasks[0].queue, &*view.tasks[0].operator, view.tasks[0].id), ("q", "extract", first));

    let task = t.view(first).await;
    let run = task.body.run.as_ref().unwrap();
    assert_eq!((run.run, &*run.key), (id, "t0"));
    for reach in [Reach::Tenant("other".into()), Reach::Owner { tenant: "acme".into(), owner: "bob".into() }] {
        assert!(t.store.run(id, &reach).await.unwrap().is_none());
    }
    let guessed = RunId::from_u128(id.as_u128() ^ 1 << 100);
    assert!(t.store.run(guessed, &Reach::All).await.unwrap().is_none());
    let whose = t.store.whose(&[id.seq(), first.seq()]).await.unwrap();
    assert_eq!((&*whose[&id.seq()].tenant, whose[&id.seq()].owner.as_deref()), ("acme", Some("ann")));
}

async fn ends_release_those_behind_them(t: &Fixture) {
    let id = put_graph(t, &[&[], &[], &[0, 1], &[2]]).await;
    let grants = claim_all(t).await;
    assert_eq!(grants.len(), 2, "only what waits for nothing");
    let done = t.execute(t.batch(vec![make::complete(&grants[0], "1")]).await).await;
    assert!(done.wakes.is_empty());
    let done = t.execute(t.batch(vec![make::complete(&grants[1], "1")]).await).await;
    assert_eq!(done.wakes.get("q"), Some(&1), "who waits for work is woken");
    assert_eq!(states(t, id).await, [Succeeded, Succeeded, Ready, Blocked]);
    // Sent again, it changes nothing.
    t.run(make::complete(&grants[1], "1")).await.unwrap();
    assert_eq!(states(t, id).await, [Succeeded, Succeeded, Ready, Blocked]);
    for _ in 0..2 {
        let grant = t.claim_one("q").await;
        t.complete(&grant).await.unwrap();
    }
    let view = shown(t, id).await;
    assert_eq!((view.run.state(), view.run.finished_at.is_some()), (RunState::Succeeded, true));
    assert_eq!(t.raw.number("SELECT count(*) FROM run_edges").await, 0);
}

async fn a_failure_skips_all_behind_it(t: &Fixture) {
    let id = put_graph(t, &[&[], &[0], &[1], &[0, 2], &[]]).await;
    let grants = claim_all(t).await;
    t.run(make::fail(&grants[0], "X", Some(false))).await.unwrap();
    assert_eq!(states(t, id).await, [Failed, Skipped, Skipped, Skipped, Running]);
    assert_eq!(shown(t, id).await.tasks[3].failure.as_ref().map(|f| &*f.code), Some("UPSTREAM_FAILED"));
    let refused = t.run(make::complete(&grants[0], "1")).await;
    assert!(matches!(refused, Err(Rejection::Conflict(_))), "{refused:?}");
    t.complete(&grants[1]).await.unwrap();
    assert_eq!(shown(t, id).await.run.state(), RunState::Failed);
    let skipped = tenure_store::TaskFilter { state: Some(Skipped), limit: 10, ..Default::default() };
    assert_eq!(t.store.tasks(&skipped).await.unwrap().items.len(), 3);
}

async fn a_canceled_task_cancels_all_behind_it(t: &Fixture) {
    let id = put_graph(t, &[&[], &[0], &[1], &[]]).await;
    let second = shown(t, id).await.tasks[1].id;
    t.run(make::cancel(second, Mode::Cooperative)).await.unwrap();
    assert_eq!(states(t, id).await, [Ready, Canceled, Canceled, Ready]);
    let view = shown(t, id).await;
    assert_eq!(view.tasks[2].cancel_reason, view.tasks[1].cancel_reason);
    for grant in claim_all(t).await {
        t.complete(&grant).await.unwrap();
    }
    assert_eq!(shown(t, id).await.run.state(), RunState::Canceled);
}

async fn a_canceled_run_ends_as_a_whole(t: &Fixture) {
    let id = put_graph(t, &[&[], &[0], &[1], &[]]).await;
    let grant = t.claim_one("q").await;
    let answer = t.run(cancel(id)).await.unwrap();
    assert!(matches!(answer, Answer::RunCanceled(canceled) if &*canceled.reason == "enough"));
    assert_eq!(states(t, id).await, [Running, Canceled, Canceled, Canceled]);
    let view = shown(t, id).await;
    assert_eq!((view.run.state(), view.run.cancel_reason.as_deref()), (RunState::Canceling, Some("enough")));
    t.run(make::fail(&grant, "CANCELLED", None)).await.unwrap();
    assert_eq!(shown(t, id).await.run.state(), RunState::Canceled);
    t.run(cancel(id)).await.unwrap();
    let unknown = RunId::from_u128(t.mint().await.as_u128());
    assert_eq!(t.run(cancel(unknown)).await, Err(Rejection::RunNotFound));
}

async fn a_cancel_and_a_report_of_its_run_meet_in_one_batch(t: &Fixture) {
    for report_first in [true, false] {
        let id = put_graph(t, &[&[], &[0], &[]]).await;
        let grants = claim_all(t).await;
        let mut both = vec![make::complete(&grants[0], "1"), cancel(id)];
        if !report_first {
            both.reverse();
        }
        let done = t.execute(t.batch(both).await).await;
        assert!(done.outcomes.iter().all(Result::is_ok), "{:?}", done.outcomes);
        assert_eq!(states(t, id).await, [Succeeded, Canceled, Running]);
        t.complete(&grants[1]).await.unwrap();
        assert_eq!(shown(t, id).await.run.state(), RunState::Canceled);
    }
}

async fn in_a_run_that_was_asked_to_stop_nothing_starts_again(t: &Fixture) {
    let id = put_graph(t, &[&[], &[]]).await;
    let grants = claim_all(t).await;
    t.run(cancel(id)).await.unwrap();
    // Its task is held when the batch begins, and has ended when the retry is judged.
    let both = vec![make::fail(&grants[0], "CANCELLED", None), make::retry(grants[0].task)];
    let done = t.execute(t.batch(both).await).await;
    assert!(done.outcomes[0].is_ok(), "{:?}", done.outcomes);
    let refused =
        |outcome: &Outcome| matches!(outcome, Err(Rejection::NotRetryable { reason: NotRetryableReason::Sealed, .. }));
    assert!(refused(&done.outcomes[1]), "{:?}", done.outcomes);
    assert!(refused(&t.run(make::retry(grants[0].task)).await));
    assert_eq!(states(t, id).await, [Canceled, Running]);
}

async fn outputs_travel_into_payloads(t: &Fixture) {
    let mut tasks = members(t, "q", &[&[], &[0], &[0], &[2]]).await;
    tasks[1].task.payload = r#"{"rows":{"$from":"t0","path":"/rows"},"n":1.50}"#.into();
    tasks[1].refs = vec![0];
    tasks[2].task.payload = r#"{"$from":"t0","path":"/none"}"#.into();
    tasks[2].refs = vec![0];
    let id = put(t, submission(t, None, tasks).await).await;
    let grant = t.claim_one("q").await;
    t.run(make::complete(&grant, r#"{"rows":[1,2]}"#)).await.unwrap();
    assert_eq!(states(t, id).await, [Succeeded, Ready, Failed, Skipped]);
    let failure = shown(t, id).await.tasks[2].failure.clone().unwrap();
    assert_eq!((&*failure.code, failure.is_retryable()), ("CONFIGURATION", false));
    let grant = t.claim_one("q").await;
    assert_eq!(&*grant.body.unwrap().payload, r#"{"rows":[1,2],"n":1.50}"#);
}

async fn a_deadline_passes_while_a_task_waits(t: &Fixture) {
    let mut tasks = members(t, "q", &[&[], &[0], &[1]]).await;
    tasks[1].task.spec.deadline = Some(after_start(1_000));
    let id = put(t, submission(t, None, tasks).await).await;
    assert_eq!(t.reap().await, 0);
    t.clock.advance(1_000);
    assert_eq!(t.reap().await, 1);
    assert_eq!(states(t, id).await, [Ready, Failed, Skipped]);
}

async fn a_run_key_names_one_run_also_for_two_at_once(t: &Fixture) {
    let one = submission(t, Some("k"), members(t, "q", &[&[]]).await).await;
    let two = submission(t, Some("k"), members(t, "q", &[&[]]).await).await;
    let (a, b) = tokio::join!(t.run(Command::SubmitRun(one.clone())), t.run(Command::SubmitRun(two.clone())));
    let answers = [a.unwrap(), b.unwrap()];
    let created = answers.iter().filter(|a| matches!(a, Answer::RunSubmitted(run) if run.created)).count();
    assert_eq!(created, 1, "{answers:?}");
    let ids = answers.map(|answer| match answer {
        Answer::RunSubmitted(run) => run.id,
        other => panic!("{other:?}"),
    });
    assert_eq!(ids[0], ids[1]);

    let mut other = submission(t, Some("k"), members(t, "q", &[&[]]).await).await;
    other.run.fingerprint = [8; 32];
    let refusal = Rejection::RunKeyConflict { existing: Some((ids[0], [7; 32])), requested: [8; 32] };
    assert_eq!(t.run(Command::SubmitRun(other)).await, Err(refusal));
    assert_eq!(t.raw.number("SELECT count(*) FROM bodies").await, 1);
}

async fn a_key_of_a_task_of_a_run_is_taken_in_one_batch_too(t: &Fixture) {
    let keyed = async || {
        let mut tasks = members(t, "q", &[&[]]).await;
        tasks[0].task.idempotency = make::key("k", 1);
        tasks
    };
    let (first, second, alone) = (keyed().await, keyed().await, keyed().await.remove(0).task);
    let id = first[0].task.id;
    let runs = [submission(t, None, first).await, submission(t, None, second).await].map(Command::SubmitRun);
    let alone = Command::Submit(Submit { tasks: vec![alone], maker: None });
    let done = t.execute(t.batch(runs.into_iter().chain([alone]).collect()).await).await;
    assert!(done.outcomes[0].is_ok(), "{:?}", done.outcomes);
    assert_eq!(done.outcomes[1], Err(Rejection::IdempotencyConflict { index: 0, existing: Some(id) }));
    let known = Submitted { id, state: Ready, created: false };
    assert_eq!(done.outcomes[2], Ok(Answer::Submitted(vec![known])));
    assert_eq!(t.raw.number("SELECT count(*) FROM bodies").await, 1);
}

async fn a_submit_that_got_no_answer_is_found_again(t: &Fixture) {
    for key in [None, Some("k")] {
        let asked = submission(t, key, members(t, "q", &[&[], &[0]]).await).await;
        let batch = t.batch(vec![Command::SubmitRun(asked.clone())]).await;
        t.execute(batch.clone()).await;
        let again = t.execute(Batch { retrying: true, ..batch }).await;
        let expected = RunSubmitted { id: asked.run.id, created: true };
        assert_eq!(again.outcomes, [Ok(Answer::RunSubmitted(expected))]);
    }
    assert_eq!(t.raw.number("SELECT count(*) FROM runs").await, 2);
    assert_eq!(t.raw.number("SELECT count(*) FROM bodies").await, 4);
}

async fn runs_are_listed_newest_first_and_by_filter(t: &Fixture) {
    let mut ids = Vec::new();
    for (index, team) in ["etl", "web", "etl"].into_iter().enumerate() {
        let mut asked = submission(t, Some(&format!("k{index}")), members(t, "q", &[&[]]).await).await;
        asked.run.labels = make::tags(&[("team", team)]);
        if index == 2 {
            asked.run.tenant = "other".into();
        }
        ids.push(put(t, asked).await);
        t.clock.advance(10);
    }
    let grant = t.claim_one("q").await;
    t.complete(&grant).await.unwrap();
    let list = async |filter: RunFilter| {
        let page = t.store.runs(&RunFilter { limit: 10, ..filter }).await.unwrap();
        page.items.into_iter().map(|run| run.id).collect::<Vec<_>>()
    };
    let any = RunFilter::default;
    assert_eq!(list(any()).await, [ids[2], ids[1], ids[0]]);
    let state = |state| RunFilter { state: Some(state), ..any() };
    assert_eq!(list(state(RunState::Succeeded)).await, [ids[0]]);
    assert_eq!(list(state(RunState::Running)).await, [ids[2], ids[1]]);
    assert_eq!(list(state(RunState::Failed)).await, []);
    let etl = Some(("team".to_owned(), "etl".to_owned()));
    assert_eq!(list(RunFilter { label: etl, ..any() }).await, [ids[2], ids[0]]);
    assert_eq!(list(RunFilter { run_key: Some("k1".into()), ..any() }).await, [ids[1]]);
    let prefix = |text: &str| RunFilter { id_prefix: IdPrefix::parse(text, "run_").ok(), ..any() };
    assert_eq!(list(prefix(&ids[1].to_string())).await, [ids[1]]);
    assert_eq!(list(prefix(&ids[1].to_string()[..14])).await, [ids[2], ids[1], ids[0]], "made at the same time");
    assert_eq!(list(prefix("run_0000")).await, []);
    assert_eq!(list(RunFilter { reach: Reach::Tenant("other".into()), ..any() }).await, [ids[2]]);
    let first = t.store.run(ids[0], &Reach::All).await.unwrap().unwrap().run;
    let of_key = |key: &str| RunFilter {
        reach: Reach::Tenant(Arc::clone(&first.tenant)),
        workspace: Some(first.workspace.to_string()),
        run_key: Some(key.to_owned()),
        ..any()
    };
    assert_eq!(list(of_key("k1")).await, [ids[1]]);
    assert_eq!(list(of_key("k2")).await, [], "that of another tenant");
    assert_eq!(list(of_key("k3")).await, []);
    assert_eq!(list(RunFilter { state: Some(RunState::Succeeded), ..of_key("k1") }).await, []);
    assert_eq!(list(RunFilter { before: Some(ids[1].seq()), ..of_key("k1") }).await, []);
    assert_eq!(list(RunFilter { workspace: Some("none".into()), ..any() }).await, []);
    assert_eq!(list(RunFilter { after: Some(after_start(10)), ..any() }).await, [ids[2], ids[1]]);
    assert_eq!(list(RunFilter { until: Some(after_start(10)), ..any() }).await, [ids[0]]);

    let first = t.store.runs(&RunFilter { limit: 2, ..any() }).await.unwrap();
    assert_eq!(first.items.len(), 2);
    let before = Some(Seq(first.next.unwrap().parse().unwrap()));
    let rest = t.store.runs(&RunFilter { limit: 2, before, ..any() }).await.unwrap();
    assert_eq!((rest.items[0].id, rest.items.len(), rest.next), (ids[0], 1, None));
}

async fn what_a_task_waits_for_is_known(t: &Fixture) {
    let id = put_graph(t, &[&[], &[], &[0, 1]]).await;
    let last = shown(t, id).await.tasks[2].id;
    let waits = async || {
        let upstream = t.store.upstream(last.seq()).await.unwrap();
        upstream.iter().map(|one| (one.key.to_string(), one.state)).collect::<Vec<_>>()
    };
    assert_eq!(waits().await, [("t0".to_owned(), Ready), ("t1".to_owned(), Ready)]);
    let grant = t.claim_one("q").await;
    t.complete(&grant).await.unwrap();
    assert_eq!(waits().await, [("t1".to_owned(), Ready)]);
    assert!(t.store.upstream(t.put_in("q").await.seq()).await.unwrap().is_empty());
}

async fn a_run_is_material_for_another(t: &Fixture) {
    let id = put_graph(t, &[&[], &[0], &[1]]).await;
    let grant = t.claim_one("q").await;
    t.run(make::complete(&grant, "[7]")).await.unwrap();
    let grant = t.claim_one("q").await;
    t.run(make::fail(&grant, "X", Some(false))).await.unwrap();
    let material = t.store.run_material(id, &Reach::All).await.unwrap().unwrap();
    let rows: Vec<TaskId> = material.tasks.iter().map(|(view, _)| view.body.id).collect();
    let waits: Vec<Vec<Seq>> = material.tasks.iter().map(|(_, waits)| waits.clone()).collect();
    assert_eq!(waits, [vec![], vec![rows[0].seq()], vec![rows[1].seq()]]);
    let payloads: usize = material.tasks.iter().map(|(view, _)| view.body.payload.len()).sum();
    let weight = t.store.run_weight(id, &Reach::All).await.unwrap().unwrap();
    assert_eq!((&weight.run, weight.bytes), (&material.run, payloads as u64 + 3), "the payloads and the result");
    for reach in [Reach::Tenant("other".into()), Reach::Owner { tenant: "acme".into(), owner: "bob".into() }] {
        assert!(t.store.run_weight(id, &reach).await.unwrap().is_none());
        assert!(t.store.run_material(id, &reach).await.unwrap().is_none());
    }

    let mut tasks = members(t, "q", &[&[], &[0], &[1]]).await;
    tasks[0].carried = Some(Carried { result: Some("[7]".into()) });
    let mut again = submission(t, None, tasks).await;
    again.run.parent = Some(id);
    let id = put(t, again).await;
    assert_eq!(states(t, id).await, [Succeeded, Ready, Blocked]);
    assert_eq!(shown(t, id).await.run.parent, Some(material.run.id));
    let first = shown(t, id).await.tasks[0].id;
    let (view, attempts) = (t.view(first).await, t.attempts(first).await);
    assert_eq!((view.place.attempt(), attempts.len()), (0, 0), "it did not run");
}

async fn ends_of_one_run_at_once_count_each_edge_once(t: &Fixture) {
    let wide = 40;
    let mut graph: Vec<Vec<usize>> = vec![Vec::new(); wide];
    graph.push((0..wide).collect());
    let graph: Vec<&[usize]> = graph.iter().map(Vec::as_slice).collect();
    let id = put_graph(t, &graph).await;
    let grants = claim_all(t).await;
    assert_eq!(grants.len(), wide);
    let replicas: Vec<Client> =
        if t.kind == crate::common::Kind::Postgres { vec![t.client(), t.replica().await] } else { vec![t.client()] };
    let mut sent = tokio::task::JoinSet::new();
    for (index, grant) in grants.into_iter().enumerate() {
        let client = replicas[index % replicas.len()].clone();
        sent.spawn(async move { client.complete(&grant).await.unwrap() });
    }
    sent.join_all().await;
    assert_eq!(states(t, id).await[wide], Ready);
    let view = shown(t, id).await;
    assert_eq!((view.run.counts.succeeded as usize, view.run.counts.open), (wide, 1));
}

async fn a_cancel_meets_the_ends_of_its_run(t: &Fixture) {
    for _ in 0..5 {
        let graph: Vec<Vec<usize>> = (0..30).map(|task| if task < 10 { Vec::new() } else { vec![task - 10] }).collect();
        let graph: Vec<&[usize]> = graph.iter().map(Vec::as_slice).collect();
        let id = put_graph(t, &graph).await;
        let grants = claim_all(t).await;
        let mut sent = tokio::task::JoinSet::new();
        for grant in grants {
            let client = t.client();
            sent.spawn(async move { client.complete(&grant).await.map(drop).unwrap_or_default() });
        }
        let client = t.client();
        sent.spawn(async move { client.run(cancel(id)).await.map(drop).unwrap_or_default() });
        sent.join_all().await;
        // Whatever was released before the cancel came is canceled too; nothing is left waiting.
        let view = shown(t, id).await;
        assert_eq!(view.run.state(), RunState::Canceled, "{:?}", view.run);
    }
}

async fn a_run_goes_with_its_tasks_and_not_before(t: &Fixture) {
    let hour = 3_600_000;
    let keep = Retention {
        finished_ms: hour,
        dead_letter_ms: 10 * hour,
        finished_count: 1_000,
        events_ms: hour,
        logs_ms: hour,
    };
    let prune = async || t.store.prune(&keep, Seq(0), 100).await.unwrap().removed;
    let id = put_graph(t, &[&[], &[0]]).await;
    let grant = t.claim_one("q").await;
    t.complete(&grant).await.unwrap();
    t.clock.advance(2 * hour);
    assert_eq!(prune().await, 0, "its output may still be asked for");
    let grant = t.claim_one("q").await;
    t.complete(&grant).await.unwrap();
    t.clock.advance(hour - 1);
    assert_eq!(prune().await, 0);
    t.clock.advance(1);
    assert_eq!(prune().await, 2);
    assert!(t.store.run(id, &Reach::All).await.unwrap().is_none());
    assert_eq!(t.raw.number("SELECT count(*) FROM run_tasks").await, 0);

    let id = put_graph(t, &[&[], &[0]]).await;
    let grant = t.claim_one("q").await;
    t.bury(&grant, "X").await;
    t.clock.advance(5 * hour);
    assert_eq!(prune().await, 0, "a run that failed is kept like a dead letter");
    t.clock.advance(5 * hour);
    assert_eq!(prune().await, 2);
    assert!(t.store.run(id, &Reach::All).await.unwrap().is_none());

    let keyed = put(t, submission(t, Some("k"), members(t, "q", &[&[]]).await).await).await;
    let grant = t.claim_one("q").await;
    t.complete(&grant).await.unwrap();
    t.clock.advance(23 * hour);
    assert_eq!(prune().await, 0, "a key lives for a day");
    t.clock.advance(hour);
    assert_eq!(prune().await, 1);
    assert!(t.store.run(keyed, &Reach::All).await.unwrap().is_none());

    let mut of_keyed_tasks = members(t, "q", &[&[], &[0]]).await;
    let key = Idempotency { key: "task-k".into(), fingerprint: [7; 32] };
    of_keyed_tasks[1].task.idempotency = Some(key);
    let id = put(t, submission(t, None, of_keyed_tasks).await).await;
    for _ in 0..2 {
        let grant = t.claim_one("q").await;
        t.complete(&grant).await.unwrap();
    }
    t.clock.advance(23 * hour);
    assert_eq!(prune().await, 0, "the key of a task lives for a day");
    t.clock.advance(hour);
    assert_eq!(prune().await, 2);
    assert!(t.store.run(id, &Reach::All).await.unwrap().is_none());
}

async fn a_large_run_goes_in_steps(t: &Fixture) {
    let hour = 3_600_000;
    let keep =
        Retention { finished_ms: hour, dead_letter_ms: hour, finished_count: 1_000, events_ms: hour, logs_ms: hour };
    let id = put_graph(t, &[&[] as &[usize]; 7]).await;
    for grant in claim_all(t).await {
        t.complete(&grant).await.unwrap();
    }
    t.clock.advance(hour);
    let mut steps = Vec::new();
    while t.store.run(id, &Reach::All).await.unwrap().is_some() {
        let pruned = t.store.prune(&keep, Seq(0), 3).await.unwrap();
        assert!(pruned.removed > 0 && pruned.next.is_some(), "{pruned:?} after {steps:?}");
        steps.push(pruned.removed);
    }
    assert_eq!(steps, [3, 3, 1]);
    assert_eq!(t.raw.number("SELECT count(*) FROM run_tasks").await, 0);
    assert_eq!(t.raw.number("SELECT count(*) FROM bodies").await, 0);
    assert_eq!(t.queue("q").await.counts.finished, 0);
}

async fn stacks_are_not_shown_with_a_run(t: &Fixture) {
    let id = put_graph(t, &[&[]]).await;
    let grant = t.claim_one("q").await;
    let report = Report::failed(Failure::new("X", "it broke", Some("a long stack"), Some(false)));
    let fail = AttemptReport { task: grant.task, attempt_id: grant.attempt_id, token: grant.token, report, data: None };
    t.run(Command::Report(fail)).await.unwrap();
    let view = shown(t, id).await;
    let failure = view.tasks[0].failure.as_ref().unwrap();
    assert_eq!((&*failure.code, &*failure.message, &failure.stack), ("X", "it broke", &None));
}

async fn too_many_tasks_do_not_break_a_run_that_goes_on(t: &Fixture) {
    let keep = Retention { finished_count: 0, ..Retention::default() };
    let id = put_graph(t, &[&[], &[0]]).await;
    let grant = t.claim_one("q").await;
    t.run(make::complete(&grant, "[7]")).await.unwrap();
    let alone = t.put_in("q").await;
    t.run(make::cancel(alone, Mode::Immediate)).await.unwrap();
    t.clock.advance(limits::FINISHED_MS_MIN);
    assert_eq!(t.store.prune(&keep, Seq(0), 100).await.unwrap().removed, 1, "the one that was submitted alone");
    assert_eq!(states(t, id).await, [Succeeded, Ready]);
    let grant = t.claim_one("q").await;
    t.complete(&grant).await.unwrap();
    t.clock.advance(limits::FINISHED_MS_MIN);
    assert_eq!(t.store.prune(&keep, Seq(0), 100).await.unwrap().removed, 2);
    assert!(t.store.run(id, &Reach::All).await.unwrap().is_none());
}

async fn a_new_fairness_key_reaches_what_is_blocked(t: &Fixture) {
    put_graph(t, &[&[], &[0]]).await;
    t.set_queue("q", QueueSettings { fairness_key: Some(FairnessKey::Tenant), ..Default::default() }).await;
    let grant = t.claim_one("q").await;
    t.complete(&grant).await.unwrap();
    assert_eq!(t.raw.number("SELECT count(*) FROM ready WHERE fair = 'acme'").await, 1);
}

async fn a_run_that_is_gone_stops_nobody(t: &Fixture) {
    put_graph(t, &[&[], &[0]]).await;
    t.raw.execute("DELETE FROM runs").await;
    let grant = t.claim_one("q").await;
    t.complete(&grant).await.unwrap();
    let grant = t.claim_one("q").await;
    t.complete(&grant).await.unwrap();
}
