//! What can be seen on this machine alone.

use std::path::Path;

use nix::sys::statvfs::statvfs;

use super::Finding;
use crate::token;
use tenure_config::Config;

const MIB: u64 = 1 << 20;
const SPACE_WARN: u64 = 1024 * MIB;
const SPACE_FAIL: u64 = 64 * MIB;

pub fn config(config: &Config) -> Finding {
    if let Err(error) = config.auth() {
        return Finding::fail("config", error.to_string(), "fix it; `tenure serve` would not start");
    }
    let source = match &config.file {
        Some(path) => format!("{} is valid", path.display()),
        None => "no file, using the defaults".to_owned(),
    };
    if config.has_idle_keys() {
        let message = format!("{source}, but API keys are set and auth.enabled is false");
        return Finding::warn("config", message, "set auth.enabled: true, or remove the keys");
    }
    Finding::ok("config", source)
}

pub fn data_folder(data: &Path) -> Vec<Finding> {
    let check = "data folder";
    let shown = data.display();
    if !data.exists() {
        return vec![Finding::ok(check, format!("{shown} does not exist yet; the first start creates it"))];
    }
    let writable = match tempfile::NamedTempFile::new_in(data) {
        Ok(_) => Finding::ok(check, format!("{shown} can be written")),
        Err(error) => {
            let fix = format!("make {shown} writable for this user, or choose another with --data");
            Finding::fail(check, format!("{shown} cannot be written: {error}"), fix)
        }
    };
    let mut findings = vec![writable];
    if let Ok(disk) = statvfs(data) {
        findings.push(free_space(disk.blocks_available() * disk.fragment_size()));
    }
    findings
}

fn free_space(bytes: u64) -> Finding {
    let check = "disk space";
    let message = format!("{} MiB free", bytes / MIB);
    let fix = "free some space: a store that cannot write refuses work";
    match bytes {
        0..SPACE_FAIL => Finding::fail(check, message, fix),
        SPACE_FAIL..SPACE_WARN => Finding::warn(check, message, fix),
        _ => Finding::ok(check, message),
    }
}

pub fn worker_token(config: &Config) -> Finding {
    let check = "worker token";
    let path = token::path_in(&config.data);
    let shown = path.display();
    match token::is_exposed(&path) {
        Ok(false) => Finding::ok(check, format!("only its owner can read {shown}")),
        Ok(true) => {
            let message = format!("other users can read {shown}");
            Finding::fail(check, message, format!("chmod 600 {shown}, or remove it to get a new one"))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => match config.auth() {
            Ok(auth) if auth.worker.is_configured() => Finding::ok(check, "set in the configuration"),
            _ => Finding::ok(check, "none yet; the first start on a loopback address creates one"),
        },
        Err(error) => Finding::fail(
            check,
            format!("{shown} cannot be examined: {error}"),
            "check the permissions of the data folder",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    #[test]
    fn little_space_is_noticed_before_there_is_none() {
        assert_eq!(free_space(2048 * MIB).status, Status::Ok);
        assert_eq!(free_space(512 * MIB).status, Status::Warn);
        assert_eq!(free_space(MIB).status, Status::Fail);
    }

    #[test]
    fn a_folder_that_is_a_file_cannot_be_written() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(data_folder(file.path())[0].status, Status::Fail);
        assert_eq!(data_folder(Path::new("/nowhere/at/all"))[0].status, Status::Ok);
    }
}
