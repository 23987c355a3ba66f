//! A whole result, written to a file.

use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Context;
use indicatif::HumanBytes;
use tenure_client::query::{QueryExport, QueryRequest};
use tenure_client::{Client, ExportFormat};

use super::{Spinner, place};
use crate::exit::Stop;
use crate::output::{self, ReaderGone};

/// Runs a query and writes all of its rows. A file appears when it is complete.
pub async fn export(client: &Client, request: &QueryRequest, format: ExportFormat, path: &Path) -> anyhow::Result<()> {
    let to_stdout = path == Path::new("-");
    if to_stdout && format == ExportFormat::Parquet && output::is_terminal() {
        let hint = "name a file, or send standard output to one";
        return Err(Stop::usage("Parquet is not for a terminal").hint(hint).into());
    }
    let export = {
        let _spinner = Spinner::start("running the query");
        client.export_query(request, format).await.map_err(|error| place::pointed(error, &request.sql))?
    };
    let wrote = if to_stdout {
        download(client, &export, &mut io::stdout()).await
    } else {
        to_file(client, &export, path).await
    };
    match wrote {
        Err(error) if is_broken_pipe(&error) => return Err(ReaderGone.into()),
        other => {
            other.with_context(|| format!("the result was not written; it stays at {}", export.output_location))?
        }
    }
    if !to_stdout {
        let rows = if export.row_count == 1 { "1 row".to_owned() } else { format!("{} rows", export.row_count) };
        eprintln!("{rows}, {} in {}", HumanBytes(export.bytes), output::clean(&path.display().to_string()));
    }
    Ok(())
}

async fn to_file(client: &Client, export: &QueryExport, path: &Path) -> anyhow::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let unwritable = |error: io::Error| Stop::usage(format!("{} could not be written: {error}", path.display()));
    if path.is_dir() {
        return Err(Stop::usage(format!("{} is a folder: name a file in it", path.display())).into());
    }
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(unwritable)?;
    download(client, export, file.as_file_mut()).await?;
    file.as_file().sync_all()?;
    // A temporary file is for its owner alone; this one is like others of the user.
    let mode = path.metadata().map_or(0o644, |there| there.permissions().mode());
    file.as_file().set_permissions(std::fs::Permissions::from_mode(mode)).map_err(unwritable)?;
    file.persist(path).map_err(|failed| unwritable(failed.error))?;
    Ok(())
}

async fn download(client: &Client, export: &QueryExport, into: &mut impl Write) -> anyhow::Result<()> {
    let _spinner = Spinner::start("reading the result");
    let mut stream = client.download_result(export).await?;
    while let Some(piece) = stream.next().await {
        into.write_all(&piece?)?;
    }
    Ok(into.flush()?)
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
