//! Points in time, in milliseconds, as arguments: nothing here reads a clock.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A length of time in milliseconds.
pub type DurationMs = i64;

/// A point in time: milliseconds since 1970-01-01T00:00:00Z, always UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

impl Timestamp {
    pub const MIN: Self = Self(0);
    /// 9999-12-30T22:00:00Z: the last point that every offset can write.
    pub const MAX: Self = Self(253_402_207_200_000);

    /// A point outside of [`Self::MIN`]..=[`Self::MAX`] becomes the nearer end.
    pub const fn from_millis(millis: i64) -> Self {
        if millis < Self::MIN.0 {
            Self::MIN
        } else if millis > Self::MAX.0 {
            Self::MAX
        } else {
            Self(millis)
        }
    }

    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// Later by `ms`, never past [`Self::MAX`].
    #[must_use]
    pub const fn plus(self, ms: DurationMs) -> Self {
        Self::from_millis(self.0.saturating_add(ms))
    }

    /// Milliseconds from `earlier` to here; negative if it is later.
    pub const fn since(self, earlier: Self) -> DurationMs {
        self.0 - earlier.0
    }

    /// Reads RFC 3339 with any offset.
    pub fn parse(text: &str) -> Result<Self, TimestampError> {
        let point: jiff::Timestamp = text.parse().map_err(|_| TimestampError)?;
        let millis = point.as_millisecond();
        if (Self::MIN.0..=Self::MAX.0).contains(&millis) { Ok(Self(millis)) } else { Err(TimestampError) }
    }

    /// Reads a time that is only noted. One that lies outside, such as the year 1 of a clock that was never set, becomes
    /// the nearer end.
    pub fn observe(text: &str) -> Result<Self, TimestampError> {
        if let Ok(point) = text.parse::<jiff::Timestamp>() {
            return Ok(Self::from_millis(point.as_millisecond()));
        }
        // The first and last hours that can be written are outside of every range.
        let pieces = jiff::fmt::temporal::Pieces::parse(text).map_err(|_| TimestampError)?;
        match (pieces.time(), pieces.offset()) {
            (Some(_), Some(_)) => Ok(if pieces.date().year() < 1970 { Self::MIN } else { Self::MAX }),
            _ => Err(TimestampError),
        }
    }
}

impl fmt::Display for Timestamp {
    /// RFC 3339 in UTC with `Z`: no fraction for whole seconds, else three digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Every value between MIN and MAX lies inside jiff's range.
        let point = jiff::Timestamp::from_millisecond(self.0).unwrap_or(jiff::Timestamp::MAX);
        let precision = if self.0 % 1000 == 0 { 0 } else { 3 };
        write!(f, "{point:.precision$}")
    }
}

/// The text is not an RFC 3339 time with an offset between the years 1970 and 9999.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an RFC 3339 time with a zone, such as 2025-01-15T10:00:00Z")]
pub struct TimestampError;

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(self.0)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        i64::deserialize(deserializer).map(Self::from_millis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_seconds_have_no_fraction_and_others_three_digits() {
        let t = Timestamp::parse("2025-01-15T10:00:00Z").unwrap();
        assert_eq!(t.to_string(), "2025-01-15T10:00:00Z");
        assert_eq!(t.plus(70).to_string(), "2025-01-15T10:00:00.070Z");
    }

    #[test]
    fn any_offset_is_read_and_utc_is_written() {
        let t = Timestamp::parse("2025-01-15T12:30:00.5+02:30").unwrap();
        assert_eq!(t.to_string(), "2025-01-15T10:00:00.500Z");
    }

    #[test]
    fn a_time_without_zone_is_refused() {
        assert!(Timestamp::parse("2025-01-15T10:00:00").is_err());
        assert!(Timestamp::parse("yesterday").is_err());
        assert!(Timestamp::parse("1950-01-01T00:00:00Z").is_err());
    }

    #[test]
    fn a_time_that_is_only_noted_is_taken_wherever_it_lies() {
        let seen = |text| Timestamp::observe(text).map(|at| at.to_string());
        assert_eq!(seen("2025-01-15T12:30:00.5+02:30").unwrap(), "2025-01-15T10:00:00.500Z");
        assert_eq!(seen("0001-01-01T00:00:00Z").unwrap(), "1970-01-01T00:00:00Z");
        assert_eq!(seen("1969-12-31T23:59:59-00:30").unwrap(), "1970-01-01T00:29:59Z");
        for last in ["9999-12-31T23:59:59Z", "9999-12-31T23:59:59.999999999-12:00"] {
            assert_eq!(seen(last).unwrap(), Timestamp::MAX.to_string(), "{last}");
        }
        for none in ["", "yesterday", "2025-01-15", "2025-01-15T10:00:00", "2025-13-15T10:00:00Z", "1736935200"] {
            assert!(seen(none).is_err(), "{none}");
        }
    }

    #[test]
    fn arithmetic_stops_at_the_ends() {
        assert_eq!(Timestamp::MAX.plus(1), Timestamp::MAX);
        assert_eq!(Timestamp::MAX.plus(i64::MAX), Timestamp::MAX);
        assert_eq!(Timestamp::MAX.to_string(), "9999-12-30T22:00:00Z");
    }
}
