use serde::Serialize;

use super::{Algorithm, Claims, MAX_TOKEN_BYTES, TokenError, VerifyingKey, decode, encode, object};

/// Headers that name or bring a key, or that change how the rest is to be read. RFC 7515 lets a reader use them; a
/// reader that does lets the sender choose what it is checked with.
const REFUSED_HEADERS: [&str; 7] = ["crit", "jwk", "jku", "x5u", "x5c", "b64", "zip"];

/// Kids are compared and logged; longer or unprintable ones are no kids of anybody.
const MAX_KID_BYTES: usize = 256;

/// What a reader of tokens takes at all, before it looks for the key.
pub(crate) struct Accepts<'a> {
    pub algorithms: &'a [Algorithm],
    /// Values of `typ`, in lower case. A token without `typ` passes.
    pub types: &'a [&'a str],
}

/// A token whose form is right and whose signature nobody has checked. It gives out no claims.
pub(crate) struct Unverified<'a> {
    pub algorithm: Algorithm,
    pub kid: Option<String>,
    message: &'a str,
    payload: Vec<u8>,
    signature: Vec<u8>,
}

impl<'a> Unverified<'a> {
    pub fn parse(token: &'a str, accepts: &Accepts<'_>) -> Result<Self, TokenError> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TokenError::Malformed);
        }
        let (message, signature) = token.rsplit_once('.').ok_or(TokenError::Malformed)?;
        // A fourth part would leave a dot in the payload, which is no letter of base64url.
        let (header, payload) = message.split_once('.').ok_or(TokenError::Malformed)?;
        let part = |text| decode(text).filter(|bytes| !bytes.is_empty()).ok_or(TokenError::Malformed);
        let (header, payload) = (part(header)?, part(payload)?);
        let (algorithm, kid) = read_header(&header, accepts)?;
        Ok(Self { algorithm, kid, message, payload, signature: part(signature)? })
    }

    /// The claims, if `key` signed them by its own algorithm.
    pub fn verify(&self, key: &VerifyingKey) -> Result<Claims, TokenError> {
        if self.algorithm != key.algorithm() {
            return Err(TokenError::Algorithm);
        }
        if !key.verifies(self.message.as_bytes(), &self.signature) {
            return Err(TokenError::Signature);
        }
        object(&self.payload).map(Claims::new).ok_or(TokenError::Claims)
    }
}

fn read_header(bytes: &[u8], accepts: &Accepts<'_>) -> Result<(Algorithm, Option<String>), TokenError> {
    let header = object(bytes).ok_or(TokenError::Malformed)?;
    if let Some(refused) = REFUSED_HEADERS.into_iter().find(|name| header.contains_key(*name)) {
        return Err(TokenError::Header(refused));
    }
    if let Some(typ) = header.get("typ") {
        let typ = typ.as_str().ok_or(TokenError::Malformed)?.to_ascii_lowercase();
        if !accepts.types.contains(&typ.as_str()) {
            return Err(TokenError::Type);
        }
    }
    let algorithm = header.get("alg").and_then(|alg| alg.as_str()).ok_or(TokenError::Malformed)?;
    let algorithm = Algorithm::parse(algorithm).ok_or(TokenError::Algorithm)?;
    if !accepts.algorithms.contains(&algorithm) {
        return Err(TokenError::Algorithm);
    }
    let kid = header.get("kid").map(|kid| kid.as_str().filter(|kid| is_kid(kid)).ok_or(TokenError::Malformed));
    Ok((algorithm, kid.transpose()?.map(ToOwned::to_owned)))
}

