//! From text to a schedule.

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::tz::{TimeZone, TimeZoneDatabase};

use super::{Schedule, ScheduleError, Series};
use crate::limits;
use crate::time::{DurationMs, Timestamp};

/// A cron field: its name, what its numbers may be, the letters it takes besides digits, and the names it knows.
struct Field {
    name: &'static str,
    numbers: &'static str,
    letters: &'static str,
    names: &'static [&'static str],
}

const FIELDS: [Field; 5] = [
    Field { name: "minute", numbers: "0 to 59", letters: "*/,-", names: &[] },
    Field { name: "hour", numbers: "0 to 23", letters: "*/,-", names: &[] },
    Field { name: "day of month", numbers: "1 to 31", letters: "*/,-?LW", names: &[] },
    Field { name: "month", numbers: "1 to 12, or JAN to DEC", letters: "*/,-", names: &MONTHS },
    Field { name: "day of week", numbers: "0 to 7, or SUN to SAT", letters: "*/,-?#L", names: &WEEKDAYS },
];
const MONTHS: [&str; 12] = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

const FORMS: &str = "write five fields, such as `0 6 * * MON-FRI`, or a rate, such as `rate(1 day)`";

impl Schedule {
    /// Reads five cron fields (minute, hour, day of month, month, day of week) in the time of `timezone`, an IANA name, or
    /// `rate(N minutes|hours|days)`. A rate counts elapsed time from 1970-01-01T00:00:00Z; its time zone has no effect.
    pub fn parse(text: &str, timezone: &str) -> Result<Self, ScheduleError> {
        if text.len() > limits::SCHEDULE_TEXT_BYTES {
            let message = format!("the text is longer than {} bytes", limits::SCHEDULE_TEXT_BYTES);
            return Err(ScheduleError::new("schedule", 1, message));
        }
        let zone = zone(timezone)?;
        if text.trim_start().starts_with("rate") {
            return Self::every(rate(text)?, Timestamp::MIN);
        }
        let schedule = Self(Series::Cron { cron: Box::new(cron(text)?), zone });
        // A day that never comes, such as the 30th of February.
        if schedule.next_after(Timestamp::from_millis(SOME_DAY_MS)).is_none() {
            let position = words(text).get(2).map_or(1, |(position, _)| *position);
            return Err(ScheduleError::new("day of month", position, "no date ever matches these fields"));
        }
        Ok(schedule)
    }

    /// A slot each `period_ms`, counted from `anchor` in both directions.
    pub fn every(period_ms: DurationMs, anchor: Timestamp) -> Result<Self, ScheduleError> {
        let allowed = limits::SCHEDULE_INTERVAL_MS_MIN..=limits::SCHEDULE_INTERVAL_MS_MAX;
        if !allowed.contains(&period_ms) {
            return Err(ScheduleError::new("interval", 1, "must be at least one second and at most 366 days"));
        }
        Ok(Self(Series::Every { period_ms, anchor }))
    }
}

/// 2026-01-01T00:00:00Z. Whether a schedule has slots at all is asked from here.
const SOME_DAY_MS: i64 = 1_767_225_600_000;

/// The names of all time zones, in no order.
pub fn timezones() -> Vec<String> {
    TimeZoneDatabase::bundled().available().map(|name| name.to_string()).collect()
}

fn zone(name: &str) -> Result<TimeZone, ScheduleError> {
    let known = TimeZoneDatabase::bundled().get(name).ok().filter(|zone| !zone.is_unknown());
    known.ok_or_else(|| {
        let shown: String = name.chars().take(64).collect();
        let message = format!("`{shown}` is not the name of a time zone, such as UTC or Europe/Paris");
        ScheduleError::new("time zone", 1, message)
    })
}

/// The words of a text, each with its position in characters, counted from 1.
fn words(text: &str) -> Vec<(usize, &str)> {
    let mut words = Vec::new();
    let mut position = 1;
    for piece in text.split_inclusive(char::is_whitespace) {
        let word = piece.trim_end();
        if !word.is_empty() {
            words.push((position, word));
        }
        position += piece.chars().count();
    }
    words
}

