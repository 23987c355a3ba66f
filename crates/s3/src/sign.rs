//! Signatures of requests: AWS Signature Version 4, in a header or in the address.

use std::time::{Duration, UNIX_EPOCH};

use aws_lc_rs::digest::{SHA256, digest};
use aws_sigv4::sign::v4::{calculate_signature, generate_signing_key};
use http::header::AUTHORIZATION;
use http::request::Parts;
use subtle::ConstantTimeEq;

use crate::error::{Result, S3Error};
use crate::limits;
use crate::query::{Query, decode, encode};

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const SERVICE: &str = "s3";
pub const UNSIGNED: &str = "UNSIGNED-PAYLOAD";

/// What a request says about its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload {
    /// The SHA-256 of the whole body.
    Whole([u8; 32]),
    /// The signature does not cover the body.
    Unsigned,
    /// The body comes in chunks of its own.
    Chunked { signed: bool, trailer: bool },
}

/// What a request says about its signature.
#[derive(Debug)]
pub struct Signature {
    pub access_key_id: String,
    pub token: String,
    pub payload: Payload,
    /// As it stands in the text that is signed.
    payload_text: String,
    /// `20130524T000000Z`
    time: String,
    time_s: i64,
    /// `20130524/us-east-1/s3/aws4_request`
    scope: String,
    region: String,
    signed_headers: Vec<String>,
    signature: String,
}

/// Signs the chunks of a body, each after the one before.
pub struct ChunkSigner {
    key: Vec<u8>,
    time: String,
    scope: String,
    previous: String,
}

impl std::fmt::Debug for ChunkSigner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChunkSigner").finish_non_exhaustive()
    }
}

impl Signature {
    /// Reads the signature of a request, and judges its time.
    pub fn read(parts: &Parts, query: &Query, now_s: i64) -> Result<Self> {
        let by_header = parts.headers.contains_key(AUTHORIZATION);
        let signature = match (by_header, query.has("X-Amz-Algorithm") || query.has("X-Amz-Signature")) {
            (true, false) => Self::of_header(parts, now_s)?,
            (false, true) => Self::of_query(parts, query, now_s)?,
            (true, true) => return Err(S3Error::invalid_argument("Only one way to sign a request is allowed.")),
            (false, false) => return Err(S3Error::access_denied("The request is not signed.")),
        };
        signature.check_headers(parts)?;
        Ok(signature)
    }

    fn of_header(parts: &Parts, now_s: i64) -> Result<Self> {
        let wrong = || S3Error::malformed_auth("The Authorization header is malformed: AWS4-HMAC-SHA256 is needed.");
        let mut sent = parts.headers.get_all(AUTHORIZATION).iter();
        let text = sent.next().and_then(|value| value.to_str().ok()).ok_or_else(wrong)?;
        if sent.next().is_some() {
            return Err(wrong());
        }
        let rest = text.strip_prefix(ALGORITHM).ok_or_else(wrong)?;
        let mut fields = [None; 3];
        for part in rest.split(',') {
            let (name, value) = part.trim().split_once('=').ok_or_else(wrong)?;
            let at = ["Credential", "SignedHeaders", "Signature"].iter().position(|known| *known == name);
            let field = &mut fields[at.ok_or_else(wrong)?];
            if field.replace(value).is_some() {
                return Err(wrong());
            }
        }
        let [Some(credential), Some(signed_headers), Some(signature)] = fields else { return Err(wrong()) };
        let time = header(parts, "x-amz-date")?.ok_or_else(|| S3Error::access_denied("x-amz-date is missing."))?;
        let payload = header(parts, "x-amz-content-sha256")?;
        let payload = payload.ok_or_else(|| S3Error::invalid_request("x-amz-content-sha256 is missing."))?;
        let token = header(parts, "x-amz-security-token")?.unwrap_or_default();
        let read = Self::of(credential, signed_headers, signature, time, token, payload, wrong)?;
        if (now_s - read.time_s).abs() > limits::SKEW_S {
            return Err(S3Error::time_skewed("The time of the request is too far from that of the server."));
        }
        Ok(read)
    }

