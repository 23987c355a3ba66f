//! Schedules over HTTP: what they are refused for, what they fire, and what people do with them.

use reqwest::Method;
use serde_json::{Value, json};
use tenure_core::Timestamp;
use tenure_testkit::wait_until;

use crate::cases;
use crate::harness::{SOON, Server};
use crate::identity::people::{ADMIN, get, made, post, with_users};

cases!(
    Server,
    on_sqlite: [
        a_wrong_schedule_says_what_is_wrong_and_where,
        a_wrong_template_is_refused_when_it_is_written,
        a_schedule_is_changed_field_by_field,
        names_are_unique_in_a_tenant_and_near_ones_are_suggested,
        a_schedule_belongs_to_its_tenant,
        what_is_done_with_schedules_is_audited,
        a_day_without_a_wall_clock_hour_has_its_slot,
    ],
    on_both_stores: [
        each_slot_makes_one_task,
        a_schedule_of_runs_makes_runs,
        missed_slots_are_caught_up_after_a_restart,
        a_slot_is_skipped_while_the_last_task_runs,
        a_slot_waits_while_the_last_task_runs,
        the_last_task_is_canceled_for_a_new_slot,
        a_paused_schedule_fires_nothing_and_goes_on_with_the_next_slot,
        a_trigger_submits_at_once_and_once_per_request,
    ],
);

const SCHEDULES: &str = "/api/v1/schedules";

fn hourly(name: &str) -> Value {
    json!({"name": name, "cron": "0 * * * *", "task": {"queue": "q", "operator": "op", "payload": {"n": 1}}})
}

fn with(mut schedule: Value, extra: Value) -> Value {
    for (key, value) in extra.as_object().unwrap() {
        schedule[key] = value.clone();
    }
    schedule
}

/// The clock stands still at 00:30 of a day that will come.
async fn still(server: &Server) {
    server.clock.freeze(Timestamp::parse("2030-01-01T00:30:00Z").unwrap());
}

async fn create(server: &Server, schedule: Value) -> Value {
    let answer = server.post(SCHEDULES, schedule).await;
    assert_eq!(answer.status.as_u16(), 201, "{}", answer.body);
    answer.body
}

async fn shown(server: &Server, name: &str) -> Value {
    server.get(&format!("{SCHEDULES}/{name}")).await.ok()
}

/// What became of slots, newest first: the hour of each, and the last hour of several.
fn firings(schedule: &Value) -> Vec<(String, String)> {
    let hour = |value: &Value| value.as_str().map(|text| text[11..16].to_owned());
    let firings = schedule["firings"].as_array().unwrap().iter();
    firings
        .map(|firing| {
            let through = hour(&firing["through"]).map_or_else(String::new, |through| format!("..{through}"));
            (firing["outcome"].as_str().unwrap().to_owned(), hour(&firing["slot"]).unwrap() + &through)
        })
        .collect()
}

async fn until(server: &Server, name: &str, expected: &[(&str, &str)]) -> Value {
    let mut last = Value::Null;
    let found = wait_until_or(async || {
        last = shown(server, name).await;
        let found = firings(&last);
        found.iter().map(|(outcome, slots)| (outcome.as_str(), slots.as_str())).eq(expected.iter().copied())
    })
    .await;
    assert!(found, "{last:#}");
    last
}

