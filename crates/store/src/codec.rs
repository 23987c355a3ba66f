//! How parts of a row are written: small things as numbers, rare things as JSON.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tenure_core::attempt::{
    AttemptState, CallbackPart, ClosedAttempt, Evidence, Failure, Metrics, Progress, Reason, Receipt,
};
use tenure_core::event::{FACT_BYTES, Fact};
use tenure_core::queue::{Dispatch, FairnessKey, Push, Queue, Transport};
use tenure_core::retry::{Jitter, RetryPolicy};
use tenure_core::run::RunState;
use tenure_core::task::{Body, Carry, End, EnvelopeSpec, Finished, Running, Spec, State};
use tenure_core::time::{DurationMs, Timestamp};
use tenure_core::{AttemptId, IdPrefix, LeaseToken, Seq, WorkerId};

/// JSON of a value, or nothing if it is the usual one.
pub fn encode_unless<T: Serialize>(value: &T, usual: bool) -> Option<String> {
    if usual { None } else { serde_json::to_string(value).ok() }
}

/// A text that does not decode is reported, and read as the usual value: a damaged row must not stop the queue behind it.
pub fn decode<T: DeserializeOwned + Default>(text: Option<&str>, what: &'static str, seq: i64) -> T {
    let Some(text) = text else { return T::default() };
    serde_json::from_str(text).unwrap_or_else(|error| {
        tracing::error!(task.seq = seq, column = what, %error, "cannot decode a stored row: using the default");
        T::default()
    })
}

/// What the statements `*_refair` take: the kind of key, and the tag that it names.
pub fn fairness_key(key: Option<&FairnessKey>) -> (Option<&'static str>, Option<&str>) {
    match key {
        None => (None, None),
        Some(FairnessKey::Tenant) => (Some("tenant"), None),
        Some(FairnessKey::Workspace) => (Some("workspace"), None),
        Some(FairnessKey::Tag(tag)) => (Some("tag"), Some(tag)),
    }
}

pub fn encode_carry(carry: &Carry) -> Option<String> {
    match Short::of(&carry.spec).filter(|_| *carry == Carry::fresh(carry.spec)) {
        Some(short) => encode_unless(&short, carry.is_default()),
        None => encode_unless(carry, false),
    }
}

/// What [`encode_carry`] made.
pub fn decode_carry(text: Option<&str>, seq: i64) -> Carry {
    match text.filter(|text| text.starts_with('[')) {
        Some(short) => Carry::fresh(decode::<Short>(Some(short), "carry", seq).into()),
        None => decode(text, "carry", seq),
    }
}

/// A spec without the names of its fields, which would be a third of what is written for a task. Statements look for
/// `rebuild` by its name, so that a spec with it has no short form.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Short(
    Option<u32>,
    Option<DurationMs>,
    Option<DurationMs>,
    Option<DurationMs>,
    Option<DurationMs>,
    Option<Timestamp>,
    Option<(DurationMs, f64, DurationMs, Jitter)>,
    bool,
);

impl Short {
    fn of(spec: &Spec) -> Option<Self> {
        let Spec {
            max_attempts,
            lease_ttl_ms,
            heartbeat_ms,
            timeout_ms,
            cancel_grace_ms,
            deadline,
            retry,
            sandbox,
            rebuild,
        } = *spec;
        let retry = retry.map(|RetryPolicy { initial_backoff_ms, factor, max_backoff_ms, jitter }| {
            (initial_backoff_ms, factor, max_backoff_ms, jitter)
        });
        let short =
            Self(max_attempts, lease_ttl_ms, heartbeat_ms, timeout_ms, cancel_grace_ms, deadline, retry, sandbox);
        (!rebuild).then_some(short)
    }
}

impl From<Short> for Spec {
    fn from(short: Short) -> Self {
        let Short(max_attempts, lease_ttl_ms, heartbeat_ms, timeout_ms, cancel_grace_ms, deadline, retry, sandbox) =
            short;
        let retry = retry.map(|(initial_backoff_ms, factor, max_backoff_ms, jitter)| RetryPolicy {
            initial_backoff_ms,
            factor,
            max_backoff_ms,
            jitter,
        });
        Self {
            max_attempts,
            lease_ttl_ms,
            heartbeat_ms,
            timeout_ms,
            cancel_grace_ms,
            deadline,
            retry,
            sandbox,
            rebuild: false,
        }
    }
}

