//! What a request asks for.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, Method};
use tenure_core::objects::{KEY_BYTES, is_key};

use crate::error::{Result, S3Error};
use crate::limits;
use crate::list::Wanted;
use crate::query::Query;
use crate::xml::ListEcho;

#[derive(Debug)]
pub enum Operation {
    HeadBucket,
    Location,
    List {
        wanted: Wanted,
        echo: Box<ListEcho>,
    },
    DeleteMany,
    Get {
        key: String,
        is_head: bool,
    },
    Put {
        key: String,
    },
    /// A key that ends with a slash; without it.
    MarkDirectory {
        path: String,
    },
    UnmarkDirectory {
        path: String,
    },
    Delete {
        key: String,
    },
    BeginUpload {
        key: String,
    },
    AddPart {
        key: String,
        id: String,
        number: u32,
    },
    CompleteUpload {
        key: String,
        id: String,
    },
    AbortUpload {
        key: String,
        id: String,
    },
    ListParts {
        key: String,
        id: String,
        after: u32,
        limit: usize,
    },
}

/// Subresources and headers that would change what a request means, and that are not offered. Everything that is not
/// known is refused as well: nothing is half done.
const KNOWN: [&str; 17] = [
    "list-type",
    "prefix",
    "delimiter",
    "encoding-type",
    "max-keys",
    "continuation-token",
    "start-after",
    "fetch-owner",
    "location",
    "delete",
    "uploads",
    "uploadId",
    "partNumber",
    "max-parts",
    "part-number-marker",
    "x-id",
    "versionId",
];

impl Operation {
    /// The name that metrics have.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::HeadBucket => "HeadBucket",
            Self::Location => "GetBucketLocation",
            Self::List { .. } => "ListObjectsV2",
            Self::DeleteMany => "DeleteObjects",
            Self::Get { is_head: false, .. } => "GetObject",
            Self::Get { is_head: true, .. } => "HeadObject",
            Self::Put { .. } | Self::MarkDirectory { .. } => "PutObject",
            Self::Delete { .. } | Self::UnmarkDirectory { .. } => "DeleteObject",
            Self::BeginUpload { .. } => "CreateMultipartUpload",
            Self::AddPart { .. } => "UploadPart",
            Self::CompleteUpload { .. } => "CompleteMultipartUpload",
            Self::AbortUpload { .. } => "AbortMultipartUpload",
            Self::ListParts { .. } => "ListParts",
        }
    }

    /// What is in memory at most while it is done.
    pub const fn memory_bytes(&self) -> usize {
        match self {
            // One piece is on its way while another one is written or read.
            Self::Get { is_head: false, .. } | Self::Put { .. } | Self::AddPart { .. } => 2 * limits::BUFFER_BYTES,
            // As bytes, and once more as what is made of them.
            Self::DeleteMany | Self::CompleteUpload { .. } => 2 * limits::XML_BYTES,
            Self::List { .. } | Self::ListParts { .. } => limits::BUFFER_BYTES,
            _ => 0,
        }
    }

    /// `key` is what follows the bucket in the path.
    pub fn of(method: &Method, bucket: &str, key: &str, query: &Query, headers: &HeaderMap) -> Result<Self> {
        check_known(query, headers)?;
        if key.is_empty() {
            return of_bucket(method, bucket, query);
        }
        if let Some(path) = key.strip_suffix('/') {
            let path = checked(path)?;
            return match *method {
                Method::PUT if !query.has("uploadId") => Ok(Self::MarkDirectory { path }),
                Method::DELETE if !query.has("uploadId") => Ok(Self::UnmarkDirectory { path }),
                Method::GET | Method::HEAD => Err(S3Error::no_such_key()),
                _ => Err(S3Error::method_not_allowed("A key with a slash at its end cannot be used this way.")),
            };
        }
        of_object(method, checked(key)?, query)
    }
}

fn of_bucket(method: &Method, bucket: &str, query: &Query) -> Result<Operation> {
    match *method {
        Method::HEAD => Ok(Operation::HeadBucket),
        Method::GET if query.has("location") => Ok(Operation::Location),
        Method::GET if query.get("list-type") == Some("2") => list(bucket, query),
        Method::GET => Err(S3Error::not_implemented("Only version 2 of the list is offered: send list-type=2.")),
        Method::POST if query.has("delete") => Ok(Operation::DeleteMany),
        _ => Err(S3Error::not_implemented("Buckets cannot be changed here.")),
    }
}

