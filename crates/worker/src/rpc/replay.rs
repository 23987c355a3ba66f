//! Repeated requests: the same id and body gets the same answer, and the call runs once.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use bytes::Bytes;
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::Instant;

use super::answer::Answer;
use super::settings::RpcSettings;
use crate::node;

pub(super) type BodyHash = [u8; 32];

/// What is known of an id costs this much beside its answer.
const ENTRY_BYTES: usize = 256;
/// A larger answer to a call that only reads is not kept: it would displace many others.
const MAX_READ_ONLY_BYTES: usize = 1 << 20;

/// How an answer is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// May be forgotten early: running it again changes nothing.
    ReadOnly,
    /// Kept for the whole time.
    Mutating,
    /// Its answer cannot be repeated, only refused.
    Stream,
}

#[derive(Debug)]
enum Stage {
    /// Ends when the first call does.
    Running(watch::Receiver<()>),
    Done(Answer),
    Streamed,
}

#[derive(Debug)]
struct Entry {
    hash: BodyHash,
    kind: Kind,
    stage: Stage,
    began: Instant,
    number: u64,
    bytes: usize,
}

/// What to do with a request.
#[derive(Debug)]
pub(super) enum Claim {
    Run(Ticket),
    /// There is no room to keep the answer, and it need not be kept.
    RunUnkept,
    Repeat(Answer),
    /// The id belongs to another body, or to a stream.
    Conflict,
    Full,
}

#[derive(Debug)]
pub(super) struct Replay {
    state: Mutex<State>,
    max_entries: usize,
    max_bytes: usize,
    kept: Duration,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<String, Entry>,
    /// Ids by the number of their entry, and so by age.
    by_age: BTreeMap<u64, String>,
    read_only: BTreeMap<u64, String>,
    next_number: u64,
    bytes: usize,
    mutating: usize,
    mutating_bytes: usize,
}

/// The right to run a call. Dropped without an answer, the id is free again.
#[derive(Debug)]
pub(super) struct Ticket {
    replay: Arc<Replay>,
    id: String,
    number: u64,
    kind: Kind,
    /// Dropped when the call has ended, which wakes those who wait.
    running: Option<watch::Sender<()>>,
}

impl Replay {
    /// `answers` are those that were kept on disk.
    pub(super) fn new(settings: &RpcSettings, answers: Vec<node::Answer>) -> Self {
        let replay = Self {
            state: Mutex::default(),
            max_entries: settings.replay_entries,
            max_bytes: settings.replay_bytes,
            kept: settings.times.replay,
        };
        let now = Instant::now();
        for answer in answers {
            let age = Duration::try_from(Timestamp::now().duration_since(answer.answered_at)).unwrap_or_default();
            let (Some(hash), Some(began)) = (from_hex(&answer.body_sha256), now.checked_sub(age)) else { continue };
            let Ok(status) = StatusCode::from_u16(answer.status) else { continue };
            let outcome = if status.is_success() { "ok" } else { "repeated" };
            let body = Bytes::from(answer.body);
            let kept = Answer { status, outcome, body, executed: true, reserved: None };
            let mut state = replay.state();
            let number = state.insert(answer.request_id.clone(), hash, Kind::Mutating, Stage::Streamed, began);
            state.finish(&answer.request_id, number, kept);
        }
        replay
    }

    /// Decides about a request. Waits while the same call runs.
    pub(super) async fn claim(self: &Arc<Self>, id: &str, hash: BodyHash, kind: Kind) -> Claim {
        loop {
            let mut running = match self.try_claim(id, hash, kind) {
                Ok(claim) => return claim,
                Err(running) => running,
            };
            // An error means that the first call has ended, which is what this waits for.
            while running.changed().await.is_ok() {}
        }
    }