    fn of_query(parts: &Parts, query: &Query, now_s: i64) -> Result<Self> {
        let wrong = || {
            let message = "The signature in the address is malformed: AWS4-HMAC-SHA256 is needed.";
            S3Error { code: "AuthorizationQueryParametersError", ..S3Error::malformed_auth(message) }
        };
        let get = |name: &str| query.get(name).ok_or_else(wrong);
        if get("X-Amz-Algorithm")? != ALGORITHM {
            return Err(wrong());
        }
        let payload = header(parts, "x-amz-content-sha256")?.or(query.get("X-Amz-Content-Sha256")).unwrap_or(UNSIGNED);
        let read = Self::of(
            get("X-Amz-Credential")?,
            get("X-Amz-SignedHeaders")?,
            get("X-Amz-Signature")?,
            get("X-Amz-Date")?,
            query.get("X-Amz-Security-Token").unwrap_or_default(),
            payload,
            wrong,
        )?;
        let lifetime: i64 = get("X-Amz-Expires")?.parse().map_err(|_| wrong())?;
        if !(1..=limits::PRESIGNED_S).contains(&lifetime) {
            return Err(wrong());
        }
        if read.time_s > now_s + limits::SKEW_S || read.time_s.saturating_add(lifetime) <= now_s {
            return Err(S3Error::access_denied("The address has expired, or is not valid yet."));
        }
        Ok(read)
    }

    fn of(
        credential: &str,
        signed_headers: &str,
        signature: &str,
        time: &str,
        token: &str,
        payload: &str,
        wrong: impl Fn() -> S3Error,
    ) -> Result<Self> {
        let mut parts = credential.splitn(2, '/');
        let (Some(access_key_id), Some(scope)) = (parts.next(), parts.next()) else { return Err(wrong()) };
        let parts: Vec<&str> = scope.split('/').collect();
        let [day, region, SERVICE, "aws4_request"] = parts[..] else { return Err(wrong()) };
        let time_s = seconds(time).ok_or_else(&wrong)?;
        let is_word = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if !time.starts_with(day) || day.len() != 8 || !is_word(region) || !is_word(access_key_id) {
            return Err(wrong());
        }
        if token.is_empty() {
            return Err(S3Error::invalid_access_key("The keys have no session token: there are only temporary keys."));
        }
        let signed_headers: Vec<String> = signed_headers.split(';').map(str::to_owned).collect();
        if !signed_headers.is_sorted() {
            return Err(wrong());
        }
        Ok(Self {
            access_key_id: access_key_id.to_owned(),
            token: token.to_owned(),
            payload: payload_of(payload)?,
            payload_text: payload.to_owned(),
            time: time.to_owned(),
            time_s,
            scope: scope.to_owned(),
            region: region.to_owned(),
            signed_headers,
            signature: signature.to_owned(),
        })
    }

    /// What changes the meaning of a request must be signed: the host, and all that begins with `x-amz-`.
    fn check_headers(&self, parts: &Parts) -> Result<()> {
        let is_signed = |name: &str| self.signed_headers.iter().any(|signed| signed == name);
        let meaningful = parts.headers.keys().map(http::HeaderName::as_str).filter(|name| name.starts_with("x-amz-"));
        if !is_signed("host") || !meaningful.into_iter().all(is_signed) {
            return Err(S3Error::access_denied("The request has headers that are not signed."));
        }
        Ok(())
    }

    /// Compares the signature with that of the secret.
    pub fn verify(&self, parts: &Parts, query: &Query, secret: &str) -> Result<ChunkSigner> {
        let canonical = self.canonical(parts, query)?;
        let text = format!("{ALGORITHM}\n{}\n{}\n{}", self.time, self.scope, sha256_hex(canonical.as_bytes()));
        let at = UNIX_EPOCH + Duration::from_secs(u64::try_from(self.time_s).unwrap_or_default());
        let key = generate_signing_key(secret, at, &self.region, SERVICE).as_ref().to_vec();
        if !is_equal(&calculate_signature(&key, text.as_bytes()), &self.signature) {
            let message = "The signature does not match: check the secret key and how the request is signed.";
            return Err(S3Error::signature_mismatch(message));
        }
        let (time, scope) = (self.time.clone(), self.scope.clone());
        Ok(ChunkSigner { key, time, scope, previous: self.signature.clone() })
    }

