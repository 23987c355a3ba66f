use super::*;
use crate::dag::data::{Artifact, DataReport, OutputCommit, Partition, Position};
use crate::dag::{DatasetId, JobId, VersionId};

const DATASET: DatasetId = DatasetId::from_u128(1);
const GENERATION: VersionId = VersionId::from_u128(2);

fn output(name: u128, location: &str) -> OutputCommit {
    OutputCommit {
        dataset: DATASET,
        version: GENERATION,
        position: Position::Partition(Partition { key: "1-9".into(), ends: Some((1, 9)) }),
        location: location.into(),
        row_count: None,
        bytes: None,
        schema_hash: None,
        manifest: None,
        artifact: Some(VersionId::from_u128(name)),
    }
}

fn publish(seed: u8, outputs: Vec<OutputCommit>) -> Command {
    let data = DataReport { outputs, ..DataReport::of("acme".into(), JobId(7)) };
    let (attempt_id, token) = (attempt_id(seed), token(seed));
    let report = succeeded("1");
    Command::Report(AttemptReport { task: id(), attempt_id, token, report, data: Some(Arc::new(data)) })
}

/// Decides a report while this artifact is on record.
fn decide(known: Option<Artifact>, command: Command) -> (Outcome, Writes) {
    let commands = [command];
    let mut world = world_for(1_000, &commands);
    load(&mut world, Place::Running(running()), &[], &commands);
    known.into_iter().for_each(|known| world.add_artifact(known.name, known.digest));
    let outcome = world.decide(&commands, false).remove(0);
    (outcome, world.writes())
}

#[test]
fn a_name_is_written_when_it_is_given_and_refused_for_other_content() {
    let known = || output(7, "s3://b/1/").named_artifact();
    let (given, writes) = decide(None, publish(1, vec![output(7, "s3://b/1/"), output(7, "s3://b/1/")]));
    assert!(given.is_ok());
    assert_eq!(writes.artifacts, Vec::from_iter(known()));
    let (again, writes) = decide(known(), publish(1, vec![output(7, "s3://b/1/")]));
    assert_eq!((again.is_ok(), writes.artifacts.len(), writes.data.len()), (true, 0, 1));
    for (known, outputs) in [
        (known(), vec![output(8, "s3://b/2/"), output(7, "s3://b/2/")]),
        (None, vec![output(7, "s3://b/1/"), output(7, "s3://b/2/")]),
    ] {
        let (refused, writes) = decide(known, publish(1, outputs));
        let Err(Rejection::Data(refusal)) = refused else { panic!("{refused:?}") };
        assert_eq!(refusal.code, "dataset_version_conflict");
        assert!(writes.is_empty(), "{writes:?}");
    }
}

#[test]
fn who_does_not_hold_the_attempt_learns_nothing_of_names() {
    let known = output(7, "s3://b/1/").named_artifact();
    let (stranger, _) = decide(known, publish(9, vec![output(7, "s3://b/2/")]));
    assert_eq!(conflict(&stranger).kind, ConflictKind::StaleAttempt);
}

#[test]
fn the_parts_of_a_content_do_not_run_into_each_other() {
    let hashed = |location: &str, hash: &str| {
        let output = OutputCommit { schema_hash: Some(hash.into()), ..output(7, location) };
        output.named_artifact().map(|artifact| artifact.digest)
    };
    assert_ne!(hashed("s3://b/1/", "x"), hashed("s3://b/1", "/x"));
}