fn of_object(method: &Method, key: String, query: &Query) -> Result<Operation> {
    let id = query.get("uploadId").map(str::to_owned);
    let part = query.get("partNumber");
    match (method, id) {
        (&Method::GET | &Method::HEAD, None) if part.is_some() => {
            Err(S3Error::not_implemented("Parts of objects cannot be read by number: use a range."))
        }
        (&Method::GET, Some(id)) => {
            let number = |name: &str, default: u32| {
                query.get(name).map_or(Ok(default), |text| {
                    text.parse().map_err(|_| S3Error::invalid_argument(format!("{name} must be a number.")))
                })
            };
            let limit = number("max-parts", 1_000)?.clamp(1, 1_000) as usize;
            Ok(Operation::ListParts { key, id, after: number("part-number-marker", 0)?, limit })
        }
        (&Method::GET, None) => Ok(Operation::Get { key, is_head: false }),
        (&Method::HEAD, None) => Ok(Operation::Get { key, is_head: true }),
        (&Method::PUT, Some(id)) => {
            let number = part.and_then(|part| part.parse().ok()).filter(|number| (1..=limits::PARTS).contains(number));
            let number = number.ok_or_else(|| S3Error::invalid_argument("partNumber must be from 1 to 10,000."))?;
            Ok(Operation::AddPart { key, id, number })
        }
        (&Method::PUT, None) if part.is_none() => Ok(Operation::Put { key }),
        (&Method::DELETE, Some(id)) => Ok(Operation::AbortUpload { key, id }),
        (&Method::DELETE, None) => Ok(Operation::Delete { key }),
        (&Method::POST, None) if query.has("uploads") => Ok(Operation::BeginUpload { key }),
        (&Method::POST, Some(id)) => Ok(Operation::CompleteUpload { key, id }),
        _ => Err(S3Error::method_not_allowed("The object cannot be used this way.")),
    }
}

fn checked(key: &str) -> Result<String> {
    if key.len() > KEY_BYTES {
        return Err(S3Error::key_too_long("A key has at most 1,024 bytes."));
    }
    if !is_key(key) {
        let message = "The key has a segment that is empty, '.', '..' or reserved, a backslash or a control character.";
        return Err(S3Error::invalid_argument(message));
    }
    Ok(key.to_owned())
}

fn check_known(query: &Query, headers: &HeaderMap) -> Result<()> {
    let is_known = |name: &str| KNOWN.contains(&name) || name.starts_with("X-Amz-") || name.starts_with("response-");
    if let Some(name) = query.names().find(|name| !is_known(name)) {
        let name: String = name.chars().take(40).collect();
        return Err(S3Error::not_implemented(format!("'{name}' is not offered here.")));
    }
    if query.get("versionId").is_some_and(|version| version != "null") {
        return Err(S3Error::not_implemented("There are no versions here."));
    }
    let refused = [
        "x-amz-copy-source",
        "x-amz-server-side-encryption",
        "x-amz-tagging",
        "x-amz-object-lock",
        "x-amz-website",
        "x-amz-write-offset",
        "x-amz-grant",
    ];
    let is_refused = |name: &str| refused.iter().any(|start| name.starts_with(start));
    if let Some(name) = headers.keys().map(http::HeaderName::as_str).find(|name| is_refused(name)) {
        return Err(S3Error::not_implemented(format!("'{name}' is not offered here.")));
    }
    let acl = headers.get("x-amz-acl").map(http::HeaderValue::as_bytes);
    if acl.is_some_and(|acl| !matches!(acl, b"private" | b"bucket-owner-full-control")) {
        return Err(S3Error::not_implemented("Objects have no access lists here."));
    }
    Ok(())
}

fn list(bucket: &str, query: &Query) -> Result<Operation> {
    let by_directory = match query.get("delimiter") {
        None | Some("") => false,
        Some("/") => true,
        Some(_) => return Err(S3Error::not_implemented("The delimiter must be a slash.")),
    };
    let encodes = match query.get("encoding-type") {
        None | Some("") => false,
        Some("url") => true,
        Some(_) => return Err(S3Error::invalid_argument("encoding-type must be url.")),
    };
    let number = || S3Error::invalid_argument("max-keys must be a number.");
    let max_keys: usize = query.get("max-keys").map_or(Ok(limits::KEYS), |text| text.parse().map_err(|_| number()))?;
    let max_keys = max_keys.min(limits::KEYS);
    let prefix = query.get("prefix").unwrap_or_default().to_owned();
    let token = query.get("continuation-token").filter(|token| !token.is_empty());
    let start_after = query.get("start-after").filter(|after| !after.is_empty());
    let after = match token {
        Some(token) => {
            let wrong = || S3Error::invalid_argument("The continuation token is not one of this list.");
            let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| wrong())?;
            String::from_utf8(bytes).ok().filter(|after| after.len() <= 2 * KEY_BYTES).ok_or_else(wrong)?
        }
        None => start_after.unwrap_or_default().to_owned(),
    };
    let echo = ListEcho {
        bucket: bucket.to_owned(),
        prefix: prefix.clone(),
        delimiter: by_directory.then(|| "/".to_owned()),
        start_after: start_after.map(str::to_owned),
        token: token.map(str::to_owned),
        max_keys,
        encodes,
        next_token: None,
    };
    let wanted = Wanted { prefix, by_directory, after, continues: token.is_some(), limit: max_keys };
    Ok(Operation::List { wanted, echo: Box::new(echo) })
}

