//! Changes of what is deployed.

use std::sync::Arc;

use tenure_core::queue::{Queue, QueueId};
use uuid::Uuid;

use super::super::columns::Columns;
use super::super::deal::{Ask, Deal, Params, Write};
use super::super::rows::Time;
use super::super::{Postgres, sql};
use super::{Checked, Result, params, uuid};
use crate::codec;
use crate::dags::{DATA_PAGE, DeploymentWrites, Moved, NewJob};

/// Of two that change the same deployment one waits for the other, and then finds that it has moved.
pub async fn apply(store: &Postgres, org: &str, seen: i64, writes: &DeploymentWrites) -> Result<Checked<i64>> {
    let now = Time(store.written_at().await?);
    let document = &*writes.document;
    let change = match seen {
        0 => Ask(sql::DEPLOYMENT_INSERT, vec![&org, &document, &now]),
        _ => Ask(sql::DEPLOYMENT_UPDATE, vec![&org, &seen, &document, &now]),
    };
    let (deal, mut answers) = Deal::begin(store, &store.work, "change a deployment", vec![change]).await?;
    let Some(seq) = answers.one(|row| row.try_get(0))? else {
        deal.end().await?;
        return Ok(Err(Moved));
    };
    if let Some(webhooks) = &writes.webhooks {
        let (paths, dags): (Vec<&str>, Vec<&str>) = webhooks.iter().map(|(path, dag)| (&**path, &**dag)).unzip();
        let asks = vec![
            Ask(sql::WEBHOOK_PATHS_DELETE, vec![&org, &paths]),
            Ask(sql::WEBHOOK_PATHS_PUT, vec![&org, &paths, &dags]),
        ];
        let mut answers = deal.ask(asks).await?;
        answers.skip();
        if answers.all(|_| Ok(()))?.len() < paths.len() {
            deal.end().await?;
            return Ok(Err(Moved));
        }
    }
    let steps = steps(store, org, writes, now);
    let sent = steps.iter().map(|(name, sql, columns)| Write(name, sql, params(columns))).collect();
    deal.commit(sent).await?;
    store.forget_settings();
    Ok(Ok(seq))
}

fn steps<'a>(
    store: &Postgres,
    org: &'a str,
    writes: &'a DeploymentWrites,
    now: Time,
) -> Vec<(&'static str, &'static str, Columns<'a>)> {
    let mut steps: Vec<(&'static str, &'static str, Columns<'a>)> = Vec::new();
    if !writes.versions.is_empty() {
        let rows = &writes.versions;
        let columns: Columns<'a> = vec![
            Box::new(org),
            Box::new(rows.iter().map(|row| uuid(row.id.as_u128())).collect::<Vec<_>>()),
            Box::new(rows.iter().map(|row| &*row.dag).collect::<Vec<_>>()),
            Box::new(rows.iter().map(|row| row.number).collect::<Vec<_>>()),
            Box::new(rows.iter().map(|row| &*row.yaml).collect::<Vec<_>>()),
            Box::new(now),
        ];
        steps.push(("write DAG versions", sql::DAG_VERSIONS_INSERT, columns));
    }
    if !writes.jobs.is_empty() {
        steps.push(("make queues of jobs", sql::QUEUES_MAKE_FOR_JOBS, queues(store, org, &writes.jobs)));
        let rows = &writes.jobs;
        let columns: Columns<'a> = vec![
            Box::new(org),
            Box::new(rows.iter().map(|row| row.id.0).collect::<Vec<_>>()),
            Box::new(rows.iter().map(|row| &*row.dag).collect::<Vec<_>>()),
            Box::new(rows.iter().map(|row| &*row.name).collect::<Vec<_>>()),
            Box::new(rows.iter().map(|row| &*row.definition).collect::<Vec<_>>()),
            Box::new(rows.iter().map(|row| &*row.queue).collect::<Vec<_>>()),
        ];
        steps.push(("write jobs", sql::DAG_JOBS_INSERT, columns));
    }
    if !writes.generations.is_empty() {
        let rows = &writes.generations;
        let columns: Columns<'a> = vec![
            Box::new(org),
            Box::new(rows.iter().map(|row| uuid(row.version.as_u128())).collect::<Vec<_>>()),
            Box::new(rows.iter().map(|row| uuid(row.dataset.as_u128())).collect::<Vec<_>>()),
            Box::new(now),
        ];
        steps.push(("write generations", sql::GENERATIONS_INSERT, columns));
    }
    if !writes.forgotten.is_empty() {
        let ids = writes.forgotten.iter().map(|id| uuid(id.as_u128())).collect::<Vec<_>>();
        steps.push(("forget DAG versions", sql::DAG_VERSIONS_DELETE, vec![Box::new(org), Box::new(ids)]));
    }
    if let Some(bundle) = writes.removed_bundle {
        steps.push(("remove a bundle", sql::BUNDLES_DELETE, vec![Box::new(org), Box::new(bundle)]));
    }
    if !writes.held.is_empty() {
        let columns: Columns<'a> = vec![
            Box::new(org),
            Box::new(writes.held.iter().map(|(job, _)| job.0).collect::<Vec<_>>()),
            Box::new(writes.held.iter().map(|(_, held)| *held).collect::<Vec<_>>()),
        ];
        steps.push(("hold queues", sql::QUEUES_SET_HELD, columns));
    }
    steps
}

