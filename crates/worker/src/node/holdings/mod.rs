//! What this worker holds: fences, intents, runtimes and answers, in memory and on disk.

mod entry;
mod log;
mod record;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tenure_sandbox::RuntimeId;

pub(crate) use entry::{Entry, Stage};
use log::{Log, Synced};
use record::Record;
pub use record::{Answer, Order};

use super::clock::{self, Moment};
use super::error::NodeError;
use super::lease::{Lease, LeaseRefusal};

/// Sandboxes that are held or remembered.
const MAX_ENTRIES: usize = 100_000;
/// A fence is needed until no delayed call can carry an older token.
const FENCE_KEPT: Duration = Duration::from_secs(24 * 3600);
/// How long a repeated request gets the same answer.
pub const ANSWER_KEPT: Duration = Duration::from_secs(10 * 60);
const MAX_ANSWERS: usize = 10_000;
const MAX_ANSWER_BYTES: usize = 64 << 20;
/// The log is written anew when it has grown by this and doubled.
const COMPACT_BYTES: usize = 4 << 20;

/// Why the holdings could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{path} cannot be used as the worker's data folder: {source}")]
    Folder { path: PathBuf, source: io::Error },
    #[error("another worker uses the data folder {0}: give each worker its own with --data-dir")]
    Locked(PathBuf),
    #[error(
        "the data folder {path} belongs to worker {owner:?}, and this is {id:?}: use another folder, or the same worker id"
    )]
    Foreign { path: PathBuf, owner: String, id: String },
    #[error(
        "{path} cannot be read: {reason}. It says which leases were superseded, so the worker does not start without it; \
         destroy the sandboxes of this worker before you remove it"
    )]
    Damaged { path: PathBuf, reason: String },
}

/// The holdings of one worker. There is one per data folder.
#[derive(Debug)]
pub struct Holdings {
    worker_id: String,
    state: Mutex<State>,
    _lock: File,
}

#[derive(Debug)]
struct State {
    log: Log,
    /// Bytes in the file, and after its last compaction.
    bytes: usize,
    compacted_bytes: usize,
    machine_start: String,
    known: Known,
}

/// What the records add up to.
#[derive(Debug, Default)]
struct Known {
    entries: BTreeMap<String, Entry>,
    /// Every runtime that is held, or was since the entry began.
    runtimes: HashMap<RuntimeId, String>,
    answers: VecDeque<Answer>,
    answer_bytes: usize,
    lease_renewal: bool,
}

impl Holdings {
    /// Opens the holdings in `folder`, which is created if it is missing.
    pub fn open(folder: &Path, worker_id: &str) -> Result<Self, OpenError> {
        let unusable = |source| OpenError::Folder { path: folder.to_owned(), source };
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(unusable)?;
        let lock = lock(folder)?;
        let machine_start = clock::machine_start().map_err(unusable)?;
        let known = read(folder, worker_id, &machine_start)?;
        let content = known.content(worker_id, &machine_start);
        let log = Log::create(folder, &content).map_err(unusable)?;
        let (bytes, compacted_bytes) = (content.len(), content.len());
        let state = State { log, bytes, compacted_bytes, machine_start, known };
        Ok(Self { worker_id: worker_id.to_owned(), state: Mutex::new(state), _lock: lock })
    }

    pub fn worker_id(&self) -> &str {
        &self.worker_id
    }

    /// Whether a lease permits a call on a sandbox. Records nothing: see [`Holdings::admit`].
    pub fn check_lease(&self, lease: &Lease, resource_id: &str) -> Result<(), LeaseRefusal> {
        let stale = |reason: String| Err(LeaseRefusal::Stale(reason));
        if lease.holder_id != self.worker_id {
            return stale(format!(
                "the lease is held by {:?}, and this worker is {:?}",
                lease.holder_id, self.worker_id
            ));
        }
        if lease.resource_id.trim().is_empty() || lease.resource_id != resource_id {
            return stale(format!("the lease is for {:?}, and the call for {resource_id:?}", lease.resource_id));
        }
        let highest = self.state().known.entries.get(resource_id).map_or(i64::MIN, |entry| entry.generation);
        if lease.generation < highest {
            return stale(format!(
                "the lease of {resource_id:?} has generation {}, and {highest} was seen: it was superseded",
                lease.generation
            ));
        }
        if lease.expires_at <= Timestamp::now() {
            return Err(LeaseRefusal::Expired(format!(
                "the lease of {resource_id:?} expired at {}: renew it",
                lease.expires_at
            )));
        }
        Ok(())
    }