/// Whether it came true in time; the caller can say more about it than that it did not.
async fn wait_until_or(mut condition: impl AsyncFnMut() -> bool) -> bool {
    let began = std::time::Instant::now();
    while began.elapsed() < SOON * 4 {
        if condition().await {
            return true;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    false
}

async fn tasks(server: &Server) -> Vec<Value> {
    server.get("/api/v1/tasks").await.ok()["items"].as_array().unwrap().clone()
}

async fn finish(server: &Server) {
    let job = wait_until("a job", SOON, async || Some(server.claim("w-1").await).filter(|job| !job.is_null())).await;
    server.complete("w-1", &job, json!({})).await.ok();
}

const HOUR: i64 = 3_600_000;

async fn each_slot_makes_one_task(server: Server) {
    still(&server).await;
    let made =
        create(&server, with(hourly("s"), json!({"task": {"queue": "q", "operator": "op", "tags": {"a": "b"}}}))).await;
    assert_eq!(made["next_at"], "2030-01-01T01:00:00Z");
    assert_eq!(made["next_slots"].as_array().unwrap().len(), 5);
    assert_eq!(
        (&made["catch_up"], &made["overlap"], &made["timezone"]),
        (&json!("latest"), &json!("skip"), &json!("UTC"))
    );
    assert_eq!(tasks(&server).await.len(), 0);
    server.advance(HOUR);
    let after = until(&server, "s", &[("fired", "01:00")]).await;
    assert_eq!(after["next_at"], "2030-01-01T02:00:00Z");
    let found = tasks(&server).await;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0]["task_id"], after["last_firing"]["task_id"]);
    let tags = json!({"a": "b", "schedule": "s", "scheduled_at": "2030-01-01T01:00:00Z"});
    assert_eq!(found[0]["tags"], tags);
    let key = format!("schedule:{}:2030-01-01T01:00:00Z", made["schedule_id"].as_str().unwrap());
    assert_eq!(found[0]["idempotency_key"], json!(key));
    finish(&server).await;
    server.advance(HOUR);
    until(&server, "s", &[("fired", "02:00"), ("fired", "01:00")]).await;
    let path = format!("{SCHEDULES}/{}", made["schedule_id"].as_str().unwrap());
    assert_eq!(server.delete(&path).await.ok()["deleted"], true);
    server.advance(HOUR);
    assert_eq!(server.get(&path).await.refused(404)["error"], "schedule_not_found");
    assert_eq!(tasks(&server).await.len(), 2, "what was submitted stays");
}

async fn a_schedule_of_runs_makes_runs(server: Server) {
    still(&server).await;
    let run = json!({"labels": {"team": "etl"}, "tasks": [
        {"key": "a", "queue": "q", "operator": "op"},
        {"key": "b", "queue": "q", "operator": "op", "dependsOn": ["a"]}]});
    let schedule = json!({"name": "s", "interval_seconds": 3600, "run": run});
    let made = create(&server, schedule).await;
    assert_eq!((&made["kind"], &made["run"]["labels"]), (&json!("run"), &json!({"team": "etl"})));
    server.advance(HOUR);
    let after = until(&server, "s", &[("fired", "01:00")]).await;
    let id = after["last_firing"]["run_id"].as_str().unwrap();
    let run = server.get(&format!("/api/v1/runs/{id}")).await.ok();
    assert_eq!((&run["state"], &run["labels"]["schedule"]), (&json!("Running"), &json!("s")));
    // It runs still.
    server.advance(HOUR);
    until(&server, "s", &[("skipped", "02:00"), ("fired", "01:00")]).await;
    finish(&server).await;
    finish(&server).await;
    server.advance(HOUR);
    until(&server, "s", &[("fired", "03:00"), ("skipped", "02:00"), ("fired", "01:00")]).await;
}

async fn missed_slots_are_caught_up_after_a_restart(server: Server) {
    still(&server).await;
    for mode in ["latest", "none", "all"] {
        create(&server, with(hourly(mode), json!({"catch_up": mode, "overlap": "queue"}))).await;
    }
    let server = server.outage(3 * HOUR).await;
    until(&server, "latest", &[("fired", "03:00"), ("missed", "01:00..02:00")]).await;
    until(&server, "none", &[("missed", "01:00..03:00")]).await;
    let all = until(&server, "all", &[("fired", "01:00")]).await;
    assert_eq!(all["waiting"], 2);
    finish(&server).await;
    finish(&server).await;
    server.advance(5_000);
    until(&server, "all", &[("fired", "02:00"), ("fired", "01:00")]).await;
    finish(&server).await;
    server.advance(5_000);
    until(&server, "all", &[("fired", "03:00"), ("fired", "02:00"), ("fired", "01:00")]).await;
    assert_eq!(tasks(&server).await.len(), 4);
    // A restart in time changes nothing.
    let server = server.restart().await;
    assert_eq!(shown(&server, "all").await["next_at"], "2030-01-01T04:00:00Z");
    assert_eq!(tasks(&server).await.len(), 4);
}

