//! What a worker's answer to a push means.

use std::time::SystemTime;

use tenure_core::limits;
use tenure_core::time::DurationMs;
use tenure_engine::delivery::Outcome;
use tenure_outbound::{StatusCode, header};

/// What the exchange came to, as far as the attempt is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The worker has it.
    Accepted,
    /// It has had it before.
    Duplicate,
    /// It has to be pushed again, after this long if the worker said so.
    Again { after_ms: Option<DurationMs> },
    /// The worker will never take it.
    Rejected,
}

impl Verdict {
    /// The table of the contract.
    pub fn of(status: StatusCode, headers: &header::HeaderMap) -> Self {
        match status.as_u16() {
            200..=299 => Self::Accepted,
            409 => Self::Duplicate,
            429 | 503 => Self::Again { after_ms: retry_after(headers, SystemTime::now()) },
            408 | 500..=599 => Self::Again { after_ms: None },
            _ => Self::Rejected,
        }
    }

    /// As the engine takes it. A worker that says when to come again works; one that answers with errors only does not.
    /// `target` is scheme, host and port: the rest of an address can be secret.
    pub fn outcome(self, status: StatusCode, target: &str) -> Outcome {
        match self {
            Self::Accepted => Outcome::Accepted,
            Self::Duplicate => Outcome::Duplicate,
            Self::Again { after_ms: None } if status != StatusCode::TOO_MANY_REQUESTS => Outcome::Failed,
            Self::Again { after_ms } => Outcome::PutOff { after_ms },
            Self::Rejected => {
                let why = if status.is_redirection() { "; redirects are not followed" } else { "" };
                Outcome::Rejected { message: format!("the worker at {target} answered {status}{why}") }
            }
        }
    }
}

/// Seconds, or a date.
fn retry_after(headers: &header::HeaderMap, now: SystemTime) -> Option<DurationMs> {
    let text = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    let ms = match text.parse::<u64>() {
        Ok(seconds) => DurationMs::try_from(seconds.saturating_mul(1000)).unwrap_or(DurationMs::MAX),
        Err(_) => {
            let at = httpdate::parse_http_date(text).ok()?;
            at.duration_since(now).map_or(0, |left| DurationMs::try_from(left.as_millis()).unwrap_or(DurationMs::MAX))
        }
    };
    // No attempt waits longer, and one that is to be pushed at once would keep us turning.
    Some(ms.clamp(MIN_WAIT_MS, limits::PUSH_DISPATCH_MS_MAX))
}

const MIN_WAIT_MS: DurationMs = 100;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tenure_engine::delivery::Health;

    use super::*;

    fn headers(value: &str) -> header::HeaderMap {
        [(header::RETRY_AFTER, value.parse().unwrap())].into_iter().collect()
    }

    #[test]
    fn every_status_means_what_the_contract_says() {
        let again = Verdict::Again { after_ms: None };
        for (status, expected, health) in [
            (200, Verdict::Accepted, Health::Alive),
            (202, Verdict::Accepted, Health::Alive),
            (204, Verdict::Accepted, Health::Alive),
            (299, Verdict::Accepted, Health::Alive),
            (409, Verdict::Duplicate, Health::Alive),
            (429, again, Health::Alive),
            (503, again, Health::Down),
            (408, again, Health::Down),
            (500, again, Health::Down),
            (502, again, Health::Down),
            (599, again, Health::Down),
            (400, Verdict::Rejected, Health::Alive),
            (401, Verdict::Rejected, Health::Alive),
            (404, Verdict::Rejected, Health::Alive),
            (410, Verdict::Rejected, Health::Alive),
            (301, Verdict::Rejected, Health::Alive),
            (302, Verdict::Rejected, Health::Alive),
            (304, Verdict::Rejected, Health::Alive),
            (307, Verdict::Rejected, Health::Alive),
            (199, Verdict::Rejected, Health::Alive),
            (700, Verdict::Rejected, Health::Alive),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            let found = Verdict::of(status, &header::HeaderMap::new());
            let found_health = found.outcome(status, "https://h:443").health();
            assert_eq!((found, found_health), (expected, health), "{status}");
        }
    }

    #[test]
    fn a_worker_may_say_when_to_come_again() {
        for (status, expected) in [(429, Some(7_000)), (503, Some(7_000)), (500, None), (408, None)] {
            let status = StatusCode::from_u16(status).unwrap();
            let found = Verdict::of(status, &headers("7"));
            assert_eq!(found, Verdict::Again { after_ms: expected }, "{status}");
            let health = found.outcome(status, "https://h:443").health();
            assert_eq!(health == Health::Alive, expected.is_some(), "{status}");
        }
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_445_412_480 - 20);
        for (text, expected) in [
            ("7", Some(7_000)),
            (" 7 ", Some(7_000)),
            ("0", Some(100)),
            ("99999999999", Some(3_600_000)),
            ("18446744073709551615", Some(3_600_000)),
            ("Wed, 21 Oct 2015 07:28:00 GMT", Some(20_000)),
            ("Wed, 21 Oct 2015 07:27:00 GMT", Some(100)),
            ("soon", None),
            ("-1", None),
            ("", None),
        ] {
            assert_eq!(retry_after(&headers(text), now), expected, "{text}");
        }
    }

    #[test]
    fn a_rejection_says_who_answered_what() {
        let outcome = Verdict::Rejected.outcome(StatusCode::FOUND, "https://h:443");
        let Outcome::Rejected { message } = outcome else { panic!("{outcome:?}") };
        assert_eq!(message, "the worker at https://h:443 answered 302 Found; redirects are not followed");
    }
}
