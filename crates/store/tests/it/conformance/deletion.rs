//! Queues that are deleted: when they may be, what stays of them, and what others do at the same time.

use std::time::{Duration, Instant};

use tenure_core::attempt::Receipt;
use tenure_core::batch::Counts;
use tenure_core::command::queues::{PatchQueue, PauseQueue, QueueChange, SetQueue};
use tenure_core::command::redrive::Redrive;
use tenure_core::command::submit::{NewTask, Start};
use tenure_core::command::{Answer, Command, NotRetryableReason, Reach, Rejection};
use tenure_core::queue::{QueueId, QueueSettings};
use tenure_core::task::State;
use tenure_core::{Seq, TaskId};
use tenure_store::{NewRedrive, RedriveFilter, Retention, TaskFilter};
use tenure_testkit::wait_until;

use crate::common::{Client, Fixture, Kind, case, make};

crate::on_both_stores!(
    only_a_submit_and_a_setting_create_a_queue,
    an_empty_queue_is_deleted_and_its_name_is_free,
    a_queue_with_open_tasks_is_not_deleted,
    a_queue_with_dead_letters_is_deleted_only_by_force,
    ended_tasks_outlive_their_queue_until_retention_removes_them,
    a_late_report_is_accepted_after_its_queue_was_deleted,
    the_number_of_a_deleted_queue_is_not_used_again,
    a_tenant_deletes_its_own_queues_only,
    what_another_control_plane_deleted_is_gone_here_too,
    no_task_is_lost_while_its_queue_is_deleted,
);

fn pause(queue: &str, paused: bool) -> Command {
    Command::PauseQueue(PauseQueue { queue: queue.into(), paused, reach: Reach::All })
}

fn patch(queue: &str) -> Command {
    let change = QueueChange { max_running: Some(Some(3)), ..QueueChange::default() };
    Command::PatchQueue(PatchQueue { queue: queue.into(), change, reach: Reach::All })
}

fn set(queue: &str) -> Command {
    let settings = QueueSettings { max_running: Some(3), ..QueueSettings::default() };
    Command::SetQueue(SetQueue { queue: queue.into(), settings, transport: None, keep_push: false, reach: Reach::All })
}

fn deleted() -> Result<Answer, Rejection> {
    Ok(Answer::Done(true))
}

fn missing() -> Result<Answer, Rejection> {
    Err(Rejection::QueueNotFound)
}

async fn names(t: &Client) -> Vec<String> {
    let page = t.store.queues(None, None, 100).await.unwrap();
    page.items.iter().map(|stats| stats.queue.name.to_string()).collect()
}

async fn id(t: &Client, queue: &str) -> QueueId {
    t.queue(queue).await.queue.id
}

async fn finished(t: &Client, queue: &str) -> TaskId {
    let id = t.put_in(queue).await;
    t.complete(&t.claim_one(queue).await).await.unwrap();
    id
}

async fn dead(t: &Client, queue: &str) -> TaskId {
    let id = t.put_in(queue).await;
    t.bury(&t.claim_one(queue).await, "X").await;
    id
}

/// Another control plane, where there can be one.
async fn other(t: &Fixture) -> Client {
    if t.kind == Kind::Postgres { t.replica().await } else { t.client() }
}

async fn only_a_submit_and_a_setting_create_a_queue(t: &Fixture) {
    for command in [pause("typo", true), pause("typo", false), patch("typo"), make::delete_queue("typo", true)] {
        assert_eq!(t.run(command.clone()).await, missing(), "{command:?}");
        assert_eq!(names(t).await, Vec::<String>::new(), "{command:?}");
    }
    t.run(set("set")).await.unwrap();
    t.put_in("submitted").await;
    assert_eq!(names(t).await, ["set", "submitted"]);
}