async fn a_slot_is_skipped_while_the_last_task_runs(server: Server) {
    still(&server).await;
    create(&server, hourly("s")).await;
    server.advance(HOUR);
    until(&server, "s", &[("fired", "01:00")]).await;
    server.advance(HOUR);
    let skipped = until(&server, "s", &[("skipped", "02:00"), ("fired", "01:00")]).await;
    assert_eq!(skipped["last_firing"]["reason"], "the work of the last firing had not ended");
    finish(&server).await;
    server.advance(HOUR);
    until(&server, "s", &[("fired", "03:00"), ("skipped", "02:00"), ("fired", "01:00")]).await;
    assert_eq!(tasks(&server).await.len(), 2);
}

async fn a_slot_waits_while_the_last_task_runs(server: Server) {
    still(&server).await;
    create(&server, with(hourly("s"), json!({"overlap": "queue"}))).await;
    server.advance(HOUR);
    until(&server, "s", &[("fired", "01:00")]).await;
    for waiting in 1..=2 {
        server.advance(HOUR);
        wait_until("the slot to wait", SOON, async || shown(&server, "s").await["waiting"] == waiting).await;
    }
    assert_eq!(tasks(&server).await.len(), 1);
    finish(&server).await;
    server.advance(5_000);
    until(&server, "s", &[("fired", "02:00"), ("fired", "01:00")]).await;
    assert_eq!(shown(&server, "s").await["waiting"], 1);
}

async fn the_last_task_is_canceled_for_a_new_slot(server: Server) {
    still(&server).await;
    create(&server, with(hourly("s"), json!({"overlap": "cancel_old"}))).await;
    server.advance(HOUR);
    let first = until(&server, "s", &[("fired", "01:00")]).await;
    let first = first["last_firing"]["task_id"].as_str().unwrap().to_owned();
    // Nobody has it: it ends at once.
    server.advance(HOUR);
    let second = until(&server, "s", &[("fired", "02:00"), ("fired", "01:00")]).await;
    let task = server.task(&first).await;
    assert_eq!((&task["state"], &task["cancel_reason"]), (&json!("Canceled"), &json!("schedule_overlap")));
    // A worker has this one: the new slot waits until it stops.
    let second = second["last_firing"]["task_id"].as_str().unwrap().to_owned();
    let job = server.claim("w-1").await;
    assert_eq!(job["job_id"], json!(second));
    for _ in 0..59 {
        server.advance(30_000);
        server.heartbeat("w-1", &job).await.ok();
    }
    // 03:00:10.
    server.advance(40_000);
    wait_until("the worker to be told", SOON, async || server.task(&second).await["cancel_requested"] == true).await;
    wait_until("the slot to wait", SOON, async || shown(&server, "s").await["waiting"] == 1).await;
    server.complete("w-1", &job, json!({})).await.ok();
    server.advance(5_000);
    until(&server, "s", &[("fired", "03:00"), ("fired", "02:00"), ("fired", "01:00")]).await;
}

async fn a_paused_schedule_fires_nothing_and_goes_on_with_the_next_slot(server: Server) {
    still(&server).await;
    create(&server, with(hourly("s"), json!({"catch_up": "all"}))).await;
    let paused = server.post(&format!("{SCHEDULES}/s/pause"), json!({})).await.ok();
    assert_eq!((&paused["paused"], &paused["next_at"]), (&json!(true), &Value::Null));
    assert_eq!(paused["next_slots"].as_array().unwrap().len(), 5);
    // Another schedule shows that slots are looked at.
    create(&server, with(hourly("other"), json!({"overlap": "queue"}))).await;
    for slots in [&[("fired", "01:00")][..], &[("fired", "02:00"), ("fired", "01:00")]] {
        server.advance(HOUR);
        server.advance(5_000);
        until(&server, "other", slots).await;
        finish(&server).await;
    }
    assert_eq!(tasks(&server).await.len(), 2);
    let resumed = server.post(&format!("{SCHEDULES}/s/resume"), json!({})).await.ok();
    assert_eq!((&resumed["paused"], &resumed["next_at"]), (&json!(false), &json!("2030-01-01T03:00:00Z")));
    server.advance(HOUR);
    until(&server, "s", &[("fired", "03:00")]).await;
    let born_paused = create(&server, with(hourly("later"), json!({"paused": true}))).await;
    assert_eq!((&born_paused["paused"], &born_paused["next_at"]), (&json!(true), &Value::Null));
}