pub(super) fn is_kid(text: &str) -> bool {
    (1..=MAX_KID_BYTES).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// The part of a token that is signed. `None` if the claims are not JSON.
pub(crate) fn message(algorithm: Algorithm, kid: Option<&str>, claims: &impl Serialize) -> Option<String> {
    #[derive(Serialize)]
    struct Header<'a> {
        alg: &'a str,
        typ: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        kid: Option<&'a str>,
    }
    let header = serde_json::to_vec(&Header { alg: algorithm.as_str(), typ: "JWT", kid }).ok()?;
    let claims = serde_json::to_vec(claims).ok()?;
    Some(format!("{}.{}", encode(&header), encode(&claims)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCEPTS: Accepts<'_> = Accepts { algorithms: &[Algorithm::Es256], types: &["jwt"] };

    fn parsed(header: &str) -> Result<Option<String>, TokenError> {
        let token = format!("{}.e30.AAAA", encode(header.as_bytes()));
        Unverified::parse(&token, &ACCEPTS).map(|token| token.kid)
    }

    #[test]
    fn each_header_leads_to_its_answer() {
        let long = format!(r#"{{"alg":"ES256","kid":"{}"}}"#, "k".repeat(257));
        for (header, expected) in [
            (r#"{"alg":"ES256"}"#, Ok(None)),
            (r#"{"alg":"ES256","kid":"k-1","typ":"jwt","x5t":"ignored"}"#, Ok(Some("k-1".to_owned()))),
            (r#"{"alg":"none"}"#, Err(TokenError::Algorithm)),
            (r#"{"alg":"None"}"#, Err(TokenError::Algorithm)),
            (r#"{"alg":"es256"}"#, Err(TokenError::Algorithm)),
            (r#"{"alg":"HS256"}"#, Err(TokenError::Algorithm)),
            (r#"{"alg":"ES256K"}"#, Err(TokenError::Algorithm)),
            (r#"{"alg":""}"#, Err(TokenError::Algorithm)),
            (r#"{"alg":null}"#, Err(TokenError::Malformed)),
            (r#"{"alg":["ES256"]}"#, Err(TokenError::Malformed)),
            (r#"{}"#, Err(TokenError::Malformed)),
            (r#"{"alg":"none","alg":"ES256"}"#, Err(TokenError::Malformed)),
            (r#"{"alg":"ES256","typ":"at+jwt"}"#, Err(TokenError::Type)),
            (r#"{"alg":"ES256","typ":null}"#, Err(TokenError::Malformed)),
            (r#"{"alg":"ES256","kid":7}"#, Err(TokenError::Malformed)),
            (r#"{"alg":"ES256","kid":""}"#, Err(TokenError::Malformed)),
            (r#"{"alg":"ES256","kid":"a b"}"#, Err(TokenError::Malformed)),
            (r#"{"alg":"ES256","kid":"a\n"}"#, Err(TokenError::Malformed)),
            (r#"{"alg":"ES256","kid":"ä"}"#, Err(TokenError::Malformed)),
            (&long, Err(TokenError::Malformed)),
            (r#"{"alg":"ES256","crit":[]}"#, Err(TokenError::Header("crit"))),
            (r#"{"alg":"ES256","crit":null}"#, Err(TokenError::Header("crit"))),
            (r#"{"alg":"ES256","jwk":{}}"#, Err(TokenError::Header("jwk"))),
            (r#"{"alg":"ES256","jku":"https://x"}"#, Err(TokenError::Header("jku"))),
            (r#"{"alg":"ES256","x5u":"https://x"}"#, Err(TokenError::Header("x5u"))),
            (r#"{"alg":"ES256","x5c":[]}"#, Err(TokenError::Header("x5c"))),
            (r#"{"alg":"ES256","b64":false}"#, Err(TokenError::Header("b64"))),
            (r#"{"alg":"ES256","zip":"DEF"}"#, Err(TokenError::Header("zip"))),
        ] {
            assert_eq!(parsed(header), expected, "{header}");
        }
    }

    #[test]
    fn a_token_has_three_parts_in_the_one_spelling_of_base64url() {
        let header = encode(br#"{"alg":"ES256"}"#);
        assert!(Unverified::parse(&format!("{header}.e30.AAAA"), &ACCEPTS).is_ok());
        for token in [
            String::new(),
            "..".to_owned(),
            format!("{header}.e30"),
            format!("{header}.e30."),
            format!("{header}..AAAA"),
            format!("{header}.e30.AAAA.AAAA"),
            format!("{header}.e30=.AAAA"),
            format!("{header}.e31.AAAA"),
            format!(" {header}.e30.AAAA"),
            format!("{header}.e30.AAAA\n"),
            format!("{header}.e30.AA+A"),
            format!("{header}.{}.AAAA", "e30g".repeat(MAX_TOKEN_BYTES / 4)),
        ] {
            let found = Unverified::parse(&token, &ACCEPTS).map(|_| ());
            assert_eq!(found, Err(TokenError::Malformed), "{:.60}", token);
        }
    }
}
