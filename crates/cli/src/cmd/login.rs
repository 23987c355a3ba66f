//! `tenure login`, `tenure logout`, `tenure whoami`

use std::io::IsTerminal;
use std::path::PathBuf;

use anyhow::Context;
use tenure_contract::admin::WhoAmI;

use super::connect::{self, ClientArgs, ServerArgs, read_key};
use crate::credentials::Credentials;
use crate::exit::{CODES, Exit, Stop};
use crate::output::{self, Card, clean};

const LOGIN_DETAILS: &str = "\
Asks for the key without showing it. If stdin is not a terminal, the key is read from stdin:
  tenure login < key-file
The key is checked, then stored for this server in credentials.json in the data folder (TENURE_DATA, else ~/.tenure), \
readable only by you. Other commands use it unless a flag or a variable sets another.";

#[derive(Debug, clap::Args)]
#[command(after_help = LOGIN_DETAILS)]
pub struct LoginArgs {
    #[command(flatten)]
    at: ServerArgs,
    /// Read the key from this file instead
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Print the JSON response
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "The key remains valid: revoke it with `tenure api-key revoke`.")]
pub struct LogoutArgs {
    #[command(flatten)]
    at: ServerArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = CODES)]
pub struct WhoAmIArgs {
    #[command(flatten)]
    client: ClientArgs,
}

pub async fn login(args: LoginArgs) -> anyhow::Result<Exit> {
    let server = &args.at.server;
    let credentials = credentials()?;
    let key = match &args.key_file {
        Some(path) => read_key(path)?,
        None => ask_for_key(server)?,
    };
    let client = connect::build(args.at.builder().api_key(&key))?;
    let me = client.whoami().await.context("the key was not stored")?;
    credentials.store(server, &key).context("the key was not stored")?;
    let named = ["TENURE_API_KEY", "TENURE_API_KEY_FILE"].into_iter().find(|name| std::env::var_os(name).is_some());
    if let Some(name) = named {
        eprintln!("note: {name} is set and takes precedence over the stored key");
    }
    if args.json {
        output::json(&me)?;
    } else {
        output::line(format!("Logged in to {server} as {}.", clean(&me.actor)))?;
        output::line(card(&me))?;
    }
    Ok(Exit::Ok)
}

pub fn logout(args: &LogoutArgs) -> anyhow::Result<Exit> {
    let server = &args.at.server;
    match credentials()?.forget(server)? {
        true => output::line(format!("Removed the stored key for {server}."))?,
        false => output::line(format!("No key is stored for {server}."))?,
    }
    Ok(Exit::Ok)
}

pub async fn whoami(args: WhoAmIArgs) -> anyhow::Result<Exit> {
    let me = args.client.client()?.whoami().await?;
    if args.client.json {
        output::json(&me)?;
    } else {
        output::line(card(&me))?;
    }
    Ok(Exit::Ok)
}

fn credentials() -> anyhow::Result<Credentials> {
    let nowhere = || Stop::usage("there is no home folder to store keys in").hint("set TENURE_DATA to a folder");
    Ok(Credentials::of_user().ok_or_else(nowhere)?)
}

fn ask_for_key(server: &str) -> anyhow::Result<String> {
    let text = if std::io::stdin().is_terminal() {
        rpassword::prompt_password(format!("API key for {server}: ")).context("cannot prompt for the key")?
    } else {
        std::io::read_to_string(std::io::stdin()).context("standard input could not be read")?
    };
    let key = text.trim();
    if key.is_empty() {
        return Err(Stop::usage("no key was given").hint("use --key-file FILE, or send it to standard input").into());
    }
    if key.contains(char::is_whitespace) {
        return Err(Stop::usage("this is not a key: it contains spaces or line breaks").into());
    }
    Ok(key.to_owned())
}

fn card(me: &WhoAmI) -> String {
    let tenant = me.tenant.as_deref().map_or_else(|| "every".to_owned(), clean);
    let mut card = Card::default();
    card.row("actor", clean(&me.actor))
        .row("role", clean(&me.role))
        .row("tenant", tenant)
        .row_if("owner", me.owner.as_deref().map(clean));
    card.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_is_shown_with_what_binds_it() {
        console::set_colors_enabled(false);
        let me = WhoAmI { actor: "key:1f".into(), role: "admin".into(), tenant: None, owner: None };
        assert_eq!(card(&me), "  actor   key:1f\n  role    admin\n  tenant  every\n");
        let bound = WhoAmI { tenant: Some("acme".into()), owner: Some("ann".into()), ..me };
        assert!(card(&bound).ends_with("  tenant  acme\n  owner   ann\n"));
    }
}
