//! Programs and packages from the Python Package Index.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::scratch;

/// The folder `bin` of a virtual environment with these packages, which stays for later tests. Once per machine they are
/// installed: one test process does it and the others wait.
///
/// # Panics
///
/// When there is no Python with `venv`, or the packages cannot be installed.
pub fn python_packages(name: &str, packages: &[&str]) -> PathBuf {
    install(name, packages).unwrap_or_else(|error| panic!("no {name}: {error:?}"))
}

pub(crate) fn install(name: &str, packages: &[&str]) -> Result<PathBuf> {
    let home = scratch::folder(name)?;
    let lock = File::create(home.join("lock"))?;
    lock.lock()?;
    let (venv, complete) = (home.join("venv"), home.join("complete"));
    let bin = venv.join("bin");
    if fs::read_to_string(&complete).is_ok_and(|installed| installed == packages.join(" ")) && bin.exists() {
        return Ok(bin);
    }
    // What is left of an attempt that was broken off.
    if venv.exists() {
        fs::remove_dir_all(&venv)?;
    }
    run(Command::new("python3").args(["-m", "venv"]).arg(&venv)).context("install python3 and python3-venv")?;
    let mut pip = Command::new(bin.join("pip"));
    pip.args(["install", "--quiet", "--disable-pip-version-check"]).args(packages);
    run(&mut pip).context("is a package index reachable?")?;
    write_whole(&complete, &packages.join(" "))?;
    Ok(bin)
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} failed with {}: {said}", output.status);
    Ok(())
}

fn write_whole(path: &Path, text: &str) -> Result<()> {
    let draft = path.with_extension("draft");
    fs::write(&draft, text)?;
    fs::rename(draft, path)?;
    Ok(())
}
