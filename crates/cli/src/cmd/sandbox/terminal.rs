use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

use nix::sys::termios::{self, SetArg, Termios};
use tenure_sandbox::Terminal;

/// The terminal of this process while its keys go to a command: every byte is passed on as it is typed. Dropping it
/// restores the settings.
#[derive(Debug)]
pub struct RawTerminal {
    before: Termios,
}

impl RawTerminal {
    pub fn enter() -> io::Result<Self> {
        let before = termios::tcgetattr(io::stdin().as_fd())?;
        let mut raw = before.clone();
        termios::cfmakeraw(&mut raw);
        termios::tcsetattr(io::stdin().as_fd(), SetArg::TCSANOW, &raw)?;
        Ok(Self { before })
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // A terminal that has gone needs no settings.
        let _ = termios::tcsetattr(io::stdin().as_fd(), SetArg::TCSANOW, &self.before);
    }
}

/// Whether somebody types and looks.
pub fn is_interactive() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

pub fn size() -> Terminal {
    let (rows, columns) = console::Term::stdout().size();
    Terminal { rows, columns }
}