    /// Checks a lease and records its generation on the disk, so that no lower one is accepted from now on, also after
    /// a restart. To be called before the work that the lease permits.
    pub async fn admit(&self, lease: &Lease, resource_id: &str) -> Result<(), NodeError> {
        self.check_lease(lease, resource_id)?;
        let known = self.entry(resource_id).filter(|entry| entry.generation == lease.generation);
        match known {
            Some(entry) if entry.synced_generation >= lease.generation => Ok(()),
            // Another call is writing it.
            Some(_) => {
                let synced = self.state().log.append_synced(Vec::new());
                Ok(synced.wait().await?)
            }
            // A newer lease ends later than the one before it; the clocks may say otherwise.
            None => {
                let before = self.entry(resource_id).map_or(Moment::START, |entry| entry.held_until);
                self.raise(lease, before.max(Moment::now().after(lease.left()))).await
            }
        }
    }

    /// Records a lease that the control plane granted, and until when it holds by this machine's clock.
    pub(crate) async fn raise(&self, lease: &Lease, held_until: Moment) -> Result<(), NodeError> {
        let (sandbox_id, generation) = (&lease.resource_id, lease.generation);
        let synced = {
            let mut state = self.state();
            state.make_room(sandbox_id)?;
            // What was checked before need not be true any more.
            let highest = state.known.entries.get(sandbox_id).map_or(i64::MIN, |entry| entry.generation);
            if highest > generation {
                return Err(superseded(sandbox_id, highest).into());
            }
            let (sandbox_id, token_expires_at) = (sandbox_id.clone(), lease.expires_at);
            state.record_synced(Record::Fence { sandbox_id, generation, token_expires_at, held_until })
        };
        synced.wait().await?;
        self.update(sandbox_id, |entry| entry.synced_generation = entry.synced_generation.max(generation));
        Ok(())
    }

    /// Records a lease and that the provider is about to be asked for a sandbox, with one sync. A generation at which
    /// the sandbox was destroyed does not bring it back.
    /// At most `max` sandboxes are held at a time; 0 is without a bound.
    pub(crate) async fn intend(
        &self,
        sandbox_id: &str,
        lease: &Lease,
        order: Order,
        max: usize,
    ) -> Result<(), NodeError> {
        self.check_lease(lease, sandbox_id)?;
        let (generation, held_until) = (lease.generation, Moment::now().after(lease.left()));
        let expires = (!order.ttl.is_zero()).then(|| Moment::now().after(order.ttl));
        let mut order = Box::new(order);
        order.spec.env.clear();
        let synced = {
            let mut state = self.state();
            state.make_room(sandbox_id)?;
            let destroyed = state.known.entries.get(sandbox_id).and_then(Entry::destroyed_at_generation);
            if destroyed.is_some_and(|destroyed| generation <= destroyed) {
                return Err(NodeError::Destroyed(sandbox_id.to_owned()));
            }
            let held = || state.known.entries.values().filter(|entry| entry.stage.is_present()).count();
            if max > 0 && held() >= max {
                return Err(NodeError::Full(format!("this worker holds {max} sandboxes, its maximum")));
            }
            let before = state.known.entries.get(sandbox_id);
            let (highest, before) =
                before.map_or((i64::MIN, Moment::START), |entry| (entry.generation, entry.held_until));
            if highest > generation {
                return Err(superseded(sandbox_id, highest).into());
            }
            let (id, token_expires_at) = (sandbox_id.to_owned(), lease.expires_at);
            // A newer lease ends later than the one before it; the clocks may say otherwise.
            let held_until = before.max(held_until);
            state.record(Record::Fence { sandbox_id: id.clone(), generation, token_expires_at, held_until });
            state.record_synced(Record::Intent { sandbox_id: id, order, expires })
        };
        synced.wait().await?;
        self.update(sandbox_id, |entry| entry.synced_generation = entry.synced_generation.max(generation));
        Ok(())
    }

