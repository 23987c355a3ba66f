//! The few statements that the helpers themselves run.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::{Client, Config, Error, NoTls, SimpleQueryMessage};

/// The name of the superuser, which needs no password.
pub const USER: &str = "postgres";

/// How long [`send`] lets a statement have its turn.
const SENT: Duration = Duration::from_millis(10);

/// Runs a statement over a connection of its own and returns the first value of the first row,
/// empty when there is none.
pub async fn run(port: u16, statement: &str) -> Result<String, Error> {
    let (client, connection) = connect(port).await?;
    let messages = client.simple_query(statement).await?;
    // Says goodbye to the server, which would log a lost connection otherwise.
    drop(client);
    let _ = connection.await;
    let value = messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    Ok(value.unwrap_or_default().to_owned())
}

/// Sends a statement over a connection of its own and does not wait for its end: Postgres carries it out to the end
/// although nobody listens any more.
pub async fn send(port: u16, statement: &str) -> Result<(), Error> {
    let (client, _connection) = connect(port).await?;
    timeout(SENT, client.simple_query(statement)).await.map_or(Ok(()), |ended| ended.map(drop))
}

async fn connect(port: u16) -> Result<(Client, JoinHandle<Result<(), Error>>), Error> {
    let (client, connection) = Config::new()
        .host("127.0.0.1")
        .port(port)
        .user(USER)
        .dbname("postgres")
        .connect_timeout(Duration::from_secs(10))
        .connect(NoTls)
        .await?;
    Ok((client, tokio::spawn(connection)))
}
