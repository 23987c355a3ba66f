//! Tasks that run in sandboxes: one sandbox for each attempt, which ends with it.

use std::sync::Arc;

use tenure_core::attempt::{ClosedAttempt, Reason};
use tenure_core::command::cancel::{Cancel, Mode};
use tenure_core::command::claim::{Claim, Claimer};
use tenure_core::command::queues::SetQueue;
use tenure_core::command::{Reach, Rejection};
use tenure_core::queue::{Push, QueueSettings};
use tenure_core::retry::RetryPolicy;
use tenure_core::sandbox::State as SandboxState;
use tenure_core::task::{EnvelopeSpec, Place, SandboxCommand, SandboxRun, Spec, State};
use tenure_core::{Fence, TaskId};
use tenure_engine::sandboxes::CallClass;
use tenure_engine::sandboxes::workers::SetupOutcome;
use tenure_engine::store::{AttemptView, TaskView};
use tenure_engine::{ClaimWait, Engine, random_seed};
use tenure_testkit::wait_until;

use super::farm::{Call, Farm, Fault};
use super::{Plane, plane, settings, start};
use crate::harness::{Home, SOON, new_tasks};
use crate::on_both_stores;

on_both_stores!(
    a_task_runs_in_a_sandbox_that_ends_with_its_lease,
    a_task_waits_for_room_and_spends_nothing,
    a_queue_that_stops_running_sandboxes_fails_its_tasks_and_gives_them_to_nobody,
);

/// A control plane that runs the tasks of queue `q` in sandboxes.
async fn boxes(home: &Home, workers: &[&str]) -> Plane {
    let plane = plane(home, workers, settings()).await;
    plane.engine.deliver(vec![plane.sandboxes.courier(&plane.engine)]);
    set_queue(&plane.engine, Some(push())).await;
    plane
}

fn push() -> Push {
    Push::to("sandbox:".into())
}

async fn set_queue(engine: &Engine, push: Option<Push>) {
    let settings = QueueSettings { push: push.map(Arc::new), ..QueueSettings::default() };
    let set = SetQueue { queue: "q".into(), settings, transport: None, keep_push: false, reach: Reach::All };
    engine.set_queue(set).await.unwrap().unwrap();
}

fn at_once() -> Spec {
    let retry = RetryPolicy { initial_backoff_ms: 0, max_backoff_ms: 0, ..RetryPolicy::default() };
    Spec { retry: Some(retry), sandbox: true, ..Spec::default() }
}

async fn try_submit(engine: &Engine, spec: Spec) -> Result<TaskId, Rejection> {
    let mut submit = new_tasks(engine, 1).await;
    let run = SandboxRun {
        command: SandboxCommand::Line("make it".to_owned()),
        env: [("MODE".to_owned(), "fast".to_owned())].into(),
        ..SandboxRun::default()
    };
    let envelope = EnvelopeSpec { sandbox: Some(run), ..EnvelopeSpec::default() };
    submit.tasks[0].spec = spec;
    submit.tasks[0].envelope = spec.sandbox.then(|| Arc::new(envelope));
    submit.tasks[0].payload = r#"{"day":7}"#.into();
    engine.submit(submit, 0).await.unwrap().map(|submitted| submitted[0].id)
}

async fn submit(engine: &Engine, spec: Spec) -> TaskId {
    try_submit(engine, spec).await.unwrap()
}

async fn task(engine: &Engine, id: TaskId) -> TaskView {
    engine.task(id, &Reach::All).await.unwrap().unwrap()
}

async fn ended(engine: &Engine, id: TaskId, state: State) -> TaskView {
    wait_until(state.as_str(), SOON, async || task(engine, id).await.place.state() == state).await;
    task(engine, id).await
}

async fn closed(engine: &Engine, id: TaskId) -> Vec<ClosedAttempt> {
    let attempts = engine.attempts(id, &Reach::All).await.unwrap().unwrap();
    let closed = attempts.into_iter().filter_map(|attempt| match attempt {
        AttemptView::Closed(closed) => Some(*closed),
        AttemptView::Open(_) => None,
    });
    closed.collect()
}

async fn no_runtimes(plane: &Plane) {
    wait_until("no runtime", SOON, async || plane.farm.runtimes().is_empty()).await;
}

