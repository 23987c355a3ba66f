use super::Kind::{Bool, Duration, File, Secret, SecretMap, Secrets, Text, Texts};
use super::{Key, keys};

pub const KEYS: &[Key] = keys! {
    "auth.enabled" Bool, "false", Reload,
        "Asks users for a key. Without it everybody who reaches the API is an admin of the tenant `default`, and only a loopback address is listened on.";
    "auth.api_key" Secret, "", Reload,
        "Key of users, sent as `X-API-Key`.";
    "auth.api_key_file" File, "", Reload,
        "File that holds `auth.api_key`.";
    "auth.admin_api_key" Secret, "", Reload,
        "Key of admins, sent as `X-Admin-API-Key`.";
    "auth.admin_api_key_file" File, "", Reload,
        "File that holds `auth.admin_api_key`.";
    "auth.admin_fallback_enabled" Bool, "false", Reload,
        "Lets `auth.api_key` into admin endpoints while no admin key is set.";
    "auth.admin_audit_retention" Duration, "0s", Restart,
        "How long the record of admin calls is kept. 0 keeps it for ever.";

    "auth.oidc_enabled" Bool, "false", Reload,
        "Accepts bearer tokens of an identity provider.";
    "auth.oidc_issuer" Text, "", Reload,
        "Issuer that a token has to name in `iss`.";
    "auth.oidc_audience" Text, "", Reload,
        "Audience that a token has to name in `aud`. Without it any audience is accepted.";
    "auth.oidc_jwks_url" Text, "", Reload,
        "Where the keys of the issuer are published.";
    "auth.oidc_public_key" Text, "", Reload,
        "Public key of the issuer in PEM, in place of `auth.oidc_jwks_url`.";
    "auth.oidc_public_key_file" File, "", Reload,
        "File that holds `auth.oidc_public_key`.";
    "auth.oidc_groups_claim" Text, "groups", Reload,
        "Claim that lists the groups of a user.";
    "auth.oidc_tenant_claim" Text, "tenant_id", Reload,
        "Claim that names the tenant of a user.";
    "auth.oidc_admin_groups" Texts, "", Reload,
        "Groups whose members are admins.";
    "auth.oidc_operator_groups" Texts, "", Reload,
        "Groups whose members are operators.";
    "auth.oidc_viewer_groups" Texts, "", Reload,
        "Groups whose members may look and change nothing.";

    "auth.worker_token" Secret, "", Reload,
        "Token that workers share. It is refused for a worker that has an entry in `auth.worker_tokens`.";
    "auth.worker_token_file" File, "", Reload,
        "File that holds `auth.worker_token`.";
    "auth.worker_token_previous" Secret, "", Reload,
        "Token that workers shared before. It is accepted beside `auth.worker_token`, so that workers can change over one by one.";
    "auth.worker_token_previous_file" File, "", Reload,
        "File that holds `auth.worker_token_previous`.";
    "auth.worker_tokens" SecretMap, "", Reload,
        "Tokens of single workers, by worker id.";
    "auth.worker_signing_key" Secret, "", Reload,
        "Key that signs worker tokens with HMAC-SHA256, and verifies them.";
    "auth.worker_signing_key_file" File, "", Reload,
        "File that holds `auth.worker_signing_key`.";
    "auth.worker_signing_keys" Secrets, "", Reload,
        "Keys that verify worker tokens and sign none: the former key, while its tokens live.";
    "auth.worker_private_key_file" File, "", Reload,
        "Ed25519 private key, in PEM, that signs worker tokens. Only the control plane holds it.";
    "auth.worker_public_keys" Texts, "", Reload,
        "Ed25519 public keys that verify worker tokens: 32 bytes in base64 or base64url, or PEM.";
    "auth.worker_public_keys_file" File, "", Reload,
        "File that holds `auth.worker_public_keys`: one key per line, or PEM.";
    "auth.worker_revoked_token_ids" Texts, "", Reload,
        "Ids (`jti`) of signed worker tokens that are refused.";
    "auth.worker_revoked_token_ids_file" File, "", Reload,
        "File that holds `auth.worker_revoked_token_ids`: one id per line, `#` begins a comment.";
    "auth.worker_bootstrap_keys" SecretMap, "", Reload,
        "Keys with which a worker fetches its own signed token, by worker id: the key itself, or `sha256:` and the hexadecimal digest of it.";
    "auth.legacy_worker_tokens" Bool, "false", Reload,
        "Accepts signed worker tokens without `aud` or `iat`, from older issuers.";
    "auth.anonymous_workers" Bool, "false", Reload,
        "Lets workers in without a token. Loopback addresses only.";
};