    fn canonical(&self, parts: &Parts, query: &Query) -> Result<String> {
        let path = encode(&decode(parts.uri.path())?, true);
        let mut headers = String::new();
        for name in &self.signed_headers {
            let values: Vec<String> = parts.headers.get_all(name).iter().map(plain).collect();
            let value = match (values.is_empty(), name.as_str()) {
                (false, _) => values.join(","),
                // HTTP/2 says it elsewhere.
                (true, "host") => parts.uri.authority().map(ToString::to_string).unwrap_or_default(),
                (true, _) => return Err(S3Error::signature_mismatch("A signed header is missing.")),
            };
            headers.push_str(&format!("{name}:{value}\n"));
        }
        Ok(format!(
            "{}\n{path}\n{}\n{headers}\n{}\n{}",
            parts.method,
            query.canonical(),
            self.signed_headers.join(";"),
            self.payload_text
        ))
    }
}

impl ChunkSigner {
    /// Whether this is the signature of the next chunk.
    pub fn is_chunk(&mut self, data: &[u8; 32], signature: &str) -> bool {
        let text = format!(
            "AWS4-HMAC-SHA256-PAYLOAD\n{}\n{}\n{}\n{}\n{}",
            self.time,
            self.scope,
            self.previous,
            sha256_hex(b""),
            hex(data)
        );
        self.is_next(&text, signature)
    }

    /// Whether this is the signature of the trailers.
    pub fn is_trailer(&mut self, trailers: &str, signature: &str) -> bool {
        let digest = sha256_hex(trailers.as_bytes());
        let text = format!("AWS4-HMAC-SHA256-TRAILER\n{}\n{}\n{}\n{digest}", self.time, self.scope, self.previous);
        self.is_next(&text, signature)
    }

    fn is_next(&mut self, text: &str, signature: &str) -> bool {
        let expected = calculate_signature(&self.key, text.as_bytes());
        let equal = is_equal(&expected, signature);
        self.previous = expected;
        equal
    }
}

fn is_equal(one: &str, other: &str) -> bool {
    one.as_bytes().ct_eq(other.as_bytes()).into()
}

/// A header that may be there once.
fn header<'a>(parts: &'a Parts, name: &str) -> Result<Option<&'a str>> {
    let mut values = parts.headers.get_all(name).iter();
    let first = values.next();
    if values.next().is_some() {
        return Err(S3Error::invalid_request(format!("{name} is there twice.")));
    }
    let text = |value: &'a http::HeaderValue| {
        value.to_str().map_err(|_| S3Error::invalid_request("A header is not plain text."))
    };
    first.map(text).transpose()
}

