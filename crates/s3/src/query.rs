//! The query and the path of a request, decoded and as they are signed.

use crate::error::{Result, S3Error};

/// The pairs of a query, decoded, in the order in which they were sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Query(Vec<(String, String)>);

impl Query {
    pub fn parse(query: Option<&str>) -> Result<Self> {
        let pair = |text: &str| {
            let (name, value) = text.split_once('=').unwrap_or((text, ""));
            Ok((decode(name)?, decode(value)?))
        };
        let pairs = query.unwrap_or_default().split('&').filter(|text| !text.is_empty()).map(pair);
        pairs.collect::<Result<_>>().map(Self)
    }

    /// The value of a name. One that is sent twice counts as the first.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }

    /// As it is signed: encoded anew and sorted, without the signature itself.
    pub fn canonical(&self) -> String {
        let signed = self.0.iter().filter(|(name, _)| name != "X-Amz-Signature");
        let mut pairs: Vec<(String, String)> =
            signed.map(|(name, value)| (encode(name, false), encode(value, false))).collect();
        pairs.sort_unstable();
        pairs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
    }
}

/// With `%XX` replaced. A plus sign is a plus sign.
pub fn decode(text: &str) -> Result<String> {
    let wrong = || S3Error::invalid_uri("The address is not encoded as UTF-8 with percent signs.");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
        let (high, low) = (digit().ok_or_else(wrong)?, digit().ok_or_else(wrong)?);
        bytes.push(u8::try_from(high * 16 + low).map_err(|_| wrong())?);
    }
    String::from_utf8(bytes).map_err(|_| wrong())
}

/// As S3 encodes names for signatures; slashes stay in paths.
pub fn encode(text: &str, is_path: bool) -> String {
    use std::fmt::Write;
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') || (is_path && byte == b'/') {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_signed_sorted_and_encoded_anew() {
        let query = Query::parse(Some("uploads&prefix=a%2fb+c&X-Amz-Signature=x&a=2&a=1")).unwrap();
        assert_eq!(query.canonical(), "a=1&a=2&prefix=a%2Fb%2Bc&uploads=");
        assert_eq!((query.get("prefix"), query.get("uploads"), query.get("none")), (Some("a/b+c"), Some(""), None));
        assert_eq!(Query::parse(None).unwrap().canonical(), "");
    }

    #[test]
    fn what_cannot_be_decoded_is_refused() {
        for text in ["%", "%2", "%zz", "%ff", "%+1"] {
            assert!(decode(text).is_err(), "{text}");
        }
        assert_eq!(decode("a%20b%C3%BC").unwrap(), "a bü");
        assert_eq!(encode("a b/ü", true), "a%20b/%C3%BC");
    }
}
