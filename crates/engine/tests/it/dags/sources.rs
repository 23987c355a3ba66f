//! Sources: once per slot over replicas, restarts and versions; one task for as long as a source is on.

use std::collections::BTreeSet;
use std::sync::Arc;

use tenure_core::TaskId;
use tenure_core::attempt::{Failure, Report};
use tenure_core::command::Reach;
use tenure_core::command::cancel::{Cancel, Mode};
use tenure_core::command::report::AttemptReport;
use tenure_core::dag::task::{TaskInput, Trigger};
use tenure_core::task::State;
use tenure_core::time::Timestamp;
use tenure_engine::dags::{DeployError, NewVersion, TriggerError};
use tenure_engine::store::Clock;
use tenure_engine::{Engine, EngineConfig};
use tenure_testkit::wait_until;

use super::{ORG, Plane, version};
use crate::harness::{Home, SOON};
use crate::on_both_stores;

on_both_stores!(
    a_slot_fires_once_and_missed_ones_are_caught_up_as_the_source_says,
    slots_are_remembered_over_restarts_and_versions,
    slots_follow_the_clock_of_their_zone,
    an_always_on_source_has_one_task_for_as_long_as_it_is_on,
    a_path_of_a_webhook_leads_to_one_job,
    outputs_that_are_reset_begin_anew_with_every_version,
);

const MINUTE: i64 = 60_000;

fn frozen(at: &str) -> Arc<Clock> {
    let clock = Arc::new(Clock::default());
    clock.freeze(Timestamp::parse(at).unwrap());
    clock
}

async fn plane_at(home: &Home, clock: &Arc<Clock>) -> Plane {
    let config = EngineConfig { clock: Arc::clone(clock), ..EngineConfig::default() };
    let opened = async || Engine::open_with(&home.url(), config.clone()).await.ok();
    let engine = wait_until("the store is free", SOON, opened).await;
    let dags = engine.dags(Default::default());
    Plane { engine, dags }
}

/// A job without outputs, whose operator has its name.
fn source(name: &str, source: &str, config: u32) -> String {
    format!(
        "  - {{ name: {name}, activation: source, runtime: worker, operator: {name}, outputs: 0, config: {{ n: {config} }}, source: {{ {source} }} }}\n"
    )
}

fn dag(name: &str, jobs: &[String]) -> String {
    format!("name: {name}\njobs:\n{}", jobs.concat())
}

fn cron(name: &str, schedule: &str, more: &str) -> String {
    source(name, &format!("kind: cron, schedule: \"{schedule}\", {more}"), 0)
}

impl Plane {
    /// When the tasks of an operator were scheduled, oldest first, and their keys.
    async fn slots(&self, operator: &str) -> Vec<String> {
        let tasks = self.tasks(operator).await;
        let slots = tasks.iter().rev().map(|task| {
            let input: TaskInput = serde_json::from_str(&task.body.payload).unwrap();
            let Trigger::Cron { scheduled_at } = input.trigger else { panic!("{input:?}") };
            let key = &task.body.idempotency.as_ref().unwrap().key;
            assert_eq!(**key, format!("cron:{operator}:{scheduled_at}"));
            scheduled_at.to_string()
        });
        slots.collect()
    }

    async fn state_of(&self, task: TaskId) -> State {
        self.engine.task(task, &Reach::All).await.unwrap().unwrap().place.state()
    }
}

