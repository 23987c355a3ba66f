//! Thousands of clients that say next to nothing: others do not notice, and nothing of them remains.

use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::json;
use tenure_testkit::{Tenure, wait_until};
use tokio::net::TcpStream;

use crate::security::kit::{ADMIN_KEY, API_KEY, Caller, Desk, roots};

const TOKEN: &str = "token-that-workers-share-0123456789";
const SLOW: usize = 2_000;
/// Between two bytes of a slow client.
const PAUSE: Duration = Duration::from_secs(2);
/// The server gives a head 30 s and a handshake 10 s.
const ALL_CLOSED: Duration = Duration::from_secs(90);
const MEASURED: usize = 40;
/// For a machine that does other things too.
const SLACK: Duration = Duration::from_secs(2);

/// Clients that say one byte at a time.
struct Slow {
    text: &'static [u8],
    open: Vec<TcpStream>,
    said: usize,
}

impl Slow {
    async fn connect(url: &str, text: &'static [u8]) -> Self {
        let address = url.split_once("://").unwrap().1;
        let mut open = Vec::with_capacity(SLOW);
        for _ in 0..SLOW {
            open.push(TcpStream::connect(address).await.unwrap());
        }
        Self { text, open, said: 0 }
    }

    /// Says the next byte on every connection, and lets go of those that the server has closed.
    fn say(&mut self) {
        let byte = self.text[self.said % self.text.len()];
        self.said += 1;
        let mut answer = [0; 512];
        self.open.retain(|stream| {
            // Half of them say nothing at all.
            if stream.local_addr().is_ok_and(|own| own.port() % 2 == 0) {
                let _ = stream.try_write(&[byte]);
            }
            loop {
                match stream.try_read(&mut answer) {
                    Ok(0) => return false,
                    Ok(_) => {}
                    Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
                }
            }
        });
    }
}

/// Of the test and of the servers that it starts.
fn allow_many_files() {
    let wanted = SLOW as u64 * 2 + 500;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    assert!(hard >= wanted, "the system allows {hard} open files, and this test needs {wanted}");
    setrlimit(Resource::RLIMIT_NOFILE, soft.max(wanted), hard).unwrap();
}

fn open_files(server: &Tenure) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap().count()
}

pub fn resident_mib(server: &Tenure) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

/// The median time of a submit and a claim.
async fn median(caller: &Caller) -> Duration {
    let (user, worker) = (caller.user(), caller.worker("w", TOKEN));
    let mut times = Vec::with_capacity(MEASURED);
    for n in 0..MEASURED {
        let started = Instant::now();
        user.submit("echo", &json!(n)).await;
        assert_eq!(worker.claim("w").await.json()["claimed"], true);
        times.push(started.elapsed());
    }
    times.sort();
    times[MEASURED / 2]
}

/// Lets slow clients at a server until it has thrown all of them out.
async fn withstands(server: &Tenure, caller: &Caller, text: &'static [u8]) {
    let (quiet, files_before) = (median(caller).await, open_files(server));
    let mut slow = Slow::connect(server.url(), text).await;
    // Where connecting takes long, the first ones are thrown out before the last ones come.
    let most = files_before + SLOW * 3 / 4;
    wait_until("most are accepted", ALL_CLOSED, async || open_files(server) >= most).await;
    let memory_begin = resident_mib(server);
    slow.say();
    let busy = median(caller).await;
    assert!(busy < quiet * 5 + SLACK, "{quiet:?} without and {busy:?} with slow clients");
    assert!(slow.open.len() > SLOW / 2, "they were there all the time");

    let started = Instant::now();
    while !slow.open.is_empty() {
        assert!(started.elapsed() < ALL_CLOSED, "{} are still served", slow.open.len());
        tokio::time::sleep(PAUSE).await;
        slow.say();
        assert_eq!(caller.user().get("/api/v1/queues").await.status, 200, "others are served meanwhile");
    }
    let few = files_before + 50;
    wait_until("their descriptors are closed", ALL_CLOSED, async || open_files(server) <= few).await;
    let memory = resident_mib(server);
    assert!(memory < memory_begin + 64, "{memory_begin} MiB with slow clients, {memory} MiB after them");
    assert!(median(caller).await < quiet * 5 + SLACK);
}

fn auth() -> String {
    format!("auth: {{enabled: true, api_key: {API_KEY}, admin_api_key: {ADMIN_KEY}, worker_token: {TOKEN}}}\n")
}

/// Over TLS and without, at the same time.
#[tokio::test]
async fn thousands_of_slow_clients_do_not_slow_others_and_are_thrown_out() {
    allow_many_files();
    let desk = Desk::new();
    desk.certs("certs").await;
    let plain = desk.serve(&auth()).await;
    let tls = "server: {tls: {cert_file: certs/server.crt, key_file: certs/server.key}}";
    let secure = desk.serve(&format!("{}{tls}", auth())).await;
    let http = reqwest::Client::builder().tls_certs_only(roots(&desk.path("certs/ca.crt"))).build().unwrap();
    // The beginning of a handshake.
    let hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    let (plain_caller, secure_caller) = (Caller::new(plain.url()), Caller::with(secure.url(), http));
    tokio::join!(
        withstands(&plain, &plain_caller, b"GET /api/v1/tasks HTTP/1.1\r\nX-API-Key: "),
        withstands(&secure, &secure_caller, hello),
    );
}
