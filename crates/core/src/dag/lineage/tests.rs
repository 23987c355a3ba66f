use super::*;
use crate::dag::testing::{Counter, dag, deploy, published, reader, source};

/// `import -> decode -> count` of one DAG, and `report` of another one that reads `decode` by cursor and has no output.
fn deployment() -> Deployment {
    let (mut deployment, mut fresh) = (Deployment::default(), Counter::default());
    let jobs = vec![
        source("import", 0),
        reader("decode", &["import"], "PerPartition", 0),
        reader("count", &["decode", "import"], "PerPartition", 0),
    ];
    deploy(&mut deployment, &published(dag("chain", jobs), "decode", "decoded"), &mut fresh, false).unwrap();
    let mut report = reader("report", &["@decoded"], "PerUpdate", 0);
    report.outputs = 0;
    deploy(&mut deployment, &dag("reports", vec![report]), &mut fresh, false).unwrap();
    deployment
}

fn output_of(deployment: &Deployment, job: &str) -> DatasetId {
    let found = deployment.datasets.iter().find(|(_, dataset)| &*dataset.job == job);
    *found.unwrap().0
}

/// DAG, job, whether it is an output, distance.
fn shown(related: &[Related]) -> Vec<(&str, &str, bool, u32)> {
    related.iter().map(|it| (&*it.dag, &*it.job, it.output.is_some(), it.distance)).collect()
}

#[test]
fn what_is_near_comes_first_in_both_directions() {
    let deployment = deployment();
    let lineage = Lineage::of(&deployment);
    let of = |job| output_of(&deployment, job);
    let downstream = lineage.downstream(of("import"), 10);
    assert_eq!(
        shown(&downstream),
        [("chain", "decode", true, 1), ("chain", "count", true, 1), ("reports", "report", false, 2)]
    );
    assert_eq!(downstream[1].reads, [of("decode"), of("import")]);
    let upstream = lineage.upstream(of("count"), 10);
    assert_eq!(shown(&upstream), [("chain", "decode", true, 1), ("chain", "import", true, 1)]);
    assert_eq!((&upstream[0].reads[..], upstream[1].reads.len()), (&[of("import")][..], 0));
    assert_eq!(lineage.upstream(of("import"), 10), []);
    assert_eq!(lineage.downstream(of("count"), 10), []);
}

#[test]
fn lists_end_at_their_limit() {
    let deployment = deployment();
    let lineage = Lineage::of(&deployment);
    assert_eq!(lineage.downstream(output_of(&deployment, "import"), 2).len(), 2);
    assert_eq!(lineage.upstream(output_of(&deployment, "count"), 1).len(), 1);
}

#[test]
fn only_readers_by_cursor_are_consumers() {
    let deployment = deployment();
    let lineage = Lineage::of(&deployment);
    let consumers: Vec<_> =
        lineage.consumers(output_of(&deployment, "decode")).map(|(_, job)| (&*job.dag, &*job.name)).collect();
    assert_eq!(consumers, [("reports", "report")]);
}
