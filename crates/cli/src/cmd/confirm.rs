//! Asks the person at the terminal before something is changed that cannot be changed back.

use std::io::{IsTerminal, Write};

use crate::exit::{Exit, Stop};

/// An error, with this hint, unless somebody can be asked.
pub fn require_terminal(hint: &str) -> anyhow::Result<()> {
    if std::io::stdin().is_terminal() && std::io::stderr().is_terminal() {
        return Ok(());
    }
    Err(Stop::usage("cannot prompt for confirmation: stdin is not a terminal").hint(hint).into())
}

/// An error unless the answer is yes.
pub fn ask(question: &str) -> anyhow::Result<()> {
    eprint!("{question} [y/N] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    if matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes") {
        return Ok(());
    }
    Err(Stop::new(Exit::Failure, "nothing was changed").into())
}
