//! `tenure template`

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context;
use jiff::Timestamp;
use serde::Serialize;
use tenure_client::Sandboxes;
use tenure_contract::sandboxes::{Template, TemplateSecret, TemplateWrite};

use super::connect::{ClientArgs, text_or_file};
use super::sandbox::{size, variable};
use crate::exit::{CODES, Exit, Stop};
use crate::output::{self, Card, cell, cell_or_dash, clean, number};
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
    /// Create a template
    Create(Box<WriteArgs>),
    /// Replace a template; sandboxes that exist stay as they are
    Set(Box<WriteArgs>),
    /// List templates
    #[command(visible_alias = "ls")]
    List,
    /// Show a template
    Show(One),
    /// Delete templates
    Rm(RmArgs),
}

#[derive(Debug, clap::Args)]
struct One {
    /// Name of the template
    #[arg(value_name = "TEMPLATE")]
    name: String,
}

#[derive(Debug, clap::Args)]
struct RmArgs {
    /// Names of templates
    #[arg(value_name = "TEMPLATE", required = true)]
    names: Vec<String>,
}

const WRITE_DETAILS: &str = "\
--file names a JSON file with the body of the API; flags take precedence over it.

Examples:
  tenure template create notebook --image python --memory 1g --ttl 2h --setup 'pip install numpy' --pool-size 2
  tenure template create notebook --file notebook.json";

#[derive(Debug, clap::Args)]
#[command(after_help = WRITE_DETAILS)]
struct WriteArgs {
    /// Name of the template
    #[arg(value_name = "TEMPLATE")]
    name: String,
    /// JSON file with the template, or - for standard input
    #[arg(long, value_name = "FILE")]
    file: Option<String>,
    /// Image of its sandboxes
    #[arg(long, value_name = "NAME", required_unless_present = "file")]
    image: Option<String>,
    /// Description, for people
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// Provider to prefer
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,
    /// Maximum memory, such as 256m or 1g [default: 512m]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: Option<u64>,
    /// Maximum number of cores [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    cpus: Option<u32>,
    /// How long a sandbox lives, unless it is extended [default: 5m]
    #[arg(long, value_name = "TIME", value_parser = times::wire)]
    ttl: Option<Duration>,
    /// Command to run before a sandbox is ready; repeatable, in order
    #[arg(long, value_name = "COMMAND")]
    setup: Vec<String>,
    /// Set a variable for every command; repeatable
    #[arg(long, short, value_name = "K=V", value_parser = variable)]
    env: Vec<(String, String)>,
    /// Inject a secret of the server as a variable or as the file at an absolute path; repeatable
    #[arg(long, value_name = "NAME=VARIABLE|PATH", value_parser = secret)]
    secret: Vec<TemplateSecret>,
    /// Allow connections to a host; repeatable
    #[arg(long, value_name = "HOST")]
    allow: Vec<String>,
    /// Make everything read-only except /workspace and /tmp
    #[arg(long)]
    read_only: bool,
    /// Number of sandboxes to keep ready
    #[arg(long, value_name = "N")]
    pool_size: Option<u32>,
    /// Note something about each sandbox; repeatable
    #[arg(long, value_name = "K=V", value_parser = variable)]
    metadata: Vec<(String, String)>,
}

fn secret(text: &str) -> Result<TemplateSecret, String> {
    let (name, inject_at) = text
        .split_once('=')
        .filter(|(name, at)| !name.is_empty() && !at.is_empty())
        .ok_or("write it as NAME=VARIABLE or NAME=/absolute/path")?;
    Ok(TemplateSecret { name: name.to_owned(), inject_at: inject_at.to_owned() })
}

impl WriteArgs {
    fn write(self) -> anyhow::Result<TemplateWrite> {
        let mut write = match self.file.as_deref() {
            None => TemplateWrite::default(),
            Some(file) => {
                let text = text_or_file(&if file == "-" { "-".to_owned() } else { format!("@{file}") })?;
                serde_json::from_str(&text)
                    .map_err(|error| Stop::usage(format!("{file} is not the JSON of a template: {error}")))?
            }
        };
        let extend = |map: &mut BTreeMap<String, String>, more: Vec<(String, String)>| map.extend(more);
        write.name = self.name;
        write.image = self.image.unwrap_or(write.image);
        write.description = self.description.or(write.description);
        write.provider = self.provider.or(write.provider);
        write.memory_mb = self.memory.map(|bytes| bytes.div_ceil(1 << 20)).or(write.memory_mb);
        write.cpu_cores = self.cpus.or(write.cpu_cores);
        write.ttl_seconds = self.ttl.map(|ttl| ttl.as_secs().max(1)).or(write.ttl_seconds);
        write.pool_size = self.pool_size.or(write.pool_size);
        write.read_only_root |= self.read_only;
        write.setup.extend(self.setup);
        write.secrets.extend(self.secret);
        write.allowed_hosts.extend(self.allow);
        extend(&mut write.env, self.env);
        extend(&mut write.metadata, self.metadata);
        if write.image.is_empty() {
            return Err(Stop::usage("the template has no image").hint("use --image NAME").into());
        }
        Ok(write)
    }
}

pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let (sandboxes, json) = (args.client.client()?.sandboxes(), args.client.json);
    match args.command {
        Command::Create(args) => {
            let template = sandboxes.create_template(&args.write()?).await.context("the template was not created")?;
            say(&template, json, "Created")?;
        }
        Command::Set(args) => {
            let write = args.write()?;
            let template = sandboxes.set_template(&write.name, &write).await;
            say(&template.context("the template was not changed")?, json, "Changed")?;
        }
        Command::List => list(&sandboxes, json).await?,
        Command::Show(one) => {
            let template = sandboxes.template(&one.name).await?;
            if json { output::json(&template)? } else { output::line(card(&template, Timestamp::now()))? }
        }
        Command::Rm(args) => return rm(&sandboxes, &args.names, json).await,
    }
    Ok(Exit::Ok)
}

fn say(template: &Template, json: bool, what: &str) -> anyhow::Result<()> {
    if json {
        return output::json(template);
    }
    output::line(clean(&format!("{what} template {}, version {}.", template.name, template.version)))
}

async fn list(sandboxes: &Sandboxes, json: bool) -> anyhow::Result<()> {
    let templates = sandboxes.templates().await?;
    if json {
        output::json(&templates)
    } else if templates.is_empty() {
        output::line("No templates.")
    } else {
        output::line(table(&templates, Timestamp::now()))
    }
}

#[derive(Debug, Serialize)]
struct Removed<'a> {
    name: &'a str,
    status: &'static str,
}

async fn rm(sandboxes: &Sandboxes, names: &[String], json: bool) -> anyhow::Result<Exit> {
    for name in names {
        let deleted = sandboxes.delete_template(name).await;
        deleted.with_context(|| format!("the template {name} was not deleted"))?;
        if json {
            output::json(&Removed { name, status: "deleted" })?;
        } else {
            output::line(clean(&format!("Deleted template {name}.")))?;
        }
    }
    Ok(Exit::Ok)
}

fn table(templates: &[Template], now: Timestamp) -> String {
    let rows = templates.iter().map(|template| {
        vec![
            cell(&template.name),
            number(template.version),
            cell(&template.image),
            cell_or_dash(template.provider.as_ref()),
            number(format!("{}M", template.memory_mb)),
            number(template.cpu_cores),
            number(ttl(template)),
            number(template.pool_size),
            cell(times::age(&template.updated_at, now)),
            cell_or_dash(template.description.as_ref().map(|text| output::shortened(text, 60))),
        ]
    });
    let header =
        ["TEMPLATE", "VERSION", "IMAGE", "PROVIDER", "MEMORY", "CPUS", "TTL", "WARM", "CHANGED", "DESCRIPTION"];
    output::table(&header, rows)
}

fn ttl(template: &Template) -> String {
    humantime::format_duration(Duration::from_secs(template.ttl_seconds)).to_string()
}

fn card(template: &Template, now: Timestamp) -> String {
    let mut card = Card::default();
    card.row("template", clean(&template.name))
        .row("version", template.version.to_string())
        .row_if("description", template.description.as_deref().map(clean))
        .row("image", clean(&template.image))
        .row_if("provider", template.provider.as_deref().map(clean))
        .row("memory", format!("{} MiB", template.memory_mb))
        .row("cpus", template.cpu_cores.to_string())
        .row("ttl", ttl(template))
        .row("warm", template.pool_size.to_string());
    for command in &template.setup {
        card.row("setup", clean(command));
    }
    for (name, value) in &template.env {
        card.row("variable", clean(&format!("{name}={value}")));
    }
    for secret in &template.secrets {
        card.row("secret", clean(&format!("{} at {}", secret.name, secret.inject_at)));
    }
    for host in &template.allowed_hosts {
        card.row("allows", clean(host));
    }
    for (name, value) in &template.metadata {
        card.row("metadata", clean(&format!("{name}={value}")));
    }
    card.row("changed", format!("{} ({})", clean(&template.updated_at), times::distance(&template.updated_at, now)));
    card.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_shows_all_that_acts() {
        console::set_colors_enabled(false);
        let template = r#"{"name":"py","version":2,"image":"python","memory_mb":256,"cpu_cores":2,"ttl_seconds":5400,"setup":["a"],
            "env":{"K":"v"},"secrets":[{"name":"s","inject_at":"/run/s"}],"pool_size":3,"updated_at":"2026-01-01T00:00:00Z"}"#;
        let template: Template = serde_json::from_str(template).unwrap();
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let expected = "  template  py
  version   2
  image     python
  memory    256 MiB
  cpus      2
  ttl       1h 30m
  warm      3
  setup     a
  variable  K=v
  secret    s at /run/s
  changed   2026-01-01T00:00:00Z (60s ago)
";
        assert_eq!(card(&template, now), expected);
        let row = table(&[template], now).lines().nth(1).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(row, "py 2 python - 256M 2 1h 30m 3 60s -");
    }

    #[test]
    fn a_secret_has_a_name_and_a_place() {
        assert_eq!(secret("a=B"), Ok(TemplateSecret { name: "a".into(), inject_at: "B".into() }));
        assert!(secret("a").is_err() && secret("=B").is_err() && secret("a=").is_err());
    }
}
