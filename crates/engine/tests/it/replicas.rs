//! Several control planes on one Postgres: who does what is done for all, and what they tell each other.
//!
//! The engines look for what they should have been told once an hour only. So whatever happens here in time was told.

use std::time::{Duration, Instant};

use tenure_core::command::Reach;
use tenure_core::command::claim::Claimed;
use tenure_core::command::queues::PauseQueue;
use tenure_core::command::submit::Start;
use tenure_engine::{ClaimWait, Duty, Engine, EngineConfig, Event};
use tenure_testkit::wait_until;

use crate::harness::{Home, SOON, claim, complete, new_tasks, submit};

const LONG: Duration = Duration::from_secs(60);

async fn replica(home: &Home) -> Engine {
    let look_every = Some(Duration::from_secs(3_600));
    Engine::open_with(&home.url(), EngineConfig { look_every, ..EngineConfig::default() }).await.unwrap()
}

async fn raw(home: &Home) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(&home.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// How many control planes listen.
async fn listening(raw: &tokio_postgres::Client) -> i64 {
    let listeners = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'tenure listen' AND query LIKE 'LISTEN%' AND state = 'idle'";
    raw.query_one(listeners, &[]).await.unwrap().get(0)
}

/// Two control planes that know of each other and listen.
async fn two(home: &Home) -> (Engine, Engine) {
    let (first, second) = (replica(home).await, replica(home).await);
    wait_until("each to know of the other", SOON, async || first.others() == 1 && second.others() == 1).await;
    let raw = raw(home).await;
    wait_until("both to listen", SOON, async || listening(&raw).await == 2).await;
    (first, second)
}

/// A claim that waits at this control plane, for longer than the test takes.
async fn waiting(engine: &Engine) -> tokio::task::JoinHandle<Claimed> {
    let claims = engine.clone();
    let claimed = tokio::spawn(async move { claims.claim(claim("w", 1), ClaimWait(LONG)).await.unwrap() });
    wait_until("the claim to wait", SOON, async || engine.claims_waiting() == 1).await;
    claimed
}

/// Those of a control plane without transports.
const OWN: [Duty; 10] = [
    Duty::Reaper,
    Duty::Timer,
    Duty::Redrive,
    Duty::Retention,
    Duty::IdentityPrune,
    Duty::Sandboxes,
    Duty::Schedules,
    Duty::Router,
    Duty::Sink,
    Duty::Staging,
];

fn duties(engine: &Engine) -> Vec<Duty> {
    Duty::ALL.into_iter().filter(|duty| engine.has(*duty)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_duty_has_one_holder_and_passes_on_at_once_when_it_ends() {
    let home = Home::postgres().await;
    let (first, second) = two(&home).await;
    wait_until("one of them to have each", SOON, async || {
        OWN.into_iter().all(|duty| first.has(duty) != second.has(duty))
    })
    .await;
    let began = Instant::now();
    first.shutdown().await;
    wait_until("the first to have none", SOON, async || duties(&first).is_empty()).await;
    wait_until("the other to have all", SOON, async || duties(&second) == OWN).await;
    eprintln!("handed over in {:?}", began.elapsed());
    wait_until("the other to know that it is alone", SOON, async || second.others() == 0).await;
    second.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_only_process_of_a_file_has_every_duty() {
    let home = Home::sqlite();
    for _ in 0..2 {
        let engine = Engine::open(&home.url()).await.unwrap();
        assert_eq!(duties(&engine), OWN, "what needs a transport is left to those who have it");
        assert_eq!(engine.others(), 0);
        engine.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_waits_at_one_is_woken_by_a_submit_at_another() {
    let home = Home::postgres().await;
    let (first, second) = two(&home).await;
    let mut times = Vec::new();
    for round in 0..20 {
        let (here, there) = if round % 2 == 0 { (&first, &second) } else { (&second, &first) };
        let claimed = waiting(here).await;
        let began = Instant::now();
        submit(there, 1).await;
        let claimed = claimed.await.unwrap();
        times.push(began.elapsed());
        assert_eq!(claimed.grants.len(), 1);
        here.report(complete(&claimed.grants[0]), 0).await.unwrap().unwrap();
    }
    times.sort_unstable();
    eprintln!("submit at one, granted at the other: median {:?}, longest {:?}", times[10], times[19]);
    assert!(times[19] < LONG, "woken, not timed out: {times:?}");
    first.shutdown().await;
    second.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_told_while_nobody_listened_is_found_when_it_listens_again() {
    let home = Home::postgres().await;
    let (first, second) = two(&home).await;
    let raw = raw(&home).await;
    for _ in 0..3 {
        let claimed = waiting(&first).await;
        raw.batch_execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
             WHERE datname = current_database() AND application_name = 'tenure listen'",
        )
        .await
        .unwrap();
        submit(&second, 1).await;
        let claimed = claimed.await.unwrap();
        assert_eq!(claimed.grants.len(), 1);
        first.report(complete(&claimed.grants[0]), 0).await.unwrap().unwrap();
        wait_until("both to listen again", SOON, async || listening(&raw).await == 2).await;
    }
    first.shutdown().await;
    second.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_goes_on_at_one_wakes_claims_at_another() {
    let home = Home::postgres().await;
    let (first, second) = two(&home).await;
    let pause = |paused| PauseQueue { queue: "q".into(), paused, reach: Reach::All };
    submit(&first, 1).await;
    second.pause_queue(pause(true)).await.unwrap().unwrap();
    let claimed = waiting(&first).await;
    second.pause_queue(pause(false)).await.unwrap().unwrap();
    assert_eq!(claimed.await.unwrap().grants.len(), 1);
    first.shutdown().await;
    second.shutdown().await;
}

/// The one that has the timers sleeps for an hour when a task comes that is due in a moment. It is submitted at each in
/// turn: one of the two does not have them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_scheduled_at_one_is_made_ready_in_time_by_another() {
    let home = Home::postgres().await;
    let (first, second) = two(&home).await;
    for here in [&first, &second, &first, &second] {
        let claimed = waiting(here).await;
        let mut submit = new_tasks(here, 1).await;
        submit.tasks[0].start = Start::At(here.now().await.unwrap().plus(300));
        here.submit(submit, 0).await.unwrap().unwrap();
        let claimed = claimed.await.unwrap();
        assert_eq!(claimed.grants.len(), 1);
        here.report(complete(&claimed.grants[0]), 0).await.unwrap().unwrap();
    }
    first.shutdown().await;
    second.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_watches_one_sees_what_happens_at_another() {
    let home = Home::postgres().await;
    let (first, second) = two(&home).await;
    let mut events = first.events(Reach::All, None).await.unwrap();
    for _ in 0..5 {
        // The watcher has looked and waits long before the submit is durable.
        let (event, ()) = tokio::join!(tokio::time::timeout(LONG, events.next()), submit(&second, 1));
        let event = event.expect("told").unwrap();
        assert!(matches!(event, Some(Event::Task { .. })), "{event:?}");
    }
    first.shutdown().await;
    second.shutdown().await;
}

/// A batch gets its number before it commits. A watcher waits for one that is under way, however long it takes, and for no number
/// that nobody will use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watcher_misses_no_batch_that_commits_late_and_waits_for_none_that_failed() {
    let home = Home::postgres().await;
    let engine = Engine::open(&home.url()).await.unwrap();
    let raw = raw(&home).await;
    let mut events = engine.events(Reach::All, None).await.unwrap();
    let mut next = async || match tokio::time::timeout(LONG, events.next()).await.expect("an event comes").unwrap() {
        Some(Event::Task { id, .. }) => id,
        other => panic!("{other:?}"),
    };
    submit(&engine, 1).await;
    next().await;
    let started = Instant::now();
    for _ in 0..30 {
        raw.batch_execute("SELECT nextval(pg_get_serial_sequence('events', 'batch'))").await.unwrap();
        submit(&engine, 1).await;
        next().await;
    }
    assert!(started.elapsed() < Duration::from_secs(30), "30 numbers cost {:?}", started.elapsed());

    raw.batch_execute("BEGIN; INSERT INTO events (at, facts) SELECT at, facts FROM events ORDER BY batch DESC LIMIT 1")
        .await
        .unwrap();
    submit(&engine, 1).await;
    // Longer than any batch takes.
    let early = tokio::time::timeout(Duration::from_secs(3), next()).await;
    assert!(early.is_err(), "a batch is under way, and {early:?} came before it");
    raw.batch_execute("COMMIT").await.unwrap();
    let (late, last) = (next().await, next().await);
    assert!(late < last, "{late} came before {last}");
    engine.shutdown().await;
}
