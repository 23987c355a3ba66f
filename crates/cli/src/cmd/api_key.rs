//! `tenure api-key`

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use jiff::Timestamp;
use tenure_client::Client;
use tenure_contract::admin::{ApiKey, CreatedApiKey, NewApiKey};
use tenure_contract::user::Page;

use super::connect::{ClientArgs, all_pages};
use crate::exit::{CODES, Exit, Stop};
use crate::output::{self, Card, cell, cell_or_dash, clean};
use crate::times;

#[derive(Debug, clap::Args)]
#[command(after_help = CODES)]
pub struct Args {
    #[command(flatten)]
    client: ClientArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Create a key; it is shown once
    Create(CreateArgs),
    /// List keys, including revoked ones
    List,
    /// Show the details of a key
    Show(One),
    /// Revoke a key permanently
    Revoke(One),
}

#[derive(Debug, clap::Args)]
struct One {
    /// Id of the key
    #[arg(value_name = "ID")]
    id: String,
}

const CREATE_DETAILS: &str = "\
The key is printed to stdout, everything else to stderr. With --out the key is written to a file that only you can \
read, and its id is printed to stdout. The key cannot be shown again.
  tenure api-key create --name ci --role api --expires-in 720h --out ci.key
  TENURE_API_KEY_FILE=ci.key tenure whoami";

#[derive(Debug, clap::Args)]
#[command(after_help = CREATE_DETAILS)]
struct CreateArgs {
    /// Description of the key
    #[arg(long, value_name = "NAME")]
    name: String,
    /// viewer, api, operator, tenant_admin or admin; not higher than your own [default: api]
    #[arg(long, value_name = "ROLE")]
    role: Option<String>,
    /// Tenant that the key acts in [default: yours]
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// Owner that the key is limited to
    #[arg(long, value_name = "OWNER")]
    owner: Option<String>,
    /// How long the key is valid [default: until it is revoked]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    expires_in: Option<String>,
    /// Write the key to a new file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Checked here, sent as the API writes it.
fn duration(text: &str) -> Result<String, String> {
    use tenure_contract::duration::{canonical, parse};
    parse(text).map(canonical).ok_or_else(|| "write it as 30m, 12h, 720h or 30d".to_owned())
}

pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let (client, json) = (args.client.client()?, args.client.json);
    match args.command {
        Command::Create(args) => create(&client, args, json).await?,
        Command::List => list(&client, json).await?,
        Command::Show(one) => show(&client.api_key(&one.id).await?, json)?,
        Command::Revoke(one) => {
            let revoked = client.revoke_api_key(&one.id).await.context("the key was not revoked")?;
            match json {
                true => output::json(&revoked)?,
                false => output::line(format!("Key {} ({}) is revoked.", clean(&revoked.id), clean(&revoked.name)))?,
            }
        }
    }
    Ok(Exit::Ok)
}

async fn create(client: &Client, args: CreateArgs, json: bool) -> anyhow::Result<()> {
    let CreateArgs { name, role, tenant, owner, expires_in, out } = args;
    // Made first: a key that cannot be written would be lost.
    let file = out.as_deref().map(new_file).transpose()?;
    let created = client.create_api_key(&NewApiKey { name, role, tenant, owner, expires_in }).await;
    let created = match (created, out.as_deref()) {
        (Ok(created), _) => created,
        (Err(error), path) => {
            // It is empty and ours.
            drop(path.map(std::fs::remove_file));
            return Err(error).context("the key was not created");
        }
    };
    let CreatedApiKey { key, info } = &created;
    match (file, out.as_deref()) {
        (Some(file), Some(path)) => {
            if let Err(error) = write_key(file, key) {
                return Err(lost(client, info, path, &error).await);
            }
            eprintln!("The key is in {}. {}", path.display(), said(info));
            if json { output::json(info) } else { output::line(&info.id) }
        }
        _ if json => output::json(&created),
        _ => {
            eprintln!("{} It cannot be shown again:", said(info));
            output::line(key)
        }
    }
}

fn new_file(path: &Path) -> anyhow::Result<File> {
    let opened = File::options().write(true).create_new(true).mode(0o600).open(path);
    opened.map_err(|error| {
        let stop = Stop::usage(format!("{} cannot be created: {error}", path.display()));
        match error.kind() {
            std::io::ErrorKind::AlreadyExists => stop.hint("name a file that does not exist yet").into(),
            _ => stop.into(),
        }
    })
}

fn write_key(mut file: File, key: &str) -> std::io::Result<()> {
    writeln!(file, "{key}")?;
    file.sync_all()
}

/// A key that nobody has is ended again.
async fn lost(client: &Client, info: &ApiKey, path: &Path, error: &std::io::Error) -> anyhow::Error {
    let message = format!("the key could not be written to {}: {error}", path.display());
    let stop = Stop::new(Exit::Failure, message);
    match client.revoke_api_key(&info.id).await {
        Ok(_) => stop.hint("the key was revoked: create another").into(),
        Err(_) => stop.hint(format!("revoke it with `tenure api-key revoke {}`", info.id)).into(),
    }
}