async fn an_empty_queue_is_deleted_and_its_name_is_free(t: &Fixture) {
    t.run(set("q")).await.unwrap();
    t.run(pause("q", true)).await.unwrap();
    t.store.saw_workers(&["q".into()]).await.unwrap();
    let first = id(t, "q").await;
    assert_eq!(t.run(make::delete_queue("q", false)).await, deleted());
    assert_eq!(names(t).await, Vec::<String>::new());
    assert!(t.store.queue(first).await.unwrap().is_none());
    assert_eq!(t.run(make::delete_queue("q", false)).await, missing());
    assert_eq!(t.run(pause("q", false)).await, missing());
    assert_eq!(t.claim_ids(&["q"], 1).await, []);

    let task = t.put_in("q").await;
    let again = t.queue("q").await.queue;
    assert!(again.id != first && !again.paused, "{again:?}");
    assert_eq!((&again.settings, &again.tenant), (&QueueSettings::default(), &None));
    assert_eq!(t.claim_ids(&["q"], 1).await, [task]);
    t.store.prune(&Retention::default(), Seq(0), 10).await.unwrap();
    assert_eq!(t.raw.number("SELECT count(*) FROM queue_seen").await, 0, "of the deleted one");
}

async fn a_queue_with_open_tasks_is_not_deleted(t: &Fixture) {
    let none = Counts::default();
    t.put(NewTask { start: Start::After(60_000), ..t.task("scheduled").await }).await;
    t.put_in("ready").await;
    t.put_in("running").await;
    t.claim_one("running").await;
    let mut members = make::members(t.tasks("blocked", 2).await, &[&[], &[0]]);
    members[0].task.queue = "first".into();
    t.run(Command::SubmitRun(make::run(t.mint().await, None, members))).await.unwrap();
    for (queue, counts) in [
        ("scheduled", Counts { scheduled: 1, ..none }),
        ("ready", Counts { ready: 1, ..none }),
        ("running", Counts { running: 1, ..none }),
        ("blocked", Counts { blocked: 1, ..none }),
    ] {
        for force in [false, true] {
            let refused = Err(Rejection::QueueNotEmpty(counts));
            assert_eq!(t.run(make::delete_queue(queue, force)).await, refused, "{queue}");
        }
    }
    assert_eq!(names(t).await, ["blocked", "first", "ready", "running", "scheduled"]);
    // The last task of the run becomes ready, runs and ends, and then its queue can go.
    t.complete(&t.claim_one("first").await).await.unwrap();
    assert!(t.run(make::delete_queue("blocked", false)).await.is_err());
    t.complete(&t.claim_one("blocked").await).await.unwrap();
    assert_eq!(t.run(make::delete_queue("blocked", false)).await, deleted());
}

async fn a_queue_with_dead_letters_is_deleted_only_by_force(t: &Fixture) {
    let task = dead(t, "q").await;
    let refused = Rejection::QueueNotEmpty(Counts { finished: 1, dead_lettered: 1, ..Counts::default() });
    assert_eq!(t.run(make::delete_queue("q", false)).await, Err(refused));
    assert_eq!(t.run(make::delete_queue("q", true)).await, deleted());
    assert_eq!(t.state(task).await, State::Failed);

    // Nothing puts it back, not even into another queue of that name.
    let reason = NotRetryableReason::QueueDeleted;
    let gone = Err(Rejection::NotRetryable { state: State::Failed, reason });
    assert_eq!(t.run(make::retry(task)).await, gone);
    t.put_in("q").await;
    assert_eq!(t.run(make::retry(task)).await, gone);
    let filter = RedriveFilter { rows: Some(vec![task.seq()]), ..RedriveFilter::default() };
    let new = NewRedrive { redrive_id: 7, key: None, filter, rate: None };
    let started_at = t.store.start_redrive(&new).await.unwrap().started_at;
    let redrive = Redrive { redrive_id: 7, rows: vec![task.seq()], cursor: task.seq(), finished: true, started_at };
    assert_eq!(t.run(Command::Redrive(redrive)).await, Ok(Answer::Redriven { released: 0 }));
    assert_eq!((t.state(task).await, t.queue("q").await.counts.ready), (State::Failed, 1));
}

