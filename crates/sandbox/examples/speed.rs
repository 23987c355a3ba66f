//! How long it takes to make, use and end sandboxes of the provider `namespace` on this machine.
//!
//! `cargo run --release -p tenure-sandbox --example speed [ROUNDS]`
#![allow(clippy::print_stdout, reason = "its output is what it is for")]

use std::time::{Duration, Instant};

use tenure_sandbox::{AgentProgram, Command, NamespaceProvider, NamespaceSettings, Provider, Spec};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Before there is a thread: sandboxes begin as copies of this program.
    tenure_sandbox::agent_main();
    tokio::runtime::Runtime::new()?.block_on(measure())
}

async fn measure() -> Result<(), Box<dyn std::error::Error>> {
    let rounds = std::env::args().nth(1).map_or(Ok(200), |text| text.parse::<usize>())?;
    let dir = std::env::temp_dir().join(format!("tenure-speed-{}", std::process::id()));
    let provider = NamespaceProvider::new(NamespaceSettings::new(&dir, AgentProgram::this()?)?)?;
    let (mut spawns, mut firsts, mut warms, mut ends, mut memory) = (vec![], vec![], vec![], vec![], 0);
    for round in 0..rounds {
        let started = Instant::now();
        let id = provider.spawn(Spec::new(format!("speed-{round}"), "host")).await?.id;
        spawns.push(started.elapsed());
        memory = provider.stats(&id).await?.memory_bytes;
        let run = async || provider.exec(&id, Command::argv(["/bin/true"])).await?.output(1).await;
        run().await?;
        firsts.push(started.elapsed());
        let started = Instant::now();
        run().await?;
        warms.push(started.elapsed());
        let started = Instant::now();
        provider.destroy(&id).await?;
        ends.push(started.elapsed());
    }
    for (name, times) in [("spawn", spawns), ("spawn and first exec", firsts), ("warm exec", warms), ("destroy", ends)]
    {
        println!("{name:<22} p50 {:>8.2?}   p99 {:>8.2?}", percentile(&times, 50), percentile(&times, 99));
    }
    println!("memory of an idle sandbox: {} KiB", memory / 1024);
    drop(provider);
    std::fs::remove_dir_all(dir)?;
    Ok(())
}

fn percentile(times: &[Duration], percent: usize) -> Duration {
    let mut times = times.to_vec();
    times.sort_unstable();
    times.get(times.len() * percent / 100).or(times.last()).copied().unwrap_or_default()
}
