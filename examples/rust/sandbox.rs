//! Runs code in a sandbox: a command, a file, output as it comes.
//!
//! ```text
//! cargo run -p tenure-client --example sandbox
//! ```

use tenure_client::sandboxes::ExecEvent;
use tenure_client::sandboxes::types::{ExecRequest, SandboxWrite};
use tenure_client::{Client, ClientError, Sandbox};

/// Returns what the commands printed.
pub async fn in_a_sandbox(client: &Client, image: &str) -> Result<String, ClientError> {
    let wanted = SandboxWrite { image: Some(image.into()), ttl: Some("10m".into()), ..SandboxWrite::default() };
    let sandbox = client.sandboxes().create(&wanted).await?;
    let printed = work(&sandbox).await;
    // Without this it would live until its time is over.
    sandbox.destroy().await?;
    printed
}

async fn work(sandbox: &Sandbox) -> Result<String, ClientError> {
    sandbox.write_file("/workspace/numbers.txt", "3\n1\n2\n", None).await?;
    let sorted = sandbox.run("sort numbers.txt").await?;
    assert_eq!(sorted.exit_code, 0, "{}", sorted.stderr);

    let request = ExecRequest { command: "for n in 1 2 3; do echo line $n; done".into(), ..ExecRequest::default() };
    let mut output = sandbox.stream(&request).await?;
    let mut printed = sorted.stdout;
    while let Some(event) = output.next().await {
        match event? {
            ExecEvent::Stdout(bytes) | ExecEvent::Stderr(bytes) => printed.push_str(&String::from_utf8_lossy(&bytes)),
            ExecEvent::Exited { exit_code, .. } => printed.push_str(&format!("exit code {exit_code:?}\n")),
        }
    }
    Ok(printed)
}

#[allow(dead_code, clippy::print_stdout, reason = "tests run it without this; it is a program")]
#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = std::env::var("TENURE_URL").unwrap_or_else(|_| "http://127.0.0.1:7423".to_owned());
    let mut client = Client::builder(server);
    if let Ok(key) = std::env::var("TENURE_API_KEY") {
        client = client.api_key(key);
    }
    println!("{}", in_a_sandbox(&client.build()?, "host").await?);
    Ok(())
}
