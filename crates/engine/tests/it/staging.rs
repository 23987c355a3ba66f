//! Removal of what attempts leave in the object store without committing it.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::TaskId;
use tenure_core::attempt::{Failure, Report};
use tenure_core::command::claim::{ClaimTask, Claimant, Claimer, Grant};
use tenure_core::command::emit::{Emit, Proof};
use tenure_core::dag::buffer::{Batch, Content, NewPublish};
use tenure_core::dag::judge::{Said, SaidOutput, SaidVersion, Where};
use tenure_core::dag::task::TaskInput;
use tenure_core::dag::{DataReport, PublishId};
use tenure_core::objects::{OutputRef, Prefix};
use tenure_core::task::State;
use tenure_engine::dags::{DagSettings, Dags, NewVersion, Sender};
use tenure_engine::store::bundles::NewBundle;
use tenure_engine::store::{Clock, TaskFilter};
use tenure_engine::{Duty, Engine, EngineConfig, TaskClaim, random_seed};
use tenure_objects::{Objects, Place, Settings};
use tenure_testkit::wait_until;
use uuid::Uuid;

use crate::harness::{Home, SOON};

const ORG: &str = "acme";
const HOUR: Duration = Duration::from_secs(3_600);
const YAML: &str = "name: d
defaults: { max_attempts: 3 }
jobs:
  - { name: a, activation: source, runtime: worker, operator: a, outputs: 1, source: { kind: manual } }
";

struct Stand {
    engine: Engine,
    dags: Dags,
    clock: Arc<Clock>,
    objects: Arc<Objects>,
    _folder: tempfile::TempDir,
    _home: Home,
}

/// What an attempt has left.
struct Attempt {
    grant: Grant,
    input: TaskInput,
    staging: Prefix,
    scratch: Prefix,
}

impl Stand {
    async fn new() -> Self {
        let (folder, home) = (tempfile::tempdir().unwrap(), Home::sqlite());
        let place = Place::Folder { path: folder.path().join("objects"), allow_file: true };
        let objects = Arc::new(Settings::new(place).open().unwrap());
        let clock = Arc::new(Clock::default());
        let config = EngineConfig { clock: Arc::clone(&clock), ..EngineConfig::default() };
        let engine = Engine::open_with(&home.url(), config).await.unwrap();
        let mut settings = DagSettings::default();
        settings.retry.initial_backoff_ms = 0;
        let dags = engine.dags(settings);
        dags.deploy(NewVersion { org: ORG, yaml: YAML, manual: false, dry_run: false }).await.unwrap();
        Self { engine, dags, clock, objects, _folder: folder, _home: home }
    }

    async fn fire(&self, request: &str) -> TaskId {
        self.dags.trigger(ORG, "d", "a", &request.into(), None).await.unwrap().task
    }

    /// Claims a task and writes all that an attempt can write.
    async fn attempt(&self, task: TaskId) -> Attempt {
        let claimant =
            Claimant { id: "w".into(), incarnation: None, claim_id: None, kills_on_expiry: false, dispatch: true };
        let claimer = Claimer { worker: Some(claimant), seed: random_seed() };
        let claim = ClaimTask { claimer, task, message: None };
        let TaskClaim::Granted(claimed) = self.engine.claim_task(claim).await.unwrap().unwrap() else {
            panic!("not granted")
        };
        let grant = claimed.grants.into_iter().next().unwrap();
        let input: TaskInput = serde_json::from_str(&grant.body.as_ref().unwrap().payload).unwrap();
        let output = input.outputs[0];
        let staging = self.staging(&OutputRef {
            dataset: Uuid::from_u128(output.dataset.as_u128()),
            version: Uuid::from_u128(output.version.as_u128()),
            task: Uuid::from_u128(task.as_u128()),
            attempt: grant.attempt,
            output: 0,
        });
        let scratch = self.objects.layout().scratch(Uuid::from_u128(task.as_u128()), grant.attempt).unwrap();
        self.put(&staging, &["a.parquet", "_SUCCESS"]).await;
        self.put(&scratch, &["buffers/batch.jsonl"]).await;
        Attempt { grant, input, staging, scratch }
    }

