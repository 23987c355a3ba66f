//! Tokens of people, made by an OpenID Connect provider.

mod keys;

pub use keys::{JwkSet, OidcKeys, StaticKey};

use serde_json::Value;

use crate::Role;
use crate::jwt::{Accepts, Algorithm, Claims, TokenError, Unverified, check_times};

/// The most leeway that a provider's clock gets, and the default.
///
/// Unlike for our own tokens the two clocks belong to different people, so 2 s would lock users out over an ordinary
/// drift. 30 s is what worker tokens get. More would only lengthen the life of a token that should be dead.
pub const OIDC_MAX_LEEWAY_S: u32 = 30;

/// Prefixes of worker tokens. They look like tokens of three parts and are never judged here.
const WORKER_PREFIXES: [&str; 2] = ["stacyvm-worker-v1.", "tenure-worker-v1."];

const ALGORITHMS: [Algorithm; 4] = [Algorithm::Rs256, Algorithm::Es256, Algorithm::Es384, Algorithm::Es512];

/// Access tokens by RFC 9068 name their own type; so do logout tokens, which must not pass.
const TYPES: [&str; 3] = ["jwt", "at+jwt", "application/at+jwt"];

/// `sub` becomes the owner of what the user makes; OpenID Connect caps it at this.
const MAX_SUBJECT_BYTES: usize = 255;
const MAX_TENANT_BYTES: usize = 128;

/// How tokens of the provider are judged.
#[derive(Debug, Clone)]
pub struct OidcVerifier {
    /// `iss`, letter by letter.
    pub issuer: String,
    /// Has to be among `aud`. `None` takes tokens for anybody, which lint warns about.
    pub audience: Option<String>,
    /// The claim with the groups: a name, or a path with dots such as `realm_access.roles`.
    pub groups_claim: String,
    /// The claim with the tenant, likewise.
    pub tenant_claim: String,
    pub admin_groups: Vec<String>,
    pub operator_groups: Vec<String>,
    pub viewer_groups: Vec<String>,
    pub keys: OidcKeys,
    /// Values above [`OIDC_MAX_LEEWAY_S`] count as that.
    pub leeway_s: u32,
}

/// A user as the provider knows them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OidcUser {
    /// `sub`, the owner of what this user makes.
    pub subject: String,
    pub tenant: Option<String>,
    /// The highest role that one of the groups leads to. `None` may do nothing.
    pub role: Option<Role>,
    pub expires_at_s: i64,
}

impl OidcVerifier {
    pub fn verify(&self, token: &str, now_s: i64) -> Result<OidcUser, TokenError> {
        if WORKER_PREFIXES.iter().any(|prefix| token.starts_with(prefix)) {
            return Err(TokenError::WorkerToken);
        }
        let token = Unverified::parse(token, &Accepts { algorithms: &ALGORITHMS, types: &TYPES })?;
        let claims = self.keys.open(&token)?;
        claims.check_issuer(&self.issuer)?;
        if let Some(audience) = &self.audience {
            claims.check_audience(audience)?;
        }
        let expires_at_s = claims.loose_date("exp")?;
        let not_before_s = claims.get("nbf").map(|_| claims.loose_date("nbf")).transpose()?;
        // A token that was made later than now comes from a clock that cannot be trusted with its other times.
        let issued_at_s = claims.get("iat").map(|_| claims.loose_date("iat")).transpose()?;
        let begins_s = not_before_s.into_iter().chain(issued_at_s).max();
        check_times(begins_s, expires_at_s, now_s, self.leeway_s.min(OIDC_MAX_LEEWAY_S))?;
        Ok(OidcUser {
            subject: name(claims.text("sub")?, MAX_SUBJECT_BYTES).ok_or(TokenError::InvalidClaim("sub"))?,
            tenant: self.tenant(&claims)?,
            role: self.role(&claims),
            expires_at_s,
        })
    }

    /// A tenant that cannot be read is an error and not "none": the caller may have a default for those without.
    fn tenant(&self, claims: &Claims) -> Result<Option<String>, TokenError> {
        let Some(tenant) = at_path(claims, &self.tenant_claim) else { return Ok(None) };
        let tenant = tenant.as_str().and_then(|tenant| name(tenant, MAX_TENANT_BYTES));
        tenant.map(Some).ok_or(TokenError::InvalidClaim("tenant"))
    }

    fn role(&self, claims: &Claims) -> Option<Role> {
        let groups = at_path(claims, &self.groups_claim).map(groups_of).unwrap_or_default();
        let among = |wanted: &[String]| groups.iter().any(|group| wanted.iter().any(|wanted| wanted == group));
        let highest_first = [
            (Role::Admin, &self.admin_groups),
            (Role::Operator, &self.operator_groups),
            (Role::Viewer, &self.viewer_groups),
        ];
        highest_first.into_iter().find(|(_, wanted)| among(wanted)).map(|(role, _)| role)
    }
}

/// The claim of this name, or else what the path with dots leads to. Names come first: some providers make theirs from
/// a URL, which has dots too.
fn at_path<'a>(claims: &'a Claims, path: &str) -> Option<&'a Value> {
    claims.get(path).or_else(|| {
        let mut steps = path.split('.');
        let first = claims.get(steps.next()?)?;
        steps.try_fold(first, |value, step| value.get(step).filter(|value| !value.is_null()))
    })
}

/// A list of texts, or one text with spaces or commas between the groups.
fn groups_of(value: &Value) -> Vec<&str> {
    match value {
        Value::Array(list) => list.iter().filter_map(Value::as_str).collect(),
        Value::String(text) => text.split([' ', ',']).filter(|group| !group.is_empty()).collect(),
        _ => Vec::new(),
    }
}

fn name(text: &str, max_bytes: usize) -> Option<String> {
    let fits = !text.is_empty() && text.len() <= max_bytes && !text.chars().any(char::is_control);
    (fits && text.trim() == text).then(|| text.to_owned())
}
