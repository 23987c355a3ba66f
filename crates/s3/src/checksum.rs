//! Checksums that a client sends with a body.

use aws_lc_rs::digest::{self, Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crc_fast::{CrcAlgorithm, Digest as Crc};
use http::HeaderMap;
use md5::{Digest as _, Md5};

use crate::error::{Result, S3Error};
use crate::sign::Payload;

enum Sum {
    Crc { sum: Box<Crc>, bytes: usize },
    Sha(Context),
    Md5(Box<Md5>),
}

impl Sum {
    /// By the name of its header.
    fn named(name: &str) -> Option<Self> {
        let crc = |algorithm, bytes| Self::Crc { sum: Box::new(Crc::new(algorithm)), bytes };
        Some(match name {
            "x-amz-checksum-crc32" => crc(CrcAlgorithm::Crc32IsoHdlc, 4),
            "x-amz-checksum-crc32c" => crc(CrcAlgorithm::Crc32Iscsi, 4),
            "x-amz-checksum-crc64nvme" => crc(CrcAlgorithm::Crc64Nvme, 8),
            "x-amz-checksum-sha1" => Self::Sha(Context::new(&SHA1_FOR_LEGACY_USE_ONLY)),
            "x-amz-checksum-sha256" => Self::Sha(Context::new(&SHA256)),
            "content-md5" => Self::Md5(Box::new(Md5::new())),
            _ => return None,
        })
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Crc { sum, .. } => sum.update(bytes),
            Self::Sha(sum) => sum.update(bytes),
            Self::Md5(sum) => sum.update(bytes),
        }
    }

    fn finish(self) -> Vec<u8> {
        match self {
            Self::Crc { sum, bytes } => sum.finalize().to_be_bytes()[8 - bytes..].to_vec(),
            Self::Sha(sum) => sum.finish().as_ref().to_vec(),
            Self::Md5(sum) => sum.finalize().to_vec(),
        }
    }
}

/// All sums that are taken of one body.
pub struct Checksums {
    /// With the header that names the sum, and the sum itself if a header had it.
    sums: Vec<(String, Option<Vec<u8>>, Sum)>,
    whole: Option<([u8; 32], Context)>,
}

impl std::fmt::Debug for Checksums {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checksums").finish_non_exhaustive()
    }
}

impl Checksums {
    /// What the headers of a request say.
    pub fn of(headers: &HeaderMap, payload: Payload) -> Result<Self> {
        let mut sums = Vec::new();
        for (name, value) in headers {
            let Some(sum) = Sum::named(name.as_str()) else { continue };
            let text = value.to_str().unwrap_or_default();
            sums.push((name.as_str().to_owned(), Some(decoded(text)?), sum));
        }
        if matches!(payload, Payload::Chunked { trailer: true, .. }) {
            let announced = headers.get("x-amz-trailer").and_then(|value| value.to_str().ok()).unwrap_or_default();
            for name in announced.split(',').map(|name| name.trim().to_ascii_lowercase()) {
                let sum = Sum::named(&name).filter(|_| name.starts_with("x-amz-checksum-"));
                let sum = sum.ok_or_else(|| S3Error::invalid_request("x-amz-trailer must name a known checksum."))?;
                sums.push((name, None, sum));
            }
        }
        if sums.len() > 4 {
            return Err(S3Error::invalid_request("There are too many checksums."));
        }
        let whole = match payload {
            Payload::Whole(expected) => Some((expected, Context::new(&SHA256))),
            _ => None,
        };
        Ok(Self { sums, whole })
    }

    pub fn update(&mut self, bytes: &[u8]) {
        self.sums.iter_mut().for_each(|(.., sum)| sum.update(bytes));
        if let Some((_, sum)) = &mut self.whole {
            sum.update(bytes);
        }
    }

    /// Compares. `trailers` came after the body.
    pub fn check(self, trailers: &[(String, String)]) -> Result<()> {
        if let Some((expected, sum)) = self.whole
            && sum.finish().as_ref() != expected
        {
            return Err(S3Error::sha256_mismatch("The body is not the one that was signed."));
        }
        for (name, expected, sum) in self.sums {
            let sent = || trailers.iter().find(|(known, _)| *known == name).map(|(_, value)| decoded(value));
            let expected = match expected {
                Some(expected) => expected,
                None => {
                    sent().ok_or_else(|| S3Error::incomplete_body("The trailer that was announced is missing."))??
                }
            };
            if sum.finish() != expected {
                return Err(S3Error::bad_digest(format!("{name} does not match the body.")));
            }
        }
        Ok(())
    }
}

fn decoded(text: &str) -> Result<Vec<u8>> {
    STANDARD.decode(text.trim()).map_err(|_| S3Error::invalid_digest("A checksum is not valid base64."))
}

/// The SHA-256 of a chunk.
pub fn sha256(context: Context) -> [u8; 32] {
    let digest: digest::Digest = context.finish();
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest.as_ref());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &'static str, sum: &str) -> Result<()> {
        let headers = HeaderMap::from_iter([(http::HeaderName::from_static(name), sum.parse().unwrap())]);
        let mut sums = Checksums::of(&headers, Payload::Unsigned)?;
        sums.update(b"1234");
        sums.update(b"56789");
        sums.check(&[])
    }

    /// The sums of `123456789`, as their definitions say.
    #[test]
    fn sums_are_compared() {
        for (name, sum) in [
            ("x-amz-checksum-crc32", "y/Q5Jg=="),
            ("x-amz-checksum-crc32c", "4waSgw=="),
            ("x-amz-checksum-crc64nvme", "rosUhgp5mIg="),
            ("x-amz-checksum-sha1", "98O8HYCOBHMq32eZZczDTKeuNEE="),
            ("x-amz-checksum-sha256", "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU="),
            ("content-md5", "JfnnlDI7RTiF9RgfG2JNCw=="),
        ] {
            assert_eq!(check(name, sum), Ok(()), "{name}");
            assert_eq!(check(name, "AAAAAA==").unwrap_err().code, "BadDigest", "{name}");
            assert_eq!(check(name, "?").unwrap_err().code, "InvalidDigest", "{name}");
        }
    }

    #[test]
    fn a_trailer_that_was_announced_must_come() {
        let headers = HeaderMap::from_iter([(
            http::HeaderName::from_static("x-amz-trailer"),
            "x-amz-checksum-crc32".parse().unwrap(),
        )]);
        let payload = Payload::Chunked { signed: false, trailer: true };
        let sums = || {
            let mut sums = Checksums::of(&headers, payload).unwrap();
            sums.update(b"123456789");
            sums
        };
        let trailer = |value: &str| vec![("x-amz-checksum-crc32".to_owned(), value.to_owned())];
        assert_eq!(sums().check(&trailer("y/Q5Jg==")), Ok(()));
        assert_eq!(sums().check(&trailer("y/Q5Jw==")).unwrap_err().code, "BadDigest");
        assert_eq!(sums().check(&[]).unwrap_err().code, "IncompleteBody");
        let unknown = HeaderMap::from_iter([(http::HeaderName::from_static("x-amz-trailer"), "etag".parse().unwrap())]);
        assert!(Checksums::of(&unknown, payload).is_err());
    }
}