/// The column `spec` of a body: how the task wants to be run, and what its envelopes are to say.
#[derive(Serialize)]
struct BodySpec<'a> {
    #[serde(flatten)]
    spec: &'a Spec,
    #[serde(skip_serializing_if = "Option::is_none")]
    envelope: Option<&'a EnvelopeSpec>,
}

#[derive(Deserialize, Default)]
struct BodyEnvelope {
    envelope: Option<EnvelopeSpec>,
}

pub fn encode_spec(body: &Body) -> Option<String> {
    match body.envelope.as_deref() {
        None => match Short::of(&body.spec) {
            Some(short) => encode_unless(&short, body.spec.is_default()),
            None => encode_unless(&body.spec, false),
        },
        envelope => encode_unless(&BodySpec { spec: &body.spec, envelope }, false),
    }
}

/// JSON of specs. Most tasks of a batch have the same few, and each is encoded once.
#[derive(Debug, Default)]
pub struct SpecTexts(Vec<(Spec, Option<String>)>);

impl SpecTexts {
    /// Others are encoded again and again.
    const KEPT: usize = 16;

    /// As [`encode_spec`].
    pub fn of_body(&mut self, body: &Body) -> Option<Cow<'_, str>> {
        match body.envelope {
            None => self.text(body.spec, || encode_spec(body)),
            Some(_) => encode_spec(body).map(Cow::Owned),
        }
    }

    /// As [`encode_carry`].
    pub fn of_carry(&mut self, carry: &Carry) -> Option<Cow<'_, str>> {
        if *carry == Carry::fresh(carry.spec) {
            self.text(carry.spec, || encode_carry(carry))
        } else {
            encode_carry(carry).map(Cow::Owned)
        }
    }

    fn text(&mut self, spec: Spec, encode: impl FnOnce() -> Option<String>) -> Option<Cow<'_, str>> {
        let known = self.0.iter().position(|(known, _)| *known == spec);
        let at = known.unwrap_or_else(|| {
            if self.0.len() == Self::KEPT {
                self.0.clear();
            }
            self.0.push((spec, encode()));
            self.0.len() - 1
        });
        self.0.get(at)?.1.as_deref().map(Cow::Borrowed)
    }
}

/// Both parts of what [`encode_spec`] made.
pub fn decode_spec(text: Option<&str>, seq: i64) -> (Spec, Option<Arc<EnvelopeSpec>>) {
    let envelope = text.filter(|text| text.contains("\"envelope\""));
    let envelope: BodyEnvelope = decode(envelope, "bodies.spec", seq);
    (decode_only_spec(text, seq), envelope.envelope.map(Arc::new))
}

fn decode_only_spec(text: Option<&str>, seq: i64) -> Spec {
    match text.filter(|text| text.starts_with('[')) {
        Some(short) => decode::<Short>(Some(short), "bodies.spec", seq).into(),
        None => decode(text, "bodies.spec", seq),
    }
}

/// What a row of `running` says about a pushed attempt, in columns that statements can read.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PushColumns {
    /// When to push again.
    pub push_at: Option<Timestamp>,
    /// `None` if the attempt was claimed.
    pub deliveries: Option<i32>,
    pub started_at: Option<Timestamp>,
}

impl PushColumns {
    pub fn of(running: &Running) -> Self {
        running.carry.delivery.as_ref().map_or_else(Self::default, |delivery| Self {
            push_at: delivery.next_at,
            deliveries: Some(delivery.deliveries.cast_signed()),
            started_at: delivery.started_at,
        })
    }

    /// For a row of `finished`.
    pub fn of_last(finished: &Finished) -> Self {
        let part = finished.carry.last.as_ref().and_then(|last| last.callback.as_ref());
        part.map_or_else(Self::default, |part| Self {
            push_at: None,
            deliveries: Some(part.deliveries.cast_signed()),
            started_at: part.started_at,
        })
    }
}

/// The columns `failure` and `stack`.
pub fn encode_failure(failure: Option<&Failure>) -> (Option<String>, Option<&str>) {
    let Some(failure) = failure else { return (None, None) };
    (encode_unless(&Failure { stack: None, ..failure.clone() }, false), failure.stack.as_deref())
}