async fn a_trigger_submits_at_once_and_once_per_request(server: Server) {
    still(&server).await;
    create(&server, with(hourly("s"), json!({"paused": true}))).await;
    let path = format!("{SCHEDULES}/s/trigger");
    let trigger = async |body: Value| {
        let answer = server.post(&path, body).await;
        assert_eq!(answer.status.as_u16(), 202, "{}", answer.body);
        answer.body["task_id"].as_str().unwrap().to_owned()
    };
    let first = trigger(json!({"request_id": "r-1"})).await;
    assert_eq!(trigger(json!({"request_id": "r-1"})).await, first);
    let second = trigger(json!({})).await;
    assert_ne!(second, first);
    assert_ne!(trigger(json!({})).await, second);
    assert_eq!(server.call(Method::POST, &path, &[], None).await.status.as_u16(), 202, "a body is not needed");
    assert_eq!(tasks(&server).await.len(), 4);
    let outcomes: Vec<String> = firings(&shown(&server, "s").await).into_iter().map(|(outcome, _)| outcome).collect();
    assert_eq!(outcomes, ["triggered"; 4]);
    assert_eq!(server.post(&path, json!({"requestid": "x"})).await.refused(422)["error"], "unknown_field");
    // The next slot is judged against what was triggered last.
    server.post(&format!("{SCHEDULES}/s/resume"), json!({})).await.ok();
    server.advance(HOUR);
    let skipped = async || firings(&shown(&server, "s").await)[0] == ("skipped".to_owned(), "01:00".to_owned());
    wait_until("the slot to be skipped", SOON, skipped).await;
}

async fn a_wrong_schedule_says_what_is_wrong_and_where(server: Server) {
    still(&server).await;
    for (change, error, field, part) in [
        (json!({"cron": "0 25 * * *"}), "invalid_argument", "cron", "hour at position 3: `25` is not valid here"),
        (json!({"cron": "0 0 30 2 *"}), "invalid_argument", "cron", "day of month at position 5"),
        (json!({"cron": "daily"}), "invalid_argument", "cron", "write five fields"),
        (json!({"cron": null}), "invalid_argument", "cron", "give either cron or interval_seconds"),
        (json!({"interval_seconds": 60}), "invalid_argument", "cron", "give either cron or interval_seconds"),
        (json!({"cron": null, "interval_seconds": 0}), "invalid_argument", "interval_seconds", "must be from 1 to"),
        (json!({"timezone": "Europe/Pariss"}), "invalid_argument", "timezone", "did you mean `Europe/Paris`?"),
        (json!({"catch_up": "some"}), "invalid_argument", "catch_up", "must be latest, none or all"),
        (json!({"overlap": "allow"}), "invalid_argument", "overlap", "must be skip, queue or cancel_old"),
        (json!({"jitter_seconds": 3600}), "invalid_argument", "jitter_seconds", "less than the time between two slots"),
        (json!({"jitter_seconds": -1}), "invalid_argument", "jitter_seconds", "must be from 0"),
        (json!({"ends_at": "2029-01-01T00:00:00Z"}), "invalid_argument", "ends_at", "no slot from now on"),
        (json!({"starts_at": "tomorrow"}), "invalid_argument", "starts_at", "RFC 3339"),
        (json!({"name": "a b"}), "invalid_argument", "name", "without white space"),
        (json!({"overlapp": "skip"}), "unknown_field", "overlapp", "did you mean `overlap`?"),
        (json!({"task": null}), "invalid_argument", "task", "give either task or run"),
        (json!({"run": {"tasks": []}}), "invalid_argument", "run", "give either task or run"),
    ] {
        let refused = server.post(SCHEDULES, with(hourly("s"), change.clone())).await.refused(422);
        assert_eq!((&refused["error"], &refused["field"]), (&json!(error), &json!(field)), "{change}: {refused}");
        assert!(refused["message"].as_str().unwrap().contains(part), "{change}: {refused}");
        assert_eq!(refused["code"], "BAD_REQUEST");
    }
    assert_eq!(server.get(SCHEDULES).await.ok()["items"], json!([]));
}

