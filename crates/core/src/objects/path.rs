//! Which texts may be a path in the object store.

/// What is wrong with a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PathProblem {
    #[error("is empty")]
    Empty,
    #[error("is too long")]
    TooLong,
    #[error("contains '..'")]
    Parent,
    #[error("contains an empty segment or '.'")]
    Segment,
    #[error("contains a backslash")]
    Backslash,
    #[error("contains a control character")]
    Control,
    #[error("contains '*' or '?'")]
    Wildcard,
    #[error("contains a percent sign that stands for something else")]
    Encoded,
}

/// How often a text is decoded. Whoever encodes it more often means no good.
const DECODINGS: usize = 3;

/// Judges a path without slashes at its ends. Names are taken as they are and never decoded, but others may decode them,
/// perhaps more than once: so it is judged as it would be read then, too.
pub fn check(path: &str, wildcards: bool) -> Result<(), PathProblem> {
    check_form(path, wildcards)?;
    let mut form = path.to_owned();
    for _ in 0..DECODINGS {
        let decoded = decode(&form).ok_or(PathProblem::Encoded)?;
        if decoded == form {
            return Ok(());
        }
        check_form(&decoded, wildcards).map_err(|_| PathProblem::Encoded)?;
        form = decoded;
    }
    Err(PathProblem::Encoded)
}

fn check_form(path: &str, wildcards: bool) -> Result<(), PathProblem> {
    if path.is_empty() {
        return Err(PathProblem::Empty);
    }
    if path.contains("..") {
        return Err(PathProblem::Parent);
    }
    if path.contains('\\') {
        return Err(PathProblem::Backslash);
    }
    if path.contains(char::is_control) {
        return Err(PathProblem::Control);
    }
    if !wildcards && path.contains(['*', '?']) {
        return Err(PathProblem::Wildcard);
    }
    if path.split('/').any(|segment| matches!(segment, "" | ".")) {
        return Err(PathProblem::Segment);
    }
    Ok(())
}

/// With `%XX` replaced by what it stands for; a percent sign before anything else stays. `None` if that is no text.
fn decode(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let digits = bytes.get(at + 1).zip(bytes.get(at + 2)).filter(|_| bytes[at] == b'%');
        match digits.and_then(|(high, low)| Some(digit(*high)? * 16 + digit(*low)?)) {
            Some(byte) => {
                decoded.push(byte);
                at += 3;
            }
            None => {
                decoded.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8(decoded).ok()
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_names_pass_and_tricks_do_not() {
        for path in ["a", "a/b", "dataset/1/x.parquet", "date=2024-01-01/x", "a b", "ü/é", "100%/x", "a%2Fb", "a.b"] {
            assert_eq!(check(path, false), Ok(()), "{path}");
        }
        for (path, problem) in [
            ("", PathProblem::Empty),
            ("/a", PathProblem::Segment),
            ("a//b", PathProblem::Segment),
            ("a/", PathProblem::Segment),
            ("a/./b", PathProblem::Segment),
            ("a/../b", PathProblem::Parent),
            ("a..b", PathProblem::Parent),
            ("a\\b", PathProblem::Backslash),
            ("a\nb", PathProblem::Control),
            ("a\u{85}b", PathProblem::Control),
            ("a\0", PathProblem::Control),
            ("a*", PathProblem::Wildcard),
            ("a?versionId=1", PathProblem::Wildcard),
            ("a/%2e%2e/b", PathProblem::Encoded),
            ("a/%2E./b", PathProblem::Encoded),
            ("a/%252e%252e/b", PathProblem::Encoded),
            ("a/%25252525252e", PathProblem::Encoded),
            ("a%5cb", PathProblem::Encoded),
            ("a%00b", PathProblem::Encoded),
            ("a%2F%2Fb", PathProblem::Encoded),
            ("a/%2F", PathProblem::Encoded),
            ("a/%ff", PathProblem::Encoded),
            ("a%3Fb", PathProblem::Encoded),
        ] {
            assert_eq!(check(path, false), Err(problem), "{path:?}");
        }
        assert_eq!(check("a*?.parquet", true), Ok(()));
    }
}
