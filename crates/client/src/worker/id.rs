//! Names that this process makes up, and the one spelling of a task id.

use std::time::{SystemTime, UNIX_EPOCH};

const CROCKFORD: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

fn random() -> u128 {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("without randomness no name of this process is safe to use");
    u128::from_ne_bytes(bytes)
}

/// The lowest `digits` groups of five bits, highest first.
fn crockford(value: u128, digits: u32) -> String {
    (0..digits).rev().map(|digit| char::from(CROCKFORD[(value >> (5 * digit)) as usize & 31])).collect()
}

/// A ULID: 48 bits of milliseconds, then 80 random bits. A later one is greater, as text too.
pub(crate) fn ulid() -> String {
    let millis = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    crockford((millis << 80) | (random() >> 48), 26)
}

/// The name of a claim: sent again with it, the claim gets the same jobs.
pub(crate) fn claim_id() -> String {
    format!("clm_{}", crockford(random(), 26))
}

/// `<host>-<process id>-<random>`: unique also for two workers of one process.
pub(crate) fn worker_id() -> String {
    worker_id_of(None)
}

/// The same with another word in place of the host.
pub(crate) fn worker_id_of(name: Option<&str>) -> String {
    let host = name.map_or_else(|| gethostname::gethostname().to_string_lossy().into_owned(), ToOwned::to_owned);
    let host: String = host.chars().filter(char::is_ascii_graphic).take(100).collect();
    let host = if host.is_empty() { "host" } else { host.as_str() };
    format!("{host}-{}-{}", std::process::id(), crockford(random(), 10))
}

/// A task id as a lower-case hyphenated UUID, whichever spelling brought it: one task has one name, and so one row where
/// fences are kept. Other text stays as it is.
pub(crate) fn canonical_task_id(text: &str) -> String {
    let ulid = text.strip_prefix("task_").unwrap_or(text);
    if let Some(value) = decode_ulid(ulid) {
        let digits = format!("{value:032x}");
        return [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-");
    }
    match is_uuid(text) {
        true => text.to_ascii_lowercase(),
        false => text.to_owned(),
    }
}

fn decode_ulid(text: &str) -> Option<u128> {
    if text.len() != 26 || text.as_bytes()[0] > b'7' {
        return None;
    }
    text.bytes().try_fold(0, |value, byte| {
        let digit = CROCKFORD.iter().position(|known| *known == byte.to_ascii_uppercase())?;
        Some((value << 5) | digit as u128)
    })
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_has_one_name_in_all_its_spellings() {
        let uuid = "018c385a-9fb1-9509-0e89-33fe3b7b1aa9";
        for text in [
            "task_01HGW5N7XHJM4GX29KZRXQP6N9",
            "01HGW5N7XHJM4GX29KZRXQP6N9",
            "task_01hgw5n7xhjm4gx29kzrxqp6n9",
            "018C385A-9FB1-9509-0E89-33FE3B7B1AA9",
            uuid,
        ] {
            assert_eq!(canonical_task_id(text), uuid, "{text}");
        }
        for text in
            ["", "task_", "a", "81HGW5N7XHJM4GX29KZRXQP6N9", "0IHGW5N7XHJM4GX29KZRXQP6N9", "\u{e9}".repeat(13).as_str()]
        {
            assert_eq!(canonical_task_id(text), text);
        }
    }

    #[test]
    fn ulids_are_ordered_by_time() {
        let first = ulid();
        while SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() == millis_of(&first) {
            std::hint::spin_loop();
        }
        let second = ulid();
        assert_eq!((first.len(), second.len()), (26, 26));
        assert!(first < second, "{first} {second}");
    }

    fn millis_of(ulid: &str) -> u128 {
        let value = ulid.bytes().fold(0_u128, |value, digit| {
            (value << 5) | CROCKFORD.iter().position(|known| *known == digit).unwrap() as u128
        });
        value >> 80
    }

    #[test]
    fn worker_ids_of_one_process_differ() {
        assert_ne!(worker_id(), worker_id());
    }
}
