use crate::{AuthError, Secret};

/// A user that was let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum User {
    /// Sees every tenant.
    Admin,
    /// Sees its own.
    Tenant(String),
}

/// Which users are let in.
#[derive(Debug, Clone, Default)]
pub struct UserAuth {
    /// `auth.enabled`. Off, everybody is an admin; the listener must be loopback then.
    pub enabled: bool,
    /// `auth.api_key`: a user of the tenant `default`.
    pub api_key: Option<Secret>,
    /// `auth.admin_api_key`.
    pub admin_api_key: Option<Secret>,
}

/// The tenant of the configured key.
pub const DEFAULT_TENANT: &str = "default";

impl UserAuth {
    /// `X-Admin-API-Key` goes before `X-API-Key`.
    pub fn authenticate(&self, admin_key: Option<&str>, key: Option<&str>) -> Result<User, AuthError> {
        let is = |own: &Option<Secret>, sent: &str| own.as_ref().is_some_and(|own| own.matches(sent));
        if !self.enabled {
            return Ok(User::Admin);
        }
        match (admin_key, key) {
            (Some(sent), _) if is(&self.admin_api_key, sent) => Ok(User::Admin),
            (Some(_), _) => Err(AuthError::Invalid),
            (None, Some(sent)) if is(&self.admin_api_key, sent) => Ok(User::Admin),
            (None, Some(sent)) if is(&self.api_key, sent) => Ok(User::Tenant(DEFAULT_TENANT.to_owned())),
            (None, Some(_)) => Err(AuthError::Invalid),
            (None, None) => Err(AuthError::Missing),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_lead_to_their_principals() {
        let auth = UserAuth { enabled: true, api_key: Secret::new("user"), admin_api_key: Secret::new("admin") };
        let tenant = Ok(User::Tenant("default".to_owned()));
        assert_eq!(auth.authenticate(None, Some("user")), tenant);
        assert_eq!(auth.authenticate(None, Some("admin")), Ok(User::Admin));
        assert_eq!(auth.authenticate(Some("admin"), Some("user")), Ok(User::Admin));
        assert_eq!(auth.authenticate(Some("user"), None), Err(AuthError::Invalid));
        assert_eq!(auth.authenticate(None, Some("other")), Err(AuthError::Invalid));
        assert_eq!(auth.authenticate(None, None), Err(AuthError::Missing));
    }

    #[test]
    fn with_auth_off_everybody_is_an_admin() {
        assert_eq!(UserAuth::default().authenticate(None, None), Ok(User::Admin));
    }

    #[test]
    fn a_missing_key_in_the_configuration_matches_nothing() {
        let auth = UserAuth { enabled: true, ..Default::default() };
        assert_eq!(auth.authenticate(None, Some("")), Err(AuthError::Invalid));
    }
}
