//! `tenure demo sandbox`

mod attacks;
mod honest;

use std::time::{Duration, Instant};

use console::style;

use crate::cmd::sandbox::{Name, Place};
use crate::exit::{Exit, Stop};
use crate::output::{self, cell, number};
use crate::signals;
use attacks::{ALL, Stage, Verdict};
use honest::Honest;

/// It takes a fraction of this; more means that something hangs.
const LIMIT: Duration = Duration::from_secs(110);

const DETAILS: &str = "\
Runs hostile programs in sandboxes on this machine, one after the other, and honest work in other sandboxes beside them. \
Shows for each attack what it tried and what stopped it, and checks that the honest work was not disturbed. Exits with 0 \
only if every attack was refused and every honest result is right. Needs a machine on which `tenure sandbox check` shows \
that memory, pids and net are enforced. Removes everything it created.";

#[derive(Debug, clap::Args)]
#[command(after_help = DETAILS)]
pub struct Args {
    #[command(flatten)]
    place: Place,
}

pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let stop = signals::stop_on_signal()?;
    let private = Name::default().open(&args.place.load()?).await.map_err(|error| {
        Stop::new(Exit::Unavailable, format!("{error:#}")).hint("`tenure sandbox check` shows what this machine lacks")
    })?;
    let stage = Stage::open(private.provider()).await?;
    let attacks = ALL.len();
    output::line(format!(
        "{}\n\n",
        style(format!("Tenure demo: {attacks} attacks in sandboxes, honest work beside them")).bold()
    ))?;
    let played = tokio::select! {
        played = tokio::time::timeout(LIMIT, play(&stage)) => played,
        () = stop.cancelled() => return Err(Stop::new(Exit::Interrupted, "interrupted").into()),
    };
    let (verdicts, honest) = match played {
        Err(_) => anyhow::bail!("the demo did not finish within {} s", LIMIT.as_secs()),
        Ok(played) => played?,
    };
    let good = verdicts.iter().all(|verdict| verdict.refused) && honest.is_good();
    output::line(summary(&verdicts, &honest))?;
    if good { Ok(Exit::Ok) } else { Err(anyhow::anyhow!("not every attack was refused, or honest work was disturbed")) }
}

async fn play(stage: &Stage<'_>) -> anyhow::Result<(Vec<Verdict>, honest::Tally)> {
    let honest = Honest::start(stage.provider()).await?;
    let mut verdicts = Vec::new();
    for attack in ALL {
        let begun = Instant::now();
        let verdict = stage.run(attack).await?;
        let mark = if verdict.refused { style("✓").green() } else { style("✗").red().bold() };
        output::line(format!(
            "{mark} {}: {} ({:.1} s)",
            style(verdict.name).bold(),
            output::clean(&verdict.happened),
            begun.elapsed().as_secs_f64()
        ))?;
        verdicts.push(verdict);
    }
    Ok((verdicts, honest.stop().await?))
}

fn summary(verdicts: &[Verdict], honest: &honest::Tally) -> String {
    let rows = verdicts.iter().map(|verdict| {
        let answer = if verdict.refused { "refused" } else { "NOT REFUSED" };
        vec![cell(verdict.name), cell(verdict.tried), cell(answer)]
    });
    let table = output::table(&["ATTACK", "WHAT IT TRIED", ""], rows);
    let refused = verdicts.iter().filter(|verdict| verdict.refused).count();
    let mark = |good: bool| if good { style("✓").green() } else { style("✗").red().bold() };
    let counts =
        [vec![cell("honest commands"), number(honest.done), cell("beside the attacks, each in its own sandbox")]];
    let counts = output::table(&["", "", ""], counts);
    format!(
        "\n{table}\n\n{}\n{} {refused} of {} attacks were refused\n{} {} of {} honest results are right\n\n\
         Try your own:  tenure sandbox run --memory 256m --timeout 30s -- COMMAND",
        counts.trim(),
        mark(refused == verdicts.len()),
        verdicts.len(),
        mark(honest.is_good()),
        honest.right,
        honest.done,
    )
}
