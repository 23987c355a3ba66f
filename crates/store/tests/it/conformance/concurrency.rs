//! Many at the same time: no task is granted twice, no limit is passed, every end has one winner.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::attempt::Receipt;
use tenure_core::command::cancel::Mode;
use tenure_core::command::claim::Grant;
use tenure_core::command::expire::Expire;
use tenure_core::command::submit::{NewTask, Submit};
use tenure_core::command::{Answer, Command, ConflictKind, Rejection};
use tenure_core::queue::QueueSettings;
use tenure_core::task::State;
use tenure_core::{Seq, TaskId};
use tenure_store::{Batch, Lane, Retention, StoreError};
use tenure_testkit::wait_until;

use crate::common::{Client, Fixture, Kind, case, make};

crate::on_both_stores!(
    eight_clients_never_share_a_task,
    of_a_late_completion_and_the_next_grant_one_wins,
    of_two_different_completions_one_wins,
    everything_at_once_leaves_every_task_in_one_place,
    callers_that_go_away_leave_whole_batches,
    the_newest_process_of_a_worker_wins,
);

/// Claims and completes until `done` tasks have been completed by all together.
async fn work(client: Client, queues: &'static [&'static str], done: Arc<AtomicUsize>, total: usize) -> Vec<Grant> {
    let mut granted = Vec::new();
    while done.load(Ordering::SeqCst) < total {
        let grants = client.claim(queues, 10).await;
        if grants.is_empty() {
            tokio::task::yield_now().await;
            continue;
        }
        let reports = grants.iter().map(|grant| make::complete(grant, "1")).collect();
        for outcome in client.run_all(reports).await {
            assert_eq!(outcome, Ok(Answer::Reported(Receipt::Completed)));
        }
        done.fetch_add(grants.len(), Ordering::SeqCst);
        granted.extend(grants);
    }
    granted
}

fn assert_each_once(granted: &[Grant], put: &[TaskId]) {
    let unique: HashSet<TaskId> = granted.iter().map(|grant| grant.task).collect();
    assert_eq!((granted.len(), unique.len()), (put.len(), put.len()), "every task is granted once");
    assert!(granted.iter().all(|grant| grant.attempt == 1));
}

async fn eight_clients_never_share_a_task(t: &Fixture) {
    let mut put = t.put_many("a", 150).await;
    put.extend(t.put_many("b", 150).await);
    let done = Arc::new(AtomicUsize::new(0));
    let workers: Vec<_> = (0..8)
        .map(|n| {
            let queues: &[&str] = if n % 2 == 0 { &["a", "b"] } else { &["b", "a"] };
            tokio::spawn(work(t.client(), queues, Arc::clone(&done), put.len()))
        })
        .collect();
    let mut granted = Vec::new();
    for worker in workers {
        granted.extend(worker.await.unwrap());
    }
    assert_each_once(&granted, &put);
    assert_eq!((t.queue("a").await.counts.finished, t.queue("b").await.counts.finished), (150, 150));
}

