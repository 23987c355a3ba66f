//! Tenants, their members, and the policies on what their sandboxes may be.

use serde::{Deserialize, Serialize};

use super::lenient;

/// Body of `PUT /api/v1/admin/tenants/{id}/members/{user}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MemberWrite {
    /// `viewer`, `api`, `operator`, `tenant_admin` or `admin`.
    #[serde(default, deserialize_with = "lenient::value")]
    pub role: String,
}

/// Body of `POST /api/v1/admin/tenants/{id}/members`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MemberCreate {
    #[serde(default, deserialize_with = "lenient::value")]
    pub user_id: String,
    /// As in [`MemberWrite`].
    #[serde(default, deserialize_with = "lenient::value")]
    pub role: String,
}

/// A user that is listed in a tenant. What callers may do is decided by their keys and tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Member {
    pub tenant_id: String,
    pub user_id: String,
    pub role: String,
    #[serde(default)]
    pub created_at: String,
}

/// Body of `POST /api/v1/admin/tenants/{id}/policies`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PolicyWrite {
    /// `image`, `provider` or `network`.
    #[serde(default, deserialize_with = "lenient::value")]
    pub resource_type: String,
    /// `allow` or `deny`.
    #[serde(default, deserialize_with = "lenient::value")]
    pub effect: String,
    /// A glob; `*` stops at `/`.
    #[serde(default, deserialize_with = "lenient::value")]
    pub pattern: String,
    /// Lower first; default 10.
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
}

/// A rule on the resolved image, provider or network. The first match decides, and none permits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Policy {
    /// `pol-` and 8 hexadecimal digits.
    pub id: String,
    /// Empty: every tenant.
    #[serde(default)]
    pub tenant_id: String,
    pub resource_type: String,
    pub effect: String,
    pub pattern: String,
    pub priority: i64,
    #[serde(default)]
    pub created_at: String,
}

/// Answers come wrapped in an object with the name of what is in it.
macro_rules! wrapped {
    ($($name:ident { $field:ident: $type:ty }),+ $(,)?) => {$(
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        pub struct $name {
            pub $field: $type,
        }
    )+};
}

wrapped! {
    MemberBody { member: Member },
    MembersBody { members: Vec<Member> },
    PolicyBody { policy: Policy },
    PoliciesBody { policies: Vec<Policy> },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_members_and_policies_are_wrapped() {
        let policy = Policy {
            id: "pol-0a1b2c3d".into(),
            tenant_id: "acme".into(),
            resource_type: "image".into(),
            effect: "deny".into(),
            pattern: "evil/*".into(),
            priority: 10,
            created_at: "c".into(),
        };
        assert_eq!(
            serde_json::to_string(&PolicyBody { policy }).unwrap(),
            r#"{"policy":{"id":"pol-0a1b2c3d","tenant_id":"acme","resource_type":"image","effect":"deny","pattern":"evil/*","priority":10,"created_at":"c"}}"#
        );
        assert_eq!(serde_json::to_string(&MembersBody { members: vec![] }).unwrap(), r#"{"members":[]}"#);
        let write: PolicyWrite = serde_json::from_str(r#"{"effect":"deny","priority":0,"pattern":null}"#).unwrap();
        assert_eq!((write.priority, write.pattern.as_str()), (None, ""));
    }
}