    /// Records the runtime that an intent led to. A crash that loses the record loses nothing: the intent is on the
    /// disk, and the provider names the sandbox of each runtime.
    pub(crate) fn hold(&self, sandbox_id: &str, runtime: &tenure_sandbox::Runtime) {
        let mut metadata = runtime.metadata.clone();
        metadata.insert("image_resolved".to_owned(), runtime.image_resolved.clone());
        self.state().record(Record::Runtime {
            sandbox_id: sandbox_id.to_owned(),
            runtime_id: runtime.id.clone(),
            metadata,
            created_at: Timestamp::try_from(runtime.created).unwrap_or_else(|_| Timestamp::now()),
        });
    }

    /// The spawn failed and left nothing.
    pub(crate) fn fail(&self, sandbox_id: &str) {
        self.state().record(Record::Failed { sandbox_id: sandbox_id.to_owned() });
    }

    /// The sandbox is destroyed, or a destroy came before its spawn: a spawn of the same lease must not create it.
    pub(crate) async fn gone(&self, sandbox_id: &str) -> Result<(), NodeError> {
        let synced = {
            let mut state = self.state();
            state.make_room(sandbox_id)?;
            let entry = state.known.entries.get(sandbox_id);
            let generation = entry.map_or(i64::MIN, |entry| entry.generation);
            let runtime_id = entry.and_then(Entry::runtime_id).cloned();
            let was_held = entry.is_some_and(|entry| matches!(entry.stage, Stage::Held { .. }));
            let (sandbox_id, at) = (sandbox_id.to_owned(), Timestamp::now());
            let record = Record::Gone { sandbox_id, runtime_id, generation, at };
            if was_held {
                // A crash of the machine that loses the record leaves one of a runtime that does not exist, and the next
                // start finds that out.
                state.record(record);
                return Ok(());
            }
            state.record_synced(record)
        };
        Ok(synced.wait().await?)
    }

    /// The end of a sandbox's time to live, as the control plane gave it out.
    pub(crate) fn expire_at(&self, sandbox_id: &str, expires: Option<Moment>, expires_at: Option<Timestamp>) {
        let mut state = self.state();
        if state.known.entries.contains_key(sandbox_id) {
            state.record(Record::Expiry { sandbox_id: sandbox_id.to_owned(), expires, expires_at });
        }
    }

    /// Changes what is known only while this process runs.
    pub(crate) fn update<T>(&self, sandbox_id: &str, change: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        self.state().known.entries.get_mut(sandbox_id).map(change)
    }

    pub(crate) fn entry(&self, sandbox_id: &str) -> Option<Entry> {
        self.state().known.entries.get(sandbox_id).cloned()
    }

    /// The sandbox that a runtime belongs to, or belonged to.
    pub(crate) fn sandbox_of(&self, runtime_id: &str) -> Option<String> {
        self.state().known.runtimes.get(&RuntimeId(runtime_id.to_owned())).cloned()
    }

    /// The sandboxes that have an intent or a runtime, by id.
    pub(crate) fn present(&self) -> Vec<(String, Entry)> {
        let state = self.state();
        let present = state.known.entries.iter().filter(|(_, entry)| entry.stage.is_present());
        present.map(|(id, entry)| (id.clone(), entry.clone())).collect()
    }

    /// Whether the control plane knows lease renewal, as far as it said so.
    pub fn lease_renewal(&self) -> bool {
        self.state().known.lease_renewal
    }

    pub(crate) fn set_lease_renewal(&self, lease_renewal: bool) {
        let mut state = self.state();
        if state.known.lease_renewal != lease_renewal {
            state.record(Record::Plane { lease_renewal });
        }
    }

