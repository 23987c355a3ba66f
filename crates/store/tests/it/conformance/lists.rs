//! What people look at.

use std::collections::HashMap;
use std::sync::Arc;

use tenure_core::command::Reach;
use tenure_core::command::cancel::Mode;
use tenure_core::command::submit::{NewTask, Start};
use tenure_core::task::State;
use tenure_core::{IdPrefix, RunId, Seq, TaskId};
use tenure_store::{TaskFilter, TaskView};

use crate::common::{Fixture, START, after_start, make};

crate::on_both_stores!(
    every_filter_finds_its_tasks,
    tasks_are_found_by_the_beginning_of_their_id,
    a_tag_is_found_whatever_its_name_and_value,
    pages_have_no_gaps_and_no_repeats_while_tasks_come_and_move,
    one_tenant_does_not_see_the_other,
    queues_are_listed_by_name_with_what_stands_in_them,
    a_queue_knows_when_a_worker_last_asked,
    the_views_of_the_schema_tell_the_same,
);

fn ids(items: &[TaskView]) -> Vec<TaskId> {
    items.iter().map(TaskView::id).collect()
}

async fn list(t: &Fixture, filter: TaskFilter) -> Vec<TaskId> {
    let page = t.store.tasks(&TaskFilter { limit: 100, ..filter }).await.unwrap();
    assert_eq!(page.next, None);
    ids(&page.items)
}

async fn tasks_are_found_by_the_beginning_of_their_id(t: &Fixture) {
    let mut tasks = t.tasks("q", 3).await;
    // An hour later, of another day, and of another tenant.
    tasks[1].id = TaskId::new(START.as_millis() + 3_600_000, 7, tasks[1].id.seq());
    tasks[2].tenant = "other".into();
    let all: Vec<TaskId> = tasks.iter().map(|task| task.id).collect();
    t.submit(tasks).await;
    let find = async |text: &str, reach: Reach| {
        let id_prefix = Some(IdPrefix::parse(text, "task_").unwrap());
        list(t, TaskFilter { id_prefix, reach, ..TaskFilter::default() }).await
    };
    for spelling in [TaskId::to_string, |id: &TaskId| id.to_ulid_text()] {
        let (first, second) = (spelling(&all[0]), spelling(&all[1]));
        let common = first.bytes().zip(second.bytes()).take_while(|(a, b)| a == b).count();
        assert_eq!(find(&first[..common], Reach::All).await, [all[2], all[1], all[0]]);
        assert_eq!(find(&first[..=common], Reach::All).await, [all[2], all[0]]);
        assert_eq!(find(&second[..=common], Reach::All).await, [all[1]]);
        assert_eq!(find(&first[..=common], Reach::Tenant("other".into())).await, [all[2]]);
        assert_eq!(find(&first, Reach::All).await, [all[0]]);
    }
    assert_eq!(find("0000", Reach::All).await, []);
}

