//! What a signed token is for: its audience, and its scopes.

use std::fmt;

/// Who a signed token is shown to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// Shown by a worker to the control plane.
    ControlPlane,
    /// Shown by the control plane to a worker.
    Rpc,
}

impl Audience {
    pub const ALL: [Self; 2] = [Self::ControlPlane, Self::Rpc];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ControlPlane => "worker:control-plane",
            Self::Rpc => "worker:rpc",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|audience| audience.as_str() == text)
    }
}

/// One thing that a worker credential allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    Heartbeat,
    Spawn,
    Destroy,
    Status,
    Exec,
    Files,
    Logs,
    Lease,
}

impl Scope {
    pub const ALL: [Self; 8] =
        [Self::Heartbeat, Self::Spawn, Self::Destroy, Self::Status, Self::Exec, Self::Files, Self::Logs, Self::Lease];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Heartbeat => "worker:heartbeat",
            Self::Spawn => "worker:spawn",
            Self::Destroy => "worker:destroy",
            Self::Status => "worker:status",
            Self::Exec => "worker:exec",
            Self::Files => "worker:files",
            Self::Logs => "worker:logs",
            Self::Lease => "worker:lease",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.as_str() == text)
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// A set of scopes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Scopes(u8);

impl Scopes {
    pub const fn all() -> Self {
        Self(u8::MAX)
    }

    pub const fn none() -> Self {
        Self(0)
    }

    /// What a `scopes` claim grants. Without the claim that is everything; a claim that lists no scope we know grants
    /// nothing, so that a list can only narrow.
    pub fn of_claim(listed: Option<&[String]>) -> Self {
        match listed {
            None => Self::all(),
            Some(listed) => listed.iter().filter_map(|text| Scope::parse(text)).collect(),
        }
    }

    pub const fn contains(self, scope: Scope) -> bool {
        self.0 & scope.bit() != 0
    }

    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn iter(self) -> impl Iterator<Item = Scope> {
        Scope::ALL.into_iter().filter(move |scope| self.contains(*scope))
    }
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<T: IntoIterator<Item = Scope>>(scopes: T) -> Self {
        Self(scopes.into_iter().fold(0, |bits, scope| bits | scope.bit()))
    }
}

impl fmt::Debug for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_contract_and_read_back() {
        let names = Scope::ALL.map(Scope::as_str).join(" ");
        assert_eq!(
            names,
            "worker:heartbeat worker:spawn worker:destroy worker:status worker:exec worker:files worker:logs worker:lease"
        );
        for scope in Scope::ALL {
            assert_eq!(Scope::parse(scope.as_str()), Some(scope));
        }
        for audience in Audience::ALL {
            assert_eq!(Audience::parse(audience.as_str()), Some(audience));
        }
        for text in ["", "worker:", "Worker:exec", " worker:exec", "admin"] {
            assert_eq!((Scope::parse(text), Audience::parse(text)), (None, None), "{text}");
        }
    }

    #[test]
    fn a_list_of_scopes_can_only_narrow() {
        let claim = |names: &[&str]| {
            let listed: Vec<String> = names.iter().map(ToString::to_string).collect();
            Scopes::of_claim(Some(&listed)).iter().collect::<Vec<_>>()
        };
        assert_eq!(Scopes::of_claim(None), Scopes::all());
        assert_eq!(Scopes::all().iter().count(), 8);
        assert_eq!(claim(&["worker:lease", "worker:lease", "worker:heartbeat"]), [Scope::Heartbeat, Scope::Lease]);
        assert_eq!(claim(&["admin", "worker:lease"]), [Scope::Lease]);
        assert_eq!(claim(&["admin", "worker:everything"]), []);
        assert_eq!(claim(&[]), []);
        assert!(Scopes::none().is_empty() && !Scopes::none().contains(Scope::Exec));
    }
}