fn says(plane: &Plane, exit_code: i32, stdout: &str, stderr: &str) {
    let outcome = SetupOutcome { exit_code, stdout: stdout.to_owned(), stderr: stderr.to_owned() };
    *plane.farm.says.lock().unwrap() = Some(outcome);
}

/// Whether a command on `w1` was sent SIGTERM.
fn is_asked_to_end(plane: &Plane) -> bool {
    plane.farm.with("w1", |node| {
        node.runtimes.values().flat_map(|runtime| &runtime.commands).any(|command| command.contains("kill -TERM"))
    })
}

/// Whose sandbox it is, and the sandbox's id.
fn only_runtime(farm: &Farm) -> (String, String) {
    let runtimes = farm.runtimes();
    assert_eq!(runtimes.len(), 1, "{runtimes:?}");
    runtimes.into_iter().next().unwrap()
}

async fn a_task_runs_in_a_sandbox_that_ends_with_its_lease(home: Home) {
    let plane = boxes(&home, &["w1"]).await;
    says(&plane, 0, "output\nread 3\n{\"rows\":3}\n", "");
    plane.farm.fail("w1", Call::Exec, [Fault::HangBefore]);
    let id = submit(&plane.engine, at_once()).await;
    plane.wait_for_hanging(1).await;
    let (worker, sandbox) = only_runtime(&plane.farm);
    let files = plane.farm.with(&worker, |node| node.runtimes[&sandbox].files.clone());
    assert_eq!(files["/workspace/payload.json"], br#"{"day":7}"#);
    let script = String::from_utf8(files["/workspace/.tenure-task.sh"].clone()).unwrap();
    assert!(script.contains("'make it' <payload.json") && script.contains("export TENURE_FENCE='1'"), "{script}");
    assert!(script.contains(&format!("export TENURE_TASK_ID='{id}'")), "{script}");
    assert_eq!(plane.farm.with(&worker, |node| node.runtimes[&sandbox].env["MODE"].clone()), "fast");
    let row = plane.row(&sandbox).await;
    assert_eq!(row.spec.metadata["tenure.task"], id.to_string());
    assert_eq!(row.spec.metadata["tenure.fence"], "1");
    wait_until("one end for lease and sandbox", SOON, async || {
        let Place::Running(running) = task(&plane.engine, id).await.place else { panic!("it runs") };
        let apart = running.lease.expires_at.since(plane.row(&sandbox).await.expires_at).abs();
        running.lease.holder.as_ref().is_some_and(|holder| holder.starts_with(&sandbox)) && apart < 5_000
    })
    .await;
    plane.farm.release();
    let done = ended(&plane.engine, id, State::Succeeded).await;
    let Place::Finished(finished) = done.place else { panic!("it has ended") };
    assert_eq!(finished.result.as_deref(), Some(r#"{"rows":3}"#));
    no_runtimes(&plane).await;
    plane.wait_for_state(&sandbox, SandboxState::Destroyed).await;
    plane.stop().await;
}

async fn a_task_waits_for_room_and_spends_nothing(home: Home) {
    let plane = boxes(&home, &[]).await;
    says(&plane, 0, "", "");
    let id = submit(&plane.engine, Spec { max_attempts: Some(1), ..at_once() }).await;
    // A try that is on its way does not count: the clock would jump over it.
    let tries = async || match task(&plane.engine, id).await.place {
        Place::Running(running) => {
            let delivery = running.carry.delivery.as_ref().unwrap();
            let soon = plane.engine.now().await.unwrap().plus(2_000);
            delivery.no_room.is_some()
                && delivery.next_at.is_some_and(|at| at <= soon)
                && running.lease.expires_at.since(soon) > 250_000
        }
        Place::Ready(_) => false,
        other => panic!("it waits: {other:?}"),
    };
    wait_until("the first try", SOON, async || tries().await).await;
    // It would be given up after five minutes if it were a target that does not answer.
    for _ in 0..4 {
        plane.clock.advance(100_000);
        wait_until("another try", SOON, async || tries().await).await;
    }
    let (_, why) = plane.engine.why(id, &Reach::All).await.unwrap().unwrap();
    assert_eq!(why.iter().map(|why| why.code()).collect::<Vec<_>>(), ["no_room"]);
    plane.farm.beat("w1").await;
    ended(&plane.engine, id, State::Succeeded).await;
    let attempts = closed(&plane.engine, id).await;
    assert_eq!((attempts.len(), attempts[0].fence), (1, Fence(1)));
    no_runtimes(&plane).await;
    plane.stop().await;
}

async fn a_queue_that_stops_running_sandboxes_fails_its_tasks_and_gives_them_to_nobody(home: Home) {
    let plane = boxes(&home, &[]).await;
    let id = submit(&plane.engine, at_once()).await;
    wait_until("a grant", SOON, async || task(&plane.engine, id).await.place.state() == State::Running).await;
    set_queue(&plane.engine, None).await;
    let refused = try_submit(&plane.engine, at_once()).await.unwrap_err();
    assert_eq!(refused, Rejection::Runtime { index: 0, wants_sandbox: true });
    let plain = submit(&plane.engine, Spec::default()).await;
    // The attempt is over when its delivery would have been; then the task is judged again.
    plane.pass(400_000, &[]).await;
    let claim =
        || Claim { claimer: Claimer::worker("w".into(), random_seed()), queues: vec!["q".into()], max_jobs: 10 };
    let mut granted = Vec::new();
    wait_until("its end", SOON, async || {
        let claimed = plane.engine.claim(claim(), ClaimWait::NONE).await.unwrap();
        granted.extend(claimed.grants.into_iter().map(|grant| grant.task));
        task(&plane.engine, id).await.place.state() == State::Failed
    })
    .await;
    assert_eq!(granted, [plain], "a worker gets the other one, and only that");
    let Place::Finished(finished) = task(&plane.engine, id).await.place else { panic!("it has ended") };
    assert_eq!(&*finished.failure.unwrap().code, "WRONG_RUNTIME");
    set_queue(&plane.engine, Some(push())).await;
    let refused = try_submit(&plane.engine, Spec::default()).await.unwrap_err();
    assert_eq!(refused, Rejection::Runtime { index: 0, wants_sandbox: false });
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exit_code_fails_the_task_and_no_sandbox_is_left() {
    let home = Home::sqlite();
    let plane = boxes(&home, &["w1"]).await;
    says(&plane, 65, "", "reading\nbad column\n");
    let id = submit(&plane.engine, at_once()).await;
    let done = ended(&plane.engine, id, State::Failed).await;
    let Place::Finished(finished) = done.place else { panic!("it has ended") };
    let failure = finished.failure.unwrap();
    assert_eq!((&*failure.code, &*failure.message), ("DATA_QUALITY", "exit code 65: bad column"));
    assert_eq!((failure.stack.as_deref(), finished.attempt), (Some("reading\nbad column\n"), 1));
    no_runtimes(&plane).await;
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_takes_too_long_is_a_timeout_and_is_retried() {
    let home = Home::sqlite();
    let plane = boxes(&home, &["w1"]).await;
    says(&plane, 0, "", "");
    plane.farm.fail("w1", Call::Exec, [Fault::Refuse(CallClass::Timeout)]);
    let id = submit(&plane.engine, at_once()).await;
    ended(&plane.engine, id, State::Succeeded).await;
    let attempts = closed(&plane.engine, id).await;
    assert_eq!(&*attempts[0].failure.as_ref().unwrap().code, "TIMEOUT");
    assert_eq!((attempts.len(), attempts[1].fence, plane.farm.made()), (2, Fence(2), 2));
    no_runtimes(&plane).await;
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_the_core_ends_takes_its_sandbox_with_it() {
    let home = Home::sqlite();
    let plane = boxes(&home, &["w1"]).await;
    plane.farm.fail("w1", Call::Exec, [Fault::HangBefore]);
    let id = submit(&plane.engine, Spec { timeout_ms: Some(1_000), max_attempts: Some(1), ..at_once() }).await;
    ended(&plane.engine, id, State::Failed).await;
    assert_eq!(closed(&plane.engine, id).await[0].reason, Reason::Timeout);
    no_runtimes(&plane).await;
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_ends_the_sandbox_and_then_the_task() {
    let home = Home::sqlite();
    let plane = boxes(&home, &["w1"]).await;
    for mode in [Mode::Cooperative, Mode::Immediate] {
        plane.farm.fail("w1", Call::Exec, [Fault::HangBefore]);
        let id = submit(&plane.engine, at_once()).await;
        plane.wait_for_hanging(1).await;
        let cancel = Cancel { task: id, reason: "not needed".into(), mode, reach: Reach::All };
        plane.engine.cancel(cancel).await.unwrap().unwrap();
        if mode == Mode::Cooperative {
            wait_until("the command is asked to end", SOON, async || is_asked_to_end(&plane)).await;
            assert_eq!(task(&plane.engine, id).await.place.state(), State::Running, "it has its grace");
            says(&plane, 143, "", "terminated");
            plane.farm.release();
        }
        ended(&plane.engine, id, State::Canceled).await;
        if mode == Mode::Cooperative {
            assert!(plane.farm.runtimes().is_empty(), "nothing runs when the task counts as canceled");
            assert_eq!(closed(&plane.engine, id).await[0].reason, Reason::Canceled, "it was told, not timed out");
        }
        no_runtimes(&plane).await;
        plane.wait_for_hanging(0).await;
    }
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_canceled_command_that_succeeds_in_its_grace_has_succeeded_and_one_that_goes_on_is_killed() {
    let home = Home::sqlite();
    let plane = boxes(&home, &["w1"]).await;
    let cancel = |task| Cancel { task, reason: "not needed".into(), mode: Mode::Cooperative, reach: Reach::All };
    plane.farm.fail("w1", Call::Exec, [Fault::HangBefore]);
    let id = submit(&plane.engine, at_once()).await;
    plane.wait_for_hanging(1).await;
    plane.engine.cancel(cancel(id)).await.unwrap().unwrap();
    wait_until("the command is asked to end", SOON, async || is_asked_to_end(&plane)).await;
    says(&plane, 0, "output\n7\n", "");
    plane.farm.release();
    ended(&plane.engine, id, State::Succeeded).await;
    no_runtimes(&plane).await;
    // It does not listen: the sandbox ends before the lease does.
    plane.farm.fail("w1", Call::Exec, [Fault::HangBefore]);
    let spec = Spec { lease_ttl_ms: Some(4_000), heartbeat_ms: Some(500), ..at_once() };
    let id = submit(&plane.engine, spec).await;
    plane.wait_for_hanging(1).await;
    plane.engine.cancel(cancel(id)).await.unwrap().unwrap();
    ended(&plane.engine, id, State::Canceled).await;
    no_runtimes(&plane).await;
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_is_lost_costs_one_attempt_and_the_next_has_a_higher_fence() {
    let home = Home::sqlite();
    let plane = boxes(&home, &["w1"]).await;
    says(&plane, 0, "output\n1\n", "");
    plane.farm.fail("w1", Call::Exec, [Fault::HangAndLose]);
    let id = submit(&plane.engine, at_once()).await;
    plane.wait_for_hanging(1).await;
    let (_, old) = only_runtime(&plane.farm);
    plane.farm.beat("w2").await;
    plane.farm.fail("w1", Call::Spawn, vec![Fault::Unreachable; 9]);
    plane.farm.fail("w1", Call::Destroy, [Fault::Unreachable]);
    plane.farm.release();
    ended(&plane.engine, id, State::Succeeded).await;
    let attempts = closed(&plane.engine, id).await;
    assert_eq!(attempts.iter().map(|attempt| attempt.fence).collect::<Vec<_>>(), [Fence(1), Fence(2)]);
    assert_eq!(&*attempts[0].failure.as_ref().unwrap().code, "INFRASTRUCTURE");
    assert_eq!(attempts[1].reason, Reason::Completed);
    // The worker is back, and its old runtime is of no use to anybody.
    wait_until("the old runtime to be found", SOON, async || {
        plane.farm.beat("w1").await;
        plane.farm.runtimes().is_empty()
    })
    .await;
    assert!(matches!(plane.row(&old).await.state, SandboxState::Expired | SandboxState::Destroyed));
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_control_plane_that_stops_leaves_no_sandbox_and_gives_the_task_up() {
    let home = Home::sqlite();
    let plane = boxes(&home, &["w1"]).await;
    plane.farm.fail("w1", Call::Exec, [Fault::HangBefore]);
    let id = submit(&plane.engine, at_once()).await;
    plane.wait_for_hanging(1).await;
    plane.engine.shutdown().await;
    assert!(plane.farm.runtimes().is_empty());
    let attempts = closed(&plane.engine, id).await;
    assert_eq!((attempts[0].reason, attempts.len()), (Reason::HandedBack, 1));
    assert_eq!(task(&plane.engine, id).await.place.state(), State::Ready, "it costs no attempt, and no waiting");
}

/// The runtime of the first control plane is dropped with everything in it, as by `kill -9`.
#[test]
fn what_a_dead_control_plane_ran_is_run_again_and_its_sandbox_ends_with_its_lease() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (doomed, lives) = (runtime(), runtime());
    let home = lives.block_on(Home::postgres());
    let farm = Farm::new();
    let spec = Spec { lease_ttl_ms: Some(2_000), heartbeat_ms: Some(500), ..at_once() };
    let (first, second) =
        (doomed.block_on(start(&home, &farm, settings())), lives.block_on(start(&home, &farm, settings())));
    // What a beat opens belongs to the runtime that it is sent from, also connections of the second control plane.
    lives.block_on(farm.beat("w1"));
    let id = doomed.block_on(async {
        first.engine.deliver(vec![first.sandboxes.courier(&first.engine)]);
        set_queue(&first.engine, Some(push())).await;
        says(&first, 0, "output\n2\n", "");
        farm.fail("w1", Call::Exec, [Fault::HangBefore]);
        let id = submit(&first.engine, spec).await;
        first.wait_for_hanging(1).await;
        wait_until("a heartbeat", SOON, async || {
            matches!(task(&first.engine, id).await.place, Place::Running(running) if running.lease_ttl_ms == 2_000
                && running.lease.expires_at.since(first.engine.now().await.unwrap()) > 0 && running.started_at().is_some())
        })
        .await;
        id
    });
    let (_, old) = only_runtime(&farm);
    drop(first);
    doomed.shutdown_background();
    lives.block_on(async {
        second.engine.deliver(vec![second.sandboxes.courier(&second.engine)]);
        ended(&second.engine, id, State::Succeeded).await;
        let attempts = closed(&second.engine, id).await;
        assert_eq!((attempts[0].reason, attempts[1].fence), (Reason::HeartbeatTimeout, Fence(2)));
        let row = second.row(&old).await;
        let over = row.expires_at.since(attempts[0].ended_at);
        assert!(over <= 1_000, "its end was the end of the lease: {over} ms after");
        second.wait_for_state(&old, SandboxState::Destroyed).await;
        no_runtimes(&second).await;
        second.stop().await;
    });
}

/// A spawn that takes longer than a start may is delivered again, by either control plane. One sandbox, one run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_delivery_finds_the_same_sandbox_and_runs_nothing_twice() {
    let home = Home::postgres().await;
    let farm = Farm::new();
    let (first, second) = (start(&home, &farm, settings()).await, start(&home, &farm, settings()).await);
    farm.beat("w1").await;
    says(&first, 0, "output\n3\n", "");
    for plane in [&first, &second] {
        plane.engine.deliver(vec![plane.sandboxes.courier(&plane.engine)]);
    }
    set_queue(&first.engine, Some(Push { start_timeout_ms: 1_000, ..push() })).await;
    farm.fail("w1", Call::Spawn, [Fault::HangBefore]);
    let id = submit(&first.engine, at_once()).await;
    wait_until("three deliveries", SOON, async || {
        matches!(task(&first.engine, id).await.place, Place::Running(running)
            if running.carry.delivery.as_ref().is_some_and(|delivery| delivery.deliveries >= 3))
    })
    .await;
    farm.release();
    ended(&first.engine, id, State::Succeeded).await;
    assert_eq!((farm.made(), farm.calls(Call::Exec).len()), (1, 1));
    assert_eq!(closed(&first.engine, id).await.len(), 1);
    no_runtimes(&first).await;
    first.stop().await;
    farm.attach(&second.engine, &second.sandboxes);
    second.stop().await;
}
