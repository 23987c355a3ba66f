use crate::{Role, Secret};

/// The tenant of the configured keys.
pub const DEFAULT_TENANT: &str = "default";

/// The users that the configuration knows. Others have keys that were made, or tokens of an identity provider.
#[derive(Debug, Clone)]
pub struct UserAuth {
    /// Off, everybody is an admin; the listener must be loopback then.
    pub enabled: bool,
    /// `auth.api_key`: a user of the tenant `default`.
    pub api_key: Option<Secret>,
    /// `auth.api_key_role`.
    pub api_key_role: Role,
    /// `auth.admin_api_key`.
    pub admin_api_key: Option<Secret>,
    /// `auth.admin_fallback_enabled`: without an admin key, the API key is one.
    pub admin_fallback: bool,
}

impl Default for UserAuth {
    fn default() -> Self {
        Self { enabled: false, api_key: None, api_key_role: Role::Api, admin_api_key: None, admin_fallback: false }
    }
}

/// A key of the configuration that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfiguredKey {
    Api,
    Admin,
}

impl UserAuth {
    /// The key that was sent, in whichever header.
    pub fn configured(&self, sent: &str) -> Option<(ConfiguredKey, Role)> {
        // Both are compared, so that time does not tell which one it was.
        let is_admin = self.admin_api_key.as_ref().is_some_and(|own| own.matches(sent));
        let is_api = self.api_key.as_ref().is_some_and(|own| own.matches(sent));
        let falls_back = self.admin_fallback && self.admin_api_key.is_none();
        match (is_admin, is_api) {
            (true, _) => Some((ConfiguredKey::Admin, Role::Admin)),
            (false, true) if falls_back => Some((ConfiguredKey::Api, Role::Admin)),
            (false, true) => Some((ConfiguredKey::Api, self.api_key_role)),
            (false, false) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_lead_to_their_roles() {
        let auth = |admin: &str, admin_fallback, api_key_role| UserAuth {
            enabled: true,
            api_key: Secret::new("user"),
            api_key_role,
            admin_api_key: Secret::new(admin),
            admin_fallback,
        };
        for (admin, fallback, role, sent, expected) in [
            ("admin", false, Role::Api, "user", Some(Role::Api)),
            ("admin", false, Role::Operator, "user", Some(Role::Operator)),
            ("admin", false, Role::Api, "admin", Some(Role::Admin)),
            ("admin", false, Role::Viewer, "admin", Some(Role::Admin)),
            ("admin", false, Role::Api, "other", None),
            ("admin", true, Role::Api, "user", Some(Role::Api)),
            ("", true, Role::Api, "user", Some(Role::Admin)),
            ("", false, Role::Api, "user", Some(Role::Api)),
            ("", false, Role::Api, "", None),
            ("", true, Role::Api, "", None),
        ] {
            let found = auth(admin, fallback, role).configured(sent).map(|(_, role)| role);
            assert_eq!(found, expected, "{admin} {fallback} {role:?} {sent}");
        }
    }
}