async fn a_slot_fires_once_and_missed_ones_are_caught_up_as_the_source_says(home: Home) {
    let clock = frozen("2030-01-01T00:30:00Z");
    let plane = plane_at(&home, &clock).await;
    let jobs = ["latest", "none", "all"].map(|mode| cron(mode, "0 * * * *", &format!("catch_up: {mode}")));
    plane.deploy(&dag("ticks", &jobs)).await;
    plane.dags.fire_due().await.unwrap();
    for mode in ["latest", "none", "all"] {
        assert_eq!(plane.slots(mode).await, [""; 0], "{mode}: slots count from when it became active");
    }
    clock.advance(30 * MINUTE + 10_000);
    for mode in ["latest", "none", "all"] {
        wait_until(mode, SOON, async || plane.slots(mode).await == ["2030-01-01T01:00:00Z"]).await;
    }
    for _ in 0..3 {
        plane.dags.fire_due().await.unwrap();
    }
    plane.stop().await;
    // Nobody fires from 1:00 to 4:30.
    clock.advance(210 * MINUTE);
    let plane = plane_at(&home, &clock).await;
    let all: Vec<_> = (1..=4).map(|hour| format!("2030-01-01T0{hour}:00:00Z")).collect();
    wait_until("all", SOON, async || plane.slots("all").await == all).await;
    wait_until("latest", SOON, async || plane.slots("latest").await == [&*all[0], &*all[3]]).await;
    assert_eq!(plane.slots("none").await, [&*all[0]]);
    clock.advance(30 * MINUTE);
    for mode in ["latest", "none", "all"] {
        wait_until(mode, SOON, async || plane.slots(mode).await.last().is_some_and(|slot| slot.contains("T05:00")))
            .await;
    }
    plane.stop().await;
}

async fn slots_are_remembered_over_restarts_and_versions(home: Home) {
    let clock = frozen("2030-01-01T00:30:00Z");
    let plane = plane_at(&home, &clock).await;
    let hourly = |config| source("hourly", "kind: cron, schedule: \"0 * * * *\"", config);
    let other = |config| source("other", "kind: manual", config);
    plane.deploy(&dag("ticks", &[hourly(0), other(0)])).await;
    plane.dags.fire_due().await.unwrap();
    clock.advance(31 * MINUTE);
    let fired = async |plane: &Plane, slots: &[&str]| {
        let expected: Vec<_> = slots.iter().map(|slot| format!("2030-01-01T{slot}:00Z")).collect();
        wait_until("the slot", SOON, async || plane.slots("hourly").await == expected).await;
    };
    fired(&plane, &["01:00"]).await;
    // Neither a version that leaves the source as it is nor one that changes it fires a slot again.
    for jobs in [[hourly(0), other(1)], [hourly(1), other(1)]] {
        plane.deploy(&dag("ticks", &jobs)).await;
        plane.dags.fire_due().await.unwrap();
        fired(&plane, &["01:00"]).await;
    }
    plane.stop().await;
    clock.advance(60 * MINUTE);
    let plane = plane_at(&home, &clock).await;
    fired(&plane, &["01:00", "02:00"]).await;
    // Only the active version fires, and a new schedule counts from now.
    plane.dags.deploy(NewVersion { manual: true, ..version(&dag("ticks", &[hourly(2), other(1)])) }).await.unwrap();
    clock.advance(60 * MINUTE);
    fired(&plane, &["01:00", "02:00", "03:00"]).await;
    plane.deploy(&dag("ticks", &[source("hourly", "kind: cron, schedule: \"30 * * * *\"", 0), other(1)])).await;
    plane.dags.fire_due().await.unwrap();
    clock.advance(30 * MINUTE);
    fired(&plane, &["01:00", "02:00", "03:00", "03:30"]).await;
    // A source that is gone fires no more.
    plane.deploy(&dag("ticks", &[other(1)])).await;
    plane.dags.fire_due().await.unwrap();
    clock.advance(120 * MINUTE);
    plane.dags.fire_due().await.unwrap();
    fired(&plane, &["01:00", "02:00", "03:00", "03:30"]).await;
    plane.stop().await;
}

