//! Schedules: what callers send, as definitions.

use tenure_contract::suggest;
use tenure_contract::user::{ScheduleChange, ScheduleSubmission};
use tenure_core::schedule::{CatchUp, Definition, Overlap, ScheduleError, timezones};
use tenure_core::{Timestamp, limits};
use tenure_engine::store::TemplateKind;

use super::{time, within};
use crate::error::Fault;

/// How many slots are compared with the jitter.
const SLOTS: usize = 10;

/// The whole definition of a new schedule.
pub fn definition(wire: &ScheduleSubmission, now: Timestamp) -> Result<Definition, Fault> {
    if wire.cron.is_some() == wire.interval_seconds.is_some() {
        return Err(Fault::invalid("cron", "give either cron or interval_seconds"));
    }
    let definition = Definition {
        cron: wire.cron.clone(),
        interval_ms: wire.interval_seconds.map(interval).transpose()?,
        timezone: wire.timezone.clone().unwrap_or_else(|| "UTC".to_owned()),
        catch_up: wire.catch_up.as_deref().map(catch_up).transpose()?.unwrap_or_default(),
        overlap: wire.overlap.as_deref().map(overlap).transpose()?.unwrap_or_default(),
        jitter_ms: wire.jitter_seconds.map(jitter).transpose()?.unwrap_or_default(),
        starts_at: wire.starts_at.as_deref().map(|text| time(text, "starts_at")).transpose()?,
        ends_at: wire.ends_at.as_deref().map(|text| time(text, "ends_at")).transpose()?,
    };
    judge(&definition, now)?;
    Ok(definition)
}

/// What of it is named, together with what stays.
pub fn changed(wire: &ScheduleChange, current: &Definition, now: Timestamp) -> Result<Definition, Fault> {
    let mut new = current.clone();
    match (&wire.cron, wire.interval_seconds) {
        (Some(_), Some(_)) => return Err(Fault::invalid("cron", "give either cron or interval_seconds")),
        (Some(cron), None) => (new.cron, new.interval_ms) = (Some(cron.clone()), None),
        (None, Some(seconds)) => (new.cron, new.interval_ms) = (None, Some(interval(seconds)?)),
        (None, None) => {}
    }
    if let Some(zone) = &wire.timezone {
        new.timezone = zone.clone().unwrap_or_else(|| "UTC".to_owned());
    }
    if let Some(mode) = &wire.catch_up {
        new.catch_up = mode.as_deref().map(catch_up).transpose()?.unwrap_or_default();
    }
    if let Some(mode) = &wire.overlap {
        new.overlap = mode.as_deref().map(overlap).transpose()?.unwrap_or_default();
    }
    if let Some(seconds) = wire.jitter_seconds {
        new.jitter_ms = seconds.map(jitter).transpose()?.unwrap_or_default();
    }
    if let Some(text) = &wire.starts_at {
        new.starts_at = text.as_deref().map(|text| time(text, "starts_at")).transpose()?;
    }
    if let Some(text) = &wire.ends_at {
        new.ends_at = text.as_deref().map(|text| time(text, "ends_at")).transpose()?;
    }
    if new != *current {
        judge(&new, now)?;
    }
    Ok(new)
}

/// Which template was given, if one was.
pub fn template<T>(task: Option<T>, run: Option<T>) -> Result<Option<(TemplateKind, T)>, Fault> {
    match (task, run) {
        (Some(_), Some(_)) => Err(Fault::invalid("run", "give either task or run")),
        (Some(task), None) => Ok(Some((TemplateKind::Task, task))),
        (None, Some(run)) => Ok(Some((TemplateKind::Run, run))),
        (None, None) => Ok(None),
    }
}

fn interval(seconds: i64) -> Result<i64, Fault> {
    let (min, max) = (limits::SCHEDULE_INTERVAL_MS_MIN / 1000, limits::SCHEDULE_INTERVAL_MS_MAX / 1000);
    Ok(within(seconds, min, max, "interval_seconds")? * 1000)
}

fn jitter(seconds: i64) -> Result<i64, Fault> {
    Ok(within(seconds, 0, limits::SCHEDULE_JITTER_MS_MAX / 1000, "jitter_seconds")? * 1000)
}

fn catch_up(text: &str) -> Result<CatchUp, Fault> {
    CatchUp::parse(text).ok_or_else(|| Fault::invalid("catch_up", "must be latest, none or all"))
}

fn overlap(text: &str) -> Result<Overlap, Fault> {
    Overlap::parse(text).ok_or_else(|| Fault::invalid("overlap", "must be skip, queue or cancel_old"))
}

/// Everything together: a text that can be read, a time zone, slots that come, and jitter that fits between them.
fn judge(definition: &Definition, now: Timestamp) -> Result<(), Fault> {
    let timing = definition.timing(0).map_err(|error| unreadable(definition, &error))?;
    let slots = timing.upcoming(now, SLOTS);
    if slots.is_empty() {
        let field = if definition.ends_at.is_some() { "ends_at" } else { "cron" };
        return Err(Fault::invalid(field, "the schedule has no slot from now on"));
    }
    let gap = slots.windows(2).map(|pair| pair[1].since(pair[0])).min();
    if gap.is_some_and(|gap| definition.jitter_ms >= gap) {
        return Err(Fault::invalid("jitter_seconds", "must be less than the time between two slots"));
    }
    Ok(())
}

fn unreadable(definition: &Definition, error: &ScheduleError) -> Fault {
    if error.field == "time zone" {
        let names = timezones();
        let near = suggest::nearest(&definition.timezone, names.iter().map(String::as_str));
        return Fault::invalid("timezone", &format!("{}{}", error.message, suggest::meant(near)));
    }
    let field = if definition.interval_ms.is_some() { "interval_seconds" } else { "cron" };
    Fault::invalid(field, &error.to_string())
}