    /// Keeps the answer to a call over restarts, for ten minutes. The caller bounds their number and size; beyond the
    /// bound the oldest go.
    pub fn keep_answer(&self, answer: Answer) {
        self.state().record(Record::Answer(answer));
    }

    /// The answers that are still kept, oldest first.
    pub fn answers(&self) -> Vec<Answer> {
        self.state().known.answers.iter().filter(|answer| is_kept(answer)).cloned().collect()
    }

    /// Forgets fences that no delayed call can need.
    pub(crate) fn forget_old(&self) {
        let mut state = self.state();
        let now = Timestamp::now();
        let old = state.known.entries.iter().filter(|(_, entry)| entry.may_be_forgotten(now));
        let old: Vec<String> = old.map(|(id, _)| id.clone()).collect();
        for sandbox_id in old {
            state.record(Record::Forgotten { sandbox_id });
        }
        state.compact_if_large(&self.worker_id);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code of others runs under this lock, and every change is one record.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.compact_if_large(&self.worker_id);
        state
    }
}

impl State {
    fn record(&mut self, record: Record) {
        let line = line(&record);
        self.bytes += line.len();
        self.known.take(record);
        self.log.append(line);
    }

    fn record_synced(&mut self, record: Record) -> Synced {
        let line = line(&record);
        self.bytes += line.len();
        self.known.take(record);
        self.log.append_synced(line)
    }

    /// A sandbox that is not known yet needs a place.
    fn make_room(&mut self, sandbox_id: &str) -> Result<(), NodeError> {
        if self.known.entries.len() < MAX_ENTRIES || self.known.entries.contains_key(sandbox_id) {
            return Ok(());
        }
        let now = Timestamp::now();
        let old = self.known.entries.iter().find(|(_, entry)| entry.may_be_forgotten(now)).map(|(id, _)| id.clone());
        let Some(sandbox_id) = old else {
            return Err(NodeError::Full(format!("this worker remembers {MAX_ENTRIES} sandboxes and takes no more")));
        };
        self.record(Record::Forgotten { sandbox_id });
        Ok(())
    }

    fn compact_if_large(&mut self, worker_id: &str) {
        if self.bytes < 2 * self.compacted_bytes + COMPACT_BYTES {
            return;
        }
        let content = self.known.content(worker_id, &self.machine_start);
        (self.bytes, self.compacted_bytes) = (content.len(), content.len());
        self.log.replace(content);
    }
}

impl Known {
    fn take(&mut self, record: Record) {
        match record {
            Record::Opened { .. } => {}
            Record::Plane { lease_renewal } => self.lease_renewal = lease_renewal,
            Record::Answer(answer) => self.keep(answer),
            Record::Forgotten { sandbox_id } => {
                self.entries.remove(&sandbox_id);
                self.runtimes.retain(|_, sandbox| *sandbox != sandbox_id);
            }
            Record::Fence { sandbox_id, generation, token_expires_at, held_until } => {
                let entry = self.entries.entry(sandbox_id).or_default();
                entry.generation = entry.generation.max(generation);
                entry.token_expires_at = entry.token_expires_at.max(token_expires_at);
                entry.held_until = held_until;
            }
            Record::Intent { sandbox_id, order, expires } => {
                let entry = self.entries.entry(sandbox_id).or_default();
                let accepted_at = order.accepted_at;
                entry.expires_at = expires.map(|_| accepted_at.checked_add(order.ttl).unwrap_or(Timestamp::MAX));
                entry.expires = expires;
                // Nothing that was decided about a former runtime of this sandbox counts for the new one.
                (entry.frozen, entry.doomed, entry.failures) = (false, None, 0);
                (entry.renew_at, entry.retry_at) = (Moment::START, Moment::START);
                entry.stage = Stage::Intended { order };
            }
            Record::Runtime { sandbox_id, runtime_id, metadata, created_at } => {
                self.runtimes.insert(runtime_id.clone(), sandbox_id.clone());
                let entry = self.entries.entry(sandbox_id).or_default();
                entry.stage.run(runtime_id, metadata, created_at);
            }
            Record::Expiry { sandbox_id, expires, expires_at } => {
                let entry = self.entries.entry(sandbox_id).or_default();
                (entry.expires, entry.expires_at) = (expires, expires_at);
            }
            Record::Failed { sandbox_id } => self.entries.entry(sandbox_id).or_default().stage = Stage::Absent,
            Record::Gone { sandbox_id, runtime_id, generation, at } => {
                if let Some(runtime_id) = &runtime_id {
                    self.runtimes.insert(runtime_id.clone(), sandbox_id.clone());
                }
                let entry = self.entries.entry(sandbox_id).or_default();
                entry.stage = Stage::Gone { generation, runtime_id, at };
                (entry.frozen, entry.doomed) = (false, None);
            }
        }
    }

