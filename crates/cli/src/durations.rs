//! Lengths of time as the worker contract writes them: `30s`, `1h30m`, `1.5s`; printed as `5m0s`.

use std::time::Duration;

const UNITS: [(&str, u128); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Digits after the point beyond these are finer than a nanosecond.
const FRACTION_DIGITS_MAX: usize = 18;

pub fn parse(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    nanos(text)
        .and_then(|nanos| u64::try_from(nanos).ok())
        .map(Duration::from_nanos)
        .ok_or_else(|| "say it like 500ms, 30s, 5m or 1h30m".to_owned())
}

fn nanos(mut text: &str) -> Option<u128> {
    let mut total = 0_u128;
    loop {
        let digits = |text: &str| text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (whole, rest) = text.split_at(digits(text));
        let (fraction, rest) = match rest.strip_prefix('.') {
            Some(rest) => rest.split_at(digits(rest)),
            None => ("", rest),
        };
        if (whole.is_empty() && fraction.is_empty()) || fraction.len() > FRACTION_DIGITS_MAX {
            return None;
        }
        let end = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let (name, rest) = rest.split_at(end);
        let (_, unit) = UNITS.iter().find(|(known, _)| *known == name)?;
        let number =
            |digits: &str| if digits.is_empty() { Some(0) } else { digits.parse::<u64>().ok().map(u128::from) };
        let part = number(fraction)? * unit / 10_u128.pow(u32::try_from(fraction.len()).ok()?);
        total = number(whole)?.checked_mul(*unit)?.checked_add(part)?.checked_add(total)?;
        if rest.is_empty() {
            return Some(total);
        }
        text = rest;
    }
}

/// The canonical form: `24h0m0s`, `5m0s`, `1.5s`, `250ms`, `0s`.
pub fn canonical(duration: Duration) -> String {
    let (seconds, nanos) = (duration.as_secs(), duration.subsec_nanos());
    if seconds == 0 {
        return match nanos {
            0 => "0s".to_owned(),
            1..1_000 => format!("{nanos}ns"),
            1_000..1_000_000 => with_fraction(0, nanos, 1_000, "µs"),
            _ => with_fraction(0, nanos, 1_000_000, "ms"),
        };
    }
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    let rest = with_fraction(seconds % 60, nanos, 1_000_000_000, "s");
    match (hours, minutes) {
        (0, 0) => rest,
        (0, _) => format!("{minutes}m{rest}"),
        _ => format!("{hours}h{minutes}m{rest}"),
    }
}

/// `base` units and `nanos` of which `unit` make one more.
fn with_fraction(base: u64, nanos: u32, unit: u32, name: &str) -> String {
    let whole = base + u64::from(nanos / unit);
    let width = unit.ilog10() as usize;
    let fraction = format!("{:0width$}", nanos % unit);
    match fraction.trim_end_matches('0') {
        "" => format!("{whole}{name}"),
        fraction => format!("{whole}.{fraction}{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_printed_in_canonical_form() {
        for (text, printed) in [
            ("0", "0s"),
            ("0s", "0s"),
            ("5m", "5m0s"),
            ("300s", "5m0s"),
            ("24h", "24h0m0s"),
            ("1h30m", "1h30m0s"),
            ("90m", "1h30m0s"),
            ("1h0.5s", "1h0m0.5s"),
            ("1.5s", "1.5s"),
            (".5s", "500ms"),
            ("1.s", "1s"),
            ("250ms", "250ms"),
            ("1.25ms", "1.25ms"),
            ("15us", "15µs"),
            ("1.5µs", "1.5µs"),
            ("7ns", "7ns"),
            ("59.999999999s", "59.999999999s"),
            ("1s1s", "2s"),
        ] {
            assert_eq!(parse(text).map(canonical).as_deref(), Ok(printed), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused() {
        for text in ["", "5", "s", ".s", "-5s", "+5s", "5 s", "5d", "5m ", "1..5s", "5x", "1h30", "99999999999999h"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