async fn ended_tasks_outlive_their_queue_until_retention_removes_them(t: &Fixture) {
    let task = finished(t, "q").await;
    let queue = id(t, "q").await;
    let member = make::members(t.tasks("q", 1).await, &[&[]]);
    let run = make::run(t.mint().await, None, member);
    let run_id = run.run.id;
    t.run(Command::SubmitRun(run)).await.unwrap();
    t.complete(&t.claim_one("q").await).await.unwrap();
    assert_eq!(t.run(make::delete_queue("q", false)).await, deleted());

    assert_eq!(&*t.view(task).await.queue, "q");
    assert_eq!(t.attempts(task).await.len(), 1);
    let all = TaskFilter { limit: 10, ..TaskFilter::default() };
    let listed = t.store.tasks(&all).await.unwrap().items;
    assert_eq!(listed.iter().map(|view| &*view.queue).collect::<Vec<_>>(), ["q", "q"]);
    assert_eq!(&*t.store.run(run_id, &Reach::All).await.unwrap().unwrap().tasks[0].queue, "q");
    assert_eq!(t.store.queue_name(queue).await.unwrap().as_deref(), Some("q"));
    assert_eq!(t.raw.number("SELECT count(*) FROM tasks WHERE queue = 'q'").await, 2);
    // A queue of that name that is made later has none of them.
    finished(t, "q").await;
    let of_queue = TaskFilter { queue: Some("q".into()), ..all };
    assert_eq!(t.store.tasks(&of_queue).await.unwrap().items.len(), 1);

    t.clock.advance(2 * 24 * 3_600_000);
    let keep = Retention { finished_ms: 1_000, dead_letter_ms: 1_000, ..Retention::default() };
    let pruned = t.store.prune(&keep, Seq(0), 100).await.unwrap();
    assert_eq!(pruned.removed, 3);
    assert_eq!(t.store.queue_name(queue).await.unwrap(), None, "nothing refers to it any longer");
    assert_eq!(t.raw.number("SELECT count(*) FROM deleted_queues").await, 0);
    assert_eq!(t.queue("q").await.counts, Counts::default());
}

async fn a_late_report_is_accepted_after_its_queue_was_deleted(t: &Fixture) {
    let task = t.put(NewTask { spec: make::attempts(1), ..t.task("q").await }).await;
    let grant = t.claim_one("q").await;
    t.clock.advance(60_000);
    assert_eq!(t.reap().await, 1);
    assert_eq!(t.run(make::delete_queue("q", true)).await, deleted());
    assert_eq!(t.complete(&grant).await, Ok(Answer::Reported(Receipt::Completed)));
    assert_eq!(t.state(task).await, State::Succeeded);
}

async fn the_number_of_a_deleted_queue_is_not_used_again(t: &Fixture) {
    let task = finished(t, "first").await;
    let first = id(t, "first").await;
    assert_eq!(t.run(make::delete_queue("first", false)).await, deleted());
    t.put_in("second").await;
    assert_ne!(id(t, "second").await, first);
    assert_eq!(&*t.view(task).await.queue, "first");
}

async fn a_tenant_deletes_its_own_queues_only(t: &Fixture) {
    let delete = |queue: &str, tenant: &str| {
        let Command::DeleteQueue(delete) = make::delete_queue(queue, true) else { unreachable!() };
        let reach = Reach::Tenant(tenant.into());
        Command::DeleteQueue(tenure_core::command::queues::DeleteQueue { reach, ..delete })
    };
    let Command::SetQueue(own) = set("own") else { unreachable!() };
    t.run(Command::SetQueue(SetQueue { reach: Reach::Tenant("acme".into()), ..own })).await.unwrap();
    t.run(set("shared")).await.unwrap();
    assert_eq!(t.run(delete("own", "other")).await, missing());
    assert_eq!(t.run(delete("shared", "acme")).await, Err(Rejection::QueueShared));
    assert_eq!(names(t).await, ["own", "shared"]);
    assert_eq!(t.run(delete("own", "acme")).await, deleted());
    assert_eq!(t.run(make::delete_queue("shared", false)).await, deleted());
}

/// Each control plane remembers settings and names of queues for a while.
async fn what_another_control_plane_deleted_is_gone_here_too(t: &Fixture) {
    let other = other(t).await;
    for (command, created) in [(pause("q", true), false), (patch("q"), false), (set("q"), true)] {
        finished(t, "q").await;
        assert_eq!(other.run(make::delete_queue("q", false)).await, deleted());
        let outcome = t.run(command.clone()).await;
        assert_eq!(outcome.is_ok(), created, "{command:?}: {outcome:?}");
        assert_eq!(names(t).await.len(), usize::from(created));
    }
    assert_eq!(other.run(make::delete_queue("q", false)).await, deleted());
    let task = t.put_in("q").await;
    assert_eq!(t.queue("q").await.queue.settings, QueueSettings::default());
    assert_eq!(other.claim_ids(&["q"], 1).await, [task]);
}