async fn a_wrong_template_is_refused_when_it_is_written(server: Server) {
    still(&server).await;
    let entry = json!({"key": "a", "queue": "q", "operator": "op"});
    for (template, error, field, part) in [
        (json!({"task": {"queue": "q"}}), "invalid_argument", "task.operator", "is required"),
        (
            json!({"task": {"queue": "q", "operator": "op", "priorty": 1}}),
            "unknown_field",
            "task.priorty",
            "`priority`",
        ),
        (
            json!({"task": {"queue": "q", "operator": "op", "priority": 10}}),
            "invalid_argument",
            "task.priority",
            "0 to 9",
        ),
        (json!({"task": []}), "invalid_argument", "task", "must be a JSON object"),
        (
            json!({"task": {"queue": "q", "operator": "op", "idempotency_key": "k"}}),
            "invalid_argument",
            "task.idempotency_key",
            "cannot be set in a template",
        ),
        (
            json!({"task": {"queue": "q", "operator": "op", "run_at": "2031-01-01T00:00:00Z"}}),
            "invalid_argument",
            "task.run_at",
            "cannot be set in a template",
        ),
        (
            json!({"task": {"queue": "q", "operator": "op", "tags": {"schedule": "x"}}}),
            "invalid_argument",
            "task.tags.schedule",
            "set by the schedule",
        ),
        (
            json!({"task": {"queue": "q", "operator": "op", "tenant": "other"}}),
            "invalid_argument",
            "task.tenant",
            "must equal that of the schedule",
        ),
        (json!({"run": {"tasks": []}}), "invalid_argument", "run.tasks", "must have 1 to"),
        (json!({"run": {"tasks": [entry], "run_key": "k"}}), "invalid_argument", "run.run_key", "cannot be set"),
        (
            json!({"run": {"tasks": [with(entry.clone(), json!({"depends_on": ["b"]}))]}}),
            "invalid_argument",
            "run.tasks[0].depends_on[0]",
            "b",
        ),
        (
            json!({"run": {"tasks": [with(entry.clone(), json!({"runAt": "2031-01-01T00:00:00Z"}))]}}),
            "invalid_argument",
            "run.tasks[0].run_at",
            "cannot be set in a template",
        ),
        (json!({"run": {"tasks": [entry.clone()], "lables": {}}}), "unknown_field", "run.lables", "`labels`"),
    ] {
        let schedule = with(json!({"name": "s", "cron": "0 * * * *"}), template.clone());
        let refused = server.post(SCHEDULES, schedule).await.refused(422);
        assert_eq!((&refused["error"], &refused["field"]), (&json!(error), &json!(field)), "{template}: {refused}");
        assert!(refused["message"].as_str().unwrap().contains(part), "{template}: {refused}");
        // The same when an existing one is changed.
        if server.get(&format!("{SCHEDULES}/good")).await.status.as_u16() == 404 {
            create(&server, hourly("good")).await;
        }
        let refused = server.patch(&format!("{SCHEDULES}/good"), template.clone()).await.refused(422);
        assert_eq!(refused["field"], json!(field), "{refused}");
    }
    let large = json!({"task": {"queue": "q", "operator": "op", "payload": "x".repeat(1 << 20)}});
    let refused = server.post(SCHEDULES, with(json!({"name": "s", "cron": "0 * * * *"}), large)).await;
    assert_eq!(refused.refused(422)["field"], "task");
    assert_eq!(shown(&server, "good").await["task"], hourly("good")["task"]);
}

