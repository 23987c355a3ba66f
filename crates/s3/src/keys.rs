//! Temporary keys.
//!
//! The session token is sealed: it holds what the keys may do and until when. The secret is derived from the rest. So
//! nothing is stored, and every control plane that has the master key knows every key.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use aws_lc_rs::aead::{AES_256_GCM, Aad, Nonce, RandomizedNonceKey};
use aws_lc_rs::{hmac, rand};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use tenure_core::objects::{Prefix, RESERVED, Scope};

use crate::error::{Result, S3Error};
use crate::limits;

const MASTER_BYTES: usize = 32;
const NONCE_BYTES: usize = 12;
/// As AWS begins the ids of temporary keys; then letters and digits.
const ID_START: &str = "ASIA";
const ID_CHARS: usize = 16;
const ID_ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

/// For whom keys were made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    pub org: String,
    pub task: String,
    pub attempt: u32,
}

/// What is sealed into a session token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grant {
    pub holder: Holder,
    pub scope: Scope,
    pub expires_at_s: i64,
}

/// Fresh keys.
pub struct Issued {
    pub access_key_id: String,
    pub secret_access_key: String,
    pub session_token: String,
    pub expires_at_s: i64,
}

impl std::fmt::Debug for Issued {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Issued").field("access_key_id", &self.access_key_id).finish_non_exhaustive()
    }
}

/// Why no keys were made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyError {
    /// The scope has too many prefixes.
    TooLarge,
    /// There are no random numbers, or the keys would be over already.
    Failed,
}

/// Makes keys and knows them again.
pub struct Keys {
    sealing: RandomizedNonceKey,
    secrets: hmac::Key,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").finish_non_exhaustive()
    }
}

#[derive(Serialize, Deserialize)]
struct Sealed {
    #[serde(flatten)]
    holder: Holder,
    exp: i64,
    read: Vec<String>,
    write: Vec<String>,
    scratch: Vec<String>,
}

impl Keys {
    /// The keys of a folder. Its master key lies in the folder itself, which all control planes share that serve it; the
    /// first one makes it.
    pub fn of_folder(folder: &Path) -> io::Result<Self> {
        let own = folder.join(RESERVED);
        fs::create_dir_all(&own)?;
        if fs::symlink_metadata(&own)?.is_symlink() {
            return Err(io::Error::other(format!("{} is a link: remove it", own.display())));
        }
        fs::set_permissions(&own, fs::Permissions::from_mode(0o700))?;
        let path = own.join("s3.key");
        if !path.exists() {
            make_master(&own, &path)?;
        }
        let nofollow = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
        let mut file = fs::OpenOptions::new().read(true).custom_flags(nofollow).open(&path)?;
        let mut master = Vec::new();
        Read::take(&mut file, MASTER_BYTES as u64 + 1).read_to_end(&mut master)?;
        let master = <[u8; MASTER_BYTES]>::try_from(master);
        let master = master.map_err(|_| io::Error::other(format!("{} is damaged: remove it", path.display())))?;
        Self::new(&master).map_err(|_| io::Error::other("no keys can be made"))
    }

    fn new(master: &[u8; MASTER_BYTES]) -> std::result::Result<Self, KeyError> {
        let master = hmac::Key::new(hmac::HMAC_SHA256, master);
        let derived = |purpose: &str| hmac::sign(&master, purpose.as_bytes());
        let sealing = RandomizedNonceKey::new(&AES_256_GCM, derived("tenure s3 session tokens").as_ref());
        let secrets = hmac::Key::new(hmac::HMAC_SHA256, derived("tenure s3 secret keys").as_ref());
        Ok(Self { sealing: sealing.map_err(|_| KeyError::Failed)?, secrets })
    }

    /// Keys for a scope, until `expires_at_s` and never longer than 15 minutes.
    pub fn issue(
        &self,
        holder: Holder,
        scope: &Scope,
        now_s: i64,
        expires_at_s: i64,
    ) -> std::result::Result<Issued, KeyError> {
        let exp = expires_at_s.min(now_s + limits::KEYS_S);
        if exp <= now_s {
            return Err(KeyError::Failed);
        }
        let texts = |prefixes: &[Prefix]| prefixes.iter().map(ToString::to_string).collect();
        let sealed = Sealed {
            holder,
            exp,
            read: texts(&scope.read),
            write: texts(&scope.write),
            scratch: texts(&scope.scratch),
        };
        let mut bytes = serde_json::to_vec(&sealed).map_err(|_| KeyError::Failed)?;
        if bytes.len() > limits::SEALED_BYTES {
            return Err(KeyError::TooLarge);
        }
        let mut random = [0_u8; ID_CHARS];
        rand::fill(&mut random).map_err(|_| KeyError::Failed)?;
        let letters = random.iter().map(|byte| char::from(ID_ALPHABET[usize::from(byte % 32)]));
        let access_key_id: String = ID_START.chars().chain(letters).collect();
        let aad = Aad::from(access_key_id.as_bytes());
        let nonce = self.sealing.seal_in_place_append_tag(aad, &mut bytes).map_err(|_| KeyError::Failed)?;
        let mut token = nonce.as_ref().to_vec();
        token.extend_from_slice(&bytes);
        let session_token = URL_SAFE_NO_PAD.encode(token);
        let secret_access_key = self.secret(&access_key_id, &session_token);
        Ok(Issued { access_key_id, secret_access_key, session_token, expires_at_s: exp })
    }

