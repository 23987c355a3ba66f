//! `tenure sandbox cp`

mod tree;

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use futures_util::stream;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tenure_client::sandboxes::FileStream;
use tenure_client::{Client, ClientError, Sandbox};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::io::{InspectReader, StreamReader};

use self::tree::{Entry, Tree};
use super::exec::running;
use super::manage::bytes;
use crate::cmd::connect::ClientArgs;
use crate::exit::{Exit, Stop};
use crate::output::{self, clean};

/// Where a path without a beginning begins.
const WORKSPACE: &str = "/workspace";
const FOLDER_MARK: &str = ".tenure-cp";

const DETAILS: &str = "\
A path in a sandbox is written SANDBOX:PATH; one that does not begin with / is below /workspace. At least one side is a sandbox. As \
with scp, the target is a folder if it exists as one, ends with /, or there are several sources. Links are followed. A file that \
was not copied completely does not replace one that exists.

Examples:
  tenure sandbox cp data.csv sb-0a1b2c3d:
  tenure sandbox cp -r ./src sb-0a1b2c3d:/workspace/
  tenure sandbox cp sb-0a1b2c3d:/workspace/report.pdf .";

#[derive(Debug, clap::Args)]
#[command(after_help = DETAILS)]
pub struct Args {
    #[command(flatten)]
    client: ClientArgs,
    /// Copy folders with everything in them
    #[arg(long, short)]
    recursive: bool,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
    /// Sources, then the target
    #[arg(value_name = "PATH", num_args = 2.., required = true)]
    paths: Vec<String>,
}

/// One side of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    Local(PathBuf),
    Remote { id: String, path: String },
}

impl Place {
    fn parse(text: &str) -> Self {
        match text.split_once(':').filter(|(id, _)| id.starts_with("sb-") && !id.contains('/')) {
            None => Self::Local(text.into()),
            Some((id, path)) => {
                let path = if path.starts_with('/') { path.to_owned() } else { format!("{WORKSPACE}/{path}") };
                let trimmed = path.trim_end_matches('/');
                let path = if trimmed.is_empty() { "/".to_owned() } else { trimmed.to_owned() };
                Self::Remote { id: id.to_owned(), path }
            }
        }
    }
}

#[derive(Debug, Default, Serialize)]
struct Copied {
    files: u64,
    bytes: u64,
}

/// A file to be copied.
struct Copy {
    from: Place,
    to: Place,
    entry: Entry,
}

pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let mut paths = args.paths.clone();
    let target = paths.pop().unwrap_or_default();
    let mut copier = Copier { client: args.client.client()?, sandboxes: BTreeMap::new(), recursive: args.recursive };
    let copies = copier.plan(&paths, &target).await?;
    let total = copies.iter().map(|copy| copy.entry.size).sum();
    let bar = progress(total, args.quiet || args.client.json);
    let mut copied = Copied::default();
    copier.make_folders(&copies).await?;
    for copy in copies.iter().filter(|copy| !copy.entry.is_dir) {
        bar.set_message(clean(&copy.entry.name));
        copier.copy(copy, &bar).await.with_context(|| format!("{} was not copied", shown(&copy.from)))?;
        copied.files += 1;
        copied.bytes += copy.entry.size;
    }
    bar.finish_and_clear();
    if args.client.json {
        output::json(&copied)?;
    } else if !args.quiet {
        let files = if copied.files == 1 { "1 file".to_owned() } else { format!("{} files", copied.files) };
        eprintln!("Copied {files}, {}.", bytes(copied.bytes));
    }
    Ok(Exit::Ok)
}

