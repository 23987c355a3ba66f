//! Schedules: their rows, and who of several may change one.

use tenure_core::TaskId;
use tenure_core::schedule::{Definition, Overlap, ScheduleState, Work};
use tenure_store::{Fault, NewSchedule, ScheduleFilter, ScheduleRow, ScheduleSetting, TemplateKind};

use crate::common::{Fixture, START, after_start};

crate::on_both_stores!(
    a_schedule_is_read_as_it_was_written,
    a_name_belongs_to_one_schedule_of_a_tenant,
    only_who_saw_the_last_version_changes_a_schedule,
    of_many_who_change_one_version_one_wins,
    schedules_are_due_in_order_and_the_next_one_is_told,
    schedules_are_listed_by_tenant_and_owner_in_pages,
    a_failed_save_changes_nothing_and_a_repeated_one_is_refused,
    a_damaged_row_never_fires_and_breaks_no_list,
);

fn setting(due_ms: Option<i64>) -> ScheduleSetting {
    let mut state = ScheduleState { next: due_ms.map(after_start), ..ScheduleState::default() };
    state.fired(START, after_start(1), Ok(Work::Task(TaskId::from_u128(7))));
    ScheduleSetting {
        kind: TemplateKind::Task,
        definition: Definition {
            cron: Some("0 * * * *".to_owned()),
            timezone: "Europe/Paris".to_owned(),
            overlap: Overlap::CancelOld,
            ..Definition::default()
        },
        state,
        paused: false,
        due_at: due_ms.map(after_start),
    }
}

fn new(n: u32, tenant: &str, name: &str) -> NewSchedule {
    NewSchedule {
        id: format!("00000000-0000-4000-8000-{n:012}"),
        tenant: tenant.to_owned(),
        name: name.to_owned(),
        owner: None,
        maker: Some(tenant.to_owned()),
        setting: setting(Some(1_000)),
        template: r#"{"queue":"q","operator":"op"}"#.to_owned(),
    }
}

async fn created(t: &Fixture, new: &NewSchedule) -> ScheduleRow {
    t.store.create_schedule(new).await.unwrap().unwrap()
}

async fn a_schedule_is_read_as_it_was_written(t: &Fixture) {
    let new = NewSchedule { owner: Some("ann".to_owned()), ..new(1, "acme", "nightly") };
    let row = created(t, &new).await;
    let expected = ScheduleRow {
        id: new.id.clone(),
        tenant: "acme".to_owned(),
        name: "nightly".to_owned(),
        owner: Some("ann".to_owned()),
        maker: Some("acme".to_owned()),
        setting: new.setting.clone(),
        version: 1,
        created_at: START,
        updated_at: START,
    };
    assert_eq!(row, expected);
    assert_eq!(t.store.schedule(&new.id).await.unwrap().as_ref(), Some(&expected));
    assert_eq!(t.store.schedule_named("acme", "nightly").await.unwrap(), Some(expected));
    assert_eq!(t.store.schedule_template(&new.id).await.unwrap(), Some(new.template.clone()));
    assert_eq!(t.store.schedule_named("other", "nightly").await.unwrap(), None);
    assert!(t.store.delete_schedule(&new.id).await.unwrap());
    assert!(!t.store.delete_schedule(&new.id).await.unwrap());
    assert_eq!(t.store.schedule(&new.id).await.unwrap(), None);
    assert_eq!(t.store.schedule_template(&new.id).await.unwrap(), None);
}

async fn a_name_belongs_to_one_schedule_of_a_tenant(t: &Fixture) {
    created(t, &new(1, "acme", "nightly")).await;
    assert_eq!(t.store.create_schedule(&new(2, "acme", "nightly")).await.unwrap(), None);
    created(t, &new(3, "other", "nightly")).await;
    assert_eq!(t.raw.number("SELECT count(*) FROM schedules").await, 2);
}