    /// What keys may do, and their secret. They are not valid before the signature of the request is.
    pub(crate) fn open(&self, access_key_id: &str, token: &str, now_s: i64) -> Result<(Grant, String)> {
        let wrong = || S3Error::invalid_token("The session token is not one of this server, or not of this key.");
        if token.len() > 2 * limits::SEALED_BYTES {
            return Err(wrong());
        }
        let mut bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| wrong())?;
        if bytes.len() <= NONCE_BYTES {
            return Err(wrong());
        }
        let (nonce, sealed) = bytes.split_at_mut(NONCE_BYTES);
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| wrong())?;
        let aad = Aad::from(access_key_id.as_bytes());
        let plain = self.sealing.open_in_place(nonce, aad, sealed).map_err(|_| wrong())?;
        let Sealed { holder, exp, read, write, scratch } = serde_json::from_slice(plain).map_err(|_| wrong())?;
        if exp <= now_s {
            return Err(S3Error::expired_token("The keys have expired: ask for others."));
        }
        let prefixes = |texts: &[String]| -> Result<Vec<Prefix>> {
            texts.iter().map(|text| Prefix::parse(text, false).map_err(|_| wrong())).collect()
        };
        let scope = Scope { read: prefixes(&read)?, write: prefixes(&write)?, scratch: prefixes(&scratch)? };
        Ok((Grant { holder, scope, expires_at_s: exp }, self.secret(access_key_id, token)))
    }

    fn secret(&self, access_key_id: &str, token: &str) -> String {
        let tag = hmac::sign(&self.secrets, format!("{access_key_id}\n{token}").as_bytes());
        URL_SAFE_NO_PAD.encode(tag.as_ref())
    }
}

/// Several control planes may do it at once: the first file counts, whole.
fn make_master(folder: &Path, path: &Path) -> io::Result<()> {
    let mut master = [0_u8; MASTER_BYTES];
    rand::fill(&mut master).map_err(|_| io::Error::other("there are no random numbers"))?;
    let draft = folder.join(format!("s3.key.{}", uuid::Uuid::from_u128(random_u128()?)));
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    file.write_all(&master)?;
    file.sync_all()?;
    let linked = fs::hard_link(&draft, path);
    fs::remove_file(&draft)?;
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

pub(crate) fn random_u128() -> io::Result<u128> {
    let mut bytes = [0_u8; 16];
    rand::fill(&mut bytes).map_err(|_| io::Error::other("there are no random numbers"))?;
    Ok(u128::from_be_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(text: &str) -> Scope {
        Scope { read: vec![Prefix::parse(text, false).unwrap()], ..Scope::default() }
    }

    fn holder() -> Holder {
        Holder { org: "o".into(), task: "t".into(), attempt: 1 }
    }

    #[test]
    fn keys_of_one_control_plane_are_known_to_another_that_has_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (Keys::of_folder(folder.path()).unwrap(), Keys::of_folder(folder.path()).unwrap());
        let issued = one.issue(holder(), &scope("s3://tenure/r/"), 100, 10_000).unwrap();
        assert_eq!(issued.expires_at_s, 100 + limits::KEYS_S);
        let (grant, secret) = two.open(&issued.access_key_id, &issued.session_token, 101).unwrap();
        assert_eq!((grant.scope, grant.holder), (scope("s3://tenure/r/"), holder()));
        assert_eq!(secret, issued.secret_access_key);
        let mode = fs::metadata(folder.path().join(".tenure/s3.key")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let elsewhere = Keys::of_folder(tempfile::tempdir().unwrap().path()).unwrap();
        assert_eq!(elsewhere.open(&issued.access_key_id, &issued.session_token, 101).unwrap_err().code, "InvalidToken");
    }

    #[test]
    fn keys_die_with_their_expiry_and_are_never_longer_than_asked_for() {
        let keys = Keys::new(&[7; MASTER_BYTES]).unwrap();
        let issued = keys.issue(holder(), &scope("s3://tenure/r/"), 100, 160).unwrap();
        assert_eq!(issued.expires_at_s, 160);
        let open = |now| keys.open(&issued.access_key_id, &issued.session_token, now).map(drop).map_err(|e| e.code);
        assert_eq!((open(159), open(160)), (Ok(()), Err("ExpiredToken")));
        assert_eq!(keys.issue(holder(), &scope("s3://tenure/r/"), 100, 100).unwrap_err(), KeyError::Failed);
    }

    #[test]
    fn a_token_belongs_to_its_key_and_cannot_be_changed() {
        let keys = Keys::new(&[7; MASTER_BYTES]).unwrap();
        let issue = |text| keys.issue(holder(), &scope(text), 100, 160).unwrap();
        let (one, two) = (issue("s3://tenure/a/"), issue("s3://tenure/b/"));
        let refused = |id: &str, token: &str| keys.open(id, token, 101).unwrap_err().code == "InvalidToken";
        assert!(refused(&one.access_key_id, &two.session_token));
        let mut bytes = URL_SAFE_NO_PAD.decode(&one.session_token).unwrap();
        for at in 0..bytes.len() {
            bytes[at] ^= 1;
            assert!(refused(&one.access_key_id, &URL_SAFE_NO_PAD.encode(&bytes)), "byte {at}");
            bytes[at] ^= 1;
        }
        for token in ["", "x", "AAAAAAAAAAAAAAAA", &"A".repeat(100_000)] {
            assert!(refused(&one.access_key_id, token));
        }
        assert_ne!(one.secret_access_key, two.secret_access_key);
        assert!(!format!("{one:?}").contains(&one.secret_access_key));
    }

    #[test]
    fn a_scope_that_does_not_fit_is_refused() {
        let keys = Keys::new(&[7; MASTER_BYTES]).unwrap();
        let prefix = Prefix::parse(&format!("s3://tenure/{}/", "x".repeat(900)), false).unwrap();
        let large = Scope { read: vec![prefix; 10], ..Scope::default() };
        assert_eq!(keys.issue(holder(), &large, 100, 160).unwrap_err(), KeyError::TooLarge);
    }
}
