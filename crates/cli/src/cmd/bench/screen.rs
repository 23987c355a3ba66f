//! A bar on a terminal while a measurement runs, lines elsewhere.

use std::io::IsTerminal;
use std::sync::{Mutex, MutexGuard, PoisonError};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tenure_bench::Progress;

const BAR: &str = "  {spinner:.cyan} {msg:32} {bar:30.green/dim} {human_pos:>10} of {human_len}  {per_sec}";

/// Talks on standard error, so that standard output holds the result and nothing else.
#[derive(Debug)]
pub struct Screen {
    terminal: bool,
    bar: Mutex<ProgressBar>,
}

impl Screen {
    pub fn new() -> Self {
        Self { terminal: std::io::stderr().is_terminal(), bar: Mutex::new(ProgressBar::hidden()) }
    }

    pub fn clear(&self) {
        self.bar().finish_and_clear();
    }

    fn bar(&self) -> MutexGuard<'_, ProgressBar> {
        self.bar.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Progress for Screen {
    fn begin(&self, what: &str, total: u64) {
        if total == 0 {
            return;
        }
        if !self.terminal {
            eprintln!("  {what}");
            return;
        }
        let mut bar = self.bar();
        bar.finish_and_clear();
        // Drawn a few times a second: the machine has something else to do.
        let target = ProgressDrawTarget::stderr_with_hz(4);
        let style = ProgressStyle::with_template(BAR).unwrap_or_else(|_| ProgressStyle::default_bar());
        *bar = ProgressBar::with_draw_target(Some(total), target).with_style(style.progress_chars("━╸━"));
        bar.set_message(what.to_owned());
    }

    fn advance(&self, by: u64) {
        if self.terminal {
            self.bar().inc(by);
        }
    }

    fn note(&self, text: &str) {
        let bar = self.bar();
        if self.terminal {
            bar.suspend(|| eprintln!("  {text}"));
        } else {
            eprintln!("  {text}");
        }
    }
}