fn cron(text: &str) -> Result<Cron, ScheduleError> {
    let words = words(text);
    if words.len() != FIELDS.len() {
        let position = words.get(FIELDS.len()).map_or(1, |(position, _)| *position);
        let message = match words.first() {
            None => format!("the text is empty: {FORMS}"),
            Some((_, word)) if word.starts_with('@') => format!("names such as `@daily` are not supported: {FORMS}"),
            Some(_) => format!("found {} fields: {FORMS}", words.len()),
        };
        return Err(ScheduleError::new("schedule", position, message));
    }
    for ((position, word), field) in words.iter().zip(&FIELDS) {
        judge_field(*position, word, field)?;
    }
    read(text).map_err(|message| ScheduleError::new("schedule", 1, message))
}

fn read(text: &str) -> Result<Cron, String> {
    let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
    parser.parse(text).map_err(|error| error.to_string())
}

/// Each item of the list alone, so that an error can say which one is wrong.
fn judge_field(mut position: usize, word: &str, field: &Field) -> Result<(), ScheduleError> {
    for item in word.split(',') {
        judge_letters(position, item, field)?;
        let alone = FIELDS.each_ref().map(|other| if other.name == field.name { item } else { "*" }).join(" ");
        if item.is_empty() || read(&alone).is_err() {
            let message = format!(
                "`{item}` is not valid here: numbers are {}, lists use `,`, ranges `-`, steps `*/N` or `A-B/N`",
                field.numbers
            );
            return Err(ScheduleError::new(field.name, position, message));
        }
        position += item.chars().count() + 1;
    }
    Ok(())
}

/// The parser replaces names wherever they are, also where they mean nothing.
fn judge_letters(position: usize, item: &str, field: &Field) -> Result<(), ScheduleError> {
    let upper = item.to_ascii_uppercase();
    let mut rest = upper.as_str();
    while let Some(first) = rest.chars().next() {
        let name = field.names.iter().find(|name| rest.starts_with(**name));
        if let Some(name) = name {
            rest = &rest[name.len()..];
        } else if first.is_ascii_digit() || field.letters.contains(first) {
            rest = &rest[1..];
        } else {
            let at = position + upper.chars().count() - rest.chars().count();
            let message = format!("`{first}` is not allowed here: numbers are {}", field.numbers);
            return Err(ScheduleError::new(field.name, at, message));
        }
    }
    Ok(())
}

/// `rate(5 minutes)`, in milliseconds.
fn rate(text: &str) -> Result<DurationMs, ScheduleError> {
    let fault = |message: &str| {
        let position = text.chars().take_while(|c| c.is_whitespace()).count() + 1;
        Err(ScheduleError::new("rate", position, message))
    };
    let inside = text.trim().strip_prefix("rate").map(str::trim_start).and_then(|rest| rest.strip_prefix('('));
    let Some((number, unit)) =
        inside.and_then(|rest| rest.strip_suffix(')')).and_then(|rest| rest.trim().split_once(' '))
    else {
        return fault("must be `rate(N minutes)`, `rate(N hours)` or `rate(N days)`");
    };
    let unit_ms = match unit.trim().trim_end_matches('s') {
        "minute" => 60_000,
        "hour" => 3_600_000,
        "day" => 86_400_000,
        _ => return fault("the unit must be minutes, hours or days"),
    };
    let digits = number.len() <= 6 && number.bytes().all(|byte| byte.is_ascii_digit());
    let count: i64 = if digits { number.parse().unwrap_or(0) } else { 0 };
    match count.saturating_mul(unit_ms) {
        period if (1..=limits::SCHEDULE_INTERVAL_MS_MAX).contains(&period) => Ok(period),
        _ => fault("the number must be a whole number from 1, and the rate at most 366 days"),
    }
}