/// The lease has expired. The holder reports, the reaper sweeps, another worker claims: either the report is accepted
/// and nobody was granted the task again, or somebody was and the report is refused.
async fn of_a_late_completion_and_the_next_grant_one_wins(t: &Fixture) {
    let mut tasks = t.tasks("q", 24).await;
    tasks.iter_mut().for_each(|task| task.spec = make::attempts(2));
    t.submit(tasks).await;
    let held = t.claim(&["q"], 24).await;
    t.clock.advance(60_000);
    let (mut accepted, mut regranted) = (0, 0);
    for grant in held {
        let (holder, reaper, other) = (t.client(), t.client(), t.client());
        let row = grant.seq();
        let report = make::complete(&grant, "1");
        let reported = tokio::spawn(async move { holder.run(report).await });
        let swept = tokio::spawn(async move { reaper.run(Command::Expire(Expire { row })).await });
        let claimed = tokio::spawn(async move { other.run(make::claim_task("other", grant.task)).await });
        swept.await.unwrap().unwrap();
        let again = matches!(claimed.await.unwrap(), Ok(Answer::Claimed(_)));
        match reported.await.unwrap() {
            Ok(Answer::Reported(Receipt::Completed)) => {
                assert!(!again, "completed and granted again");
                assert_eq!(t.state(grant.task).await, State::Succeeded);
                accepted += 1;
            }
            Err(Rejection::Conflict(conflict)) => {
                assert!(again, "refused although nobody else has it: {conflict:?}");
                assert_eq!(conflict.kind, ConflictKind::StaleAttempt);
                assert_eq!(t.state(grant.task).await, State::Running);
                regranted += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(accepted + regranted, 24);
}

async fn of_two_different_completions_one_wins(t: &Fixture) {
    t.put_many("q", 16).await;
    for grant in t.claim(&["q"], 16).await {
        let reports: Vec<_> = (0..4)
            .map(|n| {
                let (client, report) = (t.client(), make::complete(&grant, &n.to_string()));
                tokio::spawn(async move { client.run(report).await })
            })
            .collect();
        let mut accepted = Vec::new();
        for (n, report) in reports.into_iter().enumerate() {
            match report.await.unwrap() {
                Ok(Answer::Reported(Receipt::Completed)) => accepted.push(n.to_string()),
                Err(Rejection::Conflict(conflict)) => assert_eq!(conflict.kind, ConflictKind::ConflictingCompletion),
                other => panic!("{other:?}"),
            }
        }
        let tenure_core::task::Place::Finished(finished) = t.view(grant.task).await.place else { panic!("ended") };
        assert_eq!(accepted, [finished.result.unwrap().to_string()]);
    }
}

/// Eight clients do whatever comes to mind to a handful of tasks. That nothing is refused by the schema is shown by
/// every batch; that all is well behind it, by the invariants.
async fn everything_at_once_leaves_every_task_in_one_place(t: &Fixture) {
    let ids: Vec<TaskId> = {
        let mut tasks = t.tasks("q", 12).await;
        tasks.iter_mut().for_each(|task| task.spec = make::attempts(5));
        t.submit(tasks).await.iter().map(|task| task.id).collect()
    };
    t.set_queue("q", QueueSettings { max_running: Some(6), ..QueueSettings::default() }).await;
    let held: Arc<Mutex<HashMap<TaskId, Grant>>> = Arc::default();
    let clients: Vec<_> = (0..8_usize)
        .map(|n| {
            let (client, ids, held, clock) = (t.client(), ids.clone(), Arc::clone(&held), Arc::clone(&t.clock));
            tokio::spawn(async move {
                let mut dice = n * 7_919 + 1;
                for _ in 0..40 {
                    dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let id = ids[(dice >> 33) % ids.len()];
                    let grant = held.lock().unwrap().get(&id).cloned();
                    let command = match ((dice >> 50) % 10, grant) {
                        (0 | 1, Some(grant)) => make::complete(&grant, "1"),
                        (2 | 3, Some(grant)) => make::fail(&grant, "X", None),
                        (4, Some(grant)) => make::heartbeat(&grant),
                        (5, Some(grant)) => make::release(&grant),
                        (6, _) => make::cancel(id, if dice & 1 == 0 { Mode::Immediate } else { Mode::Cooperative }),
                        (7, _) => make::retry(id),
                        (8, _) => {
                            clock.advance(20_000);
                            Command::Expire(Expire { row: id.seq() })
                        }
                        _ => Command::Claim(make::claim("w", &["q"], 3)),
                    };
                    if let Ok(Answer::Claimed(claimed)) = client.run(command).await {
                        held.lock().unwrap().extend(claimed.grants.into_iter().map(|grant| (grant.task, grant)));
                    }
                }
            })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
    assert!(t.queue("q").await.counts.running <= 6);
}

/// A request that is dropped in the middle of its batch: all of the batch has happened, or nothing.
async fn callers_that_go_away_leave_whole_batches(t: &Fixture) {
    for patience in 0..30 {
        let (client, tasks) = (t.client(), t.tasks("q", 3).await);
        let caller = tokio::spawn(async move { client.submit(tasks).await });
        for _ in 0..patience {
            tokio::task::yield_now().await;
        }
        caller.abort();
        let _ = caller.await;
        let client = t.client();
        let caller = tokio::spawn(async move { client.claim(&["q"], 2).await });
        for _ in 0..patience {
            tokio::task::yield_now().await;
        }
        caller.abort();
        let _ = caller.await;
    }
    // Whatever was under way has ended once the next batch is through, and on Postgres once nobody is busy there.
    t.put_many("q", 3).await;
    if t.kind == Kind::Postgres {
        let busy = "SELECT count(*) FROM pg_stat_activity
             WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle'";
        wait_until("nobody is busy", Duration::from_secs(20), async || t.raw.number(busy).await == 0).await;
    }
    let counts = t.queue("q").await.counts;
    assert_eq!((counts.ready + counts.running) % 3, 0, "{counts:?}");
}

async fn the_newest_process_of_a_worker_wins(t: &Fixture) {
    for round in 0..10 {
        let hellos: Vec<_> = (0..4)
            .map(|n| {
                let client = t.client();
                tokio::spawn(async move { client.run(make::hello(&format!("w{round}"), &format!("0{n}"))).await })
            })
            .collect();
        for hello in hellos {
            assert!(matches!(hello.await.unwrap(), Ok(_) | Err(Rejection::StaleIncarnation)));
        }
    }
    let newest = t.raw.number("SELECT count(*) FROM workers WHERE incarnation = '03'").await;
    assert_eq!(newest, 10, "an older process never takes the name back");
}

mod replicas {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn sixty_four_claimers_on_two_control_planes() {
        case(Kind::Postgres, sixty_four_claimers).await;
    }

    async fn sixty_four_claimers(t: &Fixture) {
        const SLOTS: i64 = 7;
        let slots = QueueSettings { max_running: Some(SLOTS as u32), ..QueueSettings::default() };
        t.set_queue("limited", slots).await;
        let replicas = [t.client(), t.replica().await];
        let mut put = t.put_many("limited", 200).await;
        put.extend(t.put_many("open", 4_800).await);
        let done = Arc::new(AtomicUsize::new(0));
        let workers: Vec<_> = (0..64)
            .map(|n| {
                let queues: &[&str] = if n % 4 == 0 { &["limited", "open"] } else { &["open", "limited"] };
                tokio::spawn(work(replicas[n % 2].clone(), queues, Arc::clone(&done), put.len()))
            })
            .collect();
        let (mut looks, mut most) = (0, 0);
        let count = "SELECT count(*) FROM running r JOIN queues q USING (queue_id) WHERE q.name = 'limited'";
        while done.load(Ordering::SeqCst) < put.len() {
            let running = t.raw.number(count).await;
            assert!(running <= SLOTS, "{running} of {SLOTS} slots");
            (looks, most) = (looks + 1, most.max(running));
        }
        let mut granted = Vec::new();
        for worker in workers {
            granted.extend(worker.await.unwrap());
        }
        assert_each_once(&granted, &put);
        assert!(looks > 10 && most > 1, "the limit was under load: {looks} looks, {most} at most");
    }

    /// What one control plane has read of a queue may be old; a grant and a task that is put back must not go by it.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn settings_of_one_control_plane_hold_for_the_other_at_once() {
        case(Kind::Postgres, settings_hold_at_once).await;
    }

    async fn settings_hold_at_once(t: &Fixture) {
        let other = t.replica().await;
        let spec = make::attempts(9);
        let dead = t.put(NewTask { spec, ..t.task("q").await }).await;
        t.bury(&t.claim_one("q").await, "X").await;
        let [running, ready] =
            [t.put(NewTask { spec, ..t.task("q").await }).await, t.put(NewTask { spec, ..t.task("q").await }).await];
        let grant = t.claim_one("q").await;
        assert_eq!(grant.task, running);
        // The other one reads the queue now.
        other.run(make::heartbeat(&grant)).await.unwrap();

        t.pause("q", true).await;
        let outcome = other.run(make::claim_task("w", ready)).await;
        assert!(matches!(outcome, Ok(Answer::NotGranted(_))), "{outcome:?}");
        t.pause("q", false).await;
        other.run(make::heartbeat(&grant)).await.unwrap();

        t.set_queue("q", QueueSettings { max_running: Some(1), ..QueueSettings::default() }).await;
        let outcome = other.run(make::claim_task("w", ready)).await;
        assert!(matches!(outcome, Ok(Answer::NotGranted(_))), "{outcome:?}");
        other.run(make::heartbeat(&grant)).await.unwrap();

        let fairness_key = Some(tenure_core::queue::FairnessKey::Tenant);
        t.set_queue("q", QueueSettings { fairness_key, ..QueueSettings::default() }).await;
        other.run(make::retry(dead)).await.unwrap();
        let mut got = other.claim_ids(&["q"], 9).await;
        got.sort_unstable();
        assert_eq!(got, [dead, ready]);
    }

    /// A report takes the row of its lease out, and puts it back when it is refused. Who waited for the old row finds the new one.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_claim_sent_again_finds_a_lease_whose_row_is_written_anew() {
        case(Kind::Postgres, a_row_is_written_anew).await;
    }

    async fn a_row_is_written_anew(t: &Fixture) {
        let named = || {
            let mut claim = make::claim("w", &["q"], 1);
            if let Some(worker) = &mut claim.claimer.worker {
                worker.claim_id = Some("c".into());
            }
            claim
        };
        t.put_many("q", 2).await;
        let first = t.claimed(named()).await.grants;
        t.raw.execute("BEGIN; CREATE TEMP TABLE kept AS SELECT * FROM running; DELETE FROM running").await;
        let client = t.client();
        let again = tokio::spawn(async move { client.claimed(named()).await.grants });
        let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND transactionid = pg_current_xact_id()::xid";
        wait_until("the claim waits", Duration::from_secs(20), async || t.raw.number(waits).await == 1).await;
        t.raw.execute("INSERT INTO running SELECT * FROM kept; COMMIT").await;
        let attempts = |grants: &[Grant]| grants.iter().map(|grant| grant.attempt_id).collect::<Vec<_>>();
        assert_eq!(attempts(&again.await.unwrap()), attempts(&first), "the same job, and no other");
    }

    /// The server ends every connection, as it does when it is restarted.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn lost_connections_lose_nothing() {
        case(Kind::Postgres, connections_are_lost).await;
    }

    /// Asks until the store can be reached again.
    async fn again<T>(mut ask: impl AsyncFnMut() -> Result<T, StoreError>) -> T {
        for _ in 0..100 {
            match ask().await {
                Err(error) if error.is_transient() => tokio::task::yield_now().await,
                other => return other.unwrap_or_else(|error| panic!("{}", error.chain())),
            }
        }
        panic!("the store never came back");
    }

    async fn connections_are_lost(t: &Fixture) {
        let end_all = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE datname = current_database() AND pid <> pg_backend_pid()";
        for _ in 0..5 {
            t.raw.execute(end_all).await;
            let mut numbers = again(async || t.store.reserve_numbers(2).await).await;
            let tasks = (0..2).map(|_| make::task(make::task_id(Seq(numbers.take())), "q")).collect();
            let commands = Arc::new(vec![Command::Submit(Submit { tasks, maker: None })]);
            let mut batch = Batch { commands, numbers, lane: Lane::Work, retrying: false };
            t.raw.execute(end_all).await;
            again(async || {
                let done = t.store.execute(batch.clone()).await;
                batch.retrying |= matches!(done, Err(StoreError::CommitUnknown { .. }));
                done
            })
            .await;
        }
        // Each connection has left its row of counts; they become one when the next look at retention comes.
        let shards = "SELECT count(*) FROM queue_counts c
             WHERE c.shard <> 0 AND NOT EXISTS (SELECT 1 FROM pg_stat_activity a WHERE a.pid = c.shard)";
        assert!(t.raw.number(shards).await > 0);
        again(async || t.store.prune(&Retention::default(), Seq(0), 10).await).await;
        assert_eq!(t.raw.number(shards).await, 0);
        let queues = again(async || t.store.queues(None, None, 10).await).await;
        assert_eq!(queues.items[0].counts.ready, 10);
    }
}
