//! The beginning of an id, as people copy it from a screen.

use std::ops::RangeInclusive;

use super::{IdError, ulid};

/// The first digits of a task id or a run id, in either spelling. Digits that occur in both are looked for in both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdPrefix {
    as_uuid: Option<RangeInclusive<u128>>,
    as_ulid: Option<RangeInclusive<u128>>,
}

impl IdPrefix {
    /// Fewer digits say only in which weeks an id was made.
    pub const DIGITS_MIN: usize = 4;

    /// `kind` is what may come before a ULID: `task_` or `run_`.
    pub fn parse(text: &str, kind: &str) -> Result<Self, IdError> {
        let bare = text.strip_prefix(kind);
        let digits = bare.unwrap_or(text);
        if digits.len() < Self::DIGITS_MIN {
            return Err(IdError);
        }
        let prefix = Self { as_uuid: if bare.is_none() { uuids(digits) } else { None }, as_ulid: ulids(digits) };
        if prefix.as_uuid.is_none() && prefix.as_ulid.is_none() { Err(IdError) } else { Ok(prefix) }
    }

    /// The ids that begin like this: one range of numbers for each spelling. There is at least one.
    pub fn ranges(&self) -> impl Iterator<Item = &RangeInclusive<u128>> {
        self.as_uuid.iter().chain(&self.as_ulid)
    }

    pub fn is_of(&self, id: u128) -> bool {
        self.ranges().any(|range| range.contains(&id))
    }
}

/// Hexadecimal digits, with the hyphens where a UUID has them.
fn uuids(text: &str) -> Option<RangeInclusive<u128>> {
    const HYPHENS: [usize; 4] = [8, 13, 18, 23];
    let (mut value, mut bits) = (0, 0);
    for (place, byte) in text.bytes().enumerate() {
        match (HYPHENS.contains(&place), byte) {
            (true, b'-') => {}
            (false, _) if bits < 128 => {
                value = value << 4 | u128::from(char::from(byte).to_digit(16)?);
                bits += 4;
            }
            _ => return None,
        }
    }
    Some(range(value, 128 - bits))
}

fn ulids(text: &str) -> Option<RangeInclusive<u128>> {
    let missing = ulid::LEN.checked_sub(text.len())?;
    let first = ulid::decode(&format!("{text}{}", "0".repeat(missing))).ok()?;
    Some(range(first >> (5 * missing), 5 * missing))
}

/// The numbers that begin with `value` and have `bits` more bits.
fn range(value: u128, bits: usize) -> RangeInclusive<u128> {
    let first = value << bits;
    first..=first | ((1 << bits) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::TaskId;

    const UUID: &str = "018c385a-9fb1-9509-0e89-33fe3b7b1aa9";
    const ULID: &str = "01HGW5N7XHJM4GX29KZRXQP6N9";

    #[test]
    fn every_beginning_of_an_id_is_of_it_in_either_spelling() {
        let id = TaskId::parse(UUID).unwrap().as_u128();
        for spelling in [UUID, ULID, &UUID.to_uppercase(), &ULID.to_lowercase()] {
            for length in IdPrefix::DIGITS_MIN..=spelling.len() {
                let prefix = IdPrefix::parse(&spelling[..length], "task_").unwrap();
                assert!(prefix.is_of(id), "{}", &spelling[..length]);
                // The whole id is that of one task.
                assert_eq!(prefix.is_of(id ^ 1), length < spelling.len(), "{length}");
            }
        }
        assert!(IdPrefix::parse("task_01HG", "task_").unwrap().is_of(id));
        assert!(!IdPrefix::parse("018c385b", "task_").unwrap().is_of(id));
        assert!(!IdPrefix::parse("task_018c", "task_").unwrap().is_of(id), "these are digits of a ULID");
    }

    #[test]
    fn what_is_not_the_beginning_of_an_id_is_refused() {
        let longer = format!("{UUID}0");
        for text in ["", "018", "task_01h", "not an id", "no-id", "run_01HGW5", "018c385a9-", "81HG-", "ééé", &longer]
        {
            assert_eq!(IdPrefix::parse(text, "task_"), Err(IdError), "{text}");
        }
    }
}
