//! `tenure queue`

use anyhow::Context;
use jiff::Timestamp;
use tenure_client::{Client, ClientError};
use tenure_contract::user::{Page, PushSettings, Queue, QueueChange, QueuePaused, QueueSettings, Rate};

use super::confirm;
use super::connect::{ClientArgs, all_pages};
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
    /// List queues with their task counts
    List,
    /// Show all settings of a queue
    Show(One),
    /// Create a queue
    Create(Box<CreateArgs>),
    /// Change the settings of a queue; what is not named stays
    Set(Box<SetArgs>),
    /// Pause a queue: no new tasks start, running tasks continue
    Pause(One),
    /// Resume a paused queue
    Resume(One),
    /// Delete a queue that has no tasks left
    Delete(DeleteArgs),
}

#[derive(Debug, clap::Args)]
struct One {
    /// Name of the queue
    #[arg(value_name = "QUEUE")]
    name: String,
}

const DELETE_DETAILS: &str = "\
A queue with blocked, scheduled, ready or running tasks is not deleted. Ended tasks stay readable until retention removes \
them, but cannot be retried. A later submit to the name creates another queue with the default settings.";

#[derive(Debug, clap::Args)]
#[command(after_help = DELETE_DETAILS)]
struct DeleteArgs {
    /// Name of the queue
    #[arg(value_name = "QUEUE")]
    name: String,
    /// Delete the queue even if it has dead letters; they can then no longer be redriven
    #[arg(long)]
    force: bool,
    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,
}

const SET_DETAILS: &str = "\
Only what is named changes; `none` removes a limit. A queue that does not exist is an error unless --create is given.

A queue with --push-url pushes its tasks to a worker of the callback contract, and no worker can claim them. The other \
--push flags go with it: the whole block is replaced. With --push-url sandbox: the control plane runs the tasks in \
sandboxes; sandbox:TEMPLATE names the template of tasks that name none. --no-push makes it a queue that workers claim from.";

#[derive(Debug, clap::Args)]
struct CreateArgs {
    /// Name of the queue
    #[arg(value_name = "QUEUE")]
    name: String,
    #[command(flatten)]
    settings: Settings,
}

#[derive(Debug, clap::Args)]
#[command(after_help = SET_DETAILS)]
struct SetArgs {
    /// Name of the queue
    #[arg(value_name = "QUEUE")]
    name: String,
    /// Create the queue if it does not exist
    #[arg(long)]
    create: bool,
    #[command(flatten)]
    settings: Settings,
}

/// A value, or `none` for the default.
#[derive(Debug, Clone)]
struct OrNone<T>(Option<T>);

fn or_none<T>(parse: fn(&str) -> Result<T, String>) -> impl Fn(&str) -> Result<OrNone<T>, String> + Clone {
    move |text| if text == "none" { Ok(OrNone(None)) } else { parse(text).map(|value| OrNone(Some(value))) }
}

#[derive(Debug, clap::Args)]
struct Settings {
    /// Maximum number of tasks running at once, or none
    #[arg(long, value_name = "N", value_parser = or_none(count))]
    max_running: Option<OrNone<i64>>,
    /// Maximum number of tasks started per second, with an optional burst: 50 or 50/100, or none
    #[arg(long, value_name = "N[/BURST]", value_parser = or_none(rate))]
    rate: Option<OrNone<Rate>>,
    /// Rotate between the values of tenant, workspace or tag:NAME, or none
    #[arg(long, value_name = "KEY", value_parser = or_none(text))]
    fairness: Option<OrNone<String>>,
    /// How long a worker may be silent, or none [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = or_none(times::seconds))]
    lease_ttl: Option<OrNone<i64>>,
    /// How often workers send heartbeats, or none [default: a third of the lease]
    #[arg(long, value_name = "TIME", value_parser = or_none(times::seconds))]
    heartbeat: Option<OrNone<i64>>,
    /// Do not keep tasks that fail for good as dead letters
    #[arg(long)]
    no_dead_letter: bool,
    /// Keep tasks that fail for good as dead letters
    #[arg(long, conflicts_with = "no_dead_letter")]
    dead_letter: bool,
    /// Grant a lost task again only when its former attempt is known to be dead; needs workers with sandboxes
    #[arg(long)]
    strict: bool,
    /// Grant a lost task again as soon as its lease has expired
    #[arg(long, conflicts_with = "strict")]
    no_strict: bool,
    /// Transport of wake-ups: embedded, redis or sqs [default: as it is]
    #[arg(long, value_name = "NAME")]
    transport: Option<String>,
    #[command(flatten)]
    push: PushArgs,
}

