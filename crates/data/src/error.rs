type Source = Box<dyn std::error::Error + Send + Sync>;

/// What a data store can fail with. Messages carry no rows, addresses or passwords; the sources are for the log.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// It cannot be reached or cannot write now: nothing was written, or it cannot be told. The same call again finds out.
    #[error("the data store cannot {operation} now")]
    Unavailable {
        operation: &'static str,
        #[source]
        source: Source,
    },
    /// It answered with something that it should not.
    #[error("the data store failed to {operation}")]
    Failed {
        operation: &'static str,
        #[source]
        source: Source,
    },
    /// The table that is there cannot take rows of this schema.
    #[error("the table of the dataset does not fit its schema: {0}")]
    Incompatible(String),
}

impl DataError {
    /// Whether trying again later can help.
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }

    /// The message and what caused it, for a log line.
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut source = std::error::Error::source(self);
        while let Some(cause) = source {
            text.push_str(": ");
            text.push_str(&cause.to_string());
            source = cause.source();
        }
        text
    }
}
