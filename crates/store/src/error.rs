/// What a store can fail with. Messages name the operation and never carry rows, addresses or passwords.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The store cannot be reached or cannot write now: nothing was changed, try again later.
    #[error("the store cannot {operation} now")]
    Unavailable {
        operation: &'static str,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Nothing was changed. It can write again as soon as there is room.
    #[error("the store cannot {operation}: disk full")]
    DiskFull {
        operation: &'static str,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The answer to the commit was lost: it may have happened. The same batch sent again finds out.
    #[error("the answer to the commit was lost")]
    CommitUnknown {
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Another transaction was in the way: nothing was changed, try again at once.
    #[error("another transaction was in the way")]
    Contention,
    /// The store answered with something that it should not.
    #[error("the store failed to {operation}")]
    Failed {
        operation: &'static str,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error(
        "the store has schema version {found} and needs a binary that knows version {oldest} or later, this binary knows versions up to {known}: start a newer tenure, or restore a backup made before the upgrade"
    )]
    NewerSchema { found: i64, oldest: i64, known: i64 },
    #[error(
        "the store has schema version {found}, from before the first release; this binary needs version {known} and cannot upgrade it: start with an empty store"
    )]
    OlderSchema { found: i64, known: i64 },
    #[error("unknown store address '{scheme}:…': use sqlite:PATH or postgres://user@host/database")]
    Address { scheme: String },
    #[error(
        "{path} is open in another process: SQLite is for a single node and serves one process at a time. Stop the other one, or let several share a Postgres (--store postgres://…)"
    )]
    InUse { path: String },
    #[error(
        "{path} is damaged: {what}. Stop here and restore a backup (tenure restore); docs/operations/backup.md describes it"
    )]
    Damaged { path: String, what: String },
    #[error(
        "{path} {what}, but {record} records the identity of a store that was there before. If it was moved, put it back; if this is what you want, remove {record} and start again"
    )]
    Replaced { path: String, what: String, record: String },
}

impl StoreError {
    /// Whether trying again later can help.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::DiskFull { .. } | Self::CommitUnknown { .. } | Self::Contention)
    }

    /// The message and what caused it, for a log line.
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut source = std::error::Error::source(self);
        while let Some(cause) = source {
            let said = cause.to_string();
            // Of the pool of connections, which says nothing of its own.
            let said = said.strip_prefix("Error occurred while creating a new object: ").unwrap_or(&said);
            // Some libraries repeat their cause.
            if !text.ends_with(said) {
                text.push_str(": ");
                text.push_str(said);
            }
            source = cause.source();
        }
        text
    }
}
