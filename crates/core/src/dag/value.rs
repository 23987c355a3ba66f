//! Values of columns as text, in the one form that every data store reads in the same way.

use jiff::Timestamp;
use jiff::civil::Date;
use serde_json::{Number, Value};
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

/// `2025-12-31`. Postgres reads no year before 1 in this form.
pub fn date(text: &str) -> Option<Date> {
    let date: Date = text.parse().ok()?;
    (date.to_string() == text && date.year() >= 1).then_some(date)
}

/// A finite number, read exactly: the parser of JSON may be off in the last digit. There is one zero, since SQLite keeps
/// no other.
pub fn float(text: &str) -> Option<f64> {
    let number: f64 = text.parse().ok()?;
    number.is_finite().then_some(number + 0.0)
}

/// JSON with its keys in order and each number in one form, which stays the same when Postgres has kept it: Postgres
/// writes numbers without an exponent. `None` if it holds NUL or a number beyond all bounds.
pub fn json(text: &str) -> Option<String> {
    let mut value: Value = serde_json::from_str(&marked(text)?).ok()?;
    unmark(&mut value)?;
    Some(value.to_string())
}

/// Texts that begin with NUL are numbers. No other text has one.
const MARK: char = '\0';

/// Valid JSON with its numbers as texts, so that no parser rounds them. `None` if it holds NUL.
fn marked(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let mut out = String::with_capacity(text.len() + 16);
    let (mut at, mut from) = (0, 0);
    while at < bytes.len() {
        match bytes[at] {
            b'"' => {
                at += 1;
                while at < bytes.len() && bytes[at] != b'"' {
                    if bytes[at..].starts_with(b"\\u0000") {
                        return None;
                    }
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                at += 1;
            }
            b'-' | b'0'..=b'9' => {
                out.push_str(&text[from..at]);
                let is_part = |byte: &u8| matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9');
                let length = bytes[at..].iter().take_while(|byte| is_part(byte)).count();
                out.push_str("\"\\u0000");
                out.push_str(&text[at..at + length]);
                out.push('"');
                at += length;
                from = at;
            }
            _ => at += 1,
        }
    }
    out.push_str(text.get(from..)?);
    Some(out)
}

fn unmark(value: &mut Value) -> Option<()> {
    match value {
        Value::String(text) => {
            if let Some(number) = text.strip_prefix(MARK) {
                *value = Value::Number(number_of(number)?);
            }
        }
        Value::Array(items) => items.iter_mut().try_for_each(unmark)?,
        Value::Object(fields) => fields.values_mut().try_for_each(unmark)?,
        _ => {}
    }
    Some(())
}

fn number_of(text: &str) -> Option<Number> {
    let whole = |text: &str| {
        let signed = text.parse::<i64>().ok().map(Number::from);
        signed.or_else(|| text.parse::<u64>().ok().map(Number::from))
    };
    if let Some(number) = whole(text) {
        return Some(number);
    }
    let number = float(text)?;
    // Written with an exponent, it would come back as an integer.
    let is_long = number.fract() == 0.0 && Number::from_f64(number)?.to_string().contains('e');
    is_long.then(|| whole(&format!("{number:.0}"))).flatten().or_else(|| Number::from_f64(number))
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
        assert!(date("0001-01-01").is_some() && date("0000-12-31").is_none() && date("-000001-01-01").is_none());
        assert!(date("2025-12-31").is_some() && date("20251231").is_none() && date("2025-02-30").is_none());
        assert!(uuid("0190c0de-0000-7000-8000-000000000001").is_some() && uuid("0190c0de").is_none());
    }

    #[test]
    fn numbers_are_read_exactly_and_there_is_one_zero() {
        assert_eq!(float("-0.0").map(f64::to_bits), Some(0));
        assert_eq!(float("1e400"), None);
    }

    #[test]
    fn json_has_one_form() {
        for (text, kept) in [
            (r#" {"b": [1, 2.50, null], "a": "x"} "#, r#"{"a":"x","b":[1,2.5,null]}"#),
            ("1e16", "10000000000000000"),
            ("10000000000000000", "10000000000000000"),
            ("1000000000000000.0", "1000000000000000.0"),
            ("-1e18", "-1000000000000000000"),
            ("1e20", "1e+20"),
            ("100000000000000000000", "1e+20"),
            ("0.0000001", "1e-7"),
            ("[-0.0, -0, 18446744073709551615]", "[0.0,0,18446744073709551615]"),
            (r#"["1", "a\\", "\"1", "1e5"]"#, r#"["1","a\\","\"1","1e5"]"#),
        ] {
            assert_eq!(json(text).as_deref(), Some(kept), "{text}");
            assert_eq!(json(kept).as_deref(), Some(kept), "{text}");
        }
        for bad in [r#""\u0000""#, r#"{"\u00001":1}"#, "[1e400]"] {
            assert_eq!(json(bad), None, "{bad}");
        }
        // An escaped backslash before the text is not NUL.
        assert_eq!(json(r#""\\u0000""#).as_deref(), Some(r#""\\u0000""#));
    }
}
