//! Names of things: task ids in three spellings, attempt ids, lease tokens, fences.

mod prefix;

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

pub use prefix::IdPrefix;

/// The store's own short name of a task. Grows with submission; the hot tables are keyed by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seq(pub i64);

/// The generation of a task's lease. It grows with every grant, with nothing else, and never decreases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fence(pub u64);

impl Fence {
    /// JSON readers keep integers only up to here.
    pub const MAX: Self = Self((1 << 53) - 1);

    #[must_use]
    pub fn next(self) -> Self {
        assert!(self < Self::MAX, "2^53 grants of one task");
        Self(self.0 + 1)
    }
}

/// Who holds a lease.
pub type WorkerId = Arc<str>;

/// A task id: 128 bits, laid out as a UUID of version 7.
///
/// 48 bits of time, 12 random bits, and the task's [`Seq`] in the low 62 bits, so that a task is found without an index
/// over its id. The store compares the whole id: a guessed one with the right low bits names nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(u128);

const SEQ_BITS: u32 = 62;

impl TaskId {
    /// `salt` is random; 12 of its bits are used.
    pub fn new(millis: i64, salt: u16, seq: Seq) -> Self {
        assert!(seq.0 > 0 && seq.0 < (1 << SEQ_BITS), "sequence numbers are positive and below 2^62");
        let time = (millis as u128 & 0xffff_ffff_ffff) << 80;
        let version = 0x7_u128 << 76;
        let salt = u128::from(salt & 0x0fff) << 64;
        let variant = 0b10_u128 << SEQ_BITS;
        Self(time | version | salt | variant | seq.0 as u128)
    }

    pub const fn from_u128(value: u128) -> Self {
        Self(value)
    }

    pub const fn as_u128(self) -> u128 {
        self.0
    }

    /// Where the store looks for this task. Any id has one; the store then compares the whole id.
    pub const fn seq(self) -> Seq {
        Seq((self.0 & ((1 << SEQ_BITS) - 1)) as i64)
    }

    /// Reads a hyphenated UUID, `task_<ULID>` or a bare ULID.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        let ulid = text.strip_prefix("task_").unwrap_or(text);
        if ulid.len() == ulid::LEN {
            return ulid::decode(ulid).map(Self);
        }
        if text.len() == 36 {
            return uuid::Uuid::try_parse(text).map(|u| Self(u.as_u128())).map_err(|_| IdError);
        }
        Err(IdError)
    }

    /// `task_<ULID>`.
    pub fn to_ulid_text(self) -> String {
        format!("task_{}", ulid::encode(self.0))
    }
}

impl fmt::Display for TaskId {
    /// A lower-case hyphenated UUID.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        uuid::Uuid::from_u128(self.0).hyphenated().fmt(f)
    }
}

impl fmt::Debug for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A run id: laid out like a [`TaskId`] and drawn from the same numbers, so that no run has the number of a task.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(u128);

impl RunId {
    pub const fn from_u128(value: u128) -> Self {
        Self(value)
    }

    pub const fn as_u128(self) -> u128 {
        self.0
    }

    /// Where the store looks for this run.
    pub const fn seq(self) -> Seq {
        TaskId(self.0).seq()
    }

    /// The run of a task that was submitted alone: it has the task's own digits.
    pub const fn of_one(task: TaskId) -> Self {
        Self(task.0)
    }

    /// Reads a hyphenated UUID, `run_<ULID>` or a bare ULID.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        let bare = text.strip_prefix("run_").unwrap_or(text);
        if bare.starts_with("task_") {
            return Err(IdError);
        }
        TaskId::parse(bare).map(|id| Self(id.0))
    }
}

impl fmt::Display for RunId {
    /// `run_<ULID>`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("run_")?;
        f.write_str(&ulid::encode(self.0))
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an id: expected a hyphenated UUID or a ULID of 26 digits")]
pub struct IdError;

/// One attempt of one task: `att_<ULID>` of 128 random bits, so that it cannot be computed from public data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AttemptId(u128);

impl AttemptId {
    pub const fn from_u128(value: u128) -> Self {
        Self(value)
    }

    pub const fn as_u128(self) -> u128 {
        self.0
    }

    pub fn parse(text: &str) -> Result<Self, IdError> {
        text.strip_prefix("att_").ok_or(IdError).and_then(ulid::decode).map(Self)
    }
}

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("att_")?;
        f.write_str(&ulid::encode(self.0))
    }
}

impl fmt::Debug for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl TryFrom<String> for AttemptId {
    type Error = IdError;
    fn try_from(text: String) -> Result<Self, IdError> {
        Self::parse(&text)
    }
}

impl From<AttemptId> for String {
    fn from(id: AttemptId) -> Self {
        id.to_string()
    }
}

/// The name of a pushed attempt, the same for every delivery of it: `d_` and 26 digits of base 32 (RFC 4648, lower case)
/// over the SHA-256 of its internal name.
pub fn dispatch_id(run: u128, task: u128, attempt: u32) -> String {
    let name = format!("dispatch:{}:{}:{attempt}", ulid::encode(run), ulid::encode(task));
    let digest = Sha256::digest(name.as_bytes());
    let head = digest.iter().take(16).fold(0_u128, |value, byte| value << 8 | u128::from(*byte));
    // 26 digits are 130 bits: the last digit takes two bits of the seventeenth byte.
    let last = (head << 2 | u128::from(digest[16] >> 6)) & 31;
    let digits = (0..25).map(|i| (head >> (123 - 5 * i) & 31) as usize).chain([last as usize]);
    "d_".chars().chain(digits.map(|digit| BASE32[digit] as char)).collect()
}