/// One submits and works, the other deletes the queue whenever it is empty.
async fn no_task_is_lost_while_its_queue_is_deleted(t: &Fixture) {
    let deleting = other(t).await;
    let (stop, mut stopped) = tokio::sync::watch::channel(());
    let deleter = tokio::spawn(async move {
        let mut deletions = 0;
        while !stopped.has_changed().unwrap_or(true) {
            match deleting.run(make::delete_queue("q", false)).await {
                Ok(_) => deletions += 1,
                Err(Rejection::QueueNotFound | Rejection::QueueNotEmpty(_)) => {}
                Err(other) => panic!("{other:?}"),
            }
        }
        stopped.borrow_and_update();
        deletions
    });
    let (begin, mut tasks) = (Instant::now(), Vec::new());
    while tasks.len() < 100 && begin.elapsed() < Duration::from_secs(60) {
        let task = t.put_in("q").await;
        assert_eq!(t.state(task).await, State::Ready);
        let grant = t.claim_one("q").await;
        assert_eq!(grant.task, task);
        t.complete(&grant).await.unwrap();
        tasks.push(task);
    }
    stop.send_replace(());
    let deletions = deleter.await.unwrap();
    assert!(deletions > 0, "{} tasks", tasks.len());
    for task in tasks {
        assert_eq!((t.state(task).await, &*t.view(task).await.queue), (State::Succeeded, "q"));
    }
}

async fn somebody_waits_for_a_lock(t: &Fixture) {
    let waiting = "SELECT count(*) FROM pg_stat_activity
         WHERE datname = current_database() AND pid <> pg_backend_pid() AND wait_event_type = 'Lock'";
    wait_until("a batch waits", Duration::from_secs(20), async || t.raw.number(waiting).await > 0).await;
}

/// The submit has read the queue, and writes after the deletion was committed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_submit_that_meets_a_deletion_makes_the_queue_again() {
    case(Kind::Postgres, async |t: &Fixture| {
        finished(t, "q").await;
        let first = id(t, "q").await;
        let other = t.home.raw().await;
        // What a deletion does, step by step.
        other.execute("BEGIN").await;
        other.execute("SELECT queue_id FROM queues WHERE name = 'q' FOR UPDATE").await;
        other.execute("SELECT queue_id FROM queue_counts FOR UPDATE").await;
        let client = t.client();
        let task = t.task("q").await;
        let task_id = task.id;
        let submitting = tokio::spawn(async move { client.put(task).await });
        somebody_waits_for_a_lock(t).await;
        other.execute("INSERT INTO deleted_queues SELECT queue_id, name, 1 FROM queues").await;
        other.execute("DELETE FROM queue_counts").await;
        other.execute("DELETE FROM queues").await;
        other.execute("COMMIT").await;
        submitting.await.unwrap();
        assert_ne!(id(t, "q").await, first);
        assert_eq!(t.claim_ids(&["q"], 1).await, [task_id]);
    })
    .await;
}

/// The submit has written and not yet committed when the deletion counts the tasks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deletion_waits_for_submits_that_are_under_way() {
    case(Kind::Postgres, async |t: &Fixture| {
        t.run(set("q")).await.unwrap();
        for shard in ["0", "1"] {
            let other = t.home.raw().await;
            let add = format!(
                "INSERT INTO queue_counts (queue_id, shard, ready) SELECT queue_id, {shard}, 1 FROM queues
                 ON CONFLICT (queue_id, shard) DO UPDATE SET ready = queue_counts.ready + 1"
            );
            // First a connection that is new to the queue, then one that is not.
            for _ in 0..2 {
                other.execute("BEGIN").await;
                other.execute(&add).await;
                let client = t.client();
                let deleting = tokio::spawn(async move { client.run(make::delete_queue("q", true)).await });
                somebody_waits_for_a_lock(t).await;
                other.execute("COMMIT").await;
                let outcome = deleting.await.unwrap();
                assert!(
                    matches!(outcome, Err(Rejection::QueueNotEmpty(counts)) if counts.ready > 0),
                    "{shard}: {outcome:?}"
                );
            }
        }
        t.raw.execute("UPDATE queue_counts SET ready = 0").await;
        assert_eq!(t.run(make::delete_queue("q", true)).await, deleted());
    })
    .await;
}
