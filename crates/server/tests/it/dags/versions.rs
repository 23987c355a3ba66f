//! Versions: rebuilt beside the active one, cut over, rolled back.

use super::*;
use crate::cases;

cases!(
    Server,
    on_sqlite: [a_version_that_was_never_active_can_be_abandoned, a_version_without_its_text_is_not_found],
    on_both_stores: [
        a_new_version_is_rebuilt_and_takes_over,
        a_manual_cutover_waits_for_somebody,
        a_rebuild_that_fails_keeps_the_version_waiting,
        a_rollback_cancels_what_the_version_was_doing,
        of_many_switches_at_once_each_is_whole,
    ],
);

/// The current version of `decoded`.
async fn current(server: &Server) -> Value {
    server.get(&format!("{DATASETS}/decoded")).await.ok()["current_version"].clone()
}

async fn a_new_version_is_rebuilt_and_takes_over(server: Server) {
    deploy(&server, &chain(0)).await;
    run_all(&server, "1-5", 1).await;
    run_all(&server, "6-9", 2).await;
    let before = current(&server).await;
    let second = deploy(&server, &chain(1)).await;
    assert_eq!((&second["version"], &second["state"]), (&json!(2), &json!("Staging")));
    let refused = cutover(&server, 2).await.refused(409);
    assert_eq!(refused["error"], "version_not_ready");
    assert!(refused["message"].as_str().unwrap().starts_with("the version is Staging: wait"), "{refused}");
    // Two partitions of `decode` are computed again; `count` follows.
    wait_until("the rebuild", SOON, async || versions(&server, "chain").await[0]["rebuild"]["total"] == 2).await;
    let staged = server.get(&format!("{DAGS}/chain?version=2")).await.ok();
    let decode = staged["jobs"].as_array().unwrap().iter().find(|job| job["name"] == "decode").unwrap().clone();
    assert_eq!((&staged["state"], &decode["tasks"]["queued"]), (&json!("Staging"), &json!(2)));
    assert_eq!(counts(&server, "decode").await, (0, 0, 0), "the active version is shown");
    // What comes meanwhile is done by the active version, and is held for the new one.
    let import = fire(&server, "10-12").await;
    run(&server, &import, "10-12").await;
    for job in ["decode", "count"] {
        run_active(&server, job, "10-12").await;
    }
    let rebuild = &versions(&server, "chain").await[0]["rebuild"];
    assert_eq!((&rebuild["total"], &rebuild["done"]), (&json!(2), &json!(0)), "held tasks are not part of the rebuild");
    assert_eq!(current(&server).await, before);
    let list = server.get(DAGS).await.ok()["items"][0].clone();
    assert_eq!((&list["active_version"], &list["latest_version"]), (&json!(1), &json!(2)));
    assert_eq!(list["state"], "Staging");
    finish(&server, "2").await;
    until_state(&server, 2, "Active").await;
    let all = versions(&server, "chain").await;
    assert_eq!((&all[0]["previous_version"], &all[1]["state"]), (&json!(1), &json!("Superseded")));
    assert_eq!(all[0]["rebuild"], json!({"total": 4, "done": 4, "failed": 0}));
    assert_ne!(current(&server).await, before);
    let dag = shown(&server, "chain").await;
    assert_eq!((&dag["active_version"], dag["yaml"].as_str()), (&json!(2), Some(&*chain(1))));
}

async fn a_version_without_its_text_is_not_found(server: Server) {
    deploy(&server, &chain(0)).await;
    deploy(&server, &chain(1)).await;
    server.home.execute("DELETE FROM dag_versions WHERE number = 1").await;
    let refused = server.get(&format!("{DAGS}/chain?version=1")).await.refused(404);
    assert_eq!(refused["error"], "version_not_found");
    assert!(refused["message"].as_str().unwrap().contains("version 1 of DAG chain is not kept any more"), "{refused}");
    server.get(&format!("{DAGS}/chain?version=2")).await.ok();
}

