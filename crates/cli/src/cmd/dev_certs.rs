//! `tenure dev-certs`

use std::fmt::Write;
use std::path::{Path, PathBuf};

use tenure_tls::{DEV_CERTS_DAYS, TlsError, dev_certs};

use crate::exit::{Exit, Stop};
use crate::output;

const DETAILS: &str = "\
The server's certificate is for localhost, 127.0.0.1, ::1 and the names given with --name. Existing files are not overwritten. \
For production, use certificates from a CA that you maintain.";

#[derive(Debug, clap::Args)]
#[command(after_help = DETAILS)]
pub struct Args {
    /// Folder for the files; created if missing
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Additional host name or address of the server and of workers; repeatable
    #[arg(long = "name", value_name = "HOST")]
    names: Vec<String>,
    /// Also create a certificate for this worker; repeatable
    #[arg(long = "worker", value_name = "ID")]
    workers: Vec<String>,
}

pub fn run(args: &Args) -> anyhow::Result<Exit> {
    let made = dev_certs(&args.dir, &args.names, &args.workers).map_err(|error| match error {
        TlsError::Exists { .. } | TlsError::WorkerId { .. } | TlsError::Make { .. } => {
            Stop::usage(error.to_string()).into()
        }
        other => anyhow::Error::from(other),
    })?;
    output::line(report(&args.dir, &made, &args.workers)?)?;
    Ok(Exit::Ok)
}

fn report(dir: &Path, made: &[PathBuf], workers: &[String]) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    writeln!(text, "Created for local use, valid for {DEV_CERTS_DAYS} days:")?;
    for path in made {
        writeln!(text, "  {}", path.display())?;
    }
    let dir = dir.display();
    writeln!(text, "\nServe with TLS, in tenure.yaml:")?;
    writeln!(text, "  server:\n    tls:\n      cert_file: {dir}/server.crt\n      key_file: {dir}/server.key")?;
    writeln!(text, "\nTrust it:")?;
    writeln!(text, "  curl --cacert {dir}/ca.crt https://localhost:7423/api/v1/health")?;
    writeln!(text, "\nPostgres: ssl=on with server.crt and server.key there, and in the address here")?;
    writeln!(text, "  ?sslmode=verify-full&sslrootcert={dir}/ca.crt")?;
    if let Some(id) = workers.first() {
        writeln!(text, "\nWorker RPC, on worker {id}:")?;
        writeln!(text, "  worker:\n    rpc_tls:\n      enabled: true")?;
        writeln!(text, "      server_cert_file: {dir}/worker-{id}.crt\n      server_key_file: {dir}/worker-{id}.key")?;
        writeln!(text, "      client_ca_file: {dir}/ca.crt")?;
        writeln!(text, "and on the control plane:")?;
        writeln!(text, "  worker:\n    rpc_tls:\n      enabled: true\n      ca_file: {dir}/ca.crt")?;
        writeln!(text, "      client_cert_file: {dir}/client.crt\n      client_key_file: {dir}/client.key")?;
        writeln!(text, "      bind_worker_id: require")?;
    }
    writeln!(text, "\nThrowaway: ca.key can sign for any name. Delete the folder when you are done.")?;
    Ok(text)
}