    fn staging(&self, output: &OutputRef) -> Prefix {
        self.objects.layout().staging(output).unwrap()
    }

    async fn put(&self, prefix: &Prefix, names: &[&str]) {
        for name in names {
            self.objects.put_new(prefix, name, "1".into()).await.unwrap();
        }
    }

    async fn is_there(&self, prefix: &Prefix) -> bool {
        !self.objects.list(prefix).await.unwrap().is_empty()
    }

    async fn ends(&self, attempt: &Attempt, report: Report, said: &Said) {
        let Grant { task, attempt: number, token, .. } = attempt.grant;
        let sender = Sender { task, attempt: number, token, attempt_id: None };
        self.dags.report(&sender, &ORG.into(), &attempt.input, report, said).await.unwrap().unwrap();
    }

    async fn commits(&self, attempt: &Attempt) {
        let output = SaidOutput {
            dataset: attempt.input.outputs[0].dataset,
            version: SaidVersion::Generation(attempt.input.outputs[0].version),
            at: Where { partition_key: Some("0-9".into()), ..Where::default() },
            location: attempt.staging.to_string().into(),
            row_count: None,
            bytes: None,
            schema_hash: None,
            manifest: None,
        };
        self.ends(attempt, Report::succeeded(None), &Said { outputs: vec![output], ..Said::default() }).await;
    }

    async fn fails(&self, attempt: &Attempt, retryable: bool) {
        let failure = Failure::new("X", "no", None, Some(retryable));
        self.ends(attempt, Report::failed(failure), &Said::default()).await;
    }

