//! Who sees which changes.

use tenure_core::command::Reach;
use tenure_core::{TaskId, task};
use tenure_engine::{Engine, Event};

use crate::harness::{Home, new_tasks};
use crate::on_both_stores;

on_both_stores!(a_watcher_sees_the_changes_of_its_own_tasks, why_is_answered_to_the_owner_only);

/// Ann's, Bob's, nobody's, that of an Ann of another tenant, and Ann's once more; in one batch.
async fn submit(engine: &Engine) -> Vec<TaskId> {
    let whose = [("acme", Some("ann")), ("acme", Some("bob")), ("acme", None), ("other", Some("ann"))];
    let whose = whose.into_iter().chain([("acme", Some("ann"))]);
    let mut submit = new_tasks(engine, 5).await;
    for (task, (tenant, owner)) in submit.tasks.iter_mut().zip(whose) {
        task.tenant = tenant.into();
        task.owner = owner.map(Into::into);
    }
    let ids = submit.tasks.iter().map(|task| task.id).collect();
    engine.submit(submit, 0).await.unwrap().unwrap();
    ids
}

fn ann() -> Reach {
    Reach::Owner { tenant: "acme".into(), owner: "ann".into() }
}

/// The task of Ann that comes last ends the look: nothing before it was hers.
async fn a_watcher_sees_the_changes_of_its_own_tasks(home: Home) {
    let engine = Engine::open(&home.url()).await.unwrap();
    let mut of_ann = engine.events(ann(), None).await.unwrap();
    let mut of_tenant = engine.events(Reach::Tenant("acme".into()), None).await.unwrap();
    let ids = submit(&engine).await;
    for (events, expected) in [(&mut of_ann, vec![0, 4]), (&mut of_tenant, vec![0, 1, 2, 4])] {
        for index in expected {
            match events.next().await.unwrap() {
                Some(Event::Task { fact, .. }) => assert_eq!((fact.task, fact.state), (ids[index], task::State::Ready)),
                other => panic!("{other:?}"),
            }
        }
    }
    engine.shutdown().await;
}

async fn why_is_answered_to_the_owner_only(home: Home) {
    let engine = Engine::open(&home.url()).await.unwrap();
    let ids = submit(&engine).await;
    for (id, seen) in ids.iter().zip([true, false, false, false, true]) {
        assert_eq!(engine.why(*id, &ann()).await.unwrap().is_some(), seen);
    }
    engine.shutdown().await;
}
