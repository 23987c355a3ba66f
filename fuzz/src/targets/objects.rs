//! Prefixes and manifests, as workers send and write them.

use tenure_core::objects::{MANIFEST_BYTES, MANIFEST_KEYS, Manifest, Prefix, WriteTemplate};
use uuid::Uuid;

/// What a text becomes for somebody who decodes it as often as there is something to decode, and follows `.` and `..`.
fn normal(path: &str) -> Vec<String> {
    let mut text = path.as_bytes().to_vec();
    loop {
        let hex = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
        let mut decoded = Vec::new();
        let mut at = 0;
        while at < text.len() {
            match (text[at], hex(text.get(at + 1)), hex(text.get(at + 2))) {
                (b'%', Some(high), Some(low)) => {
                    decoded.push((high * 16 + low) as u8);
                    at += 3;
                }
                (byte, _, _) => {
                    decoded.push(byte);
                    at += 1;
                }
            }
        }
        if decoded == text {
            break;
        }
        text = decoded;
    }
    let text = String::from_utf8_lossy(&text).replace('\\', "/");
    let mut segments: Vec<String> = Vec::new();
    for segment in text.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            other => segments.push(other.to_owned()),
        }
    }
    segments
}

/// A text that is taken for a prefix names a directory, the same one however it is read.
pub fn prefix(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let _ = WriteTemplate::parse(text, true);
    let Ok(prefix) = Prefix::parse(text, true) else { return };
    assert!(prefix.to_string() == text || prefix.to_string() == format!("{text}/"), "{text:?} became {prefix}");
    assert_eq!(Prefix::parse(&prefix.to_string(), true).as_ref(), Ok(&prefix));
    assert!(prefix.path().ends_with('/') && !prefix.path().starts_with('/') && prefix.path().len() <= 1_024);
    let Ok(below) = prefix.below("x") else {
        assert!(prefix.path().len() > 1_000, "there is room for more below {prefix}");
        return;
    };
    assert!(prefix.covers(&prefix) && prefix.covers(&below) && !below.covers(&prefix));
    let evil = format!("{}-evil/", prefix.to_string().trim_end_matches('/'));
    assert!(!Prefix::parse(&evil, true).is_ok_and(|evil| prefix.covers(&evil)), "{evil}");
    // No way to read it leads elsewhere: below it stays below it.
    let (own, inside) = (normal(prefix.path()), normal(below.path()));
    assert!(!own.is_empty() && inside.starts_with(&own) && inside.len() == own.len() + 1, "{own:?} {inside:?}");
}

/// What a manifest names lies below its prefix, however it is read, and each file once.
pub fn manifest(data: &[u8]) {
    let at = Prefix::parse("s3://tenure/p/q/", false).expect("a prefix");
    let dataset = Uuid::from_u128(7);
    match Manifest::parse(data, &at, dataset, None) {
        Ok(manifest) => {
            assert!(data.len() <= MANIFEST_BYTES && manifest.files.len() <= MANIFEST_KEYS);
            for file in &manifest.files {
                assert!(file.ends_with(".parquet") && !file.contains("..") && !file.contains('\\'), "{file:?}");
                let path = normal(&format!("{}{file}", at.path()));
                assert!(path.len() > 2 && path.starts_with(&["p".to_owned(), "q".to_owned()]), "{file:?}");
            }
            let mut files = manifest.files.clone();
            files.sort();
            files.dedup();
            assert_eq!(files.len(), manifest.files.len());
        }
        Err(error) => {
            let message = error.to_string();
            assert!(message.len() < 300 && !message.contains('\n'), "{message}");
        }
    }
}