pub fn decode_failure(text: Option<&str>, stack: Option<Arc<str>>, seq: i64) -> Option<Failure> {
    decode::<Option<Failure>>(text, "finished.failure", seq).map(|failure| Failure { stack, ..failure })
}

/// A word of the view `task_state`.
pub fn task_state(word: &str) -> State {
    match word {
        "Blocked" => State::Blocked,
        "Scheduled" => State::Scheduled,
        "Ready" => State::Ready,
        "Running" => State::Running,
        "Succeeded" => State::Succeeded,
        "Canceled" => State::Canceled,
        "Skipped" => State::Skipped,
        _ => State::Failed,
    }
}

/// What `tasks_list` reads: the table that holds the tasks of this state, so that a list costs as much as its state has
/// tasks.
pub fn tasks_of(state: Option<State>) -> &'static str {
    match state {
        None => "bodies b",
        Some(State::Blocked) => "blocked s JOIN bodies b ON b.seq = s.seq",
        Some(State::Scheduled) => "scheduled s JOIN bodies b ON b.seq = s.seq",
        Some(State::Ready) => "ready s JOIN bodies b ON b.seq = s.seq",
        Some(State::Running) => "running s JOIN bodies b ON b.seq = s.seq",
        Some(State::Succeeded) => "finished s JOIN bodies b ON b.seq = s.seq AND s.ended = 1",
        Some(State::Failed) => "finished s JOIN bodies b ON b.seq = s.seq AND s.ended = 2",
        Some(State::Canceled) => "finished s JOIN bodies b ON b.seq = s.seq AND s.ended = 3",
        Some(State::Skipped) => "finished s JOIN bodies b ON b.seq = s.seq AND s.ended = 4",
    }
}

/// The bounds of the ids that begin like this: of the one spelling, then of the other.
pub fn id_bounds(prefix: &IdPrefix) -> Option<[u128; 4]> {
    let mut ranges = prefix.ranges();
    let first = ranges.next()?;
    let second = ranges.next().unwrap_or(first);
    Some([*first.start(), *first.end(), *second.start(), *second.end()])
}

/// The column `state` of a run.
pub fn run_state_code(state: RunState) -> i16 {
    match state {
        RunState::Running => 1,
        RunState::Canceling => 2,
        RunState::Succeeded => 3,
        RunState::Failed => 4,
        RunState::Canceled => 5,
    }
}

pub fn encode_push(queue: &Queue) -> Option<String> {
    let push = queue.settings.push.as_deref();
    encode_unless(&push, push.is_none())
}

pub fn decode_push(text: Option<&str>, queue: i32) -> Option<Arc<Push>> {
    decode::<Option<Push>>(text, "queues.push", i64::from(queue)).map(Arc::new)
}

pub fn encode_dispatch(queue: &Queue) -> Option<String> {
    let dispatch = queue.settings.dispatch.as_deref();
    encode_unless(&dispatch, dispatch.is_none())
}

pub fn decode_dispatch(text: Option<&str>, queue: i32) -> Option<Arc<Dispatch>> {
    decode::<Option<Dispatch>>(text, "queues.dispatch", i64::from(queue)).map(Arc::new)
}

pub fn encode_tags(tags: &BTreeMap<String, String>) -> Option<String> {
    encode_unless(tags, tags.is_empty())
}

/// What a tag looks like inside [`encode_tags`], behind the bracket or comma before it. Quotes inside of names and values
/// are escaped there, so that nothing but this tag looks like it; a damaged text simply has no tags.
pub fn tag_pattern(name: &str, value: &str) -> Option<String> {
    Some(format!(",{}:{}", serde_json::to_string(name).ok()?, serde_json::to_string(value).ok()?))
}

/// The numbers of the tasks that a task was submitted to wait for.
pub fn encode_rows(rows: &[Seq]) -> Option<String> {
    encode_unless(&rows, rows.is_empty())
}

pub fn end_code(end: End) -> i16 {
    match end {
        End::Succeeded => 1,
        End::Failed => 2,
        End::Canceled => 3,
        End::Skipped => 4,
    }
}