    fn try_claim(self: &Arc<Self>, id: &str, hash: BodyHash, kind: Kind) -> Result<Claim, watch::Receiver<()>> {
        let mut state = self.state();
        state.forget_older(self.kept);
        if let Some(entry) = state.entries.get(id) {
            return match &entry.stage {
                _ if entry.hash != hash || kind == Kind::Stream => Ok(Claim::Conflict),
                Stage::Streamed => Ok(Claim::Conflict),
                Stage::Done(answer) => Ok(Claim::Repeat(answer.clone())),
                Stage::Running(running) => Err(running.clone()),
            };
        }
        if !state.make_room(self.max_entries, self.max_bytes) {
            return Ok(if kind == Kind::ReadOnly { Claim::RunUnkept } else { Claim::Full });
        }
        let (running, ended) = watch::channel(());
        let stage = if kind == Kind::Stream { Stage::Streamed } else { Stage::Running(ended) };
        let number = state.insert(id.to_owned(), hash, kind, stage, Instant::now());
        Ok(Claim::Run(Ticket { replay: Arc::clone(self), id: id.to_owned(), number, kind, running: Some(running) }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ticket {
    /// Keeps the answer for repeated requests, if it is one to keep.
    pub(super) fn finish(mut self, answer: &Answer) {
        let too_large = self.kind == Kind::ReadOnly && answer.body.len() > MAX_READ_ONLY_BYTES;
        if answer.executed && !too_large {
            let mut state = self.replay.state();
            state.finish(&self.id, self.number, Answer { reserved: None, ..answer.clone() });
            let (entries, bytes) = (self.replay.max_entries, self.replay.max_bytes);
            state.evict_read_only(entries, bytes);
            drop(state);
            self.running = None;
        }
    }

    /// The stream has begun: its id stays taken.
    pub(super) fn keep_stream(mut self) {
        self.running = None;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.running.is_some() {
            self.replay.state().remove(&self.id, self.number);
        }
    }
}

impl State {
    fn insert(&mut self, id: String, hash: BodyHash, kind: Kind, stage: Stage, began: Instant) -> u64 {
        let (number, bytes) = (self.next_number, ENTRY_BYTES + id.len());
        self.next_number += 1;
        self.by_age.insert(number, id.clone());
        if kind == Kind::ReadOnly {
            self.read_only.insert(number, id.clone());
        } else {
            self.mutating += 1;
            self.mutating_bytes += bytes;
        }
        self.bytes += bytes;
        self.entries.insert(id, Entry { hash, kind, stage, began, number, bytes });
        number
    }

    fn finish(&mut self, id: &str, number: u64, answer: Answer) {
        let Some(entry) = self.entries.get_mut(id).filter(|entry| entry.number == number) else { return };
        let bytes = answer.body.len();
        entry.bytes += bytes;
        self.bytes += bytes;
        if entry.kind != Kind::ReadOnly {
            self.mutating_bytes += bytes;
        }
        entry.stage = Stage::Done(answer);
    }

    fn remove(&mut self, id: &str, number: u64) {
        if self.entries.get(id).is_none_or(|entry| entry.number != number) {
            return;
        }
        let Some(entry) = self.entries.remove(id) else { return };
        self.by_age.remove(&number);
        self.read_only.remove(&number);
        self.bytes -= entry.bytes;
        if entry.kind != Kind::ReadOnly {
            self.mutating -= 1;
            self.mutating_bytes -= entry.bytes;
        }
    }

    /// A call that still runs is not forgotten: it is younger than its answer.
    fn forget_older(&mut self, kept: Duration) {
        while let Some((&number, id)) = self.by_age.first_key_value() {
            let id = id.clone();
            let young = |entry: &Entry| entry.began.elapsed() < kept || matches!(entry.stage, Stage::Running(_));
            if self.entries.get(&id).is_some_and(young) {
                break;
            }
            self.remove(&id, number);
        }
    }

    /// Room for one more call. False if only answers are left that must be kept.
    fn make_room(&mut self, max_entries: usize, max_bytes: usize) -> bool {
        if self.mutating >= max_entries || self.mutating_bytes >= max_bytes {
            return false;
        }
        self.evict_read_only(max_entries.saturating_sub(1), max_bytes);
        true
    }

    fn evict_read_only(&mut self, max_entries: usize, max_bytes: usize) {
        while self.entries.len() > max_entries || self.bytes > max_bytes {
            let Some((number, id)) = self.read_only.pop_first() else { return };
            self.remove(&id, number);
        }
    }
}

pub(super) fn hex(hash: &BodyHash) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<BodyHash> {
    let mut hash = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (byte, digits) in hash.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(entries: usize, bytes: usize) -> RpcSettings {
        RpcSettings { replay_entries: entries, replay_bytes: bytes, ..RpcSettings::new("/nowhere") }
    }

    fn replay(entries: usize, bytes: usize) -> Arc<Replay> {
        Arc::new(Replay::new(&settings(entries, bytes), Vec::new()))
    }

    fn answer(text: &str) -> Answer {
        let body = Bytes::from(text.to_owned());
        Answer { status: StatusCode::OK, outcome: "ok", body, executed: true, reserved: None }
    }

    const A: BodyHash = [1; 32];
    const B: BodyHash = [2; 32];

    async fn run(replay: &Arc<Replay>, id: &str, kind: Kind, text: &str) {
        match replay.claim(id, A, kind).await {
            Claim::Run(ticket) => ticket.finish(&answer(text)),
            other => panic!("{id}: {other:?}"),
        }
    }

    async fn repeated(replay: &Arc<Replay>, id: &str) -> Option<Bytes> {
        match replay.claim(id, A, Kind::ReadOnly).await {
            Claim::Repeat(answer) => Some(answer.body),
            _ => None,
        }
    }

    #[tokio::test]
    async fn the_same_body_gets_the_same_answer_and_another_one_conflicts() {
        let replay = replay(10, 1 << 20);
        run(&replay, "r1", Kind::Mutating, "one").await;
        assert_eq!(repeated(&replay, "r1").await.as_deref(), Some(b"one".as_slice()));
        assert!(matches!(replay.claim("r1", B, Kind::Mutating).await, Claim::Conflict));
    }

    #[tokio::test]
    async fn a_second_call_waits_for_the_first() {
        let replay = replay(10, 1 << 20);
        let Claim::Run(first) = replay.claim("r1", A, Kind::Mutating).await else { panic!("free") };
        let second = tokio::spawn({
            let replay = Arc::clone(&replay);
            async move { replay.claim("r1", A, Kind::Mutating).await }
        });
        tokio::task::yield_now().await;
        assert!(!second.is_finished());
        first.finish(&answer("once"));
        assert!(matches!(second.await, Ok(Claim::Repeat(answer)) if answer.body == "once"));
    }

    #[tokio::test]
    async fn a_call_that_was_refused_leaves_its_id_free() {
        let replay = replay(10, 1 << 20);
        let Claim::Run(ticket) = replay.claim("r1", A, Kind::Mutating).await else { panic!("free") };
        ticket.finish(&Answer { executed: false, ..answer("draining") });
        assert!(matches!(replay.claim("r1", B, Kind::Mutating).await, Claim::Run(_)));
    }

    #[tokio::test]
    async fn a_stream_is_never_repeated() {
        let replay = replay(10, 1 << 20);
        let Claim::Run(ticket) = replay.claim("r1", A, Kind::Stream).await else { panic!("free") };
        assert!(matches!(replay.claim("r1", A, Kind::Stream).await, Claim::Conflict), "also while it runs");
        ticket.keep_stream();
        for kind in [Kind::Stream, Kind::Mutating, Kind::ReadOnly] {
            assert!(matches!(replay.claim("r1", A, kind).await, Claim::Conflict));
        }
    }

    #[tokio::test]
    async fn read_only_answers_go_first_and_others_never_early() {
        let replay = replay(3, 1 << 20);
        run(&replay, "m1", Kind::Mutating, "1").await;
        run(&replay, "r1", Kind::ReadOnly, "2").await;
        run(&replay, "m2", Kind::Mutating, "3").await;
        run(&replay, "m3", Kind::Mutating, "4").await;
        assert_eq!(repeated(&replay, "m1").await.as_deref(), Some(b"1".as_slice()));
        assert!(matches!(replay.claim("m4", A, Kind::Mutating).await, Claim::Full));
        assert!(matches!(replay.claim("r1", A, Kind::ReadOnly).await, Claim::RunUnkept));
        assert_eq!(replay.state().entries.len(), 3);
    }

    #[tokio::test]
    async fn bytes_are_bounded() {
        let replay = replay(100, 10_000);
        for n in 0..50 {
            run(&replay, &format!("r{n}"), Kind::ReadOnly, &"x".repeat(1000)).await;
            assert!(replay.state().bytes <= 10_000);
        }
        run(&replay, "m", Kind::Mutating, &"x".repeat(20_000)).await;
        assert!(matches!(replay.claim("n", A, Kind::Mutating).await, Claim::Full));
        assert_eq!(replay.state().entries.len(), 1, "all that could go is gone");
    }

    #[tokio::test]
    async fn a_large_answer_to_a_read_is_not_kept() {
        let replay = replay(10, 64 << 20);
        run(&replay, "small", Kind::ReadOnly, "1").await;
        run(&replay, "large", Kind::ReadOnly, &"x".repeat(MAX_READ_ONLY_BYTES + 1)).await;
        assert!(repeated(&replay, "small").await.is_some());
        assert!(matches!(replay.claim("large", A, Kind::ReadOnly).await, Claim::Run(_)));
    }

    #[tokio::test]
    async fn after_ten_minutes_an_answer_is_forgotten() {
        let replay = replay(1, 1 << 20);
        run(&replay, "m", Kind::Mutating, "1").await;
        let age = |seconds: u64| {
            let mut state = replay.state();
            let entry = state.entries.get_mut("m").expect("an entry");
            entry.began -= Duration::from_secs(seconds);
        };
        age(590);
        assert!(repeated(&replay, "m").await.is_some());
        age(11);
        assert!(matches!(replay.claim("m", B, Kind::Mutating).await, Claim::Run(_)));
        assert_eq!(replay.state().bytes, 0);
    }

    #[tokio::test]
    async fn answers_from_the_disk_are_repeated() {
        let kept = node::Answer {
            request_id: "r1".into(),
            body_sha256: hex(&A),
            status: 200,
            body: "kept".into(),
            answered_at: Timestamp::now(),
        };
        let replay = Arc::new(Replay::new(&settings(10, 1000), vec![kept]));
        assert_eq!(repeated(&replay, "r1").await.as_deref(), Some(b"kept".as_slice()));
    }
}