async fn only_who_saw_the_last_version_changes_a_schedule(t: &Fixture) {
    let row = created(t, &new(1, "acme", "nightly")).await;
    t.clock.advance(5);
    let save =
        async |seen, due, by_user| t.store.save_schedule(&row.id, seen, &setting(due), None, by_user).await.unwrap();
    let second = save(1, Some(9_000), false).await.unwrap();
    assert_eq!((second.version, second.setting.due_at), (2, Some(after_start(9_000))));
    assert_eq!(second.updated_at, START, "a firing is no change by a user");
    assert_eq!(save(1, Some(7_000), true).await, None);
    let third = save(2, None, true).await.unwrap();
    assert_eq!((third.version, third.setting.due_at, third.updated_at), (3, None, after_start(5)));
    assert_eq!(t.store.schedule_template(&row.id).await.unwrap(), Some(new(1, "", "").template));
    let changed = ScheduleSetting { kind: TemplateKind::Run, paused: true, ..setting(None) };
    let fourth = t.store.save_schedule(&row.id, 3, &changed, Some(r#"{"tasks":[]}"#), true).await.unwrap().unwrap();
    assert_eq!(fourth.setting, changed);
    assert_eq!(t.store.schedule_template(&row.id).await.unwrap().as_deref(), Some(r#"{"tasks":[]}"#));
    assert_eq!(t.store.save_schedule("unknown", 1, &changed, None, true).await.unwrap(), None);
}

async fn of_many_who_change_one_version_one_wins(t: &Fixture) {
    let row = created(t, &new(1, "acme", "nightly")).await;
    for version in 1..6 {
        let tries = (0..16).map(|n| {
            let (client, id) = (t.client(), row.id.clone());
            tokio::spawn(async move { client.store.save_schedule(&id, version, &setting(Some(n)), None, false).await })
        });
        let mut won = 0;
        for one in tries.collect::<Vec<_>>() {
            won += usize::from(one.await.unwrap().unwrap().is_some());
        }
        assert_eq!(won, 1, "version {version}");
    }
}

async fn schedules_are_due_in_order_and_the_next_one_is_told(t: &Fixture) {
    for (n, due) in [(1, Some(3_000)), (2, Some(1_000)), (3, None), (4, Some(60_000))] {
        let name = format!("s{n}");
        created(t, &NewSchedule { setting: setting(due), ..new(n, "acme", &name) }).await;
    }
    let due = async |limit| {
        let due = t.store.due_schedules(limit).await.unwrap();
        (due.rows.into_iter().map(|row| row.name).collect::<Vec<_>>(), due.next_at, due.now)
    };
    assert_eq!(due(9).await, (vec![], Some(after_start(1_000)), START));
    t.clock.advance(3_000);
    let both = vec!["s2".to_owned(), "s1".to_owned()];
    assert_eq!(due(9).await, (both, Some(after_start(60_000)), after_start(3_000)));
    assert_eq!(due(1).await, (vec!["s2".to_owned()], Some(after_start(3_000)), after_start(3_000)));
}

async fn schedules_are_listed_by_tenant_and_owner_in_pages(t: &Fixture) {
    for (n, tenant, name, owner) in [
        (1, "acme", "b", None),
        (2, "acme", "a", Some("ann")),
        (3, "zeta", "a", Some("ann")),
        (4, "acme", "a/b", None),
        (5, "acme", "c", Some("bob")),
    ] {
        created(t, &NewSchedule { owner: owner.map(ToOwned::to_owned), ..new(n, tenant, name) }).await;
    }
    let list = async |tenant: Option<&str>, owner: Option<&str>, limit| {
        let (tenant, owner) = (tenant.map(ToOwned::to_owned), owner.map(ToOwned::to_owned));
        let mut filter = ScheduleFilter { tenant, owner, after: None, limit };
        let mut found = Vec::new();
        loop {
            let page = t.store.schedules(&filter).await.unwrap();
            assert!(page.items.len() <= limit);
            found.extend(page.items.into_iter().map(|row| format!("{}:{}", row.tenant, row.name)));
            match page.next {
                None => return found,
                next => filter.after = next,
            }
        }
    };
    let all = ["acme:a", "acme:a/b", "acme:b", "acme:c", "zeta:a"];
    for limit in [1, 2, 5] {
        assert_eq!(list(None, None, limit).await, all, "{limit}");
    }
    assert_eq!(list(Some("acme"), None, 3).await, &all[..4]);
    assert_eq!(list(Some("acme"), Some("ann"), 3).await, ["acme:a"]);
    assert_eq!(list(None, Some("ann"), 1).await, ["acme:a", "zeta:a"]);
    assert!(list(Some("none"), None, 3).await.is_empty());
}

async fn a_failed_save_changes_nothing_and_a_repeated_one_is_refused(t: &Fixture) {
    let row = created(t, &new(1, "acme", "nightly")).await;
    let save = async |seen| t.store.save_schedule(&row.id, seen, &setting(None), None, false).await;
    t.store.faults().fail_in("save a schedule", Fault::Error);
    assert!(save(1).await.is_err());
    assert_eq!(t.store.schedule(&row.id).await.unwrap().unwrap().version, 1);
    assert_eq!(save(1).await.unwrap().unwrap().version, 2);
    assert_eq!(save(1).await.unwrap(), None, "the second of two equal saves finds another version");
}

async fn a_damaged_row_never_fires_and_breaks_no_list(t: &Fixture) {
    created(t, &new(1, "acme", "a")).await;
    created(t, &new(2, "acme", "b")).await;
    t.raw.try_rows("UPDATE schedules SET state = '{', definition = 'x' WHERE name = 'a'").await.unwrap();
    t.clock.advance(5_000);
    let due = t.store.due_schedules(9).await.unwrap();
    assert_eq!(due.rows.len(), 2);
    let damaged = t.store.schedule_named("acme", "a").await.unwrap().unwrap();
    assert_eq!(damaged.setting.state, ScheduleState::default());
    assert!(damaged.setting.definition.schedule().is_err());
}