async fn a_schedule_is_changed_field_by_field(server: Server) {
    still(&server).await;
    let full = json!({"timezone": "Asia/Tokyo", "catch_up": "all", "overlap": "queue", "jitter_seconds": 60,
        "starts_at": "2030-01-01T00:00:00Z", "ends_at": "2031-01-01T00:00:00Z"});
    create(&server, with(hourly("s"), full)).await;
    let path = format!("{SCHEDULES}/s");
    let same = server.patch(&path, json!({})).await.ok();
    assert_eq!((&same["cron"], &same["jitter_seconds"]), (&json!("0 * * * *"), &json!(60)));
    let changed = server.patch(&path, json!({"interval_seconds": 600, "jitter_seconds": 5})).await.ok();
    assert_eq!((&changed["cron"], &changed["interval_seconds"]), (&Value::Null, &json!(600)));
    assert_eq!((&changed["timezone"], &changed["overlap"]), (&json!("Asia/Tokyo"), &json!("queue")));
    assert_eq!(changed["next_at"], "2030-01-01T00:40:00Z");
    let reset = json!({"timezone": null, "catch_up": null, "overlap": null, "jitter_seconds": null, "starts_at": null,
        "ends_at": null, "cron": "30 6 * * *"});
    let reset = server.patch(&path, reset).await.ok();
    assert_eq!(reset["next_at"], "2030-01-01T06:30:00Z");
    assert_eq!(
        (&reset["timezone"], &reset["catch_up"], &reset["overlap"]),
        (&json!("UTC"), &json!("latest"), &json!("skip"))
    );
    assert_eq!(
        (&reset["starts_at"], &reset["ends_at"], &reset["jitter_seconds"]),
        (&Value::Null, &Value::Null, &json!(0))
    );
    let run = json!({"tasks": [{"key": "a", "queue": "q", "operator": "op"}]});
    let now_run = server.patch(&path, json!({"run": run})).await.ok();
    assert_eq!((&now_run["kind"], &now_run["task"], &now_run["run"]), (&json!("run"), &Value::Null, &run));
    for (wrong, field) in
        [(json!({"cron": "x"}), "cron"), (json!({"overlap": "x"}), "overlap"), (json!({"name": "t"}), "name")]
    {
        assert_eq!(server.patch(&path, wrong).await.refused(422)["field"], field);
    }
}

async fn names_are_unique_in_a_tenant_and_near_ones_are_suggested(server: Server) {
    still(&server).await;
    create(&server, hourly("nightly")).await;
    let refused = server.post(SCHEDULES, hourly("nightly")).await.refused(409);
    assert_eq!((&refused["error"], &refused["code"]), (&json!("schedule_exists"), &json!("CONFLICT")));
    let refused = server.get(&format!("{SCHEDULES}/nightyl")).await.refused(404);
    assert_eq!(refused["message"], "no such schedule; did you mean `nightly`?");
    for name in ["a", "b", "c"] {
        create(&server, hourly(name)).await;
    }
    let first = server.get(&format!("{SCHEDULES}?limit=3")).await.ok();
    let names =
        |page: &Value| page["items"].as_array().unwrap().iter().map(|item| item["name"].clone()).collect::<Vec<_>>();
    assert_eq!(names(&first), ["a", "b", "c"]);
    assert_eq!(first["items"][0]["task"], Value::Null, "a list has no templates");
    let cursor = first["next_cursor"].as_str().unwrap().replace('/', "%2F");
    let second = server.get(&format!("{SCHEDULES}?limit=3&cursor={cursor}")).await.ok();
    assert_eq!((names(&second), &second["next_cursor"]), (vec![json!("nightly")], &Value::Null));
    assert_eq!(server.get(&format!("{SCHEDULES}?limt=3")).await.refused(422)["error"], "unknown_field");
    for odd in ["%00", "a%20b", "%F0%9F%92%A9"] {
        assert_eq!(server.get(&format!("{SCHEDULES}/{odd}")).await.refused(404)["error"], "schedule_not_found");
    }
}

