//! What is answered to a request that is refused, in the words of S3.

use std::borrow::Cow;
use std::io;

use http::StatusCode;

/// An error in the words of S3. Messages hold no path of the server and no secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct S3Error {
    pub status: StatusCode,
    pub code: &'static str,
    pub message: Cow<'static, str>,
}

pub type Result<T> = std::result::Result<T, S3Error>;

macro_rules! errors {
    ($($name:ident $status:ident $code:literal;)*) => {
        impl S3Error {
            $(pub fn $name(message: impl Into<Cow<'static, str>>) -> Self {
                Self { status: StatusCode::$status, code: $code, message: message.into() }
            })*
        }
    };
}

errors! {
    access_denied FORBIDDEN "AccessDenied";
    bad_digest BAD_REQUEST "BadDigest";
    entity_too_large BAD_REQUEST "EntityTooLarge";
    expired_token BAD_REQUEST "ExpiredToken";
    incomplete_body BAD_REQUEST "IncompleteBody";
    internal INTERNAL_SERVER_ERROR "InternalError";
    invalid_access_key FORBIDDEN "InvalidAccessKeyId";
    invalid_argument BAD_REQUEST "InvalidArgument";
    invalid_digest BAD_REQUEST "InvalidDigest";
    invalid_part BAD_REQUEST "InvalidPart";
    invalid_part_order BAD_REQUEST "InvalidPartOrder";
    invalid_range RANGE_NOT_SATISFIABLE "InvalidRange";
    invalid_request BAD_REQUEST "InvalidRequest";
    invalid_token BAD_REQUEST "InvalidToken";
    invalid_uri BAD_REQUEST "InvalidURI";
    key_too_long BAD_REQUEST "KeyTooLongError";
    malformed_auth BAD_REQUEST "AuthorizationHeaderMalformed";
    malformed_xml BAD_REQUEST "MalformedXML";
    method_not_allowed METHOD_NOT_ALLOWED "MethodNotAllowed";
    missing_length LENGTH_REQUIRED "MissingContentLength";
    not_implemented NOT_IMPLEMENTED "NotImplemented";
    precondition_failed PRECONDITION_FAILED "PreconditionFailed";
    sha256_mismatch BAD_REQUEST "XAmzContentSHA256Mismatch";
    signature_mismatch FORBIDDEN "SignatureDoesNotMatch";
    slow_down SERVICE_UNAVAILABLE "SlowDown";
    time_skewed FORBIDDEN "RequestTimeTooSkewed";
    timed_out BAD_REQUEST "RequestTimeout";
    unavailable SERVICE_UNAVAILABLE "ServiceUnavailable";
}

impl S3Error {
    pub fn no_such_key() -> Self {
        Self { status: StatusCode::NOT_FOUND, code: "NoSuchKey", message: "The specified key does not exist.".into() }
    }

    pub fn no_such_upload() -> Self {
        let message = "The upload does not exist: it was completed or aborted, or belongs to another attempt.";
        Self { status: StatusCode::NOT_FOUND, code: "NoSuchUpload", message: message.into() }
    }

    /// Outside the scope of the keys. The answer does not depend on what exists there.
    pub fn outside_scope() -> Self {
        Self::access_denied("The keys do not allow this: ask for keys whose scope has the prefix.")
    }
}

/// An error of the file system. What it says goes to the log, not to the client.
impl From<io::Error> for S3Error {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind;
        match error.kind() {
            ErrorKind::NotFound => Self::no_such_key(),
            ErrorKind::InvalidFilename => Self::key_too_long("A segment of a key has at most 255 bytes."),
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                tracing::error!(%error, "the folder of the object store is full");
                Self::unavailable("There is no space left.")
            }
            _ => {
                tracing::error!(%error, "a request to the S3 endpoint failed");
                Self::internal("The server could not do this: try again.")
            }
        }
    }
}

impl From<rustix::io::Errno> for S3Error {
    fn from(error: rustix::io::Errno) -> Self {
        io::Error::from(error).into()
    }
}