async fn slots_follow_the_clock_of_their_zone(home: Home) {
    // On this night clocks in Berlin go from 2:00 to 3:00.
    let clock = frozen("2030-03-30T12:00:00Z");
    let plane = plane_at(&home, &clock).await;
    let jobs = [
        cron("nightly", "30 2 * * *", "timezone: Europe/Berlin"),
        cron("utc", "30 2 * * *", "timezone: UTC"),
        cron("daily", "rate(1 day)", "timezone: UTC"),
    ];
    plane.deploy(&dag("zones", &jobs)).await;
    plane.dags.fire_due().await.unwrap();
    clock.advance(13 * 60 * MINUTE + 1_000);
    wait_until("the end of the gap", SOON, async || plane.slots("nightly").await == ["2030-03-31T01:00:00Z"]).await;
    assert_eq!(plane.slots("utc").await, [""; 0]);
    clock.advance(90 * MINUTE);
    wait_until("half past two", SOON, async || plane.slots("utc").await == ["2030-03-31T02:30:00Z"]).await;
    assert_eq!(plane.slots("daily").await, ["2030-03-31T00:00:00Z"]);
    clock.advance(22 * 60 * MINUTE);
    let next = ["2030-03-31T01:00:00Z", "2030-04-01T00:30:00Z"];
    wait_until("summer time", SOON, async || plane.slots("nightly").await == next).await;
    plane.stop().await;
}

async fn an_always_on_source_has_one_task_for_as_long_as_it_is_on(home: Home) {
    let clock = frozen("2030-01-01T00:30:00Z");
    let plane = plane_at(&home, &clock).await;
    let listen = |config| dag("live", &[source("listen", "kind: always_on", config)]);
    plane.deploy(&listen(0)).await;
    let task = plane.nth("listen", 1).await;
    // Failures do not use it up: the next attempt is of the same task.
    for attempt in 1..=5 {
        let grant = plane.claim(task).await.unwrap();
        assert_eq!(grant.attempt, attempt);
        let report = AttemptReport {
            task,
            attempt_id: grant.attempt_id,
            token: grant.token,
            report: Report::failed(Failure::new("BROKEN", "the connection is gone", None, None)),
            data: None,
        };
        plane.engine.report(report, 0).await.unwrap().unwrap();
        clock.advance(16 * MINUTE);
        wait_until("the next attempt", SOON, async || plane.state_of(task).await == State::Ready).await;
    }
    plane.stop().await;
    let plane = plane_at(&home, &clock).await;
    plane.dags.fire_due().await.unwrap();
    assert_eq!(plane.nth("listen", 1).await, task);
    let running = plane.claim(task).await.unwrap();
    assert_eq!(running.attempt, 6);
    // Another definition is another source. What ran would never end by itself.
    plane.deploy(&listen(1)).await;
    wait_until("the old one", SOON, async || plane.state_of(task).await == State::Canceled).await;
    let other = plane.nth("listen", 2).await;
    assert_ne!(other, task);
    // Back again, it goes on as the task that it was.
    plane.dags.roll_back(ORG, "live").await.unwrap();
    wait_until("the old one again", SOON, async || plane.state_of(task).await == State::Ready).await;
    assert_eq!(plane.state_of(other).await, State::Canceled);
    assert_eq!(plane.claim(task).await.unwrap().attempt, 7);
    assert_eq!(plane.tasks("listen").await.len(), 2);
    // Somebody who cancels it means it.
    let cancel = Cancel { task, reason: "enough".into(), mode: Mode::Immediate, reach: Reach::All };
    plane.engine.cancel(cancel).await.unwrap().unwrap();
    clock.advance(2 * MINUTE);
    plane.dags.fire_due().await.unwrap();
    assert_eq!(plane.state_of(task).await, State::Canceled);
    plane.stop().await;
}

