use std::io;

/// Why a file is not a bundle. Names are shown to those who sent them.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// A limit is exceeded.
    #[error("{0}")]
    TooLarge(String),
    #[error("{0}")]
    Invalid(String),
    /// The file could not be read, which says nothing about it.
    #[error("the bundle could not be read: {0}")]
    Io(#[from] io::Error),
}

impl BundleError {
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid(message.into())
    }

    pub(crate) fn too_large(message: impl Into<String>) -> Self {
        Self::TooLarge(message.into())
    }
}

/// Why a folder cannot become a bundle.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    #[error("{0}")]
    Folder(String),
    #[error("{0}")]
    Bundle(#[from] BundleError),
    #[error("{path} cannot be read: {error}")]
    Read { path: String, error: io::Error },
}
