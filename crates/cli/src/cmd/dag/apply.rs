//! Deploying, and what it would change.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use console::style;
use serde_json::json;
use tenure_client::dags::{DagDeployed, DagProblem};
use tenure_client::{Client, ClientError, DeployOptions};

use super::problems::{self, Kind};
use super::watch;
use crate::cmd::connect::text_or_file;
use crate::exit::{Exit, Stop};
use crate::output::{self, clean};

#[derive(Debug, clap::Args)]
pub struct ApplyArgs {
    /// The DAG as YAML, or - for standard input
    file: String,
    /// Leave the version Ready until `tenure dag cutover`
    #[arg(long)]
    manual_cutover: bool,
    /// Wait until the version is active, or ready with --manual-cutover
    #[arg(long)]
    wait: bool,
}

#[derive(Debug, clap::Args)]
pub struct PlanArgs {
    /// The DAG as YAML, or - for standard input
    file: String,
}

/// The text of a DAG.
struct Source {
    /// As messages name it.
    name: String,
    yaml: String,
}

impl Source {
    fn read(file: &str) -> anyhow::Result<Self> {
        let yaml = if file == "-" { text_or_file("-")? } else { text_or_file(&format!("@{file}"))? };
        Ok(Self { name: if file == "-" { "standard input".to_owned() } else { file.to_owned() }, yaml })
    }

    /// Deploys it, or shows what is wrong.
    async fn send(&self, client: &Client, options: DeployOptions, json: bool) -> anyhow::Result<DagDeployed> {
        match client.deploy_dag(&self.yaml, options).await {
            Ok(deployed) => {
                if !json && !deployed.warnings.is_empty() {
                    eprint!("{}", problems::render(Kind::Warning, &self.name, &self.yaml, &deployed.warnings));
                }
                Ok(deployed)
            }
            Err(ClientError::InvalidDag { errors, message, .. }) => Err(self.refused(&errors, &message, json)?),
            Err(error) => Err(anyhow::Error::new(error).context("the DAG was not deployed")),
        }
    }

    fn refused(&self, errors: &[DagProblem], message: &str, json: bool) -> anyhow::Result<anyhow::Error> {
        if json {
            output::json(&json!({"error": "invalid_dag", "message": message, "errors": errors}))?;
        } else {
            eprint!("{}", problems::render(Kind::Error, &self.name, &self.yaml, errors));
        }
        let count = if errors.len() == 1 { "1 error".to_owned() } else { format!("{} errors", errors.len()) };
        Ok(Stop::usage(format!("{} has {count}: nothing was deployed", self.name)).into())
    }
}

pub async fn apply(client: &Client, args: ApplyArgs, json: bool) -> anyhow::Result<Exit> {
    let source = Source::read(&args.file)?;
    let options = DeployOptions { manual_cutover: args.manual_cutover, dry_run: false };
    let deployed = source.send(client, options, json).await?;
    if json {
        output::json(&deployed)?;
    } else {
        output::line(applied(&deployed))?;
    }
    if args.wait {
        return watch::until_settled(client, &deployed.name, deployed.version, json).await;
    }
    Ok(Exit::Ok)
}

fn applied(deployed: &DagDeployed) -> String {
    let (name, version) = (clean(&deployed.name), deployed.version);
    match deployed.state.as_str() {
        "Active" if deployed.changed_jobs.is_empty() && deployed.removed_jobs.is_empty() => {
            format!("Version {version} of {name} is active; no job has changed.")
        }
        "Active" => format!("Version {version} of {name} is active."),
        "Ready" => {
            format!("Version {version} of {name} is ready. Make it active with `tenure dag cutover {name} {version}`.")
        }
        _ => format!(
            "Version {version} of {name} is deployed; its outputs are rebuilt first. Follow it with `tenure dag watch {name}`."
        ),
    }
}

pub async fn plan(client: &Client, args: PlanArgs, json: bool) -> anyhow::Result<Exit> {
    let source = Source::read(&args.file)?;
    let planned = source.send(client, DeployOptions { dry_run: true, manual_cutover: false }, json).await?;
    if json {
        output::json(&planned)?;
        return Ok(Exit::Ok);
    }
    let (active, before) = match client.dag(&planned.name, None).await {
        Ok(dag) => (dag.active_version, dag.jobs.into_iter().map(|job| job.name).collect()),
        Err(error) if error.status() == Some(404) => (None, BTreeSet::new()),
        Err(error) => return Err(error.into()),
    };
    output::line(difference(&planned, active, &before, &args.file))?;
    Ok(Exit::Ok)
}

