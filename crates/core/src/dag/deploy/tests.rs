use proptest::prelude::*;

use super::*;
use crate::dag::testing::{Counter, active_job, dag, deploy, published, reader, source};

fn names(list: &[Arc<str>]) -> Vec<&str> {
    list.iter().map(|name| &**name).collect()
}

fn chain(config: u32) -> DagDefinition {
    let jobs = vec![
        source("import", 0),
        reader("decode", &["import"], "PerPartition", config),
        reader("count", &["decode"], "PerPartition", 0),
        reader("side", &["import"], "PerUpdate", 0),
    ];
    dag("chain", jobs)
}

#[test]
fn the_first_version_works_at_once() {
    let (mut deployment, mut fresh) = (Deployment::default(), Counter::default());
    let planned = deploy(&mut deployment, &chain(0), &mut fresh, false).unwrap();
    assert_eq!((planned.number, planned.is_new, planned.jobs.len(), planned.generations.len()), (1, true, 4, 4));
    assert_eq!(deployment.active("chain").unwrap().state, VersionState::Active);
    assert!(deployment.jobs.values().all(|job| !job.held));
    assert!(deployment.datasets.values().all(|dataset| dataset.current == dataset.versions.last().copied()));
    let switch = planned.switch.unwrap();
    assert_eq!((switch.active, switch.previous, switch.datasets.len()), (Some(1), None, 4));
}

#[test]
fn the_same_dag_again_changes_nothing() {
    let (mut deployment, mut fresh) = (Deployment::default(), Counter::default());
    deploy(&mut deployment, &chain(0), &mut fresh, false).unwrap();
    let before = deployment.clone();
    let mut shuffled = chain(0);
    shuffled.jobs.reverse();
    let again = deploy(&mut deployment, &chain(0), &mut fresh, false).unwrap();
    assert_eq!((again.is_known, again.number, &deployment), (true, 1, &before));
    // Another text of the same meaning is a version, and nothing is rebuilt.
    let planned = deploy(&mut deployment, &shuffled, &mut fresh, false).unwrap();
    assert_eq!((planned.number, planned.kept.len(), planned.rebuild.len()), (2, 4, 0));
    assert_eq!((deployment.jobs.len(), deployment.dags["chain"].active), (4, Some(2)));
}

#[test]
fn a_change_rebuilds_the_job_and_what_follows_from_it() {
    let (mut deployment, mut fresh) = (Deployment::default(), Counter::default());
    deploy(&mut deployment, &chain(0), &mut fresh, false).unwrap();
    let old = deployment.clone();
    let planned = deploy(&mut deployment, &chain(1), &mut fresh, false).unwrap();
    assert_eq!(names(&planned.changed), ["decode"]);
    assert_eq!(names(&planned.rebuild), ["count", "decode"]);
    assert_eq!(names(&planned.kept), ["import", "side"]);
    assert_eq!(deployment.staged("chain").unwrap().1.state, VersionState::Staging);
    assert_eq!(deployment.active("chain"), old.active("chain"), "the active version works on");
    assert!(deployment.datasets.iter().all(|(id, dataset)| dataset.current == old.datasets[id].current));
    let staged = deployment.staged("chain").unwrap().1.jobs.clone();
    assert!(deployment.jobs[&staged["decode"]].held && !deployment.jobs[&staged["import"]].held);
    let refused = deployment.cut_over("chain", 2);
    assert_eq!(refused, Err(super::super::deployment::Refused::NotReady { state: VersionState::Staging }));
    assert!(deployment.make_ready("chain", 2, 0));
    let switch = deployment.cut_over("chain", 2).unwrap();
    assert_eq!((switch.active, switch.previous, switch.datasets.len()), (Some(2), Some(1), 2));
    assert_eq!(switch.retired.len(), 2);
    assert_eq!(deployment.cut_over("chain", 2).unwrap().datasets, [], "it is active already");
    let back = deployment.roll_back("chain").unwrap();
    assert_eq!((back.active, back.abandoned.len(), back.retired.len()), (Some(1), 2, 0));
    assert_eq!(deployment.version("chain", 2).unwrap().state, VersionState::RolledBack);
    for (id, dataset) in &deployment.datasets {
        assert_eq!(dataset.current, old.datasets[id].current);
    }
    assert_eq!(deployment.roll_back("chain"), Err(super::super::deployment::Refused::NoPrevious));
}