pub fn end_from(code: i16) -> End {
    match code {
        1 => End::Succeeded,
        3 => End::Canceled,
        4 => End::Skipped,
        _ => End::Failed,
    }
}

pub fn state_code(state: AttemptState) -> i16 {
    AttemptState::ALL.iter().position(|other| *other == state).map_or(0, |index| index as i16)
}

pub fn state_from(code: i16) -> AttemptState {
    usize::try_from(code).ok().and_then(|index| AttemptState::ALL.get(index)).copied().unwrap_or(AttemptState::Failed)
}

pub fn reason_code(reason: Reason) -> i16 {
    Reason::ALL.iter().position(|other| *other == reason).map_or(0, |index| index as i16)
}

pub fn reason_from(code: i16) -> Reason {
    usize::try_from(code).ok().and_then(|index| Reason::ALL.get(index)).copied().unwrap_or(Reason::Failed)
}

pub fn receipt_code(receipt: Receipt) -> i16 {
    match receipt {
        Receipt::Completed => 1,
        Receipt::Failed { requeued, dlq } => 2 + i16::from(requeued) + 2 * i16::from(dlq),
    }
}

pub fn receipt_from(code: i16) -> Receipt {
    match code {
        1 => Receipt::Completed,
        code => Receipt::Failed { requeued: (code - 2) & 1 == 1, dlq: (code - 2) & 2 == 2 },
    }
}

pub fn encode_facts(facts: &[Fact]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(facts.len() * FACT_BYTES);
    for fact in facts {
        fact.encode(&mut bytes);
    }
    bytes
}

pub fn decode_facts(bytes: &[u8]) -> Vec<Fact> {
    let (records, _) = bytes.as_chunks::<FACT_BYTES>();
    records.iter().filter_map(Fact::decode).collect()
}

/// The part of a finished row that is rarely there.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FinishedMore {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    carry: Option<Carry>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failure: Option<Failure>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    progress: Option<Progress>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retry_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    evidence: Option<Evidence>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    metrics: Option<Metrics>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    callback: Option<Box<CallbackPart>>,
}

/// The column `worker_id`: empty for a pushed attempt that no worker has started.
pub fn worker_id(worker: Option<&WorkerId>) -> &str {
    worker.map_or("", |worker| worker)
}

pub fn worker_from(column: WorkerId) -> Option<WorkerId> {
    Some(column).filter(|worker| !worker.is_empty())
}

/// The columns of the final attempt inside a finished row. Its number and fence are those of the row.
#[derive(Debug)]
pub struct FinalAttempt {
    pub id: AttemptId,
    pub token: LeaseToken,
    pub worker: Option<WorkerId>,
    pub granted_at: Timestamp,
    pub last_heartbeat_at: Option<Timestamp>,
    pub ended_at: Timestamp,
    pub state: AttemptState,
    pub reason: Reason,
    pub receipt: Option<Receipt>,
}

pub fn split_finished(finished: &Finished) -> (Option<FinalAttempt>, Option<String>) {
    let carry = Carry { last: None, spec: Spec::default(), ..finished.carry.clone() };
    let last = finished.carry.last.as_deref();
    let more = FinishedMore {
        carry: (!carry.is_default()).then_some(carry),
        failure: last.and_then(|last| last.failure.clone()),
        progress: last.map(|last| last.progress.clone()).filter(|progress| *progress != Progress::default()),
        retry_at: last.and_then(|last| last.retry_at),
        evidence: last.and_then(|last| last.evidence.clone()),
        metrics: last.and_then(|last| last.metrics),
        callback: last.and_then(|last| last.callback.clone()),
    };
    let attempt = last.map(|last| FinalAttempt {
        id: last.id,
        token: last.token,
        worker: last.worker.clone(),
        granted_at: last.granted_at,
        last_heartbeat_at: last.last_heartbeat_at,
        ended_at: last.ended_at,
        state: last.state,
        reason: last.reason,
        receipt: last.receipt,
    });
    (attempt, encode_unless(&more, more == FinishedMore::default()))
}