impl Settings {
    fn change(self) -> QueueChange {
        QueueChange {
            max_running: self.max_running.map(|named| named.0),
            rate: self.rate.map(|named| named.0),
            fairness_key: self.fairness.map(|named| named.0),
            lease_ttl_seconds: self.lease_ttl.map(|named| named.0),
            heartbeat_interval_seconds: self.heartbeat.map(|named| named.0),
            dead_letter: (self.no_dead_letter || self.dead_letter).then_some(Some(self.dead_letter)),
            strict: (self.strict || self.no_strict).then_some(Some(self.strict)),
            transport: self.transport,
            push: self.push.block(),
        }
    }
}

/// The same for a queue that does not exist yet.
fn whole(change: QueueChange) -> QueueSettings {
    QueueSettings {
        max_running: change.max_running.flatten(),
        rate: change.rate.flatten(),
        fairness_key: change.fairness_key.flatten(),
        lease_ttl_seconds: change.lease_ttl_seconds.flatten(),
        heartbeat_interval_seconds: change.heartbeat_interval_seconds.flatten(),
        dead_letter: change.dead_letter.flatten(),
        strict: change.strict.flatten(),
        transport: change.transport,
        push: change.push,
    }
}

fn count(text: &str) -> Result<i64, String> {
    text.parse().map_err(|_| "write a whole number, or none".to_owned())
}

fn text(text: &str) -> Result<String, String> {
    Ok(text.to_owned())
}

/// Where and how tasks are pushed.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Push")]
struct PushArgs {
    /// Push tasks to this address: https://HOST/dispatch, or run them in sandboxes: sandbox: or sandbox:TEMPLATE
    #[arg(long, value_name = "URL")]
    push_url: Option<String>,
    /// Name in push.secrets of the secret to send
    #[arg(long, value_name = "NAME", requires = "push_url")]
    push_secret_ref: Option<String>,
    /// Header that carries the secret; repeat it for several. Authorization sends a bearer token
    /// [default: X-Tenure-Dispatch-Secret]
    #[arg(long, value_name = "HEADER", requires = "push_secret_ref")]
    push_secret_header: Vec<String>,
    /// Name in push.mtls of the client certificate to use
    #[arg(long, value_name = "NAME", requires = "push_url")]
    push_mtls_ref: Option<String>,
    /// Maximum number of open attempts [default: 32]
    #[arg(long, value_name = "N", requires = "push_url")]
    push_concurrency: Option<i64>,
    /// Maximum number of tasks started per second
    #[arg(long, value_name = "N", requires = "push_url")]
    push_rate: Option<f64>,
    /// Time-out for the answer to a push, unless the attempt starts [default: 10s]
    #[arg(long, value_name = "TIME", requires = "push_url", value_parser = times::some_millis)]
    push_ack_timeout: Option<i64>,
    /// Time until an accepted push that does not start is repeated [default: 1m]
    #[arg(long, value_name = "TIME", requires = "push_url", value_parser = times::some_millis)]
    push_start_timeout: Option<i64>,
    /// Time until an attempt that does not start is closed [default: 5m]
    #[arg(long, value_name = "TIME", requires = "push_url", value_parser = times::some_millis)]
    push_dispatch_timeout: Option<i64>,
    /// Stop pushing: workers claim the tasks
    #[arg(long, conflicts_with = "push_url")]
    no_push: bool,
}

impl PushArgs {
    /// `None` leaves it as it is.
    fn block(self) -> Option<Option<PushSettings>> {
        if self.no_push {
            return Some(None);
        }
        Some(Some(PushSettings {
            url: self.push_url?,
            secret_ref: self.push_secret_ref,
            secret_header: Some(self.push_secret_header).filter(|names| !names.is_empty()),
            mtls_ref: self.push_mtls_ref,
            concurrency: self.push_concurrency,
            rate_per_second: self.push_rate,
            ack_timeout_ms: self.push_ack_timeout,
            start_timeout_ms: self.push_start_timeout,
            dispatch_timeout_ms: self.push_dispatch_timeout,
        }))
    }
}

fn rate(text: &str) -> Result<Rate, String> {
    let number = |text: &str| text.parse::<f64>().map_err(|_| "write 50, or 50/100 with a burst".to_owned());
    Ok(match text.split_once('/') {
        None => Rate { per_second: number(text)?, burst: None },
        Some((per_second, burst)) => Rate { per_second: number(per_second)?, burst: Some(number(burst)?) },
    })
}

pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let (client, json) = (args.client.client()?, args.client.json);
    match args.command {
        Command::List => list(&client, json).await?,
        Command::Show(one) => show(&client, &one.name, json).await?,
        Command::Create(args) => create(&client, *args, json).await?,
        Command::Set(args) => set(&client, *args, json).await?,
        Command::Pause(one) => {
            let paused = client.pause_queue(&one.name).await.context("the queue was not paused")?;
            say_paused(&paused, json)?;
        }
        Command::Resume(one) => {
            let resumed = client.resume_queue(&one.name).await.context("the queue was not resumed")?;
            say_paused(&resumed, json)?;
        }
        Command::Delete(args) => delete(&client, args, json).await?,
    }
    Ok(Exit::Ok)
}

async fn list(client: &Client, json: bool) -> anyhow::Result<()> {
    let items = all_pages(async |cursor| client.queues(cursor).await).await?;
    if json {
        output::json(&Page { items, next_cursor: None })
    } else if items.is_empty() {
        output::line("No queues. Submitting a task creates its queue.")
    } else {
        output::line(table(&items, Timestamp::now()))
    }
}

async fn show(client: &Client, name: &str, json: bool) -> anyhow::Result<()> {
    let queue = client.queue(name).await?;
    if json { output::json(&queue) } else { output::line(card(&queue, Timestamp::now())) }
}

async fn create(client: &Client, args: CreateArgs, json: bool) -> anyhow::Result<()> {
    match client.queue(&args.name).await {
        Ok(queue) => {
            let message = format!("queue {} exists already", clean(&queue.name));
            return Err(Stop::new(Exit::Refused, message).hint("tenure queue set changes it").into());
        }
        Err(error) if is_unknown(&error) => {}
        Err(error) => return Err(error.into()),
    }
    let settings = whole(args.settings.change());
    let queue = client.set_queue(&args.name, &settings).await.context("the queue was not created")?;
    say(queue, json)
}

async fn set(client: &Client, args: SetArgs, json: bool) -> anyhow::Result<()> {
    let change = args.settings.change();
    let queue = match client.change_queue(&args.name, &change).await {
        Err(error) if args.create && is_unknown(&error) => client.set_queue(&args.name, &whole(change)).await,
        answer => answer,
    };
    say(queue.context("the queue was not changed")?, json)
}

async fn delete(client: &Client, args: DeleteArgs, json: bool) -> anyhow::Result<()> {
    if !args.yes {
        confirm::require_terminal("use --yes")?;
        let queue = client.queue(&args.name).await?;
        confirm::ask(&format!("Delete queue {} and its settings?", clean(&queue.name)))?;
    }
    let deleted = client.delete_queue(&args.name, args.force).await.context("the queue was not deleted")?;
    if json { output::json(&deleted) } else { output::line(format!("Queue {} is deleted.", clean(&deleted.name))) }
}

fn is_unknown(error: &ClientError) -> bool {
    error.word() == Some("queue_not_found")
}

fn say(queue: Queue, json: bool) -> anyhow::Result<()> {
    if json { output::json(&queue) } else { output::line(table(&[queue], Timestamp::now())) }
}

fn say_paused(queue: &QueuePaused, json: bool) -> anyhow::Result<()> {
    if json {
        return output::json(queue);
    }
    let state = if queue.paused { "paused; running tasks continue" } else { "open" };
    output::line(format!("Queue {} is {state}.", clean(&queue.name)))
}

fn card(queue: &Queue, now: Timestamp) -> String {
    let mut card = Card::default();
    let counts = &queue.counts;
    card.row("queue", clean(&queue.name))
        .row_if("tenant", queue.tenant.as_deref().map(clean))
        .row("state", if queue.paused { "paused" } else { "open" })
        .row("kind", clean(&queue.kind))
        .row("transport", clean(&queue.transport))
        .row_if("limits", limits(queue))
        .row("scheduled", counts.scheduled.to_string())
        .row("ready", counts.ready.to_string())
        .row("running", counts.running.to_string())
        .row("dead", counts.dead_lettered.to_string())
        .row_if("oldest", queue.oldest_ready_at.as_ref().map(|at| times::age(at, now)));
    if let Some(push) = &queue.push {
        let ms = |ms: i64| format!("{ms} ms");
        card.row("push to", clean(&push.url))
            .row_if("secret", push.secret_ref.as_deref().map(clean))
            .row_if("secret in", Some(clean(&push.secret_header.join(", "))).filter(|names| !names.is_empty()))
            .row_if("mtls", push.mtls_ref.as_deref().map(clean))
            .row("at once", push.concurrency.to_string())
            .row_if("rate", push.rate_per_second.map(|rate| format!("{rate}/s")))
            .row("ack timeout", ms(push.ack_timeout_ms))
            .row("start timeout", ms(push.start_timeout_ms))
            .row("dispatch timeout", ms(push.dispatch_timeout_ms));
    }
    card.render()
}

