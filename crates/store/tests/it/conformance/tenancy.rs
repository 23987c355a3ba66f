//! Queues of tenants: who makes one owns it, and what others may do with it.

use tenure_core::command::queues::{PauseQueue, SetQueue};
use tenure_core::command::submit::{NewTask, Submit};
use tenure_core::command::{Answer, Command, Reach, Rejection};
use tenure_core::queue::QueueSettings;

use crate::common::{Fixture, Kind, make};

crate::on_both_stores!(
    who_makes_a_queue_owns_it_for_good,
    the_first_of_a_batch_makes_the_queue,
    a_queue_of_another_tenant_takes_no_tasks,
    a_queue_is_set_by_its_tenant_only,
    a_shared_queue_takes_tasks_of_all_and_is_set_by_whoever_reaches_all,
    a_tenant_lists_its_own_queues_and_the_shared_ones,
    of_two_makers_one_is_first,
    workers_claim_from_queues_of_every_tenant,
);

fn tenant(name: &str) -> Reach {
    Reach::Tenant(name.into())
}

fn pause(queue: &str, reach: Reach) -> Command {
    Command::PauseQueue(PauseQueue { queue: queue.into(), paused: true, reach })
}

fn set(queue: &str, reach: Reach) -> Command {
    let settings = QueueSettings { max_running: Some(3), ..QueueSettings::default() };
    Command::SetQueue(SetQueue { queue: queue.into(), settings, transport: None, keep_push: false, reach })
}

/// A task of this tenant, submitted by one of its keys.
async fn submit(t: &Fixture, queue: &str, tenant: &str) -> Command {
    let task = NewTask { tenant: tenant.into(), ..t.task(queue).await };
    Command::Submit(Submit { tasks: vec![task], maker: Some(tenant.into()) })
}

async fn owner(t: &Fixture, queue: &str) -> Option<String> {
    t.queue(queue).await.queue.tenant.map(|tenant| tenant.to_string())
}

async fn names(t: &Fixture, tenant: Option<&str>) -> Vec<String> {
    let page = t.store.queues(tenant, None, 100).await.unwrap();
    assert_eq!(page.next, None);
    page.items.iter().map(|stats| stats.queue.name.to_string()).collect()
}

async fn who_makes_a_queue_owns_it_for_good(t: &Fixture) {
    t.run(submit(t, "by submit", "acme").await).await.unwrap();
    t.run(set("by set", tenant("acme"))).await.unwrap();
    t.put_in("by an admin's submit").await;
    t.run(set("by an admin", Reach::All)).await.unwrap();
    for (queue, expected) in
        [("by submit", Some("acme")), ("by set", Some("acme")), ("by an admin's submit", None), ("by an admin", None)]
    {
        assert_eq!(owner(t, queue).await.as_deref(), expected, "{queue}");
    }
    // What others do to it later does not change whose it is.
    t.run(set("by submit", Reach::All)).await.unwrap();
    t.run(pause("by submit", tenant("acme"))).await.unwrap();
    t.put_in("by submit").await;
    assert_eq!(owner(t, "by submit").await.as_deref(), Some("acme"));
    let answer = t.run(set("by set", tenant("acme"))).await;
    assert!(matches!(answer, Ok(Answer::Queue(queue)) if queue.tenant.as_deref() == Some("acme")));
    let view = t.store.queue(t.queue("by set").await.queue.id).await.unwrap().unwrap();
    assert_eq!((view.queue.tenant.as_deref(), view.running), (Some("acme"), 0));
}

async fn the_first_of_a_batch_makes_the_queue(t: &Fixture) {
    let commands = vec![
        submit(t, "q", "acme").await,
        submit(t, "q", "other").await,
        pause("q", tenant("other")),
        set("q", tenant("acme")),
    ];
    let outcomes = t.run_all(commands).await;
    assert!(outcomes[0].is_ok() && outcomes[3].is_ok(), "{outcomes:?}");
    assert_eq!(outcomes[1..3], [Err(Rejection::QueueNotFound), Err(Rejection::QueueNotFound)]);
    assert_eq!(owner(t, "q").await.as_deref(), Some("acme"));
}

