//! Events and completions: in order, repeated, refused.

use super::*;

#[tokio::test]
async fn events_are_told_in_order_and_before_the_completion() {
    let plane = DispatchPlane::start().await;
    let worker = worker(&plane).operator("emit", async |task: Task| {
        task.emit(0, "a").await?;
        task.emit(0, (1, 5)).await?;
        task.emit(1, Position::Cursor(7)).await?;
        task.invalidate(0, "b", "reorg").await?;
        task.invalidate_rows(0, &json!({"n": {"gte": 1}}), "correction").await?;
        task.emit(0, "c").await?;
        Ok(())
    });
    let (_stop, _run) = spawn(worker);
    plane.first("events", [Say::No(503, "store_unavailable")]);
    plane.task(plain(1, "emit"));
    plane.until("task-complete", 1).await;
    let bodies = plane.bodies("events");
    assert_eq!(bodies[0], bodies[1], "the same again");
    let told: Vec<Value> = bodies[1..]
        .iter()
        .flat_map(|body| {
            [&body["events"], &body["invalidations"]].map(|list| list.as_array().cloned().unwrap_or_default())
        })
        .flatten()
        .collect();
    let event = |index: u32, place: Value| {
        let mut event =
            json!({"dataset_uuid": format!("dataset-{index}"), "dataset_version": format!("version-{index}")});
        event.as_object_mut().unwrap().extend(place.as_object().unwrap().clone());
        event
    };
    assert_eq!(
        told,
        [
            event(0, json!({"partition_key": "a"})),
            event(0, json!({"partition_key": "1-5", "start": 1, "end": 5})),
            event(1, json!({"cursor": 7})),
            json!({"dataset_uuid": "dataset-0", "scope": "partition", "partition_key": "b", "reason": "reorg"}),
            json!({"dataset_uuid": "dataset-0", "scope": "row_range", "row_filter": {"n": {"gte": 1}},
                   "reason": "correction"}),
            event(0, json!({"partition_key": "c"})),
        ]
    );
    assert!(bodies.iter().all(|body| body["events"].is_null() || body["invalidations"].is_null()));
    let last = plane.of("events").len() + plane.of("task-complete").len();
    assert_eq!(last, bodies.len() + 1, "nothing is told after the completion");
}

#[tokio::test]
async fn many_events_wait_for_room() {
    let plane = DispatchPlane::start().await;
    let worker = worker(&plane).operator("emit", async |task: Task| {
        for number in 0..2_500 {
            task.emit(0, Position::Cursor(number)).await?;
        }
        Ok(())
    });
    let (_stop, _run) = spawn(worker);
    plane.task(plain(1, "emit"));
    plane.until("task-complete", 1).await;
    let sizes: Vec<_> = plane.bodies("events").iter().map(|body| body["events"].as_array().unwrap().len()).collect();
    assert_eq!(sizes.iter().sum::<usize>(), 2_500);
    assert!(sizes.len() < 2_500 && sizes.iter().all(|size| *size <= 500), "{sizes:?}");
}

#[tokio::test]
async fn events_that_are_refused_fail_the_task() {
    for (status, word) in [(403, "dataset_not_granted"), (409, "dataset_version_conflict"), (422, "invalid_event")] {
        let plane = DispatchPlane::start().await;
        plane.always("events", Say::No(status, word));
        let worker = worker(&plane).operator("emit", async |task: Task| task.emit(0, "a").await);
        let (_stop, _run) = spawn(worker);
        plane.task(plain(1, "emit"));
        let body = plane.until("task-complete", 1).await.remove(0);
        assert_eq!(fields(&body, &["status", "retryable"]), [&json!("Failed"), &json!(false)], "{word}");
        let message = body["error"]["message"].as_str().unwrap();
        assert!(message.contains("events were refused") && message.contains(word), "{message}");
    }
}