async fn a_schedule_belongs_to_its_tenant(server: Server) {
    still(&server).await;
    with_users(&server);
    let acme = made(&server, json!({"tenant": "acme", "role": "api"})).await;
    let other = made(&server, json!({"tenant": "other", "role": "api"})).await;
    let viewer = made(&server, json!({"tenant": "acme", "role": "viewer"})).await;
    let (acme, other, viewer) = ([acme.header()], [other.header()], [viewer.header()]);
    let schedule = post(&server, &acme, SCHEDULES, hourly("s")).await.ok();
    assert_eq!(schedule["tenant"], "acme");
    post(&server, &other, SCHEDULES, hourly("s")).await.ok();
    let id = schedule["schedule_id"].as_str().unwrap();
    let refused = get(&server, &other, &format!("{SCHEDULES}/{id}")).await.refused(404);
    assert_eq!(refused["error"], "schedule_not_found");
    for path in ["pause", "resume", "trigger"] {
        let path = format!("{SCHEDULES}/{id}/{path}");
        assert_eq!(post(&server, &other, &path, json!({})).await.refused(404)["error"], "schedule_not_found");
        assert_eq!(post(&server, &viewer, &path, json!({})).await.refused(403)["error"], "forbidden");
    }
    assert_eq!(get(&server, &viewer, &format!("{SCHEDULES}/s")).await.ok()["schedule_id"], json!(id));
    assert_eq!(get(&server, &[ADMIN], &format!("{SCHEDULES}/{id}")).await.ok()["name"], "s");
    assert_eq!(get(&server, &[ADMIN], SCHEDULES).await.ok()["items"].as_array().unwrap().len(), 2);
    assert_eq!(
        get(&server, &[ADMIN], &format!("{SCHEDULES}?tenant=acme")).await.ok()["items"].as_array().unwrap().len(),
        1
    );
    let elsewhere = with(hourly("t"), json!({"tenant": "other"}));
    assert_eq!(post(&server, &acme, SCHEDULES, elsewhere).await.refused(403)["error"], "tenant_forbidden");
    // A queue of another tenant is no place for its tasks.
    post(&server, &other, &format!("{SCHEDULES}/s/trigger"), json!({})).await.ok();
    let refused = post(&server, &acme, SCHEDULES, hourly("t")).await.refused(422);
    assert_eq!(refused["message"], "queue `q` belongs to another tenant");
    let refused = post(&server, &acme, &format!("{SCHEDULES}/s/trigger"), json!({})).await.refused(404);
    assert_eq!(refused["error"], "queue_not_found");
}

async fn what_is_done_with_schedules_is_audited(server: Server) {
    still(&server).await;
    with_users(&server);
    post(&server, &[ADMIN], SCHEDULES, hourly("s")).await.ok();
    for act in ["pause", "resume", "trigger"] {
        post(&server, &[ADMIN], &format!("{SCHEDULES}/s/{act}"), json!({})).await.ok();
    }
    server.call(Method::PATCH, &format!("{SCHEDULES}/s"), &[ADMIN], Some(&json!({"cron": "x"}))).await.refused(422);
    server.call(Method::DELETE, &format!("{SCHEDULES}/s"), &[ADMIN], None).await.ok();
    let rows = get(&server, &[ADMIN], "/api/v1/audit").await.ok();
    let rows = rows.as_array().unwrap().iter();
    let mut acts: Vec<String> = rows
        .filter(|row| row["resource"] == "s")
        .map(|row| format!("{} {}", row["action"].as_str().unwrap(), row["status"].as_str().unwrap()))
        .collect();
    acts.sort_unstable();
    assert_eq!(
        acts,
        [
            "schedule.change refused",
            "schedule.create ok",
            "schedule.delete ok",
            "schedule.pause ok",
            "schedule.resume ok",
            "schedule.trigger ok"
        ]
    );
}

/// Clocks in Paris go from 02:00 to 03:00 on 2030-03-31 (01:00Z) and from 03:00 back to 02:00 on 2030-10-27 (01:00Z).
async fn a_day_without_a_wall_clock_hour_has_its_slot(server: Server) {
    server.clock.freeze(Timestamp::parse("2030-03-30T12:00:00Z").unwrap());
    let paris = json!({"cron": "30 2 * * *", "timezone": "Europe/Paris"});
    let spring = create(&server, with(hourly("spring"), paris.clone())).await;
    assert_eq!(spring["next_slots"].as_array().unwrap()[..2], ["2030-03-31T01:00:00Z", "2030-04-01T00:30:00Z"]);
    server.advance(14 * HOUR);
    until(&server, "spring", &[("fired", "01:00")]).await;
    let autumn = json!({"starts_at": "2030-10-26T12:00:00Z"});
    let autumn = create(&server, with(with(hourly("autumn"), paris), autumn)).await;
    assert_eq!(autumn["next_slots"].as_array().unwrap()[..2], ["2030-10-27T00:30:00Z", "2030-10-28T01:30:00Z"]);
}
