//! What all random cases have in common: chance, names, and the ways of a case with its control plane.

use tenure_core::dag::deployment::JobOutput;
use tenure_engine::store::Fault;

use super::super::*;

/// SplitMix64.
pub struct Rng(pub u64);

impl Rng {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        let n = self.below(items.len().max(1) as u64);
        items.get(n as usize)
    }
}

pub fn name(job: usize) -> String {
    format!("j{job}")
}

/// The two halves of a range that has them.
pub fn halves(key: &str) -> Option<Vec<String>> {
    let (start, end) = key.split_once('-')?;
    let (start, end): (u64, u64) = (start.parse().ok()?, end.parse().ok()?);
    let middle = start.midpoint(end);
    (end > start).then(|| [(start, middle), (middle + 1, end)].map(|(a, b)| format!("{a}-{b}")).into())
}

pub fn place_of(key: &str) -> Where {
    Where { partition_key: Some(key.into()), ..Where::default() }
}

/// An output at this place.
pub fn output(of: JobOutput, at: Where, location: &str) -> SaidOutput {
    SaidOutput {
        dataset: of.dataset,
        version: SaidVersion::Generation(of.version),
        at,
        location: location.into(),
        row_count: None,
        bytes: None,
        schema_hash: None,
        manifest: None,
    }
}

/// Reports that a task has written this.
pub async fn report(plane: &Plane, grant: &Grant, said: &Said) -> Result<(), Rejection> {
    let report = Report::succeeded(Some("{}".into()));
    let reply = plane.dags.report(&Plane::sender(grant), &ORG.into(), &input(grant), report, said).await;
    reply.unwrap().map(drop)
}

pub async fn ready(plane: &Plane) -> Vec<TaskView> {
    let filter = TaskFilter { state: Some(State::Ready), limit: 1_000, ..TaskFilter::default() };
    plane.engine.tasks(&filter).await.unwrap().items
}

/// The router stops between making tasks and saying so.
pub fn stop_routing(plane: &Plane) {
    plane.engine.store().faults().fail_in("mark events as routed", Fault::Contention);
}

/// Waits until everything is routed, and looks for what was missed.
pub async fn settle(plane: &Plane) {
    let store = plane.engine.store();
    store.faults().clear();
    wait_until("everything is routed", SOON, async || {
        let events = store.unrouted(&[], 0, 1).await.unwrap();
        events.is_empty() && store.open_invalidations(&[], 1).await.unwrap().is_empty()
    })
    .await;
    plane.dags.reconcile().await.unwrap();
}

/// A case in progress.
pub trait Case {
    async fn step(&mut self, plane: &Plane);

    /// Until nothing is left to do.
    async fn drain(&mut self, plane: &Plane);

    async fn compare(&self, plane: &Plane);

    fn rng(&mut self) -> &mut Rng;
}

/// Random steps, with another control plane from some step on; then everything is as it should be.
pub async fn run(case: &mut impl Case, mut plane: Plane, home: &Home, steps: u64) -> Plane {
    let restart = steps / 4 + case.rng().below(steps / 2);
    for step in 0..steps {
        if step == restart {
            plane.stop().await;
            plane = super::super::plane(home).await;
        }
        case.step(&plane).await;
    }
    case.drain(&plane).await;
    case.compare(&plane).await;
    plane
}

/// Says which case failed.
pub struct Seed(pub u64);

impl Drop for Seed {
    #[expect(clippy::print_stderr, reason = "whoever looks into a failure wants to run the case again")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the case of TENURE_DAG_SEED={}", self.0);
        }
    }
}

pub fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("TENURE_DAG_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..count).collect(),
    }
}
