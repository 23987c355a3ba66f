/// What a user is. The order is the order of power: each role may do what the ones before it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    Viewer,
    Api,
    Operator,
    TenantAdmin,
    Admin,
}

/// What a route of the user API asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UserScope {
    /// `read:*`
    Read,
    /// `api:*`
    Api,
    /// `operator:*`
    Operator,
    /// `tenant:admin`
    TenantAdmin,
    /// What only an admin has: every tenant, and the routes below `/admin`.
    Admin,
}

impl UserScope {
    /// As refusals and the OpenAPI document name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Api => "api",
            Self::Operator => "operator",
            Self::TenantAdmin => "tenant:admin",
            Self::Admin => "admin",
        }
    }
}

impl Role {
    pub const ALL: [Self; 5] = [Self::Viewer, Self::Api, Self::Operator, Self::TenantAdmin, Self::Admin];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Api => "api",
            Self::Operator => "operator",
            Self::TenantAdmin => "tenant_admin",
            Self::Admin => "admin",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == text)
    }

    /// Whether this role has that scope.
    pub fn may(self, scope: UserScope) -> bool {
        let least = match scope {
            UserScope::Read => Self::Viewer,
            UserScope::Api => Self::Api,
            UserScope::Operator => Self::Operator,
            UserScope::TenantAdmin => Self::TenantAdmin,
            UserScope::Admin => Self::Admin,
        };
        self >= least
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_role_has_the_scopes_of_the_table_and_no_other() {
        let scopes = [UserScope::Read, UserScope::Api, UserScope::Operator, UserScope::TenantAdmin, UserScope::Admin];
        for (role, expected) in [
            (Role::Viewer, [true, false, false, false, false]),
            (Role::Api, [true, true, false, false, false]),
            (Role::Operator, [true, true, true, false, false]),
            (Role::TenantAdmin, [true, true, true, true, false]),
            (Role::Admin, [true, true, true, true, true]),
        ] {
            assert_eq!(scopes.map(|scope| role.may(scope)), expected, "{role:?}");
        }
    }

    #[test]
    fn roles_are_read_as_they_are_written() {
        for (role, text) in Role::ALL.into_iter().zip(["viewer", "api", "operator", "tenant_admin", "admin"]) {
            assert_eq!(role.as_str(), text);
            assert_eq!(Role::parse(text), Some(role));
        }
        for odd in ["", "Admin", "root", "admin ", "tenant-admin"] {
            assert_eq!(Role::parse(odd), None, "{odd:?}");
        }
    }
}
