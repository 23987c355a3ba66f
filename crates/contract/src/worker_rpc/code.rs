/// The class of a failed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    Invalid,
    Draining,
    LeaseStale,
    LeaseExpired,
    ProviderUnavailable,
    NotFound,
    Destroyed,
    Timeout,
    Internal,
}

impl Code {
    pub const ALL: [Self; 9] = [
        Self::Invalid,
        Self::Draining,
        Self::LeaseStale,
        Self::LeaseExpired,
        Self::ProviderUnavailable,
        Self::NotFound,
        Self::Destroyed,
        Self::Timeout,
        Self::Internal,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::Draining => "draining",
            Self::LeaseStale => "lease_stale",
            Self::LeaseExpired => "lease_expired",
            Self::ProviderUnavailable => "provider_unavailable",
            Self::NotFound => "not_found",
            Self::Destroyed => "destroyed",
            Self::Timeout => "timeout",
            Self::Internal => "internal",
        }
    }

    /// The class of an answer: its `code` decides, and without one the status does.
    pub fn of(code: Option<&str>, status: u16) -> Self {
        match code.filter(|code| !code.is_empty()) {
            Some(code) => Self::ALL.into_iter().find(|known| known.as_str() == code).unwrap_or(Self::Internal),
            None => match status {
                400 | 413 => Self::Invalid,
                403 | 409 => Self::LeaseStale,
                404 => Self::NotFound,
                503 => Self::ProviderUnavailable,
                504 => Self::Timeout,
                _ => Self::Internal,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_decides_and_the_status_replaces_a_missing_one() {
        for code in Code::ALL {
            assert_eq!(Code::of(Some(code.as_str()), 200), code);
        }
        assert_eq!(Code::of(Some("news"), 404), Code::Internal);
        assert_eq!(Code::of(Some(""), 404), Code::NotFound);
        for (status, code) in [
            (400, Code::Invalid),
            (413, Code::Invalid),
            (403, Code::LeaseStale),
            (404, Code::NotFound),
            (409, Code::LeaseStale),
            (503, Code::ProviderUnavailable),
            (504, Code::Timeout),
            (500, Code::Internal),
            (501, Code::Internal),
        ] {
            assert_eq!(Code::of(None, status), code, "{status}");
        }
    }
}