fn progress(total: u64, hidden: bool) -> ProgressBar {
    if hidden || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{wide_msg} {bytes}/{total_bytes} {bytes_per_sec} [{bar:20}] {eta}");
    let bar = ProgressBar::new(total);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

fn shown(place: &Place) -> String {
    match place {
        Place::Local(path) => path.display().to_string(),
        Place::Remote { id, path } => format!("{id}:{path}"),
    }
}

struct Copier {
    client: Client,
    sandboxes: BTreeMap<String, Sandbox>,
    recursive: bool,
}

impl Copier {
    async fn plan(&mut self, sources: &[String], target: &str) -> anyhow::Result<Vec<Copy>> {
        let to = Place::parse(target);
        let sources: Vec<_> = sources.iter().map(|source| Place::parse(source)).collect();
        if let Place::Local(_) = &to
            && let Some(Place::Local(path)) = sources.iter().find(|source| matches!(source, Place::Local(_)))
        {
            return Err(Stop::usage(format!("neither {} nor {target} is in a sandbox", path.display()))
                .hint("write SANDBOX:PATH for a path in a sandbox")
                .into());
        }
        for place in sources.iter().chain([&to]) {
            if let Place::Remote { id, .. } = place
                && !self.sandboxes.contains_key(id)
            {
                self.sandboxes.insert(id.clone(), running(&self.client, id).await?);
            }
        }
        let is_folder = target.ends_with('/') || target.ends_with(':') || self.is_folder(&to).await?;
        if sources.len() > 1 && !is_folder {
            return Err(Stop::usage(format!("{target} is not a folder, and there are several sources")).into());
        }
        let mut copies = Vec::new();
        for source in sources {
            let tree = self.read(&source).await?;
            let root = if is_folder { beneath(&to, &tree.name) } else { to.clone() };
            for entry in tree.entries {
                let (from, to) = match entry.name.as_str() {
                    "" => (source.clone(), root.clone()),
                    name => (beneath(&source, name), beneath(&root, name)),
                };
                copies.push(Copy { from, to, entry });
            }
        }
        Ok(copies)
    }

    fn sandbox(&self, id: &str) -> anyhow::Result<&Sandbox> {
        self.sandboxes.get(id).with_context(|| format!("{id} was not looked up"))
    }

    async fn is_folder(&self, place: &Place) -> anyhow::Result<bool> {
        match place {
            Place::Local(path) => Ok(path.is_dir()),
            Place::Remote { id, path } => match self.sandbox(id)?.stat_file(path).await {
                Ok(file) => Ok(file.is_dir),
                Err(ClientError::Api { status: 404, .. }) => Ok(false),
                Err(error) => Err(error.into()),
            },
        }
    }

    async fn read(&self, source: &Place) -> anyhow::Result<Tree> {
        let tree = match source {
            Place::Local(path) => {
                let (path, recursive) = (path.clone(), self.recursive);
                tokio::task::spawn_blocking(move || tree::local(&path, recursive)).await?
            }
            Place::Remote { id, path } => tree::remote(self.sandbox(id)?, path, self.recursive).await,
        };
        tree.with_context(|| format!("{} cannot be copied", shown(source)))
    }

    /// Folders appear with the files in them; what is left are empty ones. In a sandbox such a one is made by a file that
    /// does not stay: a sandbox need not have a `mkdir`.
    async fn make_folders(&self, copies: &[Copy]) -> anyhow::Result<()> {
        for copy in copies.iter().filter(|copy| copy.entry.is_dir) {
            match &copy.to {
                Place::Local(path) => std::fs::create_dir_all(path).with_context(|| path.display().to_string())?,
                Place::Remote { id, path } => {
                    let (sandbox, file) = (self.sandbox(id)?, format!("{path}/{FOLDER_MARK}"));
                    sandbox.write_file(&file, "", None).await?;
                    sandbox.delete_file(&file, false).await?;
                }
            }
        }
        Ok(())
    }

    async fn copy(&self, copy: &Copy, bar: &ProgressBar) -> anyhow::Result<()> {
        let mode = format!("{:04o}", copy.entry.mode & 0o777);
        match (&copy.from, &copy.to) {
            (Place::Local(from), Place::Remote { id, path }) => {
                let file = tokio::fs::File::open(from).await?;
                let (size, bar) = (file.metadata().await?.len(), bar.clone());
                // What is written to the file meanwhile is not part of the copy.
                let reader = InspectReader::new(file.take(size), move |piece| bar.inc(piece.len() as u64));
                Ok(self.sandbox(id)?.upload(path, reader, size, Some(&mode)).await?)
            }
            (Place::Remote { id, path }, Place::Local(to)) => {
                download(self.sandbox(id)?.download(path).await?, to, copy.entry.mode, bar).await
            }
            (Place::Remote { id, path }, Place::Remote { id: other, path: to }) => {
                let content = self.sandbox(id)?.download(path).await?;
                let size = content.size().unwrap_or(copy.entry.size);
                let bar = bar.clone();
                let reader = InspectReader::new(reader(content), move |piece| bar.inc(piece.len() as u64));
                Ok(self.sandbox(other)?.upload(to, reader, size, Some(&mode)).await?)
            }
            (Place::Local(_), Place::Local(_)) => anyhow::bail!("neither side is in a sandbox"),
        }
    }
}

fn reader(content: FileStream) -> impl tokio::io::AsyncRead + Send + Sync + Unpin + 'static {
    let pieces = stream::unfold(content, async |mut content| {
        let piece = content.next().await?;
        Some((piece.map_err(std::io::Error::other), content))
    });
    StreamReader::new(Box::pin(pieces))
}

async fn download(mut content: FileStream, to: &Path, mode: u32, bar: &ProgressBar) -> anyhow::Result<()> {
    let folder = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let partial = tempfile::Builder::new().prefix(".tenure-cp-").tempfile_in(folder)?;
    let mut file = tokio::fs::File::from_std(partial.reopen()?);
    while let Some(piece) = content.next().await {
        let piece = piece?;
        file.write_all(&piece).await?;
        bar.inc(piece.len() as u64);
    }
    file.flush().await?;
    drop(file);
    std::fs::set_permissions(partial.path(), std::fs::Permissions::from_mode(mode & 0o777))?;
    partial.persist(to).map_err(|error| error.error).with_context(|| to.display().to_string())?;
    Ok(())
}

fn beneath(place: &Place, name: &str) -> Place {
    match place {
        _ if name.is_empty() => place.clone(),
        Place::Local(path) => Place::Local(path.join(name)),
        Place::Remote { id, path } => {
            Place::Remote { id: id.clone(), path: format!("{}/{name}", path.trim_end_matches('/')) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(path: &str) -> Place {
        Place::Remote { id: "sb-1".into(), path: path.into() }
    }

    #[test]
    fn a_path_in_a_sandbox_begins_with_its_id() {
        for (text, place) in [
            ("sb-1:/a/b", remote("/a/b")),
            ("sb-1:/a/b/", remote("/a/b")),
            ("sb-1:a", remote("/workspace/a")),
            ("sb-1:", remote("/workspace")),
            ("sb-1:/", remote("/")),
            ("./sb-1:a", Place::Local("./sb-1:a".into())),
            ("C:/a", Place::Local("C:/a".into())),
            ("a", Place::Local("a".into())),
        ] {
            assert_eq!(Place::parse(text), place, "{text}");
        }
        assert_eq!(beneath(&remote("/"), "a/b"), remote("/a/b"));
        assert_eq!(beneath(&Place::Local("x".into()), "a"), Place::Local("x/a".into()));
    }
}
