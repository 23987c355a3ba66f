//! A user that was let in: what it may see and do.

use std::sync::Arc;

use axum::http::HeaderMap;
use tenure_auth::{DEFAULT_TENANT, Role, UserScope};
use tenure_core::command::Reach;

use crate::error::{BadRequest, Fault, Forbidden};
use crate::validate;

/// The actor where nobody has to show a credential.
const ANONYMOUS: &str = "anonymous";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    pub role: Role,
    /// `None` for all of them.
    pub tenant: Option<Arc<str>>,
    /// Only what belongs to this owner.
    pub owner: Option<Arc<str>>,
    /// Who owns what it makes. `X-User-ID` can name no other.
    pub subject: Option<Arc<str>>,
    /// Whom the audit names: the key or the subject, never a header that the caller chose.
    pub actor: Arc<str>,
}

impl Caller {
    /// With `auth.enabled: false` everybody is an admin.
    pub fn anybody() -> Self {
        Self { role: Role::Admin, tenant: None, owner: None, subject: None, actor: ANONYMOUS.into() }
    }

    /// The key or token of the request, as audits name it; `None` without authentication.
    pub fn credential(&self) -> Option<Arc<str>> {
        (*self.actor != *ANONYMOUS).then(|| Arc::clone(&self.actor))
    }

    /// Somebody who knows the name of a port of a sandbox, where that is enough. Only the proxy is reached this way.
    pub fn of_preview() -> Self {
        Self { role: Role::Viewer, actor: "preview".into(), ..Self::anybody() }
    }

    pub fn require(&self, scope: UserScope) -> Result<(), Fault> {
        if self.role.may(scope) { Ok(()) } else { Err(Forbidden::UserScope { role: self.role, scope }.into()) }
    }

    /// `X-Tenant-ID` and `X-User-ID` can take away and never add.
    pub fn narrowed(mut self, headers: &HeaderMap) -> Result<Self, Fault> {
        if let Some(asked) = header(headers, "x-tenant-id")? {
            let asked = validate::scope(asked, "X-Tenant-ID").map_err(bad_header)?;
            match &self.tenant {
                Some(own) if *own != asked => return Err(Forbidden::Tenant.into()),
                _ => self.tenant = Some(asked),
            }
        }
        if let Some(asked) = header(headers, "x-user-id")? {
            let asked = validate::owner(asked, "X-User-ID").map_err(bad_header)?;
            if self.subject.as_ref().is_some_and(|own| *own != asked) {
                return Err(Forbidden::Owner.into());
            }
            self.owner = Some(Arc::clone(&asked));
            self.subject = Some(asked);
        }
        Ok(self)
    }

    /// What it can see. Whatever lies outside is as if it did not exist.
    pub fn reach(&self) -> Reach {
        match (&self.tenant, &self.owner) {
            (None, None) => Reach::All,
            (Some(tenant), None) => Reach::Tenant(Arc::clone(tenant)),
            (_, Some(owner)) => Reach::Owner { tenant: self.home(), owner: Arc::clone(owner) },
        }
    }

    /// The same for what has a tenant and no owner.
    pub fn tenant_reach(&self) -> Reach {
        match self.reach() {
            Reach::Owner { tenant, .. } => Reach::Tenant(tenant),
            reach => reach,
        }
    }

    /// Whose queues it sees beside the shared ones; `None` for all.
    pub fn queues_of(&self) -> Option<&str> {
        match (&self.tenant, &self.owner) {
            (Some(tenant), _) => Some(tenant),
            (None, Some(_)) => Some(DEFAULT_TENANT),
            (None, None) => None,
        }
    }

    /// The tenant that new things belong to, unless the request names one.
    pub fn home(&self) -> Arc<str> {
        self.tenant.clone().unwrap_or_else(|| DEFAULT_TENANT.into())
    }

    /// Whose share of the server it uses. Who sees all tenants uses that of none.
    pub fn share(&self) -> Arc<str> {
        self.tenant.clone().unwrap_or_else(|| "".into())
    }

    /// Which tenant a request means that names one, or none.
    pub fn tenant_for(&self, asked: Option<&str>, field: impl Into<String>) -> Result<Arc<str>, Fault> {
        match (&self.tenant, asked) {
            (_, None) => Ok(self.home()),
            (None, Some(asked)) => validate::scope(asked, field),
            (Some(own), Some(asked)) if **own == *asked => Ok(Arc::clone(own)),
            (Some(_), Some(_)) => Err(Forbidden::Tenant.into()),
        }
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, Fault> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Fault::malformed(format!("{name} was sent more than once")));
    }
    value.to_str().map(Some).map_err(|_| Fault::malformed(format!("{name} is not plain text")))
}

fn bad_header(fault: Fault) -> Fault {
    match fault {
        Fault::Request(BadRequest::Invalid { field, message }) => Fault::malformed(format!("{field} {message}")),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(tenant: Option<&str>, owner: Option<&str>) -> Caller {
        let owner: Option<Arc<str>> = owner.map(Into::into);
        Caller {
            role: Role::Api,
            tenant: tenant.map(Into::into),
            owner: owner.clone(),
            subject: owner,
            actor: "k".into(),
        }
    }

    fn narrowed(caller: Caller, tenant: Option<&str>, user: Option<&str>) -> Result<Caller, Fault> {
        let mut headers = HeaderMap::new();
        for (name, value) in [("x-tenant-id", tenant), ("x-user-id", user)] {
            if let Some(value) = value {
                headers.insert(name, value.parse().unwrap());
            }
        }
        caller.narrowed(&headers)
    }

    #[test]
    fn headers_narrow_and_never_widen() {
        for (own, sent, expected) in [
            ((Some("a"), None), (None, None), Ok((Some("a"), None))),
            ((Some("a"), None), (Some("a"), Some("u")), Ok((Some("a"), Some("u")))),
            ((Some("a"), None), (Some("b"), None), Err(Forbidden::Tenant.into())),
            ((Some("a"), Some("u")), (None, Some("u")), Ok((Some("a"), Some("u")))),
            ((Some("a"), Some("u")), (None, Some("v")), Err(Forbidden::Owner.into())),
            ((None, None), (Some("b"), None), Ok((Some("b"), None))),
            ((None, None), (None, Some("u")), Ok((None, Some("u")))),
        ] {
            let found = narrowed(caller(own.0, own.1), sent.0, sent.1);
            assert_eq!(found, expected.map(|(tenant, owner)| caller(tenant, owner)), "{own:?} {sent:?}");
        }
    }

    #[test]
    fn an_owner_without_a_tenant_is_one_of_the_default_tenant() {
        let reach = caller(None, Some("u")).reach();
        assert_eq!(reach, Reach::Owner { tenant: "default".into(), owner: "u".into() });
    }

    #[test]
    fn strange_user_ids_are_refused() {
        let long = "x".repeat(129);
        for id in ["a b", "a/b", "a\\b", "", long.as_str()] {
            assert!(
                matches!(
                    narrowed(caller(None, None), None, Some(id)),
                    Err(Fault::Request(BadRequest::Malformed { .. }))
                ),
                "{id}"
            );
        }
        assert!(narrowed(caller(None, None), Some("Not A Tenant"), None).is_err());
    }
}