async fn every_filter_finds_its_tasks(t: &Fixture) {
    // One in each state, oldest first.
    let succeeded = t.put_in("etl").await;
    let grant = t.claim_one("etl").await;
    t.complete(&grant).await.unwrap();
    let failed = t.put_in("etl").await;
    let grant = t.claim_one("etl").await;
    t.bury(&grant, "X").await;
    let canceled = t.put_in("etl").await;
    t.run(make::cancel(canceled, Mode::Immediate)).await.unwrap();
    let running = t.put(NewTask { operator: "load".into(), ..t.task("etl").await }).await;
    t.claim_one("etl").await;
    let scheduled = t.put(NewTask { start: Start::After(9), tenant: "other".into(), ..t.task("mail").await }).await;
    let tagged = NewTask { tags: make::tags(&[("team", "etl")]), workspace: "prod".into(), ..t.task("etl").await };
    let ready = t.put(tagged).await;
    let later = after_start(5_000);
    t.clock.freeze(later);
    let keyed = t
        .put(NewTask { idempotency: make::key("k-1", 1), submitted_by: Some("key:k".into()), ..t.task("late").await })
        .await;
    let worker = "w".to_owned();

    let all = vec![keyed, ready, scheduled, running, canceled, failed, succeeded];
    let text = |text: &str| Some(text.to_owned());
    let filter = TaskFilter::default;
    let tag = |name: &str, value: &str| Some((name.to_owned(), value.to_owned()));
    let whole = |id: TaskId| IdPrefix::parse(&id.to_string(), "task_").ok();
    let cases = [
        (filter(), all),
        (TaskFilter { queue: text("etl"), ..filter() }, vec![ready, running, canceled, failed, succeeded]),
        (TaskFilter { queue: text("nowhere"), ..filter() }, vec![]),
        (TaskFilter { state: Some(State::Ready), ..filter() }, vec![keyed, ready]),
        (TaskFilter { state: Some(State::Scheduled), ..filter() }, vec![scheduled]),
        (TaskFilter { state: Some(State::Running), ..filter() }, vec![running]),
        (TaskFilter { state: Some(State::Succeeded), ..filter() }, vec![succeeded]),
        (TaskFilter { state: Some(State::Failed), ..filter() }, vec![failed]),
        (TaskFilter { state: Some(State::Canceled), ..filter() }, vec![canceled]),
        (TaskFilter { operator: text("load"), ..filter() }, vec![running]),
        (TaskFilter { id_prefix: whole(running), ..filter() }, vec![running]),
        (TaskFilter { id_prefix: whole(running), operator: text("none"), ..filter() }, vec![]),
        (TaskFilter { reach: Reach::Tenant("other".into()), ..filter() }, vec![scheduled]),
        (TaskFilter { workspace: text("prod"), ..filter() }, vec![ready]),
        (TaskFilter { tag: tag("team", "etl"), ..filter() }, vec![ready]),
        (TaskFilter { tag: tag("team", "et"), ..filter() }, vec![]),
        (TaskFilter { tag: tag("tea", "etl"), ..filter() }, vec![]),
        (TaskFilter { queue: text("etl"), state: Some(State::Running), operator: text("extract"), ..filter() }, vec![]),
        (TaskFilter { before: Some(running.seq()), ..filter() }, vec![canceled, failed, succeeded]),
        (TaskFilter { error_code: text("X"), ..filter() }, vec![failed]),
        (TaskFilter { error_code: text("Y"), ..filter() }, vec![]),
        (TaskFilter { worker: Some(worker.clone()), ..filter() }, vec![running, failed, succeeded]),
        (TaskFilter { worker: Some(worker), state: Some(State::Running), ..filter() }, vec![running]),
        (TaskFilter { worker: text("nobody"), ..filter() }, vec![]),
        (TaskFilter { idempotency_key: text("k-1"), ..filter() }, vec![keyed]),
        (TaskFilter { idempotency_key: text("k"), ..filter() }, vec![]),
        (TaskFilter { submitted_by: text("key:k"), ..filter() }, vec![keyed]),
        (TaskFilter { submitted_by: text("key"), ..filter() }, vec![]),
        (TaskFilter { run: Some(RunId::from_u128(1)), ..filter() }, vec![]),
        (TaskFilter { after: Some(later), ..filter() }, vec![keyed]),
        (TaskFilter { until: Some(later), state: Some(State::Ready), ..filter() }, vec![ready]),
        (TaskFilter { after: Some(later), until: Some(later), ..filter() }, vec![]),
    ];
    for (filter, expected) in cases {
        assert_eq!(list(t, filter.clone()).await, expected, "{filter:?}");
    }
}

async fn a_tag_is_found_whatever_its_name_and_value(t: &Fixture) {
    let odd = [
        "plain",
        "",
        "it's",
        "\"quoted\"",
        "comma,\"team\":\"etl\"",
        "{\"a\":\"b\"}",
        "back\\slash",
        "größe ✓",
        "\u{1}",
    ];
    let mut put: HashMap<(&str, &str), TaskId> = HashMap::new();
    for name in odd {
        for value in odd {
            let tags = make::tags(&[("first", "x"), (name, value), ("zlast", "y")]);
            put.insert((name, value), t.put(NewTask { tags, ..t.task("q").await }).await);
        }
    }
    for ((name, value), id) in put {
        let tag = Some((name.to_owned(), value.to_owned()));
        assert_eq!(list(t, TaskFilter { tag, ..TaskFilter::default() }).await, [id], "{name} = {value}");
    }
    // Looks like a tag, but is part of a value.
    let tag = Some(("team".to_owned(), "etl".to_owned()));
    assert_eq!(list(t, TaskFilter { tag, ..TaskFilter::default() }).await, []);
}