/// Whoever submits them, and with all that comes in the same submission.
async fn a_queue_of_another_tenant_takes_no_tasks(t: &Fixture) {
    t.run(submit(t, "q", "acme").await).await.unwrap();
    assert_eq!(t.run(submit(t, "q", "other").await).await, Err(Rejection::QueueNotFound));
    let foreign = NewTask { tenant: "other".into(), ..t.task("q").await };
    let tasks = vec![t.task("elsewhere").await, foreign];
    let by_admin = Command::Submit(Submit { tasks, maker: None });
    let outcomes = t.run_all(vec![by_admin, submit(t, "q", "acme").await]).await;
    assert_eq!(outcomes[0], Err(Rejection::QueueNotFound));
    assert!(outcomes[1].is_ok(), "what others ask in the same batch goes on");
    assert_eq!(t.raw.number("SELECT count(*) FROM bodies").await, 2);
}

async fn a_queue_is_set_by_its_tenant_only(t: &Fixture) {
    t.run(set("q", tenant("acme"))).await.unwrap();
    let before = t.queue("q").await.queue;
    for command in [set("q", tenant("other")), pause("q", tenant("other"))] {
        assert_eq!(t.run(command).await, Err(Rejection::QueueNotFound));
    }
    assert_eq!(t.queue("q").await.queue, before);
    assert!(t.run(pause("q", tenant("acme"))).await.is_ok());
    assert!(t.queue("q").await.queue.paused);
}

async fn a_shared_queue_takes_tasks_of_all_and_is_set_by_whoever_reaches_all(t: &Fixture) {
    t.run(set("q", Reach::All)).await.unwrap();
    for tenant in ["acme", "other"] {
        t.run(submit(t, "q", tenant).await).await.unwrap();
    }
    let before = t.queue("q").await.queue;
    for command in [set("q", tenant("acme")), pause("q", tenant("acme"))] {
        assert_eq!(t.run(command).await, Err(Rejection::QueueShared));
    }
    assert_eq!(t.queue("q").await.queue, before);
    assert!(t.run(pause("q", Reach::All)).await.is_ok());
}

async fn a_tenant_lists_its_own_queues_and_the_shared_ones(t: &Fixture) {
    for (queue, reach) in [
        ("a", tenant("acme")),
        ("b", tenant("other")),
        ("c", Reach::All),
        ("d", tenant("acme")),
        ("e", tenant("other")),
    ] {
        t.run(set(queue, reach)).await.unwrap();
    }
    assert_eq!(names(t, None).await, ["a", "b", "c", "d", "e"]);
    assert_eq!(names(t, Some("acme")).await, ["a", "c", "d"]);
    assert_eq!(names(t, Some("other")).await, ["b", "c", "e"]);
    assert_eq!(names(t, Some("nobody")).await, ["c"]);
    let first = t.store.queues(Some("acme"), None, 2).await.unwrap();
    assert_eq!((first.items.len(), first.next.as_deref()), (2, Some("c")));
    let second = t.store.queues(Some("acme"), first.next.as_deref(), 2).await.unwrap();
    assert_eq!((&*second.items[0].queue.name, second.items.len(), second.next), ("d", 1, None));
}

/// Two control planes, if there can be two.
async fn of_two_makers_one_is_first(t: &Fixture) {
    let one = t.client();
    let two = if t.kind == Kind::Postgres { t.replica().await } else { t.client() };
    for round in 0..10 {
        let queue = format!("q{round}");
        let (a, b) = (submit(t, &queue, "acme").await, submit(t, &queue, "other").await);
        let (a, b) = tokio::join!(one.run(a), two.run(b));
        let winner = owner(t, &queue).await.unwrap();
        let (won, lost) = if winner == "acme" { (a, b) } else { (b, a) };
        assert!(won.is_ok(), "{won:?}");
        assert_eq!(lost, Err(Rejection::QueueNotFound));
    }
}

async fn workers_claim_from_queues_of_every_tenant(t: &Fixture) {
    for tenant in ["acme", "other"] {
        t.run(submit(t, tenant, tenant).await).await.unwrap();
    }
    let claimed = t.claimed(make::claim("w", &["acme", "other"], 9)).await;
    assert_eq!(claimed.grants.len(), 2);
}