async fn a_path_of_a_webhook_leads_to_one_job(home: Home) {
    let plane = super::plane(&home).await;
    let hook = |name: &str, path: &str| {
        dag(name, &[source("hook", &format!("kind: webhook, webhook_path: {path}, secret: key"), 0)])
    };
    let deploy = async |org: &str, yaml: &str| {
        plane.dags.deploy(NewVersion { org, ..version(yaml) }).await.map(|deployed| deployed.planned.number)
    };
    assert_eq!(deploy("acme", &hook("a", "chain/new")).await, Ok(1));
    let found = plane.dags.webhook("chain/new").await.unwrap().unwrap();
    assert_eq!((&*found.job.org, &*found.job.dag, &*found.secret), ("acme", "a", "key"));
    for path in ["chain", "chain/new/", "chain/New", ""] {
        assert_eq!(plane.dags.webhook(path).await.unwrap(), None, "{path}");
    }
    let first = plane.dags.deliver(&found, &"d-1".into(), "{}".into()).await.unwrap();
    let again = plane.dags.deliver(&found, &"d-1".into(), "{}".into()).await.unwrap();
    assert_eq!((first.created, again.created, first.task), (true, false, again.task));
    // Nobody else can have the path, in this organisation or in another one.
    for (org, owner) in [("acme", "the DAG 'a'"), ("other", "another organisation")] {
        let Err(DeployError::Invalid(problems)) = deploy(org, &hook("b", "chain/new")).await else { panic!("{org}") };
        assert_eq!(problems[0].code.as_str(), "webhook_path_in_use");
        assert!(problems[0].message.contains(owner), "{}", problems[0].message);
    }
    // Two organisations that want it at once.
    let wanted = hook("d", "wanted");
    let both = tokio::join!(deploy("x", &wanted), deploy("y", &wanted));
    assert_eq!([both.0.is_ok(), both.1.is_ok()].iter().filter(|ok| **ok).count(), 1, "{both:?}");
    // Once it is given up another organisation can have it; a version that comes back then cannot.
    assert_eq!(deploy("acme", &hook("a", "elsewhere")).await, Ok(2));
    assert_eq!(plane.dags.webhook("chain/new").await.unwrap(), None);
    assert_eq!(plane.dags.deliver(&found, &"d-2".into(), "{}".into()).await, Err(TriggerError::UnknownJob));
    assert_eq!(deploy("other", &hook("b", "chain/new")).await, Ok(1));
    let Err(DeployError::Invalid(problems)) = plane.dags.roll_back("acme", "a").await else { panic!("refused") };
    assert_eq!(problems[0].code.as_str(), "webhook_path_in_use");
    assert_eq!(&*plane.dags.webhook("chain/new").await.unwrap().unwrap().job.org, "other");
    plane.stop().await;
}

async fn outputs_that_are_reset_begin_anew_with_every_version(home: Home) {
    let plane = super::plane(&home).await;
    let reset = |reset: bool, other: u32| {
        let job = format!(
            "  - {{ name: import, activation: source, runtime: worker, operator: import, outputs: 1, source: {{ kind: manual }}, bootstrap: {{ reset_outputs: {reset} }} }}\n"
        );
        dag("chain", &[job, source("other", "kind: manual", other)])
    };
    let output = async || {
        let view = plane.dags.view(ORG).await.unwrap();
        let import = view.deployment.active("chain").unwrap().jobs["import"];
        view.deployment.jobs[&import].outputs[0]
    };
    for (resets, keeps) in [(false, true), (true, false)] {
        plane.deploy(&reset(resets, 0)).await;
        let before = output().await;
        plane.deploy(&reset(resets, 1)).await;
        let after = output().await;
        assert_eq!((before.dataset == after.dataset, before.version == after.version), (true, keeps), "{resets}");
    }
    plane.stop().await;
}

/// Two control planes look at the same time, whoever has the duty.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_control_planes_fire_a_slot_once() {
    let home = Home::postgres().await;
    let clock = frozen("2030-01-01T00:59:59Z");
    let planes = [plane_at(&home, &clock).await, plane_at(&home, &clock).await];
    let jobs: Vec<String> = (0..5).map(|n| cron(&format!("c{n}"), "* * * * *", "catch_up: all")).collect();
    planes[0].deploy(&dag("ticks", &jobs)).await;
    planes[1].dags.fire_due().await.unwrap();
    for _ in 0..5 {
        clock.advance(MINUTE);
        let looks = (0..8).map(|n| planes[n % 2].dags.fire_due());
        for look in futures_util::future::join_all(looks).await {
            look.unwrap();
        }
    }
    for n in 0..5 {
        let slots = planes[0].slots(&format!("c{n}")).await;
        let distinct: BTreeSet<_> = slots.iter().collect();
        assert_eq!((slots.len(), distinct.len()), (5, 5), "{slots:?}");
    }
    for plane in planes {
        plane.stop().await;
    }
}
