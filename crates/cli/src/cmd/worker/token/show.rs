//! `tenure worker token inspect` and `verify`

use std::path::PathBuf;

use serde::Serialize;
use tenure_auth::worker::{Audience, ClaimSet, Scopes, SigningKey};
use tenure_auth::{Secret, WorkerKeys};

use super::{keys, now, print_json, read_token, refused, time};
use crate::exit::{Exit, Stop};

#[derive(Debug, clap::Args)]
pub struct InspectArgs {
    /// The token; with `-` it is read from standard input, where other users of this machine cannot see it
    #[arg(value_name = "TOKEN")]
    token: String,
}

#[derive(Debug, clap::Args)]
pub struct VerifyArgs {
    /// The token; with `-` it is read from standard input, where other users of this machine cannot see it
    #[arg(value_name = "TOKEN")]
    token: String,
    #[command(flatten)]
    signing: keys::SigningArgs,
    /// Additional valid signing key, such as the previous one; repeatable
    #[arg(long = "verification-key", value_name = "KEY", value_parser = keys::secret)]
    verification_keys: Vec<Secret>,
    /// File with an additional valid signing key; repeatable
    #[arg(long = "verification-key-file", value_name = "FILE")]
    verification_key_files: Vec<PathBuf>,
    /// File with an Ed25519 public key; repeatable
    #[arg(long = "public-key-file", value_name = "FILE")]
    public_key_files: Vec<PathBuf>,
    /// Audience that the token must be for: worker:control-plane or worker:rpc [default: either]
    #[arg(long, value_name = "NAME", value_parser = super::audience)]
    audience: Option<Audience>,
    /// Worker that the token must be for [default: any]
    #[arg(long, value_name = "ID", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    worker_id: Option<String>,
    /// Id of a revoked token; repeatable
    #[arg(long = "revoked-token-id", value_name = "ID", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    revoked_token_ids: Vec<String>,
}

/// In the order in which it is printed.
#[derive(Serialize)]
struct Shown {
    signature_verified: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    worker_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    token_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    audience: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    scopes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    issued_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_before: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
}

impl Shown {
    fn of(claims: ClaimSet, signature_verified: bool) -> anyhow::Result<Self> {
        Ok(Self {
            signature_verified,
            worker_id: claims.worker_id.unwrap_or_default(),
            token_id: claims.jti.unwrap_or_default(),
            audience: claims.aud.unwrap_or_default(),
            scopes: claims.scopes.unwrap_or_default(),
            issued_at: claims.iat.map(time).transpose()?,
            not_before: claims.nbf.map(time).transpose()?,
            expires_at: claims.exp.map(time).transpose()?,
        })
    }
}

pub fn inspect(args: InspectArgs) -> anyhow::Result<Exit> {
    let claims = ClaimSet::inspect(&read_token(&args.token)?).map_err(refused)?;
    print_json(&Shown::of(claims, false)?)?;
    Ok(Exit::Ok)
}

pub fn verify(args: VerifyArgs) -> anyhow::Result<Exit> {
    let mut keys = given_keys(&args)?;
    let mut revoked: Vec<String> = args.revoked_token_ids.iter().map(|id| id.trim().to_owned()).collect();
    match keys::configured() {
        Ok(configured) => {
            // Keys that are given take the place of those of the configuration. What it revokes is refused in any case.
            if !keys.can_verify() {
                keys = configured.keys;
            }
            revoked.extend(configured.revoked);
        }
        Err(error) if !keys.can_verify() => return Err(error),
        Err(error) => eprintln!("warning: the revocations in the configuration are unknown: {error:#}"),
    }
    if !keys.can_verify() {
        return Err(Stop::usage("no key to verify with")
            .hint(
                "give --signing-key-file, --verification-key-file or --public-key-file, or set auth.worker_signing_key",
            )
            .into());
    }
    let token = read_token(&args.token)?;
    let is_revoked = |id: &str| revoked.iter().any(|revoked| revoked == id);
    let claims = keys.verify(&token, now(), args.audience, args.worker_id.as_deref(), &is_revoked).map_err(refused)?;
    print_json(&Shown::of(claims.stated, true)?)?;
    if let Some(warning) = warning(claims.scopes) {
        eprintln!("warning: {warning}");
    }
    Ok(Exit::Ok)
}

/// Said of a token that is good and good for nothing: what is printed of it may look as if it had every scope.
fn warning(scopes: Scopes) -> Option<&'static str> {
    scopes.is_empty().then_some("none of the scopes in the token exists: it grants nothing")
}

/// The keys of flags and environment.
fn given_keys(args: &VerifyArgs) -> anyhow::Result<WorkerKeys> {
    let mut keys = WorkerKeys { active: args.signing.given()?, ..WorkerKeys::default() };
    keys.rotation.extend(args.verification_keys.iter().filter_map(|key| SigningKey::new(key.reveal())));
    for path in &args.verification_key_files {
        keys.rotation.push(keys::signing_key_in("--verification-key-file", path)?);
    }
    for path in &args.public_key_files {
        keys.public.push(keys::public_key_in("--public-key-file", path)?);
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(json: &str) -> String {
        let claims: ClaimSet = serde_json::from_str(json).unwrap();
        serde_json::to_string(&Shown::of(claims, true).unwrap()).unwrap()
    }

    #[test]
    fn a_list_of_scopes_is_shown_as_it_stands_and_an_empty_one_warned_of() {
        assert_eq!(shown(r#"{"scopes":["admin"]}"#), r#"{"signature_verified":true,"scopes":["admin"]}"#);
        assert_eq!(shown(r#"{"scopes":[]}"#), r#"{"signature_verified":true}"#);
        let listed = ["admin".to_owned()];
        assert!(warning(Scopes::of_claim(Some(&listed))).is_some());
        assert!(warning(Scopes::of_claim(Some(&[]))).is_some());
        assert_eq!(warning(Scopes::of_claim(None)), None);
    }
}