fn said(info: &ApiKey) -> String {
    let owner = info.owner.as_deref().map(|owner| format!(", owner {}", clean(owner))).unwrap_or_default();
    let until = match &info.expires_at {
        Some(at) => format!("valid until {}", clean(at)),
        None => "valid until it is revoked".to_owned(),
    };
    format!("Key {}: role {}, tenant {}{owner}, {until}.", clean(&info.id), clean(&info.role), clean(&info.tenant))
}

async fn list(client: &Client, json: bool) -> anyhow::Result<()> {
    let items = all_pages(async |cursor| client.api_keys(cursor).await).await?;
    if json {
        output::json(&Page { items, next_cursor: None })
    } else if items.is_empty() {
        output::line("No keys. Keys from the server's configuration are not listed.")
    } else {
        output::line(table(&items, Timestamp::now()))
    }
}

fn show(key: &ApiKey, json: bool) -> anyhow::Result<()> {
    if json {
        return output::json(key);
    }
    let now = Timestamp::now();
    let when = |at: &String| format!("{} ({})", clean(at), times::distance(at, now));
    let mut card = Card::default();
    card.row("key", clean(&key.id))
        .row("name", clean(&key.name))
        .row("state", state(key, now))
        .row("role", clean(&key.role))
        .row("tenant", clean(&key.tenant))
        .row_if("owner", key.owner.as_deref().map(clean))
        .row("made", format!("{} by {}", when(&key.created_at), clean(&key.created_by)))
        .row_if("expires", key.expires_at.as_ref().map(when))
        .row_if("revoked", key.revoked_at.as_ref().map(when));
    output::line(card.render())
}

fn state(key: &ApiKey, now: Timestamp) -> &'static str {
    let expired = key.expires_at.as_ref().and_then(|at| at.parse::<Timestamp>().ok()).is_some_and(|at| at <= now);
    match (&key.revoked_at, expired) {
        (Some(_), _) => "revoked",
        (None, true) => "expired",
        (None, false) => "valid",
    }
}

fn table(keys: &[ApiKey], now: Timestamp) -> String {
    let rows = keys.iter().map(|key| {
        let state = match state(key, now) {
            "valid" => cell("valid"),
            other => cell(other).fg(comfy_table::Color::Yellow),
        };
        vec![
            cell(&key.id),
            state,
            cell(&key.role),
            cell(&key.tenant),
            cell_or_dash(key.owner.as_ref()),
            cell(times::age(&key.created_at, now)),
            cell_or_dash(key.expires_at.as_ref().map(|at| times::distance(at, now))),
            cell(&key.name),
        ]
    });
    output::table(&["KEY", "STATE", "ROLE", "TENANT", "OWNER", "AGE", "EXPIRES", "NAME"], rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: &str) -> ApiKey {
        ApiKey {
            id: id.into(),
            name: "ci \x1b[31m".into(),
            role: "api".into(),
            tenant: "acme".into(),
            owner: None,
            created_at: "2026-01-01T00:00:00Z".into(),
            created_by: "config:admin".into(),
            expires_at: Some("2026-01-02T00:00:00Z".into()),
            revoked_at: None,
        }
    }

    #[test]
    fn keys_are_listed_with_their_state() {
        console::set_colors_enabled(false);
        let revoked = ApiKey { revoked_at: Some("2026-01-01T01:00:00Z".into()), ..key("b") };
        let lasting = ApiKey { expires_at: None, ..key("c") };
        let keys = [key("a"), revoked, lasting];
        let states = |now: &str| keys.each_ref().map(|key| state(key, now.parse().unwrap()));
        assert_eq!(states("2026-01-01T12:00:00Z"), ["valid", "revoked", "valid"]);
        assert_eq!(states("2026-01-02T00:00:00Z"), ["expired", "revoked", "valid"]);
        let text = table(&keys, "2026-01-01T12:00:00Z".parse().unwrap());
        assert_eq!(text.lines().count(), 4);
        assert!(text.contains("in 12h") && !text.contains('\x1b'), "{text}");
    }

    #[test]
    fn lifetimes_are_sent_as_the_api_writes_them() {
        assert_eq!(duration("30d").as_deref(), Ok("720h0m0s"));
        assert!(duration("long").is_err());
    }

    #[test]
    fn what_is_said_of_a_new_key_has_no_room_for_the_key() {
        let created =
            CreatedApiKey { key: "tnr_secret".into(), info: ApiKey { owner: Some("ann".into()), ..key("a") } };
        let text = said(&created.info);
        assert_eq!(text, "Key a: role api, tenant acme, owner ann, valid until 2026-01-02T00:00:00Z.");
    }
}