#[test]
fn a_version_that_waits_is_abandoned_for_the_next_one() {
    let (mut deployment, mut fresh) = (Deployment::default(), Counter::default());
    deploy(&mut deployment, &chain(0), &mut fresh, false).unwrap();
    deploy(&mut deployment, &chain(1), &mut fresh, false).unwrap();
    let planned = deploy(&mut deployment, &chain(2), &mut fresh, false).unwrap();
    assert_eq!((planned.number, planned.abandoned.len()), (3, 2));
    assert_eq!(deployment.version("chain", 2).unwrap().state, VersionState::Abandoned);
    // Its YAML once more is staged under its own number.
    let again = deploy(&mut deployment, &chain(1), &mut fresh, false).unwrap();
    assert_eq!((again.number, again.is_known, again.is_new), (2, false, false));
    assert_eq!(deployment.version("chain", 3).unwrap().state, VersionState::Abandoned);
}

#[test]
fn a_manual_version_waits_for_somebody() {
    let (mut deployment, mut fresh) = (Deployment::default(), Counter::default());
    let planned = deploy(&mut deployment, &chain(0), &mut fresh, true).unwrap();
    assert_eq!((planned.switch, deployment.dags["chain"].active), (None, None));
    assert_eq!(deployment.version("chain", 1).unwrap().state, VersionState::Ready);
    deployment.cut_over("chain", 1).unwrap();
    assert!(deployment.jobs.values().all(|job| !job.held));
}

#[test]
fn datasets_of_other_dags_are_read_as_they_stand_there() {
    let (mut deployment, mut fresh) = (Deployment::default(), Counter::default());
    let down = dag("down", vec![reader("sum", &["@events"], "PerUpdate", 0)]);
    let missing = deploy(&mut deployment, &down, &mut fresh, false).unwrap_err();
    assert_eq!((&*missing.job, &*missing.dataset), ("sum", "events"));
    let up = |config| published(dag("up", vec![source("emit", config)]), "emit", "events");
    deploy(&mut deployment, &up(0), &mut fresh, false).unwrap();
    deploy(&mut deployment, &down, &mut fresh, false).unwrap();
    let sum = active_job(&deployment, "down", "sum");
    let read = |deployment: &Deployment| deployment.reads(&deployment.jobs[&sum].inputs[0]).unwrap();
    let before = read(&deployment);
    deploy(&mut deployment, &up(1), &mut fresh, false).unwrap();
    assert_eq!(active_job(&deployment, "down", "sum"), sum, "the reader stays");
    assert_ne!(read(&deployment), before, "and reads what is there now");
}

/// What people do with a DAG.
#[derive(Debug, Clone)]
enum Act {
    /// The configuration of each of three jobs, and which of the earlier ones each of the last two reads.
    Deploy {
        configs: [u32; 3],
        reads: [u8; 2],
        manual: bool,
    },
    Ready,
    CutOver(i64),
    RollBack,
}

fn act() -> impl Strategy<Value = Act> {
    let configs = prop::array::uniform3(0_u32..2);
    prop_oneof![
        4 => (configs, prop::array::uniform2(1_u8..4), any::<bool>())
            .prop_map(|(configs, reads, manual)| Act::Deploy { configs, reads, manual }),
        2 => Just(Act::Ready),
        2 => (1_i64..6).prop_map(Act::CutOver),
        1 => Just(Act::RollBack),
    ]
}

