//! `tenure serve`

use super::control_plane::{ControlPlane, ListenArgs};
use crate::exit::Exit;
use crate::{logging, output, signals};

const DETAILS: &str = "\
Prints `tenure listening on URL` on stdout when it is ready; everything else goes to stderr.

If no worker credential is configured, the first start creates one, worker-token in the data folder. That, and an \
API without keys, is allowed on loopback addresses only.

SIGTERM and SIGINT let open requests finish and exit with 0; a second signal stops at once.";

#[derive(Debug, clap::Args)]
#[command(after_help = DETAILS)]
pub struct Args {
    #[command(flatten)]
    listen: ListenArgs,
}

pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let config = args.listen.load()?;
    logging::start(config.logging)?;
    let stop = signals::stop_on_signal()?;
    let control_plane = tokio::select! {
        ready = ControlPlane::prepare(config, false) => ready?,
        () = stop.cancelled() => return Ok(Exit::Ok),
    };
    output::line(format!("tenure listening on {}", control_plane.url()?))?;
    control_plane.run(stop.cancelled_owned()).await?;
    Ok(Exit::Ok)
}
