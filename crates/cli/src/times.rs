//! Points in time and lengths of time, as people read and write them.

use std::time::Duration;

use jiff::Timestamp;

/// A duration as the wire has it: `30s`, `5m`, `1h30m`, `0`.
pub fn wire(text: &str) -> Result<Duration, String> {
    tenure_contract::duration::parse(text).ok_or_else(|| "write it as 500ms, 30s, 5m or 1h30m".to_owned())
}

/// `5s`, `1h30m`, `7d`.
pub fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error}: write it as 500ms, 5s, 10m, 1h30m or 7d"))
}

/// A length of time that the API counts in whole seconds.
pub fn seconds(text: &str) -> Result<i64, String> {
    let duration = duration(text)?;
    if duration.subsec_nanos() != 0 {
        return Err("only whole seconds are allowed".to_owned());
    }
    i64::try_from(duration.as_secs()).map_err(|_| "this is too long".to_owned())
}

/// A length of time that the API counts in milliseconds.
pub fn millis(text: &str) -> Result<i64, String> {
    i64::try_from(duration(text)?.as_millis()).map_err(|_| "this is too long".to_owned())
}

/// A length of time that must not be 0.
pub fn some_millis(text: &str) -> Result<i64, String> {
    match millis(text)? {
        0 => Err("must be longer than 0".to_owned()),
        millis => Ok(millis),
    }
}

/// RFC 3339 with an offset; what comes out is in UTC.
pub fn point(text: &str) -> Result<String, String> {
    let point: Timestamp =
        text.parse().map_err(|_| "a point in time looks like 2025-01-15T10:00:00Z or 2025-01-15T11:00:00+01:00")?;
    Ok(point.to_string())
}

/// A point in time, or how long ago it was: `30m`.
pub fn point_or_ago(text: &str) -> Result<String, String> {
    match humantime::parse_duration(text).ok().map(|ago| Timestamp::now().checked_sub(ago)) {
        Some(Ok(point)) => Ok(point.to_string()),
        Some(Err(_)) => Err("this is too long ago".to_owned()),
        None => point(text).map_err(|error| format!("{error}; or how long ago, such as 30m")),
    }
}

/// How far from now: `12s ago`, `in 3m`. Empty for anything that is not a point in time.
pub fn distance(point: &str, now: Timestamp) -> String {
    let Ok(point) = point.parse::<Timestamp>() else { return String::new() };
    let seconds = now.as_second() - point.as_second();
    match seconds {
        0 => "now".to_owned(),
        1.. => format!("{} ago", short(seconds.unsigned_abs())),
        _ => format!("in {}", short(seconds.unsigned_abs())),
    }
}

/// How long ago, for a column: `12s`.
pub fn age(point: &str, now: Timestamp) -> String {
    match point.parse::<Timestamp>() {
        Ok(point) => short((now.as_second() - point.as_second()).max(0).unsigned_abs()),
        Err(_) => String::new(),
    }
}

/// From one point to another: `1.2s`.
pub fn between(from: &str, to: &str) -> Option<String> {
    let (from, to) = (from.parse::<Timestamp>().ok()?, to.parse::<Timestamp>().ok()?);
    let millis = u64::try_from(to.as_millisecond() - from.as_millisecond()).ok()?;
    Some(if millis < 10_000 { format!("{:.1}s", millis as f64 / 1000.0) } else { short(millis / 1000) })
}

/// The largest unit that fits, and the next one where it matters.
fn short(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{minutes}m"),
        7200..172_800 => format!("{hours}h"),
        _ => format!("{days}d"),
    }
}

/// `10:00:00`, for lines that follow each other.
pub fn clock(point: Timestamp) -> String {
    let text = format!("{point:.0}");
    text.split('T').nth(1).map_or(String::new(), |time| time.trim_end_matches('Z').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        assert_eq!(duration("5s"), Ok(Duration::from_secs(5)));
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(millis("250ms"), Ok(250));
        assert_eq!(seconds("7d"), Ok(604_800));
        assert!(seconds("1500ms").is_err());
        for text in ["", "5", "-5s", "soon"] {
            assert!(duration(text).unwrap_err().contains("write it as"), "{text}");
        }
    }

    #[test]
    fn points_in_time_need_an_offset() {
        assert_eq!(point("2025-01-15T11:00:00+01:00").unwrap(), "2025-01-15T10:00:00Z");
        assert!(point("2025-01-15 10:00").is_err());
    }

    #[test]
    fn distances_are_short() {
        let now: Timestamp = "2025-01-15T10:00:00Z".parse().unwrap();
        for (point, text) in [
            ("2025-01-15T09:59:50Z", "10s ago"),
            ("2025-01-15T10:00:00.4Z", "now"),
            ("2025-01-15T10:05:00Z", "in 5m"),
            ("2025-01-13T08:00:00Z", "2d ago"),
            ("2025-01-15T07:00:00Z", "3h ago"),
            ("never", ""),
        ] {
            assert_eq!(distance(point, now), text);
        }
        assert_eq!(age("2025-01-15T10:00:05Z", now), "0s");
        assert_eq!(between("2025-01-15T10:00:00Z", "2025-01-15T10:00:01.25Z").unwrap(), "1.2s");
        assert_eq!(clock(now), "10:00:00");
    }
}