/// As it is signed: without spaces at its ends, and with single ones inside.
fn plain(value: &http::HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

fn payload_of(text: &str) -> Result<Payload> {
    Ok(match text {
        UNSIGNED => Payload::Unsigned,
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD" => Payload::Chunked { signed: true, trailer: false },
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER" => Payload::Chunked { signed: true, trailer: true },
        "STREAMING-UNSIGNED-PAYLOAD-TRAILER" => Payload::Chunked { signed: false, trailer: true },
        text => {
            let digest = unhex(text).ok_or_else(|| S3Error::invalid_request("x-amz-content-sha256 is not valid."))?;
            Payload::Whole(digest)
        }
    })
}

/// `20130524T000000Z` in seconds.
fn seconds(text: &str) -> Option<i64> {
    let at = jiff::civil::DateTime::strptime("%Y%m%dT%H%M%SZ", text).ok().filter(|_| text.len() == 16)?;
    at.to_zoned(jiff::tz::TimeZone::UTC).ok().map(|at| at.timestamp().as_second()).filter(|at| *at > 0)
}

fn sha256_hex(bytes: &[u8]) -> String {
    hex(digest(&SHA256, bytes).as_ref())
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f')) {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}

/// Whether a request carries a signature of this kind.
pub fn is_signed(uri: &http::Uri, headers: &http::HeaderMap) -> bool {
    let by_header = headers.get(AUTHORIZATION).is_some_and(|value| value.as_bytes().starts_with(ALGORITHM.as_bytes()));
    by_header || uri.query().is_some_and(|query| query.contains("X-Amz-Signature="))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    /// 2013-05-24T00:00:00Z
    const NOW: i64 = 1_369_353_600;

    fn parts(method: &str, uri: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = http::Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn judge(parts: &Parts, now_s: i64) -> Result<ChunkSigner> {
        let query = Query::parse(parts.uri.query())?;
        Signature::read(parts, &query, now_s)?.verify(parts, &query, SECRET)
    }

    /// A signed request as a client makes it.
    fn signed(method: &str, uri: &str, extra: &[(&str, &str)], payload: &str) -> Vec<(String, String)> {
        let mut headers: Vec<(String, String)> = [
            ("host", "examplebucket.s3.amazonaws.com"),
            ("x-amz-date", "20130524T000000Z"),
            ("x-amz-content-sha256", payload),
            ("x-amz-security-token", "t"),
        ]
        .iter()
        .chain(extra)
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
        headers.sort();
        let names: Vec<&str> = headers.iter().map(|(name, _)| name.as_str()).collect();
        let names = names.join(";");
        let borrowed: Vec<(&str, &str)> = headers.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        let parts = parts(method, uri, &borrowed);
        let query = Query::parse(parts.uri.query()).unwrap();
        let credential = "AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request";
        let wrong = || S3Error::malformed_auth("");
        let unsigned = Signature::of(credential, &names, "", "20130524T000000Z", "t", payload, wrong).unwrap();
        let canonical = unsigned.canonical(&parts, &query).unwrap();
        let text = format!("{ALGORITHM}\n{}\n{}\n{}", unsigned.time, unsigned.scope, sha256_hex(canonical.as_bytes()));
        let key = generate_signing_key(SECRET, UNIX_EPOCH + Duration::from_secs(NOW as u64), "us-east-1", SERVICE);
        let signature = calculate_signature(&key, text.as_bytes());
        let value = format!("{ALGORITHM} Credential={credential},SignedHeaders={names},Signature={signature}");
        headers.push(("authorization".to_owned(), value));
        headers
    }

    /// The example of AWS for GET with a range, of "Signature Calculations for the Authorization Header".
    #[test]
    fn the_example_of_aws_has_the_signature_that_aws_says() {
        let uri = "https://examplebucket.s3.amazonaws.com/test.txt";
        let headers = [
            ("host", "examplebucket.s3.amazonaws.com"),
            ("range", "bytes=0-9"),
            ("x-amz-content-sha256", EMPTY),
            ("x-amz-date", "20130524T000000Z"),
        ];
        let parts = parts("GET", uri, &headers);
        let credential = "AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request";
        let names = "host;range;x-amz-content-sha256;x-amz-date";
        let expected = "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41";
        let wrong = || S3Error::malformed_auth("");
        let sent = Signature::of(credential, names, expected, "20130524T000000Z", "t", EMPTY, wrong).unwrap();
        let query = Query::default();
        assert!(sent.verify(&parts, &query, SECRET).is_ok());
        assert_eq!(sent.verify(&parts, &query, "other").unwrap_err().code, "SignatureDoesNotMatch");
    }

    #[test]
    fn a_request_that_was_changed_is_refused() {
        let uri = "/tenure/a%20b?list-type=2&prefix=x";
        let headers = signed("GET", uri, &[("x-amz-meta-a", "1")], EMPTY);
        let borrowed: Vec<(&str, &str)> = headers.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        assert!(judge(&parts("GET", uri, &borrowed), NOW).is_ok());
        let code = |parts: &Parts, now| judge(parts, now).unwrap_err().code;
        assert_eq!(code(&parts("PUT", uri, &borrowed), NOW), "SignatureDoesNotMatch");
        for other in ["/tenure/a%20c?list-type=2&prefix=x", "/tenure/a%20b?list-type=2&prefix=y", "/tenure/a%20b"] {
            assert_eq!(code(&parts("GET", other, &borrowed), NOW), "SignatureDoesNotMatch", "{other}");
        }
        for (name, value, expected) in [
            ("x-amz-meta-a", "2", "SignatureDoesNotMatch"),
            ("x-amz-date", "20130524T000001Z", "SignatureDoesNotMatch"),
            ("x-amz-date", "20130525T000000Z", "AuthorizationHeaderMalformed"),
            ("x-amz-security-token", "u", "SignatureDoesNotMatch"),
            ("host", "elsewhere", "SignatureDoesNotMatch"),
            ("x-amz-copy-source", "/tenure/secret", "AccessDenied"),
        ] {
            let mut changed = borrowed.clone();
            changed.retain(|(known, _)| *known != name);
            changed.push((name, value));
            assert_eq!(code(&parts("GET", uri, &changed), NOW), expected, "{name}");
        }
        // Replayed later, or sent too early.
        for now in [NOW + limits::SKEW_S + 1, NOW - limits::SKEW_S - 1] {
            assert_eq!(code(&parts("GET", uri, &borrowed), now), "RequestTimeTooSkewed");
        }
    }

    #[test]
    fn malformed_signatures_are_refused() {
        let base = [("host", "h"), ("x-amz-date", "20130524T000000Z"), ("x-amz-content-sha256", EMPTY)];
        let credential = "AKID/20130524/us-east-1/s3/aws4_request";
        for (authorization, expected) in [
            ("Basic eDp5".to_owned(), "AuthorizationHeaderMalformed"),
            ("AWS4-HMAC-SHA256".to_owned(), "AuthorizationHeaderMalformed"),
            (format!("{ALGORITHM} Credential={credential}"), "AuthorizationHeaderMalformed"),
            (format!("{ALGORITHM} Credential={credential},Credential={credential}"), "AuthorizationHeaderMalformed"),
            (
                format!(
                    "{ALGORITHM} Credential=AKID/20130524/us-east-1/sqs/aws4_request,SignedHeaders=host,Signature=0"
                ),
                "AuthorizationHeaderMalformed",
            ),
            (format!("{ALGORITHM} Credential={credential},SignedHeaders=host,Signature=0"), "InvalidAccessKeyId"),
        ] {
            let mut headers = base.to_vec();
            headers.push(("authorization", &authorization));
            assert_eq!(judge(&parts("GET", "/tenure", &headers), NOW).unwrap_err().code, expected, "{authorization}");
        }
        assert_eq!(judge(&parts("GET", "/tenure", &base), NOW).unwrap_err().code, "AccessDenied");
        for time in ["", "20130524", "2013-05-24T00:00:00", "20131324T000000Z", "99990524T000000Zx"] {
            assert_eq!(seconds(time), None, "{time}");
        }
        assert_eq!(seconds("20130524T000000Z"), Some(NOW));
    }

    /// The example of AWS for chunked uploads.
    #[test]
    fn chunks_are_signed_one_after_the_other() {
        let seed = "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9";
        let at = UNIX_EPOCH + Duration::from_secs(NOW as u64);
        let mut signer = ChunkSigner {
            key: generate_signing_key(SECRET, at, "us-east-1", SERVICE).as_ref().to_vec(),
            time: "20130524T000000Z".into(),
            scope: "20130524/us-east-1/s3/aws4_request".into(),
            previous: seed.into(),
        };
        let sha = |bytes: &[u8]| -> [u8; 32] { digest(&SHA256, bytes).as_ref().try_into().unwrap() };
        for (chunk, signature) in [
            (vec![b'a'; 65_536], "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648"),
            (vec![b'a'; 1_024], "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497"),
            (Vec::new(), "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9"),
        ] {
            assert!(signer.is_chunk(&sha(&chunk), signature), "{} bytes", chunk.len());
        }
        assert!(!signer.is_chunk(&sha(b"x"), seed));
    }
}