fn queues<'a>(store: &Postgres, org: &'a str, jobs: &'a [NewJob]) -> Columns<'a> {
    let queues: Vec<Queue> = jobs
        .iter()
        .map(|job| Queue { settings: job.settings.clone(), ..Queue::new(QueueId(0), Arc::clone(&job.queue)) })
        .collect();
    let settings: Vec<_> = queues.iter().map(|queue| &queue.settings).collect();
    vec![
        Box::new(org),
        Box::new(codec::transport(store.transport.get())),
        Box::new(jobs.iter().map(|job| &*job.queue).collect::<Vec<_>>()),
        Box::new(settings.iter().map(|s| s.max_running.map(u32::cast_signed)).collect::<Vec<_>>()),
        Box::new(settings.iter().map(|s| s.rate.map(|rate| rate.per_second)).collect::<Vec<_>>()),
        Box::new(settings.iter().map(|s| s.rate.map(|rate| rate.burst)).collect::<Vec<_>>()),
        Box::new(settings.iter().map(|s| s.fairness_key.as_ref().map(ToString::to_string)).collect::<Vec<_>>()),
        Box::new(settings.iter().map(|s| s.lease_ttl_ms).collect::<Vec<_>>()),
        Box::new(settings.iter().map(|s| s.heartbeat_ms).collect::<Vec<_>>()),
        Box::new(settings.iter().map(|s| s.no_dead_letter).collect::<Vec<_>>()),
        Box::new(queues.iter().map(codec::encode_push).collect::<Vec<_>>()),
        Box::new(settings.iter().map(|s| s.strict).collect::<Vec<_>>()),
        Box::new(queues.iter().map(codec::encode_dispatch).collect::<Vec<_>>()),
    ]
}

pub async fn retire(store: &Postgres, org: &str, seen: i64, jobs: &[i64], versions: &[Uuid]) -> Result<Checked<u64>> {
    let limit = DATA_PAGE as i64;
    let asks = vec![
        Ask(sql::DEPLOYMENT_SEQ, vec![&org]),
        Ask(sql::DAG_JOBS_UNNAMED, vec![&org, &jobs, &limit]),
        Ask(sql::GENERATIONS_UNNAMED, vec![&org, &versions, &limit]),
    ];
    let (deal, mut answers) = Deal::begin(store, &store.work, "retire jobs", asks).await?;
    if answers.one(|row| row.try_get::<_, i64>(0))?.unwrap_or(0) != seen {
        deal.end().await?;
        return Ok(Err(Moved));
    }
    let gone_jobs: Vec<i64> = answers.all(|row| row.try_get(0))?;
    let gone_versions: Vec<Uuid> = answers.all(|row| row.try_get(0))?;
    let (some_jobs, some_versions): (Params<'_>, Params<'_>) = (vec![&gone_jobs, &limit], vec![&gone_versions, &limit]);
    let of_jobs = |sql| Write("remove jobs", sql, some_jobs.clone());
    let of_versions = |sql| Write("remove generations", sql, some_versions.clone());
    let writes = vec![
        Write("hold generations", sql::GENERATIONS_LOCK, vec![&gone_versions]),
        of_jobs(sql::EDGE_CURSORS_DELETE),
        of_jobs(sql::EDGE_PARTITIONS_DELETE),
        of_jobs(sql::DEPENDENTS_DELETE),
        Write("remove jobs", sql::OPERATOR_STATE_DELETE, vec![&gone_jobs]),
        Write("remove jobs", sql::DAG_JOBS_DELETE, vec![&gone_jobs]),
        of_versions(sql::DEPENDENTS_DELETE_OF_VERSIONS),
        of_versions(sql::INVALIDATIONS_DELETE),
        of_versions(sql::DATA_EVENTS_DELETE),
        of_versions(sql::PARTITIONS_DELETE),
        of_versions(sql::ARTIFACTS_DELETE),
        Write("remove generations", sql::GENERATIONS_DELETE, vec![&gone_versions]),
        Write("count what is left", sql::DAG_JOBS_UNNAMED, vec![&org, &jobs, &limit]),
        Write("count what is left", sql::GENERATIONS_UNNAMED, vec![&org, &versions, &limit]),
    ];
    let removals = writes.len() - 2;
    let mut answers = deal.commit(writes).await?;
    (0..removals).for_each(|_| answers.skip());
    let left = answers.all(|_| Ok(()))?.len() + answers.all(|_| Ok(()))?.len();
    store.forget_settings();
    Ok(Ok(left as u64))
}