    fn keep(&mut self, answer: Answer) {
        self.answer_bytes += answer.body.len();
        self.answers.push_back(answer);
        while self.answers.len() > MAX_ANSWERS
            || self.answer_bytes > MAX_ANSWER_BYTES
            || self.answers.front().is_some_and(|answer| !is_kept(answer))
        {
            let Some(old) = self.answers.pop_front() else { break };
            self.answer_bytes -= old.body.len();
        }
    }

    /// A file that says all this.
    fn content(&self, worker_id: &str, machine_start: &str) -> Vec<u8> {
        let opened = Record::Opened { worker_id: worker_id.to_owned(), machine_start: machine_start.to_owned() };
        let mut content = line(&opened);
        content.extend(line(&Record::Plane { lease_renewal: self.lease_renewal }));
        for (sandbox_id, entry) in &self.entries {
            entry.records(sandbox_id).iter().for_each(|record| content.extend(line(record)));
        }
        for answer in self.answers.iter().filter(|answer| is_kept(answer)) {
            content.extend(line(&Record::Answer(answer.clone())));
        }
        content
    }
}

fn superseded(sandbox_id: &str, highest: i64) -> LeaseRefusal {
    LeaseRefusal::Stale(format!("the lease of {sandbox_id:?} was superseded: generation {highest} was seen"))
}

fn is_kept(answer: &Answer) -> bool {
    Timestamp::now() < answer.answered_at.checked_add(ANSWER_KEPT).unwrap_or(Timestamp::MAX)
}

fn line(record: &Record) -> Vec<u8> {
    let text = serde_json::to_string(record).unwrap_or_else(|error| panic!("records are plain JSON: {error}"));
    log::sealed(&text)
}

fn lock(folder: &Path) -> Result<File, OpenError> {
    let unusable = |source| OpenError::Folder { path: folder.to_owned(), source };
    let mut options = OpenOptions::new();
    let file =
        options.write(true).create(true).truncate(false).mode(0o600).open(folder.join("lock")).map_err(unusable)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::Locked(folder.to_owned())),
        Err(TryLockError::Error(source)) => Err(unusable(source)),
    }
}

fn read(folder: &Path, worker_id: &str, machine_start: &str) -> Result<Known, OpenError> {
    let damaged = |reason: String| OpenError::Damaged { path: folder.to_owned(), reason };
    let mut known = Known::default();
    let mut same_start = false;
    for text in log::read(folder).map_err(|error| damaged(error.to_string()))? {
        let record: Record = serde_json::from_str(&text).map_err(|error| damaged(error.to_string()))?;
        if let Record::Opened { worker_id: owner, machine_start: then } = &record {
            if owner != worker_id {
                let (path, owner, id) = (folder.to_owned(), owner.clone(), worker_id.to_owned());
                return Err(OpenError::Foreign { path, owner, id });
            }
            same_start = then == machine_start;
        }
        known.take(record);
    }
    for entry in known.entries.values_mut() {
        entry.synced_generation = entry.generation;
    }
    if !same_start {
        known.entries.values_mut().for_each(Entry::after_machine_start);
    }
    Ok(known)
}

#[cfg(test)]
mod tests;