/// What carries wake-ups, or where tasks are pushed. The path of an address can be a secret of its worker.
fn way(queue: &Queue) -> String {
    let Some(push) = &queue.push else { return queue.transport.clone() };
    let (scheme, rest) = push.url.split_once("://").unwrap_or(("", &push.url));
    format!("push {scheme}://{}", rest.split(['/', '?']).next().unwrap_or_default())
}

fn table(queues: &[Queue], now: Timestamp) -> String {
    let rows = queues.iter().map(|queue| {
        let counts = &queue.counts;
        let state = if queue.paused { cell("paused").fg(comfy_table::Color::Yellow) } else { cell("open") };
        vec![
            cell(&queue.name),
            state,
            cell(way(queue)),
            number(counts.scheduled),
            number(counts.ready),
            number(counts.running),
            number(counts.dead_lettered),
            cell_or_dash(queue.oldest_ready_at.as_ref().map(|at| times::age(at, now))),
            cell_or_dash(limits(queue)),
        ]
    });
    output::table(&["QUEUE", "STATE", "TRANSPORT", "SCHEDULED", "READY", "RUNNING", "DEAD", "OLDEST", "LIMITS"], rows)
}

/// Everything that is not the default.
fn limits(queue: &Queue) -> Option<String> {
    let limits = &queue.limits;
    let rate = limits.rate.as_ref().map(|rate| format!("{}/s, burst {}", rate.per_second, rate.burst));
    let parts = [
        limits.max_running.map(|max| format!("{max} running")),
        rate,
        limits.fairness_key.as_ref().map(|key| format!("fair by {key}")),
        queue.lease_ttl_seconds.map(|ttl| format!("lease {ttl}s")),
        queue.heartbeat_interval_seconds.map(|interval| format!("heartbeat {interval}s")),
        (!queue.dead_letter).then(|| "no dead letters".to_owned()),
        queue.strict.then(|| "strict".to_owned()),
    ];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_with_and_without_a_burst() {
        assert_eq!(rate("50"), Ok(Rate { per_second: 50.0, burst: None }));
        assert_eq!(rate("0.5/10"), Ok(Rate { per_second: 0.5, burst: Some(10.0) }));
        for text in ["", "fast", "50/", "/5"] {
            assert!(rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_queue_shows_what_is_in_it_and_what_bounds_it() {
        console::set_colors_enabled(false);
        let queue = r#"{"name":"etl","paused":true,"kind":"pull","transport":"redis",
            "limits":{"max_running":100,"rate":{"per_second":50,"burst":100},"fairness_key":"tenant"},"dead_letter":false,
            "counts":{"scheduled":4,"ready":10,"running":100,"dead_lettered":1},"oldest_ready_at":"2025-01-15T10:00:00Z"}"#;
        let now: Timestamp = "2025-01-15T10:01:00Z".parse().unwrap();
        let text = table(&[serde_json::from_str(queue).unwrap()], now);
        let row: Vec<_> = text.lines().nth(1).unwrap().split_whitespace().take(8).collect();
        assert_eq!(row, ["etl", "paused", "redis", "4", "10", "100", "1", "60s"]);
        assert!(text.ends_with("100 running; 50/s, burst 100; fair by tenant; no dead letters"), "{text}");
    }

    #[test]
    fn a_queue_that_pushes_shows_where_to_and_how() {
        console::set_colors_enabled(false);
        let queue = r#"{"name":"etl","paused":false,"kind":"push","transport":"embedded","limits":{},"dead_letter":true,
            "push":{"url":"https://w.example:8443/dispatch/s3cret","secret_ref":"etl","concurrency":8,"ack_timeout_ms":10000,
            "start_timeout_ms":60000,"dispatch_timeout_ms":300000},
            "counts":{"scheduled":0,"ready":2,"running":1,"dead_lettered":0}}"#;
        let queue: Queue = serde_json::from_str(queue).unwrap();
        let now: Timestamp = "2025-01-15T10:01:00Z".parse().unwrap();
        let row = table(std::slice::from_ref(&queue), now);
        assert!(row.contains("push https://w.example:8443 ") && !row.contains("s3cret"), "{row}");
        let card = card(&queue, now);
        for part in ["push to", "https://w.example:8443/dispatch/s3cret", "at once", "8", "10000 ms"] {
            assert!(card.contains(part), "{card}");
        }
    }
}