/// `spec` is that of the body: a finished row has no copy of its own.
pub fn join_finished(
    finished: &mut Finished,
    attempt: Option<FinalAttempt>,
    more: Option<&str>,
    spec: Option<&str>,
    seq: i64,
) {
    let more: FinishedMore = decode(more, "finished.more", seq);
    finished.carry = more.carry.unwrap_or_default();
    finished.carry.spec = decode_only_spec(spec, seq);
    finished.carry.last = attempt.map(|attempt| {
        Box::new(ClosedAttempt {
            number: finished.attempt,
            id: attempt.id,
            token: attempt.token,
            fence: finished.fence,
            worker: attempt.worker,
            granted_at: attempt.granted_at,
            last_heartbeat_at: attempt.last_heartbeat_at,
            ended_at: attempt.ended_at,
            state: attempt.state,
            reason: attempt.reason,
            failure: more.failure,
            progress: more.progress.unwrap_or_default(),
            receipt: attempt.receipt,
            retry_at: more.retry_at,
            evidence: more.evidence,
            metrics: more.metrics,
            callback: more.callback,
        })
    });
}

/// The column of a queue; embedded is `NULL`.
pub fn transport(transport: Transport) -> Option<&'static str> {
    transport.is_external().then(|| transport.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_lead_back_to_what_they_stand_for() {
        for reason in Reason::ALL {
            assert_eq!(reason_from(reason_code(reason)), reason);
        }
        for state in AttemptState::ALL {
            assert_eq!(state_from(state_code(state)), state);
        }
        for end in [End::Succeeded, End::Failed, End::Canceled, End::Skipped] {
            assert_eq!(end_from(end_code(end)), end);
        }
        for receipt in [
            Receipt::Completed,
            Receipt::Failed { requeued: false, dlq: false },
            Receipt::Failed { requeued: true, dlq: false },
            Receipt::Failed { requeued: false, dlq: true },
        ] {
            assert_eq!(receipt_from(receipt_code(receipt)), receipt);
        }
    }

    fn specs() -> Vec<Spec> {
        let retry = RetryPolicy { initial_backoff_ms: 5, factor: 1.5, max_backoff_ms: 70, jitter: Jitter::Around };
        let some = Spec {
            max_attempts: Some(1),
            lease_ttl_ms: Some(2),
            heartbeat_ms: Some(3),
            timeout_ms: Some(4),
            cancel_grace_ms: Some(5),
            deadline: Some(Timestamp::from_millis(6)),
            retry: Some(retry),
            sandbox: false,
            rebuild: false,
        };
        let default = Spec::default();
        let others = [
            Spec { sandbox: true, ..default },
            Spec { rebuild: true, ..some },
            Spec { rebuild: true, ..default },
            Spec { lease_ttl_ms: Some(1), ..default },
        ];
        [default, some].into_iter().chain(others).collect()
    }

    #[test]
    fn a_spec_is_read_as_it_was_written_in_its_short_form_and_in_its_long_one() {
        for spec in specs() {
            let carry = Carry::fresh(spec);
            let text = encode_carry(&carry);
            assert_eq!(decode_carry(text.as_deref(), 1), carry, "{text:?}");
            assert_eq!(text.is_some(), spec != Spec::default());
            // Statements look for it.
            assert_eq!(text.as_ref().is_some_and(|text| text.contains(r#""rebuild":true"#)), spec.rebuild);
            assert_eq!(decode_carry(serde_json::to_string(&carry).ok().as_deref(), 1), carry);
            assert_eq!(decode_only_spec(serde_json::to_string(&spec).ok().as_deref(), 1), spec);
            let more = Carry { redrives: 1, ..Carry::fresh(spec) };
            assert_eq!(decode_carry(encode_carry(&more).as_deref(), 1), more);
        }
        assert_eq!(decode_carry(Some("[]"), 1), Carry::default());
    }

    #[test]
    fn texts_of_specs_are_those_of_each_spec_by_itself() {
        let mut texts = SpecTexts::default();
        for round in 0..3 {
            for number in 0..SpecTexts::KEPT as u32 + 4 {
                let spec = Spec { max_attempts: (number > 0).then_some(number), ..Spec::default() };
                let carry = Carry::fresh(spec);
                assert_eq!(texts.of_carry(&carry).map(Cow::into_owned), encode_carry(&carry), "{round} {number}");
                let more = Carry { redrives: 1, ..carry };
                assert_eq!(texts.of_carry(&more).map(Cow::into_owned), encode_carry(&more));
            }
        }
    }
}
