use tenure_core::batch::Counts;

use super::*;

crate::on_both_stores!(tasks_are_counted_by_job);

/// Jobs are older than their tasks.
const OLD: [JobId; 2] = [JobId(0), JobId(-1)];

/// Two jobs whose queues anybody claims from.
async fn deploy_old(t: &Fixture) {
    let jobs = OLD.map(|id| NewJob { settings: QueueSettings::default(), ..new_job(id, false) });
    let writes = DeploymentWrites { jobs: jobs.to_vec(), ..first() };
    assert_eq!(t.store.apply_deployment(ORG, 0, &writes).await.unwrap(), Ok(1));
}

fn queue(job: JobId) -> String {
    new_job(job, false).queue.to_string()
}

async fn put(client: &Client, job: JobId, priority: u8) -> TaskId {
    let mut task = client.task(&queue(job)).await;
    task.priority = priority;
    client.put(task).await
}

async fn tasks_are_counted_by_job(t: &Fixture) {
    deploy_old(t).await;
    assert_eq!(t.store.job_counts(&[]).await.unwrap(), []);
    let none = Counts::default();
    assert_eq!(t.store.job_counts(&[OLD[0], JobId(7), OLD[1]]).await.unwrap(), [none; 3]);
    for _ in 0..3 {
        put(t, OLD[0], 5).await;
    }
    put(t, OLD[1], 5).await;
    let counts = t.store.job_counts(&[OLD[1], JobId(7), OLD[0]]).await.unwrap();
    let ready = |ready| Counts { ready, ..Counts::default() };
    assert_eq!(counts, [ready(1), none, ready(3)], "in the order of the question");
}
