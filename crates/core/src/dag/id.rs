//! Names of jobs, datasets and what belongs to them.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::id::IdError;

macro_rules! uuids {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            pub const fn from_u128(value: u128) -> Self {
                Self(Uuid::from_u128(value))
            }

            pub const fn as_u128(self) -> u128 {
                self.0.as_u128()
            }

            /// Reads a hyphenated UUID.
            pub fn parse(text: &str) -> Result<Self, IdError> {
                if text.len() != 36 {
                    return Err(IdError);
                }
                Uuid::try_parse(text).map(Self).map_err(|_| IdError)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.hyphenated().fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    )*};
}

uuids! {
    /// The identity of an output of a job, whatever it is called.
    DatasetId
    /// One generation of a dataset: a deployment that changes the output makes a new one, a write does not.
    VersionId
    /// A version of a DAG.
    DagVersionId
    InvalidationId
    /// A batch of rows on its way to the table of a dataset.
    PublishId
}

/// A job of a DAG, for as long as its definition and what it reads stay the same. It is a number of the same sequence as
/// those of tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(pub i64);

/// The id of an organisation outside: its name if that is a UUID, else a UUID that follows from the name.
pub fn org_id(name: &str) -> Uuid {
    DatasetId::parse(name).map_or_else(|_| Uuid::from_u128(named_bits(&format!("organisation:{name}"))), |id| id.0)
}

/// Bits of a UUID of version 8, which is for digests of one's own: the same name has the same ones.
pub fn named_bits(name: &str) -> u128 {
    let digest = Sha256::digest(name.as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid().as_u128()
}

impl JobId {
    /// The workspace of its tasks. No user can name it, so that nobody else has their keys.
    pub fn workspace(self) -> String {
        format!("job:{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_organisation_has_one_id() {
        let id = "0190c0de-0000-7000-8000-000000000001";
        assert_eq!(org_id(id).to_string(), id);
        assert_eq!(org_id("default").to_string(), org_id("default").to_string());
        assert_ne!(org_id("default"), org_id("acme"));
        assert_eq!(org_id("default").get_version_num(), 8);
    }

    #[test]
    fn an_id_is_read_as_it_is_written() {
        let id = DatasetId::from_u128(0x0190_c0de_0000_7000_8000_0000_0000_0001);
        assert_eq!(id.to_string(), "0190c0de-0000-7000-8000-000000000001");
        assert_eq!(DatasetId::parse(&id.to_string()), Ok(id));
        assert_eq!(serde_json::from_str::<DatasetId>(&serde_json::to_string(&id).unwrap()).unwrap(), id);
        for wrong in ["", "0190c0de00007000800000000000000001", "0190c0de-0000-7000-8000-00000000000g"] {
            assert_eq!(DatasetId::parse(wrong), Err(IdError), "{wrong}");
        }
    }
}