/// Where the next page of a list begins.
pub fn token(last: &str) -> String {
    URL_SAFE_NO_PAD.encode(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(method: Method, key: &str, query: &str) -> std::result::Result<&'static str, &'static str> {
        let query = Query::parse(Some(query)).unwrap();
        let operation = Operation::of(&method, "tenure", key, &query, &HeaderMap::new());
        operation.map(|operation| operation.name()).map_err(|error| error.code)
    }

    #[test]
    fn requests_are_told_apart() {
        use http::Method as M;
        for (method, key, query, expected) in [
            (M::HEAD, "", "", Ok("HeadBucket")),
            (M::GET, "", "location", Ok("GetBucketLocation")),
            (M::GET, "", "list-type=2&prefix=p/", Ok("ListObjectsV2")),
            (M::GET, "", "prefix=p/", Err("NotImplemented")),
            (M::GET, "", "list-type=2&delimiter=x", Err("NotImplemented")),
            (M::GET, "", "list-type=2&max-keys=x", Err("InvalidArgument")),
            (M::GET, "", "list-type=2&continuation-token=%21", Err("InvalidArgument")),
            (M::GET, "", "acl", Err("NotImplemented")),
            (M::PUT, "", "", Err("NotImplemented")),
            (M::DELETE, "", "", Err("NotImplemented")),
            (M::POST, "", "delete", Ok("DeleteObjects")),
            (M::GET, "a/b", "", Ok("GetObject")),
            (M::GET, "a/b", "x-id=GetObject&response-content-type=x", Ok("GetObject")),
            (M::GET, "a/b", "versionId=null", Ok("GetObject")),
            (M::GET, "a/b", "versionId=7", Err("NotImplemented")),
            (M::GET, "a/b", "partNumber=1", Err("NotImplemented")),
            (M::GET, "a/b", "torrent", Err("NotImplemented")),
            (M::HEAD, "a/b", "", Ok("HeadObject")),
            (M::PUT, "a/b", "", Ok("PutObject")),
            (M::PUT, "a/b", "tagging", Err("NotImplemented")),
            (M::PUT, "a/b", "partNumber=1", Err("MethodNotAllowed")),
            (M::PUT, "a/b", "uploadId=x&partNumber=1", Ok("UploadPart")),
            (M::PUT, "a/b", "uploadId=x&partNumber=0", Err("InvalidArgument")),
            (M::PUT, "a/b", "uploadId=x&partNumber=10001", Err("InvalidArgument")),
            (M::PUT, "a/b", "uploadId=x", Err("InvalidArgument")),
            (M::POST, "a/b", "uploads", Ok("CreateMultipartUpload")),
            (M::POST, "a/b", "uploadId=x", Ok("CompleteMultipartUpload")),
            (M::POST, "a/b", "", Err("MethodNotAllowed")),
            (M::DELETE, "a/b", "uploadId=x", Ok("AbortMultipartUpload")),
            (M::DELETE, "a/b", "", Ok("DeleteObject")),
            (M::PATCH, "a/b", "", Err("MethodNotAllowed")),
            (M::PUT, "a/", "", Ok("PutObject")),
            (M::GET, "a/", "", Err("NoSuchKey")),
            (M::GET, "../etc/passwd", "", Err("InvalidArgument")),
            (M::PUT, "a/../../b", "", Err("InvalidArgument")),
            (M::GET, ".tenure/s3.key", "", Err("InvalidArgument")),
            (M::PUT, ".tenure/", "", Err("InvalidArgument")),
            (M::GET, "a//b", "", Err("InvalidArgument")),
            (M::PUT, "/", "", Err("InvalidArgument")),
        ] {
            assert_eq!(of(method.clone(), key, query), expected, "{method} {key} {query}");
        }
        assert_eq!(of(M::GET, &"a".repeat(1_025), ""), Err("KeyTooLongError"));
    }

    #[test]
    fn headers_that_are_not_offered_are_not_ignored() {
        for (name, value, refused) in [
            ("x-amz-copy-source", "/tenure/a", true),
            ("x-amz-server-side-encryption", "AES256", true),
            ("x-amz-server-side-encryption-customer-key", "x", true),
            ("x-amz-tagging", "a=b", true),
            ("x-amz-acl", "public-read", true),
            ("x-amz-acl", "private", false),
            ("x-amz-meta-a", "b", false),
        ] {
            let headers = HeaderMap::from_iter([(http::HeaderName::from_static(name), value.parse().unwrap())]);
            let found = Operation::of(&Method::PUT, "tenure", "a", &Query::default(), &headers);
            assert_eq!(found.is_err_and(|error| error.code == "NotImplemented"), refused, "{name}");
        }
    }
}
