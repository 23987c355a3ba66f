use tenure_core::objects::{KEY_BYTES, ManifestError, PrefixError};

type Source = Box<dyn std::error::Error + Send + Sync>;

/// What went wrong with an object. Messages are for those who sent a request: they hold no path of the server. The
/// sources are for the log.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    #[error(transparent)]
    Prefix(#[from] PrefixError),
    #[error("the location is not one that this attempt may write: use `staging_prefix` of the output")]
    NotGranted,
    #[error("the location has neither _SUCCESS nor _manifest.json: write one of them when all data is written")]
    NotFinished,
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error("the location has more than {0} objects: write fewer, larger files")]
    TooMany(usize),
    #[error(
        "the location has an object whose name cannot be used, or that is no file: keys have at most {KEY_BYTES} bytes, no empty segments and no control characters; links are not followed"
    )]
    OddObject,
    #[error("the object does not exist")]
    NotFound,
    #[error("the object has more than {0} bytes")]
    TooLarge(u64),
    #[error("the object store is not available: try again")]
    Unavailable(#[source] Source),
    /// The configuration is wrong, or rights are missing. For the sender it is the same as a store that is away.
    #[error("the object store is not available: try again")]
    Denied(#[source] Source),
}

impl ObjectError {
    /// The word for it on the wire.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Prefix(_) => "invalid_prefix",
            Self::NotGranted => "prefix_not_granted",
            Self::NotFinished => "missing_success_marker",
            Self::Manifest(error) if error.is_too_large() => "manifest_too_large",
            Self::TooMany(_) | Self::TooLarge(_) => "manifest_too_large",
            Self::Manifest(_) | Self::OddObject | Self::NotFound => "invalid_manifest",
            Self::Unavailable(_) | Self::Denied(_) => "object_store_unavailable",
        }
    }

    /// The HTTP status that goes with it.
    pub fn status(&self) -> u16 {
        match self.code() {
            "prefix_not_granted" => 403,
            "manifest_too_large" => 413,
            "object_store_unavailable" => 503,
            _ => 422,
        }
    }

    /// Whether the same call may succeed later.
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable(_))
    }

    pub(crate) fn timed_out(what: &'static str) -> Self {
        Self::Unavailable(format!("timed out: {what}").into())
    }

    pub(crate) fn unavailable(source: impl Into<Source>) -> Self {
        Self::Unavailable(source.into())
    }
}

impl From<object_store::Error> for ObjectError {
    fn from(error: object_store::Error) -> Self {
        use object_store::Error;
        match error {
            Error::NotFound { .. } => Self::NotFound,
            Error::InvalidPath { .. } => Self::OddObject,
            denied @ (Error::PermissionDenied { .. }
            | Error::Unauthenticated { .. }
            | Error::NotSupported { .. }
            | Error::NotImplemented { .. }
            | Error::UnknownConfigurationKey { .. }) => Self::Denied(Box::new(denied)),
            other => Self::Unavailable(Box::new(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::objects::PathProblem;

    use super::*;

    #[test]
    fn each_error_has_its_word_and_status() {
        for (error, code, status) in [
            (PrefixError::Scheme.into(), "invalid_prefix", 422),
            (ObjectError::NotGranted, "prefix_not_granted", 403),
            (ObjectError::NotFinished, "missing_success_marker", 422),
            (ManifestError::TooMany.into(), "manifest_too_large", 413),
            (ManifestError::Key(0, PathProblem::Parent).into(), "invalid_manifest", 422),
            (ObjectError::OddObject, "invalid_manifest", 422),
            (ObjectError::timed_out("list"), "object_store_unavailable", 503),
            (ObjectError::Denied("no".into()), "object_store_unavailable", 503),
        ] {
            assert_eq!((error.code(), error.status()), (code, status), "{error}");
        }
    }

    #[test]
    fn no_message_tells_a_path_or_what_the_store_said() {
        let said = object_store::Error::Generic { store: "S3", source: "GET http://10.0.0.1/secret-key".into() };
        assert!(!ObjectError::from(said).to_string().contains("secret"));
    }
}