    /// Publishes the batch in the scratch folder of an attempt; nothing takes it up.
    async fn publishes(&self, attempt: &Attempt) {
        let dataset = attempt.input.outputs[0].dataset;
        let content = Content::Artifact { uri: format!("{}buffers/batch.jsonl", attempt.scratch).into(), bytes: None };
        let (version, producer, schema_hash, fault) = (None, None, None, None);
        let id = PublishId::of_task(attempt.grant.task, attempt.grant.attempt, dataset, &content);
        let batch = Batch { dataset, version, producer, schema_hash, content, outside: false, fault };
        let publishes = vec![NewPublish::of(id, batch, None)];
        let data = DataReport { publishes, ..DataReport::of(ORG.into(), attempt.input.job) };
        let Grant { task, attempt: number, token, .. } = attempt.grant;
        let emit = Emit { task, attempt: number, proof: Proof::Token(token), data: Arc::new(data) };
        self.engine.emit(emit, 0).await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stale_staging_of_dead_attempts_goes_and_all_else_stays() {
    let stand = Stand::new().await;
    let one = stand.fire("one").await;
    let failed = stand.attempt(one).await;
    stand.fails(&failed, true).await;
    let committed = stand.attempt(one).await;
    stand.commits(&committed).await;
    // Another task has replaced what this one committed; readers may still have its files.
    let replacing = stand.attempt(stand.fire("two").await).await;
    stand.commits(&replacing).await;
    let ended = stand.attempt(stand.fire("three").await).await;
    stand.publishes(&ended).await;
    stand.fails(&ended, false).await;
    let silent = stand.attempt(stand.fire("four").await).await;
    // Tasks that nobody knows any more: what was finished may have been committed.
    let unknown = |task, output| {
        let [dataset, version] = [1, 2].map(Uuid::from_u128);
        OutputRef { dataset, version, task: Uuid::from_u128(task), attempt: 1, output }
    };
    let (finished, unfinished) = (stand.staging(&unknown(3, 0)), stand.staging(&unknown(3, 1)));
    stand.put(&finished, &["a.parquet", "_manifest.json"]).await;
    stand.put(&unfinished, &["a.parquet"]).await;

    // Bundles: of an upload that did not end, finished, and on record.
    let org = Uuid::from_u128(7);
    let bundle = |id: u128| stand.objects.layout().bundle(org, Uuid::from_u128(id)).unwrap();
    for (id, files) in [(1, &["bundle.zip"][..]), (2, &["bundle.zip", "_SUCCESS"]), (3, &["bundle.zip"])] {
        stand.put(&bundle(id), files).await;
    }
    let manifest = r#"{"schema_version":1,"runtime":"node","entrypoint":"i.js","files":[]}"#;
    let new = NewBundle { id: Uuid::from_u128(3), sha256: "0".repeat(64).into(), manifest: manifest.into(), bytes: 1 };
    stand.engine.store().add_bundle(ORG, &new, 1).await.unwrap();

    let young = stand.dags.sweep_staging(&stand.objects, HOUR, u64::MAX).await.unwrap();
    assert_eq!((young.seen, young.removed), (15, 0), "{young:?}");
    stand.clock.advance(2 * HOUR.as_millis() as i64);
    wait_until("the silent attempt is closed", SOON, async || {
        let filter = TaskFilter { state: Some(State::Running), limit: 9, ..TaskFilter::default() };
        stand.engine.tasks(&filter).await.unwrap().items.is_empty()
    })
    .await;
    let swept = stand.dags.sweep_staging(&stand.objects, HOUR, u64::MAX).await.unwrap();
    assert_eq!((swept.removed, swept.failed, swept.kept), (7, 0, 8), "{swept:?}");
    for (what, prefix, stays) in [
        ("output of a failed attempt", &failed.staging, false),
        ("its scratch", &failed.scratch, false),
        ("committed output", &committed.staging, true),
        ("its scratch", &committed.scratch, false),
        ("committed by another", &replacing.staging, true),
        ("its scratch", &replacing.scratch, false),
        ("output of a task that failed for good", &ended.staging, false),
        ("a batch that waits", &ended.scratch, true),
        ("output of an attempt that may report late", &silent.staging, true),
        ("its scratch", &silent.scratch, true),
        ("finished, of an unknown task", &finished, true),
        ("unfinished, of an unknown task", &unfinished, false),
        ("a bundle of an upload that did not end", &bundle(1), false),
        ("a finished bundle", &bundle(2), true),
        ("a bundle on record", &bundle(3), true),
    ] {
        assert_eq!(stand.is_there(prefix).await, stays, "{what}");
    }
    // Once another attempt was granted, the silent one can commit nothing.
    let next = stand.attempt(silent.grant.task).await;
    let swept = stand.dags.sweep_staging(&stand.objects, HOUR, u64::MAX).await.unwrap();
    assert_eq!((swept.removed, stand.is_there(&silent.staging).await), (2, false), "{swept:?}");
    assert!(stand.is_there(&next.staging).await && stand.is_there(&next.scratch).await, "it runs");
    stand.engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn staging_is_cleaned_by_itself_in_rounds() {
    let stand = Stand::new().await;
    let task = stand.fire("one").await;
    let failed = stand.attempt(task).await;
    stand.fails(&failed, true).await;
    let running = stand.attempt(task).await;
    stand.commits(&running).await;
    assert!(stand.engine.has(Duty::Staging));
    stand.dags.clean_staging(Arc::clone(&stand.objects), HOUR);
    stand.clock.advance(2 * HOUR.as_millis() as i64);
    wait_until("the staging of the failed attempt is gone", SOON, async || !stand.is_there(&failed.staging).await)
        .await;
    wait_until("scratch too", SOON, async || !stand.is_there(&running.scratch).await).await;
    assert!(stand.is_there(&running.staging).await, "it is committed");
    stand.engine.shutdown().await;
}
