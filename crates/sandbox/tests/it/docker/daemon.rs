//! A daemon for the tests of this process: Debian's Podman, with storage of its own.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tenure_testkit::wait_until_blocking;

/// The image that every test uses: a shell with the usual commands, linked statically.
pub const IMAGE: &str = "localhost/busybox:latest";

/// Much longer than a start takes.
const START: Duration = Duration::from_secs(60);

pub struct Daemon {
    child: Child,
    folder: TempDir,
}

impl Daemon {
    /// Starts a daemon, or says why this machine cannot.
    pub fn start() -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("podman is tested as root".to_owned());
        }
        for program in ["podman", "runc", "busybox"] {
            if !in_path(program) {
                return Err(format!("{program} is not installed"));
            }
        }
        let folder = TempDir::new().map_err(|error| error.to_string())?;
        let configuration = "[engine]\nlock_type = \"file\"\n";
        std::fs::write(folder.path().join("containers.conf"), configuration).map_err(|error| error.to_string())?;
        import(folder.path())?;
        let log = std::fs::File::create(folder.path().join("log")).map_err(|error| error.to_string())?;
        let child = podman(folder.path())
            .args(["system", "service", "--time=0"])
            .arg(format!("unix://{}", folder.path().join("podman.sock").display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(|error| error.to_string())?;
        let mut daemon = Self { child, folder };
        let started = wait_until_blocking("podman listens", START, || match daemon.child.try_wait() {
            Ok(None) => UnixStream::connect(daemon.socket()).is_ok().then_some(Ok(())),
            _ => Some(Err(daemon.log())),
        });
        started.map_err(|log| format!("podman does not start: {log}"))?;
        Ok(daemon)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("podman.sock")
    }

    /// The containers that the daemon has, by name.
    pub fn containers(&self) -> Vec<String> {
        let output =
            podman(self.folder.path()).args(["ps", "--all", "--format", "{{.Names}}"]).output().expect("podman");
        String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Not killed at first: it may hold a lock of its storage.
        if let Some(process) = rustix::process::Pid::from_raw(self.child.id().cast_signed()) {
            let _ = rustix::process::kill_process(process, rustix::process::Signal::TERM);
        }
        let end = Instant::now() + Duration::from_secs(10);
        // It must be killed if it does not end, so giving up is not a failure.
        wait_until_blocking("podman ends", START, || {
            !matches!(self.child.try_wait(), Ok(None)) || Instant::now() > end
        });
        let _ = self.child.kill();
        let _ = self.child.wait();
        // Containers outlive the daemon, and keep mounts in its folder.
        let _ = podman(self.folder.path()).args(["rm", "--all", "--force", "--time=0"]).output();
    }
}

fn podman(folder: &Path) -> Command {
    let mut command = Command::new("podman");
    command.arg("--root").arg(folder.join("root")).arg("--runroot").arg(folder.join("run"));
    command.args(["--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "--events-backend", "none"]);
    command.args(["--runtime", "runc"]);
    // Locks and marks of its own: by default they are shared with every Podman of the machine.
    command.arg("--tmpdir").arg(folder.join("tmp")).env("CONTAINERS_CONF", folder.join("containers.conf"));
    command
}

fn import(folder: &Path) -> Result<(), String> {
    let bin = folder.join("image/bin");
    std::fs::create_dir_all(&bin).map_err(|error| error.to_string())?;
    let busybox = which("busybox").ok_or("busybox is not installed")?;
    std::fs::copy(&busybox, bin.join("busybox")).map_err(|error| error.to_string())?;
    let applets = Command::new(&busybox).arg("--list").output().map_err(|error| error.to_string())?;
    for applet in String::from_utf8_lossy(&applets.stdout).lines() {
        let _ = std::os::unix::fs::symlink("busybox", bin.join(applet));
    }
    let archive = folder.join("image.tar");
    let mut tar = tar::Builder::new(std::fs::File::create(&archive).map_err(|error| error.to_string())?);
    tar.follow_symlinks(false);
    tar.append_dir_all(".", folder.join("image")).and_then(|()| tar.finish()).map_err(|error| error.to_string())?;
    let imported = podman(folder).arg("import").arg(&archive).arg(IMAGE).output().map_err(|error| error.to_string())?;
    if !imported.status.success() {
        return Err(format!("podman import: {}", String::from_utf8_lossy(&imported.stderr)));
    }
    Ok(())
}

fn in_path(program: &str) -> bool {
    which(program).is_some()
}

fn which(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|path| path.is_file())
}
