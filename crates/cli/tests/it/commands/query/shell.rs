//! The shell, at a terminal as people have one.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::{Value, json};
use tenure_testkit::wait_until;

use super::Site;
use crate::commands::kit::SOON;

const CTRL_C: &str = "\u{3}";
const CTRL_D: &str = "\u{4}";
const UP: &str = "\u{1b}[A";
const PROMPT: &str = "tenure> ";

/// A program at a terminal of its own, and what it has shown.
struct Terminal {
    keyboard: File,
    screen: Arc<Mutex<String>>,
    /// What was looked at before.
    seen: usize,
    child: Child,
}

impl Terminal {
    fn start(command: &Command) -> Self {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let path = ptsname(&controller, Vec::new()).unwrap();
        let size = Winsize { ws_row: 40, ws_col: 200, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&controller, size).unwrap();
        let terminal = File::options().read(true).write(true).open(path.to_str().unwrap()).unwrap();
        // Only in a session of its own does Ctrl-C reach it.
        let mut session = Command::new("setsid");
        session.arg("--ctty").arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => session.env(name, value),
                None => session.env_remove(name),
            };
        }
        session.env("TERM", "xterm").current_dir(command.get_current_dir().unwrap());
        session.stdin(terminal.try_clone().unwrap()).stdout(terminal.try_clone().unwrap()).stderr(terminal);
        let child = session.spawn().unwrap();
        drop(session);
        let keyboard = File::from(controller);
        let (mut reader, screen) = (keyboard.try_clone().unwrap(), Arc::<Mutex<String>>::default());
        let shown = Arc::clone(&screen);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length @ 1..) = reader.read(&mut bytes) {
                shown.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..length]));
            }
        });
        Self { keyboard, screen, seen: 0, child }
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the text is shown after what was waited for before.
    async fn shows(&mut self, text: &str) {
        let (screen, seen) = (Arc::clone(&self.screen), self.seen);
        let end = wait_until(text, SOON, async || {
            let shown = plain(&screen.lock().unwrap());
            shown.get(seen..)?.find(text).map(|at| seen + at + text.len())
        })
        .await;
        self.seen = end;
    }

    async fn ends(&mut self) -> ExitStatus {
        wait_until("it ends", SOON, async || self.child.try_wait().unwrap()).await
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Without what moves the cursor and chooses colours.
fn plain(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        if c == '\u{1b}' {
            if rest.next() == Some('[') {
                rest.by_ref().find(|c| c.is_ascii_alphabetic());
            }
        } else if c != '\r' {
            out.push(c);
        }
    }
    out
}

fn asked(site: &Site) -> Vec<Value> {
    site.asked().into_iter().map(|body| body["sql"].clone()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shell_completes_names_and_survives_what_is_wrong_and_what_is_given_up() {
    let site = Site::new().await;
    let mut shell = Terminal::start(&site.command(&[]));
    shell.shows("2 datasets.").await;
    shell.shows(PROMPT).await;
    // Names of datasets after FROM, columns of a dataset that the line names.
    shell.press("SELECT * FROM al\t");
    shell.shows("FROM alerts").await;
    shell.press(" WHERE sev\t");
    shell.shows("WHERE severity").await;
    shell.press(" IS NULL;\r");
    shell.shows("NULL  NULL").await;
    assert_eq!(asked(&site), ["SELECT * FROM alerts WHERE severity IS NULL;"]);
    shell.shows(PROMPT).await;
    // Two columns have the same beginning: both are shown.
    shell.press("SELECT * FROM alerts WHERE se\t\t");
    shell.shows("seen").await;
    shell.shows("tenure> SELECT * FROM alerts WHERE se").await;
    shell.press(CTRL_C);
    shell.shows(PROMPT).await;
    // A statement of several lines, and an error that says where.
    shell.press("SELECT 1\r");
    shell.shows("tenure> SELECT 1").await;
    shell.press("FROM other;\r");
    shell.shows("error: line 2, column 6: the relation 'other' is none of the datasets of this query").await;
    shell.shows("2 | FROM other").await;
    shell.shows(PROMPT).await;
    // A line that is given up is not asked; a query that is given up ends, and the shell does not.
    shell.press("SELECT 'given up'");
    shell.shows("given up").await;
    shell.press(CTRL_C);
    shell.shows(PROMPT).await;
    shell.press("SELECT endless;\r");
    wait_until("the query runs", SOON, async || asked(&site).len() == 3).await;
    shell.press(CTRL_C);
    shell.shows("Canceled.").await;
    shell.shows(PROMPT).await;
    // Commands of the shell, and a wrong one.
    shell.press("\\d alerts\r");
    shell.shows("timestamptz").await;
    shell.shows(PROMPT).await;
    shell.press("\\limit 7\r");
    shell.shows(PROMPT).await;
    shell.press("\\nothing\r");
    shell.shows("there is no command \\nothing").await;
    shell.shows(PROMPT).await;
    shell.press("SELECT 2;\r");
    shell.shows("NULL  NULL").await;
    let last = site.asked().pop().unwrap();
    assert_eq!((&last["sql"], &last["limit"]), (&json!("SELECT 2;"), &json!(7)));
    assert_eq!(asked(&site).len(), 4, "{:?}", asked(&site));
    shell.shows(PROMPT).await;
    shell.press(CTRL_D);
    assert!(shell.ends().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_shell_remembers_what_was_entered_and_nobody_else_can_read_it() {
    let site = Site::new().await;
    let mut first = Terminal::start(&site.command(&[]));
    first.shows(PROMPT).await;
    first.press("SELECT 'first';\r");
    first.shows("NULL  NULL").await;
    first.shows(PROMPT).await;
    // A line that begins with a space is not kept.
    first.press(" SELECT 'private';\r");
    first.shows("NULL  NULL").await;
    first.shows(PROMPT).await;
    first.press("\\q\r");
    assert!(first.ends().await.success());
    let file = site.home.path().join("query_history");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("SELECT 'first';") && !text.contains("private"), "{text}");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let mut second = Terminal::start(&site.command(&[]));
    second.shows(PROMPT).await;
    // The last line is the command that ended the first shell.
    second.press(&format!("{UP}{UP}"));
    second.shows("SELECT 'first';").await;
    second.press("\r");
    second.shows("NULL  NULL").await;
    assert_eq!(asked(&site), ["SELECT 'first';", "SELECT 'private';", "SELECT 'first';"]);
}
