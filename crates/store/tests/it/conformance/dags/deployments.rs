use tenure_core::dag::data::Read;
use tenure_core::queue::Transport;
use tenure_store::dags::{DeploymentRow, Moved};
use tokio::task::JoinSet;

use super::*;
use crate::conformance::sandboxes::stores;

crate::on_both_stores!(
    nothing_is_deployed_at_first,
    a_deployment_is_written_whole,
    a_change_of_what_has_moved_is_refused_whole,
    of_sixteen_changes_one_is_made,
    held_queues_grant_nothing_until_they_are_let_go,
    a_version_is_seen_by_its_organisation_alone,
    what_the_deployment_does_not_name_is_removed_in_steps,
);

async fn nothing_is_deployed_at_first(t: &Fixture) {
    let none = DeploymentRow { org: ORG.into(), seq: 0, document: "".into() };
    assert_eq!(t.store.deployment(ORG).await.unwrap(), none);
    assert_eq!(t.store.deployments().await.unwrap(), []);
    assert_eq!(t.store.jobs(&[JOB]).await.unwrap(), []);
    assert_eq!(t.store.generations(&[version(1)]).await.unwrap(), []);
}

async fn a_deployment_is_written_whole(t: &Fixture) {
    t.store.set_default_transport(Transport::Redis);
    deploy(t).await;
    let found = t.store.deployment(ORG).await.unwrap();
    assert_eq!((found.seq, &*found.document), (1, r#"{"n":1}"#));
    assert_eq!(t.store.deployments().await.unwrap(), [(ORG.into(), 1)]);
    let written = t.store.dag_version(ORG, DagVersionId::from_u128(1)).await.unwrap().unwrap();
    assert_eq!((&*written.dag, written.number, &*written.yaml), ("chain", 1, "name: chain"));
    assert_eq!(written.created_at, crate::common::START);

    let mut jobs = t.store.jobs(&[JOB, JobId(5), OTHER_JOB]).await.unwrap();
    jobs.sort_by_key(|job| job.id);
    assert_eq!(jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [JOB, OTHER_JOB]);
    assert_eq!((&*jobs[0].org, &*jobs[0].dag, &*jobs[0].name), (ORG, "chain", "job1000001"));
    assert_eq!(&*jobs[0].definition, r#"{"operator":"o"}"#);
    for (job, held) in [(JOB, false), (OTHER_JOB, true)] {
        let queue = t.queue(&new_job(job, held).queue).await;
        assert_eq!(queue.queue.settings, new_job(job, held).settings);
        assert_eq!((queue.queue.tenant.as_deref(), queue.queue.transport), (Some(ORG), Transport::Redis));
    }
    let row = generation(t, 2).await;
    assert_eq!((row.dataset, row.generation, row.cursor), (dataset(2), 0, None));
}

async fn a_change_of_what_has_moved_is_refused_whole(t: &Fixture) {
    deploy(t).await;
    let late = DeploymentWrites {
        document: "late".into(),
        jobs: vec![new_job(JobId(9), false)],
        held: vec![(JOB, true)],
        generations: vec![NewGeneration { version: version(9), dataset: dataset(9) }],
        versions: vec![NewDagVersion { id: DagVersionId::from_u128(9), ..first().versions.remove(0) }],
        ..DeploymentWrites::default()
    };
    for seen in [0, 2] {
        assert_eq!(t.store.apply_deployment(ORG, seen, &late).await.unwrap(), Err(Moved), "seen {seen}");
    }
    assert_eq!(&*t.store.deployment(ORG).await.unwrap().document, r#"{"n":1}"#);
    assert_eq!(t.store.jobs(&[JobId(9)]).await.unwrap(), []);
    assert_eq!(t.store.generations(&[version(9)]).await.unwrap(), []);
    assert_eq!(t.store.dag_version(ORG, DagVersionId::from_u128(9)).await.unwrap(), None);
    assert_eq!(t.queue(&new_job(JOB, false).queue).await.queue.settings, new_job(JOB, false).settings);
    assert_eq!(t.store.apply_deployment(ORG, 1, &late).await.unwrap(), Ok(2));
    // Another organisation has a counter of its own.
    let other = DeploymentWrites { document: "other".into(), ..DeploymentWrites::default() };
    assert_eq!(t.store.apply_deployment("other", 0, &other).await.unwrap(), Ok(1));
}

async fn of_sixteen_changes_one_is_made(t: &Fixture) {
    for seen in 0..3 {
        let mut changes = JoinSet::new();
        for (n, store) in (0..).zip(stores(t, 16).await) {
            let id = JobId(100 * (seen + 1) + n);
            changes.spawn(async move {
                let jobs = vec![new_job(id, false)];
                let writes = DeploymentWrites { document: id.0.to_string().into(), jobs, ..Default::default() };
                store.apply_deployment(ORG, seen, &writes).await.map(|applied| applied.map(|seq| (seq, id)))
            });
        }
        let answers: Vec<_> = changes.join_all().await.into_iter().map(Result::unwrap).collect();
        let won: Vec<_> = answers.iter().filter_map(|answer| answer.ok()).collect();
        assert_eq!((won.len(), won[0].0), (1, seen + 1), "{answers:?}");
        assert_eq!(*t.store.deployment(ORG).await.unwrap().document, won[0].1.0.to_string());
        let jobs = t.raw.number("SELECT count(*) FROM dag_jobs").await;
        assert_eq!(jobs, seen + 1, "the losers wrote nothing");
        assert_eq!(t.raw.number("SELECT count(*) FROM queues").await, seen + 1);
    }
}

async fn held_queues_grant_nothing_until_they_are_let_go(t: &Fixture) {
    deploy(t).await;
    let queue = new_job(OTHER_JOB, true).queue;
    let task = t.put_in(&queue).await;
    let claim = async || {
        let mut claimer = make::claimer("w");
        claimer.worker.as_mut().unwrap().dispatch = true;
        let claim = tenure_core::command::claim::ClaimTask { claimer, task, message: None };
        match t.run(Command::ClaimTask(claim)).await {
            Ok(Answer::Claimed(claimed)) => claimed.grants.len(),
            Ok(Answer::NotGranted(_)) => 0,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(claim().await, 0, "held");
    let release = DeploymentWrites { held: vec![(OTHER_JOB, false), (JOB, true)], ..first_again() };
    assert_eq!(t.store.apply_deployment("other", 0, &release).await.unwrap(), Ok(1));
    assert_eq!(claim().await, 0, "the job of another organisation");
    assert_eq!(t.store.apply_deployment(ORG, 1, &release).await.unwrap(), Ok(2));
    let held = t.queue(&new_job(JOB, true).queue).await.queue.settings;
    assert_eq!(held, new_job(JOB, true).settings);
    assert_eq!(claim().await, 1);
}

fn first_again() -> DeploymentWrites {
    DeploymentWrites { document: "again".into(), ..DeploymentWrites::default() }
}

async fn a_version_is_seen_by_its_organisation_alone(t: &Fixture) {
    deploy(t).await;
    assert!(t.store.dag_version(ORG, DagVersionId::from_u128(1)).await.unwrap().is_some());
    assert_eq!(t.store.dag_version("other", DagVersionId::from_u128(1)).await.unwrap(), None);
}

async fn what_the_deployment_does_not_name_is_removed_in_steps(t: &Fixture) {
    deploy(t).await;
    let keys: Vec<String> = (0..1_500).map(|n| format!("p{n}")).collect();
    for chunk in keys.chunks(500) {
        complete(
            t,
            &report(|report| {
                let named = |(n, key): (usize, &String)| OutputCommit {
                    artifact: Some(version(chunk[0][1..].parse::<u128>().unwrap() + n as u128)),
                    ..output(version(1), partition(key), "s3://b/p/")
                };
                report.outputs = chunk.iter().enumerate().map(named).collect();
                report.events = chunk.iter().map(|key| event(version(1), partition(key))).collect();
                report.reads = chunk
                    .iter()
                    .map(|key| Read::Partition { version: version(2), key: (**key).into(), generation: 0 })
                    .chain([Read::UpTo { version: version(2), cursor: 7 }])
                    .collect();
                report.operator_state = Some("{}".into());
            }),
        )
        .await;
    }
    t.store.invalidate(ORG, &invalidation(1, version(1), of_partition("p1"))).await.unwrap();
    let keep = (&[OTHER_JOB][..], &[version(2), version(3)][..]);
    assert_eq!(t.store.retire(ORG, 7, keep.0, keep.1).await.unwrap(), Err(Moved));
    assert_eq!(t.store.retire("other", 0, &[], &[]).await.unwrap(), Ok(0), "nothing of another organisation");
    let left = t.store.retire(ORG, 1, keep.0, keep.1).await.unwrap();
    assert_eq!(left, Ok(2), "a job and a generation have more rows than one step removes");
    assert_eq!(t.raw.number("SELECT count(*) FROM dataset_events").await, 500);
    assert_eq!(t.store.retire(ORG, 1, keep.0, keep.1).await.unwrap(), Ok(0));
    for table in [
        "dataset_events",
        "dataset_partitions",
        "dataset_artifacts",
        "data_invalidations",
        "edge_partitions",
        "edge_cursors",
    ] {
        assert_eq!(t.raw.number(&format!("SELECT count(*) FROM {table}")).await, 0, "{table}");
    }
    assert_eq!(t.raw.number("SELECT count(*) FROM operator_state").await, 0);
    assert_eq!(t.store.jobs(&[JOB, OTHER_JOB]).await.unwrap().len(), 1);
    assert_eq!(t.store.generations(&[version(1), version(2), version(3)]).await.unwrap().len(), 2);
}