async fn pages_have_no_gaps_and_no_repeats_while_tasks_come_and_move(t: &Fixture) {
    let mut put = t.put_many("q", 25).await;
    put.reverse();
    let mut filter = TaskFilter { limit: 4, ..TaskFilter::default() };
    let mut got = Vec::new();
    loop {
        let page = t.store.tasks(&filter).await.unwrap();
        got.extend(ids(&page.items));
        let Some(next) = page.next else { break };
        filter.before = Some(Seq(next.parse().unwrap()));
        t.put_in("q").await;
        t.claim(&["q"], 3).await;
    }
    assert_eq!(got, put);
}

async fn one_tenant_does_not_see_the_other(t: &Fixture) {
    let id = t.put_in("q").await;
    let (own, other) = (Reach::Tenant("acme".into()), Reach::Tenant("other".into()));
    assert!(t.store.task(id, &own).await.unwrap().is_some());
    assert!(t.store.task(id, &other).await.unwrap().is_none());
    assert!(t.store.attempts(id, &own).await.unwrap().is_some());
    assert!(t.store.attempts(id, &other).await.unwrap().is_none());
}

async fn queues_are_listed_by_name_with_what_stands_in_them(t: &Fixture) {
    for name in ["b", "a", "Z", "ä", "c"] {
        t.put_in(name).await;
        t.clock.advance(10);
        t.put(NewTask { priority: 0, ..t.task(name).await }).await;
        t.put(NewTask { start: Start::After(1_000), ..t.task(name).await }).await;
    }
    let (mut names, mut after) = (Vec::new(), None::<String>);
    loop {
        let page = t.store.queues(None, after.as_deref(), 2).await.unwrap();
        for stats in &page.items {
            names.push(stats.queue.name.to_string());
            assert_eq!((stats.counts.ready, stats.counts.scheduled), (2, 1));
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    // By their bytes, on every machine.
    assert_eq!(names, ["Z", "a", "b", "c", "ä"]);
    assert_eq!(t.queue("b").await.oldest_ready_at, Some(START), "whatever its priority");
    t.claim(&["b"], 9).await;
    assert_eq!(t.queue("b").await.oldest_ready_at, None);
}

async fn a_queue_knows_when_a_worker_last_asked(t: &Fixture) {
    t.put_in("q").await;
    let grant = t.claim_one("q").await;
    let seen = async || t.store.queue(grant.queue).await.unwrap().unwrap().worker_seen_at;
    assert_eq!(seen().await, None);
    let names: Vec<Arc<str>> = vec!["q".into(), "nowhere".into()];
    t.store.saw_workers(&names).await.unwrap();
    assert_eq!(seen().await, Some(START));
    t.clock.advance(5_000);
    t.store.saw_workers(&names).await.unwrap();
    let view = t.store.queue(grant.queue).await.unwrap().unwrap();
    assert_eq!((view.worker_seen_at, view.now, view.running), (Some(after_start(5_000)), after_start(5_000), 1));
    assert!(t.store.queue(tenure_core::queue::QueueId(999)).await.unwrap().is_none());
}

async fn the_views_of_the_schema_tell_the_same(t: &Fixture) {
    let id = t.put(NewTask { spec: make::attempts(2), ..t.task("q").await }).await;
    let grant = t.claim_one("q").await;
    t.run(make::fail(&grant, "X", None)).await.unwrap();
    t.claim_one("q").await;
    let rows = t.raw.rows("SELECT task_id, queue, state, attempt, fence, worker_id FROM tasks").await;
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(rows, [[text(&id.to_string()), text("q"), text("Running"), text("2"), text("2"), text("w")]]);
    let rows = t.raw.rows("SELECT attempt, ended_at IS NULL FROM attempt_history ORDER BY attempt").await;
    let open: Vec<_> = rows.iter().map(|row| matches!(row[1].as_deref(), Some("1" | "t"))).collect();
    assert_eq!(open, [false, true]);
}
