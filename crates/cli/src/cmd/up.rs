//! `tenure up`

use console::style;
use tenure_auth::Secret;
use tenure_worker::TokenSource;
use tokio_util::sync::CancellationToken;

use super::connect::SERVER_DEFAULT;
use super::control_plane::{ControlPlane, ListenArgs};
use super::worker::{Work, WorkArgs};
use crate::exit::{Exit, Stop};
use crate::{logging, output, signals};
use tenure_config::StoreUrl;

const DETAILS: &str = "\
Everything needed to try Tenure, and enough for one machine.

SIGTERM and SIGINT stop the worker first, then the server; a second signal stops at once.";

#[derive(Debug, clap::Args)]
#[command(after_help = DETAILS)]
pub struct Args {
    #[command(flatten)]
    listen: ListenArgs,
    #[command(flatten, next_help_heading = "Worker")]
    work: WorkArgs,
}

pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let config = args.listen.load()?;
    if config.server.tls.is_some() {
        let hint = "run `tenure serve` and `tenure worker --ca-file FILE` instead";
        return Err(Stop::usage("`up` serves without TLS, but server.tls is set").hint(hint).into());
    }
    logging::start(config.logging)?;
    let store = config.store.clone();
    let mut work = args.work.config(String::new(), &config).await?;
    let worker = &mut work.worker;
    let stop = signals::stop_on_signal()?;
    let mut control_plane = tokio::select! {
        ready = ControlPlane::prepare(config, true) => ready?,
        () = stop.cancelled() => return Ok(Exit::Ok),
    };
    let url = control_plane.url()?;
    worker.server = control_plane.own_address()?;

    // The worker inside has a name and a token that nobody else knows. The name is the same after a restart, so that
    // the new process voids at once what the old one held.
    let host = nix::unistd::gethostname().map_or_else(|_| "host".into(), |name| name.to_string_lossy().into_owned());
    let name = format!("up-{host}-{}", control_plane.listener.local_addr()?.port());
    let token = Secret::random();
    worker.token = Some(TokenSource::Text(token.reveal().to_owned()));
    worker.name = Some(name.clone());
    control_plane.admit_inside(name, token);
    let bundles = work.bundles();
    let Work { worker, private: _sandboxes, .. } = work;

    output::line(format!("tenure listening on {url}"))?;
    output::line(welcome(&url, &worker.queues, &store, control_plane.has_local()))?;

    let (worker_stop, server_stop) = (stop.child_token(), CancellationToken::new());
    let server = async {
        let ended = control_plane.run(server_stop.clone().cancelled_owned()).await;
        worker_stop.cancel();
        ended
    };
    let running = async {
        match bundles {
            Some(bundles) => tenure_worker::run_bundles(bundles, worker_stop.clone().cancelled_owned()).await,
            None => Ok(()),
        }
    };
    let worker = async {
        let pulling = tenure_worker::run(worker, worker_stop.clone().cancelled_owned());
        let ended = tokio::try_join!(pulling, running).map(drop);
        server_stop.cancel();
        ended
    };
    let told = async {
        stop.cancelled().await;
        tracing::info!("stopping: waiting for running tasks; press Ctrl-C again to stop at once");
        std::future::pending::<()>().await;
    };
    let (server, worker) = tokio::select! {
        both = async { tokio::join!(server, worker) } => both,
        () = told => unreachable!("being told does not end"),
    };
    server?;
    worker?;
    Ok(Exit::Ok)
}

fn welcome(url: &str, queues: &[String], store: &StoreUrl, sandboxes: bool) -> String {
    let offer =
        if sandboxes { "held by the worker `local`" } else { "none on this machine: `tenure sandbox check` says why" };
    let queue = queues.first().map_or("default", String::as_str);
    let bold = |text: String| style(text).bold().to_string();
    let mut lines = vec![
        String::new(),
        format!("  store    {store}"),
        format!("  worker   takes tasks from {}", queues.join(", ")),
        format!("  sandbox  {offer}"),
        format!("  API      {url}/api/v1/openapi.json"),
        format!("  metrics  {url}/metrics"),
        String::new(),
        "Try, in another terminal:".to_owned(),
    ];
    if url != SERVER_DEFAULT {
        lines.push(bold(format!("  export TENURE_SERVER={url}")));
    }
    lines.extend([
        bold(format!("  tenure task submit {queue} echo --payload '{{\"hello\":\"world\"}}' --wait")),
        bold(format!("  tenure task submit {queue} sleep --payload '{{\"ms\":20000}}' --lease-ttl 3s --wait")),
        bold("  tenure task list".to_owned()),
    ]);
    if sandboxes {
        lines.push(bold("  tenure sandbox create --wait --shell".to_owned()));
    }
    lines.extend([String::new(), "Press Ctrl-C to stop.".to_owned()]);
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_welcome_names_what_to_open_and_what_to_try() {
        console::set_colors_enabled(false);
        let store = StoreUrl::parse("postgres://u:hunter2@h/d").unwrap();
        let text = welcome("http://127.0.0.1:1", &["etl".into(), "mail".into()], &store, true);
        for part in [
            "http://127.0.0.1:1/api/v1/openapi.json",
            "task submit etl echo",
            "TENURE_SERVER=http://127.0.0.1:1\n",
            "etl, mail",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert!(!text.contains("hunter2"));
        assert!(!welcome(SERVER_DEFAULT, &[], &store, false).contains("TENURE_SERVER"));
    }
}