#[tokio::test]
async fn a_lost_answer_costs_nothing() {
    let plane = DispatchPlane::start().await;
    for call in ["task-wakeups", "task-claim", "events", "task-complete"] {
        plane.first(call, [Say::Cut, Say::No(503, "store_unavailable"), Say::Cut]);
    }
    let runs = Arc::new(Mutex::new(0));
    let count = Arc::clone(&runs);
    let worker = worker(&plane).operator("once", move |task: Task| {
        *count.lock().unwrap() += 1;
        async move {
            task.emit(0, "a").await?;
            Ok(Output::new(0, "b"))
        }
    });
    let (_stop, _run) = spawn(worker);
    plane.task(plain(1, "once"));
    for call in ["task-claim", "events", "task-complete"] {
        let bodies = plane.until(call, 4).await;
        assert!(bodies.iter().all(|body| *body == bodies[0]), "{call}: the same again");
    }
    assert_eq!(*runs.lock().unwrap(), 1);
}

#[tokio::test]
async fn an_error_says_whether_it_is_tried_again() {
    let plane = DispatchPlane::start().await;
    let fail = |error: fn() -> TaskError| move |_task: Task| async move { Err::<(), _>(error()) };
    let worker = worker(&plane)
        .operator("USER_CODE", fail(|| TaskError::user_code("why")))
        .operator("INFRASTRUCTURE", fail(|| TaskError::infrastructure("why").with_stack("trace")))
        .operator("TIMEOUT", fail(|| TaskError::timeout("why")))
        .operator("DATA_QUALITY", fail(|| TaskError::data_quality("why")))
        .operator("CONFIGURATION", fail(|| TaskError::configuration("why")))
        .operator("panic", |_task: Task| async { panic!("as ordered") as Result<(), TaskError> })
        .operator("too many", async |_task: Task| Ok(vec![Output::new(0, "a"); 257]))
        .operator("no such output", async |_task: Task| Ok(Output::new(2, "a")))
        .operator("no object", async |task: Task| task.set_state(&1));
    let (_stop, _run) = spawn(worker);
    let wanted = [
        ("USER_CODE", "USER_CODE", true, "why"),
        ("INFRASTRUCTURE", "INFRASTRUCTURE", true, "why"),
        ("TIMEOUT", "TIMEOUT", true, "why"),
        ("DATA_QUALITY", "DATA_QUALITY", false, "why"),
        ("CONFIGURATION", "CONFIGURATION", false, "why"),
        ("panic", "USER_CODE", true, "PANIC: the handler panicked: as ordered"),
        ("too many", "USER_CODE", false, "a task has at most 256 outputs, not 257: emit the others"),
        ("no such output", "CONFIGURATION", false, "the job has no output 2: it has 2"),
        ("no object", "USER_CODE", false, "the state of an operator is an object"),
        ("unknown", "CONFIGURATION", true, "UNKNOWN_OPERATOR: this worker has no operator `unknown`"),
    ];
    for (number, (operator, category, retryable, message)) in (1..).zip(wanted) {
        plane.task(plain(number, operator));
        let body = plane.until("task-complete", number as usize).await.remove(number as usize - 1);
        let error = &body["error"];
        assert_eq!(fields(&body, &["status", "retryable"]), [&json!("Failed"), &json!(retryable)], "{operator}");
        assert_eq!(fields(error, &["category", "message"]), [category, message]);
        assert!(body.get("outputs").is_none() && body.get("operator_state").is_none());
    }
    assert_eq!(plane.bodies("task-complete")[1]["error"]["stack"], "trace");
}

#[tokio::test]
async fn a_report_that_is_refused_for_what_it_says_is_followed_by_a_failure() {
    for (status, word) in [
        (403, "prefix_not_granted"),
        (409, "dataset_version_conflict"),
        (413, "body_too_large"),
        (422, "invalid_output"),
    ] {
        let plane = DispatchPlane::start().await;
        plane.first("task-complete", [Say::No(status, word)]);
        let (_stop, _run) = spawn(worker(&plane));
        plane.task(plain(1, "done"));
        let bodies = plane.until("task-complete", 2).await;
        assert_eq!(bodies[0]["status"], "Completed");
        assert_eq!(fields(&bodies[1], &["status", "retryable"]), [&json!("Failed"), &json!(false)], "{word}");
        assert!(bodies[1]["error"]["message"].as_str().unwrap().contains(word));
        // A second refusal is the last word.
        plane.first("task-complete", [Say::No(status, word), Say::No(status, word)]);
        plane.task(plain(2, "done"));
        plane.task(plain(3, "done"));
        assert_eq!(plane.until("task-complete", 5).await[4]["task_id"], id(3));
    }
}