fn three(configs: [u32; 3], reads: [u8; 2]) -> DagDefinition {
    let upstream = |mask: u8, names: &'static [&'static str]| -> Vec<&'static str> {
        names.iter().enumerate().filter(|(n, _)| mask & (1 << n) != 0).map(|(_, name)| *name).collect()
    };
    let (b, c) = (upstream(1, &["a"]), upstream(reads[1], &["a", "b"]));
    let jobs = vec![
        source("a", configs[0]),
        reader("b", &b, if reads[0] == 1 { "PerUpdate" } else { "PerPartition" }, configs[1]),
        reader("c", &c, "PerPartition", configs[2]),
    ];
    dag("d", jobs)
}

fn check(deployment: &Deployment) {
    let dag = &deployment.dags["d"];
    let active: Vec<i64> =
        dag.versions.iter().filter(|(_, v)| v.state == VersionState::Active).map(|(number, _)| *number).collect();
    assert_eq!(active, dag.active.into_iter().collect::<Vec<_>>(), "one version is active, the one that is named");
    assert!(dag.versions.values().filter(|version| version.state.is_staged()).count() <= 1);
    let at_work: BTreeSet<JobId> =
        deployment.active("d").into_iter().flat_map(|version| version.jobs.values().copied()).collect();
    for (id, job) in &deployment.jobs {
        assert_eq!(job.held, !at_work.contains(id), "held exactly if no active version has it: {id:?}");
    }
    let current: BTreeMap<DatasetId, VersionId> =
        at_work.iter().flat_map(|id| &deployment.jobs[id].outputs).map(|it| (it.dataset, it.version)).collect();
    for (id, dataset) in &deployment.datasets {
        assert_eq!(dataset.current, current.get(id).copied(), "current is what the active version writes");
    }
    for version in dag.versions.values().filter(|version| version.state != VersionState::Abandoned) {
        let written: BTreeSet<(DatasetId, VersionId)> = version
            .jobs
            .values()
            .flat_map(|id| &deployment.jobs[id].outputs)
            .map(|output| (output.dataset, output.version))
            .collect();
        for input in version.jobs.values().flat_map(|id| &deployment.jobs[id].inputs) {
            assert!(written.contains(&(input.dataset, input.version.unwrap())), "a version reads what it writes");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever is deployed, cut over and rolled back: pointers, states and held jobs agree.
    #[test]
    fn any_history_is_sound(acts in prop::collection::vec(act(), 1..25)) {
        let (mut deployment, mut fresh) = (Deployment::default(), Counter::default());
        for act in acts {
            let before = deployment.clone();
            match act {
                Act::Deploy { configs, reads, manual } => {
                    let planned = deploy(&mut deployment, &three(configs, reads), &mut fresh, manual).unwrap();
                    if let Some(active) = before.active("d") {
                        for name in &planned.kept {
                            prop_assert_eq!(deployment.version("d", planned.number).unwrap().jobs.get(name),
                                if planned.is_known { before.version("d", planned.number).unwrap().jobs.get(name) } else { active.jobs.get(name) });
                        }
                    }
                }
                Act::Ready => {
                    if let Some((number, _)) = before.staged("d") {
                        deployment.make_ready("d", number, 0);
                    }
                }
                Act::CutOver(number) => {
                    if deployment.cut_over("d", number).is_err() {
                        prop_assert_eq!(&deployment, &before, "a refusal changes nothing");
                    }
                }
                Act::RollBack => {
                    if deployment.roll_back("d").is_err() {
                        prop_assert_eq!(&deployment, &before, "a refusal changes nothing");
                    }
                }
            }
            if deployment.dags.contains_key("d") {
                check(&deployment);
            }
            let text = serde_json::to_string(&deployment).unwrap();
            prop_assert_eq!(&serde_json::from_str::<Deployment>(&text).unwrap(), &deployment);
        }
    }
}
