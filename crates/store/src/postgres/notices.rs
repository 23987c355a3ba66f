//! What control planes tell each other, by NOTIFY.
//!
//! A commit with a NOTIFY takes a lock that the whole server shares. So notices never travel with a batch: they have a
//! connection of their own, and are sent when the batch is durable.

use std::future::poll_fn;
use std::pin::pin;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, Client, SimpleQueryMessage};

use super::address::{PostgresAddress, explain_tls};
use super::conn::{Conn, failed};
use super::hosts::connect;
use super::load::query;
use super::{Postgres, sql};
use crate::error::StoreError;
use crate::notices::{Notice, NoticeStore, Payload};

/// Notices that were heard and not yet looked at.
const HEARD: usize = 256;
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A connection on which nothing comes may be one that nobody is at the other end of.
const PING_EVERY: Duration = Duration::from_secs(5);
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[async_trait]
impl NoticeStore for Postgres {
    async fn notify(&self, sender: &str, notices: &[Notice]) -> Result<(), StoreError> {
        let conn = Conn::get(&self.notices).await?;
        let text = Payload::text(sender, notices);
        query(&conn, sql::NOTIFY, &[&text]).await.map_err(|error| failed("notify others", error))?;
        conn.give_back();
        Ok(())
    }

    fn listen(&self, own: &str) -> Option<mpsc::Receiver<Notice>> {
        let (sender, receiver) = mpsc::channel(HEARD);
        tokio::spawn(listen(self.address.clone(), own.to_owned(), sender));
        Some(receiver)
    }
}

/// Listens until nobody wants to hear any more.
async fn listen(address: PostgresAddress, own: String, sender: mpsc::Sender<Notice>) {
    let mut pause = FIRST_PAUSE;
    loop {
        let began = Instant::now();
        let end = tokio::select! {
            end = hear(&address, &own, &sender) => end,
            () = sender.closed() => return,
        };
        let Err(error) = end else { return };
        tracing::warn!(%error, "cannot listen for notices of other control planes");
        if began.elapsed() > LONGEST_PAUSE {
            pause = FIRST_PAUSE;
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = sender.closed() => return,
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// One connection, for as long as it lasts. Ends well only when nobody wants to hear any more.
async fn hear(address: &PostgresAddress, own: &str, sender: &mpsc::Sender<Notice>) -> Result<(), Failure> {
    let PostgresAddress { mut config, tls } = address.clone();
    config.application_name("tenure listen");
    let connected = tokio::time::timeout(CONNECT_WITHIN, connect(&config, &tls)).await?;
    let (client, mut connection) =
        connected.map_err(|error| explain_tls(&error).map_or_else(|| Failure::from(error), Failure::from))?;
    let mut talk = pin!(async {
        ask_for_notices(&client).await?;
        // Whatever was told before this was not heard.
        if sender.send(Notice::Everything).await.is_err() {
            return Ok::<_, Failure>(());
        }
        loop {
            tokio::time::sleep(PING_EVERY).await;
            // Said twice it means the same.
            ask_for_notices(&client).await?;
        }
    });
    loop {
        let message = tokio::select! {
            message = poll_fn(|cx| connection.poll_message(cx)) => message,
            end = &mut talk => return end,
        };
        match message {
            Some(Ok(AsyncMessage::Notification(told))) => {
                for notice in Payload::notices(told.payload(), own) {
                    if sender.send(notice).await.is_err() {
                        return Ok(());
                    }
                }
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(error.into()),
            None => return Err("the connection was closed".into()),
        }
    }
}

/// Nobody tells anything at a server that only reads: it was the primary once.
async fn ask_for_notices(client: &Client) -> Result<(), Failure> {
    let answers = tokio::time::timeout(ANSWER_WITHIN, client.simple_query(sql::LISTEN)).await??;
    let only_reads = answers.iter().any(|answer| match answer {
        SimpleQueryMessage::Row(row) => row.get(0) == Some("on"),
        _ => false,
    });
    if only_reads { Err("the server only reads".into()) } else { Ok(()) }
}
