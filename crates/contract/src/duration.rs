//! Durations as they are written (`30s`, `1h30m`, `7d`, `0`) and as they are shown (`24h0m0s`, `1.5s`).
//!
//! They are part of the wire: requests for worker tokens and API keys contain them. The configuration and the command line
//! use the same form.

use std::time::Duration;

/// Beyond this nobody means it, and sums with points in time would overflow.
const MAX: Duration = Duration::from_secs(100 * 366 * 24 * 3600);
const TEXT_BYTES: usize = 64;
/// Longer numbers cannot be within `MAX`, in whatever unit from microseconds on.
const DIGITS: usize = 11;

/// Numbers with units from `ns` to `y`, one after the other; `0` needs none.
pub fn parse(text: &str) -> Option<Duration> {
    if !text.is_empty() && text.bytes().all(|byte| byte == b'0') {
        return Some(Duration::ZERO);
    }
    // humantime would overflow on the greatest numbers.
    let too_long = |part: &str| part.len() > DIGITS;
    if text.len() > TEXT_BYTES || text.split(|c: char| !c.is_ascii_digit()).any(too_long) {
        return None;
    }
    humantime::parse_duration(text).ok().filter(|duration| *duration <= MAX)
}

/// The canonical form: hours, minutes and seconds from the largest that is needed, or one fraction below a second.
pub fn canonical(duration: Duration) -> String {
    let nanos = duration.subsec_nanos();
    if duration.as_secs() == 0 {
        return match nanos {
            0 => "0s".to_owned(),
            1..1_000 => format!("{nanos}ns"),
            1_000..1_000_000 => format!("{}µs", decimal(u64::from(nanos), 1_000)),
            _ => format!("{}ms", decimal(u64::from(nanos), 1_000_000)),
        };
    }
    let (hours, rest) = (duration.as_secs() / 3600, duration.as_secs() % 3600);
    let (minutes, seconds) = (rest / 60, rest % 60);
    let seconds = decimal(seconds * 1_000_000_000 + u64::from(nanos), 1_000_000_000);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m{seconds}s"),
        _ => format!("{hours}h{minutes}m{seconds}s"),
    }
}

/// `number / unit`, where `unit` is a power of ten, without zeros at the end.
fn decimal(number: u64, unit: u64) -> String {
    let (whole, rest) = (number / unit, number % unit);
    if rest == 0 {
        return whole.to_string();
    }
    let digits = unit.ilog10() as usize;
    format!("{whole}.{}", format!("{rest:0digits$}").trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_of_writing_are_read_and_one_is_shown() {
        for (text, shown) in [
            ("0", "0s"),
            ("0s", "0s"),
            ("7d", "168h0m0s"),
            ("24h", "24h0m0s"),
            ("5m", "5m0s"),
            ("1h30m", "1h30m0s"),
            ("1.5s", "1.5s"),
            ("250ms", "250ms"),
            ("1500ms", "1.5s"),
            ("1.5ms", "1.5ms"),
            ("12us", "12µs"),
            ("7ns", "7ns"),
            ("90s", "1m30s"),
            ("1h 5sec", "1h0m5s"),
            ("2 weeks", "336h0m0s"),
            ("3600.25s", "1h0m0.25s"),
        ] {
            assert_eq!(parse(text).map(canonical).as_deref(), Some(shown), "{text}");
            assert_eq!(parse(shown), parse(text), "{shown} is not read as {text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused_without_overflowing() {
        let many = "9".repeat(70) + "h";
        for text in [
            "",
            " ",
            "7",
            "-7d",
            "-0",
            "h",
            "1x",
            "1h-5m",
            "200y",
            "1e3s",
            "∞",
            &many,
            "18446744073709551615s 1000ms",
            "99999999999y",
            "+1s",
            "1..5s",
            ".",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
