//! What sources need: the next slots of cron, and who owns a webhook path.

use tenure_store::dags::{CronSlot, Moved, WebhookRow};

use super::*;

crate::on_both_stores!(
    slots_never_move_back,
    slots_belong_to_a_deployment_and_an_organisation,
    a_webhook_path_has_one_owner,
    a_signed_delivery_keeps_its_first_name,
    jobs_with_tasks_are_busy,
);

fn slot(dag: &str, job: &str, schedule: &str, next_ms: i64) -> CronSlot {
    CronSlot { dag: dag.into(), job: job.into(), schedule: schedule.into(), next_ms }
}

async fn slots_never_move_back(t: &Fixture) {
    deploy(t).await;
    assert_eq!(t.store.cron_slots(ORG).await.unwrap(), []);
    let save = async |slots: &[CronSlot]| t.store.save_cron_slots(ORG, 1, slots, &[]).await.unwrap().unwrap();
    let first = [slot("b", "hourly", "0 * * * *", 100), slot("a", "last", "0 0 1 1 *", i64::MAX)];
    save(&first).await;
    assert_eq!(t.store.cron_slots(ORG).await.unwrap(), [first[1].clone(), first[0].clone()], "by DAG and job");
    save(&[slot("b", "hourly", "0 * * * *", 200)]).await;
    save(&[slot("b", "hourly", "0 * * * *", 150)]).await;
    assert_eq!(t.store.cron_slots(ORG).await.unwrap()[1].next_ms, 200, "another control plane was further");
    save(&[slot("b", "hourly", "30 * * * *", 150)]).await;
    assert_eq!(t.store.cron_slots(ORG).await.unwrap()[1], slot("b", "hourly", "30 * * * *", 150), "another schedule");
}

async fn slots_belong_to_a_deployment_and_an_organisation(t: &Fixture) {
    deploy(t).await;
    let one = slot("a", "hourly", "0 * * * *", 100);
    for seen in [0, 2] {
        let saved = t.store.save_cron_slots(ORG, seen, std::slice::from_ref(&one), &[]).await.unwrap();
        assert_eq!(saved, Err(Moved), "{seen}");
    }
    assert_eq!(t.store.cron_slots(ORG).await.unwrap(), []);
    t.store.save_cron_slots(ORG, 1, &[one.clone(), slot("a", "daily", "0 0 * * *", 7)], &[]).await.unwrap().unwrap();
    assert_eq!(t.store.cron_slots("other").await.unwrap(), []);
    t.store
        .apply_deployment("other", 0, &DeploymentWrites { document: "{}".into(), ..Default::default() })
        .await
        .unwrap()
        .unwrap();
    // Another organisation removes its own, whatever they are called.
    let gone = [("a".into(), "daily".into())];
    t.store.save_cron_slots("other", 1, &[], &gone).await.unwrap().unwrap();
    assert_eq!(t.store.cron_slots(ORG).await.unwrap().len(), 2);
    t.store.save_cron_slots(ORG, 1, &[], &gone).await.unwrap().unwrap();
    assert_eq!(t.store.cron_slots(ORG).await.unwrap(), [one]);
}

async fn a_signed_delivery_keeps_its_first_name(t: &Fixture) {
    const KEPT_MS: i64 = 60_000;
    let named = async |digest: u8, name: &str| t.store.name_delivery([digest; 32], name, KEPT_MS).await.unwrap();
    assert_eq!(&*named(1, "first").await, "first");
    assert_eq!(&*named(1, "second").await, "first");
    assert_eq!(&*named(2, "second").await, "second", "other content");
    let sends = (0..16).map(|n| t.store.name_delivery([3; 32], if n % 2 == 0 { "even" } else { "odd" }, KEPT_MS));
    let names: Vec<_> = futures_util::future::join_all(sends).await.into_iter().map(Result::unwrap).collect();
    assert!(names.iter().all(|name| *name == names[0]), "{names:?}");
    // It is forgotten after its time, when others come.
    t.clock.advance(KEPT_MS + 1);
    named(4, "later").await;
    assert_eq!(&*named(1, "second").await, "second");
}

async fn a_webhook_path_has_one_owner(t: &Fixture) {
    let with = |paths: &[&str]| DeploymentWrites {
        document: "{}".into(),
        webhooks: Some(paths.iter().map(|path| ((*path).into(), "chain".into())).collect()),
        ..DeploymentWrites::default()
    };
    let owners = async |paths: &[&str]| {
        let paths: Vec<Arc<str>> = paths.iter().map(|path| (*path).into()).collect();
        let mut found = t.store.webhooks(&paths).await.unwrap();
        found.sort_by(|a, b| a.path.cmp(&b.path));
        found.into_iter().map(|WebhookRow { path, org, dag }| format!("{path} {org} {dag}")).collect::<Vec<_>>()
    };
    assert_eq!(t.store.apply_deployment(ORG, 0, &with(&["a", "b/c"])).await.unwrap(), Ok(1));
    assert_eq!(owners(&["a", "b/c", "b", ""]).await, ["a acme chain", "b/c acme chain"]);
    // Another organisation cannot take it, and nothing of its change is written.
    assert_eq!(t.store.apply_deployment("other", 0, &with(&["d", "a"])).await.unwrap(), Err(Moved));
    assert_eq!(t.store.deployment("other").await.unwrap().seq, 0);
    assert_eq!(owners(&["a", "d"]).await, ["a acme chain"]);
    // A change that does not speak of webhooks leaves them; one that does replaces them all.
    let silent = DeploymentWrites { document: "{}".into(), ..DeploymentWrites::default() };
    assert_eq!(t.store.apply_deployment(ORG, 1, &silent).await.unwrap(), Ok(2));
    assert_eq!(owners(&["a", "b/c"]).await.len(), 2);
    assert_eq!(t.store.apply_deployment(ORG, 2, &with(&["b/c"])).await.unwrap(), Ok(3));
    assert_eq!(owners(&["a", "b/c"]).await, ["b/c acme chain"]);
    assert_eq!(t.store.apply_deployment("other", 0, &with(&["a"])).await.unwrap(), Ok(1));
    assert_eq!(owners(&["a", "b/c"]).await, ["a other chain", "b/c acme chain"]);
}

async fn jobs_with_tasks_are_busy(t: &Fixture) {
    let jobs = [JOB, OTHER_JOB].map(|id| NewJob { settings: QueueSettings::default(), ..new_job(id, false) });
    let writes = DeploymentWrites { jobs: jobs.to_vec(), ..first() };
    t.store.apply_deployment(ORG, 0, &writes).await.unwrap().unwrap();
    let busy = async || t.store.busy_jobs(&[OTHER_JOB, JobId(7), JOB]).await.unwrap();
    assert_eq!(busy().await, []);
    assert_eq!(t.store.busy_jobs(&[]).await.unwrap(), []);
    t.put_in(&jobs[0].queue).await;
    assert_eq!(busy().await, [JOB], "one waits");
    let grant = t.claim_one(&jobs[0].queue).await;
    assert_eq!(busy().await, [JOB], "one runs");
    t.run(make::complete(&grant, "1")).await.unwrap();
    assert_eq!(busy().await, [], "ended ones do not count");
}
