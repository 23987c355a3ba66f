//! Where the server of a client command is, and who calls.

use std::path::{Path, PathBuf};

use anyhow::Context;
use tenure_client::{Client, ClientBuilder, ClientError};
use tenure_contract::user::Page;

use crate::credentials::Credentials;
use crate::exit::Stop;

pub const SERVER_DEFAULT: &str = "http://127.0.0.1:7423";

/// Where the server is, and whether it is the right one.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Connection")]
pub struct ServerArgs {
    /// Address of the server
    #[arg(long, global = true, value_name = "URL", env = "TENURE_SERVER", hide_env_values = true, default_value = SERVER_DEFAULT)]
    pub server: String,
    /// CA certificates (PEM) for verifying the server [default: the system's]
    #[arg(long, global = true, value_name = "FILE", env = "TENURE_CA_FILE", hide_env_values = true)]
    pub ca_file: Option<PathBuf>,
}

impl ServerArgs {
    pub fn builder(&self) -> ClientBuilder {
        let builder = Client::builder(&self.server);
        match &self.ca_file {
            Some(path) => builder.ca_file(path),
            None => builder,
        }
    }
}

/// Where the server is, and who calls.
#[derive(clap::Args)]
#[command(next_help_heading = "Connection")]
pub struct CallerArgs {
    #[command(flatten)]
    pub at: ServerArgs,
    /// API key; visible to other users of this machine, so prefer `tenure login`, the variable or a file [env: TENURE_API_KEY]
    #[arg(long, global = true, value_name = "KEY", conflicts_with = "api_key_file")]
    api_key: Option<String>,
    /// File with the API key [env: TENURE_API_KEY_FILE] [default: what `tenure login` stored]
    #[arg(long, alias = "admin-key-file", global = true, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Limit the command to what belongs to this owner
    #[arg(long, global = true, value_name = "OWNER", env = "TENURE_USER_ID", hide_env_values = true)]
    user_id: Option<String>,
    /// Act in this tenant, if the key allows several
    #[arg(long, global = true, value_name = "TENANT", env = "TENURE_TENANT_ID", hide_env_values = true)]
    tenant_id: Option<String>,
}

/// Flags of every command that talks to a server and prints its answer.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Connection")]
pub struct ClientArgs {
    #[command(flatten)]
    caller: CallerArgs,
    /// Print the JSON response
    #[arg(long, global = true)]
    pub json: bool,
}

impl std::ops::Deref for ClientArgs {
    type Target = CallerArgs;

    fn deref(&self) -> &CallerArgs {
        &self.caller
    }
}

impl std::fmt::Debug for CallerArgs {
    /// Without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallerArgs").field("at", &self.at).finish_non_exhaustive()
    }
}

impl CallerArgs {
    pub fn client(&self) -> anyhow::Result<Client> {
        let mut builder = self.at.builder();
        if let Some(key) = self.api_key()? {
            builder = builder.api_key(key);
        }
        if let Some(owner) = &self.user_id {
            builder = builder.user_id(owner);
        }
        if let Some(tenant) = &self.tenant_id {
            builder = builder.tenant(tenant);
        }
        build(builder)
    }

    /// A flag wins over a variable, that over what is stored for the server, and each over nothing.
    pub fn api_key(&self) -> anyhow::Result<Option<String>> {
        let variable = |name| std::env::var(name).ok().filter(|text| !text.trim().is_empty());
        match (&self.api_key, &self.api_key_file) {
            (Some(key), _) => Ok(Some(key.clone())),
            (None, Some(path)) => read_key(path).map(Some),
            (None, None) => match (variable("TENURE_API_KEY"), variable("TENURE_API_KEY_FILE")) {
                (Some(key), _) => Ok(Some(key)),
                (None, Some(path)) => read_key(Path::new(&path)).map(Some),
                (None, None) => match Credentials::of_user() {
                    Some(credentials) => credentials.key_of(&self.at.server),
                    None => Ok(None),
                },
            },
        }
    }
}

pub fn build(builder: ClientBuilder) -> anyhow::Result<Client> {
    builder.build().map_err(|error| match error {
        ClientError::Setup(message) if message.contains("server address") => {
            Stop::usage(message).hint(format!("use --server {SERVER_DEFAULT}, for example")).into()
        }
        other => other.into(),
    })
}

pub fn read_key(path: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Stop::usage(format!("the key file {} could not be read: {error}", path.display())))?;
    let key = text.trim();
    if key.is_empty() {
        return Err(Stop::usage(format!("the key file {} is empty", path.display())).into());
    }
    Ok(key.to_owned())
}

/// A whole list, page after page.
pub async fn all_pages<T>(
    next: impl AsyncFn(Option<String>) -> Result<Page<T>, ClientError>,
) -> Result<Vec<T>, ClientError> {
    let (mut items, mut cursor) = (Vec::new(), None);
    loop {
        let page = next(cursor).await?;
        items.extend(page.items);
        cursor = page.next_cursor;
        if cursor.is_none() {
            return Ok(items);
        }
    }
}

/// Page after page until there are `limit` items, or all of them. `get` is asked for up to `page_max` items behind a
/// cursor. What is left says the cursor of the answer.
pub async fn pages<T>(
    limit: Option<u32>,
    page_max: u32,
    get: impl AsyncFn(u32, Option<String>) -> Result<Page<T>, ClientError>,
) -> Result<Page<T>, ClientError> {
    let mut all = Page { items: Vec::new(), next_cursor: None };
    loop {
        let have = u32::try_from(all.items.len()).unwrap_or(u32::MAX);
        let missing = limit.map_or(page_max, |limit| limit.saturating_sub(have));
        let page = get(missing.min(page_max), all.next_cursor.take()).await?;
        all.items.extend(page.items);
        all.next_cursor = page.next_cursor;
        if all.next_cursor.is_none() || limit.is_some_and(|limit| all.items.len() >= limit as usize) {
            return Ok(all);
        }
    }
}

/// Reads a text that is given directly, as `@file`, or as `-` for standard input.
pub fn text_or_file(argument: &str) -> anyhow::Result<String> {
    match argument {
        "-" => std::io::read_to_string(std::io::stdin()).context("standard input could not be read"),
        _ => match argument.strip_prefix('@') {
            None => Ok(argument.to_owned()),
            Some(path) => std::fs::read_to_string(path)
                .map_err(|error| Stop::usage(format!("{path} could not be read: {error}")).into()),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[tokio::test]
    async fn pages_are_fetched_until_there_are_enough_rows() {
        for (limit, expected, left) in [(Some(3), 3, true), (Some(600), 600, true), (None, 1200, false)] {
            let asked = RefCell::new(Vec::new());
            let rows = pages(limit, 500, async |size, cursor: Option<String>| {
                let from: u32 = cursor.map_or(0, |cursor| cursor.parse().unwrap());
                asked.borrow_mut().push(size);
                let to = (from + size).min(1200);
                let next_cursor = (to < 1200).then(|| to.to_string());
                Ok(Page { items: (from..to).collect(), next_cursor })
            })
            .await
            .unwrap();
            assert_eq!((rows.items.len(), rows.next_cursor.is_some()), (expected, left), "{limit:?}");
            assert!(rows.items.iter().copied().eq(0..expected as u32));
            assert!(asked.borrow().iter().all(|size| *size <= 500));
        }
    }
}