const BASE32: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// Proof that its bearer holds a lease: 128 random bits, fresh with every grant.
///
/// It orders nothing. It is compared in constant time and never printed by `Debug`.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaseToken(#[serde(with = "hex128")] u128);

impl LeaseToken {
    pub const fn from_u128(value: u128) -> Self {
        Self(value)
    }

    /// The secret itself, for the store and for the answer to a claim.
    pub const fn reveal(self) -> u128 {
        self.0
    }

    /// `lt_<ULID digits>`, for the answer to a claim.
    pub fn reveal_text(self) -> String {
        format!("lt_{}", ulid::encode(self.0))
    }

    pub fn parse(text: &str) -> Result<Self, IdError> {
        text.strip_prefix("lt_").ok_or(IdError).and_then(ulid::decode).map(Self)
    }
}

impl PartialEq for LeaseToken {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_be_bytes().ct_eq(&other.0.to_be_bytes()).into()
    }
}

impl Eq for LeaseToken {}

impl fmt::Debug for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseToken(***)")
    }
}

mod hex128 {
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(value: &u128, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{value:032x}"))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u128, D::Error> {
        let text = String::deserialize(deserializer)?;
        u128::from_str_radix(&text, 16).map_err(serde::de::Error::custom)
    }
}

/// 26 Crockford base-32 digits of a 128-bit number.
///
/// Not from the crate `ulid`: the contracts ask for a stricter reader, which refuses `I L O U` and a first digit above 7,
/// and Tenure's ids are not made the way that crate makes them.
pub mod ulid {
    use super::IdError;

    pub const LEN: usize = 26;
    const DIGITS: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

    pub fn encode(value: u128) -> String {
        (0..LEN).map(|i| DIGITS[(value >> (5 * (LEN - 1 - i)) & 31) as usize] as char).collect()
    }

    pub fn decode(text: &str) -> Result<u128, IdError> {
        let bytes = text.as_bytes();
        if bytes.len() != LEN || bytes[0] > b'7' {
            return Err(IdError);
        }
        bytes.iter().try_fold(0_u128, |value, byte| {
            let upper = byte.to_ascii_uppercase();
            let digit = DIGITS.iter().position(|d| *d == upper).ok_or(IdError)?;
            Ok(value << 5 | digit as u128)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vector_of_the_notes() {
        let uuid = "018c385a-9fb1-9509-0e89-33fe3b7b1aa9";
        let id = TaskId::parse("task_01HGW5N7XHJM4GX29KZRXQP6N9").unwrap();
        assert_eq!(id.to_string(), uuid);
        assert_eq!(TaskId::parse(uuid).unwrap(), id);
        assert_eq!(TaskId::parse("01hgw5n7xhjm4gx29kzrxqp6n9").unwrap(), id);
        assert_eq!(id.to_ulid_text(), "task_01HGW5N7XHJM4GX29KZRXQP6N9");
    }

    #[test]
    fn a_run_id_is_read_in_three_spellings_and_written_in_one() {
        let text = "run_01HGW5N7XHJM4GX29KZRXQP6N8";
        let id = RunId::parse(text).unwrap();
        assert_eq!(id.to_string(), text);
        assert_eq!(RunId::parse("01hgw5n7xhjm4gx29kzrxqp6n8").unwrap(), id);
        assert_eq!(RunId::parse("018c385a-9fb1-9509-0e89-33fe3b7b1aa8").unwrap(), id);
        for text in ["", "run_", "task_01HGW5N7XHJM4GX29KZRXQP6N8", "run_task_01HGW5N7XHJM4GX29KZRXQP6N8"] {
            assert!(RunId::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_dispatch_id_of_the_notes() {
        let run = ulid::decode("01HGW5N7XHJM4GX29KZRXQP6N8").unwrap();
        let task = ulid::decode("01HGW5N7XHJM4GX29KZRXQP6N9").unwrap();
        assert_eq!(dispatch_id(run, task, 1), "d_kjychep7ds7c43frwysg3bcjqu");
        assert_ne!(dispatch_id(run, task, 2), dispatch_id(run, task, 1));
    }

    #[test]
    fn what_is_no_id_is_refused() {
        for text in [
            "",
            "task_",
            "01HGW5N7XHJM4GX29KZRXQP6N",
            "81HGW5N7XHJM4GX29KZRXQP6N9",
            "0IHGW5N7XHJM4GX29KZRXQP6N9",
            "0UHGW5N7XHJM4GX29KZRXQP6N9",
            "018c385a9fb195090e8933fe3b7b1aa9",
            "018c385a-9fb1-9509-0e89-33fe3b7b1aaZ",
            "run_01HGW5N7XHJM4GX29KZRXQP6N9",
        ] {
            assert!(TaskId::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_minted_id_is_a_uuid_of_version_7_and_leads_to_its_row() {
        let id = TaskId::new(1_700_000_000_000, 0xffff, Seq(42));
        let uuid = uuid::Uuid::from_u128(id.as_u128());
        assert_eq!(uuid.get_version_num(), 7);
        assert_eq!(uuid.get_variant(), uuid::Variant::RFC4122);
        assert_eq!(id.seq(), Seq(42));
    }

    #[test]
    fn a_token_is_never_printed_by_debug() {
        assert_eq!(format!("{:?}", LeaseToken::from_u128(7)), "LeaseToken(***)");
        let token = LeaseToken::from_u128(u128::MAX);
        assert_eq!(LeaseToken::parse(&token.reveal_text()).unwrap(), token);
    }
}
