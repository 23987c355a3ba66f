use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::dag::data::Partition;
use crate::dag::testing::{Counter, active_job, dag, deploy, reader, source};

fn chain(config: u32) -> crate::dag::DagDefinition {
    let jobs = vec![
        source("import", 0),
        reader("decode", &["import"], "PerPartition", config),
        reader("count", &["decode"], "PerPartition", 0),
        reader("side", &["import", "import"], "PerUpdate", 0),
    ];
    dag("chain", jobs)
}

fn partition(key: &str) -> Position {
    Position::Partition(Partition { key: key.into(), ends: None })
}

fn output(deployment: &Deployment, job: JobId) -> (DatasetId, VersionId) {
    let output = deployment.jobs[&job].outputs[0];
    (output.dataset, output.version)
}

fn routed(deployment: &Deployment, from: JobId, position: &Position) -> Result<Vec<(JobId, bool)>, Unrouted> {
    let (dataset, version) = output(deployment, from);
    let event = Event { dataset, version, position, generation: 0 };
    let made = route(deployment, &Readers::of(deployment), &event)?;
    Ok(made.into_iter().map(|delivery| (delivery.job, delivery.rebuild)).collect())
}

#[test]
fn each_reader_gets_one_task_of_the_kind_it_takes() {
    let (mut deployment, mut fresh) = (Deployment::default(), Counter::default());
    deploy(&mut deployment, &chain(0), &mut fresh, false).unwrap();
    let job = |name| active_job(&deployment, "chain", name);
    let (import, decode, side, count) = (job("import"), job("decode"), job("side"), job("count"));
    assert_eq!(routed(&deployment, import, &partition("1-5")), Ok(vec![(decode, false), (side, false)]));
    assert_eq!(routed(&deployment, import, &Position::Cursor(5)), Ok(vec![(side, false)]));
    assert_eq!(routed(&deployment, decode, &partition("1-5")), Ok(vec![(count, false)]));
    assert_eq!(routed(&deployment, decode, &Position::Cursor(5)), Err(Unrouted::NotAPartition));
    assert_eq!(routed(&deployment, side, &Position::Cursor(5)), Err(Unrouted::NoReader));
}

#[test]
fn a_staged_version_is_fed_too_and_an_old_one_no_longer() {
    let (mut deployment, mut fresh) = (Deployment::default(), Counter::default());
    deploy(&mut deployment, &chain(0), &mut fresh, false).unwrap();
    let (import, old, side) = (
        active_job(&deployment, "chain", "import"),
        active_job(&deployment, "chain", "decode"),
        active_job(&deployment, "chain", "side"),
    );
    deploy(&mut deployment, &chain(1), &mut fresh, false).unwrap();
    let staged = deployment.staged("chain").unwrap().1.jobs.clone();
    let (new, new_count) = (staged["decode"], staged["count"]);
    // Events of what both versions read wait for the one, once it is known what there is to rebuild; what rebuilds it does
    // not wait.
    for rebuild in [true, false] {
        let fed: BTreeSet<_> = routed(&deployment, import, &partition("1-5")).unwrap().into_iter().collect();
        assert_eq!(fed, BTreeSet::from([(old, false), (side, false), (new, rebuild)]));
        deployment.note_rebuilding("chain", 2);
    }
    assert_eq!(routed(&deployment, new, &partition("1-5")), Ok(vec![(new_count, true)]));
    deployment.make_ready("chain", 2, 0);
    deployment.cut_over("chain", 2).unwrap();
    assert_eq!(routed(&deployment, old, &partition("6-9")), Err(Unrouted::OldVersion));
    assert_eq!(routed(&deployment, new, &partition("6-9")), Ok(vec![(new_count, false)]));
}

proptest! {
    /// A key names dataset, generation of the dataset, position and generation of the position, and nothing else.
    #[test]
    fn keys_are_equal_for_equal_events_only(a in event(), b in event()) {
        let key = |event: &(u128, u128, Position, i64)| {
            let (dataset, version) = (DatasetId::from_u128(event.0), VersionId::from_u128(event.1));
            dedupe_key(&Event { dataset, version, position: &event.2, generation: event.3 })
        };
        prop_assert_eq!(key(&a) == key(&b), a == b);
        prop_assert!(key(&a).len() <= 400);
    }
}

fn event() -> impl Strategy<Value = (u128, u128, Position, i64)> {
    let position = prop_oneof![
        (0_i64..3).prop_map(Position::Cursor),
        prop::sample::select(vec!["1", "2", "1-2", "a:g1", "a", "2:g0"]).prop_map(partition),
    ];
    (0_u128..2, 0_u128..2, position, 0_i64..2)
}
