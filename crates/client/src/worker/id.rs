//! Names that this process makes up.

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

#[cfg(test)]
mod tests {
    use super::*;

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
