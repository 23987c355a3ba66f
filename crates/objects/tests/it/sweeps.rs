//! Removal of what nobody has committed.

use async_trait::async_trait;
use tenure_core::Timestamp;
use tenure_core::objects::Staged;
use tenure_objects::{Judge, Left, ObjectError, Swept};

use crate::stand::{Stand, output};

crate::on_both!(
    old_staging_goes_and_committed_data_stays,
    what_is_young_stays,
    a_judge_that_cannot_answer_removes_nothing,
    many_outputs_are_judged_in_pages,
    a_judge_is_told_what_is_finished,
    a_round_ends_when_it_has_removed_its_share,
);

/// Keeps what is in its list.
struct Committed(Vec<Staged>);

#[async_trait]
impl Judge for Committed {
    async fn removable(&self, left: &[Left]) -> Result<Vec<bool>, ObjectError> {
        assert!(left.len() <= 100);
        Ok(left.iter().map(|left| !self.0.contains(&left.staged)).collect())
    }
}

struct Unable;

#[async_trait]
impl Judge for Unable {
    async fn removable(&self, _: &[Left]) -> Result<Vec<bool>, ObjectError> {
        Err(ObjectError::Unavailable("the state store is away".into()))
    }
}

const LATER: Timestamp = Timestamp::MAX;

async fn old_staging_goes_and_committed_data_stays(stand: Stand) {
    let (committed, lost) = (output(1, 2), output(1, 1));
    for output in [&committed, &lost] {
        let location = stand.staging(output);
        for name in ["a.parquet", "deep/b.parquet", "_SUCCESS", "_manifest.json"] {
            stand.put(&location, name, "1").await;
        }
    }
    let layout = stand.objects.layout();
    let scratch = layout.scratch(lost.task, 1).unwrap();
    stand.put(&scratch, "buffers/batch.jsonl", "{}").await;
    // Neither is a staged output, whatever its age.
    let version = layout.version(lost.dataset, lost.version).unwrap();
    stand.put(&version, "kept.parquet", "1").await;
    let results = layout.root().below("scratch/results/x").unwrap();
    stand.put(&results, "r.csv", "1").await;

    let batch = format!("{scratch}buffers/batch.jsonl");
    assert_eq!(stand.objects.staged(&batch), Some(Staged::Scratch { task: lost.task, attempt: 1 }));
    assert_eq!(stand.objects.staged(&format!("{}a", stand.staging(&lost))), Some(Staged::Output(lost)));
    for other in [format!("{results}r.csv"), format!("{version}kept.parquet"), format!("s3://else/{}x", scratch.path())]
    {
        assert_eq!(stand.objects.staged(&other), None, "{other}");
    }
    let judge = Committed(vec![Staged::Output(committed)]);
    let swept = stand.objects.sweep(LATER, u64::MAX, &judge).await.unwrap();
    assert_eq!(swept, Swept { seen: 3, kept: 1, removed: 2, failed: 0, has_more: false });
    assert!(stand.names(&stand.staging(&lost)).await.is_empty() && stand.names(&scratch).await.is_empty());
    assert_eq!(stand.names(&stand.staging(&committed)).await.len(), 4);
    assert!(stand.names(&version).await.contains(&"kept.parquet".to_owned()));
    assert_eq!(stand.names(&results).await, ["r.csv"]);
    let again = stand.objects.sweep(LATER, u64::MAX, &judge).await.unwrap();
    assert_eq!(again, Swept { seen: 1, kept: 1, removed: 0, failed: 0, has_more: false });
}

async fn what_is_young_stays(stand: Stand) {
    let output = output(1, 1);
    stand.put(&stand.staging(&output), "a.parquet", "1").await;
    let swept = stand.objects.sweep(Timestamp::from_millis(1), u64::MAX, &Committed(vec![])).await.unwrap();
    assert_eq!(swept, Swept { seen: 1, ..Swept::default() });
    assert_eq!(stand.names(&stand.staging(&output)).await, ["a.parquet"]);
}

async fn a_judge_that_cannot_answer_removes_nothing(stand: Stand) {
    let output = output(1, 1);
    stand.put(&stand.staging(&output), "a.parquet", "1").await;
    assert!(stand.objects.sweep(LATER, u64::MAX, &Unable).await.is_err());
    assert_eq!(stand.names(&stand.staging(&output)).await, ["a.parquet"]);
}

async fn many_outputs_are_judged_in_pages(stand: Stand) {
    for task in 0..150 {
        stand.put(&stand.staging(&output(task, 1)), "a.parquet", "1").await;
    }
    let kept = (0..150).step_by(10).map(|task| Staged::Output(output(task, 1))).collect();
    let swept = stand.objects.sweep(LATER, u64::MAX, &Committed(kept)).await.unwrap();
    assert_eq!(swept, Swept { seen: 150, kept: 15, removed: 135, failed: 0, has_more: false });
}

/// Removes what was never finished.
struct Unfinished;

#[async_trait]
impl Judge for Unfinished {
    async fn removable(&self, left: &[Left]) -> Result<Vec<bool>, ObjectError> {
        Ok(left.iter().map(|left| !left.is_finished).collect())
    }
}

async fn a_judge_is_told_what_is_finished(stand: Stand) {
    // Names that sort before and after the marker, and one that only ends like it.
    for (task, names) in [
        (1, ["A.parquet", "_SUCCESS", "a.parquet"].as_slice()),
        (2, &["A.parquet", "_manifest.json"]),
        (3, &["deep/_SUCCESS", "a_SUCCESS"]),
    ] {
        for name in names {
            stand.put(&stand.staging(&output(task, 1)), name, "1").await;
        }
    }
    let swept = stand.objects.sweep(LATER, u64::MAX, &Unfinished).await.unwrap();
    assert_eq!(swept, Swept { seen: 3, kept: 2, removed: 1, failed: 0, has_more: false });
    assert!(stand.names(&stand.staging(&output(3, 1))).await.is_empty());
}

async fn a_round_ends_when_it_has_removed_its_share(stand: Stand) {
    for task in 0..250 {
        stand.put(&stand.staging(&output(task, 1)), "a.parquet", "1").await;
    }
    let first = stand.objects.sweep(LATER, 120, &Committed(vec![])).await.unwrap();
    assert!(first.has_more && (120..250).contains(&first.removed), "{first:?}");
    let rest = stand.objects.sweep(LATER, u64::MAX, &Committed(vec![])).await.unwrap();
    assert_eq!((first.removed + rest.removed, rest.has_more), (250, false));
}
