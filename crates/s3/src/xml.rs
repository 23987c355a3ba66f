//! Bodies of S3, which are XML.

use serde::Deserialize;
use tenure_core::Timestamp;

use crate::error::{Result, S3Error};
use crate::folder::Meta;
use crate::limits;
use crate::list::{Listed, Listing};
use crate::query::encode;
use crate::upload::Part;

const START: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
const SPACE: &str = " xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"";

/// An element with a text.
fn element(name: &str, text: &str) -> String {
    format!("<{name}>{}</{name}>", escaped(text))
}

/// Characters that XML cannot have at all become question marks.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push('?'),
            c => escaped.push(c),
        }
    }
    escaped
}

fn document(name: &str, content: &str) -> String {
    format!("{START}<{name}{SPACE}>{content}</{name}>")
}

pub fn error(error: &S3Error, resource: &str, request_id: &str) -> String {
    let parts = [("Code", error.code), ("Message", &error.message), ("Resource", resource), ("RequestId", request_id)];
    let content: String = parts.iter().map(|(name, text)| element(name, text)).collect();
    format!("{START}<Error>{content}</Error>")
}

/// As S3 writes times: `2013-05-24T00:00:00.000Z`.
fn time(meta: &Meta) -> String {
    Timestamp::from_millis(meta.modified_s.saturating_mul(1_000)).to_string()
}

/// What a list was asked for, as it is repeated in the answer.
#[derive(Debug, Clone, Default)]
pub struct ListEcho {
    pub bucket: String,
    pub prefix: String,
    pub delimiter: Option<String>,
    pub start_after: Option<String>,
    pub token: Option<String>,
    pub max_keys: usize,
    pub encodes: bool,
    pub next_token: Option<String>,
}

pub fn list(echo: &ListEcho, listing: &Listing) -> String {
    let name = |text: &str| if echo.encodes { encode(text, true) } else { text.to_owned() };
    let mut content = element("Name", &echo.bucket);
    content.push_str(&element("Prefix", &name(&echo.prefix)));
    for (element_name, value) in [("Delimiter", &echo.delimiter), ("StartAfter", &echo.start_after)] {
        content.extend(value.as_ref().map(|value| element(element_name, &name(value))));
    }
    for (element_name, value) in [("ContinuationToken", &echo.token), ("NextContinuationToken", &echo.next_token)] {
        content.extend(value.as_ref().map(|value| element(element_name, value)));
    }
    if echo.encodes {
        content.push_str(&element("EncodingType", "url"));
    }
    content.push_str(&element("MaxKeys", &echo.max_keys.to_string()));
    content.push_str(&element("KeyCount", &listing.entries.len().to_string()));
    content.push_str(&element("IsTruncated", &listing.is_truncated.to_string()));
    for entry in &listing.entries {
        match entry {
            Listed::Object(key, meta) => {
                let parts = [
                    ("Key", name(key)),
                    ("LastModified", time(meta)),
                    ("ETag", meta.etag.clone()),
                    ("Size", meta.bytes.to_string()),
                    ("StorageClass", "STANDARD".to_owned()),
                ];
                let inner: String = parts.iter().map(|(name, text)| element(name, text)).collect();
                content.push_str(&format!("<Contents>{inner}</Contents>"));
            }
            Listed::Directory(path) => {
                content.push_str(&format!("<CommonPrefixes>{}</CommonPrefixes>", element("Prefix", &name(path))));
            }
        }
    }
    document("ListBucketResult", &content)
}

/// The default region has no name here.
pub fn location() -> String {
    format!("{START}<LocationConstraint{SPACE}/>")
}

pub fn upload_begun(bucket: &str, key: &str, id: &str) -> String {
    let content = [element("Bucket", bucket), element("Key", key), element("UploadId", id)].concat();
    document("InitiateMultipartUploadResult", &content)
}

pub fn upload_completed(bucket: &str, key: &str, etag: &str) -> String {
    let location = format!("/{bucket}/{}", encode(key, true));
    let content =
        [element("Location", &location), element("Bucket", bucket), element("Key", key), element("ETag", etag)];
    document("CompleteMultipartUploadResult", &content.concat())
}

pub fn parts(bucket: &str, key: &str, id: &str, parts: &[(u32, Meta)], is_truncated: bool) -> String {
    let mut content = [element("Bucket", bucket), element("Key", key), element("UploadId", id)].concat();
    content.push_str(&element("IsTruncated", &is_truncated.to_string()));
    if let Some((last, _)) = parts.last().filter(|_| is_truncated) {
        content.push_str(&element("NextPartNumberMarker", &last.to_string()));
    }
    for (number, meta) in parts {
        let inner = [
            element("PartNumber", &number.to_string()),
            element("LastModified", &time(meta)),
            element("ETag", &meta.etag),
            element("Size", &meta.bytes.to_string()),
        ];
        content.push_str(&format!("<Part>{}</Part>", inner.concat()));
    }
    document("ListPartsResult", &content)
}

