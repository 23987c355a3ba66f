use crate::{AuthError, Role, Secret};

/// The tenant of the configured keys.
pub const DEFAULT_TENANT: &str = "default";

/// The users that the configuration knows. Others have keys that were made, or tokens of an identity provider.
#[derive(Debug, Clone, Default)]
pub struct UserAuth {
    /// `auth.enabled`. Off, everybody is an admin; the listener must be loopback then.
    pub enabled: bool,
    /// `auth.api_key`: a user of the tenant `default`.
    pub api_key: Option<Secret>,
    /// `auth.admin_api_key`.
    pub admin_api_key: Option<Secret>,
    /// `auth.admin_fallback_enabled`: without an admin key, the API key is one.
    pub admin_fallback: bool,
}

/// A key of the configuration that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfiguredKey {
    Api,
    Admin,
}

impl UserAuth {
    /// What was sent as `X-API-Key`, or as `X-Admin-API-Key`, which takes admin keys only.
    pub fn configured(&self, sent: &str, admin_only: bool) -> Option<(ConfiguredKey, Role)> {
        // Both are compared, so that time does not tell which one it was.
        let is_admin = self.admin_api_key.as_ref().is_some_and(|own| own.matches(sent));
        let is_api = self.api_key.as_ref().is_some_and(|own| own.matches(sent));
        let falls_back = self.admin_fallback && self.admin_api_key.is_none();
        match (is_admin, is_api) {
            (true, _) => Some((ConfiguredKey::Admin, Role::Admin)),
            (false, true) if falls_back => Some((ConfiguredKey::Api, Role::Admin)),
            (false, true) if !admin_only => Some((ConfiguredKey::Api, Role::Api)),
            _ => None,
        }
    }

    /// Which of the two headers counts: `X-Admin-API-Key` takes precedence over `X-API-Key`.
    pub fn choose<'a>(admin_key: Option<&'a str>, key: Option<&'a str>) -> Result<(&'a str, bool), AuthError> {
        match (admin_key, key) {
            (Some(sent), _) => Ok((sent, true)),
            (None, Some(sent)) => Ok((sent, false)),
            (None, None) => Err(AuthError::Missing),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_lead_to_their_roles() {
        let auth = |admin: &str, admin_fallback| UserAuth {
            enabled: true,
            api_key: Secret::new("user"),
            admin_api_key: Secret::new(admin),
            admin_fallback,
        };
        for (admin, fallback, sent, admin_only, expected) in [
            ("admin", false, "user", false, Some(Role::Api)),
            ("admin", false, "user", true, None),
            ("admin", false, "admin", false, Some(Role::Admin)),
            ("admin", false, "admin", true, Some(Role::Admin)),
            ("admin", false, "other", false, None),
            ("admin", true, "user", true, None),
            ("admin", true, "user", false, Some(Role::Api)),
            ("", true, "user", true, Some(Role::Admin)),
            ("", false, "user", true, None),
            ("", false, "", true, None),
        ] {
            let found = auth(admin, fallback).configured(sent, admin_only).map(|(_, role)| role);
            assert_eq!(found, expected, "{admin} {fallback} {sent} {admin_only}");
        }
    }

    #[test]
    fn the_admin_header_goes_first() {
        assert_eq!(UserAuth::choose(Some("a"), Some("b")), Ok(("a", true)));
        assert_eq!(UserAuth::choose(None, Some("b")), Ok(("b", false)));
        assert_eq!(UserAuth::choose(None, None), Err(AuthError::Missing));
    }
}
