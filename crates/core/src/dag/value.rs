//! Values of columns as text, in the one form that every data store reads in the same way.

use jiff::Timestamp;
use jiff::civil::Date;
use uuid::Uuid;

/// Only the usual form: `Uuid` reads others too.
pub fn uuid(text: &str) -> Option<Uuid> {
    (text.len() == 36).then(|| Uuid::try_parse(text).ok())?
}

/// Digits with an optional sign and fraction, as every database reads them.
pub fn is_decimal(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    text.len() <= 128 && digits(whole) && digits(fraction)
}

/// A decimal number with exactly `scale` digits after the decimal point. `None` if it has more digits than `precision`
/// and `scale` allow.
pub fn decimal(text: &str, precision: u8, scale: u8) -> Option<String> {
    if !is_decimal(text) {
        return None;
    }
    let (negative, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, ""));
    let (whole, fraction) = (whole.trim_start_matches('0'), fraction.trim_end_matches('0'));
    let (precision, scale) = (usize::from(precision), usize::from(scale));
    if fraction.len() > scale || whole.len() > precision - scale {
        return None;
    }
    let sign = if negative && !(whole.is_empty() && fraction.is_empty()) { "-" } else { "" };
    let whole = if whole.is_empty() { "0" } else { whole };
    let point = if scale > 0 { "." } else { "" };
    Some(format!("{sign}{whole}{point}{fraction:0<scale$}"))
}

/// `2025-12-31`
pub fn date(text: &str) -> Option<Date> {
    let date: Date = text.parse().ok()?;
    (date.to_string() == text).then_some(date)
}

/// `2025-12-31T12:00:00Z`, with any offset and fraction of a second.
pub fn timestamp(text: &str) -> Option<Timestamp> {
    let written = text.len() >= "2025-01-01T00:00:00Z".len() && text.is_ascii() && text.as_bytes()[10] == b'T';
    let timestamp: Timestamp = written.then(|| text.parse().ok())??;
    (timestamp.as_second() >= FIRST_SECOND).then_some(timestamp)
}

/// 0000-01-01T00:00:00Z: years before it have a sign.
const FIRST_SECOND: i64 = -62_167_219_200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decimal_has_one_form() {
        for (text, kept) in [
            ("1", "1.00"),
            ("+01.5", "1.50"),
            ("-0.00", "0.00"),
            ("-.5", ""),
            ("0.250", "0.25"),
            ("999.99", "999.99"),
            ("1000", ""),
            ("0.001", ""),
            ("1e3", ""),
            ("", ""),
        ] {
            assert_eq!(decimal(text, 5, 2).unwrap_or_default(), kept, "{text}");
        }
        assert_eq!(decimal("007", 3, 0).as_deref(), Some("7"));
    }

    #[test]
    fn times_have_an_offset_and_a_year_of_four_digits() {
        for good in ["2025-12-31T12:00:00Z", "0000-01-01T00:00:00Z", "2025-12-31T12:00:00.123456789+02:00"] {
            assert!(timestamp(good).is_some(), "{good}");
        }
        for bad in ["2025-12-31", "2025-12-31T12:00:00", "2025-12-31 12:00:00Z", "-000001-12-31T00:00:00Z", ""] {
            assert_eq!(timestamp(bad), None, "{bad}");
        }
        assert!(date("2025-12-31").is_some() && date("20251231").is_none() && date("2025-02-30").is_none());
        assert!(uuid("0190c0de-0000-7000-8000-000000000001").is_some() && uuid("0190c0de").is_none());
    }
}