/// The keys that were removed, unless the client does not want to know, and those that were not.
pub fn deleted(deleted: &[(String, Result<()>)], is_quiet: bool) -> String {
    let mut content = String::new();
    for (key, outcome) in deleted {
        match outcome {
            Ok(()) if is_quiet => {}
            Ok(()) => content.push_str(&format!("<Deleted>{}</Deleted>", element("Key", key))),
            Err(error) => {
                let inner = [element("Key", key), element("Code", error.code), element("Message", &error.message)];
                content.push_str(&format!("<Error>{}</Error>", inner.concat()));
            }
        }
    }
    document("DeleteResult", &content)
}

#[derive(Deserialize)]
struct CompleteBody {
    #[serde(rename = "Part", default)]
    parts: Vec<PartBody>,
}

#[derive(Deserialize)]
struct PartBody {
    #[serde(rename = "PartNumber")]
    number: u32,
    #[serde(rename = "ETag")]
    etag: String,
}

#[derive(Deserialize)]
struct DeleteBody {
    #[serde(rename = "Object", default)]
    objects: Vec<ObjectBody>,
    #[serde(rename = "Quiet", default)]
    quiet: bool,
}

#[derive(Deserialize)]
struct ObjectBody {
    #[serde(rename = "Key")]
    key: String,
}

fn parse<T: for<'a> Deserialize<'a>>(body: &[u8]) -> Result<T> {
    let wrong = |_| S3Error::malformed_xml("The body is not the XML that is needed here.");
    let text = std::str::from_utf8(body).map_err(|_| S3Error::malformed_xml("The body is not UTF-8."))?;
    quick_xml::de::from_str(text).map_err(wrong)
}

pub fn read_parts(body: &[u8]) -> Result<Vec<Part>> {
    let CompleteBody { parts } = parse(body)?;
    Ok(parts.into_iter().map(|PartBody { number, etag }| Part { number, etag }).collect())
}

/// The keys that are to be removed, and whether the client does not want to hear of each.
pub fn read_deletes(body: &[u8]) -> Result<(Vec<String>, bool)> {
    let DeleteBody { objects, quiet } = parse(body)?;
    if objects.is_empty() || objects.len() > limits::KEYS {
        return Err(S3Error::malformed_xml("The request must name 1 to 1,000 keys."));
    }
    Ok((objects.into_iter().map(|object| object.key).collect(), quiet))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_of_clients_are_read() {
        let body = br#"<CompleteMultipartUpload xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Part><ETag>&quot;a-1&quot;</ETag>
            <ChecksumCRC32>x</ChecksumCRC32><PartNumber>1</PartNumber></Part><Part><PartNumber>2</PartNumber><ETag>"b"</ETag></Part>
            </CompleteMultipartUpload>"#;
        let parts = read_parts(body).unwrap();
        assert_eq!(parts[0], Part { number: 1, etag: "\"a-1\"".into() });
        assert_eq!((parts.len(), parts[1].number), (2, 2));
        let body =
            b"<Delete><Object><Key>a &amp; b</Key></Object><Object><Key>c</Key></Object><Quiet>true</Quiet></Delete>";
        assert_eq!(read_deletes(body).unwrap(), (vec!["a & b".to_owned(), "c".to_owned()], true));
    }

    #[test]
    fn bodies_that_are_something_else_are_refused() {
        let bomb =
            br#"<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><Delete><Object><Key>&b;</Key></Object></Delete>"#;
        let many = format!("<Delete>{}</Delete>", "<Object><Key>k</Key></Object>".repeat(1_001));
        for body in [&b""[..], b"<", b"<Delete/>", b"\xff", b"{}", bomb, many.as_bytes()] {
            let refused = read_deletes(body).map_err(|error| error.code);
            assert_eq!(refused, Err("MalformedXML"), "{}", String::from_utf8_lossy(&body[..body.len().min(60)]));
        }
    }

    #[test]
    fn names_are_escaped() {
        let error = S3Error::access_denied("a<b>");
        let body = super::error(&error, "/tenure/\"&\u{1}", "r");
        assert!(body.contains("<Message>a&lt;b&gt;</Message><Resource>/tenure/&quot;&amp;?</Resource>"), "{body}");
    }
}
