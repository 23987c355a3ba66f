//! The rules about one sandbox, and about the end.

use std::collections::{BTreeMap, BTreeSet};

use super::life::Life;
use super::{Answer, Call, Findings, MS, Op, Rule, Sighting};

impl Findings<'_> {
    /// One key and one nonce are one sandbox, and nothing exists that nobody asked for.
    pub(super) fn creates(&mut self) {
        let story = self.story;
        let mut by_key: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        let mut by_nonce: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        let mut asked: BTreeSet<&str> = BTreeSet::new();
        for op in &story.ops {
            if let Call::Create { nonce, key, .. } = &op.call {
                asked.insert(nonce);
                if let Answer::Created { row } = &op.answer {
                    by_nonce.entry(nonce).or_default().insert(&row.sandbox);
                    if let Some(key) = key {
                        by_key.entry(key).or_default().insert(&row.sandbox);
                    }
                }
            }
        }
        let listed = story.ops.iter().filter_map(|op| match &op.answer {
            Answer::Listed { rows } => Some(rows),
            _ => None,
        });
        let rows = listed.flatten().chain(&story.ended.rows).map(|row| (&row.sandbox, &row.nonce));
        let seen = story.sightings.iter().map(|seen| (&seen.sandbox, &seen.nonce));
        let mut invented = BTreeMap::new();
        for (sandbox, nonce) in rows.chain(seen) {
            match nonce {
                Some(nonce) if asked.contains(nonce.as_str()) => {
                    by_nonce.entry(nonce).or_default().insert(sandbox);
                }
                _ => {
                    invented.insert(sandbox, format!("its nonce is {nonce:?}"));
                }
            }
        }
        for (sandbox, what) in invented {
            self.report(Rule::Invented, Some(sandbox), what);
        }
        for (rule, what, sandboxes) in by_key
            .into_iter()
            .map(|(key, sandboxes)| (Rule::KeySplit, format!("key {key}"), sandboxes))
            .chain(
                by_nonce
                    .into_iter()
                    .map(|(nonce, sandboxes)| (Rule::DoubleCreate, format!("create {nonce}"), sandboxes)),
            )
            .filter(|(_, _, sandboxes)| sandboxes.len() > 1)
        {
            let first = sandboxes.first().copied();
            self.report(rule, first, format!("{what} became {sandboxes:?}"));
        }
    }

    /// At most one runtime at a time, and all answers from the same one.
    pub(super) fn runtimes(&mut self, life: &Life<'_>) {
        for (index, one) in life.sightings.iter().enumerate() {
            for other in &life.sightings[index + 1..] {
                if one.runtime != other.runtime && one.first.max(other.first) < one.last.min(other.last) {
                    let place = |seen: &Sighting| format!("{} on worker {}", seen.runtime, seen.worker);
                    let what = format!("{} and {} at the same time", place(one), place(other));
                    self.report(Rule::TwoRuntimes, Some(life.id), what);
                }
            }
        }
        if life.named.len() > 1 {
            let named: Vec<String> =
                life.named.iter().map(|(runtime, op)| format!("{runtime} (request {op})")).collect();
            self.report(Rule::OtherRuntime, Some(life.id), named.join(" and "));
        }
    }

    /// A runtime is gone when its time and the grace are over, unless its worker could not do it.
    pub(super) fn deadline(&mut self, life: &Life<'_>) {
        let limits = &self.story.limits;
        let Some(expires) = life.expires_by(limits) else { return };
        for seen in &life.sightings {
            let mut until = expires + (limits.ttl_grace_ms + limits.slack_ms) * MS;
            for down in self.story.downs.iter().filter(|down| down.worker == seen.worker) {
                if down.from < until && down.to > expires {
                    until = until.max(down.to + limits.slack_ms * MS);
                }
            }
            if seen.last > until {
                let late = (seen.last - expires) / MS;
                let what = format!("runtime {} is there {late} ms after the end of its time", seen.runtime);
                self.report(Rule::Outlived, Some(life.id), what);
            }
        }
    }

    /// What is read was written last, or by a request whose end is not known.
    pub(super) fn writes(&mut self, life: &Life<'_>) {
        let alive_until = life.alive.iter().map(|(asked, _)| *asked).max().unwrap_or_default();
        for read in &life.ops {
            let Call::Read { path, .. } = &read.call else { continue };
            let Some(answered) = read.answered else { continue };
            let got = match &read.answer {
                Answer::Content { value } => Some(value.as_str()),
                // The file is missing only if it was not the sandbox that was.
                Answer::Refused { status: 404, .. } if alive_until > answered => None,
                _ => continue,
            };
            let possible = possible(life, path, read, answered);
            if !possible.contains(&got) {
                let what = format!("request {} reads {got:?} of {path}, not one of {possible:?}", read.id);
                self.report(Rule::LostWrite, Some(life.id), what);
            }
        }
    }

    /// What ended stays ended, and nothing ends before its time.
    pub(super) fn end(&mut self, life: &Life<'_>) {
        let mut over: Option<(u64, &Op)> = None;
        for op in &life.ops {
            let Some(answered) = op.answered else { continue };
            let ended = match (&op.call, &op.answer) {
                (_, Answer::Destroyed { .. }) => true,
                (Call::Show { .. }, Answer::Refused { status: 404, .. }) => {
                    self.lost(life, op, answered);
                    true
                }
                // While it is being destroyed its worker does not find it any more, and its row is still there.
                (Call::Exec { .. }, Answer::Refused { status: 404, .. }) => {
                    self.lost(life, op, answered);
                    false
                }
                _ => false,
            };
            if ended && over.is_none_or(|(at, _)| answered < at) {
                over = Some((answered, op));
            }
        }
        let Some((at, op)) = over else { return };
        if let Some((asked, _)) = life.alive.iter().find(|(asked, _)| *asked > at) {
            let what = format!("it was over with request {}, and lives {} ms later", op.id, (asked - at) / MS);
            self.report(Rule::CameBack, Some(life.id), what);
        }
        // Only a confirmed teardown says that the runtime is gone.
        let confirmed = life.ops.iter().filter(|op| op.answer == Answer::Destroyed { done: true });
        let Some(confirmed) = confirmed.filter_map(|op| op.answered).min() else { return };
        if let Some(seen) = life.sightings.iter().find(|seen| seen.last > confirmed) {
            let late = (seen.last - confirmed) / MS;
            let what = format!("runtime {} is there {late} ms after it was reported destroyed", seen.runtime);
            self.report(Rule::CameBack, Some(life.id), what);
        }
    }

    fn lost(&mut self, life: &Life<'_>, op: &Op, answered: u64) {
        let was_there = life.alive.iter().any(|(asked, _)| *asked < op.asked);
        let asked_for = life.ops.iter().any(|other| {
            let sent = !matches!(other.answer, Answer::NotSent | Answer::Refused { .. });
            matches!(other.call, Call::Destroy { .. }) && other.asked < answered && sent
        });
        let in_time = life.expires_from(answered).is_some_and(|expires| answered < expires);
        if was_there && !asked_for && in_time {
            let what = format!("request {} does not find it, and nobody had asked for its end", op.id);
            self.report(Rule::LostSandbox, Some(life.id), what);
        }
    }

    /// Nothing is left, and all goes on.
    pub(super) fn ending(&mut self) {
        let story = self.story;
        for row in story.ended.rows.iter().filter(|row| row.counts()) {
            self.report(Rule::NotEnded, Some(&row.sandbox), format!("it is {}", row.state));
        }
        for seen in story.sightings.iter().filter(|seen| seen.gone.is_none()) {
            let what = format!("runtime {} on worker {}", seen.runtime, seen.worker);
            self.report(Rule::Leaked, Some(&seen.sandbox), what);
        }
        for process in &story.ended.processes {
            self.report(Rule::Leaked, None, format!("a process: {process}"));
        }
        if story.ended.created_after_ms.is_none() {
            self.report(Rule::NotLive, None, "every create failed".into());
        }
    }
}

/// What a read may find at a path. `None` is that there is nothing.
fn possible<'a>(life: &Life<'a>, path: &str, read: &Op, answered: u64) -> Vec<Option<&'a str>> {
    let writes = || {
        life.ops.iter().filter_map(|op| match &op.call {
            Call::Write { path: written, value, .. } if written == path => Some((*op, value.as_str())),
            _ => None,
        })
    };
    // The latest write that was over before the read began. Whatever was answered before that one began is overwritten.
    let settled =
        writes().filter(|(op, _)| op.answer == Answer::Written && op.answered.is_some_and(|at| at < read.asked));
    let settled = settled.max_by_key(|(op, _)| op.asked);
    let floor = settled.map_or(0, |(op, _)| op.asked);
    let mut possible: Vec<Option<&str>> = Vec::new();
    if settled.is_none() {
        possible.push(None);
    }
    for (op, value) in writes() {
        let may = match &op.answer {
            Answer::NotSent | Answer::Refused { .. } => false,
            Answer::Written => op.answered.is_some_and(|at| at >= floor) && op.asked < answered,
            _ => op.asked < answered,
        };
        if may {
            possible.push(Some(value));
        }
    }
    possible
}