/// Runs the task that waits in the queue of a job of the active version.
async fn run_active(server: &Server, job: &str, key: &str) {
    let dag = shown(server, "chain").await;
    let found = dag["jobs"].as_array().unwrap().iter().find(|it| it["name"] == job).unwrap().clone();
    let path = format!("/api/v1/tasks?state=ready&queue={}", found["queue"].as_str().unwrap());
    let task = wait_until(job, SOON, async || {
        let task = server.get(&path).await.ok()["items"][0]["task_id"].clone();
        Some(task).filter(|task| task.is_string())
    })
    .await;
    run(server, task.as_str().unwrap(), key).await;
}

/// Runs the rebuild tasks of a version until it leaves `Staging`. Held tasks are not granted.
async fn finish(server: &Server, version: &str) {
    let version: i64 = version.parse().unwrap();
    wait_until("the rebuild", SOON, async || {
        for operator in ["decode", "count"] {
            for task in tasks(server, operator).await {
                let is_rebuild = task["tags"]["tenure.rebuild"].is_string();
                if task["state"] == "Ready" && is_rebuild {
                    let payload = &task["payload"]["inputs"][0]["position"]["partition"]["key"];
                    let key = payload.as_str().unwrap_or_else(|| panic!("{task}")).to_owned();
                    run(server, task["task_id"].as_str().unwrap(), &key).await;
                }
            }
        }
        state(server, version).await != "Staging"
    })
    .await;
}

async fn a_manual_cutover_waits_for_somebody(server: Server) {
    let first = post_yaml(&server, "?cutover=manual", &[], &chain(0)).await;
    assert_eq!((first.status.as_u16(), &first.body["state"]), (201, &json!("Ready")));
    let dag = shown(&server, "chain").await;
    assert_eq!(
        (&dag["active_version"], &dag["version"], dag["jobs"].as_array().unwrap().len()),
        (&Value::Null, &json!(1), 3)
    );
    let early = server.post(&format!("{DAGS}/chain/jobs/import/trigger"), json!({})).await.refused(409);
    assert_eq!(early["error"], "version_not_ready", "nothing is active yet");
    assert_eq!(rollback(&server).await.refused(409)["error"], "no_previous_version");
    let switched = cutover(&server, 1).await.ok();
    assert_eq!((&switched["active_version"], &switched["previous_version"]), (&json!(1), &Value::Null));
    assert_eq!((switched["datasets"].as_array().unwrap().len(), &switched["canceled_tasks"]), (2, &json!(0)));
    assert!(switched["datasets"][0]["dataset_uuid"].is_string() && switched["datasets"][0]["to"].is_string());
    assert_eq!(switched["datasets"][0]["from"], Value::Null);
    // Again, nothing changes.
    let again = cutover(&server, 1).await.ok();
    assert_eq!((&again["active_version"], &again["datasets"]), (&json!(1), &json!([])));
    run_all(&server, "1-5", 1).await;
    post_yaml(&server, "?cutover=manual", &[], &chain(1)).await.ok();
    finish(&server, "2").await;
    assert_eq!(state(&server, 2).await, "Ready");
    let before = current(&server).await;
    let switched = cutover(&server, 2).await.ok();
    assert_eq!((&switched["active_version"], &switched["previous_version"]), (&json!(2), &json!(1)));
    let decoded = switched["datasets"].as_array().unwrap().iter().find(|it| it["from"] == before).unwrap().clone();
    assert_eq!(decoded["to"], current(&server).await);
    let back = rollback(&server).await.ok();
    assert_eq!((&back["active_version"], current(&server).await), (&json!(1), before));
    assert_eq!((state(&server, 1).await, state(&server, 2).await), ("Active".to_owned(), "RolledBack".to_owned()));
    assert_eq!(rollback(&server).await.refused(409)["error"], "no_previous_version");
    // What was rolled back can be active again as it is.
    assert_eq!(cutover(&server, 2).await.ok()["active_version"], 2);
}

async fn a_rebuild_that_fails_keeps_the_version_waiting(server: Server) {
    deploy(&server, &chain(0)).await;
    run_all(&server, "1-5", 1).await;
    deploy(&server, &chain(1)).await;
    let task = nth(&server, "decode", 2).await;
    fail(&server, &claim(&server, &task).await).await;
    let failed = json!({"total": 1, "done": 0, "failed": 1});
    assert_eq!(versions(&server, "chain").await[0]["rebuild"], failed);
    assert_eq!(cutover(&server, 2).await.refused(409)["error"], "version_not_ready");
    server.post(&format!("/api/v1/tasks/{task}/retry"), json!({})).await.ok();
    run(&server, &task, "1-5").await;
    finish(&server, "2").await;
    until_state(&server, 2, "Active").await;
    assert_eq!(versions(&server, "chain").await[0]["rebuild"], json!({"total": 2, "done": 2, "failed": 0}));
}

