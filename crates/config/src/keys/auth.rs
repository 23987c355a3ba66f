use super::Kind::{Bool, Choice, Duration, File, FlagOrTexts, Secret, SecretMap, Secrets, Text, Texts};
use super::{Key, keys};

pub const KEYS: &[Key] = keys! {
    "auth.enabled" Bool, "", Reload,
        "Requires a key from users. If false, everyone who reaches the API is an admin of all tenants, and the server listens on loopback addresses only. Default: true if a key of users or OIDC is set, else false.";
    "auth.api_key" Secret, "", Reload,
        "API key for users, sent as `X-API-Key`. Its tenant is `default`.";
    "auth.api_key_file" File, "", Reload,
        "File with `auth.api_key`.";
    "auth.api_key_role" Choice(&["viewer", "api", "operator"]), "api", Reload,
        "Role of `auth.api_key`.";
    "auth.admin_api_key" Secret, "", Reload,
        "API key for admins, sent as `X-Admin-API-Key` or `X-API-Key`. It reaches all tenants.";
    "auth.admin_api_key_file" File, "", Reload,
        "File with `auth.admin_api_key`.";
    "auth.admin_fallback_enabled" Bool, "false", Reload,
        "Accepts `auth.api_key` on admin endpoints while no admin key is set.";
    "auth.admin_audit_retention" Duration, "0s", Restart,
        "How long the audit log of admin requests is kept. 0 keeps it forever.";

    "auth.oidc_enabled" Bool, "false", Reload,
        "Accepts bearer tokens of an identity provider.";
    "auth.oidc_issuer" Text, "", Reload,
        "Required issuer (`iss`) of a token.";
    "auth.oidc_audience" Text, "", Reload,
        "Required audience (`aud`) of a token. If unset, any audience is accepted.";
    "auth.oidc_jwks_url" Text, "", Reload,
        "URL of the issuer's key set: a public https address, unless `outbound` allows more.";
    "auth.oidc_public_key" Text, "", Reload,
        "Public key of the issuer in PEM, instead of `auth.oidc_jwks_url`.";
    "auth.oidc_public_key_file" File, "", Reload,
        "File with `auth.oidc_public_key`.";
    "auth.oidc_groups_claim" Text, "groups", Reload,
        "Claim that lists the groups of a user.";
    "auth.oidc_tenant_claim" Text, "tenant_id", Reload,
        "Claim that names the tenant of a user. A token without it is refused, unless the user is an admin or `auth.oidc_default_tenant` is set.";
    "auth.oidc_default_tenant" Text, "", Reload,
        "Tenant of users whose token has no tenant claim.";
    "auth.oidc_admin_groups" Texts, "", Reload,
        "Groups whose members are admins.";
    "auth.oidc_operator_groups" Texts, "", Reload,
        "Groups whose members are operators.";
    "auth.oidc_viewer_groups" Texts, "", Reload,
        "Groups whose members have read-only access.";

    "auth.worker_token" Secret, "", Reload,
        "Token shared by workers. It is not accepted for a worker with an entry in `auth.worker_tokens`.";
    "auth.worker_token_file" File, "", Reload,
        "File with `auth.worker_token`.";
    "auth.worker_token_previous" Secret, "", Reload,
        "Previous shared token. It is accepted in addition to `auth.worker_token`, so that workers can change one by one.";
    "auth.worker_token_previous_file" File, "", Reload,
        "File with `auth.worker_token_previous`.";
    "auth.worker_tokens" SecretMap, "", Reload,
        "Tokens of individual workers, by worker id.";
    "auth.worker_signing_key" Secret, "", Reload,
        "Key that signs worker tokens with HMAC-SHA256, and verifies them.";
    "auth.worker_signing_key_file" File, "", Reload,
        "File with `auth.worker_signing_key`.";
    "auth.worker_signing_keys" Secrets, "", Reload,
        "Additional keys that verify worker tokens but do not sign: the previous key, until its tokens have expired.";
    "auth.worker_private_key_file" File, "", Reload,
        "Ed25519 private key (PEM) that signs worker tokens. Only the control plane needs it.";
    "auth.worker_public_keys" Texts, "", Reload,
        "Ed25519 public keys that verify worker tokens: 32 bytes in base64 or base64url, or PEM.";
    "auth.worker_public_keys_file" File, "", Reload,
        "File with `auth.worker_public_keys`: one key per line, or PEM.";
    "auth.worker_revoked_token_ids" Texts, "", Reload,
        "Ids (`jti`) of revoked signed worker tokens.";
    "auth.worker_revoked_token_ids_file" File, "", Reload,
        "File with `auth.worker_revoked_token_ids`: one id per line, `#` starts a comment. The file must not be empty, so keep a comment in it.";
    "auth.worker_bootstrap_keys" SecretMap, "", Reload,
        "Keys with which workers request their own signed tokens, by worker id: the key itself, or `sha256:` and its hexadecimal digest.";
    "auth.legacy_worker_tokens" Bool, "false", Reload,
        "Accepts signed worker tokens without `aud` or `iat`, from older issuers.";
    "auth.anonymous_workers" FlagOrTexts, "false", Reload,
        "Accepts workers without a token: `true` on loopback addresses only, or networks such as `[10.1.0.0/16]` whose requests are accepted. The address is that of the connection, or the one that `server.trusted_proxies` report; the proxies themselves are not accepted.";
    "auth.accept_network_policy" Bool, "false", Reload,
        "Confirms that a network policy lets only workers send requests from the networks in `auth.anonymous_workers`. Without it `tenure config lint --production` fails.";
};