/// What would change, job by job.
fn difference(planned: &DagDeployed, active: Option<i64>, before: &BTreeSet<String>, file: &str) -> String {
    let (name, version) = (clean(&planned.name), planned.version);
    if planned.dag_version_id.is_some() && planned.changed_jobs.is_empty() && planned.rebuild_jobs.is_empty() {
        return format!("{name}: this is version {version}, which is {}. Nothing would change.", clean(&planned.state));
    }
    let compared =
        active.map_or_else(|| "nothing is active yet".to_owned(), |active| format!("active: version {active}"));
    let mut text = format!("{name}: version {version} would be {} ({compared})\n\n", clean(&planned.state));
    let rebuilt: BTreeSet<&String> = planned.rebuild_jobs.iter().collect();
    let changed: BTreeSet<&String> = planned.changed_jobs.iter().collect();
    let also: Vec<&String> = planned.rebuild_jobs.iter().filter(|job| !changed.contains(job)).collect();
    // Nothing of a first version was there before, so that nothing is made again.
    let again = |job: &String| active.is_some() && rebuilt.contains(job);
    let mut rows: Vec<(char, &String, &str)> = Vec::new();
    for job in &planned.changed_jobs {
        let (sign, what) = match (before.contains(job), again(job)) {
            (false, false) => ('+', "new"),
            (false, true) => ('+', "new, computed from the data that is there"),
            (true, false) => ('~', "changed"),
            (true, true) => ('~', "changed, rebuilt"),
        };
        rows.push((sign, job, what));
    }
    rows.extend(also.into_iter().map(|job| ('~', job, "rebuilt, because it reads a job that changes")));
    rows.extend(planned.removed_jobs.iter().map(|job| ('-', job, "removed")));
    rows.extend(planned.kept_jobs.iter().map(|job| ('=', job, "kept, with its tasks and data")));
    let width = rows.iter().map(|(_, job, _)| job.chars().count()).max().unwrap_or(0);
    for (sign, job, what) in rows {
        let job = clean(job);
        let pad = " ".repeat(width - job.chars().count().min(width));
        let line = format!("  {sign} {job}{pad}  {what}");
        let styled = match sign {
            '+' => style(line).green(),
            '~' => style(line).yellow(),
            '-' => style(line).red(),
            _ => style(line).dim(),
        };
        let _ = writeln!(text, "{styled}");
    }
    let _ = write!(text, "\nNothing was written. Deploy it with `tenure dag apply {}`.", clean(file));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(extra: &str) -> DagDeployed {
        let text = format!(
            r#"{{"name":"chain","version":2,"dag_version_id":null,"yaml_hash":"sha256:0","state":"Staging","warnings":[],
            "dry_run":true,{extra}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn a_plan_tells_what_happens_to_each_job() {
        console::set_colors_enabled(false);
        let plan = planned(
            r#""changed_jobs":["decode","report"],"rebuild_jobs":["count","decode","report"],"kept_jobs":["import"],"removed_jobs":["old"]"#,
        );
        let before = ["count", "decode", "import", "old"].map(str::to_owned).into();
        let text = difference(&plan, Some(1), &before, "chain.yaml");
        let expected = "chain: version 2 would be Staging (active: version 1)

  ~ decode  changed, rebuilt
  + report  new, computed from the data that is there
  ~ count   rebuilt, because it reads a job that changes
  - old     removed
  = import  kept, with its tasks and data

Nothing was written. Deploy it with `tenure dag apply chain.yaml`.";
        assert_eq!(text, expected);
        let first = planned(r#""changed_jobs":["decode"],"rebuild_jobs":["decode"]"#);
        let text = difference(&first, None, &BTreeSet::new(), "-");
        assert!(text.contains("+ decode  new\n") && text.contains("nothing is active yet"), "{text}");
    }

    #[test]
    fn a_text_that_is_deployed_already_changes_nothing() {
        let same = DagDeployed {
            dag_version_id: Some("id".to_owned()),
            state: "Active".to_owned(),
            ..planned(r#""changed_jobs":[],"rebuild_jobs":[],"kept_jobs":["a"]"#)
        };
        let text = difference(&same, Some(2), &BTreeSet::new(), "f");
        assert_eq!(text, "chain: this is version 2, which is Active. Nothing would change.");
        assert_eq!(applied(&same), "Version 2 of chain is active; no job has changed.");
    }
}