async fn a_rollback_cancels_what_the_version_was_doing(server: Server) {
    deploy(&server, &chain(0)).await;
    deploy(&server, &chain(1)).await;
    until_state(&server, 2, "Active").await;
    let import = fire(&server, "r-1").await;
    run(&server, &import, "1-5").await;
    let decode = nth(&server, "decode", 1).await;
    claim(&server, &decode).await;
    let back = rollback(&server).await.ok();
    assert_eq!((&back["active_version"], &back["canceled_tasks"]), (&json!(1), &json!(1)));
    let task = server.task(&decode).await;
    assert!(task["state"] == "Canceled" || task["cancel_requested"] == true, "{task}");
}

async fn of_many_switches_at_once_each_is_whole(server: Server) {
    deploy(&server, &chain(0)).await;
    deploy(&server, &chain(1)).await;
    until_state(&server, 2, "Active").await;
    let of = async |version: i64| {
        let dag = server.get(&format!("{DAGS}/chain?version={version}")).await.ok();
        dag["jobs"][1]["outputs"][0]["dataset_version"].clone()
    };
    let decoded = [of(1).await, of(2).await];
    let (server, decoded) = (&server, &decoded);
    let switches = (0..24_i64).map(|n| async move { cutover(server, n % 2 + 1).await.ok() });
    let looks = (0..24).map(|_| async move {
        let list = server.get(DATASETS).await.ok();
        let shown = list["items"].as_array().unwrap().iter().find(|it| it["name"] == "decoded").unwrap().clone();
        assert!(decoded.contains(&shown["current_version"]), "{shown}");
    });
    let (switched, _) =
        futures_util::future::join(futures_util::future::join_all(switches), futures_util::future::join_all(looks))
            .await;
    for answer in switched {
        for dataset in answer["datasets"].as_array().unwrap() {
            assert!(decoded.contains(&dataset["from"]) && decoded.contains(&dataset["to"]), "{answer}");
            assert_ne!(dataset["from"], dataset["to"]);
        }
    }
    let active = shown(server, "chain").await["active_version"].as_i64().unwrap();
    assert_eq!(current(server).await, decoded[usize::try_from(active - 1).unwrap()]);
    let states: Vec<String> =
        versions(server, "chain").await.iter().map(|it| it["state"].as_str().unwrap().to_owned()).collect();
    assert_eq!(states.iter().filter(|state| *state == "Active").count(), 1, "{states:?}");
}

async fn a_version_that_was_never_active_can_be_abandoned(server: Server) {
    deploy(&server, &chain(0)).await;
    run_all(&server, "1-5", 1).await;
    deploy(&server, &chain(1)).await;
    nth(&server, "decode", 2).await;
    deploy(&server, &chain(2)).await;
    assert_eq!(state(&server, 2).await, "Abandoned");
    let refused = cutover(&server, 2).await.refused(409);
    assert_eq!(refused["message"], "the version is Abandoned: deploy its YAML again");
    // Its text is staged again under its number.
    let again = post_yaml(&server, "", &[], &chain(1)).await;
    assert_eq!((again.status.as_u16(), &again.body["version"]), (200, &json!(2)));
    assert_eq!((state(&server, 2).await, state(&server, 3).await), ("Staging".to_owned(), "Abandoned".to_owned()));
    let list = server.get(DAGS).await.ok()["items"][0].clone();
    assert_eq!((&list["latest_version"], &list["state"]), (&json!(3), &json!("Staging")));
    let page = server.get(&format!("{DAGS}/chain/versions?limit=2")).await.ok();
    assert_eq!((page["items"].as_array().unwrap().len(), &page["next_cursor"]), (2, &json!("2")));
    let rest = server.get(&format!("{DAGS}/chain/versions?limit=2&cursor=2")).await.ok();
    assert_eq!((&rest["items"][0]["version"], &rest["next_cursor"]), (&json!(1), &Value::Null));
}
