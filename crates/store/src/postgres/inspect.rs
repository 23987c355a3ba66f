use std::time::Duration;

use tokio_postgres::{Client, Error};

use super::{PostgresAddress, explain_tls, load, rows, sql};
use crate::error::StoreError;
use crate::inspect::{Inspection, PostgresServer, SHARED_WORKER_TOKEN, STORE_ID, SharedSecret};
use crate::schema::SCHEMA;

const CONNECT_WITHIN: Duration = Duration::from_secs(5);

pub async fn inspect(url: &str) -> Result<Inspection, StoreError> {
    let client = connect(url, "tenure doctor").await?;
    look(&client).await.map_err(|error| StoreError::Failed { operation: "answer", source: error.into() })
}

/// One connection, for a command that ends soon.
pub(crate) async fn connect(url: &str, name: &str) -> Result<Client, StoreError> {
    let connected = try_connect(url, name).await;
    connected.map_err(|source| StoreError::Unavailable { operation: "connect", source })
}

async fn try_connect(url: &str, name: &str) -> Result<Client, Box<dyn std::error::Error + Send + Sync>> {
    let PostgresAddress { mut config, tls } = PostgresAddress::parse(url)?;
    config.application_name(name).connect_timeout(CONNECT_WITHIN);
    let connected = tokio::time::timeout(CONNECT_WITHIN, config.connect(tls)).await;
    let connected = connected.map_err(|_| format!("no answer within {} s", CONNECT_WITHIN.as_secs()))?;
    // Postgres names neither address nor password.
    let (client, connection) = match connected {
        Ok(connected) => connected,
        Err(error) => return Err(explain_tls(&error).map_or_else(|| error.into(), Into::into)),
    };
    tokio::spawn(connection);
    Ok(client)
}

async fn look(client: &Client) -> Result<Inspection, Error> {
    let there: bool = client.query_one(sql::SCHEMA_THERE, &[]).await?.try_get(0)?;
    let schema = match there {
        true => client.query_one(sql::SCHEMA_GET, &[]).await?.try_get(0)?,
        false => 0,
    };
    let queues = match schema {
        SCHEMA => client.query(sql::QUEUES_ALL, &[]).await?.iter().map(rows::queue).collect::<Result<_, _>>()?,
        _ => Vec::new(),
    };
    let setting =
        async |name: &str| -> Result<String, Error> { client.query_one(sql::SETTING, &[&name]).await?.try_get(0) };
    let server = PostgresServer {
        now: load::clock(&client.query_one(sql::CLOCK, &[]).await?)?,
        fsync: setting("fsync").await?,
        synchronous_commit: setting("synchronous_commit").await?,
        autovacuum_naptime: setting("autovacuum_naptime").await?,
    };
    let shared = async |name: &str| match schema {
        SCHEMA => {
            let found = client.query_opt(sql::SHARED_SECRET_GET, &[&name]).await?;
            found.map(|row| row.try_get::<_, String>(0)).transpose()
        }
        _ => Ok(None),
    };
    let worker_token = shared(SHARED_WORKER_TOKEN).await?.map(SharedSecret);
    let store_id = shared(STORE_ID).await?;
    Ok(Inspection { schema, in_use: false, queues, server: Some(server), worker_token, store_id })
}
