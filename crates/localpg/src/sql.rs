//! The few statements that the helpers themselves run.

use std::time::Duration;

use tokio_postgres::{Config, Error, NoTls, SimpleQueryMessage};

/// The name of the superuser, which needs no password.
pub const USER: &str = "postgres";

/// Runs a statement over a connection of its own and returns the first value of the first row,
/// empty when there is none.
pub async fn run(port: u16, statement: &str) -> Result<String, Error> {
    let (client, connection) = Config::new()
        .host("127.0.0.1")
        .port(port)
        .user(USER)
        .dbname("postgres")
        .connect_timeout(Duration::from_secs(10))
        .connect(NoTls)
        .await?;
    let connection = tokio::spawn(connection);
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
