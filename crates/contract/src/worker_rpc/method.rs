/// Whether a call carries a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseRule {
    Unused,
    /// Checked when it is there.
    Optional,
    Required,
}

/// A method of the contract, or an additive one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method {
    Heartbeat,
    Spawn,
    Destroy,
    Status,
    Exec,
    ExecStream,
    FileWrite,
    FileRead,
    FileList,
    FileDelete,
    FileMove,
    FileChmod,
    FileStat,
    FileGlob,
    Logs,
    RenewLease,
    Shutdown,
    /// Additive.
    Undrain,
    /// Additive.
    Stats,
    /// Additive.
    Snapshot,
    /// Additive: replaces the writable layer of a live sandbox by a snapshot that the worker has.
    Restore,
}

impl Method {
    pub const ALL: [Self; 21] = [
        Self::Heartbeat,
        Self::Spawn,
        Self::Destroy,
        Self::Status,
        Self::Exec,
        Self::ExecStream,
        Self::FileWrite,
        Self::FileRead,
        Self::FileList,
        Self::FileDelete,
        Self::FileMove,
        Self::FileChmod,
        Self::FileStat,
        Self::FileGlob,
        Self::Logs,
        Self::RenewLease,
        Self::Shutdown,
        Self::Undrain,
        Self::Stats,
        Self::Snapshot,
        Self::Restore,
    ];

    /// The table of the contract: name, lease, scope.
    const fn row(self) -> (&'static str, LeaseRule, &'static str) {
        use LeaseRule::{Optional, Required, Unused};
        match self {
            Self::Heartbeat => ("worker.heartbeat", Unused, "worker:heartbeat"),
            Self::Spawn => ("worker.spawn", Required, "worker:spawn"),
            Self::Destroy => ("worker.destroy", Required, "worker:destroy"),
            Self::Status => ("worker.status", Unused, "worker:status"),
            Self::Exec => ("worker.exec", Optional, "worker:exec"),
            Self::ExecStream => ("worker.exec_stream", Optional, "worker:exec"),
            Self::FileWrite => ("worker.file_write", Optional, "worker:files"),
            Self::FileRead => ("worker.file_read", Optional, "worker:files"),
            Self::FileList => ("worker.file_list", Optional, "worker:files"),
            Self::FileDelete => ("worker.file_delete", Optional, "worker:files"),
            Self::FileMove => ("worker.file_move", Optional, "worker:files"),
            Self::FileChmod => ("worker.file_chmod", Optional, "worker:files"),
            Self::FileStat => ("worker.file_stat", Optional, "worker:files"),
            Self::FileGlob => ("worker.file_glob", Optional, "worker:files"),
            Self::Logs => ("worker.logs", Unused, "worker:logs"),
            Self::RenewLease => ("worker.renew_lease", Required, "worker:lease"),
            Self::Shutdown => ("worker.shutdown", Unused, "worker:spawn"),
            Self::Undrain => ("worker.undrain", Unused, "worker:spawn"),
            Self::Stats => ("worker.stats", Unused, "worker:status"),
            Self::Snapshot => ("worker.snapshot", Required, "worker:files"),
            Self::Restore => ("worker.restore", Required, "worker:files"),
        }
    }

    pub const fn as_str(self) -> &'static str {
        self.row().0
    }

    pub const fn lease(self) -> LeaseRule {
        self.row().1
    }

    /// The scope that a token needs.
    pub const fn scope(self) -> &'static str {
        self.row().2
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.as_str() == name)
    }

    /// Whether a call must have parameters.
    pub const fn has_params(self) -> bool {
        !matches!(self, Self::Shutdown | Self::Undrain)
    }

    /// Whether running a call twice is the same as running it once, apart from what it reads.
    pub const fn is_read_only(self) -> bool {
        matches!(
            self,
            Self::Status | Self::FileRead | Self::FileList | Self::FileStat | Self::FileGlob | Self::Logs | Self::Stats
        )
    }

    /// The capability that a worker lists if it knows this method; none for the methods of the contract.
    pub const fn capability(self) -> Option<&'static str> {
        match self {
            Self::Undrain => Some("undrain"),
            Self::Stats => Some("stats"),
            Self::Snapshot | Self::Restore => Some("snapshots"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_read_back_and_seventeen_need_no_capability() {
        for method in Method::ALL {
            assert_eq!(Method::parse(method.as_str()), Some(method));
        }
        assert_eq!(Method::ALL.iter().filter(|method| method.capability().is_none()).count(), 17);
        for name in ["", "worker.", "worker.Spawn", "spawn", "worker.spawn "] {
            assert_eq!(Method::parse(name), None, "{name}");
        }
    }
}
